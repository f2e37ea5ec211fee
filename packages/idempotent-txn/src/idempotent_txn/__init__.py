"""FoundationDB transactions that are safe to retry: no caller ever sees commit_unknown_result."""

from idempotent_txn.errors import (
    ClientFenced,
    CommitUnknownResultFatal,
    IdempotencyError,
    IdempotencyIdError,
    StrategyError,
    TransactionTimedOut,
)
from idempotent_txn.loop import run, run_committed, transactional
from idempotent_txn.outcome import CommitResult, Committed, NotCommitted, Outcome

__all__ = [
    "ClientFenced",
    "CommitResult",
    "CommitUnknownResultFatal",
    "Committed",
    "IdempotencyError",
    "IdempotencyIdError",
    "NotCommitted",
    "Outcome",
    "StrategyError",
    "TransactionTimedOut",
    "run",
    "run_committed",
    "transactional",
]
