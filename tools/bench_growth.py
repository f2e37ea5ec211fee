"""How what one thing costs grows with how many there are: `nox -s bench -- growth`.

Curves, each of µs by count, the counts 1 and 3 times the powers of ten from `--least` to `--most`:

- futures: a client submits so many no-op futures to two workers and gathers the results; a future
- leases: an acquire and its release, while one manager holds so many leases
- tasks: a push on the heap, of 100 items on one shard, while the sysdb and the heap have so many tasks; an item
- get, set: a transaction that reads, or sets, one of so many rows of the embedded engine
- workers: `--calls` no-op futures run by 1, 2, 4 … `--workers` workers of one slot; a future

To each the exponent x of n^x is fitted that its costs grow by, by least squares of the logarithms. n·log n for all is an x
too, a small one that depends on the counts: a curve is flat (up to `NOISE`), n·log n (up to that x and `NOISE`), or it grows.
Workers are flat or grow, and beyond the machine's cpus that is the machine's.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

NOISE: Final = 0.05
FEW: Final = 10
"""From fewer on, log n would excuse anything: 4 times as much for 16 instead of 2."""
ITEMS: Final = 100
"""Of a push."""
Points = list[tuple[int, float]]
"""(how many, µs for one)"""


def counts(least: int, most: int) -> list[int]:
    """1 and 3 times the powers of ten, and the ends."""
    steps = [step * 10**power for power in range(10) for step in (1, 3)]
    return sorted({least, most, *(n for n in steps if least < n < most)})


def exponent(points: Sequence[tuple[float, float]]) -> float | None:
    """The x of the n^x that the costs grow by; None where there is one size, or none."""
    if len({n for n, _ in points}) < 2:
        return None
    return statistics.linear_regression([math.log(n) for n, _ in points], [math.log(cost) for _, cost in points]).slope


def judged(points: Sequence[tuple[float, float]]) -> tuple[str, bool | None]:
    """What is to be said of a curve, and whether it's flat or n·log n; None where there is nothing to judge."""
    found = exponent(points)
    if found is None:
        return "one size: no growth to judge", None
    if found <= NOISE:
        return f"flat: n^{found:.2f} each", True
    if min(n for n, _ in points) < FEW:
        return f"grows: n^{found:.2f} each", False
    by_log = exponent([(n, math.log(n)) for n, _ in points]) or 0.0
    verdict = found <= by_log + NOISE
    return f"{'n·log n' if verdict else 'grows'}: n^{found:.2f} each, log n is n^{by_log:.2f} here", verdict


def each(count: int, act: Callable[[int], Any], rounds: int = 5) -> float:
    """µs of one of `count` calls: of the fastest round, after one that warms up; what else the machine does only adds."""
    taken = []
    for number in range(rounds + 1):
        began = time.perf_counter()
        for n in range(number * count, (number + 1) * count):
            act(n)
        taken.append((time.perf_counter() - began) / count * 1e6)
    return min(taken[1:])


def noop(value: int) -> int:
    """What every future runs."""
    return value


def run_futures(client: Any, count: int) -> float:
    """µs for each of `count` futures, the results let go of page by page."""
    began = time.perf_counter()
    futures = [client.submit(noop, n) for n in range(count)]
    for at in range(0, count, 10_000):
        page = futures[at : at + 10_000]
        assert client.gather(page, progress=False)[-1] == at + len(page) - 1, "wrong results"
    return (time.perf_counter() - began) / count * 1e6


def futures(options: argparse.Namespace, _: Path) -> Iterator[tuple[str, int, float]]:
    """Futures by how many are submitted at once."""
    from futures_worker import LocalCluster

    with LocalCluster(workers=2, slots=1) as client:
        run_futures(client, 500)
        for n in counts(options.least, options.most):
            yield "futures", n, run_futures(client, n)


def workers(options: argparse.Namespace, _: Path) -> Iterator[tuple[str, int, float]]:
    """Futures by how many workers there are."""
    from futures_worker import LocalCluster

    for n in (1 << power for power in range(options.workers.bit_length())):
        with LocalCluster(workers=n, slots=1) as client:
            run_futures(client, 20 * n)
            yield "workers", n, min(run_futures(client, options.calls) for _ in range(3))


def leases(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, int, float]]:
    """Leases by how many are held. The manager isn't closed, which would release them one by one: `main` ends the process."""
    from lease_locks import LeaseManager

    locks, held = LeaseManager(f"embedded:{folder}/leases", ttl=600), list[Any]()
    for n in counts(options.least, options.most):
        held += [locks.acquire(f"held/{number}") for number in range(len(held), n)]
        yield "leases", n, each(100, lambda _: locks.acquire("one").release())


def tasks(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, int, float]]:
    """Pushes by how many tasks are there, of which 1,000 are due in each second of some minutes an hour from now."""
    from bench_heap import Bench

    from s3heap_tender import HeapItem
    from s3heap_tender.rows.states import State

    with ExitStack() as stack:
        bench = Bench(argparse.Namespace(only="slow"), folder, stack)  # which needs no server of S3
        # A push writes the newest object anew, until that is full: each round fills one, and costs what pushes cost on average.
        heap = bench.heap(1, linger=0, threads=0, max_object_items=5 * ITEMS)
        rng, there, due = random.Random(1), 0, heap.sysdb.now_micro() // 1000 + 3_600_000

        def push(count: int, *, rows: bool = False) -> None:
            ids = [uuid.UUID(int=rng.getrandbits(128)) for _ in range(count)]
            if rows:
                bench.write_rows(heap.sysdb, ids, State.SCHEDULED)
            heap.push([HeapItem(id, id, 1, due + there) for id in ids])

        for n in counts(options.least, options.most):
            while there < n:
                push(min(1_000, n - there), rows=True)
                there += min(1_000, n - there)
            yield "tasks", n, each(5, lambda _: push(ITEMS)) / ITEMS


def rows(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, int, float]]:
    """Transactions of one read, and of one set, by how many rows there are."""
    from fdb_schema import open_database

    db: Any = open_database(f"embedded:{folder}/rows")
    there = 0

    def get(n: int) -> None:
        tr = db.create_transaction()
        assert tr[b"%010d" % (n * 7_919 % there)].value, "a row that was set isn't there"

    def put(n: int) -> None:
        tr = db.create_transaction()
        tr[b"%010d" % (n * 7_919 % there)] = b"y" * 100
        tr.commit().wait()

    for n in counts(options.least, options.most):
        for first in range(there, n, 10_000):
            tr = db.create_transaction()
            for number in range(first, min(first + 10_000, n)):
                tr[b"%010d" % number] = b"x" * 100
            tr.commit().wait()
        there = n
        yield "get", n, each(500, get)
        yield "set", n, each(200, put)


CURVES: Final[dict[str, Callable[[argparse.Namespace, Path], Iterator[tuple[str, int, float]]]]] = {
    "futures": futures, "workers": workers, "tasks": tasks, "rows": rows, "leases": leases,
}  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--least", type=int, default=1_000)
    parser.add_argument("--most", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=64, help="the most workers")
    parser.add_argument("--calls", type=int, default=10_000, help="futures that each number of workers runs")
    parser.add_argument("--only", default=",".join(CURVES), help="curves, separated by commas; rows: get and set")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if unknown := set(options.only.split(",")) - set(CURVES):
        parser.error(f"there is no curve {min(unknown)!r}: {', '.join(CURVES)}")
    if not 1 <= options.least <= options.most:
        parser.error(f"--least is 1 or more and at most --most, not {options.least:,} of {options.most:,}")
    shm = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="bench-growth-", dir=shm if shm.is_dir() else None))
    found: dict[str, Points] = {}
    try:
        for name in (one for one in CURVES if one in options.only.split(",")):  # leases last
            for curve, n, cost in CURVES[name](options, folder):
                found.setdefault(curve, []).append((n, cost))
                print(f"# {curve} {n:,}: {cost:,.1f} µs", file=sys.stderr)
        if options.json:
            print(json.dumps(found))
        for curve, points in found.items() if not options.json else ():
            print(f"{curve:8}" + "".join(f"{n:>12,}" for n, _ in points))
            print(f"{'µs each':8}" + "".join(f"{cost:>12,.1f}" for _, cost in points) + f"   {judged(points)[0]}")
        sys.stdout.flush()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)  # what holds leases isn't closed


if __name__ == "__main__":
    main()
