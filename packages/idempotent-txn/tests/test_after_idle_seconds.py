"""A commit is found by its id however long nobody had committed before it."""

from __future__ import annotations

from typing import Any

import pytest

from idempotent_txn import Committed, IdempotencyId, NotCommitted, commit_result, run

SECOND = 1_000_000
ID = IdempotencyId(b"an order, number seventeen")


def pass_time(db: Any, seconds: float) -> None:
    db.dpointer.engine.store.clock.base += int(seconds * SECOND)


@pytest.mark.parametrize("strategy", ["native", "ids"])
@pytest.mark.parametrize("reads", [True, False])
def test_a_commit_after_six_idle_seconds_is_found(memory_db: Any, strategy: Any, reads: bool) -> None:
    memory_db[b"k"] = b"v"
    pass_time(memory_db, 6)
    snapshots: list[int] = []

    def body(tr: Any) -> None:
        if reads:
            tr[b"k"].wait()
        tr[b"paid"] = b"yes"

    run(memory_db, body, idempotency_id=ID, strategy=strategy, on_attempt=snapshots.append)
    pass_time(memory_db, 6)
    assert isinstance(commit_result(memory_db, ID, snapshots[-1]), Committed)


def test_a_commit_far_above_its_read_snapshot_is_found(memory_db: Any) -> None:
    snapshot = int(memory_db.create_transaction().get_read_version().wait())
    pass_time(memory_db, 60)
    run(memory_db, lambda tr: tr.set(b"k", b"v"), idempotency_id=ID)
    assert isinstance(commit_result(memory_db, ID, snapshot), Committed)


def test_what_never_committed_is_not_found_after_idle_seconds_either(memory_db: Any) -> None:
    snapshot = int(memory_db.create_transaction().get_read_version().wait())
    pass_time(memory_db, 6)
    assert commit_result(memory_db, ID, snapshot) == NotCommitted()
