"""Programs from outside: which there are, what they asked for, events sent to them, and what failed made to go on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from fdb_datamodel import ClusterSpace, FutureDeletedError, FutureInfo, describe_future, programs
from fdb_datamodel.programs import Request
from fdb_schema import read_clock
from fdb_schema.clock import MICROSECONDS
from futures_worker.database import ask
from futures_worker.payload import dump_result

PAGE: Final = 100


@dataclass(frozen=True, slots=True)
class RequestRow:
    """One request of a program, as a history shows it. Nothing in it was unpickled."""

    number: int
    kind: str  # "step", "submit", "put", "sleep", "now", "random", "event", "send", "publish", "patch", "deadline", "wait"
    name: str
    outcome: str  # what came of it, in words
    at: datetime  # when it was recorded, by the wall clock of the process
    bytes: int | None  # of the value, where the row holds it
    futures: tuple[str, ...]  # that it made, or found ended


def walk_programs(database: Any, space: ClusterSpace, *, newest_first: bool = True) -> Iterator[FutureInfo]:
    """Every program of a cluster."""
    after: bytes | None = None
    while True:
        ids, after = ask(
            database, programs.list_programs, space, after, PAGE, newest_first=newest_first, strategy="off"
        )
        for one in ids:
            try:
                yield ask(database, describe_future, space, one, strategy="off")
            except FutureDeletedError:
                continue
        if after is None:
            return


def history(database: Any, space: ClusterSpace, program: UUID, last: int | None = None) -> Iterator[RequestRow]:
    """What a program asked for, in order; the `last` so many."""
    now = ask(database, read_clock, space, strategy="off")
    if last is not None:
        for number, request in ask(database, programs.last_requests, space, program, last, strategy="off"):
            yield _row(number, request, now)
        return
    number = 0
    while page := ask(database, programs.read_requests, space, program, number, strategy="off"):
        for request in page:
            yield _row(number, request, now)
            number += 1


def published(database: Any, space: ClusterSpace, program: UUID) -> dict[str, int]:
    """Bytes of what a program published, by name."""
    found = ask(database, programs.read_published, space, program, strategy="off")
    return {name: len(value) for name, value in found.items()}


def send_json(database: Any, space: ClusterSpace, program: UUID, name: str, text: str | None) -> None:
    """Send an event whose value is written as JSON. Raises ValueError, FutureStateError, UnknownFutureError."""
    try:
        value = None if text is None else json.loads(text)
    except ValueError as error:
        raise ValueError(f"{text!r:.80} is no JSON ({error}): a text is written with quotes, as '\"paid\"'") from error
    ask(database, programs.send_event, space, program, name, dump_result(value).to_bytes())


def resume(database: Any, space: ClusterSpace, program: UUID) -> bool:
    """Let a program that failed go on from where it was; whether it does."""
    return bool(ask(database, programs.resume_program, space, program))


def _row(number: int, request: Request, now_us: int) -> RequestRow:
    size = None if request.value is None else len(request.value)
    if request.parts:
        size = request.parts * programs.PART_BYTES
    at = datetime.fromtimestamp(request.wall_us / MICROSECONDS, UTC)
    futures = tuple(str(UUID(bytes=one)) for one in request.ids)
    return RequestRow(number, request.kind, request.name, programs.outcome(request, now_us), at, size, futures)
