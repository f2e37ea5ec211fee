"""The heap under the simulation: tenders, schedulers and writers as they run as services, and an object store that loses answers."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from typing import Any

from support.heaps import ReachedStore, ask, check_starts

from fdb_schema import ClusterSpace, read_clock
from idempotent_txn import run
from s3heap_tender import (
    ConflictError,
    Heap,
    HeapStore,
    OutcomeUnknownError,
    ReadUpTo,
    Scheduler,
    StoreUnavailableError,
    SysDb,
    TaskNotFoundError,
    Tender,
    TransitionError,
    history,
)
from s3heap_tender.stores.memory import MemoryStore
from s3heap_tender.trace import Trace
from simulation.machine import Process
from simulation.stand_ins import machine
from simulation.world import CLUSTER, World


class DistantStore(ReachedStore):
    """The object store as one process reaches it: requests take time, their answers are lost, writes land late."""

    def __init__(self, inner: MemoryStore, world: World, process: Process, rate: float) -> None:
        super().__init__(inner, inner.url)
        self._world = world
        self._process = process
        self._rate = rate
        self._chance = random.Random(f"{world.seed} store {process.number}")

    @property
    def _failing(self) -> float:
        return 0.0 if self._world.calm else self._rate

    def _before(self) -> None:
        time.sleep(self._chance.uniform(0.002, 0.05))
        if machine().now < self._process.cut_off_until or self._chance.random() < self._failing / 2:
            time.sleep(self._chance.choice((0.0, 1.0)))
            raise StoreUnavailableError("503 from a simulated store")

    def _write(self, write: Callable[[], Any]) -> Any:
        self._before()
        fate = self._chance.random()
        if fate < self._failing / 3:
            self._world.machine.after(self._chance.choice((0.1, 2.0, 20.0)), lambda: _late(write))
        elif fate < self._failing * 2 / 3:
            write()
        if fate < self._failing:
            raise OutcomeUnknownError("a simulated time-out")
        made = write()
        time.sleep(self._chance.uniform(0.001, 0.02))
        return made


def _late(write: Callable[[], Any]) -> None:
    try:
        write()
    except ConflictError:
        pass


class Heaps:
    """Writers, an operator, tenders and schedulers over two partitions and a few tasks."""

    def __init__(self, world: World) -> None:
        chance = world.chance
        self.world = world
        self.lines: list[str] = []
        self.objects = MemoryStore()
        self.partitions = [uuid.UUID(int=chance.getrandbits(128)) for _ in range(2)]
        self.tasks: list[uuid.UUID] = []
        self.starts: dict[uuid.UUID, list[tuple[int, int, int]]] = {}
        self.read: dict[uuid.UUID, int] = {}
        self.store_faults = chance.choice((0.0, 0.05, 0.2))
        self.failures = chance.choice((0.0, 0.2))
        self._sysdb: SysDb | None = None
        for _ in range(chance.randint(1, 2)):
            world.process("tender", self.tend)
            world.process("scheduler", self.schedule)
        world.process("writer", self.write)
        world.process("operator", self.operate)

    def opened(self, db: Any) -> SysDb:
        return SysDb(db, CLUSTER, shards=2, trace=Trace(lines=self.lines))

    def heap(self, process: Process, sysdb: SysDb) -> Heap:
        """Opened as a service does it at its start: until the store answers."""
        store = DistantStore(self.objects, self.world, process, self.store_faults)
        size = self.world.chance.choice((1, 3, 4096))
        while True:
            try:
                return Heap(HeapStore("memory:", store=store), sysdb, threads=4, max_object_items=size)
            except (StoreUnavailableError, OutcomeUnknownError):
                time.sleep(1.0)

    def tend(self, process: Process, db: Any) -> None:
        with self.opened(db) as sysdb:
            Tender(self.heap(process, sysdb), sysdb).run()

    def schedule(self, process: Process, db: Any) -> None:
        with self.opened(db) as sysdb:
            heap = self.heap(process, sysdb)
            Scheduler(heap, sysdb, lambda *run: self.trigger(sysdb, *run), concurrency=4).run()

    def trigger(self, sysdb: SysDb, task: Any, gen: int, epoch: int) -> ReadUpTo | int | None:
        chance = self.world.chance
        clock = run(self.world.db, lambda tr: read_clock(tr, ClusterSpace(CLUSTER)))
        self.starts.setdefault(task.id, []).append((clock, gen, epoch))
        seen = sysdb.log_end(task.partition)
        time.sleep(chance.choice((0.0, 0.1, 3.0, 0.0 if self.world.calm else 40.0)))
        if not self.world.calm and chance.random() < self.failures:
            raise RuntimeError("a simulated failure")
        self.read[task.id] = max(self.read.get(task.id, 0), seen)
        return chance.choice((None, ReadUpTo(seen)))

    def write(self, process: Process, db: Any) -> None:
        chance, sysdb = self.world.chance, self.opened(db)
        while not self.world.calm:
            time.sleep(chance.expovariate(1 / chance.choice((0.5, 5.0))))
            partition, records = chance.choice(self.partitions), chance.randint(1, 3)
            run(db, lambda tr, p=partition, n=records: sysdb.record_write(tr, p, n))  # type: ignore[misc]

    def operate(self, process: Process, db: Any) -> None:
        chance, sysdb = self.world.chance, self.opened(db)
        while not self.world.calm:
            try:
                self.world.tell(f"the operator asks: {ask(chance, sysdb, self.partitions, self.tasks)}")
            except (TaskNotFoundError, TransitionError):
                pass
            time.sleep(chance.expovariate(1 / 8.0))

    # --- the end

    def settled(self) -> bool:
        """Everything that was written is covered, and nothing more is to run."""
        sysdb = self._sysdb = self._sysdb or SysDb(self.world.db, CLUSTER)
        tasks = list(sysdb.tasks())
        for task in tasks:
            if task.paused:
                sysdb.resume(task.id)
            if task.dead:
                sysdb.redrive(task.id, task.gen)
        left = [
            task
            for task in tasks
            if task.state != "waiting" or task.pending_runs or task.completion_offset < sysdb.log_end(task.partition)
        ]
        self.world.unsettled = f"{left}"
        return not left

    def end(self) -> None:
        sysdb = self._sysdb
        assert sysdb is not None
        for task in sysdb.tasks():
            end = sysdb.log_end(task.partition)
            assert task.completion_offset >= end, f"G2: {task}"
            assert self.read.get(task.id, 0) >= end, f"G2: no run read what {task} covers"
        check_starts(self.starts, self.lines)
        found = [str(violation) for violation in history.check(self.lines)]
        assert found == [], found
