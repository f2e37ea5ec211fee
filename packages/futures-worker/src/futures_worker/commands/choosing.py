"""Which futures a command is about: by id, by the beginning of an id, or by what they are like."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final
from uuid import UUID

import typer

from fdb_datamodel import ClusterSpace, FutureInfo, FutureState, WorkerStatus, list_futures, list_workers
from fdb_datamodel.views.reading import ids_beginning, with_reason
from fdb_schema.cli import completing, fail, seconds_of
from fdb_schema.errors import EXIT_NOT_FOUND, EXIT_USAGE
from fdb_schema.serving.figures import ago, cut
from fdb_schema.serving.figures import short_ids as shortened
from futures_worker.commands.opening import look_into
from idempotent_txn import run

PAGE: Final = 500
"""Futures read by one transaction."""
_SHORTEST: Final = 4  # digits of an id that are taken for its beginning
_CANDIDATES: Final = 6
_LONG_ID: Final = re.compile(r"\b([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4})-[0-9a-f]{4}-[0-9a-f]{12}\b")
_TWICE: Final = re.compile(r"(^|: )error: (?=[A-Za-z_][\w.]*(?:: |$))")
_INCARNATION: Final = re.compile(r"(:\d+)/[0-9a-f]+")

NameOption = Annotated[
    str | None,
    typer.Option(
        "--name", metavar="GLOB", help="Only futures of functions named so: resize (of any module), my.tasks.*"
    ),
]
ReasonOption = Annotated[
    str | None, typer.Option("--reason", metavar="TEXT", help="Only futures whose reason has this text in it.")
]
SinceOption = Annotated[
    str | None, typer.Option("--since", metavar="AGO", help="Only futures submitted since: 90s, 10m, 2h, 7d.")
]


def _complete(db: str | None, cluster: str, beginning: str) -> Iterator[str]:
    """Ids of the newest futures."""
    database, space = look_into(db, cluster)
    found, _ = run(database, list_futures, space, None, PAGE, None, newest_first=True, strategy="off")
    yield from (text for info in found if (text := str(UUID(bytes=info.id))).startswith(beginning.lower()))


IdArgument = Annotated[
    str,
    typer.Argument(metavar="ID", help="The future's id, or how it begins.", autocompletion=completing(_complete)),
]
IdsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[ID]...", help="The futures' ids, or how they begin.", autocompletion=completing(_complete)
    ),
]


class Order(StrEnum):
    """By what `ls` sorts; the largest first."""

    age = "age"
    took = "took"
    attempts = "attempts"
    name = "name"


_KEYS: Final[dict[Order, Callable[[FutureInfo], Any]]] = {
    Order.age: lambda info: info.wall_us,
    Order.took: lambda info: -(seconds_of_last(info) or 0.0),
    Order.attempts: lambda info: -info.attempts,
    Order.name: lambda info: info.name,
}


def in_order(infos: list[FutureInfo], sort: Order) -> list[FutureInfo]:
    """The futures as `--sort` orders them."""
    return sorted(infos, key=_KEYS[sort])


def seconds_of_last(info: FutureInfo) -> float | None:
    """How long the last attempt took, of a future that has ended."""
    return round((info.ended_us - info.claimed_us) / 1e6, 6) if info.ended_us and info.claimed_us else None


@dataclass(frozen=True)
class Filter:
    """What futures are to be like; None: anything."""

    states: frozenset[FutureState] | None = None
    name: str | None = None
    reason: str | None = None
    since_us: int = 0  # wall time of the submitting, for people: it decides nothing else

    def __bool__(self) -> bool:
        return bool(self.name or self.reason or self.since_us)

    def holds(self, info: FutureInfo) -> bool:
        """Whether a future, with its reason, is like this."""
        return (
            (self.states is None or info.state in self.states)
            and (self.name is None or is_named(info.name, self.name))
            and (self.reason is None or self.reason.casefold() in info.reason.casefold())
            and info.wall_us >= self.since_us
        )


def is_named(name: str, glob: str) -> bool:
    """Whether a function is named so, with its module or without it."""
    return fnmatchcase(name, glob) or fnmatchcase(name.rpartition(".")[2], glob)


def wanted(states: frozenset[FutureState] | None, name: str | None, reason: str | None, since: str | None) -> Filter:
    """The filter that options ask for, or the end of the command."""
    back = seconds_of(since) if since is not None else 0.0
    return Filter(states, name, reason, int((time.time() - back) * 1e6) if since is not None else 0)


def walk(
    database: Any,
    space: ClusterSpace,
    like: Filter,
    after: bytes | None = None,
    *,
    newest_first: bool = False,
    page: int = PAGE,
    until: bytes | None = None,
) -> Iterator[FutureInfo]:
    """All futures that are like this by their ids, with the reasons for their states; a transaction a page of at most `page`.

    until: the newest first, nobody needs those that are before this id; the last page may have some.
    """
    workers: list[WorkerStatus] = run(database, list_workers, space, strategy="off")
    state = next(iter(like.states)) if like.states is not None and len(like.states) == 1 else None
    while True:
        found, after = run(database, list_futures, space, after, page, state, newest_first=newest_first, strategy="off")
        yield from filter(like.holds, (with_reason(info, workers) for info in found))
        if after is None or (until is not None and after <= until):
            return


def parse_id(text: str) -> UUID | str:
    """An id, or the digits that one begins with; or the end of the command."""
    try:
        return UUID(text)
    except ValueError:
        digits = text.strip().lower().replace("-", "")
    if not re.fullmatch(rf"[0-9a-f]{{{_SHORTEST},31}}", digits):
        fail(
            f"{text!r} is no id of a future: give a UUID as `futures-worker ls` prints them, or four digits or more of "
            "its beginning",
            EXIT_USAGE,
        )
    return digits


def resolve_id(database: Any, space: ClusterSpace, meant: UUID | str) -> UUID:
    """The id that `parse_id` found, or the only one that begins so; or the end of the command."""
    if isinstance(meant, UUID):
        return meant
    found = [UUID(bytes=one) for one in run(database, ids_beginning, space, meant, _CANDIDATES, strategy="off")]
    if not found:
        fail(f"no future in cluster {space.cluster!r} has an id that begins with {meant}", EXIT_NOT_FOUND)
    if len(found) > 1:
        more = ", ..." if len(found) == _CANDIDATES else ""
        fail(f"several futures have ids that begin with {meant}: {', '.join(map(str, found))}{more}", EXIT_USAGE)
    return found[0]


def short_ids(ids: list[str]) -> dict[str, str]:
    """As much of the beginning of each id as tells it from the others, all of one length.

    Never less than time and sequence, which are the client's own: futures that aren't listed seldom have the same.
    """
    return shortened(ids, len("019ad1f2-3c4d-7000"))


def said_once(text: str, future_id: str) -> str:
    """What is told beside a future's id: without that id, and without "error" before the exception's own name."""
    return (
        _TWICE.sub(r"\1", text).replace(f"future {future_id}", "this future").replace(f"call {future_id}", "this call")
    )


def in_brief(reason: str, future_id: str) -> str:
    """A reason for a narrow column: other ids as `ls` shows them, without the future's own and what tells incarnations apart."""
    text = said_once(reason.replace(f"future {future_id} depends on ", ""), future_id)
    return _INCARNATION.sub(r"\1", _LONG_ID.sub(r"\1", text))


__all__ = [
    "PAGE",
    "Filter",
    "IdArgument",
    "IdsArgument",
    "NameOption",
    "Order",
    "ReasonOption",
    "SinceOption",
    "ago",
    "cut",
    "in_brief",
    "in_order",
    "parse_id",
    "resolve_id",
    "said_once",
    "seconds_of_last",
    "short_ids",
    "walk",
    "wanted",
]
