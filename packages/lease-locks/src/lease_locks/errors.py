"""The errors of leases and of the memoizing runner, in one small tree under `MainspringError`."""

from __future__ import annotations

from typing import ClassVar

from fdb_schema.errors import EXIT_ACQUIRE_TIMED_OUT
from lease_locks.grants.errors import (
    CannotMaintainLock,
    DamagedRowError,
    ForkedLeaseError,
    LeaseError,
    LeaseLost,
    LeaseNotFoundError,
    LeaseStateError,
    LockReleased,
    LockWasStolenError,
    MemoUriError,
)
from lease_locks.grants.info import LeaseInfo


class AcquireTimeout(LeaseError, TimeoutError):
    """The lease wasn't free before the deadline; the message names who holds it, `holder` is its LeaseInfo."""

    exit_code: ClassVar[int] = EXIT_ACQUIRE_TIMED_OUT
    holder: LeaseInfo | None = None


__all__ = [
    "AcquireTimeout",
    "CannotMaintainLock",
    "DamagedRowError",
    "ForkedLeaseError",
    "LeaseError",
    "LeaseLost",
    "LeaseNotFoundError",
    "LeaseStateError",
    "LockReleased",
    "LockWasStolenError",
    "MemoUriError",
]
