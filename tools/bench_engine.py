"""The embedded engine beside raw LMDB, SQLite and, where one is found, a real cluster, in one run.

    python tools/bench_engine.py [--rounds 7] [--seconds 0.25] [--clock cpu] [--only work,clients,many,flush] [--json]

| part | what |
|---|---|
| work | one client: set a key; read and set one; get one; read a range of 100; set and commit 10,000 rows in bulk |
| clients | transactions that set one key: 1, 2, 4 and 16 clients, as threads of one process and as processes; 16 processes that read and set one |
| many | four processes with 32 transactions in flight each |
| flush | durable commits of 1, 4, 16 and 64 threads, beside the time that a flush of the same disk takes; by processor time |

Contestants: `lmdb` (raw, one put or get per transaction, not flushed), `lmdb sync`, `sqlite` (WAL, not flushed; `begin immediate` and
`commit` are statements of their own, for a set also `sqlite auto`, one statement that commits itself) and `sqlite full`, the engine with `memory`, `process` and `fsync` durability, and `cluster` where `--cluster FILE` or
`FDB_CLUSTER_FILE` names one and its client is installed (keys under `bench-engine/` are cleared there). What isn't
flushed lies in memory-backed storage, what is flushed under `--disk`.

The contestants take turns within every round; a figure is the median over the rounds, and a ratio the median over the
rounds of the ratio within a round, so that what else the machine does falls on all of them. `--clock cpu` counts the
processor time of the clients for `work` and `clients`, on a machine that others use too.

Where a target speaks of the prototype, what is judged is the rate by that of raw LMDB in the same round, against the same
ratio of the prototype, as it was measured side by side with this benchmark; where it speaks of SQLite, the rate by SQLite's in the
same round, whichever of its two ways to set a key is faster there.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import json
import multiprocessing
import os
import shutil
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import lmdb

import fdb_embedded
from fdb_schema.client_library import select_api_version

KEYS: Final = 20_000
VALUE: Final = b"x" * 100
STEP: Final = 7_919
RANGE: Final = 100
BULK_ROWS: Final = 10_000
IN_FLIGHT: Final = 32
PREFIX: Final = b"bench-engine/"
CLIENTS: Final = (1, 2, 4, 16)
FLUSHERS: Final = (1, 4, 16, 64)
JUDGED_BY_DISK: Final = (16, 64)
UPDATERS: Final = f"{CLIENTS[-1]} updating"
"""The case of as many processes that each read and set a key."""

PROTOTYPE: Final = {
    "set": 0.105,
    "update": 0.100,
    "get": 0.100,
    "range": 0.200,
    "2 processes": 0.112,
    "4 processes": 0.102,
}
"""The prototype's rate by raw LMDB's, for the same work on the same machine in the same minutes."""

Unit = Callable[[int], object]
"""One transaction; the argument chooses its keys."""


def key(n: int) -> bytes:
    """One of the bench's keys."""
    return PREFIX + b"%08d" % (n * STEP % KEYS)


# --- contestants: each makes the units of work of one client


class Lmdb:
    """py-lmdb, as directly as it can be used."""

    def __init__(self, folder: Path, sync: bool) -> None:
        folder.mkdir(exist_ok=True)
        self.env = lmdb.open(str(folder), map_size=1 << 30, sync=sync, writemap=not sync, max_readers=512)

    def fill(self) -> None:
        with self.env.begin(write=True) as txn:
            for n in range(KEYS):
                txn.put(PREFIX + b"%08d" % n, VALUE)

    def units(self) -> dict[str, Unit]:
        env = self.env

        def set_one(n: int) -> None:
            with env.begin(write=True) as txn:
                txn.put(key(n), VALUE)

        def update(n: int) -> None:
            with env.begin(write=True) as txn:
                name = key(n)
                txn.put(name, (txn.get(name) or VALUE)[:-1] + b"y")

        def get(n: int) -> None:
            with env.begin() as txn:
                txn.get(key(n))

        def read_range(n: int) -> None:
            with env.begin() as txn:
                cursor = txn.cursor()
                cursor.set_range(PREFIX + b"%08d" % (n * STEP % (KEYS - RANGE)))
                rows = []
                for row in cursor.iternext(True, True):
                    rows.append(row)
                    if len(rows) == RANGE:
                        break

        def bulk(n: int) -> None:
            rows = [(PREFIX + b"bulk%08d" % m, VALUE) for m in range(BULK_ROWS)]
            with env.begin(write=True) as txn:
                txn.cursor().putmulti(rows)

        return {"set": set_one, "update": update, "get": get, "range": read_range, "bulk": bulk}


class Sqlite:
    """SQLite in WAL mode: one connection per client."""

    def __init__(self, folder: Path, sync: bool) -> None:
        folder.mkdir(exist_ok=True)
        self.path = folder / "db"
        self.synchronous = "FULL" if sync else "OFF"
        self._connect().execute("create table if not exists kv (k blob primary key, v blob) without rowid")

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=60, isolation_level=None, check_same_thread=False)
        db.execute("pragma journal_mode=wal")
        db.execute(f"pragma synchronous={self.synchronous}")
        return db

    def fill(self) -> None:
        db = self._connect()
        db.execute("begin immediate")
        db.executemany("replace into kv values (?, ?)", [(PREFIX + b"%08d" % n, VALUE) for n in range(KEYS)])
        db.execute("commit")

    def units(self) -> dict[str, Unit]:
        run = self._connect().cursor()
        put = "replace into kv values (?, ?)"

        def set_one(n: int) -> None:
            run.execute("begin immediate")
            run.execute(put, (key(n), VALUE))
            run.execute("commit")

        def set_auto(n: int) -> None:
            run.execute(put, (key(n), VALUE))

        def update(n: int) -> None:
            name = key(n)
            run.execute("begin immediate")
            value = run.execute("select v from kv where k = ?", (name,)).fetchone()[0]
            run.execute(put, (name, value[:-1] + b"y"))
            run.execute("commit")

        def get(n: int) -> None:
            run.execute("select v from kv where k = ?", (key(n),)).fetchone()

        def read_range(n: int) -> None:
            first = PREFIX + b"%08d" % (n * STEP % (KEYS - RANGE))
            run.execute("select k, v from kv where k >= ? order by k limit ?", (first, RANGE)).fetchall()

        def bulk(n: int) -> None:
            run.execute("begin immediate")
            run.executemany(put, [(PREFIX + b"bulk%08d" % m, VALUE) for m in range(BULK_ROWS)])
            run.execute("commit")

        return {
            "set": set_one, "set auto": set_auto, "update": update, "get": get, "range": read_range, "bulk": bulk
        }  # fmt: skip


class Binding:
    """The API of the official binding, over the engine or a cluster."""

    def __init__(self, db: Any) -> None:
        self.db = db

    def fill(self) -> None:
        for start in range(0, KEYS, 1_000):
            tr = self.db.create_transaction()
            for n in range(start, start + 1_000):
                tr[PREFIX + b"%08d" % n] = VALUE
            tr.commit().wait()

    def units(self) -> dict[str, Unit]:
        db = self.db

        def set_one(n: int) -> None:
            tr = db.create_transaction()
            tr[key(n)] = VALUE
            tr.commit().wait()

        def update(n: int) -> None:
            tr = db.create_transaction()
            while True:
                try:
                    name = key(n)
                    tr[name] = tr[name].value[:-1] + b"y"
                    tr.commit().wait()
                    return
                except Exception as error:
                    if getattr(error, "code", None) is None:
                        raise
                    tr.on_error(error).wait()

        def get(n: int) -> None:
            tr = db.create_transaction()  # held: its reads end with it
            _ = tr[key(n)].value

        def read_range(n: int) -> None:
            first = n * STEP % (KEYS - RANGE)
            tr = db.create_transaction()
            rows = list(tr.get_range(PREFIX + b"%08d" % first, PREFIX + b"%08d" % (first + RANGE)))
            assert len(rows) == RANGE

        def bulk(n: int) -> None:
            tr = db.create_transaction()
            rows = [(PREFIX + b"bulk%08d" % m, VALUE) for m in range(BULK_ROWS)]
            if hasattr(tr, "set_many"):
                tr.set_many(rows)
            else:
                for name, value in rows:
                    tr[name] = value
            tr.commit().wait()

        def in_flight(n: int) -> None:
            """As many sets as are in flight at once, each its own transaction."""
            begun = []
            for m in range(IN_FLIGHT):
                tr = db.create_transaction()
                tr[key(n * IN_FLIGHT + m)] = VALUE
                begun.append((tr, tr.commit()))
            for _, commit in begun:
                commit.wait()

        return {"set": set_one, "update": update, "get": get, "range": read_range, "bulk": bulk, "in flight": in_flight}


@dataclass(frozen=True)
class Places:
    """Where the contestants of a run keep their data."""

    memory: Path
    disk: Path
    cluster: str | None


DURABLE: Final = ("lmdb sync", "sqlite full", "fsync")


def open_contestant(name: str, places: Places) -> Any:
    """A contestant as one process has it open."""
    if name.startswith("lmdb"):
        return Lmdb(places.disk / "lmdb", True) if name == "lmdb sync" else Lmdb(places.memory / "lmdb", False)
    if name.startswith("sqlite"):
        return (
            Sqlite(places.disk / "sqlite", True) if name == "sqlite full" else Sqlite(places.memory / "sqlite", False)
        )
    if name == "cluster":
        fdb = _real_client()
        return Binding(fdb.open(places.cluster))
    if name == "memory":
        return Binding(fdb_embedded.open("memory:bench-engine"))
    folder = places.disk if name == "fsync" else places.memory
    return Binding(fdb_embedded.open(str(folder / name), durability=name))


@functools.cache
def _real_client() -> Any:
    """The official binding over libfdb_c, beside the engine's own copy of it, which keeps the name `fdb`."""
    fdb_embedded.load()
    engines = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "fdb"}
    try:
        client: Any = importlib.import_module("fdb")
        select_api_version(client)
    finally:
        sys.modules.update(engines)
    return client


def contestants(cluster: str | None) -> list[str]:
    """Those of this run; the cluster only where its client can be loaded."""
    names = ["lmdb", "sqlite", "memory", "process", "lmdb sync", "sqlite full", "fsync"]
    if cluster is not None:
        try:
            _real_client()
            names.append("cluster")
        except Exception as error:
            print(f"no cluster in this run: {error}", file=sys.stderr)
    return names


# --- clients: threads of this process, or processes


@dataclass
class Measured:
    """What some clients did in a window."""

    count: int
    seconds: float
    cpu: float

    def rate(self, clock: str) -> float:
        """Transactions a second, of the wall's seconds or of the clients' processor time."""
        return self.count / max(1e-9, self.cpu if clock == "cpu" else self.seconds)


def work_until(unit: Unit, first: int, start: float, end: float) -> int:
    """How many times `unit` ran between two moments of the monotonic clock: once at least."""
    time.sleep(max(0.0, start - time.monotonic()))
    count = 0
    while not count or time.monotonic() < end:
        unit(first + count)
        count += 1
    return count


def by_threads(units: Sequence[Unit], seconds: float) -> Measured:
    """Each unit of work by a thread of its own; one alone by this thread."""
    if len(units) == 1:
        begun, cpu = time.monotonic(), time.process_time()
        count = work_until(units[0], 0, begun, begun + seconds)
        return Measured(count, time.monotonic() - begun, time.process_time() - cpu)
    counts = [0] * len(units)
    start = time.monotonic() + 0.02
    end = start + seconds

    def client(number: int) -> None:
        counts[number] = work_until(units[number], number * 1_000_003, start, end)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(len(units))]
    cpu = time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Measured(sum(counts), time.monotonic() - start, time.process_time() - cpu)


def serve(pipe: Any, places: Places, number: int) -> None:
    """A client process: does what it is told until the pipe ends."""
    opened: dict[str, dict[str, Unit]] = {}
    with contextlib.suppress(EOFError):
        while True:
            name, work, start, seconds = pipe.recv()
            if name not in opened:
                opened[name] = open_contestant(name, places).units()
            unit = opened[name][work]
            unit(number)
            if not seconds:
                pipe.send((0, 0.0, 0.0))
                continue
            cpu = time.process_time()
            count = work_until(unit, number * 1_000_003, start, start + seconds)
            pipe.send((count, time.monotonic() - start, time.process_time() - cpu))


@dataclass
class Crowd:
    """Client processes, started when they are first needed."""

    places: Places
    pipes: list[Any] = field(default_factory=list)
    processes: list[Any] = field(default_factory=list)

    def measure(self, name: str, work: str, clients: int, seconds: float) -> Measured:
        """The same work by so many processes at once."""
        context = multiprocessing.get_context("spawn")
        while len(self.processes) < clients:
            mine, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, self.places, len(self.processes)), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(mine)
            self.processes.append(process)
        for window in (0.0, seconds):  # first only so that all have it open
            start = time.monotonic() + 0.05
            for pipe in self.pipes[:clients]:
                pipe.send((name, work, start, window))
            answers = [pipe.recv() for pipe in self.pipes[:clients]]
        return Measured(sum(a[0] for a in answers), max(a[1] for a in answers), sum(a[2] for a in answers))

    def end(self) -> None:
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(30)


# --- figures


@dataclass
class Figures:
    """Rates of every round, by (part, case, contestant)."""

    rates: dict[tuple[str, str, str], list[float]] = field(default_factory=dict)

    def add(self, part: str, case: str, name: str, rate: float) -> None:
        self.rates.setdefault((part, case, name), []).append(rate)

    def median(self, part: str, case: str, name: str) -> float:
        return statistics.median(self.rates[part, case, name])

    def ratio(self, part: str, case: str, name: str, base: str = "lmdb", base_case: str | None = None) -> float:
        """The median of the rounds' ratios."""
        mine, theirs = self.rates[part, case, name], self.rates[part, base_case or case, base]
        return statistics.median(a / b for a, b in zip(mine, theirs, strict=True))


def flush_seconds(folder: Path, window: float) -> float:
    """The mean time of a flush of a small write into allocated blocks, on the disk of the durable contestants."""
    fd = os.open(folder / "flushed", os.O_WRONLY | os.O_CREAT)
    try:
        os.posix_fallocate(fd, 0, 16 << 20)
        os.fsync(fd)
        count, taken, begun = 0, 0.0, time.perf_counter()
        while time.perf_counter() - begun < window:
            os.pwrite(fd, VALUE, count * 4096 % (16 << 20))
            before = time.perf_counter()
            os.fdatasync(fd)
            taken += time.perf_counter() - before
            count += 1
    finally:
        os.close(fd)
    return taken / count


WORKS: Final = ("set", "update", "get", "range", "bulk")


def measure(options: argparse.Namespace, places: Places, crowd: Crowd) -> Figures:
    """All rounds of all parts."""
    figures = Figures()
    names = contestants(places.cluster)
    opened = {name: open_contestant(name, places) for name in names}
    for contestant in opened.values():
        contestant.fill()
    parts = options.only.split(",") if options.only else ["work", "clients", "many", "flush"]
    volatile = [name for name in names if name not in DURABLE]
    for number in range(options.rounds + 1):
        done = Figures() if number == 0 else figures  # the first round warms up
        if "work" in parts:
            for work in WORKS:
                for name in names:
                    if name in DURABLE and work in ("get", "range"):
                        continue
                    found = by_threads([opened[name].units()[work]], options.seconds)
                    done.add("work", work, name, found.rate(options.clock) * (BULK_ROWS if work == "bulk" else 1))
                    if (work, name) == ("set", "sqlite"):
                        found = by_threads([opened[name].units()["set auto"]], options.seconds)
                        done.add("work", work, "sqlite auto", found.rate(options.clock))
        if "clients" in parts:
            for clients in CLIENTS:
                for name in names:
                    units = [opened[name].units()["set"] for _ in range(clients)]
                    found = by_threads(units, options.seconds)
                    done.add("clients", f"{clients} threads", name, found.rate(options.clock))
                    if name != "memory":  # which one process has
                        found = crowd.measure(name, "set", clients, options.seconds)
                        done.add("clients", f"{clients} processes", name, found.rate(options.clock))
            for name in ("lmdb", "sqlite", "process"):
                found = crowd.measure(name, "update", CLIENTS[-1], options.seconds)
                done.add("clients", UPDATERS, name, found.rate(options.clock))
        if "many" in parts:
            for name in volatile:
                if name in ("process", "cluster"):
                    found = crowd.measure(name, "in flight", 4, options.seconds)
                    done.add("many", "4 x 32", name, found.rate("wall") * IN_FLIGHT)
            done.add("many", "4 x 32", "lmdb", crowd.measure("lmdb", "set", 4, options.seconds).rate("wall"))
        if "flush" in parts:
            for clients in FLUSHERS:
                done.add("flush", f"{clients} threads", "disk", clients / flush_seconds(places.disk, options.seconds))
                for name in DURABLE:
                    units = [opened[name].units()["set"] for _ in range(clients)]
                    found = by_threads(units, 4 * options.seconds)
                    done.add("flush", f"{clients} threads", name, found.rate("wall"))
                    done.add("by processor", f"{clients} threads", name, found.rate("cpu"))
    return figures


@dataclass(frozen=True)
class Target:
    """One of the design's targets: what was found, and what was to be."""

    what: str
    found: float
    target: float
    unit: str

    @property
    def met(self) -> bool:
        return self.found >= self.target


def targets(figures: Figures) -> Iterator[Target]:
    """Those of which the run has figures."""
    for work in ("set", "update", "get", "range"):
        if ("work", work, "process") in figures.rates:
            found = figures.ratio("work", work, "process") / PROTOTYPE[work]
            yield Target(f"{work}, one client, by the prototype", found, 1.0, "x")
    if ("work", "bulk", "process") in figures.rates:
        yield Target("rows set and committed in bulk", figures.median("work", "bulk", "process"), 1_000_000, "rows/s")
    for clients in (2, 4):
        case = f"{clients} processes"
        if ("clients", case, "process") in figures.rates:
            found = figures.ratio("clients", case, "process") / PROTOTYPE[case]
            yield Target(f"set, {case}, by the prototype", found, 1.0, "x")
    if ("many", "4 x 32", "process") in figures.rates:
        found = figures.ratio("many", "4 x 32", "process") / PROTOTYPE["4 processes"]
        yield Target("4 processes x 32 in flight, by the prototype's 4 processes", found, 2.0, "x")
    for part, case, what in (
        ("work", "set", "set, one client"),
        ("work", "update", "update, one client"),
        ("clients", f"{CLIENTS[-1]} processes", f"set, {CLIENTS[-1]} processes"),
        ("clients", UPDATERS, f"update, {CLIENTS[-1]} processes"),
    ):
        if (part, case, "process") in figures.rates:
            rivals = [name for name in ("sqlite", "sqlite auto") if (part, case, name) in figures.rates]
            found = min(figures.ratio(part, case, "process", name) for name in rivals)
            yield Target(f"{what}, by SQLite, not flushed", found, 1.0, "x")
    for clients in FLUSHERS:
        case = f"{clients} threads"
        if ("flush", case, "fsync") in figures.rates:
            found = figures.ratio("flush", case, "fsync", "sqlite full")
            yield Target(f"durable commits, {clients} clients, by SQLite FULL", found, 1.0, "x")
    for clients in JUDGED_BY_DISK:
        case = f"{clients} threads"
        if ("flush", case, "fsync") in figures.rates:
            found = figures.ratio("flush", case, "fsync", "disk")
            yield Target(f"durable commits, {clients} clients, by clients / flush time", found, 0.7, "x")


def show(figures: Figures) -> None:
    """The tables, then the targets."""
    cases = list(dict.fromkeys((part, case) for part, case, _ in figures.rates))
    for part in dict.fromkeys(part for part, _ in cases):
        names = list(dict.fromkeys(name for p, _, name in figures.rates if p == part))
        print(f"\n{part:14}" + "".join(f"{name:>22}" for name in names))
        for _, case in (item for item in cases if item[0] == part):
            line = f"{case:14}"
            base = next(name for p, c, name in figures.rates if (p, c) == (part, case))
            for name in names:
                if (part, case, name) not in figures.rates:
                    line += f"{'':>22}"
                    continue
                ratio = figures.ratio(part, case, name, base)
                line += f"{figures.median(part, case, name):>14,.0f} {f'{ratio:.3f}':>7}"
            print(line)
    print("\nEach figure is transactions (bulk: rows) a second, and its ratio to the first column's.\n")
    for target in targets(figures):
        verdict = "met" if target.met else "MISSED"
        print(f"{verdict:7}{target.what}: {target.found:,.2f} {target.unit} (target {target.target:,.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.25, help="of one contestant's turn")
    parser.add_argument("--only", help="some of the parts, with commas between them")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--cluster", metavar="FILE", default=os.environ.get("FDB_CLUSTER_FILE"))
    parser.add_argument("--disk", type=Path, default=Path(tempfile.gettempdir()), help="folder on the disk to measure")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    shm = Path("/dev/shm")
    memory = Path(tempfile.mkdtemp(prefix="bench-engine-", dir=shm if shm.is_dir() else None))
    disk = Path(tempfile.mkdtemp(prefix="bench-engine-", dir=options.disk))
    places = Places(memory, disk, options.cluster)
    crowd = Crowd(places)
    try:
        figures = measure(options, places, crowd)
    finally:
        crowd.end()
        shutil.rmtree(memory, ignore_errors=True)
        shutil.rmtree(disk, ignore_errors=True)
    if options.json:
        rates = [
            {"part": part, "case": case, "contestant": name, "per_second": round(statistics.median(found), 1)}
            for (part, case, name), found in figures.rates.items()
        ]
        judged = [{**vars(target), "met": target.met} for target in targets(figures)]
        print(json.dumps({"rates": rates, "targets": judged}))
        return
    show(figures)


if __name__ == "__main__":
    main()
