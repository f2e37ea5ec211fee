"""One simulated cluster: its database, its processes and what befalls them, all drawn from one seed."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import fdb_embedded
from fdb_embedded.faults import Faults
from fdb_schema import DatabaseUnreachableError
from idempotent_txn import TransactionTimedOut
from simulation.machine import Machine, Process
from simulation.network import connect
from simulation.stand_ins import Stage

T = TypeVar("T")
CLUSTER: Final = "simulated"
"""The one cluster of all scenes."""
FAULTS: Final = (
    "not_committed", "too_old", "unknown_before", "unknown_after", "unknown_late", "timed_out_late", "future_version",
    "process_behind", "version_jump",
)  # fmt: skip
TROUBLES: Final = ("kill", "stop", "suspend", "cut off", "wall clock", "drain")
_LOOK: Final = 3.0
"""Seconds between two looks whether all has come to its end."""
_COLLECTED: Final = 16
"""Looks between two collections of garbage then."""
_COLLECT_EVERY: Final = 200_000
"""Switches between two collections of garbage: at the same places in each run of a seed."""


@dataclass
class Plan:
    """Swarm testing: what a seed may meet at all."""

    faults: dict[str, float]
    troubles: dict[str, float]
    every: float
    """Mean seconds between two troubles; 0: none."""
    preempts: float
    drift: bool
    most: int | None = None
    """Troubles at most; None: as many as come."""

    def simpler(self) -> list[Plan]:
        """Plans with one thing less each: a failing seed's story is shrunk by them."""
        found = [replace(self, faults={n: p for n, p in self.faults.items() if n != name}) for name in self.faults]
        found += [replace(self, troubles={n: w for n, w in self.troubles.items() if n != one}) for one in self.troubles]
        found += [replace(self, preempts=0.0)] if self.preempts else []
        found += [replace(self, drift=False)] if self.drift else []
        return [plan if plan.troubles else replace(plan, every=0.0) for plan in found]

    @classmethod
    def drawn(cls, seed: int) -> Plan:
        chance = random.Random(f"{seed} plan")
        faults = {name: chance.choice((0.005, 0.02, 0.08)) for name in FAULTS if chance.random() < 0.4}
        faults.pop("version_jump", None) if chance.random() < 0.5 else None
        if "version_jump" in faults:
            faults["version_jump"] = 0.002
        troubles = {name: chance.choice((1.0, 1.0, 3.0)) for name in TROUBLES if chance.random() < 0.6}
        every = chance.choice((0.0, 2.0, 5.0, 20.0)) if troubles else 0.0
        return cls(faults, troubles, every, chance.choice((0.0, 0.01, 0.1)), chance.random() < 0.5)


@dataclass
class World:
    """The cluster, and the laws that hold after each turn."""

    seed: int
    plan: Plan
    machine: Machine = field(init=False)
    laws: list[Callable[[], None]] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    """What befell whom, for people."""
    befallen: int = 0
    """Troubles so far."""
    harmed: int = 0
    """Of those, by which something may have died, or be taken for dead."""
    unsettled: str = ""
    """Why not all has come to its end, at the last look."""
    calm: bool = False
    """From then on nothing befalls anybody: what was asked for has to come to its end."""

    def __post_init__(self) -> None:
        self.machine = Stage.machine = Machine(self.seed)
        self.machine.preempts, self.machine.kill = self.plan.preempts, self.kill
        self.chance = random.Random(f"{self.seed} world")
        random.seed(self.seed)
        self.name = f"simulation-{self.seed}"
        self.db = fdb_embedded.open(f"memory:{self.name}")
        """The simulation's own eyes: neither latency nor faults."""
        self._restart: dict[int, Callable[[], Process]] = {}

    # --- processes

    def process(
        self, name: str, main: Callable[[Process, Any], None], *, restarts: bool = True, host: str = ""
    ) -> Process:
        """A process that runs `main(process, database)`; killed, another one takes its place if it `restarts`."""
        number, chance = len(self.machine.processes), self.chance
        host = host or f"host-{chance.randrange(3)}"
        process = Process(number, host, f"{name}-{number}")
        if self.plan.drift:
            process.rate = chance.choice((1.0, 0.95, 1.05, chance.uniform(0.95, 1.05)))
            process.offset = chance.uniform(0, 1e6)
            process.wall_offset = chance.choice((0.0, chance.uniform(-100, 100), chance.uniform(-1e6, 1e6)))
        self.machine.processes.append(process)
        database = self.database(process)
        if restarts:
            self._restart[number] = lambda: self.process(name, main)

        def run() -> None:
            try:
                main(process, database)
            except (
                TransactionTimedOut,
                DatabaseUnreachableError,
            ) as error:  # as it says that it may: whoever keeps it restarts it
                self.harmed += 1
                self.tell(f"{process.name} ends: {str(error)[:100]}")
                self.kill(process)
            self._bury(process)

        self.machine.spawn(process, run)
        return process

    def database(self, process: Any) -> Any:
        """A handle of the cluster's database, as that process reaches it."""
        faults = Faults(seed=self.chance.randrange(1 << 30), **self.plan.faults)
        return connect(process, self.name, faults, f"{self.seed}")

    def kill(self, process: Process) -> None:
        """It ends, at any moment, as by SIGKILL; whoever restarts it does so a moment later."""
        self._bury(process)
        restart = self._restart.pop(process.number, None)
        if restart is not None:
            self.machine.after(self.chance.uniform(0.1, 3.0), lambda: restart() and None)

    def _bury(self, process: Process) -> None:
        process.dead = True
        for call in process.at_death:
            call()
        process.at_death.clear()

    # --- trouble

    def tell(self, what: str) -> None:
        self.story.append(f"{self.machine.now - 1000:9.3f} s  {what}")
        self.machine.note(what.encode())

    def stir(self) -> None:
        """One trouble, and the next one later, until all is calm."""
        if self.calm or not self.plan.every or self.befallen == self.plan.most:
            return
        kinds, weights = list(self.plan.troubles), list(self.plan.troubles.values())
        kind = self.chance.choices(kinds, weights)[0]
        living = [one for one in self.machine.processes if not one.dead and (kind != "drain" or one.drain is not None)]
        if living:
            self.befallen += 1
            self._befall(self.chance.choice(living), kind)
        self.machine.after(self.chance.expovariate(1 / self.plan.every), self.stir)

    def _befall(self, process: Process, kind: str) -> None:
        now, seconds = self.machine.now, self.chance.choice((0.2, 1.0, 4.0, 10.0, 30.0))
        self.harmed += kind not in ("wall clock", "drain")
        if kind in ("stop", "suspend", "cut off"):
            process.silent += seconds
        if kind == "kill":
            self.tell(f"{process.name} is killed")
            self.kill(process)
        elif kind == "stop":
            process.stopped_until = max(process.stopped_until, now + seconds)
            self.tell(f"{process.name} is stopped for {seconds} s")
        elif kind == "suspend":
            process.stopped_until = max(process.stopped_until, now + seconds)
            process.sleep(now, seconds)
            self.tell(f"the host of {process.name} sleeps for {seconds} s")
        elif kind == "cut off":
            process.cut_off_until = max(process.cut_off_until, now + seconds)
            self.tell(f"{process.name} is cut off for {seconds} s")
        elif kind == "drain":
            assert process.drain is not None
            self.tell(f"{process.name} is asked to leave{' again' if process.leaves else ''}")
            process.leaves = True
            process.drain()
        else:
            process.wall_offset += self.chance.uniform(-3600, 3600)
            self.tell(f"the wall clock of {process.name} is set")

    # --- running

    def run(self, troubled: float, patience: float, settled: Callable[[], bool]) -> None:
        """`troubled` seconds in which anything may happen, then calm until all is `settled`: within `patience` seconds.

        `settled` may use the database.
        """
        here = self.machine
        begun = here.now
        here.after(self.chance.uniform(0.0, 1.0), self.stir)
        self._go(begun + troubled, lambda: False)
        self.calm = True
        self.tell("calm")
        for process in here.processes:
            process.wake_up(here.now)
        self.witness(lambda: self._await(settled), patience)

    def _await(self, settled: Callable[[], bool]) -> bool:
        looks = 0
        while not settled():
            self.machine.block(_LOOK)
            looks += 1
            if looks & (looks - 1) == 0 or looks % _COLLECTED == 0:
                gc.collect()  # what lies in cycles may hold futures
        return True

    def witness(self, look: Callable[[], T], patience: float = 60.0) -> T:
        """What `look` returns, which may use the database: it runs in a strand of nobody's, while the others go on."""
        seen: list[T] = []
        self.machine.spawn(None, lambda: seen.append(look()))
        if not self._go(self.machine.now + patience, lambda: bool(seen)):
            raise AssertionError(f"{patience} s of calm, and not all has come to its end: {self.unsettled}")
        return seen[0]

    def _go(self, until: float, over: Callable[[], bool]) -> bool:
        here = self.machine
        collected = here.switches
        laws = self.laws

        def check() -> None:
            nonlocal collected
            for law in laws:
                law()
            if here.switches - collected > _COLLECT_EVERY:
                collected = here.switches
                gc.collect()

        return here.run(until, over, check)
