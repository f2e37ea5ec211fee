"""Where the time of one transaction of the embedded engine goes, function by function.

    python tools/bench_transaction.py [--works set,update,get] [--rounds 20] [--functions 25] [--durability process] [--json]

| work | what |
|---|---|
| set | a transaction that sets one key |
| get | one that reads a key, while nobody commits |
| update | one that reads a key and sets it |

First the processor time of a transaction as it is, and of the calls of py-lmdb that it makes, made by hand in an environment of the
same kind: the two take turns, and a figure is the lower quartile of the rounds. Then each function's part of it, by cProfile: what the profiler
adds to a call is measured and taken off, and the parts are scaled to the time without it. So the order and the layers' sums can be
relied on, a single function of less than a tenth of a microsecond can't. What a commit calls by way of `operator.call` isn't seen by the
profiler: LMDB's part is therefore the time by hand, and what the profile missed of it is taken off the function that commits.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import lmdb

import fdb_embedded

KEYS: Final = 20_000
VALUE: Final = b"x" * 100
STEP: Final = 7_919
COUNT: Final = 500
"""Transactions of a round."""

LAYERS: Final = {
    "the binding's objects": {"hot_paths", "impl"},
    "the transaction": {"handles", "state", "reading", "writing", "transaction", "overlay", "request", "special_keys"},
    "futures": {"futures"},
    "the snapshot": {"engine", "snapshot", "readers"},
    "the commit": {"commit", "applying", "conflict", "store", "shared", "versions", "keys", "journal", "idempotency"},
}
"""Modules of the layers, from the caller inwards."""

LMDB: Final = "LMDB"
OTHER: Final = "other"
COMMITS: Final = "commit._commit_batch"

Unit = Callable[[int], object]


def key(n: int) -> bytes:
    """One of the bench's keys."""
    return b"bench/%08d" % (n * STEP % KEYS)


def works(db: Any) -> dict[str, Unit]:
    """The transactions that are looked into."""

    def set_one(n: int) -> None:
        tr = db.create_transaction()
        tr[key(n)] = VALUE
        tr.commit().wait()

    def get(n: int) -> None:
        tr = db.create_transaction()
        _ = tr[key(n)].value

    def update(n: int) -> None:
        tr = db.create_transaction()
        name = key(n)
        tr[name] = tr[name].value[:-1] + b"y"
        tr.commit().wait()

    return {"set": set_one, "get": get, "update": update}


def by_hand(folder: Path) -> dict[str, Unit]:
    """The calls of py-lmdb that those transactions make, and no others."""
    env = lmdb.open(str(folder), map_size=256 << 20, max_dbs=0, sync=False, writemap=True, max_spare_txns=0)
    version = 1
    with env.begin(write=True) as txn:
        for n in range(KEYS):
            txn.put(key(n), VALUE)

    def write(name: bytes) -> None:
        nonlocal version
        txn = env.begin(write=True)
        txn.id()
        cursor = txn.cursor()
        cursor.last()
        cursor.key()
        txn.put(name, VALUE)
        version += 1
        txn.put(b"\xff\xff\x01" + version.to_bytes(8, "big"), name, append=True)
        txn.commit()

    def set_one(n: int) -> None:
        write(key(n))

    shared: list[Any] = []

    def get(n: int) -> None:
        if not shared:  # who reads while nobody commits shares one
            shared.append(env.begin())
        shared[0].get(key(n))

    def update(n: int) -> None:
        reader = env.begin()
        name = key(n)
        reader.get(name)
        reader.abort()
        write(name)

    return {"set": set_one, "get": get, "update": update}


def processor_time(unit: Unit, first: int) -> float:
    """Microseconds of this thread for one of `COUNT`, without what `key` costs."""
    begun = time.thread_time_ns()
    for n in range(first, first + COUNT):
        unit(n)
    between = time.thread_time_ns()
    for n in range(first, first + COUNT):
        key(n)
    return (2 * between - begun - time.thread_time_ns()) / COUNT / 1000


# --- the profiler's own cost


@dataclass(frozen=True)
class Overhead:
    """Microseconds that the profiler adds: to a function for being called, and to its caller, in Python and in C."""

    called: float
    calls: float
    built_in: float
    calls_built_in: float


def _nothing() -> None:
    return None


def _call_many(count: int) -> None:
    for _ in range(count):
        _nothing()


def _call_many_built_in(count: int, name: str) -> None:
    for _ in range(count):
        name.isascii()


def measure_overhead(count: int = 20_000) -> Overhead:
    """By calls of functions that do nothing, with the profiler and without."""

    def parts(function: Callable[..., None], *arguments: Any) -> tuple[float, float]:
        plain, callers, callees = [], [], []
        for _ in range(7):
            begun = time.thread_time_ns()
            function(count, *arguments)
            plain.append((time.thread_time_ns() - begun) / count / 1000)
            profile = cProfile.Profile()
            profile.enable()
            function(count, *arguments)
            profile.disable()
            for (_, _, name), (_, calls, own, _, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
                if name == function.__name__:
                    callers.append(own / count * 1e6)
                elif calls == count:
                    callees.append(own / count * 1e6)
        half = min(plain) / 2  # of a call that does nothing, to either side
        return max(0.0, min(callees) - half), max(0.0, min(callers) - half)

    return Overhead(*parts(_call_many), *parts(_call_many_built_in, "x"))


# --- the profile


@dataclass
class Part:
    """One function's part of a transaction."""

    layer: str
    name: str
    calls: float
    microseconds: float


Function = tuple[str, int, str]
"""As the profiler names it: file, line, name."""

CHUNKS: Final = 15


@dataclass
class Seen:
    """What the profiler has seen of a function in one transaction: microseconds less its own cost, and calls."""

    microseconds: float = 0.0
    calls: float = 0.0
    callers: dict[Function, float] = field(default_factory=dict)


def profile_once(unit: Unit, first: int, overhead: Overhead) -> dict[Function, Seen]:
    """What the profiler sees of `COUNT` transactions."""
    profiler = cProfile.Profile()
    profiler.enable()
    for n in range(first, first + COUNT):
        unit(n)
    profiler.disable()
    found: dict[Function, Seen] = {}
    stats = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    for function, (_, calls, own, _, callers) in stats.items():
        by = {caller: data[1] / COUNT for caller, data in callers.items()}
        found[function] = Seen(own * 1e6 / COUNT, calls / COUNT, by)
    for function, seen in found.items():
        built_in = function[0] == "~"
        seen.microseconds -= (overhead.built_in if built_in else overhead.called) * seen.calls
        for caller, calls in seen.callers.items():
            found[caller].microseconds -= (overhead.calls_built_in if built_in else overhead.calls) * calls
    return found


def profile(unit: Unit, total: float, lmdb_time: float, overhead: Overhead) -> list[Part]:
    """The parts of a transaction that takes `total` microseconds, of which LMDB alone has `lmdb_time`."""
    chunks = [profile_once(unit, number * COUNT, overhead) for number in range(CHUNKS)]
    found: dict[Function, Seen] = {}
    for function, seen in chunks[-1].items():
        if seen.calls > 0.1 and function[2] not in ("key", unit.__name__):
            times = [chunk[function].microseconds for chunk in chunks if function in chunk]
            found[function] = Seen(max(0.0, statistics.quantiles(times, n=4)[0]), seen.calls, seen.callers)
    parts: dict[Function, Part] = {}
    in_lmdb = 0.0
    for function, seen in found.items():
        file, _, name = function
        if file != "~":
            module = Path(file).stem
            layer = next((layer for layer, modules in LAYERS.items() if module in modules), OTHER)
            parts[function] = Part(layer, f"{module}.{name}", seen.calls, seen.microseconds)
        elif any(kind in name for kind in ("'Transaction' objects", "'Environment' objects", "'Cursor' objects")):
            in_lmdb += seen.microseconds
    for function, seen in found.items():
        if function[0] == "~" and "lsprof" not in function[2]:  # what Python itself does is its caller's
            for caller, calls in seen.callers.items():
                part = parts.get(caller)
                if part is not None and not any(
                    kind in function[2] for kind in ("Transaction", "Environment", "Cursor")
                ):
                    part.microseconds += seen.microseconds * calls / seen.calls
    for part in parts.values():
        if part.name == COMMITS:
            part.microseconds = max(0.1, part.microseconds - max(0.0, lmdb_time - in_lmdb))
    scale = (total - lmdb_time) / sum(part.microseconds for part in parts.values())
    for part in parts.values():
        part.microseconds *= scale
    every = [*parts.values(), Part(LMDB, "LMDB, by hand", 1.0, lmdb_time)]
    return sorted(every, key=lambda part: -part.microseconds)


@dataclass
class Report:
    """One kind of transaction."""

    work: str
    microseconds: float
    calls: float
    parts: list[Part]

    def layers(self) -> dict[str, float]:
        sums: dict[str, float] = defaultdict(float)
        for part in self.parts:
            sums[part.layer] += part.microseconds
        return sums


def measure(options: argparse.Namespace, folder: Path) -> list[Report]:
    """All works."""
    db = fdb_embedded.open(str(folder / "db"), durability=options.durability)
    tr = db.create_transaction()
    for n in range(KEYS):
        tr[key(n)] = VALUE
    tr.commit().wait()
    (folder / "lmdb").mkdir()
    engine, hand = works(db), by_hand(folder / "lmdb")
    overhead = measure_overhead()
    reports = []
    for work in options.works.split(","):
        times: dict[str, list[float]] = {"engine": [], "lmdb": []}
        for number in range(options.rounds + 1):
            for name, unit in (("engine", engine[work]), ("lmdb", hand[work])):
                found = processor_time(unit, number * COUNT)
                if number:  # the first round warms up
                    times[name].append(found)
        total, alone = (statistics.quantiles(times[name], n=4)[0] for name in ("engine", "lmdb"))
        parts = profile(engine[work], total, alone, overhead)
        calls = sum(part.calls for part in parts if part.layer != LMDB)
        reports.append(Report(work, total, calls, parts))
    return reports


def show(reports: list[Report], functions: int) -> None:
    """The layers of all works, then the functions of each."""
    print(f"{'microseconds':24}" + "".join(f"{report.work:>10}" for report in reports))
    for layer in (*LAYERS, LMDB, OTHER):
        print(f"{layer:24}" + "".join(f"{report.layers().get(layer, 0.0):>10.1f}" for report in reports))
    print(f"{'in all':24}" + "".join(f"{report.microseconds:>10.1f}" for report in reports))
    print(f"{'calls of functions':24}" + "".join(f"{report.calls:>10.0f}" for report in reports))
    for report in reports:
        print(f"\n{report.work:44}{'calls':>7}{'us':>8}")
        for part in report.parts[:functions]:
            print(f"  {part.name:42}{part.calls:>7.1f}{part.microseconds:>8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--works", default="set,update,get")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--functions", type=int, default=25, help="as many are listed of each work")
    parser.add_argument("--durability", choices=["process", "fsync", "memory"], default="process")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    shm = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="bench-transaction-", dir=shm if shm.is_dir() else None))
    try:
        reports = measure(options, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        print(json.dumps([{**vars(report), "parts": [vars(part) for part in report.parts]} for report in reports]))
        return
    show(reports, options.functions)


if __name__ == "__main__":
    main()
