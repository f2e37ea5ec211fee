"""Virtual time, processes with clocks of their own, and a network between them and the store that loses and delays."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from lease_locks.grants.observer import Observer
from lease_locks.grants.records import SessionRecord
from lease_simulation.store import Store, Transaction

_LOOK_SECONDS = 4.0
_QUIET_LOOKS = 3  # together longer than a commit can be in flight


class Unreachable(Exception):
    """An attempt whose fate its process doesn't know, or that never began."""


class Conflict(Exception):
    """An attempt that certainly did not commit."""


@dataclass(frozen=True, slots=True)
class Sleep:
    seconds: float  # on the process's own clock


@dataclass(frozen=True, slots=True)
class Attempt:
    body: Callable[[Transaction], Any]


@dataclass(frozen=True, slots=True)
class Watch:
    keys: tuple[tuple[bytes, bytes | None], ...]  # (key, value as read; b"" any)
    seconds: float


Step = Sleep | Attempt | Watch
Actor = Generator[Step, Any, Any]


@dataclass
class Process:
    """One process: its host, its clocks, and whether it runs."""

    index: int
    host: str
    rate: float  # of its clocks, 1 ± drift
    offset: float  # of its clocks: anything
    world: World
    crashed: bool = False
    stopped_until: float = 0.0
    asleep: float = 0.0  # seconds of suspend: not counted by the monotonic clock
    cut_off_until: float = 0.0
    observer: Observer = field(init=False)

    def __post_init__(self) -> None:
        self.observer = Observer(self.monotonic, self.gone)
        self.sid = bytes([self.index]) * 16

    def boottime(self) -> float:
        return self.offset + self.world.now * self.rate

    def monotonic(self) -> float:
        return self.offset / 3 + (self.world.now - self.asleep) * self.rate

    def gone(self, record: SessionRecord) -> bool:
        return record.boot_id == self.host and self.world.processes[record.pid].crashed

    def record(self, ttl: float) -> SessionRecord:
        # The wall clock of each host is off by its own offset: nothing may depend on it.
        wall = int(abs(self.offset) * 1e6)
        return SessionRecord(round(ttl * 1000), self.host, self.host, self.host, self.index, 1, wall)


class World:
    """The scheduler: everything that happens is an event in a heap, drawn from one seed."""

    def __init__(self, seed: int, *, trouble_until: float) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.store = Store()
        self.now = 0.0
        self.trouble_until = trouble_until
        self.processes: list[Process] = []
        self.check: Callable[[], None] = lambda: None
        self._changed = False  # since the last check
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._watches: list[tuple[Process, Watch, Callable[[], None]]] = []

    @property
    def troubled(self) -> bool:
        return self.now < self.trouble_until

    def process(self, host: str) -> Process:
        drift = self.rng.choice([0.9, 1.1, 1.0, self.rng.uniform(0.9, 1.1)])
        process = Process(len(self.processes), host, drift, self.rng.uniform(-1e6, 1e6), self)
        self.processes.append(process)
        return process

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), action))

    def run(self, until: float, settled: Callable[[], bool]) -> None:
        """Until `until`, or until nothing is left to do: `settled` for a while after the trouble.

        Time alone only ends beliefs. So what must never be can only begin where a commit lands, or where a process
        learns of one: that is when everything is checked.
        """
        quiet = 0
        look_at = self.trouble_until
        while self._events and self._events[0][0] <= until:
            self.now, _, action = heapq.heappop(self._events)
            self.store.at(self.now)
            action()
            if self._changed:
                self._changed = False
                self.check()
            if self.now >= look_at:
                quiet = quiet + 1 if settled() else 0
                if quiet == _QUIET_LOOKS:
                    return
                look_at = self.now + _LOOK_SECONDS

    # --- actors

    def start(self, process: Process, actor: Actor) -> None:
        self._resume(process, actor, None, None)

    def _resume(self, process: Process, actor: Actor, value: Any, error: Exception | None) -> None:
        if process.crashed:
            actor.close()
            return
        if self.now < process.stopped_until:
            self.after(process.stopped_until - self.now, lambda: self._resume(process, actor, value, error))
            return
        self._changed = self._changed or value is not None
        try:
            step = actor.throw(error) if error is not None else actor.send(value)
        except StopIteration:
            return
        if isinstance(step, Sleep):
            self.after(step.seconds / process.rate, lambda: self._resume(process, actor, None, None))
        elif isinstance(step, Attempt):
            self._attempt(process, actor, step)
        else:
            self._watch(process, actor, step)

    def _attempt(self, process: Process, actor: Actor, step: Attempt) -> None:
        latency = self.rng.uniform(0.0005, 0.003)
        if self.now < process.cut_off_until:
            wait = self.rng.uniform(0.05, 0.3)
            self.after(wait, lambda: self._resume(process, actor, None, Unreachable()))
            return

        def begin() -> None:
            if process.crashed:
                return
            tr = Transaction(self.store)
            try:
                value = step.body(tr)
            except Exception as error:
                failure = error  # the except clause unbinds its own name
                self.after(latency, lambda: self._resume(process, actor, None, failure))
                return
            if tr.read_only:
                self.after(latency, lambda: self._resume(process, actor, (value, self.store.version), None))
                return
            self._send(process, actor, tr, value, latency)

        # Between its reads and the commit a process may be stopped, so the body runs where the process runs.
        self.after(latency, lambda: self._while_running(process, begin))

    def _while_running(self, process: Process, action: Callable[[], None]) -> None:
        if self.now < process.stopped_until:
            self.after(process.stopped_until - self.now, lambda: self._while_running(process, action))
        else:
            action()

    def _send(self, process: Process, actor: Actor, tr: Transaction, value: Any, latency: float) -> None:
        fate = "ok"
        stall = self.rng.uniform(0.0005, 0.003)
        if self.troubled:
            fate = self.rng.choices(["ok", "lost before", "lost after", "late", "stalled"], [80, 5, 5, 5, 5])[0]
        if fate == "stalled":
            stall = self.rng.choice([0.05, 0.5, 3.0, 8.0])
        if self.now < process.cut_off_until:
            fate = "lost before"

        def land(report: bool) -> None:
            changed = self.store.commit(tr)
            if changed is not None:
                self._changed = True
                self._notify(changed)
            if report:
                error = Conflict() if changed is None else None
                result = None if changed is None else (value, self.store.version)
                if fate == "lost after":
                    error, result = Unreachable(), None
                self.after(latency, lambda: self._resume(process, actor, result, error))

        if fate == "lost before":
            self.after(stall + latency, lambda: self._resume(process, actor, None, Unreachable()))
        elif fate == "late":
            # Reported as unknown while it is still in flight: worse than what FoundationDB's client does.
            self.after(self.rng.choice([0.01, 0.2, 2.0, 6.0]), lambda: land(False))
            self.after(stall, lambda: self._resume(process, actor, None, Unreachable()))
        else:
            self.after(stall, lambda: land(True))

    # --- watches

    def _watch(self, process: Process, actor: Actor, step: Watch) -> None:
        done = False

        def fire() -> None:
            nonlocal done
            if not done:
                done = True
                self._watches[:] = [w for w in self._watches if w[2] is not fire]
                self._resume(process, actor, None, None)

        for key, expected in step.keys:
            value = self.store.rows.get(key)
            if (value is None) if expected == b"" else (value != expected):
                self.after(0.001, fire)
        self._watches.append((process, step, fire))
        self.after(step.seconds / process.rate, fire)

    def _notify(self, changed: list[bytes]) -> None:
        keys = set(changed)
        for _, step, fire in list(self._watches):
            if any(key in keys for key, _ in step.keys):
                if self.troubled and self.rng.random() < 0.1:
                    continue  # a lost watch: the slow re-read finds it
                self.after(self.rng.uniform(0.0002, 0.002), fire)

    # --- trouble

    def stir(self) -> None:
        """One piece of trouble, and the next one later, until the trouble is over."""
        if not self.troubled:
            return
        living = [p for p in self.processes if not p.crashed]
        kind = self.rng.choices(["stop", "suspend", "cut", "crash", "jump"], [30, 10, 30, 12, 8])[0]
        process = self.rng.choice(living)
        length = self.rng.choice([0.2, 1.0, 3.0, 7.0, 20.0])
        if kind in ("stop", "suspend"):
            process.stopped_until = max(process.stopped_until, self.now + length)
            if kind == "suspend":
                process.asleep += length  # its whole host slept: the monotonic clock didn't count it
        elif kind == "cut":
            process.cut_off_until = max(process.cut_off_until, self.now + length)
        elif kind == "crash" and len(living) > 2:
            process.crashed = True
        elif kind == "jump":
            self.store.ahead += 100_000_000
        self.after(self.rng.expovariate(1 / 2.0), self.stir)
