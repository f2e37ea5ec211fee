"""The files: bad ones are named, the map grows under open transactions, the file doesn't grow under old readers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import lmdb
import msgpack
import pytest

import fdb_embedded
from fdb_embedded.engine import status
from fdb_embedded.pure import keys
from fdb_embedded.sharing import blocks, slots
from fdb_embedded.storage import formats
from fdb_embedded.transaction import handles


def small(path: Path, map_size: int = 1 << 20) -> Any:
    handle = handles.open_database(str(path), 730, map_size=map_size)
    return fdb_embedded.load().impl.Database(handle)


# --- bad input ---


def test_a_directory_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(fdb_embedded.NotADatabase, match=r"letter\.txt"):
        fdb_embedded.open(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["letter.txt"]


def test_a_file_in_the_place_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "db").write_text("x")
    with pytest.raises(fdb_embedded.NotADatabase, match="is a file"):
        fdb_embedded.open(tmp_path / "db")


def test_a_foreign_lmdb_environment(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path)) as env, env.begin(write=True) as txn:
        txn.put(b"theirs", b"1")
    with pytest.raises(fdb_embedded.NotADatabase, match="another program"):
        fdb_embedded.open(tmp_path)


def test_a_newer_format(tmp_path: Path) -> None:
    fdb_embedded.close(fdb_embedded.open(tmp_path / "db"))
    with lmdb.open(str(tmp_path / "db")) as env, env.begin(write=True) as txn:
        txn.put(keys.FORMAT, msgpack.packb({"format": formats.FORMAT + 1, "also": "unknown"}))
    with pytest.raises(fdb_embedded.NewerFormat, match="upgrade fdb-embedded"):
        fdb_embedded.open(tmp_path / "db")


@pytest.mark.parametrize("damage", ["cut", "garbage", "pages"])
def test_a_damaged_file(tmp_path: Path, damage: str) -> None:
    db = fdb_embedded.open(tmp_path / "db")
    db[b"k"] = b"v"
    fdb_embedded.close(db)
    data = tmp_path / "db" / "data.mdb"
    if damage == "cut":
        data.write_bytes(data.read_bytes()[:4000])
    elif damage == "garbage":
        data.write_bytes(b"\xa5" * 65536)
    else:
        with data.open("r+b") as file:
            file.write(bytes(8192))
    with pytest.raises(fdb_embedded.DamagedDatabase, match=r"data\.mdb"):
        fdb_embedded.open(tmp_path / "db")


def test_a_path_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(fdb_embedded.PathUnusable, match="/proc/none"):
        fdb_embedded.open("/proc/none")


@pytest.mark.parametrize("made", [False, True])
def test_a_directory_that_may_only_be_read(made: bool) -> None:
    """As a user without rights there: for root nothing is read-only."""
    folder = Path(tempfile.mkdtemp(prefix="fdb-embedded-test-"))
    try:
        path = folder / "db"
        if made:
            db = fdb_embedded.open(path)
            db[b"k"] = b"v"
            fdb_embedded.close(db)
            for file in path.iterdir():
                file.chmod(0o444)
            path.chmod(0o555)
        folder.chmod(0o555)
        code = """
import os, sys
import fdb_embedded
fdb_embedded.load()
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
try:
    fdb_embedded.open(sys.argv[1])
except fdb_embedded.PathUnusable as error:
    print(error)
"""
        done = subprocess.run(
            [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        assert str(path) in done.stdout and "ermission denied" in done.stdout, done.stdout + done.stderr
        folder.chmod(0o755)
        if made:
            path.chmod(0o755)
            for file in path.iterdir():
                file.chmod(0o644)
            db = fdb_embedded.open(path)
            assert db[b"k"] == b"v"
            fdb_embedded.close(db)
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)


def test_an_unknown_durability(tmp_path: Path) -> None:
    with pytest.raises(fdb_embedded.InvalidOption, match="process, fsync, memory"):
        fdb_embedded.open(tmp_path / "db", durability="eventually")


def test_a_stale_lock_file_of_another_machine(tmp_path: Path) -> None:
    db = fdb_embedded.open(tmp_path / "db")
    db[b"k"] = b"v"
    fdb_embedded.close(db)
    (tmp_path / "db" / "lock.mdb").unlink()
    (tmp_path / "db" / "shared").write_bytes(b"\xff" * 100)
    db = fdb_embedded.open(tmp_path / "db")
    db[b"k2"] = b"v"
    assert len(db.get_range(b"", b"\xff")) == 2
    fdb_embedded.close(db)


# --- the map ---


def test_the_map_grows_under_open_transactions(tmp_path: Path) -> None:
    db = small(tmp_path / "db")
    db[b"before"] = b"v"
    reader = db.create_transaction()
    assert reader[b"before"] == b"v"
    size = db.dpointer.engine.store.map.env.info()["map_size"]
    for number in range(40):
        tr = db.create_transaction()
        tr.set_many([(b"%04d%04d" % (number, row), bytes(1000)) for row in range(100)])
        tr.commit().wait()
    assert db.dpointer.engine.store.map.env.info()["map_size"] > size
    assert reader[b"before"] == b"v"
    assert reader[b"not written"].value is None
    with pytest.raises(fdb_embedded.load().FDBError, match="1007"):
        reader[b"00000001"].wait()  # written since, and its old value is gone
    assert len(db.get_range(b"0", b"1")) == 4000
    fdb_embedded.close(db)


def test_every_process_follows_a_grown_map(tmp_path: Path) -> None:
    db = small(tmp_path / "db")
    code = """
import sys
import tempfile
from fdb_embedded.transaction import handles
from fdb_embedded import load
handle = handles.open_database(sys.argv[1], 730, map_size=1 << 20)
db = load().impl.Database(handle)
for number in range(int(sys.argv[2]), 60, 2):
    tr = db.create_transaction()
    tr.set_many([(b"%04d%04d" % (number, row), bytes(1000)) for row in range(100)])
    tr.commit().wait()
"""
    writers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "db"), str(n)]) for n in range(2)]
    try:
        while any(writer.poll() is None for writer in writers):
            assert len(db.get_range(b"0", b"1")) % 100 == 0
        assert [writer.wait() for writer in writers] == [0, 0]
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    assert len(db.get_range(b"0", b"1")) == 6000
    fdb_embedded.close(db)


def test_maintenance_follows_a_map_that_another_process_has_grown(tmp_path: Path) -> None:
    db = small(tmp_path / "db")
    engine = db.dpointer.engine
    code = """
import sys
from fdb_embedded.transaction import handles
from fdb_embedded import load
db = load().impl.Database(handles.open_database(sys.argv[1], 730, map_size=1 << 20))
for number in range(10):
    tr = db.create_transaction()
    tr.set_many([(b"%04d%04d" % (number, row), bytes(1000)) for row in range(1000)])
    tr.commit().wait()
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "db")], check=True, timeout=60)
    generation = engine.store.map.generation
    found: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: found.append(status.measure(engine)), daemon=True)
    thread.start()
    thread.join(60)
    assert found, "it waits for a lock that it holds itself"
    assert found[0]["rows"] >= 10_000
    assert engine.store.map.generation == generation, "it has a map of its own: transactions that are open go on"
    fdb_embedded.close(db)


READ_WHAT_ENDS = """
import math, sys, threading, time
import fdb_embedded
from fdb_embedded.transaction import handles
fdb = fdb_embedded.load()
db = fdb.impl.Database(handles.open_database(sys.argv[1], 730, map_size=1 << 20))
rows = [(b"row%08d" % number, bytes(300)) for number in range(1000)]
sys.setswitchinterval(0.0002)
over = threading.Event()
did = {"reads": 0, "ended": 0, "grown": 0}

def write(rows):
    while True:
        tr = db.create_transaction()
        tr.set_many(rows)
        try:
            return tr.commit().wait()
        except fdb.FDBError as error:
            tr.on_error(error).wait()

def read():
    while not over.is_set():
        tr = db.create_transaction()
        try:
            while not over.is_set():
                assert len(tr.get_range(b"row", b"rox", limit=300).to_list()) == 300
                assert tr[b"row00000007"].wait() == bytes(300)
                did["reads"] += 1
                if did["reads"] % 8 == 0:
                    time.sleep(0.002)  # or the others never get Python's lock
        except fdb.FDBError as error:
            assert error.code == 1007, error
            did["ended"] += 1

write(rows)
threads = [threading.Thread(target=read) for _ in range(3)]
for thread in threads:
    thread.start()
engine = db.dpointer.engine
deadline = time.monotonic() + 100
size = engine.store.map.env.info()["map_size"]
filled = 0
while (did["reads"] < 500 or did["ended"] < 50 or did["grown"] < 3) and time.monotonic() < deadline:
    engine.snapshots.end_old(math.inf)
    write(rows[:10])
    if engine.store.map.env.info()["map_size"] > size:
        size = engine.store.map.env.info()["map_size"]
        did["grown"] += 1
    if did["grown"] < 3:
        filled += 1
        write([(b"filler%08d%04d" % (filled, number), bytes(50000)) for number in range(10)])
over.set()
for thread in threads:
    thread.join()
assert did["reads"] >= 500 and did["ended"] >= 50 and did["grown"] >= 3, did
fdb_embedded.close(db)
print("whole")
"""


def test_a_snapshot_that_ends_or_a_map_that_moves_under_a_reader_crashes_nobody(tmp_path: Path) -> None:
    # LMDB reads without Python's lock: its transaction may not be ended while another thread is in it.
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", READ_WHAT_ENDS, str(tmp_path / "db")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr[-3000:]


def test_threads_read_and_write_while_the_map_grows(tmp_path: Path) -> None:
    db = small(tmp_path / "db")
    fdb = fdb_embedded.load()
    wrong: list[BaseException] = []

    @fdb.transactional  # type: ignore[untyped-decorator]
    def write(tr: Any, name: int, number: int) -> None:
        tr.set_many([(b"%02d%04d%02d" % (name, number, row), bytes(500)) for row in range(50)])
        tr[b"last%d" % name] = b"%d" % number

    @fdb.transactional  # type: ignore[untyped-decorator]
    def read(tr: Any) -> None:
        for name in range(3):
            last = int(tr[b"last%d" % name].value or -1)
            assert len(tr.read_range(b"%02d" % name, b"%02d" % (name + 1))) == 50 * (last + 1)

    def run(name: int) -> None:
        try:
            for number in range(40):
                write(db, name, number)
                read(db)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    fdb_embedded.close(db)


def test_an_old_snapshot_ends_and_the_file_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    db = small(tmp_path / "db", 64 << 20)
    engine = db.dpointer.engine
    old = db.create_transaction()
    assert old[b"k"].value is None
    engine.snapshots.end_old(float("inf"))
    with pytest.raises(fdb_embedded.load().FDBError, match="1007"):
        old[b"k"].wait()
    for turn in range(300):
        tr = db.create_transaction()
        tr.set_many([(b"%04d" % row, b"%d" % turn * 100) for row in range(50)])
        tr.commit().wait()
        engine.store.clock.base += 1_000_000  # a second passes: the log is trimmed
    assert engine.store.map.env.info()["last_pgno"] * 4096 < 4 << 20
    fdb_embedded.close(db)


def test_a_full_disk_fails_the_commit_and_loses_nothing(tmp_path: Path) -> None:
    code = """
import resource, signal, sys
import fdb_embedded
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
fdb = fdb_embedded.load()
db = fdb_embedded.open(sys.argv[1])
db[b"kept"] = b"v"
engine = db.dpointer.engine
from fdb_embedded.sharing import blocks
def full(fd, offset, length):
    raise OSError(28, "No space left on device")
blocks.allocate = full
try:
    for number in range(100000):
        tr = db.create_transaction()
        tr[b"%d" % number] = bytes(90000)
        tr.commit().wait()
except fdb.FDBError as error:
    print(error.code, db[b"kept"].decode())
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "db")], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "1510 v\n", done.stderr
    db = fdb_embedded.open(tmp_path / "db")
    assert db[b"kept"] == b"v"
    fdb_embedded.close(db)


def test_every_page_that_a_commit_may_write_has_blocks_on_the_disk(tmp_path: Path) -> None:
    """LMDB writes to mapped pages: one without a block, on a full disk, is a signal that ends the process."""
    db = small(tmp_path / "db")
    env = db.dpointer.engine.store.map.env
    sizes = set()
    for number in range(12):
        tr = db.create_transaction()
        if number % 3 == 0:
            tr[b"large%d" % number] = bytes(100_000)
            tr.set_many([(b"%d-%04d" % (number, row), bytes(100)) for row in range(3000)])
        elif number % 3 == 1:
            for row in range(500):
                stamped = b"stamped%d-%04d" % (number, row) + bytes(10)
                tr.set_versionstamped_key(stamped + (len(stamped) - 10).to_bytes(4, "little"), bytes(3000))
        else:
            tr.set_many([(b"k" * 600 + b"%d-%d" % (number, row), bytes(9000)) for row in range(20)])
        tr.commit().wait()
        for name in ("data.mdb", "lock.mdb"):
            found = (tmp_path / "db" / name).stat()
            assert found.st_blocks * 512 >= found.st_size, name
        assert (tmp_path / "db" / "shared").stat().st_blocks * 512 >= slots.AREAS
        assert (tmp_path / "db" / "data.mdb").stat().st_size == env.info()["map_size"]
        sizes.add(env.info()["map_size"])
    assert len(sizes) > 3
    db.get_and_watch(b"k")[1].cancel()  # now the process has a slot
    assert (tmp_path / "db" / "shared").stat().st_blocks * 512 >= slots.AREAS + slots.AREA
    fdb_embedded.close(db)


def test_a_full_disk_leaves_a_process_without_a_slot_and_its_watches_fire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, offset: int, length: int) -> bool:
        raise OSError(28, "No space left on device")

    db = fdb_embedded.open(tmp_path / "db")
    monkeypatch.setattr(slots, "allocate", full)
    watch = db.get_and_watch(b"k")[1]
    assert db.dpointer.engine.store.page.slots.own is None
    db[b"k"] = b"v"
    watch.wait()
    fdb_embedded.close(db)


FULL_TMPFS = """
import os, sys
import fdb_embedded
path = sys.argv[1] + "/db"
db = fdb_embedded.open(path)
db[b"kept"] = b"v"
with open(sys.argv[1] + "/filler", "wb", buffering=0) as filler:
    try:
        while filler.write(bytes(4096)) == 4096:
            pass
    except OSError as error:
        print(error.errno, flush=True)
watch = db.get_and_watch(b"kept")[1]
print("slot", db.dpointer.engine.store.page.slots.own, flush=True)
db[b"kept"] = b"w"
watch.wait()
watch = db.get_and_watch(b"kept")[1]
os.unlink(sys.argv[1] + "/filler")
db[b"kept"] = b"x"
watch.wait()
db.get_and_watch(b"kept")[1].cancel()
print("afterwards", db.dpointer.engine.store.page.slots.own is not None)
fdb_embedded.close(db)
"""


def test_a_full_file_system_in_memory_is_no_signal_for_who_watches(tmp_path: Path) -> None:
    """There a page without a block needs one also to be read by a map."""
    enter = ["unshare", "--user", "--map-root-user", "--mount"]
    mount = 'mount -t tmpfs -o size=24m none "$1" && exec "$2" -c "$3" "$1"'
    if not shutil.which("unshare") or subprocess.run([*enter, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount anything")
    done = subprocess.run(
        [*enter, "sh", "-c", mount, "sh", str(tmp_path), sys.executable, FULL_TMPFS],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done
    assert done.stdout.split("\n")[:-1] == ["28", "slot None", "afterwards True"], done


def test_a_full_disk_at_opening_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, length: int) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(blocks, "allocate", full)
    with pytest.raises(fdb_embedded.PathUnusable, match="No space left"):
        fdb_embedded.open(tmp_path / "db")
    monkeypatch.undo()
    db = fdb_embedded.open(tmp_path / "db")
    db[b"k"] = b"v"
    fdb_embedded.close(db)


def test_a_clock_that_stands_still_or_goes_back(tmp_path: Path) -> None:
    db = small(tmp_path / "db")
    clock = db.dpointer.engine.store.clock
    versions = []
    for number in range(50):
        clock.base -= 10_000_000
        tr = db.create_transaction()
        tr[b"k"] = b"%d" % number
        tr.commit().wait()
        versions.append(tr.get_committed_version())
    assert versions == sorted(set(versions))
    fdb_embedded.close(db)


# --- keys ---


def test_long_and_empty_keys_keep_their_order(tmp_path: Path) -> None:
    db = small(tmp_path / "db", 64 << 20)
    stem = b"s" * 505
    wanted = sorted(
        [b"", b"\x00", stem]
        + [stem + bytes([low]) * count for low in (0, 1, 255) for count in (1, 5, 6, 7, 8, 300, 9000)]
        + [b"t" * 511, b"t" * 510, b"t" * 512]
    )
    for key in reversed(wanted):
        db[key] = b"%d" % len(key)
    assert [row.key for row in db.get_range(b"", b"\xff")] == wanted
    assert [row.key for row in db.get_range(b"", b"\xff", reverse=True)] == wanted[::-1]
    for low in range(0, len(wanted), 3):
        for high in range(low, len(wanted), 2):
            begin, end = wanted[low], wanted[high]
            assert [row.key for row in db.get_range(begin, end)] == wanted[low:high]
            assert [row.key for row in db.get_range(begin, end, limit=2, reverse=True)] == wanted[low:high][::-1][:2]
    del db[wanted[7]]
    del db[wanted[2] : wanted[6]]
    left = wanted[:2] + wanted[6:7] + wanted[8:]
    assert [row.key for row in db.get_range(b"", b"\xff")] == left
    assert db[wanted[-1]] == b"%d" % len(wanted[-1])
    fdb_embedded.close(db)


def test_a_forked_child_flushes_too(tmp_path: Path) -> None:
    db = fdb_embedded.open(tmp_path / "db", durability="fsync")
    db[b"k"] = b"v"
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            for number in range(20):
                assert db[b"k"] == b"v"
                db[b"child%d" % number] = b""
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(db.get_range(b"child", b"chile")) == 20
    fdb_embedded.close(db)


def test_what_was_closed_can_be_opened_again(tmp_path: Path) -> None:
    fdb = fdb_embedded.load()
    for _ in range(3):
        db = fdb.open(str(tmp_path / "db"))
        assert db is fdb.open(str(tmp_path / "db"))
        db[b"k"] = b"v"
        fdb_embedded.close(db)
    db = fdb_embedded.open(tmp_path / "db")
    assert db[b"k"] == b"v"
    fdb_embedded.close(db)
    fdb_embedded.close(db)  # twice is fine


def test_a_collected_handle_finishes_its_commits(tmp_path: Path) -> None:
    def abandon() -> Any:
        tr = fdb_embedded.open(tmp_path / "db").create_transaction()
        tr[b"k"] = b"v"
        return tr.commit()

    future = abandon()
    future.wait()
    db = fdb_embedded.open(tmp_path / "db")
    assert db[b"k"] == b"v"
    fdb_embedded.close(db)
    assert not [engine for engine in handles._engines.values() if engine.path == tmp_path / "db"]


def test_an_opening_that_hangs_holds_up_those_of_the_same_database_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, goes_on = threading.Event(), threading.Event()
    opened: list[Any] = []

    class Slow(handles.Engine):
        def __init__(self, path: Path | None, **options: Any) -> None:
            if path == tmp_path / "slow":
                hangs.set()
                assert goes_on.wait(60)
            super().__init__(path, **options)
            opened.append(self)

    monkeypatch.setattr(handles, "Engine", Slow)
    found: list[Any] = []

    def open_slow() -> None:
        found.append(fdb_embedded.open(tmp_path / "slow"))

    def others() -> None:
        for name in (tmp_path / "other", tmp_path / "other", "memory:beside", ":memory:"):
            db = fdb_embedded.open(name)
            db[b"k"] = b"v"
            fdb_embedded.close(db)

    first = threading.Thread(target=open_slow, daemon=True)
    first.start()
    assert hangs.wait(60)
    second, beside = (threading.Thread(target=target, daemon=True) for target in (open_slow, others))
    second.start()
    beside.start()
    beside.join(30)
    free = not beside.is_alive()
    goes_on.set()
    for thread in (first, second, beside):
        thread.join(60)
    assert free, "another database's opening waited"
    assert [engine.path for engine in opened].count(tmp_path / "slow") == 1
    found[0][b"k"] = b"v"
    assert found[1][b"k"] == b"v"
    fdb_embedded.close(found[0])
    assert found[1][b"k"] == b"v", "each has a handle of its own"
    fdb_embedded.close(found[1])
    assert not handles._openings


def test_an_opening_that_fails_keeps_nobody_from_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = handles.Engine

    def broken(*args: Any, **options: Any) -> Any:
        raise OSError("no")

    monkeypatch.setattr(handles, "Engine", broken)
    with pytest.raises(OSError, match="no"):
        fdb_embedded.open(tmp_path / "db")
    monkeypatch.setattr(handles, "Engine", whole)
    fdb_embedded.close(fdb_embedded.open(tmp_path / "db"))
    assert not handles._openings


def test_threads_may_share_a_transaction(tmp_path: Path) -> None:
    db = fdb_embedded.open(":memory:")
    tr = db.create_transaction()
    wrong: list[BaseException] = []

    def work(name: int) -> None:
        try:
            for number in range(300):
                tr[b"%d-%03d" % (name, number)] = b"v"
                assert tr[b"%d-%03d" % (name, number)] == b"v"
                if number % 50 == 0:
                    assert len(tr.read_range(b"%d-" % name, b"%d." % name)) == number + 1
                    tr.get_approximate_size().wait()
                    tr.clear_range(b"none%d" % name, b"none%d\xff" % name)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    tr.commit().wait()
    assert len(db.get_range(b"", b"\xff")) == 1200
    fdb_embedded.close(db)


def test_a_read_version_that_is_only_looked_at_keeps_no_pages(tmp_path: Path) -> None:
    db = small(tmp_path / "db")
    fdb = fdb_embedded.load()
    engine = db.dpointer.engine
    tr = db.create_transaction()
    peeked = tr.peek_read_version()
    assert peeked == tr.get_read_version().wait()
    assert list(engine.snapshots.pinned) == [peeked]  # by get_read_version
    db[b"k"] = b"v"
    tr = db.create_transaction()
    assert tr.peek_read_version() > peeked
    assert list(engine.snapshots.pinned) == [peeked]
    tr.cancel()
    with pytest.raises(fdb.FDBError, match="1025"):
        tr.peek_read_version()
    fdb_embedded.close(db)


def test_a_database_whose_directory_was_removed_can_be_closed(tmp_path: Path) -> None:
    db = fdb_embedded.open(tmp_path / "db")
    db[b"k"] = b"v"
    shutil.rmtree(tmp_path / "db")
    fdb_embedded.close(db)


@pytest.mark.parametrize("again", [False, True], ids=["removed", "replaced"])
def test_a_database_whose_directory_is_gone_says_so_and_is_not_retried(
    tmp_path: Path, again: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fdb_embedded.engine.soundness.THERE_SECONDS", 0.0)
    db = fdb_embedded.open(tmp_path / "db")
    db[b"k"] = b"v"
    (tmp_path / "db").rename(tmp_path / "away")
    if again:
        shutil.copytree(tmp_path / "away", tmp_path / "db")
    for _ in range(2):
        with pytest.raises(Exception, match="File not found") as caught:
            db[b"k"]
        assert caught.value.code == 1511
    assert caplog.text.count(f"{tmp_path / 'db'} was removed or replaced") == 1
    shutil.rmtree(tmp_path / "db", ignore_errors=True)
    (tmp_path / "away").rename(tmp_path / "db")
    assert db[b"k"] == b"v", "it was the same after all"
    fdb_embedded.close(db)


@pytest.mark.parametrize("durability", ["process", "fsync"])
@pytest.mark.parametrize("waits", [True, False], ids=["waits", "does not wait"])
def test_who_only_writes_is_told_that_the_directory_is_gone(
    tmp_path: Path, durability: str, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fdb_embedded.engine.soundness.THERE_SECONDS", 0.0)
    db = fdb_embedded.open(tmp_path / "db", durability=durability)
    tr = db.create_transaction()
    tr[b"k"] = b"there"
    tr.commit().wait()
    (tmp_path / "db").rename(tmp_path / "away")
    tr = db.create_transaction()
    tr[b"k"] = b"gone"
    commit, told = tr.commit(), threading.Event()
    if not waits:
        commit.on_ready(lambda _: told.set())
        assert told.wait(60)
    with pytest.raises(Exception, match="File not found") as caught:
        commit.wait()
    assert caught.value.code == 1511
    (tmp_path / "away").rename(tmp_path / "db")
    assert db[b"k"] == b"there"
    fdb_embedded.close(db)


@pytest.mark.parametrize("called_back", [False, True], ids=["waits", "is called back"])
def test_who_waits_for_a_watch_is_told_that_the_directory_is_gone(
    tmp_path: Path, called_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fdb_embedded.engine.soundness.THERE_SECONDS", 0.0)
    monkeypatch.setattr("fdb_embedded.engine.watches.POLL", 0.01)
    db = fdb_embedded.open(tmp_path / "db")
    tr = db.create_transaction()
    watch = tr.watch(b"k")
    tr.commit().wait()
    (tmp_path / "db").rename(tmp_path / "away")
    told = threading.Event()
    if called_back:
        watch.on_ready(lambda _: told.set())
        assert told.wait(60)
    with pytest.raises(Exception, match="File not found") as caught:
        watch.wait()
    assert caught.value.code == 1511
    (tmp_path / "away").rename(tmp_path / "db")
    fdb_embedded.close(db)


def test_a_write_that_an_interrupt_kept_from_its_end_stops_no_later_commit() -> None:
    db = fdb_embedded.open(":memory:")
    db[b"k"] = b"1"
    opened = db.dpointer.engine.store
    with opened.writer_section() as left:  # as a traceback holds it that somebody keeps
        left.put(b"k", b"never")
    db[b"k"] = b"2"
    assert db[b"k"] == b"2"
    assert left is not None
    fdb_embedded.close(db)
