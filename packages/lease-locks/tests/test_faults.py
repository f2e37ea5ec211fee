"""The threads and transactions as they run for users, on an engine that loses, doubles and delays commits."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from conftest import seed_params
from memo_functions import square

import fdb_embedded
from fdb_embedded import Faults
from fdb_schema import read_range
from idempotent_txn import run
from lease_locks import LeaseManager, MemoizingPicklingRunner, samethread_shell
from lease_locks.memo.counting import MICROSECONDS

DEADLINE = 120.0


def troubled(seed: int) -> tuple[Any, Any, Faults]:
    """(a database with faults, the same without, the faults)"""
    faults = Faults(
        seed=seed,
        not_committed=0.05,
        too_old=0.02,
        unknown_before=0.05,
        unknown_after=0.05,
        unknown_late=0.05,
        version_jump=0.005,
    )
    name = f"memory:lease-faults-{os.getpid()}-{seed}"
    return fdb_embedded.open(name, faults=faults), fdb_embedded.open(name), faults


def together(work: Any, count: int) -> None:
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive(), "still waiting"
    if errors:
        raise errors[0]


@pytest.mark.parametrize("seed", seed_params(15, fresh=2))
def test_a_count_under_a_lease_is_right_and_nothing_is_left_behind(seed: int) -> None:
    print(f"seed {seed}")
    db, clean, faults = troubled(seed)
    inside = 0
    most = 0
    tokens: list[Any] = []

    def work(number: int) -> None:
        nonlocal inside, most
        with LeaseManager(db, ttl=60.0) as locks:
            for turn in range(5):
                with locks.lock("n", timeout=DEADLINE, fair=bool((number + turn) % 3)) as lease:
                    inside += 1
                    most = max(most, inside)
                    tokens.append(lease.token)
                    count = int(bytes(clean.get(b"count") or b"0"))

                    def write(tr: Any, count: int = count, held: Any = lease) -> None:
                        held.guard(tr)
                        tr.set(b"count", str(count + 1).encode())

                    run(db, write)
                    inside -= 1

    together(work, 4)
    faults.land_all()
    assert most == 1
    assert bytes(clean.get(b"count")) == b"20"
    assert tokens == sorted(set(tokens))
    with LeaseManager(clean) as locks:
        assert locks.list() == []
        lock = locks.space.lock("n")
        assert run(clean, read_range, lock.holders, lock.rows_end) == [], "no holder, place or pointer is left"


@pytest.mark.parametrize("seed", seed_params(10, fresh=2))
def test_callers_get_one_result(seed: int, tmp_path: Path) -> None:
    print(f"seed {seed}")
    db, clean, faults = troubled(seed)
    results: list[int] = []

    def work(number: int) -> None:
        with LeaseManager(db, ttl=60.0) as locks:
            runner = MemoizingPicklingRunner(locks, shell=samethread_shell, pipeline_id="faults")
            for x in range(3):
                results.append(runner.call(square, x, str(tmp_path)))

    together(work, 4)
    faults.land_all()
    assert sorted(results) == [0] * 4 + [1] * 4 + [4] * 4
    assert len(os.listdir(tmp_path)) == 3, "each was computed once"
    with LeaseManager(clean) as locks:
        assert locks.list() == []
        counts: dict[str, int] = {}
        rows = MemoizingPicklingRunner(locks).rows
        for _, _, page in rows.runs(clean):
            for (_, kind), count in page.items():
                counts[kind] = counts.get(kind, 0) + count
        assert counts["executed"] == 3
        assert counts.pop(MICROSECONDS) > 0
        assert sum(counts.values()) == 12, counts
