"""The heap beside its S3 server's own rate, in one run on this machine: `nox -s bench -- heap`.

Rows, against a SeaweedFS started for the run (`--url` and `--endpoint-url` name another server):

- put: conditional PUTs of an object as large as the heap's, from as many threads as the heap uses; objects per second,
  and what that would be in items: the server's own limit
- push: items put on the heap by one process, `--shards` shards, groups of `--group`; per second, and the 99th percentile of
  a group's time from call to acknowledgement
- latency: a write's commit to the start of its run, over the cadence, with a tender and a scheduler as they are by
  default; 99th percentile, seconds
- slow: the same on a store in memory whose PUTs and DELETEs take 50 ms, GETs 25, LISTs 40, behind `--ahead` objects of paused tasks
- live: items on one shard, `--live` of them: the time to push them all and to look at the first 100
- idle: `--idle` tasks that wait: what one turn of tender and scheduler requests of the store, and takes
- scan: a due scan of 16 shards: LISTs and GETs of the first one, and of the next
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from fdb_schema import open_database
from idempotent_txn import run
from s3heap_tender import Heap, HeapItem, HeapStore, Scheduler, SysDb, Tender
from s3heap_tender.claims.sessions import LocalSessions
from s3heap_tender.devserver import BUCKET, DevServer
from s3heap_tender.rows.items import RECORD_BYTES, ObjectHeader, encode_object
from s3heap_tender.rows.naming import ObjectName
from s3heap_tender.rows.settings import new_row
from s3heap_tender.rows.states import State
from s3heap_tender.stores.memory import MemoryStore
from s3heap_tender.stores.opening import CLIENTS

GATES = {
    "push_rate": (">=", 30_000.0),
    "push_p99_ms": ("<=", 250.0),
    "latency_p99_s": ("<=", 2.0),
    "slow_latency_p99_s": ("<=", 2.0),
    "live_items": (">=", 100_000.0),
    "idle_items": ("<=", 0.0),
    "idle_requests": ("<=", 32.0),  # the poll of tender and scheduler: one LIST a shard
    "scan_lists": ("<=", 16.0),
    "scan_gets_per_object": ("<=", 1.0),
    "scan_again_lists": ("<=", 16.0),
    "scan_again_gets": ("<=", 0.0),
}


ROWS = ("put", "push", "latency", "slow", "live", "idle", "scan")


class SlowStore(MemoryStore):
    """A store in memory that answers as late as one that is far away."""

    def get(self, key: str, **options: Any) -> Any:
        time.sleep(0.025)
        return super().get(key, **options)

    def put(self, key: str, body: bytes, **options: Any) -> str:
        time.sleep(0.05)
        return super().put(key, body, **options)

    def delete(self, key: str, **options: Any) -> None:
        time.sleep(0.05)
        super().delete(key, **options)

    def list(self, prefix: str, **options: Any) -> Iterator[Any]:
        found = list(super().list(prefix, **options))
        time.sleep(0.04 * max(1, -(-len(found) // 1000)))
        return iter(found)


class Bench:
    """A database, a server and a store, and what is measured of them."""

    def __init__(self, options: argparse.Namespace, directory: Path, stack: ExitStack) -> None:
        self.options = options
        self.directory = directory
        self.stack = stack
        self.rows: dict[str, float] = {}
        self.db = open_database(f"embedded:{directory / 'db'}")
        self._url, self._options = "memory:", {}
        if options.only == "slow":
            return
        if options.url is None:
            server = stack.enter_context(DevServer(directory / "s3"))
            self._url, self._options = f"s3://{BUCKET}", {**server.options, "client": options.client}
        else:
            self._url, self._options = options.url.rstrip("/"), {"client": options.client}
            if options.endpoint_url:
                self._options["endpoint_url"] = options.endpoint_url

    def store(self) -> HeapStore:
        """A new store under a prefix of its own."""
        return self.stack.enter_context(HeapStore(f"{self._url}/{uuid.uuid4().hex}", **self._options))

    def heap(self, shards: int, **options: Any) -> Heap:
        """A new heap on a new sysdb."""
        sysdb = SysDb(self.db, f"bench-{uuid.uuid4().hex[:8]}", shards=shards, sessions=LocalSessions())
        heap: Heap = self.stack.enter_context(Heap(self.store(), sysdb, **options))
        return heap

    def items(self, heap: Heap, shard: int, count: int, rng: random.Random, due_ms: int) -> list[HeapItem]:
        """Items of one shard."""
        found: list[HeapItem] = []
        while len(found) < count:
            task = uuid.UUID(int=rng.getrandbits(128))
            if heap.sysdb.layout.shard_of(task) == shard:
                found.append(HeapItem(task, task, 1, due_ms))
        return found

    def put(self, threads: int, size: int) -> float:
        """Objects of `size` bytes per second, each thread replacing its own under its ETag."""
        store = self.store()
        seconds: float = self.options.seconds
        counts = [0] * threads
        end = time.monotonic() + self.options.seconds

        def work(index: int) -> None:
            etag = None
            sequence = 0
            while time.monotonic() < end:
                body = sequence.to_bytes(8, "big") + os.urandom(size - 8)
                etag = store.put(f"raw-{index}", body, if_match=etag)
                sequence += 1
            counts[index] = sequence

        self._threads(threads, work)
        return sum(counts) / seconds

    def push(self, shards: int, group: int) -> tuple[float, float, float]:
        """Items per second, the 99th percentile of a push in ms, and the mean size of the objects written."""
        heap = self.heap(shards)
        rng = random.Random(1)
        due = heap.sysdb.now_micro() // 1000
        ready = [[self.items(heap, shard, group, rng, due) for _ in range(40)] for shard in range(shards)]
        times: list[float] = []
        counts = [0] * shards
        end = time.monotonic() + self.options.seconds

        def work(shard: int) -> None:
            number = 0
            while time.monotonic() < end:
                # Another due time makes other items of the same tasks, so that objects fill as they would.
                number += 1
                batch = [replace(item, due_ms=due + number) for item in ready[shard][number % 40]]
                began = time.monotonic()
                heap.push(batch)
                times.append(time.monotonic() - began)
                counts[shard] += group

        self._threads(shards, work)
        names = heap.buckets()
        size = statistics.mean(bucket.size for bucket in names) if names else 0.0
        times.sort()
        return sum(counts) / self.options.seconds, times[int(len(times) * 0.99)] * 1000, size

    def slow(self, ahead: int) -> Heap:
        """A heap on a slow store, with so many objects before everything that is due."""
        sysdb = SysDb(self.db, f"bench-{uuid.uuid4().hex[:8]}", shards=16, sessions=LocalSessions())
        store = SlowStore()
        heap: Heap = self.stack.enter_context(Heap(store, sysdb, bucket_seconds=1))
        ids = [uuid.UUID(int=(n + 1) << 64 | n) for n in range(ahead)]
        now = self.write_rows(sysdb, ids, State.SCHEDULED, paused=True) // 1000
        for n, id in enumerate(ids):
            header = ObjectHeader(n % 16, n // 16, 0, 0, n, b"bench")
            body = encode_object(header, [HeapItem(ids[0], id, 1, now).pack()])
            MemoryStore.put(store, ObjectName(n % 16, n // 16).key, body, if_match=None)
        return heap

    def latency(self, partitions: int, cadence: float, writes: int, heap: Heap | None = None) -> list[float]:
        """Seconds from a write's commit to the start of its run, over what the cadence made it wait."""
        heap = self.heap(16) if heap is None else heap
        sysdb = heap.sysdb
        started: dict[uuid.UUID, list[float]] = {}

        def trigger(task: Any, gen: int, epoch: int) -> None:
            started.setdefault(task.partition, []).append(time.monotonic())

        tasks = [sysdb.create_task(f"p{n}", "t", cadence=cadence) for n in range(partitions)]
        services: list[Any] = [Tender(heap, sysdb), Scheduler(heap, sysdb, trigger)]
        threads = [threading.Thread(target=service.run) for service in services]
        for thread in threads:
            thread.start()
        try:
            _until(lambda: len(started) == partitions)
            rng = random.Random(2)
            waits = []
            for _ in range(writes):
                task = rng.choice(tasks)
                began = started[task.partition][-1]
                before = len(started[task.partition])
                run(self.db, sysdb.record_write, task.partition)
                written = time.monotonic()
                _until(lambda t=task, b=before: len(started[t.partition]) > b)
                waits.append(started[task.partition][before] - max(written, began + cadence))
        finally:
            for service in services:
                service.stop()
            for thread in threads:
                thread.join()
        return waits

    def live(self, count: int) -> tuple[float, float, int]:
        """Seconds to push `count` items to one shard, seconds to peek at the first of them, objects they take."""
        heap = self.heap(1)
        sysdb = heap.sysdb
        rng = random.Random(3)
        ids = [uuid.UUID(int=rng.getrandbits(128)) for _ in range(count)]
        now = self.write_rows(sysdb, ids, State.SCHEDULED)
        items = [HeapItem(ids[0], id, 1, now // 1000) for id in ids]
        began = time.monotonic()
        for at in range(0, count, 4096):
            heap.push(items[at : at + 4096])
        pushed = time.monotonic() - began
        began = time.monotonic()
        assert len(heap.peek(100)) == 100
        return pushed, time.monotonic() - began, len(heap.buckets())

    def idle(self, count: int) -> tuple[float, float, float]:
        """Items on the heap, requests of a turn of tender and scheduler, seconds it takes."""
        heap = self.heap(16)
        rng = random.Random(4)
        self.write_rows(heap.sysdb, [uuid.UUID(int=rng.getrandbits(128)) for _ in range(count)], State.WAITING)
        tender = Tender(heap, heap.sysdb)
        scheduler = Scheduler(heap, heap.sysdb, lambda task, gen, epoch: None, concurrency=0)
        tender.turn()
        before = sum(heap.io.requests.values())
        began = time.monotonic()
        for _ in range(10):
            tender.turn(prune=False, reconcile=False)
            scheduler.turn()
        taken = (time.monotonic() - began) / 10
        return heap.summary().items, (sum(heap.io.requests.values()) - before) / 10, taken

    def scan(self) -> tuple[dict[str, int], dict[str, int], float, float]:
        """Requests of a first and of a second due scan of 16 shards with 5 buckets each, and their seconds."""
        heap = self.heap(16, bucket_seconds=1)
        rng = random.Random(5)
        due = heap.sysdb.now_micro() // 1000
        for bucket in range(5):
            for shard in range(16):
                heap.push(self.items(heap, shard, 50, rng, due + bucket * 1000))
        fresh: Heap = self.stack.enter_context(Heap(heap.store, heap.sysdb))
        found = []
        for _ in range(2):
            before = dict(fresh.io.requests)
            began = time.monotonic()
            before_s = fresh.sysdb.now_micro() // 1_000_000 + 10  # a slow machine pushed some to later buckets
            contents = list(fresh.scan(before=before_s))
            assert sum(len(content.records) for content in contents) == 4000
            taken = time.monotonic() - began
            asked = {kind: fresh.io.requests[kind] - before[kind] for kind in before}
            found.append(({**asked, "objects": len(contents)}, taken))
        (first, first_taken), (again, again_taken) = found
        return first, again, first_taken, again_taken

    def write_rows(self, sysdb: SysDb, ids: list[uuid.UUID], state: State, *, paused: bool = False) -> int:
        """Tasks written as they would be after a while, without a transaction each."""
        now = sysdb.now_micro()
        row = new_row("p", "t", 60.0, 1, None, 0.0, None, 5, "skip", "once", b"")
        live = 2 if state is State.WAITING else 1
        data = replace(row, state=state, due=now // 1000 * 1000, live_gen=live, paused=paused).encode()
        keys = sysdb.layout.keys
        for at in range(0, len(ids), 2000):
            page = ids[at : at + 2000]
            run(self.db, lambda tr, page=page: [tr.set(keys.task(id), data) for id in page])
        return now

    def _threads(self, count: int, work: Any) -> None:
        with ThreadPoolExecutor(count) as pool:
            for future in [pool.submit(work, index) for index in range(count)]:
                future.result()


def _until(condition: Any) -> None:
    end = time.monotonic() + 120
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the run did not come within two minutes")
        time.sleep(0.002)


def measure(bench: Bench, options: argparse.Namespace) -> dict[str, float]:
    """Every chosen row."""
    rows: dict[str, float] = {}
    chosen = set(options.only.split(",")) if options.only else set(ROWS)
    if chosen & {"put", "push"}:
        rate, p99, size = bench.push(options.shards, options.group)
        puts = bench.put(options.shards, max(RECORD_BYTES, int(size)))
        rows["push_rate"], rows["push_p99_ms"], rows["object_bytes"] = rate, p99, size
        rows["put_rate"] = puts
        rows["push_groups_per_put"] = rate / options.group / puts
    if "latency" in chosen:
        waits = sorted(bench.latency(options.partitions, options.cadence, options.writes))
        rows["latency_p50_s"] = statistics.median(waits)
        rows["latency_p99_s"] = waits[int(len(waits) * 0.99)]
    if "slow" in chosen:
        heap = bench.slow(options.ahead)
        waits = sorted(bench.latency(options.partitions, options.cadence, options.writes, heap))
        rows["slow_latency_p50_s"] = statistics.median(waits)
        rows["slow_latency_p99_s"] = waits[int(len(waits) * 0.99)]
    if "live" in chosen:
        rows["live_items"] = options.live
        rows["live_push_s"], rows["live_peek_s"], rows["live_objects"] = bench.live(options.live)
    if "idle" in chosen:
        rows["idle_items"], rows["idle_requests"], rows["idle_turn_s"] = bench.idle(options.idle)
    if "scan" in chosen:
        first, again, first_taken, again_taken = bench.scan()
        rows["scan_lists"], rows["scan_gets"], rows["scan_s"] = first["list"], first["get"], first_taken
        rows["scan_gets_per_object"] = first["get"] / first["objects"]
        rows["scan_again_lists"], rows["scan_again_gets"], rows["scan_again_s"] = (
            again["list"],
            again["get"],
            again_taken,
        )
    return rows


def main() -> int:
    """Print the rows, and whether each target is met; exit 1 where one is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of the rates")
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--group", type=int, default=500)
    parser.add_argument("--partitions", type=int, default=20)
    parser.add_argument("--cadence", type=float, default=1.0)
    parser.add_argument("--writes", type=int, default=40)
    parser.add_argument("--live", type=int, default=100_000)
    parser.add_argument("--idle", type=int, default=100_000)
    parser.add_argument("--only", help="rows, separated by commas: " + ", ".join(ROWS))
    parser.add_argument("--ahead", type=int, default=1_600)
    parser.add_argument("--url", help="s3://bucket/prefix of a server that runs, instead of a SeaweedFS")
    parser.add_argument("--endpoint-url")
    parser.add_argument("--client", default=CLIENTS[0], choices=CLIENTS, help="what speaks to the S3 server")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-heap-") as directory, ExitStack() as stack:
        rows = measure(Bench(options, Path(directory), stack), options)
    missed = []
    for name, (comparison, target) in GATES.items():
        if name in rows:
            met = rows[name] >= target if comparison == ">=" else rows[name] <= target
            if not met:
                missed.append(name)
    if options.json:
        print(
            json.dumps(
                {
                    "rows": rows,
                    "missed": missed,
                    "targets": GATES,
                    "client": options.client,
                    "cpus": os.cpu_count(),
                    "python": platform.python_version(),
                }
            )
        )
    else:
        load = "/".join(f"{figure:.1f}" for figure in os.getloadavg())
        print(f"# {options.client}, {os.cpu_count()} CPUs, load average {load}, Python {platform.python_version()}")
        for name, value in rows.items():
            verdict = ""
            if name in GATES:
                comparison, target = GATES[name]
                verdict = f"  target {comparison} {target:g}: {'MISSED' if name in missed else 'met'}"
            print(f"{name:22} {value:12,.3f}{verdict}")
        reached = sum(name in rows for name in GATES) - len(missed)
        print(f"# targets: {reached} met, {len(missed)} missed" + (f": {', '.join(missed)}" if missed else ""))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
