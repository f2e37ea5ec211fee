"""Which futures are meant, by what they are like: found page by page, each page by a transaction of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Final

from fdb_datamodel import ClusterSpace, FutureInfo, FutureState, WorkerStatus, list_futures, list_workers
from fdb_datamodel.views.reading import with_reason
from futures_worker.database import ask

PAGE: Final = 500
"""Futures read by one transaction."""


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
    name: str | None = None  # a glob, see `is_named`
    reason: str | None = None
    since_us: int = 0  # wall time of the submitting, for people: it decides nothing else
    function: str | None = None  # as `name`; a function's name is that of its futures which were given none

    def __bool__(self) -> bool:
        return bool(self.name or self.reason or self.since_us or self.function)

    def holds(self, info: FutureInfo) -> bool:
        """Whether a future, with its reason, is like this."""
        return (
            (self.states is None or info.state in self.states)
            and (self.name is None or is_named(info.name, self.name))
            and (self.function is None or is_named(info.name, self.function))
            and (self.reason is None or self.reason.casefold() in info.reason.casefold())
            and info.wall_us >= self.since_us
        )


def is_named(name: str, glob: str) -> bool:
    """Whether a function is named so, with its module or without it."""
    return fnmatchcase(name, glob) or fnmatchcase(name.rpartition(".")[2], glob)


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
    workers: list[WorkerStatus] = ask(database, list_workers, space, strategy="off")
    state = next(iter(like.states)) if like.states is not None and len(like.states) == 1 else None
    while True:
        found, after = ask(database, list_futures, space, after, page, state, newest_first=newest_first, strategy="off")
        yield from filter(like.holds, (with_reason(info, workers) for info in found))
        if after is None or (until is not None and after <= until):
            return
