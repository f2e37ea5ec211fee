"""What the heap costs, counted: requests to the store and transactions per push, per run and per idle hour, by the number of tasks.

`nox -s bench -- heap_requests` builds 1,000, 10,000 and 100,000 tasks on a store and a database in memory that count, on a
clock of its own: no figure depends on the machine. The services are those that run in production, each with all shards.

- build: requests of the tender that puts the tasks on the heap the first time, for each 1,000 tasks
- push: a write to one partition of one task, until its item is on the heap: requests and transactions of the tender
- run: that item, until its run is over: requests and transactions of the scheduler
- batch: 500 writes to 500 partitions at once: the same for each run
- idle hour: requests and transactions of each service in an hour in which nothing is due, and of the dearest minute of it.
  Leases and heartbeats are not counted: they add 24 transactions a minute, whatever the number of tasks

Of every 20 tasks 13 wait for a write, 2 of them paused; 4 are scheduled in five hours; 2 were paused when they were due and 1 is a
dead letter, so that 3 of 20 items lie on the heap before all that is to come.
"""

from __future__ import annotations

import argparse
import json
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from fdb_schema import ClusterSpace, open_database
from fdb_schema.clock import ClockReading
from idempotent_txn import run
from s3heap_tender import Heap, Scheduler, SysDb, Tender
from s3heap_tender.claims import transitions as t
from s3heap_tender.claims.sessions import LocalSessions
from s3heap_tender.rows.records import TaskRow, item_of
from s3heap_tender.rows.settings import new_row
from s3heap_tender.runs.ownership import Everything
from s3heap_tender.stores.memory import MemoryStore

SHARDS: Final = 16
PAGE: Final = 1000  # objects that one LIST shows
BATCH: Final = 500
HOUR: Final = 3600.0
FAR: Final = 18_000.0


class Clock:
    """Time that moves when it is told to."""

    def __init__(self, cluster: str) -> None:
        self.key = ClusterSpace(cluster).clock_key
        self.value = 10**9
        self._written = -1

    def advance(self, tr: Any) -> int:
        if self._written != self.value:
            tr.set(self.key, ClockReading(self.value).encode())
        return self.value

    def committed(self) -> bool:
        self._written = self.value
        return True

    def sleep(self, seconds: float) -> None:
        self.value += int(seconds * 1e6)


class Counts:
    """What was asked for, by the minute of the clock."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.total: Counter[str] = Counter()
        self.minutes: Counter[tuple[str, int]] = Counter()

    def add(self, kind: str) -> None:
        what = "transactions" if kind == "transactions" else "requests"
        self.total[kind] += 1
        self.minutes[what, self.clock.value // 60_000_000] += 1

    def take(self) -> tuple[Counter[str], dict[str, int]]:
        """The counts since the last time: by kind, and of the dearest minute."""
        total, minutes = self.total, self.minutes
        self.total, self.minutes = Counter(), Counter()
        dearest = {
            what: max((n for (kind, _), n in minutes.items() if kind == what), default=0)
            for what in ("requests", "transactions")
        }
        return total, dearest


class CountedDb:
    """A database that counts the transactions that are begun."""

    def __init__(self, db: Any, counts: Counts) -> None:
        self._db = db
        self._counts = counts

    def create_transaction(self) -> Any:
        self._counts.add("transactions")
        return self._db.create_transaction()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


class CountedStore(MemoryStore):
    """A store that counts its requests as S3 would: a LIST for each 1,000 objects it shows."""

    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self._counts = counts

    def get(self, key: str, **options: Any) -> Any:
        self._counts.add("get")
        return super().get(key, **options)

    def put(self, key: str, body: bytes, **options: Any) -> str:
        self._counts.add("put")
        return super().put(key, body, **options)

    def delete(self, key: str, **options: Any) -> None:
        self._counts.add("delete")
        super().delete(key, **options)

    def list(self, prefix: str, **options: Any) -> Iterator[Any]:
        found = list(super().list(prefix, **options))
        for _ in range(0, max(1, len(found)), PAGE):
            self._counts.add("list")
        return iter(found)


class QuietTender(Tender):
    """A tender whose clock stands still while it keeps house beside its turns."""

    keeping = False

    def _housekeeping_due(self) -> bool:
        self.keeping = super()._housekeeping_due()
        return self.keeping

    def _keep_house(self) -> None:
        try:
            super()._keep_house()
        finally:
            self.keeping = False


class Bench:
    """A sysdb of so many tasks, a heap, and the services."""

    def __init__(self, tasks: int) -> None:
        cluster = "bench-" + uuid.uuid4().hex[:8]
        self.clock = Clock(cluster)
        self.counts = Counts(self.clock)
        self.db = CountedDb(open_database(f"memory:bench-{uuid.uuid4().hex}"), self.counts)
        self.sysdb = SysDb(self.db, cluster, shards=SHARDS, sessions=LocalSessions(), clock=self.clock)
        self.heap = Heap(CountedStore(self.counts), self.sysdb, threads=0, linger=0, sleep=self.clock.sleep)
        self.tasks = tasks
        self.waiting: list[str] = []  # partitions of tasks that wait for a write
        self.tender = QuietTender(self.heap, self.sysdb, ownership=Everything(SHARDS))
        self.scheduler = self._scheduler()

    def _scheduler(self) -> Scheduler:
        heap = Heap(self.heap.store, self.sysdb, threads=0, linger=0, sleep=self.clock.sleep)
        return Scheduler(heap, self.sysdb, lambda *_: None, concurrency=0, ownership=Everything(SHARDS))

    def build(self) -> float:
        """All tasks in their states; requests for each 1,000 of them."""
        ids = [uuid.UUID(int=(number + 1) << 64 | number) for number in range(self.tasks)]
        for page in _pages(range(self.tasks)):
            self._each(page, lambda tr, at, n: t.create(tr, at, ids[n], _row(n), b""))
        self.tender.turn(prune=False, reconcile=False)
        requests = sum(n for kind, n in self.counts.take()[0].items() if kind != "transactions")
        for page in _pages(range(self.tasks)):
            self._each(page, lambda tr, at, n: self._settled(tr, at, ids[n], n))
        for page in _pages([n for n in range(self.tasks) if _kind(n) == "scheduled"]):
            self._each(page, lambda tr, at, n: self.sysdb.record_write(tr, f"p{n}"))
        self.tender.turn(prune=False, reconcile=False)
        self.waiting = [f"p{n}" for n in range(self.tasks) if _kind(n) == "waiting"]
        self.clock.sleep(130)
        self.tender.turn()
        self.scheduler.turn()
        self.counts.take()
        return requests / self.tasks * 1000

    def _each(self, numbers: Sequence[int], step: Callable[[Any, Any, int], Any]) -> None:
        self.sysdb.tick()
        layout = self.sysdb.layout
        run(self.db, lambda tr: [step(tr, layout, n) for n in numbers] and None)

    def _settled(self, tr: Any, at: Any, task: uuid.UUID, number: int) -> None:
        kind = _kind(number)
        if kind != "paused":
            row = t.load_existing(tr, at, task)
            claim, _ = t.claim(tr, at, item_of(task, row), "bench", lambda *_: False)
            if kind == "dead":
                t.fail(tr, at, task, claim.gen, claim.epoch, "dead for good")
            else:
                t.finish(tr, at, task, claim.gen, claim.epoch, None)
        if kind in ("paused", "waiting-paused"):
            t.change(tr, at, "pause", task, lambda row, _tail, _now: replace(row, paused=True))

    def write(self, partitions: Sequence[str]) -> tuple[Counter[str], Counter[str]]:
        """Write to partitions, let tender and scheduler do what follows; what each asked for."""

        def wrote(tr: Any) -> None:
            for partition in partitions:
                self.sysdb.record_write(tr, partition)

        run(self.db, wrote)
        self.counts.take()
        report = self.tender.turn(prune=False, reconcile=False)
        assert (report.swept, report.pushed) == (len(partitions), len(partitions)), report
        pushed, _ = self.counts.take()
        started = self.scheduler.turn().started
        assert started == len(partitions), started
        ran, _ = self.counts.take()
        return pushed, ran

    def idle(self, service: Any) -> tuple[Counter[str], dict[str, int]]:
        """An hour of a service that has nothing to do."""
        now = [0.0]

        def sleep(seconds: float) -> None:
            while getattr(service, "keeping", False):
                pass
            now[0] += seconds
            self.clock.sleep(seconds)
            if now[0] >= HOUR:
                service.stop()

        def rang(bells: Any, seconds: float) -> bool:
            if bells.wait(0):
                return True
            sleep(seconds)
            return False

        service._monotonic = lambda: now[0]
        service._rang = rang
        service._wait = sleep
        self.counts.take()
        service.run()
        return self.counts.take()


def _kind(number: int) -> str:
    place = number % 20
    if place < 11:
        return "waiting"
    if place < 13:
        return "waiting-paused"
    if place < 17:
        return "scheduled"
    return "dead" if place == 19 else "paused"


def _row(number: int) -> TaskRow:
    cadence = FAR if _kind(number) == "scheduled" else 0.0
    attempts = 1 if _kind(number) == "dead" else 5
    return new_row(f"p{number}", "t", cadence, 1, None, 0.0, None, attempts, "skip", "once", b"")


def _pages(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    return (numbers[at : at + 200] for at in range(0, len(numbers), 200))


def _figures(prefix: str, counted: Counter[str], runs: int = 1) -> dict[str, float]:
    requests = sum(n for kind, n in counted.items() if kind != "transactions")
    return {f"{prefix}_requests": requests / runs, f"{prefix}_transactions": counted["transactions"] / runs}


def measure(tasks: int) -> dict[str, float]:
    """Every figure for so many tasks."""
    bench = Bench(tasks)
    rows: dict[str, float] = {"tasks": tasks, "build_requests_per_1000": bench.build()}
    rows["objects"] = len(bench.heap.names())
    bench.write(bench.waiting[:1])  # the first of a bucket looks for what is there
    bench.clock.sleep(1)
    pushed, ran = bench.write(bench.waiting[1:2])
    rows |= _figures("push", pushed) | _figures("run", ran)
    bench.clock.sleep(1)
    batch = bench.waiting[2 : 2 + BATCH]
    pushed, ran = bench.write(batch)
    rows |= _figures("batch_push", pushed, len(batch)) | _figures("batch_run", ran, len(batch))
    bench.clock.sleep(130)
    bench.tender.turn()  # the items of these runs go
    tender = QuietTender(bench.heap, bench.sysdb, ownership=Everything(SHARDS))
    tender._monotonic = lambda: 0.0
    tender.turn()  # a tender's first turn compares heap and sysdb
    for name, service in (("tender", tender), ("scheduler", bench._scheduler())):
        counted, dearest = bench.idle(service)
        rows |= _figures(f"idle_{name}", counted)
        rows |= {f"idle_{name}_minute_{what}": n for what, n in dearest.items()}
    return rows


def main() -> int:
    """Print the figures of each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, nargs="*", default=[1_000, 10_000, 100_000])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = []
    for tasks in options.tasks:
        found.append(measure(tasks))
        print(f"# {tasks:,} tasks counted", file=sys.stderr)
    if options.json:
        print(json.dumps(found))
        return 0
    for name in found[0]:
        print(f"{name:34}" + "".join(f"{rows[name]:14,.2f}" for rows in found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
