"""Durability `fsync`: what was acknowledged is there after a power loss, played by losing everything that wasn't flushed."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest

import fdb_embedded
from fdb_embedded.pure import idempotency, versions
from fdb_embedded.storage import clock, durability, journal, recovery
from fdb_embedded.transaction import handles


def power_loss(directory: Path, image: Path, journal_bytes: int | None = None, torn: bool = False) -> int:
    """A copy of the directory as after a restart: the data file is garbage, the journal cut. Returns its whole length."""
    shutil.copytree(directory, image, ignore=shutil.ignore_patterns("data.mdb", "shared"))
    (image / "data.mdb").write_bytes(random.Random(1).randbytes(65536))
    (image / "boot").write_text("another boot")
    _, path = journal.segments(image)[-1]
    data = path.read_bytes()
    at, end = 0, 0
    while (found := journal.unpack(data, at)) is not None:
        at = end = found[3]
    if journal_bytes is not None:
        cut = bytearray(data[:journal_bytes])
        if torn and cut:
            cut[-1] ^= 0xFF
        path.write_bytes(cut)
    return end


def numbers(db: Any) -> list[int]:
    return [int(row.value) for row in db.get_range(b"n", b"o")]


def test_everything_acknowledged_survives(tmp_path: Path) -> None:
    fdb = fdb_embedded.load()
    db = fdb_embedded.open(tmp_path / "db", durability="fsync")
    for number in range(50):
        db[b"n%03d" % number] = b"%d" % number
    db.add(b"count", (7).to_bytes(8, "little"))
    db.clear_range(b"n010", b"n020")
    db[b"k" * 3000] = b"long"
    tr = db.create_transaction()
    tr.set_versionstamped_key(b"s" + bytes(10) + (1).to_bytes(4, "little"), b"stamped")
    stamp = tr.get_versionstamp()
    tr.commit().wait()
    power_loss(tmp_path / "db", tmp_path / "image")
    fdb_embedded.close(db)
    found = fdb_embedded.open(tmp_path / "image", durability="fsync")
    assert numbers(found) == [*range(10), *range(20, 50)]
    assert found[b"count"] == (7).to_bytes(8, "little")
    assert found[b"k" * 3000] == b"long"
    assert found[b"s" + stamp.value] == b"stamped"
    version = found.create_transaction().get_read_version().wait()
    assert version >= int.from_bytes(stamp.value[:8], "big")
    found[b"n999"] = b"999"
    power_loss(tmp_path / "image", tmp_path / "again")
    fdb_embedded.close(found)
    again = fdb_embedded.open(tmp_path / "again", durability="fsync")
    assert numbers(again)[-1] == 999
    fdb_embedded.close(again)
    assert fdb is not None


def test_a_version_that_is_asked_for_changes_nobody_elses_snapshot(tmp_path: Path) -> None:
    fdb = fdb_embedded.load()
    db = fdb_embedded.open(tmp_path / "db", durability="fsync")
    db[b"a"] = b"1"
    old = db.create_transaction().get_read_version().wait()
    db[b"b"] = b"2"
    db[b"a"] = b"3"
    engine = db.dpointer.engine
    engine.snapshots.pinned.clear()
    newest = db.create_transaction()
    version = newest.get_read_version().wait()
    named = db.create_transaction()
    named.set_read_version(old)
    with pytest.raises(fdb.FDBError) as error:
        named[b"a"].wait()
    assert error.value.code == 1007
    assert named.get_read_version().wait() == old < version
    assert newest[b"a"] == b"3"
    assert newest.get_read_version().wait() == version
    later = db.create_transaction()
    assert later.get_read_version().wait() == version
    newest[b"c"] = b"4"
    newest.commit().wait()
    fdb_embedded.close(db)


def test_an_automatic_id_that_was_expired_stays_so_after_a_power_loss(tmp_path: Path) -> None:
    db = fdb_embedded.open(tmp_path / "db", durability="fsync")
    for name in (b"expired expired e", b"kept kept kept ke"):
        tr = db.create_transaction()
        tr.set_idempotency_id(name, True)
        tr[b"k"] = name
        stamp = tr.get_versionstamp()
        tr.commit().wait()
        if name.startswith(b"expired"):
            tr = db.create_transaction()
            tr.options.set_access_system_keys()
            tr.clear(idempotency.row_key(int.from_bytes(stamp.value[:8], "big"), 0))
            tr.commit().wait()
    power_loss(tmp_path / "db", tmp_path / "image")
    fdb_embedded.close(db)
    found = fdb_embedded.open(tmp_path / "image", durability="fsync")
    tr = found.create_transaction()
    tr.options.set_read_system_keys()
    rows = tr.read_range(idempotency.IDS, idempotency.IDS_END)
    assert [name for row in rows for name, _, _ in idempotency.parse_row(*row)] == [b"kept kept kept ke"]
    fdb_embedded.close(found)


def test_idempotency_ids_survive_a_power_loss_with_their_commits(tmp_path: Path) -> None:
    db = fdb_embedded.open(tmp_path / "db", durability="fsync")
    stamps = {}
    for number in range(5):
        tr = db.create_transaction()
        name = b"the id of number%d" % number
        tr._set_option(504, name, len(name))
        tr[b"n%d" % number] = b"%d" % number
        stamp = tr.get_versionstamp()
        tr.commit().wait()
        stamps[name] = stamp.value
    power_loss(tmp_path / "db", tmp_path / "image")
    fdb_embedded.close(db)
    found = fdb_embedded.open(tmp_path / "image")
    tr = found.create_transaction()
    tr.options.set_read_system_keys()
    rows = tr.get_range(idempotency.IDS, idempotency.IDS_END)
    ids = [item for row in rows for item in idempotency.parse_row(row.key, row.value)]
    assert {name: version.to_bytes(8, "big") + index.to_bytes(2, "big") for name, version, index in ids} == stamps
    fdb_embedded.close(found)


@pytest.mark.parametrize("torn", [False, True])
def test_a_cut_or_torn_journal_gives_a_prefix(tmp_path: Path, torn: bool) -> None:
    db = fdb_embedded.open(tmp_path / "db", durability="fsync")
    for number in range(40):
        db[b"n%03d" % number] = b"%d" % number
    end = power_loss(tmp_path / "db", tmp_path / "whole")
    fdb_embedded.close(db)
    seed = 11
    chance = random.Random(seed)
    seen = set()
    for trial in range(12):
        image = tmp_path / f"image{trial}"
        cut = chance.randrange(end + 1)
        power_loss(tmp_path / "db", image, cut, torn)
        found = fdb_embedded.open(image, durability="fsync")
        assert numbers(found) == list(range(len(numbers(found)))), f"seed {seed}, cut at {cut}"
        seen.add(len(numbers(found)))
        found[b"n%03d" % 900] = b"900"
        assert numbers(found)[-1] == 900
        fdb_embedded.close(found)
    assert len(seen) > 3


def test_a_checkpoint_takes_the_place_of_the_journal(tmp_path: Path) -> None:
    db = fdb_embedded.open(tmp_path / "db", durability="fsync")
    store = db.dpointer.engine.store
    for number in range(30):
        db[b"n%03d" % number] = b"%d" % number
        if number % 10 == 9:
            assert durability.checkpoint(store, tmp_path / "db")
    assert len(journal.segments(tmp_path / "db")) == 1
    for number in range(30, 35):
        db[b"n%03d" % number] = b"%d" % number
    power_loss(tmp_path / "db", tmp_path / "image")
    fdb_embedded.close(db)
    found = fdb_embedded.open(tmp_path / "image")
    assert numbers(found) == list(range(35))
    fdb_embedded.close(found)


def test_a_process_that_does_not_flush_still_journals(tmp_path: Path) -> None:
    fdb_embedded.close(fdb_embedded.open(tmp_path / "db", durability="fsync"))
    db = fdb_embedded.open(tmp_path / "db")
    db[b"n1"] = b"1"
    power_loss(tmp_path / "db", tmp_path / "image")
    fdb_embedded.close(db)
    found = fdb_embedded.open(tmp_path / "image")
    assert numbers(found) == [1]
    fdb_embedded.close(found)


def test_a_missing_checkpoint_is_reported(tmp_path: Path) -> None:
    fdb_embedded.close(fdb_embedded.open(tmp_path / "db", durability="fsync"))
    power_loss(tmp_path / "db", tmp_path / "image")
    (tmp_path / "image" / "checkpoint.mdb").unlink()
    with pytest.raises(fdb_embedded.DamagedDatabase, match=r"checkpoint\.mdb is missing"):
        fdb_embedded.open(tmp_path / "image")


def test_a_read_version_never_shows_what_is_not_flushed(tmp_path: Path) -> None:
    db = fdb_embedded.open(tmp_path / "db", durability="fsync")
    engine = db.dpointer.engine
    stop = threading.Event()

    def write(number: int) -> None:
        while not stop.is_set():
            db[b"w%d" % number] = b"v"

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(200):
            snap = engine.snapshots.begin()
            position = journal.place(snap.txn)
            assert position is not None
            assert engine.store.page.flushed() >= position[1]
            engine.snapshots.release(snap)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    fdb_embedded.close(db)


WRITER = """
import sys, fdb_embedded
db = fdb_embedded.open(sys.argv[1], durability="fsync")
name = sys.argv[2].encode()
for number in range(100000):
    db[b"p" + name + b"%06d" % number] = b"v"
    print(number, flush=True)
"""


def test_killed_writers_lose_nothing_acknowledged(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "db"), str(n)], stdout=subprocess.PIPE, text=True
        )
        for n in range(3)
    ]
    last = {}
    try:
        for n, writer in enumerate(writers):
            assert writer.stdout is not None
            for line in writer.stdout:
                last[n] = int(line)
                if last[n] >= 30:
                    break
        for n, writer in enumerate(writers):
            writer.kill()
            assert writer.stdout is not None
            for line in writer.stdout:
                if line.endswith("\n"):
                    last[n] = int(line)
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
            assert writer.stdout is not None
            writer.stdout.close()
    power_loss(tmp_path / "db", tmp_path / "image")
    for directory in (tmp_path / "db", tmp_path / "image"):
        db = fdb_embedded.open(directory)
        for n, count in last.items():
            found = [int(row.key[-6:]) for row in db.get_range(b"p%d" % n, b"p%d" % (n + 1))]
            assert found[: count + 1] == list(range(count + 1)), f"writer {n} lost a row in {directory.name}"
        fdb_embedded.close(db)


def test_flushes_go_on_while_the_map_grows(tmp_path: Path) -> None:
    handle = handles.open_database(str(tmp_path / "db"), 730, durability="fsync", map_size=1 << 20)
    db = fdb_embedded.load().impl.Database(handle)
    wrong: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for turn in range(30):
                tr = db.create_transaction()
                assert tr[b"w%d" % number].value in (None, b"%d" % (turn - 1))
                tr.set_many([(b"w%d-%d-%d" % (number, turn, row), bytes(1000)) for row in range(30)])
                tr[b"w%d" % number] = b"%d" % turn
                tr.commit().wait()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    fdb_embedded.close(db)


def test_a_database_whose_first_checkpoint_was_cut_short_becomes_durable_all_the_same(tmp_path: Path) -> None:
    db = fdb_embedded.open(tmp_path / "db", durability="fsync")
    db[b"n000"] = b"0"
    fdb_embedded.close(db)
    for name in (durability.BOOT, durability.CHECKPOINT):  # as a process leaves them that was killed on the way
        (tmp_path / "db" / name).unlink()
    db = fdb_embedded.open(tmp_path / "db", durability="fsync")
    db[b"n001"] = b"1"
    power_loss(tmp_path / "db", tmp_path / "image")
    fdb_embedded.close(db)
    found = fdb_embedded.open(tmp_path / "image", durability="fsync")
    assert numbers(found) == [0, 1]
    fdb_embedded.close(found)


def full_once(whole: Callable[..., Any]) -> Callable[..., Any]:
    """Finds no room in the map the first time."""
    full = iter([lmdb.MapFullError("full")])

    def patched(*arguments: Any) -> Any:
        for error in full:
            raise error
        return whole(*arguments)

    return patched


def test_what_is_written_for_no_commit_makes_room_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The place of a new segment, when a database becomes durable; a jump of the version."""
    db = fdb_embedded.open(tmp_path / "db")
    db[b"k"] = b"1"
    engine = db.dpointer.engine
    before = engine.store.map.file_size()
    with monkeypatch.context() as patched:
        patched.setattr(engine.store, "write_record", full_once(engine.store.write_record))
        engine.jump_version(100_000_000)
    assert engine.store.map.file_size() > before
    fdb_embedded.close(db)
    monkeypatch.setattr(journal, "set_place", full_once(journal.set_place))
    db = fdb_embedded.open(tmp_path / "db", durability="fsync")
    db[b"k"] = b"2"
    fdb_embedded.close(db)
    power_loss(tmp_path / "db", tmp_path / "image")
    db = fdb_embedded.open(tmp_path / "image")
    assert db[b"k"] == b"2"
    fdb_embedded.close(db)


def test_a_commit_that_a_full_disk_refused_does_not_come_back_with_a_power_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was in the journal already when the store had no room for it."""
    db = fdb_embedded.open(tmp_path / "db", durability="fsync")
    db[b"made"] = b"1"
    store = db.dpointer.engine.store

    def full(*_: Any) -> None:
        raise lmdb.MapFullError("full")

    def no_room(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(store.page, "count_members", full)
        patched.setattr(store.map, "grow", no_room)
        with pytest.raises(fdb_embedded.load().FDBError) as caught:
            db[b"refused"] = b"1"
        assert caught.value.code == 1510
    power_loss(tmp_path / "db", tmp_path / "image")
    fdb_embedded.close(db)
    db = fdb_embedded.open(tmp_path / "image")
    assert (db[b"made"], db[b"refused"]) == (b"1", None)
    fdb_embedded.close(db)


NO_ROOM = [
    OSError(errno.ENOSPC, "No space left on device"),
    lmdb.DiskError("mdb_txn_commit: No space left on device"),
    lmdb.Error("mdb_txn_commit: Input/output error"),  # what LMDB makes of a write that was cut short
    lmdb.MemoryError("Cannot allocate memory"),
]


@pytest.mark.parametrize("lack", NO_ROOM, ids=[type(lack).__name__ for lack in NO_ROOM])
@pytest.mark.parametrize("step", ["copy_checkpoint", "_replay", "seal_checkpoint"])
def test_a_full_disk_at_the_recovery_is_no_damage_and_takes_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, lack: Exception
) -> None:
    db = fdb_embedded.open(tmp_path / "db", durability="fsync")
    db[b"n000"] = b"0"
    power_loss(tmp_path / "db", tmp_path / "image")
    fdb_embedded.close(db)

    def full(*_: Any) -> None:
        raise lack

    with monkeypatch.context() as patched:
        patched.setattr(recovery, step, full)
        with pytest.raises(fdb_embedded.PathUnusable, match="nothing is lost; make room"):
            fdb_embedded.open(tmp_path / "image")
    assert not (tmp_path / "image" / "recovered").exists()
    db = fdb_embedded.open(tmp_path / "image")
    assert numbers(db) == [0]
    fdb_embedded.close(db)


@pytest.mark.parametrize("lack", NO_ROOM, ids=[type(lack).__name__ for lack in NO_ROOM])
@pytest.mark.parametrize("opened", [False, True])
def test_a_full_disk_at_the_first_checkpoint_is_told_and_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: bool, lack: Exception
) -> None:
    db = fdb_embedded.open(tmp_path / "db")
    db[b"n000"] = b"0"
    if not opened:
        fdb_embedded.close(db)
    before = len(os.listdir("/proc/self/fd"))

    def full(*_: Any) -> None:
        raise lack

    with monkeypatch.context() as patched:
        patched.setattr(durability, "seal_checkpoint", full)
        for _ in range(3):
            with pytest.raises(fdb_embedded.PathUnusable, match=str(tmp_path)):
                fdb_embedded.open(tmp_path / "db", durability="fsync")
    assert not (tmp_path / "db" / "copying").exists()
    assert len(os.listdir("/proc/self/fd")) <= before + opened  # a journal's segment, where it is open
    if not opened:
        db = fdb_embedded.open(tmp_path / "db")
    assert db.dpointer.engine.store.readers.others() == []  # a slot of nobody's would keep its pages for good
    assert numbers(db) == [0]
    fdb_embedded.close(db)


def test_what_a_signal_handler_raises_while_a_database_is_opened_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise TimeoutError("of a signal handler")

    monkeypatch.setattr(durability, "seal_checkpoint", interrupted)
    with pytest.raises(TimeoutError, match="of a signal handler"):
        fdb_embedded.open(tmp_path / "db", durability="fsync")


def _older_data(path: Path) -> None:
    """Commit, and put the data file back as it was before: what a disk is left with that lost what wasn't flushed."""
    db = fdb_embedded.open(path, durability="fsync")
    db[b"n000"] = b"0"
    for entry in ("data.mdb", "shared", "attached.lock"):
        shutil.copyfile(path / entry, path.with_name(entry))
    for number in range(1, 20):
        db[b"n%03d" % number] = b"%d" % number
    fdb_embedded.close(db)
    (path / "sealed").unlink()
    for entry in ("data.mdb", "shared", "attached.lock"):
        shutil.copyfile(path.with_name(entry), path / entry)


def test_a_data_file_that_is_behind_its_journal_is_recovered_though_the_machine_runs(tmp_path: Path) -> None:
    path = tmp_path / "db"
    _older_data(path)
    for durable in ("process", "fsync"):  # whoever opens it
        db = fdb_embedded.open(path, durability=durable)
        assert numbers(db) == list(range(20))
        db[b"n%03d" % len(numbers(db))] = b"%d" % len(numbers(db))
        db[b"m"] = b"m"
        db.clear(b"n020")
        fdb_embedded.close(db)


def test_a_disk_that_was_mounted_anew_is_taken_for_a_restart_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "db"
    system = tmp_path / "sys"
    device = os.stat(tmp_path).st_dev
    (system / "dev/block").mkdir(parents=True)
    (system / f"dev/block/{os.major(device)}:{os.minor(device)}").symlink_to("../../devices/disk")
    mounted = system / "fs/xfs/disk"
    mounted.mkdir(parents=True)
    monkeypatch.setattr(clock, "SYS", system)
    db = fdb_embedded.open(path, durability="fsync")
    for number in range(20):
        db[b"n%03d" % number] = b"%d" % number
    assert not recovery.needs_recovery(path)
    noted = (path / durability.BOOT).read_text()
    # what is lost of pages that were written in any order: the data file says that it is the newest
    fdb_embedded.close(db)
    (path / "data.mdb").write_bytes(random.Random(1).randbytes(65536))
    mounted.rename(system / "before")
    mounted.mkdir()
    db = fdb_embedded.open(path)
    assert numbers(db) == list(range(20))
    fdb_embedded.close(db)
    assert (path / durability.BOOT).read_text() not in (noted, clock.boot_id())
    # where the kernel doesn't tell, and what an earlier release noted, the boot decides
    monkeypatch.setattr(clock, "SYS", tmp_path / "none")
    assert not recovery.needs_recovery(path)
    (path / durability.BOOT).write_text(clock.boot_id())
    monkeypatch.setattr(clock, "SYS", system)
    assert not recovery.needs_recovery(path)
    fdb_embedded.close(fdb_embedded.open(path, durability="fsync"))
    assert (path / durability.BOOT).read_text() == clock.cache_id(path)


def test_one_record_that_a_killed_writer_did_not_commit_calls_for_no_recovery(tmp_path: Path) -> None:
    path = tmp_path / "db"
    db = fdb_embedded.open(path, durability="fsync")
    db[b"n000"] = b"0"
    store = db.dpointer.engine.store
    start, end = store.read(journal.place)
    version = store.read(versions.last_version)
    fdb_embedded.close(db)
    segments = journal.Segments(path)
    segments.append(start, end, journal.pack(version, version + 5, [], b"", end, end))
    segments.close()
    assert not recovery.is_behind(path)
    db = fdb_embedded.open(path, durability="fsync")
    assert numbers(db) == [0]
    fdb_embedded.close(db)


@pytest.mark.parametrize("refused", ["utime", "statvfs"])
def test_no_flush_counts_on_a_file_system_that_takes_no_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """ext4, when its own journal fails: a flush that waits for it may be told of success, and is later, when it is read-only."""
    db = fdb_embedded.open(tmp_path / "db", durability="fsync")
    db[b"k"] = b"before"
    tr = db.create_transaction()
    tr[b"k"] = b"after"
    with monkeypatch.context() as patch:
        if refused == "utime":

            def refuse(fd: int) -> None:
                raise OSError(errno.EROFS, "Read-only file system")

            patch.setattr(os, "utime", refuse)
        else:
            found = list(os.statvfs(tmp_path))
            found[8] |= os.ST_RDONLY
            patch.setattr(os, "fstatvfs", lambda fd: os.statvfs_result(found))
        with pytest.raises(fdb_embedded.load().FDBError) as raised:
            tr.commit().wait()
        assert raised.value.code == 1021
    db[b"l"] = b"again"  # a new checkpoint takes the journal's place
    assert db[b"k"] == b"after"
    fdb_embedded.close(db)


def test_where_the_kernel_tells_no_boots_apart_each_first_opening_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in some sandboxes: two boots would look like one, and what a loss of power left like what the kernel has."""
    path = tmp_path / "db"
    monkeypatch.setattr(clock, "PROC", tmp_path)
    monkeypatch.setattr(clock, "SYS", tmp_path)
    db = fdb_embedded.open(path, durability="fsync")
    for number in range(20):
        db[b"n%03d" % number] = b"%d" % number
    assert not recovery.needs_recovery(path), "somebody has it open"
    last = db.dpointer.engine.store.read(versions.last_version)
    fdb_embedded.close(db)
    (path / "data.mdb").write_bytes(random.Random(1).randbytes(65536))
    monkeypatch.setattr(time, "monotonic_ns", lambda: 5_000_000)  # the machine has just restarted
    db = fdb_embedded.open(path, durability="fsync")
    assert numbers(db) == list(range(20))
    db[b"m"] = b"after"
    assert db.dpointer.engine.store.read(versions.last_version) > last
    fdb_embedded.close(db)
