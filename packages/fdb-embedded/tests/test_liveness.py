"""Many open transactions, threads that share one, watches that are dropped: what costs nothing, and what never fails."""

from __future__ import annotations

import fcntl
import gc
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import PYTHON_AND_C, calls_of

import fdb_embedded
from fdb_embedded.engine import snapshot
from fdb_embedded.storage import durability, journal


@pytest.fixture
def db(tmp_path: Path) -> Any:
    opened = fdb_embedded.open(tmp_path / "db")
    yield opened
    fdb_embedded.close(opened)


@pytest.fixture
def shared_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots are shared for as long as a busy machine may take."""
    monkeypatch.setattr(snapshot, "SHARED_FOR", 60.0)


def engine_of(db: Any) -> Any:
    return db.dpointer.engine


# --- many open transactions ---


@pytest.mark.usefixtures("shared_long")
def test_thousands_of_open_transactions_share_one_snapshot(db: Any) -> None:
    db[b"a"] = b"1"
    began = []
    store = engine_of(db).store
    begin = store.map.reads.begin

    class Counted:
        def __getattr__(self, name: str) -> Any:
            if name == "begin":
                began.append(None)
                return begin
            return getattr(reads, name)

    reads, store.map.reads = store.map.reads, Counted()
    try:
        held = []
        for _ in range(10_000):
            tr = db.create_transaction()
            assert tr[b"a"].value == b"1"
            held.append(tr)
    finally:
        store.map.reads = reads
    assert len({id(tr.tpointer.snap) for tr in held}) == len(began) == 1
    assert len(engine_of(db).snapshots.live) <= len(began)


@pytest.mark.usefixtures("shared_long")
def test_who_begins_after_a_commit_shares_nothing_older(db: Any) -> None:
    held = []
    for number in range(200):
        db[b"a"] = b"%d" % number
        for _ in range(2):
            tr = db.create_transaction()
            assert tr[b"a"].value == b"%d" % number
            held.append(tr)
    for number, tr in enumerate(held):
        assert tr[b"a"].value == b"%d" % (number // 2)
    assert len({id(tr.tpointer.snap) for tr in held}) == 200


@pytest.mark.usefixtures("shared_long")
def test_a_shared_snapshot_ends_with_its_last_user(db: Any) -> None:
    db[b"a"] = b"1"
    first, second = db.create_transaction(), db.create_transaction()
    assert first[b"a"].value == second[b"a"].value == b"1"
    assert first.tpointer.snap is second.tpointer.snap
    first.cancel()
    assert second[b"b"].value is None
    second.cancel()
    assert not engine_of(db).snapshots.live


@pytest.mark.usefixtures("shared_long")
def test_readers_that_follow_one_another_share_a_snapshot_until_the_next_commit(db: Any) -> None:
    def read() -> tuple[int, bytes]:
        tr = db.create_transaction()
        value = tr[b"a"].value
        return id(tr.tpointer.snap), value

    db[b"a"] = b"1"
    kept = engine_of(db).snapshots
    assert len({read() for _ in range(100)}) == 1
    (snap,) = kept.live.values()
    assert snap.users == 0
    db[b"a"] = b"2"
    assert snap.ended
    assert not kept.live
    assert {value for _, value in (read() for _ in range(100))} == {b"2"}


def test_a_snapshot_that_waits_for_readers_ends_soon(db: Any) -> None:
    db[b"a"] = b"1"
    assert db.create_transaction()[b"a"].value == b"1"
    deadline = time.monotonic() + 5.0
    while engine_of(db).snapshots.live and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not engine_of(db).snapshots.live


# --- threads that share a transaction ---


def actions(tr: Any, key: bytes, other: bytes) -> list[Any]:
    fdb = fdb_embedded.load()
    return [
        lambda: tr.set(key, b"v"),
        lambda: tr.clear(key),
        lambda: tr.clear_range(key, other),
        lambda: tr.add(key, b"\1"),
        lambda: tr[key].value,
        lambda: list(tr.get_range(b"k", key)),
        lambda: tr.get_key(fdb.KeySelector.first_greater_than(key)).value,
        lambda: tr.set_versionstamped_key(b"s" + bytes(10) + b"\1\0\0\0", b"v"),
        lambda: tr.get_approximate_size().wait(),
        lambda: tr.add_read_conflict_key(key),
        lambda: tr.add_write_conflict_range(key, other),
        lambda: tr.options.set_next_write_no_write_conflict_range(),
        lambda: list(
            tr.get_range(
                b"\xff\xff/transaction/write_conflict_range/",
                b"\xff\xff/transaction/write_conflict_range0",
            )
        ),
    ]


def test_threads_that_share_a_transaction_get_nothing_but_its_own_errors(db: Any) -> None:
    import sys

    fdb = fdb_embedded.load()
    unexpected: list[BaseException] = []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work(tr: Any, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(60):
            key = b"k%02d" % chance.randrange(40)
            try:
                chance.choice(actions(tr, key, key + b"\xf0"))()
            except fdb.FDBError:
                pass
            except BaseException as error:
                unexpected.append(error)
                raise

    try:
        for round_number in range(12):
            tr = db.create_transaction()
            threads = [threading.Thread(target=work, args=(tr, 100 * round_number + number)) for number in range(6)]
            for thread in threads:
                thread.start()
            if round_number % 3 == 2:  # in the midst of it: what comes after that is refused
                tr.commit()
            for thread in threads:
                thread.join()
            try:
                tr.commit().wait()
            except fdb.FDBError:
                pass
    finally:
        sys.setswitchinterval(interval)
    assert not unexpected


def test_threads_that_read_a_transaction_by_its_clients_segments_get_what_it_holds(db: Any) -> None:
    import sys

    fdb = fdb_embedded.load()
    for number in range(0, 60, 2):
        db[b"k%02d" % number] = b"stored"
    unexpected: list[BaseException] = []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work(tr: Any, own: int) -> None:
        try:
            for number in range(own, 240, 4):
                key = b"k%02d" % (number * 7 % 60)
                tr.set_versionstamped_key(b"s%03d" % number + bytes(10) + b"\4\0\0\0", b"")
                tr.compare_and_clear(key, b"never")
                assert tr.get_key(fdb.KeySelector.first_greater_or_equal(b"k00") + 1).wait().startswith(b"k")
                assert tr.get(key).wait() in (None, b"stored")
        except BaseException as error:
            unexpected.append(error)

    try:
        tr = db.create_transaction()
        threads = [threading.Thread(target=work, args=(tr, own)) for own in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        tr.commit().wait()
    finally:
        sys.setswitchinterval(interval)
    assert not unexpected


def test_threads_that_share_a_transaction_read_one_version_and_lose_no_conflict(db: Any) -> None:
    fdb = fdb_embedded.load()
    for number in range(30):
        tr = db.create_transaction()
        gate = threading.Barrier(4)

        def read(tr: Any = tr, gate: Any = gate) -> None:
            gate.wait()
            tr[b"%d" % threading.get_ident()].value

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        names = [b"%d" % (thread.ident or 0) for thread in threads]
        for thread in threads:
            thread.join()
        assert tr.tpointer.read_points == set(names)
        assert len(engine_of(db).snapshots.live) == 1
        db[names[number % 4]] = b"changed"
        tr[b"x"] = b"1"
        with pytest.raises(fdb.FDBError) as caught:
            tr.commit().wait()
        assert caught.value.code == 1020


def test_of_two_threads_that_commit_one_transaction_one_does(db: Any) -> None:
    tr = db.create_transaction()
    tr.add(b"n", b"\1")
    gate = threading.Barrier(2)
    results: list[int] = []
    fdb = fdb_embedded.load()

    def commit() -> None:
        gate.wait()
        try:
            tr.commit().wait()
            results.append(0)
        except fdb.FDBError as error:
            results.append(error.code)

    threads = [threading.Thread(target=commit) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(code == 2017 for code in results) >= 1
    assert db[b"n"] in (b"\1", None)


# --- nothing is quadratic ---


def append_and_set(tr: Any, count: int) -> None:
    for number in range(count):
        tr.set_versionstamped_key(b"log/" + bytes(10) + b"/%06d" % number + (4).to_bytes(4, "little"), b"v")
        tr[b"row/%06d" % number] = b"v"
        tr.clear(b"gone/%06d" % number)


def append_and_read(tr: Any, count: int) -> None:
    for number in range(count):
        tr.set_versionstamped_key(b"log%06d/" % number + bytes(10) + (10).to_bytes(4, "little"), b"v")
        tr[b"row/%06d" % number] = b"v"
        list(tr.get_range(b"row/%06d" % number, b"row/%06d\xff" % number))
        tr.clear_range(b"log%06d/a" % number, b"log%06d/b" % number)


@pytest.mark.parametrize("work", [append_and_set, append_and_read])
def test_a_transaction_twice_as_long_takes_twice_the_work(db: Any, work: Any) -> None:
    def calls(size: int) -> int:
        tr = db.create_transaction()
        return calls_of(lambda: (work(tr, size), tr.commit().wait()), events=PYTHON_AND_C)

    # Of several: the housekeeper may have made the commit of one, in its own thread.
    assert max(calls(300) for _ in range(3)) < 2.2 * max(calls(150) for _ in range(3))


# --- a process that is stopped ---


@pytest.fixture
def flushed_db(tmp_path: Path) -> Any:
    opened = fdb_embedded.open(tmp_path / "db", durability="fsync")
    yield opened
    fdb_embedded.close(opened)


def lead_and_stop(directory: Path) -> int:
    """What a process leaves that is stopped while it leads a flush: the lock of flushes."""
    held = os.open(directory / "flush.lock", os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    return held


def test_who_is_stopped_while_he_flushes_stops_nobody_else(flushed_db: Any, tmp_path: Path) -> None:
    flushed_db[b"a"] = b"0"
    held = lead_and_stop(tmp_path / "db")
    try:
        began = time.monotonic()
        flushed_db[b"a"] = b"1"
        assert flushed_db[b"a"] == b"1"
        took = time.monotonic() - began
        engine = engine_of(flushed_db)
        assert engine.store.page.flushed() >= engine.store.read(journal.place)[1]
    finally:
        os.close(held)
    assert durability.STALLED <= took < 1


def test_who_is_stopped_while_he_flushes_is_waited_for_once(
    flushed_db: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = lead_and_stop(tmp_path / "db")
    try:
        flushed_db[b"a"] = b"0"
        monkeypatch.setattr(durability, "STALLED", 600.0)
        tr = flushed_db.create_transaction()
        tr.options.set_timeout(30_000)
        tr[b"a"] = b"1"
        tr.commit().wait()
        assert engine_of(flushed_db).store.flusher._stalled
    finally:
        os.close(held)
    flushed_db[b"a"] = b"2"
    assert not engine_of(flushed_db).store.flusher._stalled


def test_timeouts_and_cancels_end_the_wait_for_a_flush(
    flushed_db: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fdb = fdb_embedded.load()
    flushed_db[b"a"] = b"0"
    monkeypatch.setattr(durability, "STALLED", 60.0)
    held = lead_and_stop(tmp_path / "db")
    try:
        writer = flushed_db.create_transaction()
        writer.options.set_timeout(100)
        writer[b"a"] = b"1"
        with pytest.raises(fdb.FDBError) as caught:
            writer.commit().wait()
        assert caught.value.code == 1031
        engine_of(flushed_db).snapshots._flushed_at = (-1, 0)  # nothing that shows an earlier version is kept
        reader = flushed_db.create_transaction()
        reader.options.set_timeout(100)
        with pytest.raises(fdb.FDBError) as caught:
            reader[b"a"].wait()
        assert caught.value.code == 1031
        cancelled = flushed_db.create_transaction()
        threading.Timer(0.05, cancelled.cancel).start()
        with pytest.raises(fdb.FDBError) as caught:
            cancelled[b"a"].wait()
        assert caught.value.code == 1025
    finally:
        os.close(held)
    assert flushed_db[b"a"] == b"1"


# --- watches ---


@pytest.mark.parametrize("writes", [False, True])
def test_watches_that_are_dropped_make_room(db: Any, writes: bool) -> None:
    db.options.set_max_watches(20)
    for number in range(100):
        tr = db.create_transaction()
        watch = tr.watch(b"w%d" % number)
        if writes:
            tr[b"x"] = b"1"
        tr.commit().wait()
        assert not watch.is_ready()
        del watch
    assert len(db.dpointer.watches) <= 1


def test_a_watch_that_somebody_is_called_back_by_stays_though_it_is_dropped(db: Any) -> None:
    called = threading.Event()
    tr = db.create_transaction()
    tr.watch(b"w").on_ready(lambda _: called.set())
    tr.commit().wait()
    del tr
    gc.collect()
    db[b"w"] = b"1"
    assert called.wait(10)
    assert not engine_of(db).watches.awaited
