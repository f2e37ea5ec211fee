"""How many no-op futures a second one process can submit, claim and realize through the data model, and what they cost.

    python tools/bench_datamodel.py [--url memory:bench] [--futures 20000] [--batch 500] [--chain 2000] [--profile]

Prints futures per second of each stage and of all, rows and commits per future, and the claim's time beside a backlog
that doesn't fit. One process, no workers: it measures the data model and the engine, not the execution of tasks.
"""

from __future__ import annotations

import argparse
import cProfile
import dataclasses
import json
import os
import pstats
import shutil
import tempfile
import time
from collections.abc import Callable
from typing import Any

from fdb_datamodel import (
    Capacity,
    ClusterSpace,
    FutureSpec,
    Outcome,
    Requirements,
    WorkerId,
    claim_futures,
    finish_turn,
    new_future_ids,
    new_incarnation,
    put_code,
    register_worker,
    submit_futures,
    validate,
)
from fdb_schema import open_database
from idempotent_txn import run


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    value = work()
    return time.perf_counter() - start, value


def plain(db: Any, space: ClusterSpace, port: int, count: int, batch: int) -> dict[str, float]:
    """Submit, then turns that realize one batch and claim the next."""
    worker = WorkerId("127.0.0.1", port, new_incarnation())
    run(db, register_worker, space, worker)
    session = os.urandom(16)
    code = run(db, put_code, space, b"no-op" * 20)

    def submit() -> None:
        for start in range(0, count, batch):
            ids = new_future_ids(min(batch, count - start))
            run(db, submit_futures, space, [FutureSpec(code, b"args", one, session) for one in ids])

    def work() -> int:
        claims = run(db, claim_futures, space, worker, Capacity(), batch)
        done = 0
        while claims:
            outcomes = [Outcome.realized(claim, b"result") for claim in claims]
            done += len(outcomes)
            claims = run(db, finish_turn, space, worker, outcomes, Capacity(), batch)
        return done

    submitted, _ = timed(submit)
    worked, done = timed(work)
    assert done == count, f"{done} of {count} were realized"
    return {"submit": count / submitted, "claim+realize": count / worked, "all": count / (submitted + worked)}


def chain(db: Any, space: ClusterSpace, count: int, batch: int) -> float:
    """A chain of dependents: each turn realizes one future and claims the next."""
    worker = WorkerId("127.0.0.1", 2, new_incarnation())
    run(db, register_worker, space, worker)
    ids = new_future_ids(count)

    def work() -> None:
        for start in range(0, count, batch):
            run(
                db,
                submit_futures,
                space,
                [
                    FutureSpec(b"f", b"a", ids[at], dependencies=(ids[at - 1],) if at else ())
                    for at in range(start, min(start + batch, count))
                ],
            )
        claims = run(db, claim_futures, space, worker, Capacity(), 1)
        while claims:
            claims = run(db, finish_turn, space, worker, [Outcome.realized(claims[0], b"r")], Capacity(), 1)

    elapsed, _ = timed(work)
    return count / elapsed


def backlog(db: Any, space: ClusterSpace, count: int, batch: int) -> list[float]:
    """Milliseconds of a claim that finds nothing that fits: beside an empty pool, then beside `count` of different ram.

    They need 2 GiB to 2 TiB, evenly spread.
    """
    worker = WorkerId("127.0.0.1", 3, new_incarnation())
    run(db, register_worker, space, worker)
    capacity = Capacity(Requirements(cpu=1, ram="1GiB"))

    def claim() -> float:
        repeats, offered = 50, capacity

        def claims() -> None:
            nonlocal offered
            for _ in range(repeats):
                found = run(db, claim_futures, space, worker, offered, 100)
                offered = dataclasses.replace(capacity, wary=found.passed)  # as a worker does

        elapsed, _ = timed(claims)
        return elapsed / repeats * 1000

    empty = claim()
    base, step = 2 << 30, (2 << 40) // count
    for start in range(0, count, batch):
        ids = new_future_ids(min(batch, count - start))
        specs = [
            FutureSpec(b"f", id=one, requirements=Requirements(ram=base + step * at))
            for at, one in enumerate(ids, start)
        ]
        run(db, submit_futures, space, specs)
    return [empty, claim()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="default: an embedded database in memory-backed storage")
    parser.add_argument("--futures", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--chain", type=int, default=2_000)
    parser.add_argument("--backlog", type=int, default=20_000)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    parent = tempfile.mkdtemp(prefix="mainspring-bench-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    try:
        url = options.url or f"embedded:{parent}/db"
        db = open_database(url)
        space = ClusterSpace("bench-datamodel")
        db.clear_range(*_span(space))
        plain(db, space, 1, 2 * options.batch, options.batch)  # warm
        profile = cProfile.Profile()
        if options.profile:
            profile.enable()
        rates = plain(db, space, 4, options.futures, options.batch)
        if options.profile:
            profile.disable()
            pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        rates["chain"] = chain(db, space, options.chain, options.batch)
        empty, full = backlog(db, space, options.backlog, options.batch)
        if options.json:
            if violations := validate(db, space):
                raise SystemExit(f"the data is not valid: {violations[:3]}")
            print(json.dumps({"futures/s": rates, "ms of a claim": {"empty": empty, "backlog": full}}))
            return
        for stage, rate in rates.items():
            print(f"{stage:>14}: {rate:10,.0f} futures/s")
        print(
            f"{'claim':>14}: {empty:.2f} ms beside an empty pool, {full:.2f} ms beside {options.backlog:,} that don't fit"
        )
        violations = validate(db, space)
        print(f"{'validate':>14}: {len(violations)} violations {violations[:3]}")
    finally:
        shutil.rmtree(parent, ignore_errors=True)


def _span(space: ClusterSpace) -> tuple[bytes, bytes]:
    span = space.range(())
    return span.start, span.stop


if __name__ == "__main__":
    main()
