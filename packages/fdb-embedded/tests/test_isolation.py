"""What a snapshot shows is what its version says, and all that was acknowledged before it was taken."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import fdb
import pytest

import fdb_embedded
from fdb_embedded.engine.trimming import trim
from fdb_embedded.pure.versions import last_version, log_begin
from fdb_embedded.transaction import handles


class _Stale:
    """A read transaction whose number is of an earlier one than it shows, as LMDB's may be when two commits come while it begins."""

    def __init__(self, txn: Any, number: int) -> None:
        self._txn = txn
        self._number = number

    def id(self) -> int:
        return self._number

    def __getattr__(self, name: str) -> Any:
        return getattr(self._txn, name)


class _Environment:
    def __init__(self, env: Any) -> None:
        self._env = env
        self.number: int | None = None

    def begin(self, *args: Any, **named: Any) -> Any:
        txn = self._env.begin(*args, **named)
        if named.get("write"):
            return txn
        if self.number is None:
            self.number = txn.id()
        return _Stale(txn, self.number)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


WRITE = """
import sys
import fdb_embedded
db = fdb_embedded.open(sys.argv[1])
for line in sys.stdin:
    db[b"k"] = line.strip().encode()
    print("acknowledged", flush=True)
"""


@pytest.mark.parametrize("whose", ["own", "another's"])
def test_the_version_of_a_snapshot_is_that_of_its_data(tmp_path: Path, whose: str) -> None:
    db = fdb_embedded.open(tmp_path / "db")
    engine = db.dpointer.engine
    db[b"k"] = b"1"
    opened = engine.store.map
    opened.reads = environment = _Environment(opened.reads)
    try:
        before = engine.snapshots.begin()
        if whose == "own":
            db[b"k"] = b"2"
        else:
            command = [sys.executable, "-c", WRITE, str(tmp_path / "db")]
            subprocess.run(command, input="2\n", stdout=subprocess.DEVNULL, text=True, timeout=60, check=True)
        after = engine.snapshots.begin()
        assert (before.get(b"k"), after.get(b"k")) == (b"1", b"2")
        assert before.version < after.version == last_version(after.txn)
        for snap in (before, after):
            engine.snapshots.release(snap)
    finally:
        opened.reads = environment._env
    fdb_embedded.close(db)


def test_a_transaction_that_waits_for_flushes_sees_what_was_acknowledged_without_one(tmp_path: Path) -> None:
    db = fdb_embedded.open(tmp_path / "db", durability="fsync")
    db[b"own"] = b"1"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITE, str(tmp_path / "db")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert writer.stdin is not None
    assert writer.stdout is not None
    try:
        for number in range(30):
            assert db[b"own"] == b"1"
            writer.stdin.write(f"{number}\n")
            writer.stdin.flush()
            assert writer.stdout.readline() == "acknowledged\n"
            assert db[b"k"] == b"%d" % number
    finally:
        writer.stdin.close()
        assert writer.wait(60) == 0
        writer.stdout.close()
    fdb_embedded.close(db)


WRITES = {
    "set": lambda tr: tr.set(b"k", b"2"),
    "clear": lambda tr: tr.clear(b"k"),
    "clear_range": lambda tr: tr.clear_range(b"a", b"z"),
    "add": lambda tr: tr.add(b"k", b"1"),
    "long": lambda tr: tr.set(b"k" * 600, b"2"),
}


def write_without_conflict(db: Any, kind: str) -> None:
    tr = db.create_transaction()
    tr.options.set_next_write_no_write_conflict_range()
    WRITES[kind](tr)
    tr.set(b"other", b"1")
    tr.commit().wait()


@pytest.mark.parametrize("kind", WRITES)
def test_a_version_that_is_gone_is_told_from_what_was_written_and_not_from_what_conflicts(kind: str) -> None:
    fdb = fdb_embedded.load()
    db = fdb_embedded.open(":memory:")
    key = b"k" * 600 if kind == "long" else b"k"
    db[key] = b"1"
    version = db.create_transaction().get_read_version().wait()
    write_without_conflict(db, kind)
    db.dpointer.engine.snapshots.pinned.clear()
    for read in (lambda tr: tr[key].wait(), lambda tr: list(tr.get_range(b"", b"\xff"))):
        tr = db.create_transaction()
        tr.set_read_version(version)
        with pytest.raises(fdb.FDBError, match="1007"):
            read(tr)
    tr = db.create_transaction()
    tr.set_read_version(version)
    assert tr[b"~nobody wrote"].value is None
    fdb_embedded.close(db)


def test_a_write_without_a_conflict_still_conflicts_with_nobody() -> None:
    db = fdb_embedded.open(":memory:")
    db[b"k"] = b"1"
    for kind in ("set", "clear", "clear_range", "add"):
        tr = db.create_transaction()
        tr.get_range(b"a", b"o").to_list()
        tr[b"mine"] = b"1"
        write_without_conflict(db, kind)
        tr.commit().wait()
        assert db[b"mine"] == b"1"
    fdb_embedded.close(db)


def test_a_grown_map_shows_no_later_write_that_had_no_conflict_under_an_open_snapshot(tmp_path: Path) -> None:
    fdb = fdb_embedded.load()
    db = fdb.impl.Database(handles.open_database(str(tmp_path / "db"), 730, map_size=1 << 20))
    db[b"k"] = b"1"
    reader = db.create_transaction()
    assert reader[b"else"].value is None
    write_without_conflict(db, "set")
    db.dpointer.engine.store.map.grow()
    with pytest.raises(fdb.FDBError, match="1007"):
        reader[b"k"].wait()
    assert db[b"k"] == b"2"
    fdb_embedded.close(db)


SLOW = """
import sys
import fdb_embedded
from fdb_embedded.storage import disk
db = fdb_embedded.open(sys.argv[1], durability="fsync")
flush = disk.flush
def slow(fd):
    print("flushing", flush=True)
    sys.stdin.readline()
    flush(fd)
disk.flush = slow
db[b"k"] = b"new"
"""
READ = """
import sys
import fdb_embedded
db = fdb_embedded.open(sys.argv[1])
print("ready", flush=True)
for _ in sys.stdin:
    print(bytes(db[b"k"]).decode(), flush=True)
"""


def test_a_transaction_that_waits_for_flushes_sees_what_another_process_saw_before_the_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = fdb_embedded.open(tmp_path / "db", durability="fsync")
    db[b"k"] = b"old"
    reader = subprocess.Popen(
        [sys.executable, "-c", READ, str(tmp_path / "db")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert reader.stdin is not None
    assert reader.stdout is not None
    assert reader.stdout.readline() == "ready\n"
    writer = subprocess.Popen(
        [sys.executable, "-c", SLOW, str(tmp_path / "db")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert writer.stdin is not None
    assert writer.stdout is not None
    try:
        assert writer.stdout.readline() == "flushing\n"
        reader.stdin.write("\n")
        reader.stdin.flush()
        assert reader.stdout.readline() == "new\n"  # it doesn't wait: committed, and not yet on disk
        engine = db.dpointer.engine
        waits_or_is_done = threading.Event()
        seen: list[bytes] = []

        wait = engine.snapshots.await_flush

        def await_flush(at: tuple[int, int], go_on: Any = None) -> None:
            waits_or_is_done.set()
            wait(at, go_on)

        def read() -> None:
            seen.append(bytes(db[b"k"]))
            waits_or_is_done.set()

        monkeypatch.setattr(engine.snapshots, "await_flush", await_flush)
        later = threading.Thread(target=read)
        later.start()
        assert waits_or_is_done.wait(60)
        writer.stdin.write("\n")
        writer.stdin.flush()
        later.join(60)
        assert seen == [b"new"]
    finally:
        for process in (reader, writer):
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(60) == 0
            assert process.stdout is not None
            process.stdout.close()
    fdb_embedded.close(db)


LATE = """
import os, signal, sys
import fdb_embedded
db = fdb_embedded.open(sys.argv[1])
tr = db.create_transaction()
if sys.argv[2] == "id":
    tr._set_option(504, b"0123456789abcdef", 16)
else:
    tr.add_read_conflict_key(b"lock")
tr[b"late"] = b"here"
turn = db.dpointer.engine.store.turn
with turn:
    commit = tr.commit()
    os.kill(os.getpid(), signal.SIGSTOP)
try:
    commit.wait()
    print("made")
except fdb_embedded.load().FDBError as error:
    print(error.code)
"""


@pytest.mark.parametrize("what", ["id", "read conflict"])
def test_a_commit_that_was_stopped_on_its_way_is_kept_out_by_what_came_long_ago(tmp_path: Path, what: str) -> None:
    """Where the log has dropped the record that it conflicts with, it is too old, though it has asked for no read version."""
    db = fdb_embedded.open(tmp_path)
    db[b"other"] = b""
    late = subprocess.Popen([sys.executable, "-c", LATE, str(tmp_path), what], stdout=subprocess.PIPE, text=True)
    try:
        assert os.WIFSTOPPED(os.waitpid(late.pid, os.WUNTRACED)[1])
        tr = db.create_transaction()
        tr.options.set_access_system_keys()
        tr.add_write_conflict_key(b"\xff/SC/0123456789abcdef" if what == "id" else b"lock")
        tr.commit().wait()
        db[b"other"] = b""
        db.dpointer.engine.jump_version(100_000_000)
        for _ in range(200):  # the log is trimmed now and then
            db[b"other"] = b""
        os.kill(late.pid, signal.SIGCONT)
        assert late.communicate()[0].strip() == "1007"
    finally:
        late.kill()
        late.wait()
    assert db[b"late"] is None
    fdb_embedded.close(db)


def test_the_log_goes_back_to_the_newest_commit_of_a_time_of_silence() -> None:
    """What begins after it is validated, and not refused, when the log is trimmed meanwhile."""
    db = fdb_embedded.open(":memory:")
    engine = db.dpointer.engine
    db[b"k"] = b"1"
    db[b"k"] = b"2"
    before = engine.store.last_version()
    engine.jump_version(100_000_000)
    with engine.store.map.env.begin(write=True) as txn:
        trim(txn, last_version(txn), 1000)
        assert log_begin(txn) == before
    fdb_embedded.close(db)


STOPPED = """
import os, signal, sys
import fdb_embedded
from fdb_embedded.storage import disk
db = fdb_embedded.open(sys.argv[1], durability="fsync")
flush = disk.flush
def flush_and_stop(fd):
    flush(fd)
    disk.flush = flush
    os.kill(os.getpid(), signal.SIGSTOP)
disk.flush = flush_and_stop
db[b"own"] = b"here"
print(bytes(db[b"k"]).decode())
"""


def test_who_was_stopped_while_he_flushed_sees_what_was_acknowledged_meanwhile(tmp_path: Path) -> None:
    """Others took over from him: what he tells of his own flush is older than what they have told of theirs."""
    db = fdb_embedded.open(tmp_path / "db", durability="fsync")
    db[b"k"] = b"old"
    stopped = subprocess.Popen([sys.executable, "-c", STOPPED, str(tmp_path / "db")], stdout=subprocess.PIPE, text=True)
    try:
        assert os.WIFSTOPPED(os.waitpid(stopped.pid, os.WUNTRACED)[1])
        db[b"k"] = b"new"
        flushed = db.dpointer.engine.store.page.flushed()
        os.kill(stopped.pid, signal.SIGCONT)
        assert stopped.communicate()[0] == "new\n"
    finally:
        stopped.kill()
        stopped.wait()
    assert db.dpointer.engine.store.page.flushed() >= flushed
    assert db[b"own"] == b"here"
    fdb_embedded.close(db)


WRITES_AS_TOLD = """
import sys
import fdb_embedded, fdb
db = fdb_embedded.open(sys.argv[1])
long = b"k" * 2000
kinds = {
    "set": lambda tr: tr.__setitem__(b"k", b"2"),
    "clear": lambda tr: tr.__delitem__(b"k"),
    "clear of a range": lambda tr: tr.clear_range(b"a", b"z"),
    "several keys": lambda tr: [tr.__setitem__(key, b"2") for key in (b"j", b"k", b"l")],
    "add": lambda tr: tr.add(b"k", bytes(7) + b"\\x01"),
    "byte_max": lambda tr: tr.byte_max(b"k", b"z"),
    "compare_and_clear": lambda tr: tr.compare_and_clear(b"k", b"1"),
    "stamped value": lambda tr: tr.set_versionstamped_value(b"k", bytes(14)),
    "long key": lambda tr: tr.__setitem__(long, b"2"),
    "conflict key": lambda tr: tr.add_write_conflict_key(b"k"),
    "with an id": lambda tr: (tr.options.set_automatic_idempotency(), tr.__setitem__(b"k", b"2")),
    "another key": lambda tr: tr.__setitem__(b"k\\x00", b"2"),
    "the range behind": lambda tr: tr.clear_range(b"k\\x00", b"z"),
}
print("ready", flush=True)
for line in sys.stdin:
    tr = db.create_transaction()
    kinds[line.strip()](tr)
    tr.commit().wait()
    print("written", flush=True)
"""


@pytest.mark.parametrize("before", [0, 3, 300])
def test_one_key_that_was_read_conflicts_with_every_kind_of_write_of_another_process(
    tmp_path: Path, before: int
) -> None:
    """`before`: commits of the other process that lie between, of another key."""
    db = fdb_embedded.open(tmp_path / "db")
    command = [sys.executable, "-c", WRITES_AS_TOLD, str(tmp_path / "db")]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdin is not None and other.stdout is not None

    def tell(kind: str) -> None:
        assert other.stdin is not None and other.stdout is not None
        other.stdin.write(kind + "\n")
        other.stdin.flush()
        assert other.stdout.readline() == "written\n"

    def outcome(kind: str) -> int:
        db[b"k"] = b"1"
        tr = db.create_transaction()
        assert tr[b"k" * 2000 if kind == "long key" else b"k"] in (b"1", b"2", None)
        for _ in range(before):
            tell("another key")
        tell(kind)
        tr[b"own"] = b"x"
        try:
            tr.commit().wait()
        except fdb.FDBError as error:
            return int(error.code)
        return 0

    try:
        assert other.stdout.readline() == "ready\n"
        conflicting = [
            *("set", "clear", "clear of a range", "several keys", "add", "byte_max", "compare_and_clear"),
            *("stamped value", "long key", "conflict key", "with an id"),
        ]
        assert {kind: outcome(kind) for kind in conflicting} == dict.fromkeys(conflicting, 1020)
        assert {kind: outcome(kind) for kind in ("another key", "the range behind")} == {
            "another key": 0,
            "the range behind": 0,
        }
    finally:
        other.kill()
        other.wait()
        other.stdin.close()
        other.stdout.close()
        fdb_embedded.close(db)
