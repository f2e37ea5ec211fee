"""The package's exceptions: one small tree, so that a caller can tell a refusal from a fault."""

from __future__ import annotations

from typing import Final

from fdb_schema.errors import (
    EXIT_NOT_FOUND,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    MainspringError,
    NewerFormatError,
    RecordError,
    fdb_error_code,
)


class HeapTenderError(MainspringError):
    """Base of every error that this package raises on purpose."""


class TaskNotFoundError(HeapTenderError, LookupError):
    """No task has this id, or it was deleted."""

    exit_code = EXIT_NOT_FOUND


class TaskExistsError(HeapTenderError, ValueError):
    """The partition already has a task of this name, with other settings."""

    exit_code = EXIT_USAGE


class TransitionError(HeapTenderError, ValueError):
    """The task's state does not allow the operation; the message names both."""


class ClaimRefusedError(HeapTenderError):
    """The item can't be claimed. `reason` says why: deleted, superseded, paused, dead, not_due or running."""

    def __init__(self, message: str, *, reason: str, not_before: int | None = None, session: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.not_before = not_before
        self.session = session


class ClaimLostError(HeapTenderError):
    """The claim is no longer the task's: it was retaken, cancelled, settled already, or the task was deleted."""


class RunStoppedError(HeapTenderError):
    """A run that was ended because its scheduler stops: neither done nor failed, it goes to another with the claim."""


class UnknownItemError(HeapTenderError):
    """An item whose task this sysdb never had: the heap belongs to another sysdb, or rows were lost."""


class DuplicateWriterError(HeapTenderError):
    """A shard's owner lost a conditional write: another process writes the shard."""


class StoreError(HeapTenderError):
    """Base of the object store's errors."""


NO_SDK: Final = "the AWS SDK isn't installed; in a checkout: python tools/install.py 's3heap-tender[s3]'"


class StoreUrlError(StoreError, ValueError):
    """A store URL that names no kind of store, or names one badly."""

    exit_code = EXIT_USAGE


class ConflictError(StoreError):
    """A condition did not hold (412, 409, or 404 on If-Match): the object is not what the caller had read."""


class StoreUnavailableError(StoreError, ConnectionError):
    """The store doesn't answer or answers with a server error; nothing was changed by this call."""

    exit_code = EXIT_UNREACHABLE


class OutcomeUnknownError(StoreUnavailableError):
    """A write timed out or its connection broke: it may have landed. Read again before anything else."""


class UnconditionalStoreError(StoreError):
    """The store ignores conditions on writes, so two writers would overwrite each other; it can't be used."""


class HeapMismatchError(HeapTenderError):
    """The heap's `meta` object says another format, bucket length, number of shards or sysdb."""


class StrayKeyError(HeapTenderError, ValueError):
    """A key of the sysdb that no release wrote."""


class CorruptObjectError(HeapTenderError):
    """An object of the heap that can't be what its key says; `key` names it."""

    def __init__(self, message: str, *, key: str) -> None:
        super().__init__(message)
        self.key = key


class OversizedObjectError(CorruptObjectError):
    """An object larger than any of the heap's, which is not read."""


class SimulatedCrash(BaseException):
    """Raised by an armed failpoint in tests in place of the process's death."""


def is_waited_out(error: BaseException) -> bool:
    """Whether a service goes on after this error: what store, database and leases may throw at any time."""
    return isinstance(error, (MainspringError, OSError)) or fdb_error_code(error) is not None


def is_outage(error: BaseException) -> bool:
    """Whether the same call may succeed later: the database is away; not where a row or an argument is wrong."""
    return is_waited_out(error) and not isinstance(error, (HeapTenderError, RecordError, NewerFormatError))
