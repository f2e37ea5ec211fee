"""FoundationDB transactions that are safe to retry: no caller ever sees commit_unknown_result."""

from idempotent_txn.attempts.outcome import CommitResult, Committed, NotCommitted, Outcome
from idempotent_txn.batching.batcher import Batcher
from idempotent_txn.cleaner import Cleaned, Cleaner, IdStatus, id_status
from idempotent_txn.errors import (
    BodyError,
    ClientFenced,
    CommitUnknownResultFatal,
    IdempotencyError,
    IdempotencyIdError,
    StrategyError,
    TransactionTimedOut,
)
from idempotent_txn.ids.identity import IdempotencyId
from idempotent_txn.loop import run, run_committed, run_repeatable, transactional
from idempotent_txn.results import commit_result, expire_idempotency_id, find_commit
from idempotent_txn.session import use_client_id

__all__ = [
    "Batcher",
    "BodyError",
    "Cleaned",
    "Cleaner",
    "ClientFenced",
    "CommitResult",
    "CommitUnknownResultFatal",
    "Committed",
    "IdStatus",
    "IdempotencyError",
    "IdempotencyId",
    "IdempotencyIdError",
    "NotCommitted",
    "Outcome",
    "StrategyError",
    "TransactionTimedOut",
    "commit_result",
    "expire_idempotency_id",
    "find_commit",
    "id_status",
    "run",
    "run_committed",
    "run_repeatable",
    "transactional",
    "use_client_id",
]
