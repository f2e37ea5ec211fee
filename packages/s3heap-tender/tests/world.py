"""A simulated cluster: processes that crash, stores that lose answers, steps that interleave, all from one seed.

Everything runs in the calling thread. At a failpoint a process may die, or another process may take a step first, so
that pushes, prunes and finishes overlap as they would across machines. At the end the faults stop, the cluster is
drained, and what the guarantees say is checked.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable
from typing import Any

from support.heaps import ReachedStore, ask, check_starts

import idempotent_txn
from fdb_schema import ClusterSpace, read_range
from s3heap_tender import (
    ClaimLostError,
    ClaimRefusedError,
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
    failpoints,
    history,
)
from s3heap_tender.claims import writes
from s3heap_tender.claims.sessions import LocalSessions
from s3heap_tender.errors import SimulatedCrash
from s3heap_tender.rows.keys import HeapKeys
from s3heap_tender.stores.memory import MemoryStore
from s3heap_tender.trace import Trace

KEEP_TOMBSTONES = 3600.0  # beyond what a step may take in the simulation's time

Refused = (
    ClaimLostError,
    ClaimRefusedError,
    ConflictError,
    StoreUnavailableError,
    TaskNotFoundError,
    TransitionError,
)


class FaultyStore(ReachedStore):
    """A store whose answers are lost, whose server fails, and whose writes may land late."""

    def __init__(self, inner: MemoryStore, rng: random.Random) -> None:
        super().__init__(inner, "faulty:")
        self.rng = rng
        self.rate = 0.0
        self.late: list[Callable[[], Any]] = []

    def _before(self) -> None:
        self.land()
        if self.rng.random() < self.rate / 2:
            raise StoreUnavailableError("503 from a simulated store")

    def _write(self, write: Callable[[], Any]) -> Any:
        self._before()
        draw = self.rng.random()
        if draw < self.rate:
            if draw < self.rate / 3:
                self.late.append(write)
            elif draw < 2 * self.rate / 3:
                write()
            raise OutcomeUnknownError("a simulated time-out")
        return write()

    def land(self, everything: bool = False) -> None:
        """Some writes that timed out land now; their conditions are the store's to judge."""
        for write in list(self.late):
            if everything or self.rng.random() < 0.3:
                self.late.remove(write)
                try:
                    write()
                except ConflictError:
                    pass


class Process:
    """A sysdb, heap, tender and scheduler that live and die together."""

    def __init__(self, world: World) -> None:
        self.sysdb = SysDb(
            world.db,
            world.cluster,
            shards=2,
            sessions=LocalSessions(),
            clock=world.clock,
            trace=Trace(lines=world.lines),
            monotonic=world.clock.monotonic,
        )
        self.heap = Heap(
            world.store,
            self.sysdb,
            threads=0,
            linger=0,
            sleep=world.clock.sleep,
            max_object_items=world.rng.choice((1, 3, 4096)),
        )
        self.heap.io._rng = random.Random(world.rng.random())
        self.tender = Tender(self.heap, self.sysdb, keep_tombstones=KEEP_TOMBSTONES, prune_every=0.0)
        self.scheduler = Scheduler(self.heap, self.sysdb, world.trigger, concurrency=0)


class World:
    def __init__(self, db: Any, clock_type: Any, seed: int) -> None:
        self.rng = random.Random(seed)
        self.db = self.sound_db = db
        self.cluster = "w" + uuid.uuid4().hex[:8]
        self.clock = clock_type(self.cluster)
        self.lines: list[str] = []
        self.memory = MemoryStore()
        self.store: Any = FaultyStore(self.memory, self.rng)
        HeapStore("memory:", store=self.memory)
        self.partitions = [uuid.UUID(int=self.rng.getrandbits(128)) for _ in range(2)]
        self.tasks: list[uuid.UUID] = []
        self.starts: dict[uuid.UUID, list[tuple[int, int, int]]] = {}
        self.memoized = self.rng.random() < 0.5  # a start of an attempt after a crash gets the run there is
        self.memo: dict[tuple[uuid.UUID, int, int], int] = {}  # (task, generation, attempt) → end of the log it read
        self.read: dict[uuid.UUID, int] = {}  # the end of the log up to which some run read and ended well
        self.written = dict.fromkeys(self.partitions, 0)
        self.depth = 0
        self.crash_in: int | None = None
        self.nest = 0.0
        self.fail_rate = 0.0
        self.crashes: list[str] = []
        self.undead: set[int] = set()  # processes whose sessions are dead and that go on all the same
        self.hit: set[str] = set()
        self.faulty_db: Any = None
        failpoints.observe(self._at_failpoint)
        self.processes = [Process(self) for _ in range(3)]

    # faults

    def _at_failpoint(self, name: str) -> None:
        self.hit.add(name)
        if self.crash_in is not None:
            self.crash_in -= 1
            if self.crash_in <= 0:
                self.crash_in = None
                self.crashes.append(name)
                raise SimulatedCrash(name)
        if name in ("sysdb.claim.after", "sysdb.begin.after") and self.rng.random() < self.nest:
            self.clock.sleep(self.rng.choice((0.2, 0.7, 3.0)))  # its commit took long: the run begins late
        if self.depth < 2 and self.rng.random() < self.nest:
            self.step()

    def step(self) -> None:
        """One process takes one step; it may die at a failpoint on the way."""
        saved, self.crash_in = self.crash_in, None
        if self.rng.random() < self.nest:
            self.crash_in = self.rng.randint(1, 12)
        self.depth += 1
        busy = getattr(self, "busy", set())
        free = [index for index in range(len(self.processes)) if index not in busy]
        index = self.rng.choice(free) if free else None
        try:
            if index is None:
                return
            self.busy = busy | {index}
            self._act(self.processes[index])
            if index in self.undead:
                self.restart(index)
        except Refused:
            pass
        except SimulatedCrash:
            assert index is not None
            self.restart(index)
        finally:
            self.busy = busy
            self.depth -= 1
            self.crash_in = saved

    def restart(self, index: int) -> None:
        """The process is gone; its session is dead; another takes its place. Restarting itself meets no fault."""
        self.undead.discard(index)
        self.processes[index].sysdb.sessions.close()
        saved = self.crash_in, self.nest, self.store.rate
        self.crash_in, self.nest, self.store.rate = None, 0.0, 0.0
        self.processes[index] = Process(self)
        self.crash_in, self.nest, self.store.rate = saved

    def trigger(self, task: Any, gen: int, epoch: int) -> ReadUpTo | int | None:
        self.starts.setdefault(task.id, []).append((self.clock.value, gen, epoch))
        attempt = (task.id, gen, task.attempt)
        seen = self.memo.get(attempt)
        if seen is None or not self.memoized:
            seen = self.memo[attempt] = self._log_end(task.partition)
        if self.nest and self.rng.random() < self.nest:
            self._linger(task.partition)
        if self.depth < 3 and self.rng.random() < self.nest:
            for _ in range(self.rng.randint(1, 4)):
                self.step()
        if self.rng.random() < self.nest:
            self.processes[0].sysdb.run_now(task.id)
        if self.rng.random() < self.fail_rate:
            raise RuntimeError("a simulated failure")
        self.read[task.id] = max(self.read.get(task.id, 0), seen)
        return self.rng.choice((None, 0, ReadUpTo(seen)))

    def _log_end(self, partition: uuid.UUID) -> int:
        key = HeapKeys(ClusterSpace(self.cluster)).log(partition)
        return idempotent_txn.run(self.sound_db, lambda tr: writes.read_counter(tr, key))

    def _linger(self, partition: uuid.UUID) -> None:
        """This process is taken for dead while its run goes on: it will settle a claim that another may have taken.

        Sometimes there is a write that this run can't see, and the others come for what is due at once.
        """
        for index in getattr(self, "busy", ()):
            if index not in self.undead and self.rng.random() < 0.5:
                self.undead.add(index)
                self.processes[index].sysdb.sessions.close()
                if self.rng.random() < 0.5:
                    idempotent_txn.run(self.db, self.processes[index].sysdb.record_write, partition)
                    for _ in range(4):
                        self.step()

    # what processes do

    def _act(self, process: Process) -> None:
        rng = self.rng
        choice = rng.random()
        if choice < 0.30:
            process.tender.turn(prune=rng.choice((False, None)), reconcile=False)
        elif choice < 0.55:
            process.scheduler.turn()
        elif choice < 0.60:
            process.heap.prune()
        elif choice < 0.65:
            process.tender.turn(prune=None, reconcile=rng.random() < 0.5)
        elif choice < 0.75:
            self.clock.sleep(rng.choice((0.1, 0.7, 3.0, 61.0)))
        elif choice < 0.88:
            self._write(process)
        else:
            ask(self.rng, process.sysdb, self.partitions, self.tasks)

    def _write(self, process: Process) -> None:
        partition = self.rng.choice(self.partitions)
        if self.rng.random() < 0.8:
            records = self.rng.randint(1, 3)
            idempotent_txn.run(self.db, lambda tr: process.sysdb.record_write(tr, partition, records))
        else:
            process.sysdb.mark_dirty(partition, process.sysdb.log_end(partition) + 1)

    # the end

    def drain(self) -> None:
        """No more faults, writes or requests; every process that is left does its work until there is none."""
        self.crash_in, self.nest, self.fail_rate, self.store.rate = None, 0.0, 0.0, 0.0
        self.store.land(everything=True)
        for index in range(len(self.processes)):
            self.restart(index)
        process = self.processes[0]
        for task in list(process.sysdb.tasks()):
            if task.paused:
                process.sysdb.resume(task.id)
            if task.dead:
                process.sysdb.redrive(task.id, task.gen)
        for _ in range(4000):  # catch_up="all" may owe dozens of runs, a cadence apart
            report = process.tender.turn(prune=False, reconcile=False)
            assert report.errors == []
            started = process.scheduler.turn().started
            rows = list(process.sysdb.tasks())
            if not (report.swept or report.pushed or started) and all(t.state == "waiting" for t in rows):
                break
            self.clock.sleep(1.0)
        else:
            raise AssertionError(f"not drained: {[t for t in rows if t.state != 'waiting']}")
        self.clock.sleep(7200)
        process.tender.turn(prune=None, reconcile=False)
        assert self._rows("due") + self._rows("run") + self._rows("done") == [], "the index is not what the tasks are"
        process.heap.prune()
        process.tender.turn(prune=False, reconcile=True)

    def check(self) -> None:
        """G1 to G4, the drained heap and sysdb, and the history."""
        sysdb = self.processes[0].sysdb
        for task in sysdb.tasks():
            assert task.state == "waiting", task
            assert task.completion_offset >= sysdb.log_end(task.partition), f"G2: {task}"
            assert self.read.get(task.id, 0) >= sysdb.log_end(task.partition), f"G2: no run read what {task} covers"
            assert task.pending_runs == 0
        check_starts(self.starts, self.lines)
        for text in self.lines:
            line = json.loads(text)
            if line["op"] == "finish":
                run = uuid.UUID(line["task"]), line["before"]["gen"], line["before"]["attempt"]
                assert min(line["upto"], line["tail"]) <= self.memo[run], f"G2: the run did not read that far: {line}"
        left = [listed.key for listed in self.memory.list("") if not listed.key.startswith(("meta", "quarantine-"))]
        assert left == [], f"the heap is not empty: {left}"
        rows = self._rows("intent") + self._rows("dirty") + self._rows("active") + self._rows("tomb")
        assert rows == [], f"left in the sysdb: {rows}"
        found = [str(violation) for violation in history.check(self.lines)]
        assert found == [], found

    def _rows(self, name: str) -> list[Any]:
        keys = self.processes[0].sysdb.layout.keys
        begin, end = getattr(keys, f"{name}_range")()
        return idempotent_txn.run(self.db, lambda tr: read_range(tr, begin, end))

    def run(self, steps: int, *, nest: float, store_faults: float, failures: float) -> None:
        """`steps` random steps, then drain and check."""
        self.nest, self.store.rate, self.fail_rate = nest, store_faults, failures
        sound = self.db
        if self.faulty_db is not None:
            self.db = self.faulty_db
            for index in range(len(self.processes)):
                self.restart(index)
        for _ in range(steps):
            self.step()
        self.db = sound
        self.drain()
        self.check()
