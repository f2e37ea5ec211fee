"""Transitions of tasks and what tells of them: index, outbox, claims, sessions. Functions of a transaction; above `rows`."""
