"""The records of invocations, their attempts and their runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

from fdb_schema import Record, RecordError
from lease_locks.errors import DamagedRowError
from lease_locks.memo.stored.addresses import Memo

PENDING, STARTED, SUCCEEDED, FAILED, STOLEN, GONE = "pending", "started", "ok", "error", "stolen", "gone"
CANCELLED: Final = "cancelled"
TIME_OVER: Final = "its time was over, by its own clock"
"""The note of an attempt that is gone because its remote ended itself."""


@dataclass(frozen=True, slots=True)
class Payload(Record):
    """Pickled bytes: here, or in a blob."""

    size: int
    data: bytes | None = None
    digest: bytes | None = None


@dataclass(frozen=True, slots=True)
class OutcomeRecord(Record):
    """How an invocation ended; `payload` is unpickled only where user code runs."""

    payload: Payload
    token: bytes = b""  # of the attempt that made it
    at_us: int = 0  # wall clock, for people
    by: str = ""
    error: str = ""  # a failure's type and message
    traceback: str = ""
    late: bool = False  # published after the lock was lost, when there was no result yet
    injected: bool = False


@dataclass(frozen=True, slots=True)
class InvocationRecord(Record):
    """What was called. `shown`: (parameter, its value for people, digest of its canonical bytes)."""

    payload: Payload
    shown: tuple[tuple[str, str, bytes], ...] = ()
    at_us: int = 0
    by: str = ""


@dataclass(frozen=True, slots=True)
class AttemptRecord(Record):
    """One grant's try: pending, started, ok, error, stolen (refused at its join), gone (its Shell failed, or its
    time was over) or cancelled."""

    state: str
    handle: str = ""  # of the Shell's work, for adoption
    shell: str = ""
    invoked_us: int = 0
    started_us: int = 0
    ended_us: int = 0
    shell_exit_us: int = 0  # when the orchestrator saw the Shell exit
    remote: str = ""  # host:pid
    failure: OutcomeRecord | None = None
    adopted_by: bytes = b""
    note: str = ""
    run: str = ""

    @classmethod
    def found(cls, data: bytes | None) -> AttemptRecord | None:
        """What a row of an attempt says; None where there is none, or none that can be read: it says nothing then."""
        try:
            return None if data is None else cls.decode(data)
        except RecordError:
            return None


@dataclass(frozen=True, slots=True)
class RunRecord(Record):
    """A process with a runner."""

    started_us: int
    by: str = ""
    command: str = ""
    version: int = 0  # of the database when it last counted
    counted_us: int = 0  # wall clock then, for people


_R = TypeVar("_R", bound=Record)


def decoded(kind: type[_R], memo: Memo, key: bytes, data: bytes) -> _R:
    """A row's record. Raises `DamagedRowError`, which says how the call gets free of it."""
    try:
        return kind.decode(data)
    except RecordError as error:
        raise DamagedRowError(
            f"{memo.uri} has a row that can't be read, {key!r}: {error}. `lease-locks invalidate {memo.uri}` forgets the "
            f"call, and the next one computes it again",
            key,
        ) from error


def payload_of(column: str, data: bytes) -> Payload | None:
    """The payload of an invocation's row; None where the row has none, or can't be read."""
    kinds: dict[str, type[OutcomeRecord | InvocationRecord]] = {
        "res": OutcomeRecord,
        "exc": OutcomeRecord,
        "inv": InvocationRecord,
    }
    kind = kinds.get(column)
    try:
        return None if kind is None else kind.decode(data).payload
    except RecordError:
        return None
