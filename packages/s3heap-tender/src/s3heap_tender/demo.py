"""A demonstration with real processes: writes at random while tender, scheduler and S3 server are killed in turn.

    python -m s3heap_tender.demo --partitions 1000 --seconds 30

ends with every write covered, no cadence broken and the heap empty, or exits with 1 and says what went wrong. Each
process is ended by SIGKILL, at any moment, and started again.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fdb_schema import open_database
from fdb_schema.serving.private_files import private_opener
from fdb_schema.serving.processes import dying_with_parent
from idempotent_txn import run
from s3heap_tender import history
from s3heap_tender.devserver import BUCKET, DevServer
from s3heap_tender.errors import StoreUnavailableError
from s3heap_tender.heap import Heap
from s3heap_tender.rows.records import Task
from s3heap_tender.scheduler import Scheduler
from s3heap_tender.stores import HeapStore
from s3heap_tender.sysdb import SysDb
from s3heap_tender.tender import Tender
from s3heap_tender.trace import VARIABLE

CLUSTER: Final = "demo"
BUCKET_SECONDS: Final = 2
SHARDS: Final = 4
MOST_PATIENCE: Final = 10.0


@dataclass
class Report:
    """What a demonstration ended with."""

    writes: int = 0
    runs: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


def do_nothing(task: Task, gen: int, epoch: int) -> None:
    """The demonstration's task."""


def serve(role: str, url: str, cluster: str, store: str, endpoint: str | None) -> None:
    """One service process: "tender" or "scheduler". It meets a store that is down at its start by trying again."""
    while True:
        try:
            heap = open_heap(url, cluster, store, endpoint)
            break
        except ConnectionError:
            time.sleep(0.2)
    with heap.sysdb, heap:
        if role == "tender":
            Tender(heap, heap.sysdb, poll=0.05, prune_every=1.0).run()
        else:
            Scheduler(heap, heap.sysdb, do_nothing, concurrency=8, poll=0.05).run()


def open_heap(url: str, cluster: str, store: str, endpoint: str | None) -> Heap:
    """The demonstration's sysdb and heap."""
    from s3heap_tender.devserver import ACCESS_KEY, SECRET_KEY

    options: dict[str, Any] = {}
    if endpoint is not None:
        options = {"endpoint_url": endpoint, "access_key": ACCESS_KEY, "secret_key": SECRET_KEY, "timeout": 5.0}
    sysdb = SysDb(open_database(url), cluster, shards=SHARDS)
    return Heap(HeapStore(store, **options), sysdb, bucket_seconds=BUCKET_SECONDS)


class Services:
    """The processes, each killed and started again by name."""

    def __init__(self, directory: Path, url: str, cluster: str, store: str, server: DevServer | None) -> None:
        self.directory = directory
        self.server = server
        self.trace = directory / "trace.jsonl"
        self._arguments = [url, cluster, store, *([] if server is None else [server.endpoint_url])]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        if name == "s3":
            assert self.server is not None
            self.server.start()
            return
        code = "import sys; from s3heap_tender.demo import serve; serve(*sys.argv[1:5], (sys.argv[5:] or [None])[0])"
        with open(self.directory / f"{name}.log", "ab", opener=private_opener) as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-P", "-c", code, name, *self._arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, VARIABLE: str(self.trace)},
                start_new_session=True,
                preexec_fn=dying_with_parent(signal.SIGKILL),  # it never runs on after a demonstration that was killed
            )

    def kill(self, name: str) -> None:
        if name == "s3":
            assert self.server is not None
            self.server.kill()
            return
        process = self.processes.pop(name, None)
        if process is not None:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()

    def close(self) -> None:
        for name in list(self.processes):
            self.kill(name)
        if self.server is not None:
            self.server.kill()


def demonstrate(
    directory: Path,
    *,
    partitions: int = 1000,
    seconds: float = 30.0,
    cadence: float = 1.0,
    seed: int = 0,
    s3: bool = True,
    kill_every: float = 2.0,
    drain_seconds: float = 300.0,
    db: str | None = None,
    say: Callable[[str], None] = print,
) -> Report:
    """Write at random for `seconds` while services are killed, then wait until nothing is left, and check.

    `db` is the URL of a database to be used, under a cluster name of the demonstration's own; by default it makes one.
    """
    report = Report()
    began = time.monotonic()
    server = DevServer(directory / "s3", dies_with_parent=True).start(say=say) if s3 else None
    url = db or f"embedded:{directory / 'db'}"
    cluster = f"{CLUSTER}-{secrets.token_hex(4)}"
    store = f"s3://{BUCKET}/demo" if s3 else f"file:{directory / 'heap'}"
    services = Services(directory, url, cluster, store, server)
    os.environ[VARIABLE] = str(services.trace)
    try:
        heap = open_heap(url, cluster, store, None if server is None else server.endpoint_url)
        sysdb = heap.sysdb
        say(f"making {partitions} tasks, then starting a tender and a scheduler")
        for number in range(partitions):
            sysdb.create_task(f"p{number}", "demo", cadence=cadence)
        services.start("tender")
        services.start("scheduler")
        say(f"{partitions} partitions, one task each, cadence {cadence:g} s; writing for {seconds:g} s (seed {seed})")
        names = ["tender", "scheduler", *(["s3"] if s3 else [])]
        _write_and_kill(sysdb, services, names, random.Random(seed), partitions, seconds, kill_every, report)
        say(f"{report.writes} writes; killed: {dict(report.kills)}; draining")
        _drain(heap, time.monotonic() + drain_seconds, report, say)
        for name in ("scheduler", "tender"):
            services.kill(name)
        report.runs = sysdb.stats().get("starts", 0)
        report.problems.extend(_left_over(heap, services.trace))
        heap.close()
        sysdb.close()
        heap.store.close()
    finally:
        os.environ.pop(VARIABLE, None)
        services.close()
    report.seconds = time.monotonic() - began
    return report


def _write_and_kill(
    sysdb: SysDb,
    services: Services,
    names: list[str],
    rng: random.Random,
    partitions: int,
    seconds: float,
    kill_every: float,
    report: Report,
) -> None:
    """Write for so long, and kill the services of these names in turn: each at least once, also where the machine is slow."""
    end = time.monotonic() + seconds
    kill_at = time.monotonic() + kill_every
    turn = known_starts = 0
    while time.monotonic() < end or len(report.kills) < len(names):
        chosen = [f"p{rng.randrange(partitions)}" for _ in range(10)]
        run(sysdb.db, _write, sysdb, chosen)
        report.writes += len(chosen)
        time.sleep(rng.random() * 0.04)
        if time.monotonic() >= kill_at:
            # Something ran since the last kill, or it is long ago: else a slow machine would only ever start services.
            starts = sysdb.stats().get("starts", 0)
            if starts == known_starts and time.monotonic() < kill_at + MOST_PATIENCE:
                continue
            known_starts = starts
            name = names[turn % len(names)]
            turn += 1
            services.kill(name)
            report.kills[name] += 1
            services.start(name)
            kill_at = time.monotonic() + kill_every * rng.uniform(0.5, 1.5)


def _left_over(heap: Heap, trace: Path) -> Iterator[str]:
    """What is on the heap though everything was done, what no run has read, and what the history shows of broken rules."""
    heap.prune()
    left = heap.summary().items
    if left:
        yield f"{left} items are left on the heap"
    for task in heap.sysdb.tasks():
        unread = heap.sysdb.log_end(task.partition) - task.completion_offset
        if task.state != "waiting" or unread:
            yield f"task {task.id} is {task.state} with {unread} writes uncovered"
    with trace.open(encoding="utf-8") as lines:
        yield from map(str, history.check(lines))


def _write(tr: Any, sysdb: SysDb, names: list[str]) -> None:
    for name in names:
        sysdb.record_write(tr, name)


def _drain(heap: Heap, deadline: float, report: Report, say: Callable[[str], None]) -> None:
    """Wait until every task waits, nothing is dirty or pending, and the heap is empty."""
    from s3heap_tender.inspection import metrics

    while True:
        found = metrics(heap.sysdb)
        try:
            if not (found.active or found.dirty_partitions or found.outbox_depth) and heap.summary().items == 0:
                return
        except (
            StoreUnavailableError
        ) as error:  # a server that was killed a moment ago answers, and can't read everything yet
            say(f"  {error}")
        if time.monotonic() > deadline:
            report.problems.append(f"not drained in time: {found}")
            return
        say(f"  {found.active} active, {found.dirty_partitions} dirty, {found.outbox_depth} to be pushed")
        time.sleep(1.0)


def main(arguments: list[str] | None = None) -> int:
    """Run the demonstration; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m s3heap_tender.demo", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to write")
    parser.add_argument("--cadence", type=float, default=1.0, help="seconds between the starts of a task")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--file", action="store_true", help="a heap in a directory instead of an S3 server")
    parser.add_argument("--db", help="URL of a database to use, such as fdb: (without it one is made)")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="s3heap-demo-") as directory:
        report = demonstrate(
            Path(directory),
            partitions=chosen.partitions,
            seconds=chosen.seconds,
            cadence=chosen.cadence,
            seed=chosen.seed,
            s3=not chosen.file,
            db=chosen.db,
        )
    print(
        f"{report.writes} writes caused {report.runs} runs in {report.seconds:.0f} s; "
        f"killed: {', '.join(f'{name} {count}×' for name, count in report.kills.items()) or 'nothing'}"
    )
    for problem in report.problems[:20]:
        print(f"PROBLEM: {problem}")
    print("every write is covered, no cadence was broken, the heap is empty" if not report.problems else "FAILED")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
