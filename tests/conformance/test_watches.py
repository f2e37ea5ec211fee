"""Watches: when they fire, when they don't, limits, errors, threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import fdb
import pytest
from tests.conformance.expect import CANCELLED, OUTSIDE_LEGAL_RANGE, WAIT, commit_code, fdb_error, value

QUIET = 0.3
"""Seconds in which something that must not happen would have happened."""


def watched(db: Any, key: bytes) -> Any:
    tr = db.create_transaction()
    watch = tr.watch(key)
    tr.commit().wait()
    return watch


def fires(watch: Any) -> bool:
    """Whether the watch fires within the time in which it must."""
    done = threading.Event()
    watch.on_ready(lambda _: done.set())
    if not done.wait(WAIT):
        return False
    watch.wait()
    return True


def stays_silent(*watches: Any) -> bool:
    time.sleep(QUIET)
    return not any(watch.is_ready() for watch in watches)


CHANGES = {
    "set": lambda db: db.set(b"k", b"changed"),
    "clear": lambda db: db.clear(b"k"),
    "clear range": lambda db: db.clear_range(b"a", b"z"),
    "atomic": lambda db: db.bit_xor(b"k", b"\xff\xff"),
    "stamped": lambda db: db.set_versionstamped_value(b"k", b"\x00" * 14),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_watch_fires_when_the_value_changes(any_db: Any, change: str) -> None:
    any_db[b"k"] = b"v"
    watch = watched(any_db, b"k")
    assert not watch.is_ready()
    CHANGES[change](any_db)
    assert fires(watch)


def test_a_watch_on_an_absent_key_fires_when_it_appears(any_db: Any) -> None:
    watch = watched(any_db, b"k")
    any_db[b"k"] = b""
    assert fires(watch)


def test_other_keys_and_equal_values_do_not_fire_it(any_db: Any) -> None:
    any_db[b"k"] = b"v"
    watch = watched(any_db, b"k")
    absent = watched(any_db, b"absent")
    any_db[b"j"] = b"1"
    any_db[b"k\x00"] = b"1"
    any_db[b"k"] = b"v"
    any_db.clear(b"absent")
    any_db.clear_range(b"l", b"z")
    any_db.add(b"k", b"\x00")
    any_db[b"k"] = b"v"
    assert stays_silent(absent)
    any_db[b"k"] = b"w"
    any_db[b"absent"] = b""
    assert fires(watch)
    assert fires(absent)


def test_many_watches_on_one_key_fire_together(any_db: Any) -> None:
    watches = [watched(any_db, b"k") for _ in range(20)]
    any_db[b"k"] = b"v"
    assert all(fires(watch) for watch in watches)


def test_many_keys_have_their_own_watches(any_db: Any) -> None:
    watches = {i: watched(any_db, b"k%d" % i) for i in range(30)}
    for i in range(0, 30, 2):
        any_db[b"k%d" % i] = b"v"
    assert all(fires(watches[i]) for i in range(0, 30, 2))
    assert stays_silent(*(watches[i] for i in range(1, 30, 2)))


def test_a_watch_begins_with_its_commit(any_db: Any) -> None:
    any_db[b"k"] = b"0"
    tr = any_db.create_transaction()
    watch = tr.watch(b"k")
    tr[b"k"] = b"0"
    assert not watch.is_ready()
    tr.commit().wait()
    assert stays_silent(watch)
    any_db[b"k"] = b"1"
    assert fires(watch)


def test_a_change_between_the_read_and_the_commit_fires_it(any_db: Any) -> None:
    any_db[b"k"] = b"0"
    tr = any_db.create_transaction()
    watch = tr.watch(b"k")
    tr.get(b"k").wait()
    any_db[b"k"] = b"1"
    tr.commit().wait()
    assert fires(watch)


def test_an_own_write_after_the_watch_fires_it(any_db: Any) -> None:
    any_db[b"k"] = b"0"
    tr = any_db.create_transaction()
    watch = tr.watch(b"k")
    tr.get(b"k").wait()
    tr[b"k"] = b"1"
    tr.commit().wait()
    assert fires(watch)


def test_an_own_write_before_the_watch_is_what_it_watches(any_db: Any) -> None:
    any_db[b"k"] = b"0"
    tr = any_db.create_transaction()
    tr[b"k"] = b"1"
    watch = tr.watch(b"k")
    tr.commit().wait()
    assert stays_silent(watch)
    any_db[b"k"] = b"2"
    assert fires(watch)


def test_the_calls_of_a_database(any_db: Any) -> None:
    any_db[b"k"] = b"0"
    got, watch = any_db.get_and_watch(b"k")
    assert got == b"0"
    any_db[b"k"] = b"1"
    assert fires(watch)
    watch = any_db.set_and_watch(b"k", b"2")
    assert any_db[b"k"] == b"2"
    any_db[b"k"] = b"3"
    assert fires(watch)
    watch = any_db.clear_and_watch(b"k")
    assert any_db[b"k"] is None
    any_db[b"k"] = b"4"
    assert fires(watch)


def test_a_watch_conflicts_like_a_read(any_db: Any) -> None:
    tr = any_db.create_transaction()
    watch = tr.watch(b"k")
    tr.get_read_version().wait()
    value(tr, b"other")
    tr[b"x"] = b""
    any_db[b"k"] = b"changed"
    assert commit_code(tr) == 1020
    with fdb_error(1020):
        watch.wait()


def test_a_watch_of_a_reset_transaction_is_cancelled(any_db: Any) -> None:
    tr = any_db.create_transaction()
    watch = tr.watch(b"k")
    tr.reset()
    with fdb_error(CANCELLED):
        watch.wait()


def test_a_watch_outlives_its_transaction(any_db: Any) -> None:
    watch = watched(any_db, b"k")
    tr = any_db.create_transaction()
    second = tr.watch(b"k")
    tr.commit().wait()
    tr.reset()
    del tr
    assert stays_silent(watch, second)
    any_db[b"k"] = b"v"
    assert fires(watch)
    assert fires(second)


def test_watches_are_disabled_without_ryw(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr.options.set_read_your_writes_disable()
    with fdb_error(1034):
        tr.watch(b"k").wait()


def test_a_watch_of_a_system_key_is_refused(any_db: Any) -> None:
    tr = any_db.create_transaction()
    with fdb_error(OUTSIDE_LEGAL_RANGE):
        tr.watch(b"\xff/x").wait()


def test_a_watch_of_an_overlong_key_is_refused(any_db: Any) -> None:
    tr = any_db.create_transaction()
    with fdb_error(2102):
        tr.watch(b"k" * 10_001).wait()


@pytest.fixture
def few_watches_db(any_db: Any) -> Iterator[Any]:
    """A database that allows fewer watches, and as many as ever afterwards: a cluster's database is opened once."""
    yield any_db
    any_db.options.set_max_watches(10_000)


def test_there_are_only_so_many_watches(few_watches_db: Any) -> None:
    any_db = few_watches_db
    any_db.options.set_max_watches(3)
    tr = any_db.create_transaction()
    assert [value(tr, b"k%d" % i) for i in range(4)] == [None] * 4
    watches = [tr.watch(b"k%d" % i) for i in range(3)]
    too_many = tr.watch(b"k3")
    with fdb_error(1032):
        too_many.wait()
    tr.commit().wait()
    for i in range(3):
        any_db[b"k%d" % i] = b"v"
    assert all(fires(watch) for watch in watches)
    again = watched(any_db, b"k")
    any_db[b"k"] = b"v"
    assert fires(again)


def test_a_cancelled_watch_makes_room(few_watches_db: Any) -> None:
    any_db = few_watches_db
    any_db.options.set_max_watches(1)
    first = watched(any_db, b"k")
    first.cancel()
    with fdb_error(1101):
        first.wait()
    deadline = time.monotonic() + WAIT
    while (second := outcome(any_db)) == 1032:
        assert time.monotonic() < deadline
    assert second == 0


def outcome(db: Any) -> int:
    """The code with which a watch of a key that changes ends: 0 when it fires."""
    watch = watched(db, b"k")
    db[b"k"] = b"%f" % time.monotonic()
    try:
        watch.wait()
    except fdb.FDBError as error:
        return int(error.code)
    return 0


def test_a_watch_wakes_a_thread_that_waits(any_db: Any) -> None:
    watch = watched(any_db, b"k")
    woken = threading.Event()

    def wait() -> None:
        watch.wait()
        woken.set()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert not woken.wait(0.05)
    any_db[b"k"] = b"v"
    assert woken.wait(WAIT)
    thread.join(WAIT)


def test_callbacks_of_a_watch_run_once_and_at_once_when_it_has_fired(any_db: Any) -> None:
    watch = watched(any_db, b"k")
    calls: list[int] = []
    both = threading.Semaphore(0)

    def note(number: int) -> None:
        calls.append(number)
        both.release()

    watch.on_ready(lambda _: note(1))
    any_db[b"k"] = b"v"
    assert both.acquire(timeout=WAIT)
    watch.on_ready(lambda _: note(2))
    assert both.acquire(timeout=WAIT)
    assert calls == [1, 2]


def test_wait_for_any_gives_the_watch_that_fired(any_db: Any) -> None:
    watches = [watched(any_db, b"k%d" % i) for i in range(4)]
    any_db[b"k2"] = b"v"
    assert fdb.Future.wait_for_any(*watches) == 2
    assert not watches[0].is_ready()


def test_a_watch_loop_sees_the_last_value(any_db: Any) -> None:
    seen: list[bytes | None] = []

    @fdb.transactional
    def look(tr: Any) -> tuple[bytes | None, Any]:
        return value(tr, b"k"), tr.watch(b"k")

    def follow() -> None:
        while not seen or seen[-1] != b"50":
            got, watch = look(any_db)
            seen.append(got)
            if got != b"50":
                watch.wait()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    for i in range(51):
        any_db[b"k"] = b"%d" % i
    thread.join(WAIT)
    assert not thread.is_alive()
    assert seen[-1] == b"50"
    numbers = [int(v) for v in seen if v is not None]
    assert numbers == sorted(numbers)
