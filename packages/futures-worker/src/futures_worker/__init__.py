"""Durable distributed futures on FoundationDB: workers, object store, client."""
