"""Idempotency ids: their keys, the rows and the native records that prove a commit, and how one is looked up. Above `attempts`."""
