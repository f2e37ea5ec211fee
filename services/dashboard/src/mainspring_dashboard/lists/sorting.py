"""Futures in any order: sorted by what the census saw of each, then read anew from the database. Pure but for the clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import nlargest, nsmallest
from typing import Any, Final

from fdb_datamodel import TERMINAL, Counted, FutureState
from mainspring_dashboard.lists.kept import Kept

SHALLOW: Final = 1_000
"""Futures on the first pages, for which not everything is put in order."""
KEPT_SECONDS: Final = 2.0

Key = Callable[[Counted, int], Any]
"""(future, wall time in µs) → what it is sorted by; None: nothing to sort by, it comes last in either direction."""


def _waited(one: Counted, now: int) -> int | None:
    if one.started_us:
        return one.started_us - one.submitted_us
    return None if one.state in TERMINAL else now - one.submitted_us


def _ran(one: Counted, now: int) -> int | None:
    if not one.started_us or one.state is FutureState.waiting:
        return None
    return (one.ended_us or now) - one.started_us


KEYS: Final[dict[str, Key]] = {
    "name": lambda one, now: one.name or None,
    "state": lambda one, now: one.state.value,
    "worker": lambda one, now: one.worker or None,
    "attempts": lambda one, now: one.attempts,
    "submitted": lambda one, now: one.submitted_us or None,
    "waited": _waited,
    "ran": _ran,
    "ended": lambda one, now: one.ended_us or None,
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which futures, in which order. text: in name, worker or id; session, dataset: ids, b"" for any."""

    by: str
    descending: bool = False
    state: FutureState | None = None
    text: str = ""
    session: bytes = b""
    dataset: bytes = b""

    def chosen(self, rows: Iterable[Counted]) -> list[Counted]:
        """Those that are wanted."""
        if self.state is not None:
            rows = [one for one in rows if one.state is self.state]
        if self.session:
            rows = [one for one in rows if one.session == self.session]
        if self.dataset:
            rows = [one for one in rows if one.dataset == self.dataset]
        text = self.text.casefold()
        if not text:
            return list(rows)
        digits, found = text.replace("-", ""), dict[str, bool]()

        def has(words: str) -> bool:  # there are far fewer names than futures
            if words not in found:
                found[words] = text in words.casefold()
            return found[words]

        return [one for one in rows if has(one.name) or has(one.worker) or digits in one.id.hex()]


def ordered(rows: Sequence[Counted], by: str, descending: bool, most: int, now: int) -> list[bytes]:
    """The ids of the first `most` in the order asked for, those without a value last."""
    key = KEYS[by]
    with_key = [(value, one.id) for one in rows if (value := key(one, now)) is not None]
    if most > SHALLOW:
        first = [id for _, id in sorted(with_key, reverse=descending)[:most]]
    else:
        first = [id for _, id in (nlargest if descending else nsmallest)(most, with_key)]
    if len(first) < most and len(with_key) < len(rows):
        first += nlargest(most - len(first), (one.id for one in rows if key(one, now) is None))
    return first


class Sorted:
    """Answers for any number of pages: an order that was asked for some seconds ago is not made anew."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self._lock = threading.Lock()  # who comes while somebody sorts waits for it, instead of sorting beside him
        self._made: dict[tuple[Wanted, bool], tuple[float, list[bytes], dict[str, Any]]] = {}

    def page(self, wanted: Wanted, skip: int, limit: int) -> tuple[list[bytes], dict[str, Any]]:
        """The ids of a page, and what is said of it: matches, looked (futures looked through), all (whether these are all
        that there are), skip (of the next page, or None)."""
        with self._lock:
            ids, said = self._order(wanted, skip + limit > SHALLOW)
        following = skip + limit if said["matches"] > skip + limit else None
        return ids[skip : skip + limit], said | {"skip": following}

    def _order(self, wanted: Wanted, deep: bool) -> tuple[list[bytes], dict[str, Any]]:
        now = time.monotonic()
        self._made = {key: made for key, made in self._made.items() if now - made[0] < KEPT_SECONDS}
        if (wanted, deep) not in self._made:
            looked = list(self._kept)
            rows = wanted.chosen(looked)
            most = len(rows) if deep else SHALLOW
            ids = ordered(rows, wanted.by, wanted.descending, most, time.time_ns() // 1000)
            said = {"matches": len(rows), "looked": len(looked), "all": self._kept.all}
            self._made[wanted, deep] = time.monotonic(), ids, said
        return self._made[wanted, deep][1:]
