"""Pages that a process reads are used again by nobody: whatever it does with the files, and in whatever PID namespace it runs."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fdb_embedded
from fdb_embedded.engine import engine as keeping
from fdb_embedded.sharing import locks
from fdb_embedded.storage import readers

ROWS = 2000

WRITE = """
import sys
import tempfile
import fdb_embedded
db = fdb_embedded.open(sys.argv[1])
for turn in range(int(sys.argv[2])):
    tr = db.create_transaction()
    tr.set_many([(b"%06d" % row, b"written %d" % turn * 8) for row in range(2000)])
    tr.commit().wait()
    db.dpointer.engine.store.readers.forget_dead()
print("written", flush=True)
"""


def fill(path: Path) -> Any:
    db = fdb_embedded.open(path)
    tr = db.create_transaction()
    tr.set_many([(b"%06d" % row, b"original") for row in range(ROWS)])
    tr.commit().wait()
    return db


def write(path: Path, turns: int = 12, *prefix: str) -> None:
    command = [*prefix, sys.executable, "-c", WRITE, str(path), str(turns)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "written\n", done.stderr


def test_who_reads_the_files_of_his_open_database_keeps_his_snapshots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "MAX_AGE", 600.0)  # however slow the machine
    db = fill(tmp_path / "db")
    snap = db.dpointer.engine.snapshots.begin()
    assert snap.get(b"000000") == b"original"
    shutil.copytree(tmp_path / "db", tmp_path / "copy")  # opens and closes each of them
    write(tmp_path / "db")
    assert {value for _, value in snap.rows(b"", b"\xff", ROWS + 1, False) if value} == {b"original"}
    assert len(snap.rows(b"0", b"1", ROWS + 1, False)) == ROWS
    db.dpointer.engine.snapshots.release(snap)
    assert db[b"000000"] == b"written 11" * 8
    fdb_embedded.close(db)


def test_the_copy_of_an_open_directory_changes_nothing_for_who_watches(tmp_path: Path) -> None:
    db = fdb_embedded.open(tmp_path / "db")
    tr = db.create_transaction()
    watch = tr.watch(b"k")
    tr.commit().wait()
    page = db.dpointer.engine.store.page
    assert page.slots.own is not None
    shutil.copytree(tmp_path / "db", tmp_path / "copy")
    script = "import sys, fdb_embedded; db = fdb_embedded.open(sys.argv[1]); tr = db.create_transaction(); "
    script += (
        "f = tr.watch(b'other'); tr.commit().wait(); print(db.dpointer.engine.store.page.slots.own); db[b'k'] = b'v'"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "db")], capture_output=True, text=True, timeout=60, check=True
    )
    assert int(done.stdout) != page.slots.own
    watch.wait()
    fdb_embedded.close(db)


READ = """
import os, sys
import fdb_embedded
from fdb_embedded.engine import engine as keeping
keeping.MAX_AGE = 600
db = fdb_embedded.open(sys.argv[1])
snap = db.dpointer.engine.snapshots.begin()
print(os.getpid(), snap.get(b"000000").decode(), flush=True)
sys.stdin.readline()
print(len([1 for _, value in snap.rows(b"0", b"1", 10000, False) if value == b"original"]), flush=True)
"""

NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc")


def namespaces() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not namespaces(), reason="no right to make a PID namespace")
def test_processes_of_two_pid_namespaces_share_a_database_though_each_is_number_one(tmp_path: Path) -> None:
    fdb_embedded.close(fill(tmp_path / "db"))
    started = []
    for _ in range(2):
        process = subprocess.Popen(
            [*NAMESPACE, sys.executable, "-c", READ, str(tmp_path / "db")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "1 original\n"
        write(tmp_path / "db", 6, *NAMESPACE)
        write(tmp_path / "db", 6)
        for process in started:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == f"{ROWS}\n"
            assert process.wait(60) == 0
    finally:
        for process in started:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
    db = fdb_embedded.open(tmp_path / "db")
    db.dpointer.engine.store.readers.forget_dead()
    assert db.dpointer.engine.store.readers.others() == []
    assert db[b"000000"] == b"written 5" * 8
    fdb_embedded.close(db)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_a_killed_process_read_is_free_though_a_child_that_it_forked_lives_on(tmp_path: Path) -> None:
    parent = """
import os, signal, sys
import fdb_embedded
from fdb_embedded.engine import engine as keeping
keeping.MAX_AGE = 600
db = fdb_embedded.open(sys.argv[1])
snap = db.dpointer.engine.snapshots.begin()
forked, told = os.pipe()
child = os.fork()
if child == 0:
    os.write(told, b"x")
    signal.pause()
os.read(forked, 1)  # the child has given up what is its parent's
print(os.getpid(), child, flush=True)
signal.pause()
"""
    db = fill(tmp_path / "db")
    process = subprocess.Popen([sys.executable, "-c", parent, str(tmp_path / "db")], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    number, child = map(int, process.stdout.readline().split())
    try:
        store = db.dpointer.engine.store
        store.readers.forget_dead()
        assert number in dict(store.readers.others())
        process.kill()
        process.wait()
        os.kill(child, 0)
        store.readers.forget_dead()
        assert store.readers.others() == []
        assert store.alone()
    finally:
        os.kill(child, signal.SIGKILL)
        process.stdout.close()
    fdb_embedded.close(db)


FORK_IN_PUBLISH = """
import faulthandler, os, threading
import fdb_embedded

db = fdb_embedded.open(":memory:")
db[b"k"] = b"parent"
readers = db.dpointer.engine.store.readers
assert readers.park()
newest, inside, forked = readers.newest, threading.Event(), threading.Event()

def stopped():
    readers.newest = newest
    inside.set()
    forked.wait()
    return newest()

readers.newest = stopped
reader = threading.Thread(target=db.get, args=(b"k",))
reader.start()
inside.wait()
child = os.fork()
if child == 0:
    faulthandler.dump_traceback_later(30, exit=True)
    os._exit(db[b"k"] != b"parent")
forked.set()
reader.join()
print(os.waitpid(child, 0)[1])
"""


def test_a_fork_while_another_thread_begins_to_read_leaves_no_lock_held_in_the_child() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FORK_IN_PUBLISH], capture_output=True, text=True, check=True, timeout=60
    )
    assert ended.stdout == "0\n", ended.stderr


def test_the_slot_names_nothing_that_is_newer_than_an_open_snapshot() -> None:
    db = fdb_embedded.open(":memory:")
    store = db.dpointer.engine.store
    old = db.dpointer.engine.snapshots.begin()
    for number in range(50):
        db[b"k"] = b"%d" % number
        store.advance_readers()
        assert store.readers.number <= old.guard <= old.txn.id()
    db.dpointer.engine.snapshots.release(old)
    db[b"k"] = b"last"
    store.advance_readers()
    assert store.readers.number > old.guard
    assert store.readers.park()
    assert store.readers.number == readers.NOTHING
    assert db[b"k"] == b"last"
    fdb_embedded.close(db)


@pytest.mark.parametrize("kind", ["snapshot", "held"])
def test_pages_are_used_again_though_one_always_begins_to_read_before_another_ends(kind: str) -> None:
    db = fdb_embedded.open(":memory:")
    engine = db.dpointer.engine
    store = engine.store

    @contextlib.contextmanager
    def snapshot() -> Iterator[None]:
        snap = engine.snapshots.begin()
        yield
        engine.snapshots.release(snap)

    begin = snapshot if kind == "snapshot" else store.readers.holding
    named = []
    before = begin()
    before.__enter__()
    for number in range(10):
        db[b"k"] = b"%d" % number
        following = begin()
        following.__enter__()
        before.__exit__(None, None, None)
        before = following
        store.advance_readers()
        named.append(store.readers.number)
    before.__exit__(None, None, None)
    assert named == sorted(set(named))
    fdb_embedded.close(db)


def test_under_fsync_pages_are_used_again_while_commit_follows_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a flush has shown is kept for those who begin before the next one ends, so something is always open."""
    monkeypatch.setattr(keeping, "MAX_AGE", 600.0)
    db = fdb_embedded.open(tmp_path / "db", durability="fsync")
    named = []
    for number in range(10):
        db[b"k"] = b"%d" % number
        named.append(db.dpointer.engine.store.readers.number)
    assert db.dpointer.engine.snapshots.live
    assert named[-1] > named[1]
    fdb_embedded.close(db)


def test_a_lock_of_a_descriptor_is_not_lost_by_another_use_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    first, second = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
    try:
        assert locks.try_lock(first, 5)
        path.read_bytes()
        assert not locks.try_lock(second, 5)
        locks.unlock(first, 5)
        assert locks.try_lock(second, 5)
    finally:
        os.close(first)
        os.close(second)


def test_the_living_are_asked_for_no_lock_while_they_read_nothing_or_move_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every process looks for dead ones, and the kernel walks through all locks at each question."""
    db = fill(tmp_path / "db")
    newest = [5]
    others = [readers.Readers(tmp_path / "db" / "lock.mdb", lambda: newest[0], list) for _ in range(20)]
    asked: list[int] = []
    try_lock = locks.try_lock
    try:
        for other in others:
            other.claim()
            other.publish()
            other.park()
        own = db.dpointer.engine.store.readers
        monkeypatch.setattr(locks, "try_lock", lambda fd, byte: (asked.append(byte), try_lock(fd, byte))[1])
        own.forget_dead()
        assert asked == []
        for other in others[:3]:
            other.publish()
        own.forget_dead()  # seen for the first time: asked
        assert len(asked) == 3
        newest[0] += 1
        for other in others[:2]:
            other.advance(newest[0])
        asked.clear()
        own.forget_dead()
        assert len(asked) == 1  # the one that stood still
        assert len(own.others()) == 3
    finally:
        for other in others:
            other.close()
        fdb_embedded.close(db)


def test_a_directory_for_temporary_files_that_is_full_is_named_and_not_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers.layout.cache_clear()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "full"))
    with pytest.raises(fdb_embedded.PathUnusable, match=r"full can't be used.*set TMPDIR"):
        fdb_embedded.open(tmp_path / "db")
    monkeypatch.undo()
    fdb_embedded.close(fdb_embedded.open(tmp_path / "db"))
