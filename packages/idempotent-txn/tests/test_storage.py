"""What ids cost in storage: as little after many transactions as after a few, for every strategy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from idempotent_txn import Cleaner, IdempotencyId, expire_idempotency_id, id_status, run
from idempotent_txn.ids.keyspace import NATIVE_ROWS, NATIVE_ROWS_END, PREFIX

SECONDS_ON_THE_LOG = 10
"""For so long the engine's log keeps the ids of answered commits; then they end."""


def write(tr: Any, n: int) -> None:
    tr[b"n"] = b"%d" % n


def rows(db: Any) -> int:
    """Of this package, and of the engine's own ids."""
    tr = db.create_transaction()
    tr.options.set_read_system_keys()
    return len(list(tr.get_range_startswith(PREFIX))) + len(list(tr.get_range(NATIVE_ROWS, NATIVE_ROWS_END)))


@pytest.fixture
def pass_seconds(memory_db: Any) -> Callable[[float], None]:
    """Let the versions of the database advance."""
    clock = memory_db.dpointer.engine.store.clock

    def pass_by(seconds: float) -> None:
        clock.base += int(seconds * 1_000_000)

    return pass_by


@pytest.mark.parametrize(("strategy", "most"), [("native", 2 * SECONDS_ON_THE_LOG), ("lanes", 2), ("ids", 8)])
def test_storage_of_automatic_ids_does_not_grow_with_the_transactions(
    memory_db: Any, pass_seconds: Callable[[float], None], strategy: Any, most: int
) -> None:
    counted = []
    for n in range(1_500):
        run(memory_db, write, n, strategy=strategy)
        pass_seconds(0.5)
        if n % 500 == 499:
            # The log is trimmed every 64 commits, so it reaches back by as many more.
            counted.append(rows(memory_db) - (64 if strategy == "native" else 0))
    assert max(counted) <= most, counted


@pytest.mark.parametrize("strategy", ["native", "ids"])
def test_seed_the_space_of_expired_ids_is_used_again(
    memory_db: Any, pass_seconds: Callable[[float], None], strategy: Any
) -> None:
    for n in range(300):
        id = IdempotencyId(b"the id of order %06d" % n)
        run(memory_db, write, n, strategy=strategy, idempotency_id=id)
        pass_seconds(0.5)
        assert expire_idempotency_id(memory_db, id)
    assert sum(store.ids for store in id_status(memory_db)) == 0


@pytest.mark.parametrize("strategy", ["native", "ids"])
def test_seed_the_cleaner_reclaims_the_oldest_ids_that_nobody_expires(
    memory_db: Any, pass_seconds: Callable[[float], None], strategy: Any
) -> None:
    cleaner = Cleaner(memory_db, IDEMPOTENCY_IDS_MIN_AGE_SECONDS=60)
    counted = []
    for n in range(600):
        run(memory_db, write, n, strategy=strategy, idempotency_id=b"the id of order %06d" % n)
        pass_seconds(1)
        if n % 100 == 99:
            cleaner.run_once()
            counted.append(sum(store.ids for store in id_status(memory_db)))
    assert all(55 <= count <= 61 for count in counted), counted
