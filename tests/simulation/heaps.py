"""The heap under the simulation: tenders, schedulers and writers as they run as services, and an object store that loses answers."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Final

from fdb_schema import ClusterSpace, read_clock
from idempotent_txn import run
from s3heap_tender import (
    Backoff,
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

_TASKS: Final = 4


class DistantStore:
    """The object store as one process reaches it: requests take time, their answers are lost, writes land late."""

    def __init__(self, inner: MemoryStore, world: World, process: Process, rate: float) -> None:
        self.inner = inner
        self.url = inner.url
        self._world = world
        self._process = process
        self._rate = rate
        self._chance = random.Random(f"{world.seed} store {process.number}")

    def get(self, key: str, *, if_none_match: str | None = None) -> Any:
        self._go()
        return self.inner.get(key, if_none_match=if_none_match)

    def list(self, prefix: str, *, before: str | None = None, since: str | None = None) -> Iterator[Any]:
        self._go()
        return self.inner.list(prefix, before=before, since=since)

    def put(self, key: str, body: bytes, *, if_match: str | None) -> str:
        return self._write(lambda: self.inner.put(key, body, if_match=if_match))

    def delete(self, key: str, *, if_match: str) -> None:
        self._write(lambda: self.inner.delete(key, if_match=if_match))

    def close(self) -> None:
        pass

    @property
    def _failing(self) -> float:
        return 0.0 if self._world.calm else self._rate

    def _go(self) -> None:
        time.sleep(self._chance.uniform(0.002, 0.05))
        if machine().now < self._process.cut_off_until or self._chance.random() < self._failing / 2:
            time.sleep(self._chance.choice((0.0, 1.0)))
            raise StoreUnavailableError("503 from a simulated store")

    def _write(self, write: Callable[[], Any]) -> Any:
        self._go()
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
        self.cadences: dict[uuid.UUID, float] = {}
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

    def opened(self, process: Process, db: Any) -> SysDb:
        return SysDb(db, CLUSTER, shards=2, trace=Trace(lines=self.lines))

    def heap(self, process: Process, sysdb: SysDb) -> Heap:
        store = DistantStore(self.objects, self.world, process, self.store_faults)
        return Heap(
            HeapStore("memory:", store=store), sysdb, threads=4, max_object_items=self.world.chance.choice((1, 3, 4096))
        )

    def tend(self, process: Process, db: Any) -> None:
        with _opening(lambda: self.opened(process, db)) as sysdb:
            Tender(_opening(lambda: self.heap(process, sysdb)), sysdb).run()

    def schedule(self, process: Process, db: Any) -> None:
        with _opening(lambda: self.opened(process, db)) as sysdb:
            heap = _opening(lambda: self.heap(process, sysdb))
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
        chance, sysdb = self.world.chance, _opening(lambda: self.opened(process, db))
        while not self.world.calm:
            time.sleep(chance.expovariate(1 / chance.choice((0.5, 5.0))))
            partition, records = chance.choice(self.partitions), chance.randint(1, 3)
            run(db, lambda tr, p=partition, n=records: sysdb.record_write(tr, p, n))  # type: ignore[misc]

    def operate(self, process: Process, db: Any) -> None:
        chance, sysdb = self.world.chance, _opening(lambda: self.opened(process, db))
        while not self.world.calm:
            try:
                self._request(sysdb)
            except (TaskNotFoundError, TransitionError):
                pass
            time.sleep(chance.expovariate(1 / 8.0))

    def _request(self, sysdb: SysDb) -> None:
        chance = self.world.chance
        if len(self.cadences) < _TASKS and (not self.cadences or chance.random() < 0.5):
            task, cadence = uuid.UUID(int=chance.getrandbits(128)), chance.choice((0.0, 2.0, 10.0))
            self.cadences[task] = cadence
            sysdb.create_task(
                chance.choice(self.partitions), task.hex, id=task, cadence=cadence, max_attempts=3,
                overlap=chance.choice(("skip", "buffer_one", "buffer_all", "cancel_other")),
                catch_up=chance.choice(("once", "all")),
                backoff=Backoff(initial=0.5, maximum=4.0, obey_cadence=chance.random() < 0.5),
            )  # fmt: skip
            return
        task = chance.choice(list(self.cadences))
        request = chance.choice(("pause", "resume", "resume", "run_now", "backfill", "delete", "redrive"))
        self.world.tell(f"the operator asks to {request} {task.hex[:6]}")
        if request == "backfill":
            sysdb.backfill(task, chance.randint(1, 2))
        elif request == "redrive":
            sysdb.redrive(task, sysdb.get(task).gen)
        elif request != "delete" or chance.random() < 0.3:
            getattr(sysdb, request)(task)

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
        for id, starts in self.starts.items():
            ordered = sorted(starts)
            for (clock, gen, _), (next_clock, next_gen, _) in pairwise(ordered):
                cadence = self.cadences[id] * 1e6
                assert gen == next_gen or next_clock - clock >= cadence, f"G1: task {id} {ordered}"
            epochs = [epoch for _, _, epoch in starts]
            assert len(set(epochs)) == len(epochs), f"G3: task {id} {ordered}"
        found = [str(violation) for violation in history.check(self.lines)]
        assert found == [], found


def _opening(make: Callable[[], Any]) -> Any:
    """What a service does at its start: tries until the database and the store answer."""
    while True:
        try:
            return make()
        except (StoreUnavailableError, OutcomeUnknownError):
            time.sleep(1.0)
