"""Memoized calls under the simulation: callers and remotes that are killed, stopped and cut off; one computation is everybody's."""

from __future__ import annotations

import itertools
import time
import types
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any, Final

from greenlet import getcurrent

from lease_locks import LeaseManager, MemoizingPicklingRunner, samethread_shell
from lease_locks import locks as lease_locks_locks
from lease_locks.memo import remote, shells
from lease_locks.memo.config import MAINTAIN_LOCKS
from lease_locks.memo.counting import Counting
from lease_locks.memo.departing import Departures
from lease_locks.memo.orchestrator import InvocationCancelled, InvocationTimedOut, NoResultAfterShell
from simulation.machine import Process, current_process
from simulation.stand_ins import machine, number
from simulation.tasks import Meant, computed
from simulation.world import CLUSTER, World

URL: Final = "embedded:simulated"
"""By which a remote opens the database."""


@dataclass
class Run:
    """One run of the memoized function."""

    process: Process
    silence: float = 0.0
    """For how long its process had been silent before its lock was acquired."""
    ended: bool = False
    left: bool = False
    """Whether the manager was closed under which it runs in its caller's own process."""

    @property
    def may_be_lost(self) -> bool:
        """Whether its process gave no sign of life for a while, or never will any more."""
        return self.left or self.process.dead or self.process.silent > self.silence


class Book:
    """What befell all calls of a run."""

    world: World
    seconds: dict[int, float]
    """How long it takes to compute the value of a number."""
    fails: set[int]
    cancelled: set[int]
    """Numbers of which somebody has cancelled a call, or that have a limit of time."""
    runs: dict[int, list[Run]]
    values: dict[int, Any]
    """What somebody was told."""
    numbers: Iterator[int]
    databases: dict[int, Any]

    @classmethod
    def compute(cls, of: int) -> tuple[int, int, bytes]:
        process: Any = current_process()
        runs = cls.runs.setdefault(of, [])
        this = Run(process, process.silent if process.name.startswith("caller") else 0.0)
        if of not in cls.fails and of not in cls.cancelled and not this.may_be_lost:
            before = [run for run in runs if not run.may_be_lost]
            if before or (of in cls.values and not any(run.may_be_lost for run in runs)):
                names = ", ".join(run.process.name for run in before)
                machine().failures.append(f"{process.name} computes {of}, which {names} did, or does")
        runs.append(this)
        time.sleep(cls.seconds[of])
        this.ended = True
        if of in cls.fails:
            raise Meant(f"{of}")
        return of, next(cls.numbers), b"x" * (200_000 if of % 5 == 0 else 0)

    @classmethod
    def told(cls, of: int, value: Any) -> None:
        """All are told the same."""
        known = cls.values.setdefault(of, value[:2])
        assert value[0] == of and known == value[:2], f"{of} came to {value[:2]}, and to {known}"


class Remote:
    """`subprocess.Popen`: a remote in a process of its own, which outlives who started it."""

    living = 0

    def __init__(self, command: Sequence[str], **_: Any) -> None:
        parent = current_process()
        assert parent is not None
        arguments = command[command.index("lease_locks.memo") + 1 :]
        self.arguments = [
            one for one in arguments if not one.startswith("--in-process=")
        ]  # what another process hasn't
        self.code = -9
        self.waiters: list[Any] = []
        self.process = Book.world.process("remote", self.main, restarts=False, host=parent.host)
        self.pid = self.process.pid
        self.process.at_death.append(self._over)
        Remote.living += 1

    def main(self, process: Process, db: Any) -> None:
        Book.databases[process.number] = db
        self.code = remote.main(self.arguments, own_process=True)

    def _over(self) -> None:
        Remote.living -= 1
        for strand in self.waiters:
            machine().wake(strand)

    def wait(self) -> int:
        while not self.process.dead:
            self.waiters.append(getcurrent())
            machine().block(None)
        return self.code


def install() -> None:
    """Put the stand-ins of this module where Shells and remotes look for the real ones."""
    popen = types.ModuleType("subprocess")
    popen.__dict__.update(Popen=Remote, DEVNULL=-3)
    shells.__dict__["subprocess"] = popen
    lease_locks_locks.__dict__.update(open_database=_database, url_of=lambda _db: URL)
    for kind in (Counting, Departures):
        number(kind)


def _database(_url: str, **_: Any) -> Any:
    process = current_process()
    assert process is not None
    return Book.databases[process.number]


class Memos:
    """Callers of one function, by every Shell."""

    def __init__(self, world: World) -> None:
        chance = world.chance
        self.world = Book.world = world
        Remote.living = 0
        Book.runs, Book.values, Book.databases, Book.cancelled = {}, {}, {}, set()
        Book.numbers = itertools.count(1)
        count = chance.randint(3, 60)
        Book.seconds = {one: chance.choice((0.0, 0.1, 0.5, 3.0, 12.0)) for one in range(count)}
        Book.fails = {one for one in range(count) if chance.random() < 0.15}
        self.ttl = chance.choice((3.0, 15.0))
        self.max_hold = chance.choice((None, None, None, 8.0))
        if self.max_hold is not None:
            Book.cancelled.update(range(count))
        self.options: dict[str, Any] = {
            "rerun_exceptions": chance.random() < 0.7,
            "on_awaited_error": chance.choice(("rerun", "share")),
            "concurrent": chance.choice((None, 1, 3)),
            "max_hold": self.max_hold,
        }
        self.cancels = chance.choice((0.0, 0.0, 0.1))
        self.left = chance.randint(50, 250)
        self.busy: set[int] = set()
        for _ in range(chance.randint(2, 4)):
            world.process("caller", self.call)

    def call(self, process: Process, db: Any) -> None:
        chance = self.world.chance
        self.busy.add(process.number)
        process.at_death.append(lambda: self.busy.discard(process.number))
        shell = chance.choice((samethread_shell, shells.SubprocessShell(), shells.DetachedSubprocessShell()))
        while self.left > 0:
            with LeaseManager(db, CLUSTER, ttl=self.ttl) as locks, MAINTAIN_LOCKS.set_local(chance.random() < 0.8):
                runner = MemoizingPicklingRunner(locks, shell, "simulated", **self.options)
                for _ in range(chance.randint(1, 10)):
                    if self.left > 0:
                        self.left -= 1
                        self._one(runner)
                    time.sleep(chance.choice((0.0, 0.1, 2.0, 5.0)))
                for run in itertools.chain.from_iterable(Book.runs.values()):
                    run.left |= run.process is process and not run.ended

    def _one(self, runner: MemoizingPicklingRunner) -> None:
        chance = self.world.chance
        of = chance.choice(list(Book.seconds))
        if chance.random() < self.cancels:
            Book.cancelled.add(of)
            runner.cancel(computed, of)
        found = runner.peek(computed, of) if chance.random() < 0.2 and of not in Book.fails else None
        if found:
            Book.told(of, found)
        way = chance.random()
        if way < 0.1:
            runner.submit(computed, of)  # whoever calls next is told
        else:
            self._told(of, (lambda: runner.call(computed, of)) if way < 0.7 else runner.submit(computed, of).result)

    def _told(self, of: int, call: Any) -> None:
        try:
            value = call()
        except Meant as meant:
            if of not in Book.fails or str(meant) != f"{of}":
                raise AssertionError(f"{meant!r} is not what was drawn for {of}") from meant
        except (InvocationCancelled, CancelledError, InvocationTimedOut) as error:
            if of not in Book.cancelled:
                raise AssertionError("nobody asked for that") from error
        except NoResultAfterShell as error:
            if not self.world.befallen and of not in Book.cancelled:
                raise AssertionError("its remote had no reason to end") from error
        else:
            assert of not in Book.fails, f"{of} was to fail"
            Book.told(of, value)

    # --- laws

    def settled(self) -> bool:
        self.world.unsettled = f"{self.left} to be called, callers {sorted(self.busy)} call, {Remote.living} remotes"
        return self.left <= 0 and not self.busy and not Remote.living

    def end(self) -> None:
        """What was to be seen in the end was seen as it came."""
