"""What attempts of tasks did, on whichever worker: what may run, beside what, after what, and from when on.

The laws are looked at where an attempt begins: inside a task, whose exceptions end with it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from futures_worker.worker.child.task_context import current_task
from simulation.machine import Forked, current_process
from simulation.stand_ins import machine
from simulation.world import World

AFTER_TROUBLE: Final = 10.0
"""Seconds after which a worker that was stopped, or cut off, knows all that befell it."""
LATE: Final = 30.0
"""Seconds that a worker may take to learn of what was decided elsewhere."""
EARLY: Final = 0.9
"""Of a pause, by the clocks of all: they drift."""
_BEHIND: Final = 1.0
"""Seconds by which the row of the cluster's clock may be behind where the clocks of hosts differ."""
LIMITS: Final[dict[str, dict[str, float]]] = {
    "one": {"concurrent": 1},
    "two": {"concurrent": 2},
    "seldom": {"per_second": 2.0},
}
SMALL: Final = 1000
"""Bytes of a result, at most, that is kept in the database whatever befalls workers."""
_CAUGHT_UP: Final = 4
"""Starts that a limit of starts may make up for."""


@dataclass(eq=False, repr=False)
class Attempt:
    """One, from where its task's own code begins."""

    future: bytes
    number: int
    epoch: int
    child: Forked
    begun: float
    limits: Sequence[str]
    size: int
    """Bytes that it returns."""
    how: str = ""
    """How it ended; "": not yet, or its process died first."""
    ended: float = 0.0
    told: float = 0.0
    """When it was told that it was cancelled."""
    cleans: float = 0.0
    """Seconds that it needs then."""
    cleaned: bool = False

    def __repr__(self) -> str:
        trust = "" if self.trusted else ", perhaps in vain"
        return f"{self.number} of epoch {self.epoch} by {self.child.name} {self.how or 'died'}{trust}"

    def be_told(self, cleans: float) -> None:
        self.told, self.cleans = machine().now, cleans

    @property
    def goes_on(self) -> bool:
        return not self.how and not self.child.dead

    @property
    def trusted(self) -> bool:
        """Whether nothing has befallen its worker: what it did counts."""
        worker = self.child.parent
        last = max(worker.stopped_until, worker.cut_off_until)
        return (worker.left or not worker.dead) and (not last or last + AFTER_TROUBLE < self.begun)


@dataclass
class Expected:
    """What a client knows of a future that it is about to submit."""

    limits: Sequence[str] = ()
    not_before: float = 0.0
    backoff: float = 0.0
    once: bool = False
    again: bool = False
    """Whether it was submitted anew when nobody had it any more."""
    cancelled: float | None = None
    """When it was cancelled for sure, its grace included."""
    grace: float = 0.0
    times_out: float = float("inf")
    """From when on it may have failed though an attempt goes on."""


@dataclass
class Attempts:
    """Of a run of the simulation."""

    world: World
    of: dict[bytes, list[Attempt]] = field(default_factory=dict)
    expected: dict[bytes, Expected] = field(default_factory=dict)
    children: dict[bytes, list[bytes]] = field(default_factory=dict)
    """Of futures: what their tasks have submitted for sure."""
    first_start: float | None = None
    """When the first that needs a limit of starts was submitted."""
    starts: int = 0
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    # --- what a client says

    def expect(self, future: bytes) -> Expected:
        return self.expected.setdefault(future, Expected())

    def cancelled(self, futures: Sequence[bytes], grace: float) -> None:
        """They were cancelled, once each, and the client was told so."""
        for one in futures:
            expected = self.expect(one)
            expected.cancelled, expected.grace = machine().now + grace, grace

    # --- laws

    @property
    def behind(self) -> float:
        """Seconds by which a time of the cluster's clock may come too early."""
        plan = self.world.plan
        if not plan.drift and "wall clock" not in plan.troubles:
            return 0.0
        return float("inf") if self.world.harmed else _BEHIND  # nobody may have kept it for a while

    def begin(self, this: Attempt) -> None:
        """It may begin, beside the others that there are."""
        before, expected = self.of.setdefault(this.future, []), self.expected.get(this.future, Expected())
        _must(not before or not expected.once, this, "begins again, and was to begin once")
        early = expected.not_before - this.begun - self.behind
        _must(early <= 0, this, f"begins {early} s too early")
        if expected.cancelled is not None and this.trusted:
            late = this.begun - expected.cancelled
            _must(late < LATE, this, f"begins {late} s after it was cancelled")
        if not expected.again:
            for one in before:
                self._may_follow(this, one, expected.backoff)
        _must(this.epoch == 0 or this.size > SMALL, this, "is of a future whose result can't be lost")
        self._may_run(this)
        before.append(this)

    def _may_follow(self, this: Attempt, one: Attempt, backoff: float) -> None:
        _must(this.number != one.number, this, "begins twice")
        if one.epoch != this.epoch or not one.trusted or not this.trusted:
            return
        _must(not one.goes_on, this, f"begins while attempt {one.number} runs")
        counts = one.how == "returned" and not one.child.crashed and one.size <= SMALL  # else it may have had no room
        _must(not counts, this, f"begins after {one} at {one.ended}")
        if one.how == "raised":
            pause = this.begun - one.ended
            _must(pause >= backoff * EARLY - self.behind, this, f"begins {pause} s after it raised")

    def _may_run(self, this: Attempt) -> None:
        for name in this.limits:
            most = LIMITS[name].get("concurrent")
            if most is not None and this.trusted:
                beside = [one for one in self._running(name) if one.future != this.future]
                _must(len(beside) < most, this, f"begins beside {beside} that need {name!r}")
            elif most is None:
                self.starts += 1
                assert self.first_start is not None
                room = _CAUGHT_UP + (this.begun - self.first_start) * LIMITS[name]["per_second"] / EARLY
                _must(self.starts <= room, this, f"is the {self.starts}th that begins, and there was time for {room}")

    def _running(self, limit: str) -> Iterator[Attempt]:
        for attempts in self.of.values():
            for one in attempts[-1:]:
                expected = self.expected.get(one.future, Expected())
                counts = expected.cancelled is None and machine().now < expected.times_out
                if limit in one.limits and one.goes_on and one.trusted and counts:
                    yield one

    def check(self, may_crash: bool) -> None:
        """In the end, of those that were cancelled."""
        for future, attempts in self.of.items():
            expected = self.expect(future)
            for one in attempts:
                if expected.cancelled is not None and one.trusted:
                    self._check_cancelled(one, expected, expected.cancelled, may_crash)

    def _check_cancelled(self, one: Attempt, expected: Expected, cancelled: float, may_crash: bool) -> None:
        if one.how:
            _must(one.ended < cancelled + LATE, one, f"went on for {one.ended - cancelled} s, and was cancelled")
        over = one.told + one.cleans + LATE < machine().now and one.cleans < expected.grace / 2
        if one.told and over and not may_crash and not one.child.parent.leaves:
            _must(one.cleaned, one, f"was to clean up for {one.cleans} s within {expected.grace} s, and didn't")


class Book:
    """Of the run that goes on."""

    attempts: Attempts


@contextmanager
def attempt(limits: Sequence[str] = (), size: int = 0) -> Iterator[Attempt]:
    """Around the code of a task."""
    task, child, here = current_task(), current_process(), machine()
    assert task is not None and isinstance(child, Forked)
    this = Attempt(task.id, task.attempt, task.epoch, child, here.now, tuple(limits), size)
    Book.attempts.begin(this)
    try:
        yield this
        this.how = this.how or "returned"
    except BaseException:
        this.how = this.how or "raised"
        raise
    finally:
        this.ended = here.now


def _must(holds: bool, this: Attempt, what: str) -> None:
    if not holds:
        machine().failures.append(f"{this.child.name}: attempt {this.number} of {this.future.hex()} {what}")


def trusted(attempts: Sequence[Attempt]) -> bool:
    """Whether nothing has befallen any of their workers."""
    return all(one.trusted for one in attempts)


def of(future: Any) -> list[Attempt]:
    """The attempts of a future's handle that began."""
    from futures_worker.client.future import record_of

    return Book.attempts.of.get(record_of(future).id, [])
