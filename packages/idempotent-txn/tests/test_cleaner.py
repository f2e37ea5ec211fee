"""The cleaner: oldest first, never anything younger, and whoever asks for a cleaned id learns it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fdb_schema import prefix_end, read_range
from idempotent_txn import Cleaned, Cleaner, CommitUnknownResultFatal, NotCommitted, commit_result, id_status, run
from idempotent_txn.cleaner import VERSIONS_PER_SECOND
from idempotent_txn.ids.keyspace import EXPIRED_VERSION, ROWS
from idempotent_txn.ids.rows import decode_expired_version, decode_row, row_key, row_value


def put_rows(db: Any, versions: list[int], timestamp: int = 0) -> None:
    """Rows as old commits left them, one id each."""
    tr = db.create_transaction()
    for version in versions:
        tr[row_key(ROWS, version, 0)] = row_value([(b"id of %010d" % version, 0)], timestamp)
    tr.commit().wait()


def row_versions(db: Any) -> list[int]:
    tr = db.create_transaction()
    return [decode_row(ROWS, key, value).version for key, value in read_range(tr, ROWS, prefix_end(ROWS))]


def advance(db: Any, version: int) -> int:
    """Wait until the database's versions have passed `version`; returns one that has."""
    pause = threading.Event()
    for _ in range(6_000):
        db[b"tick"] = b"x"
        now = int(db.create_transaction().get_read_version().wait())
        if now > version:
            return now
        pause.wait(0.01)
    raise AssertionError(f"versions don't advance: {now}")


def test_age_is_judged_by_version_and_the_border_is_exact(memory_db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = advance(memory_db, 1_000_100)
    old, border, young = now - 1_000_001, now - 1_000_000, now - 999_999
    # What their timestamps say is for people: these would all be ancient, or of the future.
    put_rows(memory_db, [old, young], timestamp=0)
    put_rows(memory_db, [border], timestamp=2**60)
    monkeypatch.setattr("idempotent_txn.cleaner.current_version", lambda db: now)
    cleared = Cleaner(memory_db, IDEMPOTENCY_IDS_MIN_AGE_SECONDS=1).run_once()
    assert (cleared.rows, cleared.ids) == (2, 2)
    assert row_versions(memory_db) == [young]
    assert decode_expired_version(bytes(memory_db[EXPIRED_VERSION])) == border


def test_nothing_to_clean_changes_nothing(memory_db: Any) -> None:
    assert Cleaner(memory_db).run_once() == Cleaned()
    assert Cleaner(memory_db, 0).run_once() == Cleaned()
    assert list(memory_db.get_range(b"", b"\xff")) == []


@pytest.mark.parametrize("key", [bytes(10), bytes(7) + b"\3\0", bytes(8), bytes(40)])
def test_a_damaged_row_is_cleared_and_stops_nothing(memory_db: Any, key: bytes) -> None:
    put_rows(memory_db, [1, 2])
    memory_db[ROWS + key] = b"no row"
    now = advance(memory_db, 1_000_100)
    assert [(status.rows, status.ids) for status in id_status(memory_db) if status.store == "ids"] == [(3, 2)]
    cleared = Cleaner(memory_db, 0).run_once()
    assert cleared.ids == 2
    assert row_versions(memory_db) == []
    assert 2 <= decode_expired_version(bytes(memory_db[EXPIRED_VERSION])) <= now


def test_many_rows_go_in_several_transactions_oldest_first(memory_db: Any) -> None:
    now = advance(memory_db, 10_000)
    put_rows(memory_db, list(range(1, 2_501)))
    put_rows(memory_db, [now + 3_600 * VERSIONS_PER_SECOND])
    cleaned = Cleaner(memory_db, 0).run_once()
    assert (cleaned.rows, cleaned.ids, cleaned.bytes) == (2_500, 2_500, 2_500 * (len(ROWS) + 9 + 16 + 18))
    assert row_versions(memory_db) == [now + 3_600 * VERSIONS_PER_SECOND]
    assert decode_expired_version(bytes(memory_db[EXPIRED_VERSION])) == 2_500


def test_the_expired_version_never_falls(memory_db: Any) -> None:
    advance(memory_db, 10_000)
    put_rows(memory_db, [500])
    Cleaner(memory_db, 0).run_once()
    put_rows(memory_db, [100])
    assert Cleaner(memory_db, 0).run_once().rows == 1
    assert decode_expired_version(bytes(memory_db[EXPIRED_VERSION])) == 500


def test_whoever_asks_for_a_cleaned_time_learns_that_nobody_can_tell(memory_db: Any) -> None:
    advance(memory_db, 10_000)
    put_rows(memory_db, [500, 600])
    Cleaner(memory_db, 0).run_once()
    with pytest.raises(CommitUnknownResultFatal):
        commit_result(memory_db, b"id", 600)
    assert commit_result(memory_db, b"id", 601) == NotCommitted()


def test_a_row_that_is_cleared_while_its_id_is_looked_up_is_never_taken_for_not_committed(memory_db: Any) -> None:
    """Rows and the expired version are read in one snapshot, and changed in one transaction."""
    stop = threading.Event()
    thread = threading.Thread(target=Cleaner(memory_db, 0).run, args=(stop, 0.001))
    thread.start()
    fatal = committed = 0
    try:
        for n in range(200):
            snapshots: list[int] = []
            id = b"id of number %d" % n
            run(
                memory_db,
                lambda tr, n=n: tr.set(b"k", b"%d" % n),
                strategy="ids",
                idempotency_id=id,
                on_attempt=snapshots.append,
            )
            try:
                assert commit_result(memory_db, id, snapshots[-1])
                committed += 1
            except CommitUnknownResultFatal:
                fatal += 1
    finally:
        stop.set()
        thread.join(60)
    assert committed + fatal == 200


def test_run_loops_until_it_is_stopped(memory_db: Any) -> None:
    advance(memory_db, 10_000)
    stop = threading.Event()
    thread = threading.Thread(target=Cleaner(memory_db, 0).run, args=(stop, 0.001))
    thread.start()
    try:
        for version in (100, 200, 300):
            put_rows(memory_db, [version])
            pause = threading.Event()
            for _ in range(60_000):
                if not row_versions(memory_db):
                    break
                pause.wait(0.001)
            assert row_versions(memory_db) == []
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()


def test_a_negative_age_is_refused(memory_db: Any) -> None:
    with pytest.raises(ValueError, match="seconds from 0"):
        Cleaner(memory_db, -1)


def test_status_counts_rows_ids_and_bytes_and_tells_the_oldest(memory_db: Any) -> None:
    now = advance(memory_db, 10_000)
    put_rows(memory_db, [500, 600], timestamp=77)
    status = {store.store: store for store in id_status(memory_db)}["ids"]
    assert (status.rows, status.ids, status.bytes) == (2, 2, 2 * (len(ROWS) + 9 + 16 + 18 - 0))
    assert status.oldest_timestamp == 77
    assert status.oldest_age is not None and status.oldest_age >= (now - 500) / VERSIONS_PER_SECOND
    assert status.expired_version == 0
