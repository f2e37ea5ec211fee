"""Tasks triggered by writes, no faster than a cadence: a heap on S3 and a sysdb on FoundationDB."""

from s3heap_tender.errors import (
    ClaimLostError,
    ClaimRefusedError,
    ConflictError,
    CorruptObjectError,
    DuplicateWriterError,
    HeapMismatchError,
    HeapTenderError,
    OutcomeUnknownError,
    StoreError,
    StoreUnavailableError,
    StoreUrlError,
    TaskExistsError,
    TaskNotFoundError,
    TransitionError,
    UnconditionalStoreError,
    UnknownItemError,
)
from s3heap_tender.heap import Bucket, Heap, PruneStats, Summary
from s3heap_tender.items import HeapItem
from s3heap_tender.records import Backoff, Claim, DeadLetter, Task
from s3heap_tender.scheduler import Scheduler, Trigger
from s3heap_tender.stores import HeapStore
from s3heap_tender.sysdb import SysDb
from s3heap_tender.tender import Tender

__all__ = [
    "Backoff",
    "Bucket",
    "Claim",
    "ClaimLostError",
    "ClaimRefusedError",
    "ConflictError",
    "CorruptObjectError",
    "DeadLetter",
    "DuplicateWriterError",
    "Heap",
    "HeapItem",
    "HeapMismatchError",
    "HeapStore",
    "HeapTenderError",
    "OutcomeUnknownError",
    "PruneStats",
    "Scheduler",
    "StoreError",
    "StoreUnavailableError",
    "StoreUrlError",
    "Summary",
    "SysDb",
    "Task",
    "TaskExistsError",
    "TaskNotFoundError",
    "Tender",
    "TransitionError",
    "Trigger",
    "UnconditionalStoreError",
    "UnknownItemError",
]
