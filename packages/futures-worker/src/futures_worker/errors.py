"""What can go wrong with a future, as exceptions: each names the future, what was found, and what to do."""

from __future__ import annotations

import contextlib
from typing import Any
from uuid import UUID

from fdb_datamodel import AddressInUseError, ClaimLostError, FutureDeletedError, UnknownFutureError, UnknownNameError
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
    "SoftTimeLimitExceeded",
    "TaskCancelled",
    "TaskUnpickleError",
    "UnknownFutureError",
    "UnknownNameError",
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


class SoftTimeLimitExceeded(MainspringError):
    """Raised in a task that ran for its `soft_timeout`: it may clean up, or return what it has, until its `timeout` ends it."""


class TaskCancelled(KeyboardInterrupt):
    """Raised in a task whose future was cancelled with a grace, as Ctrl-C in a script: it may clean up until it is killed.

    What it returns or raises is dropped. In a coroutine it is `asyncio.CancelledError`. `except Exception` doesn't catch it.
    """


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

    `epoch` is the epoch of the dependency that failed. It is also of the type of what that one raised, or `CancelledError` where it
    was cancelled, so that `except LookupError` takes what a task raised however many others stand between; that itself is its
    `__cause__`.
    """

    def __init__(self, message: str = "", *, chain: tuple[UUID, ...] = (), epoch: int = 0, **details: str) -> None:
        super().__init__(message, **details)
        self.chain = chain
        self.epoch = epoch

    @classmethod
    def like(
        cls, original: BaseException | None, message: str, *, chain: tuple[UUID, ...], epoch: int
    ) -> UpstreamDependencyFailedException:
        """One that is also of the type of the original exception, its cause, as far as Python lets one be both."""
        error = cls(message, chain=chain, epoch=epoch)
        kind = type(original)
        if isinstance(original, Exception) and not issubclass(kind, FutureFailedError):
            with contextlib.suppress(Exception):  # of a type that can't be made, or derived from, so
                error = _of_both(kind, (message,), error.__dict__)
        error.__cause__ = original
        return error


def _of_both(
    kind: type[BaseException] | type[None], args: tuple[object, ...], state: dict[str, object]
) -> UpstreamDependencyFailedException:
    """An `UpstreamDependencyFailedException` that is a `kind` too: made without that one's constructor, whatever it takes."""
    both = _both(kind)
    error: UpstreamDependencyFailedException = both.__new__(both, *args)
    error.args = args
    error.__dict__.update(state)
    return error


def _both(kind: Any) -> Any:
    def text(self: BaseException) -> str:
        return str(self.args[0]) if self.args else ""

    def reduce(self: UpstreamDependencyFailedException) -> tuple[object, ...]:
        return _of_both, (kind, self.args, dict(self.__dict__))

    base = UpstreamDependencyFailedException
    names = {"__str__": text, "__reduce__": reduce, "__module__": base.__module__, "__qualname__": base.__qualname__}
    return type(base.__name__, (base, kind), names)


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
