"""A deadline holds, too, while nobody can commit: on the embedded engine a commit that was never begun is known as such."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fdb_schema import open_database
from idempotent_txn import TransactionTimedOut, run

WAIT = 30.0


@contextmanager
def no_commits(path: Path) -> Iterator[None]:
    """As while a process is stopped in the midst of a commit."""
    held = os.open(path / "writer.lock", os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(held)


def write(tr: Any, key: bytes) -> None:
    tr[key] = b"1"


@pytest.mark.parametrize("strategy", ["native", "lanes", "ids", "off"])
def test_a_deadline_holds_while_nobody_can_commit(database_dir: Path, strategy: Any) -> None:
    db = open_database(f"embedded:{database_dir}")
    run(db, write, b"before", strategy=strategy, timeout=WAIT)
    with no_commits(database_dir), pytest.raises(TransactionTimedOut, match="nothing committed"):
        run(db, write, b"late", strategy=strategy, timeout=0.2)
    run(db, write, b"after", strategy=strategy, timeout=WAIT)
    assert [key for key in (b"before", b"late", b"after") if db[key] is not None] == [b"before", b"after"]


def test_of_many_that_wait_none_is_made_once_its_deadline_has_passed(database_dir: Path) -> None:
    db = open_database(f"embedded:{database_dir}")
    run(db, write, b"before")
    told: list[bytes] = []

    def late(number: int) -> None:
        key = b"late %d" % number
        try:
            run(db, write, key, timeout=0.05 * (1 + number % 4))
        except TransactionTimedOut:
            told.append(key)

    threads = [threading.Thread(target=late, args=(number,)) for number in range(16)]
    with no_commits(database_dir):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
        assert len(told) == 16
    run(db, write, b"after")
    assert [bytes(key) for key, _ in db.get_range(b"a", b"z")] == [b"after", b"before"]
