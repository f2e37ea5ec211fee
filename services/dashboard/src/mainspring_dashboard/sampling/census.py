"""Counts every future by function and state, and notices each end, within a time budget per second, however many there are.

Four activities share the budget. The *tail* reads futures that are newer than any seen (ids begin with a time). The
*front* looks again at those that run, and at the oldest that had not ended for as long as pages of them bring news: work
begins in the order of ids as a rule. The *recheck* looks at the others that had not ended, oldest look first. The *sweep* reads everything, page by page: when it
arrives at the end its counts replace the others, which repairs what the first two can't see (deleted futures, results
that were lost and computed again, ids of clients whose clock is behind). A small cluster is swept every time.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from fdb_datamodel import TERMINAL, ClusterSpace, Counted, FutureState, census_page, recount
from idempotent_txn import run
from mainspring_dashboard.lists.kept import Kept

PAGE_ROWS: Final = 5_000
RECHECK: Final = 500  # futures per transaction
MOST_FAILED: Final = 500
MOST_RUNNING: Final = 2_000
MOST_EARLIER: Final = 20_000
"""Futures that had ended before the first sweep, of which more than the count is told: the newest."""
MOST_FUNCTIONS: Final = 2_000
OTHERS: Final = "… others"
"""The name under which the futures of further functions are counted: some programs give each future a name of its own."""

_Kind = tuple[str, FutureState]


def by_state(functions: Mapping[_Kind, int]) -> dict[str, int]:
    """Counts by state, every state named."""
    counts = dict.fromkeys((state.value for state in FutureState), 0)
    for (_, state), number in functions.items():
        counts[state.value] += number
    return counts


class Census:
    """Call `advance` regularly, from one thread; read `counts`, `functions`, `running` and `take_ended` afterwards."""

    def __init__(self, db: Any, space: ClusterSpace) -> None:
        self._db = db
        self._space = space
        self._newest: bytes | None = None
        self._names: set[str] = set()
        self._open: dict[bytes, _Kind] = {}  # oldest look first
        self._ended: Counter[_Kind] = Counter()
        self._news: list[Counted] = []
        self._earlier: deque[Counted] = deque(maxlen=MOST_EARLIER)
        self._sweep_at: bytes | None = None
        self._sweep_open: dict[bytes, _Kind] = {}
        self._sweep_ended: Counter[_Kind] = Counter()
        self.running: dict[bytes, Counted] = {}  # the claimed ones, as last seen, at most `MOST_RUNNING`
        self.failed: deque[bytes] = deque(maxlen=MOST_FAILED)  # the last ones seen to have failed, of sweeps too
        self._failed_ids: set[bytes] = set()
        self.latest: dict[str, Counted] = {}  # function -> the newest of its futures that was seen
        self.kept = Kept()  # what is told of the newest futures, one by one
        self.sweeps = 0  # finished
        self.swept_at = 0.0  # time.monotonic() of the last one's end

    @property
    def functions(self) -> Counter[_Kind]:
        """Futures by function and state; during the first sweep those seen so far."""
        if self.sweeps:
            return Counter(self._open.values()) + self._ended
        return Counter(self._sweep_open.values()) + self._sweep_ended

    @property
    def counts(self) -> dict[str, int]:
        """Futures by state, every state named; during the first sweep those seen so far."""
        return by_state(self.functions)

    def take_ended(self) -> list[Counted]:
        """The futures seen to have ended since this was asked last. What had ended before the first sweep isn't news."""
        news, self._news = self._news, []
        return news

    def take_earlier(self) -> list[Counted]:
        """The futures that were seen by the first sweep since this was asked last, and had ended."""
        earlier = list(self._earlier)
        self._earlier.clear()
        return earlier

    def advance(self, budget: float) -> None:
        """Work for about `budget` seconds, one page at least of each activity."""
        began = time.monotonic()
        if self.sweeps:
            self._read_tail(began + budget / 4)
            self._look_at_front(began + 2 * budget / 4)
            self._recheck(began + 3 * budget / 4)
        self._sweep(began + budget)

    def _read_tail(self, until: float) -> None:
        while True:
            page, after = run(self._db, census_page, self._space, self._newest, PAGE_ROWS, strategy="off")
            for one in page:
                self._newest = one.id
                self._note(one)
            if after is None or time.monotonic() > until:
                return

    def _look_at_front(self, until: float) -> None:
        running = list(self.running)
        for at in range(0, len(running), RECHECK):
            self._look_again([one for one in running[at : at + RECHECK] if one in self._open])
            if time.monotonic() > until:
                return
        before = _id_before(min(self._open)) if len(self._open) > RECHECK else None
        while before is not None:
            page, before = run(self._db, census_page, self._space, before, PAGE_ROWS, strategy="off")
            news = False
            for one in page:
                known = self._open.get(one.id)
                if known is not None and known[1] is not one.state:
                    news = True
                    self._note(one)
            if not news or time.monotonic() > until:
                return

    def _recheck(self, until: float) -> None:
        left = len(self._open)
        while left > 0:
            ids = [one for one, _ in zip(self._open, range(min(left, RECHECK)), strict=False)]
            left -= len(ids)
            self._look_again(ids)
            if time.monotonic() > until:
                return

    def _look_again(self, ids: Sequence[bytes]) -> None:
        """At futures that had not ended; the others are looked at before them the next time."""
        found = {one.id: one for one in run(self._db, recount, self._space, ids, strategy="off")}
        for id in ids:
            one = found.get(id)
            if one is None:  # deleted
                del self._open[id]
                self._sweep_open.pop(id, None)
                self.running.pop(id, None)
                self.kept.forget(id)
            else:
                self._note(one)

    def _note(self, one: Counted) -> None:
        """What was seen of a future that is new, or had not ended."""
        self._open.pop(one.id, None)
        if one.state in TERMINAL:
            self._note_end(one)
        else:
            self._open[one.id] = self._see(one)

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
            kind = self._see(one)
            if one.state in TERMINAL:
                self._sweep_ended[kind] += 1
                if self._open.pop(one.id, None) is not None:
                    self._note_end(one)
                elif not self.sweeps:
                    self._earlier.append(one)
            else:
                self._sweep_open[one.id] = kind

    def _note_end(self, one: Counted) -> None:
        kind = self._see(one)
        self._ended[kind] += 1
        self._news.append(one)
        if self._sweep_open.pop(one.id, None) is not None:  # swept before it ended
            self._sweep_ended[kind] += 1

    def _see(self, one: Counted) -> _Kind:
        """Keep what is told of single futures; the function and state under which it is counted."""
        self.kept.see(one)
        name = one.name
        if name not in self._names:
            if len(self._names) < MOST_FUNCTIONS:
                self._names.add(name)
            else:
                name = OTHERS
        if name not in self.latest or one.id > self.latest[name].id:
            self.latest[name] = one
        if one.state is FutureState.claimed and (one.id in self.running or len(self.running) < MOST_RUNNING):
            self.running[one.id] = one
        else:
            self.running.pop(one.id, None)
            if one.state is FutureState.failed and one.id not in self._failed_ids:
                self._fail(one.id)
        return name, one.state

    def _fail(self, id: bytes) -> None:
        if len(self.failed) == MOST_FAILED:
            self._failed_ids.discard(self.failed[0])
        self.failed.append(id)
        self._failed_ids.add(id)

    def _finish_sweep(self, last: bytes | None) -> None:
        self._open, self._ended = self._sweep_open, self._sweep_ended
        if self._newest is None or (last is not None and last > self._newest):
            self._newest = last
        self._sweep_open, self._sweep_ended, self._sweep_at = {}, Counter(), None
        self.running = {id: one for id, one in self.running.items() if id in self._open}
        self._names = {name for name, _ in (*self._open.values(), *self._ended)}  # of functions that are gone no more
        self.latest = {name: one for name, one in self.latest.items() if name in self._names}
        self.kept.finish_sweep()
        self.sweeps += 1
        self.swept_at = time.monotonic()


def _id_before(id: bytes) -> bytes | None:
    """The greatest id less than this one, after which a page begins with it; None where there is none."""
    number = int.from_bytes(id, "big")
    return (number - 1).to_bytes(len(id), "big") if number else None
