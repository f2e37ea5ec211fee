"""Leases that need no clock, and runs that are never computed twice, on FoundationDB."""

from lease_locks.aio import AsyncLeaseManager
from lease_locks.clearing import AbandonedLeases, OldHistories
from lease_locks.duties import Duties, Duty, DutyReport, duty_reports
from lease_locks.election import LeaderElection, Term
from lease_locks.errors import (
    AcquireTimeout,
    CannotMaintainLock,
    ForkedLeaseError,
    LeaseError,
    LeaseLost,
    LeaseNotFoundError,
    LeaseStateError,
    LockReleased,
    LockWasStolenError,
    MemoUriError,
)
from lease_locks.grants.info import LeaseEvent, LeaseInfo, Maintainer, Waiter
from lease_locks.grants.tokens import FencingToken
from lease_locks.lease import Lease
from lease_locks.locks import LeaseManager
from lease_locks.memo.calling.files import File
from lease_locks.memo.calling.found import RequiredResultNotFound, Unmemoized
from lease_locks.memo.calling.memoized import Memoized
from lease_locks.memo.calling.submitting import MemoFuture
from lease_locks.memo.canonical import MemoKeyError
from lease_locks.memo.config import MAINTAIN_LOCKS
from lease_locks.memo.functions import RemoteError, RemoteTraceback, UnpicklableResult
from lease_locks.memo.orchestrator import InvocationCancelled, InvocationTimedOut, NoResultAfterShell
from lease_locks.memo.pruning import OldMemos, Pruned, prune
from lease_locks.memo.remote import main as run_remote
from lease_locks.memo.runner import MemoizingPicklingRunner
from lease_locks.memo.shells import DetachedSubprocessShell, Shell, detached_shell, samethread_shell, subprocess_shell

__all__ = [
    "MAINTAIN_LOCKS",
    "AbandonedLeases",
    "AcquireTimeout",
    "AsyncLeaseManager",
    "CannotMaintainLock",
    "DetachedSubprocessShell",
    "Duties",
    "Duty",
    "DutyReport",
    "FencingToken",
    "File",
    "ForkedLeaseError",
    "InvocationCancelled",
    "InvocationTimedOut",
    "LeaderElection",
    "Lease",
    "LeaseError",
    "LeaseEvent",
    "LeaseInfo",
    "LeaseLost",
    "LeaseManager",
    "LeaseNotFoundError",
    "LeaseStateError",
    "LockReleased",
    "LockWasStolenError",
    "Maintainer",
    "MemoFuture",
    "MemoKeyError",
    "MemoUriError",
    "Memoized",
    "MemoizingPicklingRunner",
    "NoResultAfterShell",
    "OldHistories",
    "OldMemos",
    "Pruned",
    "RemoteError",
    "RemoteTraceback",
    "RequiredResultNotFound",
    "Shell",
    "Term",
    "Unmemoized",
    "UnpicklableResult",
    "Waiter",
    "detached_shell",
    "duty_reports",
    "prune",
    "run_remote",
    "samethread_shell",
    "subprocess_shell",
]
