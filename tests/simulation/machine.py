"""Time that is drawn and strands of execution that take turns: what a process and its threads are in the simulation.

Everything runs in one thread of the operating system. A strand (a greenlet) runs until it waits for something; then the hub
takes what is due next from its queue and moves time there. What is due at the same time comes in an order that is drawn. So one
seed is one history, and an hour in which nothing happens takes no time at all.
"""

from __future__ import annotations

import heapq
import itertools
import random
import types
import zlib
from asyncio import AbstractEventLoop, _get_running_loop, _set_running_loop
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final

from greenlet import getcurrent, greenlet

EPOCH: Final = 1_700_000_000.0
"""The wall time at which a simulation begins, seconds since 1970."""
START: Final = 1_000.0
"""Its monotonic time then."""
_MOMENT: Final = 20e-6
"""Seconds, at most, until what was woken goes on."""
_FIRST_PID: Final = 10_000
_FIRST_FORKED: Final = 1_000_000
_LEAST: Final = 1e-6
"""Seconds that any wait takes: whoever waits for a moment that is less away than his clock can tell has to see it pass."""
_ENGINE: Final = "fdb_embedded."
_WAITS: Final = frozenset({"wait", "wait_until", "wait_for"})
"""The engine's functions in which nothing of it is held."""


OWN: Final[list[tuple[types.ModuleType, str, Callable[[], Any]]]] = []
"""Globals of modules that each process has for itself: the module, a name, what makes the value with which a process begins."""


class SimulationError(Exception):
    """The simulation itself can't go on: everybody waits, or the hub would."""


@dataclass(eq=False)
class Process:
    """What dies, stops and is cut off as one; it has clocks of its own."""

    number: int
    host: str
    name: str
    rate: float = 1.0
    """Of its clocks, beside true time."""
    offset: float = 0.0
    """Of its monotonic clock."""
    wall_offset: float = 0.0
    dead: bool = False
    stopped_until: float = 0.0
    cut_off_until: float = 0.0
    asleep: float = 0.0
    """Seconds that its host was suspended before its last sleep, which the monotonic clock doesn't count."""
    asleep_from: float = 0.0
    asleep_until: float = 0.0
    """When it slept last, or sleeps."""
    told: float = 0.0
    """What its monotonic clock showed last."""
    silent: float = 0.0
    """Seconds in all for which it was stopped or cut off."""
    at_death: list[Callable[[], object]] = field(default_factory=list)

    drain: Callable[[], object] | None = None
    """Asks it to leave in order."""
    leaves: bool = False
    """Whether it was asked to."""
    left: bool = False
    """Whether it did, within its grace."""
    own: list[Any] | None = None
    """Its values of the globals that are each process's own."""

    @property
    def pid(self) -> int:
        return _FIRST_PID + self.number

    def slept(self, now: float) -> float:
        """Seconds in all until now for which its host was suspended."""
        return self.asleep + max(0.0, min(now, self.asleep_until) - self.asleep_from)

    def sleep(self, now: float, seconds: float) -> None:
        """Its host is suspended; a sleep that goes on already may become longer."""
        until = max(now + seconds, self.asleep_until)
        if self.asleep_until <= now:
            self.asleep = self.slept(now)
            self.asleep_from = now
        self.asleep_until = until

    def wake_up(self, now: float) -> None:
        """Whatever holds it ends."""
        self.stopped_until = min(self.stopped_until, now)
        self.cut_off_until = min(self.cut_off_until, now)
        self.asleep_until = min(self.asleep_until, max(now, self.asleep_from))


class Forked:
    """A child of a process: it dies by itself, or with that. All else they share, clocks and troubles too."""

    def __init__(self, parent: Process, number: int) -> None:
        self.parent = parent
        self.number = _FIRST_FORKED + parent.number * _FIRST_FORKED + number
        self.pid = _FIRST_PID + self.number
        self.name = f"{parent.name}'s child {number}"
        self.dead = self.crashed = False
        self.at_death: list[Callable[[], object]] = []
        self.own: list[Any] | None = None
        parent.at_death.append(self.die)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.parent, name)

    def die(self) -> None:
        """At any moment, as by SIGKILL, or at its end."""
        self.dead = True
        for call in self.at_death:
            call()
        self.at_death.clear()


class Strand(greenlet):
    """One thread of a process, or of nobody: the engine's and the network's."""

    def __init__(self, run: Callable[[], None], hub: greenlet, number: int, process: Process | None) -> None:
        super().__init__(run, hub)
        self.number = number
        self.process = process
        self.turn = 0
        """Rises with each wait and each return from it: what was to end an earlier wait is void."""
        self.woken = False
        self.travels = False
        """Whether it waits for the network, where nothing is held."""
        self.loop: AbstractEventLoop | None = None
        """The event loop that runs in it."""
        self.at_end: list[Callable[[], object]] = []


class Machine:
    """The hub: the queue of what is due, and the clocks."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(f"{seed} machine")
        self.now = START
        self.hub = getcurrent()
        self.processes: list[Process] = []
        self.forked: dict[int, Forked] = {}
        """By pid."""
        self.failures: list[str] = []
        """What may not happen: exceptions that nobody caught."""
        self.preempts = 0.0
        """How probably a strand loses its turn where it takes a lock."""
        self.kill: Callable[[Process], None]
        """What ends a process, as by a signal."""
        self.switches = 0
        self.trace = 0
        self._queue: list[tuple[float, float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._numbers = itertools.count(2)
        self._inside: Process | None = None
        """Whose values the globals are that each process has for itself."""
        self._strands: set[Strand] = set()
        """All that haven't ended: those of the dead may not be collected, which would run their `finally`."""

    def process_of(self, pid: int) -> Process | Forked | None:
        """The living process of a pid."""
        number = pid - _FIRST_PID
        process = self.processes[number] if 0 <= number < len(self.processes) else self.forked.get(pid)
        return None if process is None or process.dead else process

    # --- what strands do

    def block(self, seconds: float | None = None) -> bool:
        """Wait until woken, or `seconds` of the strand's own clock; whether it was woken."""
        me = getcurrent()
        if not isinstance(me, Strand):
            raise SimulationError("the hub may not wait: what it calls needs something that a strand holds")
        me.turn += 1
        if seconds is not None:
            rate = 1.0 if me.process is None else me.process.rate
            self._resume_at(self.now + max(_LEAST, seconds / rate), me, woken=False)
        self.hub.switch()
        return me.woken

    def wake(self, strand: Strand) -> None:
        """End the wait in which the strand is."""
        self._resume_at(self.now + self.rng.random() * _MOMENT, strand, woken=True)

    def perhaps_lose_turn(self) -> None:
        """A place where another strand may come between."""
        me = getcurrent()
        if self.preempts and isinstance(me, Strand) and me.process is not None and self.rng.random() < self.preempts:
            self.block(self.rng.random() * self.rng.choice((_MOMENT, 0.001, 0.05)))

    def spawn(self, process: Process | None, run: Callable[[], None]) -> Strand:
        """A new strand, which begins soon."""
        strand: Strand

        def body() -> None:
            try:
                run()
            except Exception as error:
                self.failures.append(f"a strand of {_name(process)} ended with {error!r}")
                raise
            finally:
                self._strands.discard(strand)
                for call in strand.at_end:
                    call()

        strand = Strand(body, self.hub, next(self._numbers), process)
        self._strands.add(strand)
        self.wake(strand)
        return strand

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Have the hub call `action`, which may not wait."""
        heapq.heappush(self._queue, (when, self.rng.random(), next(self._count), action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """`at`, so many seconds from now."""
        self.at(self.now + seconds, action)

    # --- clocks, of whoever asks

    def monotonic(self) -> float:
        process = current_process()
        if process is None:
            return self.now
        told = process.offset + (self.now - process.slept(self.now)) * process.rate
        assert told > process.told - _LEAST, "a monotonic clock went back"
        process.told = max(process.told, told)
        return process.told

    def boottime(self, process: Process | None = None) -> float:
        process = process or current_process()
        return self.now if process is None else process.offset / 3 + self.now * process.rate

    def wall(self) -> float:
        process = current_process()
        return self.true_wall + (0.0 if process is None else process.wall_offset)

    @property
    def true_wall(self) -> float:
        """Seconds since 1970, by nobody's clock."""
        return EPOCH + self.now - START

    # --- the hub

    def run(self, until: float, over: Callable[[], bool], check: Callable[[], None]) -> bool:
        """Until `over`, or until `until`; whether it is over. `check` is called after each turn of a strand."""
        while not over():
            if self.failures:
                raise SimulationError(self.failures[0])
            if not self._queue or self._queue[0][0] > until:
                self.now = until
                return False
            when, _, _, action = heapq.heappop(self._queue)
            self.now = max(self.now, when)
            action()
            check()
        return True

    def _resume_at(self, when: float, strand: Strand, *, woken: bool) -> None:
        turn = strand.turn

        def resume() -> None:
            if strand.turn != turn or strand.dead:
                return
            process = strand.process
            if process is not None and (process.dead or process.stopped_until > self.now) and _may_stop(strand):
                if not process.dead:
                    self.at(process.stopped_until, resume)
                return
            strand.turn += 1
            strand.woken = woken
            self.switches += 1
            self.note(b"%d %d" % (strand.number, round(self.now * 1e6)))
            if process is not None and process is not self._inside:
                self._enter(process)
            _set_running_loop(strand.loop)
            strand.switch()
            strand.loop = _get_running_loop()
            _set_running_loop(None)

        self.at(when, resume)

    def _enter(self, process: Process) -> None:
        """From now on the globals that each process has for itself are this one's."""
        if self._inside is not None:
            self._inside.own = [vars(module)[name] for module, name, _ in OWN]
        self._inside = process
        values = [make() for _, _, make in OWN] if process.own is None else process.own
        for (module, name, _), value in zip(OWN, values, strict=True):
            setattr(module, name, value)

    def note(self, what: bytes) -> None:
        """Into the trace, by which two runs of one seed are compared."""
        self.trace = zlib.crc32(what, self.trace)


def current_process() -> Process | None:
    """Whose strand runs; None for the hub, the engine and the network."""
    me = getcurrent()
    return me.process if isinstance(me, Strand) else None


def _may_stop(strand: Strand) -> bool:
    """Whether the strand is where its process's death, or stop, leaves nothing of the engine locked.

    The engine serves all processes here, as the servers of a cluster do, and is never stopped in the midst of a call.
    """
    if strand.travels:
        return True
    frame: FrameType | None = strand.gr_frame
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(_ENGINE):
            return frame.f_code.co_name in _WAITS
        frame = frame.f_back
    return True


def _name(process: Process | None) -> str:
    return "the network" if process is None else process.name


def waiting(machine: Machine) -> list[str]:
    """Where each strand of a living process waits, for people to look at."""
    found = []
    for strand in sorted(machine._strands, key=lambda one: one.number):
        if strand.process is not None and not strand.process.dead:
            frames = []
            frame: FrameType | None = strand.gr_frame
            while frame is not None:
                name = str(frame.f_globals.get("__name__", ""))
                if not name.startswith(("simulation.machine", "simulation.stand_ins", "threading")):
                    frames.append(f"{name.rpartition('.')[2]}.{frame.f_code.co_name}:{frame.f_lineno}")
                frame = frame.f_back
            found.append(f"  {strand.process.name} strand {strand.number}: {' < '.join(frames[:9])}")
    return found
