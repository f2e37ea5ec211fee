"""What lies between a process and the database: a way that takes time, loses and delays, and is cut off at times."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, Final

from greenlet import getcurrent

import fdb_embedded
from fdb_embedded import errors
from fdb_embedded.engine.request import Commit
from fdb_embedded.faults import Faults
from fdb_embedded.transaction.faulty import Asking, FaultyCommits
from simulation.machine import Machine, Process, Strand
from simulation.stand_ins import machine

QUICK: Final = (0.0002, 0.002)
"""Seconds that a message is under way, mostly."""
LOOK: Final = 0.05
"""Seconds between two looks whether who waits for a message that doesn't come has given up."""

GoOn = Callable[[], None]


class Network(FaultyCommits):
    """The way of one process's transactions. Commits travel by themselves: who sent one may die meanwhile."""

    def __init__(self, engine: Any, faults: Faults, process: Process, chance: random.Random) -> None:
        super().__init__(engine, faults)
        self.process = process
        self.chance = chance

    def before_read(self, go_on: GoOn) -> None:
        """To the proxy, for a read version. The process may stop, be cut off or die meanwhile."""
        me = getcurrent()
        if isinstance(me, Strand) and me.process is not None:
            self._travel(me, go_on)
        super().before_read(go_on)

    def _travel(self, me: Strand, go_on: GoOn) -> None:
        here = machine()
        me.travels = True
        try:
            here.block(self._way())
            while here.now < self.process.cut_off_until:
                here.block(min(LOOK, self.process.cut_off_until - here.now) + self.chance.random() * 0.001)
                go_on()
        finally:
            me.travels = False

    def _way(self) -> float:
        return self.chance.uniform(*QUICK)

    def submit(self, transaction: Asking, commit: Commit) -> None:
        """Send a commit; it arrives, or not, and the answer comes back, or not."""
        fate = self.faults.for_commit()
        here = machine()
        for stamp in commit.promises.stamps if commit.promises is not None else ():
            stamp.kick = None
        if commit.deadline:
            left = (commit.deadline - time.monotonic()) / self.process.rate
            here.after(left, lambda: here.spawn(None, lambda: self._give_up(transaction, commit)) and None)
        here.spawn(None, lambda: self._send(here, transaction, commit, fate))

    def _give_up(self, transaction: Asking, commit: Commit) -> None:
        if not commit.done and transaction.attempt is commit:
            transaction.fail(errors.TRANSACTION_TIMED_OUT)

    def _send(self, here: Machine, transaction: Asking, commit: Commit, fate: Any) -> None:
        here.block(self._way())
        lost = 0
        while here.now < self.process.cut_off_until and not commit.done:
            here.block(LOOK)
            lost += 1
        if commit.done or (lost and self.chance.random() < 0.3):  # given up; or what was sent into the cut is gone
            if not commit.done:
                here.block(self._way())
                self._answer(commit, errors.COMMIT_UNKNOWN_RESULT)
            return
        arrived = commit.again(commit.read_at)
        arrived.deadline = 0.0  # who sent it may have given up, and it is made all the same
        self._run(transaction, arrived, fate)
        here.note(b"commit %d %d" % (arrived.version, arrived.error))
        here.block(self._way())
        while here.now < self.process.cut_off_until and not commit.done:
            here.block(LOOK)
        commit.conflicts = arrived.conflicts
        if arrived.error:
            self._answer(commit, arrived.error)
        elif not commit.done or commit.version < 0:
            commit.succeed(arrived.version, arrived.index)

    def _answer(self, commit: Commit, code: int) -> None:
        if code == errors.COMMIT_UNKNOWN_RESULT and commit.idempotency_id is not None and not commit.done:
            self._resolve(commit, commit.idempotency_id, commit.read_at)
        else:
            commit.fail(code)


def connect(process: Process, name: str, faults: Faults, seed: str) -> Any:
    """A database handle of a process, as `open_database("memory:NAME")` gives one, over a network of its own."""
    database = fdb_embedded.open(f"memory:{name}", faults=faults)
    handle = database.dpointer
    handle.faulty = Network(handle.engine, faults, process, random.Random(f"{seed} network {process.number}"))
    return database


def call_back_in_process(impl: Any) -> None:
    """Callbacks of futures run in a strand of the process that asked for them, and in none once it is dead."""
    on_ready = impl.Future.on_ready

    def in_process(self: Any, callback: Callable[[Any], Any]) -> None:
        me = getcurrent()
        process = me.process if isinstance(me, Strand) else None
        if process is None:
            on_ready(self, callback)
        else:
            on_ready(self, lambda future: machine().spawn(process, lambda: callback(future)))

    impl.Future.on_ready = in_process


def call_by_own_clock(housekeeper: Any) -> None:
    """Timers that a process asks the engine for go by its clock, and ring in a strand of its own."""
    call_at = housekeeper.call_at

    def by_own_clock(self: Any, when: float, callback: Callable[[], None]) -> None:
        me, here = getcurrent(), machine()
        process = me.process if isinstance(me, Strand) else None
        if process is None:
            call_at(self, when, callback)
        else:
            left = (when - here.monotonic()) / process.rate
            here.after(max(0.0, left), lambda: here.spawn(process, callback) and None)

    housekeeper.call_at = by_own_clock
