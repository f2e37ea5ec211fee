"""What idempotency costs: the table of FoundationDB's design note, reproduced in one run.

    python tools/bench_idempotency.py [--url embedded:DIR] [--threads 1] [--work update|write] [--rounds 40] [--json]

Modes: `baseline` is the official retry loop without ids; `row` writes a row per transaction and clears it in the next
one, as a careful user would; `combined` is the default strategy (native ids, which the engine combines per commit
batch); `lanes`, `lanes+stamp` and `ids` are the other strategies; `batcher` combines whole commits of concurrent
transactions that only write. The modes take turns within every round, and a ratio is the median over the rounds of a
mode's rate by the baseline's of the same round, so that what else the machine does falls out.

The note's own figures (19,715, 13,831 and 19,516 transactions a second): 1.00, 0.70 and 0.99.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fdb_schema import open_database
from idempotent_txn import Batcher, id_status, run, run_committed
from idempotent_txn.ids.keyspace import PREFIX

SEED = {"baseline": 1.00, "row": 0.70, "combined": 0.99}
TARGETS = {"combined": 0.98, "lanes": 0.85, "batcher": 2.0}
KEYS = 10_000
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}

Work = Callable[[int, int], None]


def update(tr: Any, key: bytes) -> None:
    """Read one key, write one key."""
    value = tr[key].value
    tr[key] = b"x" * 100 if value is None else value


def write(tr: Any, key: bytes) -> None:
    """Write one key."""
    tr[key] = b"x" * 100


def modes(db: Any, body: Callable[[Any, bytes], None], threads: int) -> dict[str, Work]:
    """Each mode as a function of (thread, how many transactions)."""
    import fdb

    official = fdb.transactional(lambda tr, key: body(tr, key))
    batcher = Batcher(db)

    def key(thread: int, n: int) -> bytes:
        return b"bench/%03d/%05d" % (thread, n * 7919 % (KEYS // threads))

    def baseline(thread: int, count: int) -> None:
        for n in range(count):
            official(db, key(thread, n))

    def row(thread: int, count: int) -> None:
        previous: list[bytes] = []

        def with_row(tr: Any, name: bytes, id: bytes) -> None:
            if tr[id].value is None:
                body(tr, name)
                tr[id] = b""
                for old in previous:
                    tr.clear(old)

        stored = fdb.transactional(with_row)
        for n in range(count):
            id = b"ids/" + uuid.uuid4().bytes
            stored(db, key(thread, n), id)
            previous[:] = [id]

    def by(strategy: Any) -> Work:
        def work(thread: int, count: int) -> None:
            for n in range(count):
                run(db, body, key(thread, n), strategy=strategy)

        return work

    def stamped(thread: int, count: int) -> None:
        for n in range(count):
            run_committed(db, body, key(thread, n), strategy="lanes")

    def batched(thread: int, count: int) -> None:
        for n in range(count):
            batcher.run(write, key(thread, n))

    found = {"baseline": baseline, "row": row, "combined": by(None), "lanes": by("lanes"), "lanes+stamp": stamped}
    found |= {"ids": by("ids"), "off": by("off")}
    if body is write:
        found["batcher"] = batched
    return found


def rate(work: Work, threads: int, count: int, clock: Callable[[], float]) -> float:
    """Transactions a second of all threads together."""
    if threads == 1:
        start = clock()
        work(0, count)
        return count / (clock() - start)
    barrier = threading.Barrier(threads + 1)

    def one(number: int) -> None:
        barrier.wait()
        work(number, count)

    workers = [threading.Thread(target=one, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    barrier.wait()
    start = clock()
    for worker in workers:
        worker.join()
    return threads * count / (clock() - start)


def measure(
    db: Any, body: Callable[[Any, bytes], None], threads: int, rounds: int, count: int, clock: Callable[[], float]
) -> list[dict[str, Any]]:
    """One line per mode: the median ratio to the baseline, the spread, and the best rate."""
    works = modes(db, body, threads)
    rates: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds + 1):
        for name, work in works.items():
            rates[name].append(rate(work, threads, count, clock))
    lines = []
    for name, found in rates.items():
        # The first round warms up.
        ratios = sorted(mine / base for mine, base in zip(found[1:], rates["baseline"][1:], strict=True))
        lines.append(
            {
                "work": body.__name__,
                "threads": threads,
                "mode": name,
                "ratio": round(statistics.median(ratios), 3),
                "low": round(ratios[len(ratios) // 4], 3),
                "high": round(ratios[-1 - len(ratios) // 4], 3),
                "best_per_second": round(max(found[1:])),
                "design_note": SEED.get(name),
                "target": TARGETS.get(name),
            }
        )
    return lines


def storage(db: Any, count: int) -> dict[str, Any]:
    """What is kept of ids after `count` transactions of each strategy."""
    kept: dict[str, Any] = {"transactions": count}
    for strategy in ("native", "lanes", "ids"):
        for n in range(count):
            run(db, write, b"bench/%05d" % (n % KEYS), strategy=strategy)
        rows = list(db.get_range_startswith(PREFIX))
        kept[strategy] = {"rows": len(rows), "bytes": sum(len(row.key) + len(row.value) for row in rows)}
        if strategy == "native":
            # Of the last ten seconds, while they lie on the engine's log.
            kept[strategy] = {store.store: store.ids for store in id_status(db)}
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="database; without it, an embedded one in memory-backed storage")
    parser.add_argument("--durability", choices=["process", "fsync", "memory"], help="of an embedded database")
    parser.add_argument("--threads", type=int, action="append", help="may be given several times (1 and 16)")
    parser.add_argument("--work", choices=["update", "write"], action="append", help="both, without it")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--transactions", type=int, default=480, help="of a round, all threads together")
    parser.add_argument(
        "--clock", choices=list(CLOCKS), default="wall", help="cpu: by processor time, on a machine that others use too"
    )
    parser.add_argument("--storage", type=int, metavar="N", help="also: what is kept after N transactions")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = None
    if options.url is None:
        shm = Path("/dev/shm")
        folder = tempfile.mkdtemp(prefix="bench-idempotency-", dir=shm if shm.is_dir() else None)
    db = open_database(options.url or f"embedded:{folder}/db", durability=options.durability)
    try:
        lines = []
        for name in options.work or ["update", "write"]:
            for threads in options.threads or [1, 16]:
                body = {"update": update, "write": write}[name]
                count = max(1, options.transactions // threads)
                lines += measure(db, body, threads, options.rounds, count, CLOCKS[options.clock])
        kept = storage(db, options.storage) if options.storage else None
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        print(json.dumps({"modes": lines, "storage": kept}))
        return
    print(
        f"{'work':8}{'threads':>8}  {'mode':13}{'ratio':>7}{'quartiles':>15}{'best tx/s':>11}{'note':>6}{'target':>8}"
    )
    for line in lines:
        quartiles = f"{line['low']:.2f}-{line['high']:.2f}"
        print(
            f"{line['work']:8}{line['threads']:>8}  {line['mode']:13}{line['ratio']:>7.2f}{quartiles:>15}"
            f"{line['best_per_second']:>11,}{line['design_note'] or '':>6}{line['target'] or '':>8}"
        )
    if kept is not None:
        print("kept after", kept)


if __name__ == "__main__":
    main()
