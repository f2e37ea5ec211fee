"""Tasks triggered by writes, no faster than a cadence: a heap on S3 and a sysdb on FoundationDB."""

from s3heap_tender.claims.describing import Description
from s3heap_tender.errors import (
    ClaimLostError,
    ClaimRefusedError,
    ConflictError,
    CorruptObjectError,
    DuplicateWriterError,
    HeapMismatchError,
    HeapTenderError,
    OutcomeUnknownError,
    RunStoppedError,
    StoreError,
    StoreUnavailableError,
    StoreUrlError,
    TaskExistsError,
    TaskNotFoundError,
    TransitionError,
    UnconditionalStoreError,
    UnknownItemError,
)
from s3heap_tender.export import ExportError, export_parquet
from s3heap_tender.heap import Heap
from s3heap_tender.inspection import Findings, Metrics, fsck, metrics
from s3heap_tender.objects.heap_values import Bucket, PruneStats, Summary
from s3heap_tender.rows.items import HeapItem
from s3heap_tender.rows.output import keep_output
from s3heap_tender.rows.records import Backoff, Claim, DeadLetter, ReadUpTo, Task
from s3heap_tender.runs.run_context import run_is_cancelled
from s3heap_tender.runs.running import Trigger
from s3heap_tender.runs.triggers import (
    RUNS_PIPELINE,
    TriggerError,
    futures_trigger,
    memoized_trigger,
    run_key,
    subprocess_trigger,
)
from s3heap_tender.runs.untended import prune_untended
from s3heap_tender.scheduler import Scheduler
from s3heap_tender.stores import HeapStore
from s3heap_tender.sysdb import SysDb
from s3heap_tender.tender import Tender

__all__ = [
    "RUNS_PIPELINE",
    "Backoff",
    "Bucket",
    "Claim",
    "ClaimLostError",
    "ClaimRefusedError",
    "ConflictError",
    "CorruptObjectError",
    "DeadLetter",
    "Description",
    "DuplicateWriterError",
    "ExportError",
    "Findings",
    "Heap",
    "HeapItem",
    "HeapMismatchError",
    "HeapStore",
    "HeapTenderError",
    "Metrics",
    "OutcomeUnknownError",
    "PruneStats",
    "ReadUpTo",
    "RunStoppedError",
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
    "TriggerError",
    "UnconditionalStoreError",
    "UnknownItemError",
    "export_parquet",
    "fsck",
    "futures_trigger",
    "keep_output",
    "memoized_trigger",
    "metrics",
    "prune_untended",
    "run_is_cancelled",
    "run_key",
    "subprocess_trigger",
]
