"""Liveness without comparing clocks: what an observer saw unchanged, for how long, on its own monotonic clock. Pure.

Somebody is dead by one of three rules:

1. unchanged: the heartbeats of all who maintain it stayed the same for `UNCHANGED` × the *stored* ttl, counted from after
   the read that first returned them;
2. long dead: the newest heartbeat is older, in versions, than ttl + 3,600 s (versions jump about 100 s at a recovery of
   the database: the slack is 36 of them);
3. gone: every process that maintains it ran on this host and its pid, with its start time, is no more.

By none of them while something is seen here that a holder's processes left behind: it does what the lease protects.

A holder fences itself `FENCE` × ttl after the *start* of its last committed heartbeat. 1.1 / 0.8 = 1.375 covers two clocks
that drift by 10 % in opposite directions (1.1 / 0.9 = 1.22), whatever their offset.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final

from lease_locks.grants.records import SessionRecord

FENCE: Final = 0.8
UNCHANGED: Final = 1.1
OVERHOLD: Final = UNCHANGED / FENCE  # by how much an observer lets a maximum hold go over
LONG_DEAD_SECONDS: Final = 3_600.0
LOOK_EVERY: Final = 0.25  # of a ttl: how often a waiter looks at the heartbeats
VERSIONS_PER_SECOND: Final = 1_000_000
_REMEMBERED: Final = 65_536


@dataclass(frozen=True, slots=True)
class Alive:
    """No rule says dead; `look_in` seconds is when to look again."""

    look_in: float


@dataclass(frozen=True, slots=True)
class Dead:
    """A rule says dead. `early`: before a whole ttl passed (rule 3)."""

    why: str
    early: bool = False


@dataclass(frozen=True, slots=True)
class Vital:
    """A maintainer as one transaction read it."""

    session: bytes
    record: SessionRecord | None  # None: its row is gone
    heartbeat: bytes | None  # the row's value; the first 10 bytes are a versionstamp
    counts: bool = True  # whether its heartbeats keep the subject alive


@dataclass(frozen=True, slots=True)
class Subject:
    """What is observed: a grant or a place in a queue."""

    key: Hashable
    since: bytes  # versionstamp of its own row: it counts as a heartbeat
    ttl: float  # seconds
    vitals: tuple[Vital, ...]
    marks: tuple[Any, ...] = ()  # what else means life when it changes, e.g. joins
    max_hold: float = 0.0

    @property
    def fingerprint(self) -> tuple[Any, ...]:
        """Changes whenever a maintainer shows life."""
        return (self.marks, tuple((v.session, v.heartbeat) for v in self.vitals if v.counts))

    @property
    def newest_version(self) -> int:
        """Commit version of the newest sign of life."""
        stamps = [self.since, *(v.heartbeat for v in self.vitals if v.counts and v.heartbeat)]
        stamps.extend(mark for mark in self.marks if isinstance(mark, bytes))
        return max(int.from_bytes(stamp[:8].ljust(8, b"\xff"), "big") for stamp in stamps)  # cut off: never an old one


@dataclass(slots=True)
class _Sighting:
    fingerprint: tuple[Any, ...]
    first_seen: float  # of this fingerprint
    appeared: float  # of the subject


class Observer:
    """What one process has seen; shared by its threads. Forgetting only ever delays a verdict."""

    def __init__(
        self,
        monotonic: Callable[[], float],
        gone: Callable[[SessionRecord], bool],
        left_behind: Callable[[SessionRecord], bool] = lambda _: False,
    ) -> None:
        self._monotonic = monotonic
        self._gone = gone
        self._left_behind = left_behind
        self._seen: OrderedDict[Hashable, _Sighting] = OrderedDict()
        self._guard = threading.Lock()

    def judge(self, subject: Subject, read_version: int) -> Alive | Dead:
        """Whether the subject, as just read at `read_version`, is dead. Call it after the reads returned."""
        verdict = self._by_rules(subject, read_version)
        if isinstance(verdict, Dead) and any(
            v.record is not None and self._left_behind(v.record) for v in subject.vitals
        ):
            return Alive(LOOK_EVERY * subject.ttl)
        return verdict

    def _by_rules(self, subject: Subject, read_version: int) -> Alive | Dead:
        now = self._monotonic()
        sighting = self._look(subject, now)
        if subject.vitals and all(v.record is not None and self._gone(v.record) for v in subject.vitals):
            return Dead("its processes are gone", early=True)
        age = (read_version - subject.newest_version) / VERSIONS_PER_SECOND
        if age >= subject.ttl + LONG_DEAD_SECONDS:
            return Dead(f"no heartbeat for {age:,.0f} s of cluster versions")
        unchanged = now - sighting.first_seen
        if unchanged >= UNCHANGED * subject.ttl:
            return Dead(f"heartbeats unchanged for {unchanged:.2f} s, ttl {subject.ttl:g} s")
        look_in = min(UNCHANGED * subject.ttl - unchanged, LOOK_EVERY * subject.ttl)
        if subject.max_hold:
            held = now - sighting.appeared
            if held >= OVERHOLD * subject.max_hold:
                return Dead(f"held for {held:.2f} s, max_hold {subject.max_hold:g} s")
            look_in = min(look_in, OVERHOLD * subject.max_hold - held)
        return Alive(look_in)

    def forget(self, key: Hashable) -> None:
        """Drop what was seen of a subject that ended."""
        with self._guard:
            self._seen.pop(key, None)

    def _look(self, subject: Subject, now: float) -> _Sighting:
        fingerprint = subject.fingerprint
        with self._guard:
            seen = self._seen.get(subject.key)
            if seen is None:
                seen = self._seen[subject.key] = _Sighting(fingerprint, now, now)
                if len(self._seen) > _REMEMBERED:
                    self._seen.popitem(last=False)
            elif seen.fingerprint != fingerprint:
                seen.fingerprint, seen.first_seen = fingerprint, now
            self._seen.move_to_end(subject.key)
            return _Sighting(seen.fingerprint, seen.first_seen, seen.appeared)
