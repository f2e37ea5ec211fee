"""How a future ended, as its user sees it: a mailbox entry becomes a value or an exception."""

from __future__ import annotations

from concurrent.futures import CancelledError
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from fdb_datamodel import Failure as FailureRecord
from fdb_datamodel import FutureDeletedError, FutureState
from futures_worker.errors import (
    ActorDiedError,
    DeadlockError,
    FutureFailedError,
    FutureTimeoutError,
    ObjectLostError,
    OutOfMemoryError,
    OversizeError,
    ResultPickleError,
    TaskUnpickleError,
    UnschedulableError,
    UpstreamDependencyFailedException,
    WorkerLostError,
)
from futures_worker.payload import Failure, load_exception

_BY_REASON: Final[dict[str, type[Exception]]] = {
    "actor-died": ActorDiedError,
    "cancelled": CancelledError,
    "crash": WorkerLostError,
    "deadlock": DeadlockError,
    "deleted": FutureDeletedError,
    "object-lost": ObjectLostError,
    "oom": OutOfMemoryError,
    "oversize": OversizeError,
    "result-pickle": ResultPickleError,
    "timeout": FutureTimeoutError,
    "unpickle": TaskUnpickleError,
    "unschedulable": UnschedulableError,
    "worker-lost": WorkerLostError,
}


class Status(str):
    """A future's state, and why it is in it. Equal to the FutureState (and its text); `str()` tells the reason too."""

    __slots__ = ("reason", "state")

    reason: str  # for people: waiting on what, unschedulable why, lost to which death; empty if there is nothing to say
    state: FutureState

    def __new__(cls, state: FutureState, reason: str = "") -> Status:
        status = super().__new__(cls, state.value)
        status.state = state
        status.reason = reason
        return status

    def __str__(self) -> str:
        return f"{self.state.value}: {self.reason}" if self.reason else self.state.value

    def __repr__(self) -> str:
        return f"<{self}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Status, (self.state, self.reason))

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) is True

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def failure_exception(future_id: bytes, name: str, record: FailureRecord) -> BaseException:
    """The exception to raise for a failed future: the task's own where it raised one, else the reason's."""
    if record.reason == "upstream":
        return _upstream(future_id, name, record)
    if record.payload and record.reason != "cancelled":
        carried = _carried(record)
        if record.reason in ("error", "unpickle", "result-pickle", "oversize", "deadlock"):
            return carried
        error = _reason_error(future_id, name, record)
        error.__cause__ = carried
        return error
    return _reason_error(future_id, name, record)


def _carried(record: FailureRecord) -> BaseException:
    """The exception of a failure's payload, with the traceback of its row."""
    carried = Failure.from_bytes(record.payload)
    return load_exception(replace(carried, traceback=record.traceback or carried.traceback))


def describe(future_id: bytes, name: str) -> str:
    """How messages name a future."""
    return f"future {UUID(bytes=future_id)}{f' ({name})' if name else ''}"


def _reason_error(future_id: bytes, name: str, record: FailureRecord) -> Exception:
    kind = _BY_REASON.get(record.reason, FutureFailedError)
    text = record.message or record.reason
    error = kind(f"{describe(future_id, name)} failed ({record.reason}): {text}")
    if isinstance(error, FutureFailedError):
        error.remote_traceback = record.traceback
    return error


def _upstream(future_id: bytes, name: str, record: FailureRecord) -> BaseException:
    chain = tuple(UUID(bytes=link) for link in record.chain)
    route = " <- ".join(str(link) for link in chain)
    # The record's message begins with the same: which future depends on which.
    _, _, first = record.message.partition(", which failed: ")
    carried = _carried(record) if record.payload else None
    if carried is None and first.endswith(" was cancelled"):
        carried = CancelledError(first)
    text = f"{describe(future_id, name)} never ran: it depends on {route or 'a future'}, which failed: {first or record.message}"
    return UpstreamDependencyFailedException.like(carried, text, chain=chain, epoch=record.epoch)
