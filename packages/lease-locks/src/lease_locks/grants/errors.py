"""The errors of leases and of the memoizing runner that name no value object of this package; `lease_locks.errors` has all."""

from __future__ import annotations

from typing import ClassVar

from fdb_schema import MainspringError, RecordError
from fdb_schema.errors import EXIT_FAILED, EXIT_LOCK_STOLEN, EXIT_NOT_FOUND, EXIT_USAGE


class LeaseError(MainspringError):
    """Base of what this package raises on purpose."""


class LeaseLost(LeaseError):
    """The lease isn't held any more. `reason`: expired, stolen, forced, unreachable, max_hold or released."""

    exit_code: ClassVar[int] = EXIT_LOCK_STOLEN

    def __init__(self, message: str, reason: str = "stolen") -> None:
        super().__init__(message)
        self.reason = reason


class DamagedRowError(LeaseError, RecordError):
    """A row under a lease, or a session's, that no release wrote. `key` is the row's."""

    def __init__(self, message: str, key: bytes) -> None:
        super().__init__(message)
        self.key = key


class CannotMaintainLock(LeaseError):
    """There is no lock that could be maintained: never granted, or its writer id is malformed."""

    exit_code: ClassVar[int] = EXIT_LOCK_STOLEN


class LockWasStolenError(LeaseError):
    """A remote found, at its start, that the lock isn't its orchestrator's any more: it must not run."""

    exit_code: ClassVar[int] = EXIT_LOCK_STOLEN

    def __init__(self, message: str, expected: str = "", actual: str | None = None) -> None:
        super().__init__(message)
        self.expected = expected
        self.actual = actual


class LockReleased(LockWasStolenError, CannotMaintainLock):
    """As `LockWasStolenError`, where nobody holds the lock now."""


class ForkedLeaseError(LeaseError):
    """A lease, or its manager, was used in a child made by `fork()`: it belongs to the parent."""

    exit_code: ClassVar[int] = EXIT_FAILED


class LeaseStateError(LeaseError):
    """An event that the state of a lease doesn't allow: a defect of the caller or of this package."""


class MemoUriError(LeaseError, ValueError):
    """A text that isn't the address of an invocation."""

    exit_code: ClassVar[int] = EXIT_USAGE


class LeaseNotFoundError(LeaseError, LookupError):
    """A command names a lease that nobody holds."""

    exit_code: ClassVar[int] = EXIT_NOT_FOUND
