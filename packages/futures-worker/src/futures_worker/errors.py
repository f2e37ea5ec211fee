"""What can go wrong with a future, as exceptions: each names the future, what was found, and what to do."""

from __future__ import annotations

from uuid import UUID

from fdb_datamodel import AddressInUseError, ClaimLostError, FutureDeletedError, UnknownFutureError
from fdb_schema import MainspringError, OversizeError
from fdb_schema.errors import EXIT_NOT_FOUND, EXIT_USAGE

__all__ = [
    "ActorDiedError",
    "AddressInUseError",
    "AuthenticationError",
    "ClaimLostError",
    "DeadlockError",
    "FutureDeletedError",
    "FutureFailedError",
    "FutureTimeoutError",
    "MainspringError",
    "NoWorkerError",
    "NondeterministicProgram",
    "ObjectLostError",
    "OutOfMemoryError",
    "OversizeError",
    "ResultPickleError",
    "TaskUnpickleError",
    "UnknownFutureError",
    "UnschedulableError",
    "UpstreamDependencyFailedException",
    "WireError",
    "WorkerLostError",
    "WorkerStartError",
    "WrongClusterError",
]


class FutureFailedError(MainspringError):
    """A future ended Failed. Raised itself where the original exception can't be carried; else the base of the reasons.

    `error_type` is the remote exception's qualified class name, `error_message` its text, `remote_traceback` the
    formatted traceback of the process that ran the task; each is empty where there was none.
    """

    def __init__(
        self, message: str = "", *, error_type: str = "", error_message: str = "", remote_traceback: str = ""
    ) -> None:
        super().__init__(message)
        self.error_type = error_type
        self.error_message = error_message
        self.remote_traceback = remote_traceback

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.args, dict(self.__dict__)))


class WorkerLostError(FutureFailedError):
    """The workers that ran the future died more often than `max_worker_losses` allows."""


class ActorDiedError(WorkerLostError):
    """The actor is no more, or the process that ran it died before the call's end was recorded."""


class OutOfMemoryError(FutureFailedError):
    """The future's process was killed for its memory more often than `max_oom` allows."""


class ObjectLostError(FutureFailedError):
    """The future was realized, no copy of its result is left, and it may not be computed again."""


class UnschedulableError(FutureFailedError):
    """No live worker is large enough for the future, for longer than `unschedulable_timeout`."""


class FutureTimeoutError(FutureFailedError, TimeoutError):
    """One of the future's own time limits (`timeout=` of submit) passed; it is Failed."""


class NondeterministicProgram(MainspringError):
    """A program asked for something else than an earlier attempt of it had asked for in the same place."""


class TaskUnpickleError(FutureFailedError):
    """A worker can't load the function or its arguments; says which module is missing, and both Python versions."""


class ResultPickleError(FutureFailedError):
    """What the function returned can't be pickled (or can't be loaded by the reader)."""


class DeadlockError(FutureFailedError):
    """The future waits, through others, on itself."""


class UpstreamDependencyFailedException(FutureFailedError):
    """A future that this one depends on failed. `chain`: ids (UUID) from the direct dependency to the one that failed first.

    `epoch` is the epoch of the dependency that failed.
    """

    def __init__(self, message: str = "", *, chain: tuple[UUID, ...] = (), epoch: int = 0, **details: str) -> None:
        super().__init__(message, **details)
        self.chain = chain
        self.epoch = epoch


class AddressUnknownError(MainspringError):
    """A worker would be known by an address that nobody can dial."""

    exit_code = EXIT_USAGE


class NoWorkerError(MainspringError):
    """The cluster has no live worker that could take an object."""


class WorkerStartError(MainspringError):
    """A worker process of a `LocalCluster` ended, or said nothing for too long, before it served; the end of its log is told."""


class WireError(MainspringError):
    """A peer broke the protocol between processes: a bad frame, one over its limit, or gone in the middle of one."""


class AuthenticationError(WireError):
    """A peer could not prove that it knows the cluster's secret. Nothing it sent was unpickled."""


def _rebuild(kind: type[FutureFailedError], args: tuple[object, ...], state: dict[str, object]) -> FutureFailedError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class WrongClusterError(MainspringError):
    """A handle of one cluster where another one's was needed, or whose own cluster can't be found. Nothing was created."""

    exit_code = EXIT_NOT_FOUND
