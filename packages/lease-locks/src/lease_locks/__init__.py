"""Leases that need no clock, and runs that are never computed twice, on FoundationDB."""

from lease_locks.aio import AsyncLeaseManager
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
)
from lease_locks.info import LeaseEvent, LeaseInfo, Maintainer, Waiter
from lease_locks.lease import Lease
from lease_locks.locks import LeaseManager
from lease_locks.tokens import FencingToken

__all__ = [
    "AcquireTimeout",
    "AsyncLeaseManager",
    "CannotMaintainLock",
    "FencingToken",
    "ForkedLeaseError",
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
    "Waiter",
]
