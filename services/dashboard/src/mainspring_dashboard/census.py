"""Counts every future by state, and notices each end, within a time budget per second, however many futures there are.

Three activities share the budget. The *tail* reads futures that are newer than any seen (ids begin with a time). The
*recheck* looks again at futures that had not ended, oldest look first. The *sweep* reads everything, page by page: when it
arrives at the end its counts replace the others, which repairs what the first two can't see (deleted futures, results
that were lost and computed again, ids of clients whose clock is behind). A small cluster is swept every time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from fdb_datamodel import TERMINAL, ClusterSpace, Counted, FutureState, census_page, recount
from idempotent_txn import run

PAGE_ROWS: Final = 5_000
RECHECK: Final = 500  # futures per transaction


class Census:
    """Call `advance` regularly, from one thread; read `counts` and `take_ended` afterwards."""

    def __init__(self, db: Any, space: ClusterSpace) -> None:
        self._db = db
        self._space = space
        self._newest: bytes | None = None
        self._open: dict[bytes, FutureState] = {}  # oldest look first
        self._ended: Counter[FutureState] = Counter()
        self._news: list[Counted] = []
        self._sweep_at: bytes | None = None
        self._sweep_open: dict[bytes, FutureState] = {}
        self._sweep_ended: Counter[FutureState] = Counter()
        self.sweeps = 0  # finished
        self.swept_at = 0.0  # time.monotonic() of the last one's end

    @property
    def counts(self) -> dict[str, int]:
        """Futures by state, every state named; during the first sweep those seen so far."""
        if self.sweeps:
            counted = Counter(self._open.values()) + self._ended
        else:
            counted = Counter(self._sweep_open.values()) + self._sweep_ended
        return {state.value: counted.get(state, 0) for state in FutureState}

    def take_ended(self) -> list[Counted]:
        """The futures seen to have ended since this was asked last. What had ended before the first sweep isn't news."""
        news, self._news = self._news, []
        return news

    def advance(self, budget: float) -> None:
        """Work for about `budget` seconds, one page at least of each activity."""
        began = time.monotonic()
        if self.sweeps:
            self._read_tail(began + budget / 3)
            self._recheck(began + 2 * budget / 3)
        self._sweep(began + budget)

    def _read_tail(self, until: float) -> None:
        while True:
            page, after = run(self._db, census_page, self._space, self._newest, PAGE_ROWS, strategy="off")
            for one in page:
                self._newest = one.id
                if one.state in TERMINAL:
                    self._note_end(one)
                else:
                    self._open[one.id] = one.state
            if after is None or time.monotonic() > until:
                return

    def _recheck(self, until: float) -> None:
        left = len(self._open)
        while left > 0:
            ids = [one for one, _ in zip(self._open, range(min(left, RECHECK)), strict=False)]
            left -= len(ids)
            found = {one.id: one for one in run(self._db, recount, self._space, ids, strategy="off")}
            for id in ids:
                del self._open[id]
                one = found.get(id)
                if one is None:  # deleted
                    self._sweep_open.pop(id, None)
                elif one.state in TERMINAL:
                    self._note_end(one)
                else:
                    self._open[id] = one.state
            if time.monotonic() > until:
                return

    def _sweep(self, until: float) -> None:
        while True:
            page, after = run(self._db, census_page, self._space, self._sweep_at, PAGE_ROWS, strategy="off")
            self._count_swept(page)
            if after is None:
                self._finish_sweep(page[-1].id if page else self._sweep_at)
                return
            self._sweep_at = after
            if time.monotonic() > until:
                return

    def _count_swept(self, page: Iterable[Counted]) -> None:
        for one in page:
            if one.state in TERMINAL:
                self._sweep_ended[one.state] += 1
                if self._open.pop(one.id, None) is not None:
                    self._note_end(one)
            else:
                self._sweep_open[one.id] = one.state

    def _note_end(self, one: Counted) -> None:
        self._ended[one.state] += 1
        self._news.append(one)
        if self._sweep_open.pop(one.id, None) is not None:  # swept before it ended
            self._sweep_ended[one.state] += 1

    def _finish_sweep(self, last: bytes | None) -> None:
        self._open, self._ended = self._sweep_open, self._sweep_ended
        if self._newest is None or (last is not None and last > self._newest):
            self._newest = last
        self._sweep_open, self._sweep_ended, self._sweep_at = {}, Counter(), None
        self.sweeps += 1
        self.swept_at = time.monotonic()
