"""Closing while other threads are at work: they end with an answer, and nothing is taken from under them."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import lmdb
import pytest

import fdb_embedded
from fdb_embedded import EngineClosed
from fdb_embedded.engine import commit as commit_module
from fdb_embedded.errors import Code
from fdb_embedded.sharing.waiting import GivenUp, at_most


def test_a_commit_that_another_thread_is_writing_is_finished_before_the_files_are_closed(tmp_path: Path) -> None:
    script = """
import sys, threading
import fdb_embedded
from fdb_embedded.engine import batch

db = fdb_embedded.open(sys.argv[1])
writing, closing = threading.Event(), threading.Event()
apply, stop = batch.apply_writes, db.dpointer.engine.housekeeper.stop

def apply_slowly(*given):
    found = apply(*given)
    writing.set()
    closing.wait(10)
    threading.Event().wait(0.05)  # the files would have been closed since
    return found

def stop_and_say():
    stop()
    closing.set()

def work():
    db[b"late"] = b"value"
    print("made", flush=True)

batch.apply_writes = apply_slowly
db.dpointer.engine.housekeeper.stop = stop_and_say
thread = threading.Thread(target=work)
thread.start()
writing.wait(10)
fdb_embedded.close(db)
thread.join(10)
batch.apply_writes = apply
db = fdb_embedded.open(sys.argv[1])
print(bytes(db[b"late"]), flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "db")], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.split() == ["made", "b'value'"]
    assert done.stderr == ""


def test_who_begins_to_read_or_to_write_while_it_is_closed_is_told(tmp_path: Path) -> None:
    db = fdb_embedded.open(tmp_path / "db")
    store = db.dpointer.engine.store
    fdb_embedded.close(db)
    with pytest.raises(EngineClosed):
        store.map.begin(at_most(1.0))
    with pytest.raises(EngineClosed):
        store.read(lambda txn: txn.id(), at_most(1.0))
    with pytest.raises(EngineClosed):
        store.map.grow(at_most(1.0))
    with pytest.raises(EngineClosed), store.writer_section(at_most(1.0)):
        pass


def test_a_commit_that_comes_while_it_is_closed_is_cancelled() -> None:
    db = fdb_embedded.open(":memory:")
    engine = db.dpointer.engine
    db[b"there"] = b""
    transaction = db.dpointer.transaction()
    transaction.set(b"late", b"")
    fdb_embedded.close(db)
    engine.stale = False  # as if it had been closed since the look at this
    commit = transaction.commit()
    commit.wait()
    assert commit.error == 1025


def test_what_looks_after_readers_while_it_is_closed_does_no_harm() -> None:
    db = fdb_embedded.open(":memory:")
    readers = db.dpointer.engine.store.readers
    db[b"there"] = b""
    fdb_embedded.close(db)
    readers.parked, readers.number = False, 0
    readers.advance(1 << 40)
    assert readers.park()


def test_a_handle_that_is_collected_by_a_thread_of_the_engine_is_closed_by_another_of_its_turns() -> None:
    db = fdb_embedded.open(":memory:")
    handle = db.dpointer
    engine = handle.engine
    returned, closed = threading.Event(), threading.Event()
    close = engine.store.close

    def close_and_say() -> None:
        close()
        closed.set()

    def collected(_: Any) -> None:
        with engine.watches.lock:  # the collector comes wherever something is made
            handle.close_collected()
        returned.set()

    engine.store.close = close_and_say
    transaction = db.create_transaction()
    watch = transaction.watch(b"key")
    transaction.commit().wait()
    watch.on_ready(collected)
    db[b"key"] = b"value"
    assert returned.wait(5)
    assert closed.wait(5)


def test_an_interrupt_of_who_gives_up_a_wait_loses_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    db = fdb_embedded.open(":memory:")
    engine = db.dpointer.engine
    partial, take = commit_module.partial, engine.store.writer.take
    steps = ["give up", "interrupt"]

    def give_up(waiter: Any = None) -> None:
        if steps[:1] == ["give up"]:
            del steps[0]
            raise GivenUp
        take(waiter)

    def interrupted(*given: Any) -> Any:
        if steps == ["interrupt"]:
            steps.clear()
            raise KeyboardInterrupt
        return partial(*given)

    monkeypatch.setattr(commit_module, "partial", interrupted)
    engine.store.writer.take = give_up
    transaction = db.dpointer.transaction()
    transaction.set(b"key", b"value")
    commit = transaction.commit()
    with pytest.raises(KeyboardInterrupt):
        commit.wait()
    assert commit.wait_until(5)
    assert (commit.error, db[b"key"]) == (0, b"value")
    fdb_embedded.close(db)


@pytest.mark.parametrize("failure", [Code(1511), EngineClosed("closed"), lmdb.CorruptedError("damaged")])
def test_a_commit_that_was_made_is_told_where_its_version_cannot_be_kept(failure: Exception) -> None:
    db = fdb_embedded.open(":memory:")
    engine = db.dpointer.engine
    engine.snapshots.versions_are_asked_for = True
    transaction = db.dpointer.transaction()
    transaction.set(b"key", b"value")
    commit = transaction.commit()
    begin = engine.snapshots.begin

    def fail(*_: Any) -> Any:
        raise failure

    engine.snapshots.begin = fail
    commit.wait()
    engine.snapshots.begin = begin
    assert (commit.error, db[b"key"]) == (0, b"value")
    assert not engine.committer.unsettled
    fdb_embedded.close(db)
