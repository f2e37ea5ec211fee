"""A process that is stopped, wherever that is, keeps nobody beyond his own timeout, his `cancel`, or a signal."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import fdb_embedded
from fdb_embedded.engine import engine
from fdb_embedded.engine.engine import Engine
from fdb_embedded.errors import Code
from fdb_embedded.sharing import locks, shared, waiting
from fdb_embedded.storage import durability, files

WAIT = 60.0


@pytest.fixture
def db(tmp_path: Path) -> Any:
    opened = fdb_embedded.open(tmp_path / "db")
    opened[b"a"] = b"0"
    yield opened
    fdb_embedded.close(opened)


def engine_of(db: Any) -> Any:
    return db.dpointer.engine


@contextmanager
def stopped_writer(db: Any) -> Iterator[None]:
    """What a process leaves that is stopped in the midst of a commit: the lock of writers."""
    held = os.open(engine_of(db).path / "writer.lock", os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(held)


@contextmanager
def stopped_grower(db: Any) -> Iterator[None]:
    """What a process leaves that is stopped while it opens the database, or lets its file grow: the lock of the map."""
    held = os.open(engine_of(db).path / "shared", os.O_RDWR)
    assert locks.try_lock(held, shared.MAP_LOCK)
    try:
        yield
    finally:
        os.close(held)


def writer(db: Any, timeout: int = 0, value: bytes = b"1") -> Any:
    tr = db.create_transaction()
    if timeout:
        tr.options.set_timeout(timeout)
    tr[b"a"] = value
    return tr


def code_of(wait: Callable[[], Any]) -> int:
    try:
        wait()
    except fdb_embedded.load().FDBError as error:
        return int(error.code)
    return 0


def code_when_called_back(future: Any) -> int:
    done = threading.Event()
    future.on_ready(lambda _: done.set())
    assert done.wait(WAIT), "nobody finished it"
    return int(future.fpointer.error)


# --- the lock of writers ---


def test_a_timeout_ends_the_wait_for_a_writer_that_is_stopped_and_nothing_is_written(db: Any) -> None:
    with stopped_writer(db):
        began = time.monotonic()
        assert code_of(writer(db, 100).commit().wait) == 1031
        assert time.monotonic() - began < 5
        assert db[b"a"] == b"0", "reads go on"
    assert writer(db, value=b"2").commit().wait() is None
    assert db[b"a"] == b"2"


def test_a_cancel_ends_the_wait_for_a_writer_that_is_stopped(db: Any) -> None:
    with stopped_writer(db):
        tr = writer(db)
        future = tr.commit()
        threading.Timer(0.05, tr.cancel).start()
        assert code_of(future.wait) == 1025
    assert db[b"a"] == b"0"


def test_a_signal_handler_gets_through_to_who_waits_for_a_writer(db: Any) -> None:
    class Alarm(Exception):
        pass

    def ring(*_: Any) -> None:
        raise Alarm

    before = signal.signal(signal.SIGALRM, ring)
    try:
        with stopped_writer(db):
            future = writer(db).commit()
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(Alarm):
                future.wait()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert code_when_called_back(future) == 0
    assert db[b"a"] == b"1"


def test_a_commit_that_nobody_waits_for_times_out_and_timers_go_on(db: Any) -> None:
    with stopped_writer(db):
        ticked = threading.Event()
        tr = writer(db, 100)
        stamp, watch = tr.get_versionstamp(), tr.watch(b"a")
        future = tr.commit()
        assert code_when_called_back(future) == 1031
        engine_of(db).housekeeper.call_at(time.monotonic(), ticked.set)
        assert ticked.wait(WAIT)
        assert [code_of(stamp.wait), code_of(watch.wait)] == [1031, 1031]
    assert db[b"a"] == b"0"


def test_of_threads_that_wait_for_one_writer_each_keeps_its_own_time(db: Any) -> None:
    codes: dict[str, int] = {}
    patient, hasty = writer(db, value=b"patient"), writer(db, 150, value=b"hasty")
    cancelled = writer(db, value=b"cancelled")

    def run(name: str, tr: Any) -> None:
        codes[name] = code_of(tr.commit().wait)

    threads = {
        name: threading.Thread(target=run, args=(name, tr))
        for name, tr in [("cancelled", cancelled), ("patient", patient), ("hasty", hasty)]
    }
    with stopped_writer(db):
        for thread in threads.values():
            thread.start()
        threads["hasty"].join(WAIT)
        assert codes == {"hasty": 1031}
        cancelled.cancel()  # perhaps the one that leads the others
        threads["cancelled"].join(WAIT)
        assert codes == {"hasty": 1031, "cancelled": 1025}
        assert threads["patient"].is_alive()
    threads["patient"].join(WAIT)
    assert codes["patient"] == 0
    assert db[b"a"] == b"patient"


def test_a_closing_process_gives_up_what_a_stopped_one_keeps_it_from_writing(
    db: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "CLOSING_SECONDS", 0.1)
    other = fdb_embedded.open(tmp_path / "other")
    with stopped_writer(other):
        future = writer(other).commit()
        fdb_embedded.close(other)
        assert code_of(future.wait) == 1025


def test_a_housekeeper_that_waits_for_a_stopped_writer_keeps_nobody_from_closing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "CLOSING_SECONDS", 0.1)
    other = fdb_embedded.open(tmp_path / "other", faults=fdb_embedded.Faults(1))
    asked = threading.Event()
    committer = engine_of(other).committer
    submit = committer.submit

    def submitted(commit: Any) -> None:
        submit(commit)
        asked.set()

    monkeypatch.setattr(committer, "submit", submitted)
    with stopped_writer(other):
        future = writer(other).commit()
        assert asked.wait(WAIT)  # by a timer of the housekeeper, which waits for it
        fdb_embedded.close(other)
        assert code_when_called_back(future) == 1025


STOPPED = """
import os, signal, sys
import fdb_embedded
db = fdb_embedded.open(sys.argv[1])
store = db.dpointer.engine.store
write_record = store.write_record
def stop(*arguments):
    print(os.getpid(), flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    return write_record(*arguments)
store.write_record = stop
for number in range(2):
    tr = db.create_transaction()
    tr[b"stopped"] = b"%d" % number
    tr.commit().wait()
    sys.stdin.readline()
"""


def test_a_process_that_is_stopped_in_a_commit_is_named_and_goes_on_or_is_killed(
    db: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waiting, "TOLD_AFTER", 0.05)
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED, str(engine_of(db).path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        for ends in (signal.SIGCONT, signal.SIGKILL):
            number = int(process.stdout.readline())
            os.waitpid(number, os.WUNTRACED)
            waiting._told.clear()
            caplog.clear()
            assert code_of(writer(db, 200).commit().wait) == 1031
            assert f"process {number}, which is stopped" in caplog.text
            assert "kill -CONT" in caplog.text
            future = writer(db, value=b"%d" % ends).commit()
            process.send_signal(ends)
            future.wait()
            assert db[b"a"] == b"%d" % ends
            if ends == signal.SIGCONT:
                process.stdin.write("\n")
                process.stdin.flush()
    finally:
        process.kill()
        process.communicate()
    assert db[b"stopped"] == b"0", "a commit that went on was made, one that was killed was not"


def test_an_uncontended_commit_takes_and_gives_up_one_lock_and_wakes_nobody(
    db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = engine_of(db).store
    asked: list[str] = []
    for owner, name in [(store.writer, "_lock"), (store.writer, "_unlock"), (store.page, "_wake_at")]:
        known = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, known=known, name=name: (asked.append(name), known(*a))[1])
    for number in range(10):
        db[b"a"] = b"%d" % number
    assert asked == ["_lock", "_unlock"] * 10


def test_who_waits_is_woken_when_the_lock_is_given_up(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "FIRST_SLEEP", WAIT)
    monkeypatch.setattr(waiting, "LONGEST_SLEEP", WAIT)
    store = engine_of(db).store
    other = Engine(engine_of(db).path)  # as another process
    try:
        asleep = threading.Event()
        await_writer = store.page.await_writer
        monkeypatch.setattr(store.page, "await_writer", lambda *a: (asleep.set(), await_writer(*a)))
        with other.store.writer_section():
            thread = threading.Thread(target=lambda: writer(db).commit().wait())
            thread.start()
            assert asleep.wait(WAIT)
        began = time.monotonic()
        thread.join(WAIT)
        assert not thread.is_alive()
        assert time.monotonic() - began < WAIT / 2
    finally:
        other.close()
    assert db[b"a"] == b"1"


# --- the map ---


def grow_elsewhere(db: Any) -> None:
    """Another process lets the file grow, and commits in what was added."""
    other = Engine(engine_of(db).path)
    try:
        other.store.map.grow()
        with other.store.writer_section() as txn:
            number = txn.id()
            version = other.store.next_version(txn, number, 0)
            txn.put(b"large", b"v" * (20 << 20))
            other.store.write_record(txn, 0, version, b"\x92\x90\x90", [])
            txn.commit()
            other.store.page.end_version(number)
    finally:
        other.close()


def test_a_timeout_and_a_cancel_end_the_wait_for_a_map_that_another_process_has_let_grow(db: Any) -> None:
    grow_elsewhere(db)
    with stopped_grower(db):
        reader = db.create_transaction()
        reader.options.set_timeout(100)
        assert code_of(reader[b"a"].wait) == 1031
        cancelled = db.create_transaction()
        threading.Timer(0.05, cancelled.cancel).start()
        assert code_of(cancelled[b"a"].wait) == 1025
        assert code_of(writer(db, 100).commit().wait) == 1031
    assert len(db[b"large"]) == 20 << 20


@pytest.mark.parametrize(
    "read",
    [
        lambda transaction: transaction.get(b"a", False),
        lambda transaction: transaction.get_range((b"a", False, 1), (b"b", False, 1), 1, 0, False, False),
        lambda transaction: transaction.get(b"\xff\x02/idmp/1", False),
    ],
)
def test_a_read_of_an_open_snapshot_keeps_its_timeout_where_the_map_has_to_be_followed(db: Any, read: Any) -> None:
    reader = db.create_transaction()
    reader.options.set_read_system_keys()
    assert reader[b"b"].value is None
    transaction = reader.tpointer
    transaction.snap.txn.abort()  # as a map that grows does
    grow_elsewhere(db)
    codes: list[int] = []

    def read_it() -> None:
        try:
            read(transaction)
        except Code as error:
            codes.append(error.code)

    with stopped_grower(db):
        reader.options.set_timeout(100)
        thread = threading.Thread(target=read_it)
        thread.start()
        thread.join(5)
        in_time = not thread.is_alive()
    thread.join(5)
    assert (in_time, codes) == (True, [1031])


def test_a_commit_that_needs_a_larger_file_keeps_its_timeout_and_reads_go_on(
    db: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "TOLD_AFTER", 0.05)
    for name in (b"j", b"k"):
        tr = db.create_transaction()
        for number in range(95):
            tr[b"%c%03d" % (name, number)] = b"v" * 100_000
        if name == b"j":
            tr.commit().wait()
    tr.options.set_timeout(1000)
    reader = db.create_transaction()
    assert reader[b"a"].value == b"0"
    with stopped_grower(db):
        codes: list[int] = []
        thread = threading.Thread(target=lambda: codes.append(code_of(tr.commit().wait)))
        thread.start()
        while thread.is_alive():
            assert reader[b"b"].value is None
        assert codes == [1031]
    assert "opens the database or lets its file grow" in caplog.text
    assert db[b"k000"] is None
    db[b"a"] = b"1"


# --- what is copied ---


def let_the_map_grow(db: Any) -> None:
    generation = engine_of(db).store.map.generation
    for part in range(3):
        tr = db.create_transaction()
        for number in range(80):
            tr[b"%d/%d" % (part, number)] = b"v" * 100_000
        tr.commit().wait()
    assert engine_of(db).store.map.generation > generation


def test_the_map_grows_while_a_checkpoint_is_made(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = files.open_reader
    copies: list[Any] = []

    def open_reader(directory: Path, map_size: int) -> Any:
        env = opened(directory, map_size)

        class Held:
            def copy(self, *target: Any, **how: Any) -> None:
                copies.append(target)
                if len(copies) == 1:
                    let_the_map_grow(db)
                env.copy(*target, **how)

            def __getattr__(self, name: str) -> Any:
                return getattr(env, name)

        return Held()

    monkeypatch.setattr(files, "open_reader", open_reader)
    path = engine_of(db).path
    assert durability.checkpoint(engine_of(db).store, path) is not None
    assert len(copies) == 2, "of the map as it is now"
    assert (path / "checkpoint.mdb").stat().st_size > 24_000_000


def test_the_map_grows_while_everything_is_read(db: Any) -> None:
    with engine_of(db).store.reading() as txn:
        let_the_map_grow(db)
        assert txn.get(b"a") == b"0"
        assert txn.get(b"0/0") is None
    assert db[b"0/0"] == b"v" * 100_000
