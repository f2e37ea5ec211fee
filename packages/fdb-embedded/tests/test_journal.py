"""The journal: what was acknowledged is found behind whatever a crash or a failed flush leaves, and damage is reported."""

from __future__ import annotations

import errno
import os
import shutil
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest

import fdb_embedded
from fdb_embedded.pure.versions import last_version
from fdb_embedded.storage import disk, durability, journal, recovery
from fdb_embedded.storage.journal import Changes


def after_power_loss(directory: Path, image: Path, *, page: bool = False) -> Path:
    """A copy of the directory as after a restart; the data file is garbage, since nothing ever flushed it."""
    left_out = ("data.mdb",) if page else ("data.mdb", "shared")
    shutil.copytree(directory, image, ignore=shutil.ignore_patterns(*left_out))
    (image / "data.mdb").write_bytes(bytes(65536))
    (image / "boot").write_text("another boot")
    return image


def numbers(db: Any) -> list[int]:
    return [int(row.value) for row in db.get_range(b"n", b"o")]


def write(db: Any, *which: int) -> None:
    for number in which:
        db[b"n%03d" % number] = b"%d" % number


def recovered(image: Path) -> list[int]:
    db = fdb_embedded.open(image, durability="fsync")
    try:
        return numbers(db)
    finally:
        fdb_embedded.close(db)


def append_and_die(db: Any, number: int) -> None:
    """What a process leaves that is killed between its record in the journal and its commit."""
    store = db.dpointer.engine.store
    with store.writer_section() as txn:
        last = last_version(txn)
        changes = Changes()
        changes.rows.append((b"n%03d" % number, b"%d" % number))
        store.write_record(txn, last, store.clock.now(), b"\x92\x90\x90", [changes])


def test_a_record_of_a_killed_process_hides_nothing_in_the_next_segment(tmp_path: Path) -> None:
    path = tmp_path / "db"
    db = fdb_embedded.open(path, durability="fsync")
    write(db, 0, 1)
    append_and_die(db, 500)
    durability._new_segment(db.dpointer.engine.store, path)  # a checkpoint begins, and isn't finished
    write(db, 2, 3)
    image = after_power_loss(path, tmp_path / "image")
    fdb_embedded.close(db)
    assert recovered(image) == [0, 1, 2, 3]


def test_a_segment_that_nobody_came_to_use_ends_no_other(tmp_path: Path) -> None:
    path = tmp_path / "db"
    db = fdb_embedded.open(path, durability="fsync")
    write(db, 0, 1)
    _, end = db.dpointer.engine.store.read(journal.place)
    journal.segment_path(path, end).touch()  # of a process that was killed before it told the others
    write(db, 2, 3)
    image = after_power_loss(path, tmp_path / "image")
    fdb_embedded.close(db)
    assert recovered(image) == [0, 1, 2, 3]


def test_a_segment_that_nobody_came_to_use_hides_no_later_one(tmp_path: Path) -> None:
    """Between it and the one that follows in use lies what a killed process never committed: that isn't a commit for it."""
    path = tmp_path / "db"
    db = fdb_embedded.open(path, durability="fsync")
    store = db.dpointer.engine.store
    write(db, 0, 1)
    _, end = store.read(journal.place)
    journal.segment_path(path, end).touch()
    write(db, 2, 3)
    append_and_die(db, 500)
    durability._new_segment(store, path)  # a checkpoint begins, and isn't finished
    write(db, 4, 5)
    image = after_power_loss(path, tmp_path / "image")
    fdb_embedded.close(db)
    assert recovered(image) == [0, 1, 2, 3, 4, 5]


def test_whatever_killed_processes_leave_and_however_often_the_machine_crashes(tmp_path: Path) -> None:
    """What was acknowledged is there, and of what wasn't at most the very last: that may have been about to be made."""
    path, last = tmp_path / "db", 900
    expected: list[int] = []

    def go_on() -> None:
        write(db, len(expected))
        expected.append(len(expected))

    for life in range(3):
        db = fdb_embedded.open(path, durability="fsync")
        store = db.dpointer.engine.store
        assert [number for number in numbers(db) if number != last] == expected
        for _ in range(2):
            for _ in range(2):
                go_on()
                _, end = store.read(journal.place)
                journal.segment_path(path, end).touch()
                go_on()
            append_and_die(db, 500 + len(expected))
            durability._new_segment(store, path)
            append_and_die(db, 700 + len(expected))
            go_on()
            append_and_die(db, last)
        image = after_power_loss(path, tmp_path / f"image{life}", page=life == 1)
        fdb_embedded.close(db)
        path = image
    assert [number for number in recovered(path) if number != last] == expected


def record_ends(path: Path) -> list[int]:
    data = path.read_bytes()
    ends = [0]
    while (found := journal.unpack(data, ends[-1])) is not None:
        ends.append(found[3])
    return ends


@pytest.mark.parametrize("which", [0, 3, 8])
@pytest.mark.parametrize("where", ["head", "body"])
def test_a_damaged_record_with_whole_ones_behind_is_reported_with_its_place(
    tmp_path: Path, which: int, where: str
) -> None:
    path = tmp_path / "db"
    db = fdb_embedded.open(path, durability="fsync")
    write(db, *range(10))
    image = after_power_loss(path, tmp_path / "image")
    fdb_embedded.close(db)
    (segment,) = (path for _, path in journal.segments(image))
    begin, end = record_ends(segment)[which : which + 2]
    data = bytearray(segment.read_bytes())
    data[begin + 1 if where == "head" else end - 2] ^= 4
    segment.write_bytes(data)
    with pytest.raises(fdb_embedded.DamagedDatabase, match=rf"{segment.name} is damaged or cut at byte {begin}\b"):
        fdb_embedded.open(image)


def test_a_cut_behind_the_last_known_flush_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "db"
    db = fdb_embedded.open(path, durability="fsync")
    write(db, *range(10))
    image = after_power_loss(path, tmp_path / "image", page=True)
    fdb_embedded.close(db)
    (segment,) = (path for _, path in journal.segments(image))
    ends = record_ends(segment)
    segment.write_bytes(segment.read_bytes()[: ends[-2]])
    with pytest.raises(fdb_embedded.DamagedDatabase, match=rf"at byte {ends[-2]}\b"):
        fdb_embedded.open(image)


def test_whole_records_behind_a_torn_one_that_nobody_flushed_are_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "db"
    fdb_embedded.close(fdb_embedded.open(path, durability="fsync"))
    db = fdb_embedded.open(path)  # doesn't wait for flushes
    write(db, *range(10))
    image = after_power_loss(path, tmp_path / "image", page=True)
    fdb_embedded.close(db)
    (segment,) = (path for _, path in journal.segments(image))
    begin, end = record_ends(segment)[4:6]
    data = segment.read_bytes()
    segment.write_bytes(data[:begin] + bytes(end - begin) + data[end:])
    assert recovered(image) == [0, 1, 2, 3]
    assert recovered(image) == [0, 1, 2, 3]


def test_values_that_look_like_records_cost_a_recovery_no_look_at_the_rest_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a torn record each of them would be held against a checksum of all that follows."""
    path = tmp_path / "db"
    db = fdb_embedded.open(path, durability="fsync")
    write(db, 0)
    like = (journal.MAGIC_BYTES + (90_000).to_bytes(4, "little")) * 10_000
    for number in range(5):
        db[b"v%d" % number] = like
    write(db, 1)
    image = after_power_loss(path, tmp_path / "image")
    fdb_embedded.close(db)
    (segment,) = (path for _, path in journal.segments(image))
    begin = record_ends(segment)[1]
    data = bytearray(segment.read_bytes())
    data[begin + 100] ^= 1
    segment.write_bytes(data)
    crc32, checked = zlib.crc32, [0]

    def counted(data: bytes, value: int = 0) -> int:
        checked[0] += len(data)
        return crc32(data, value)

    monkeypatch.setattr(journal.zlib, "crc32", counted)
    with pytest.raises(fdb_embedded.DamagedDatabase, match=rf"damaged or cut at byte {begin}\b"):
        recovery.recover(image)
    assert checked[0] < 10 * 5 * len(like)


def test_a_recovery_has_one_record_at_a_time_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "db"
    db = fdb_embedded.open(path, durability="fsync")
    version = db.dpointer.engine.store.last_version()
    for number in range(60):
        db[b"n%03d" % number] = bytes(90_000)
    fdb_embedded.close(db)
    tracemalloc.start()
    try:
        assert sum(1 for _ in journal.Replay(path, version, 0).records()) == 60
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_damaged_checkpoint_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "db"
    db = fdb_embedded.open(path, durability="fsync")
    write(db, *range(10))
    durability.checkpoint(db.dpointer.engine.store, path)
    image = after_power_loss(path, tmp_path / "image")
    fdb_embedded.close(db)
    checkpoint = image / durability.CHECKPOINT
    data = bytearray(checkpoint.read_bytes())
    at = data.index(b"n007") + 4
    data[at] ^= 1  # in a value: the pages are as whole as before
    checkpoint.write_bytes(data)
    with pytest.raises(fdb_embedded.DamagedDatabase, match=r"checkpoint\.mdb is damaged"):
        fdb_embedded.open(image)


class BrokenDisk:
    """Flushes of the journal fail and lose what they should have written, as a kernel loses it: it is said once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failures = 0
        self.good: dict[str, bytes] = {}
        self.flush, self.flush_all = disk.flush, disk.flush_all
        monkeypatch.setattr(disk, "flush", lambda fd: self.flushed(fd, self.flush))
        monkeypatch.setattr(disk, "flush_all", lambda fd: self.flushed(fd, self.flush_all))

    def flushed(self, fd: int, flush: Any) -> None:
        name = os.readlink(f"/proc/self/fd/{fd}")
        if "journal-" in name and self.failures:
            self.failures -= 1
            before = self.good.get(name, b"")
            os.pwrite(fd, before.ljust(os.fstat(fd).st_size, b"\0"), 0)
            raise OSError(errno.EIO, "Input/output error")
        flush(fd)
        if "journal-" in name:
            self.good[name] = Path(name).read_bytes()


def test_nothing_is_acknowledged_on_top_of_what_a_failed_flush_has_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fdb = fdb_embedded.load()
    path = tmp_path / "db"
    broken = BrokenDisk(monkeypatch)
    db = fdb_embedded.open(path, durability="fsync")
    write(db, 0, 1, 2)
    broken.failures = 1
    tr = db.create_transaction()
    tr[b"n003"] = b"3"
    with pytest.raises(fdb.FDBError) as told:
        tr.commit().wait()
    assert told.value.code == 1021
    write(db, 4, 5, 6)  # a new checkpoint is on disk before the first of them is acknowledged
    image = after_power_loss(path, tmp_path / "image", page=True)
    assert numbers(db) == [0, 1, 2, 3, 4, 5, 6]
    fdb_embedded.close(db)
    assert recovered(image) == [0, 1, 2, 3, 4, 5, 6]


def test_while_no_checkpoint_can_be_made_after_a_failed_flush_reads_and_commits_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fdb = fdb_embedded.load()
    path = tmp_path / "db"
    broken = BrokenDisk(monkeypatch)
    monkeypatch.setattr(durability, "REPAIR_SECONDS", 0.0)
    db = fdb_embedded.open(path, durability="fsync")
    write(db, 0)
    broken.failures = 3
    codes = []
    for number in (1, 2, 3, 4):
        tr = db.create_transaction()
        tr.options.set_retry_limit(0)
        tr[b"n%03d" % number] = b"%d" % number
        try:
            tr.commit().wait()
        except fdb.FDBError as error:
            codes.append(error.code)
    assert codes == [1021, 1021, 1021]
    image = after_power_loss(path, tmp_path / "image", page=True)
    fdb_embedded.close(db)
    assert recovered(image) == [0, 1, 2, 3, 4]


def test_checkpoints_that_can_not_be_made_take_no_more_room_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the disk is full, each attempt would make it fuller, and the recovery, too, needs room."""
    fdb = fdb_embedded.load()
    path = tmp_path / "db"
    broken = BrokenDisk(monkeypatch)
    monkeypatch.setattr(durability, "REPAIR_SECONDS", 0.0)
    db = fdb_embedded.open(path, durability="fsync")
    write(db, 0)
    broken.failures = 1
    left = 10
    seal_checkpoint = durability.seal_checkpoint

    def full(copy: Path) -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        seal_checkpoint(copy)

    monkeypatch.setattr(durability, "seal_checkpoint", full)
    refused = 0
    while left > 0:
        tr = db.create_transaction()
        tr.options.set_retry_limit(0)
        tr[b"n%03d" % (refused + 1)] = b"%d" % (refused + 1)
        with pytest.raises(fdb.FDBError):
            tr.commit().wait()
        refused += 1
    assert len(journal.segments(path)) > 3
    assert sum(segment.stat().st_size for _, segment in journal.segments(path)) < 2 * journal.ALLOCATE
    write(db, refused + 1)
    image = after_power_loss(path, tmp_path / "image", page=True)
    assert numbers(db) == list(range(refused + 2))
    fdb_embedded.close(db)
    assert recovered(image) == list(range(refused + 2))


def test_commits_that_are_made_while_the_database_becomes_durable_are_recovered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "db"
    db = fdb_embedded.open(path)
    write(db, 0, 1)
    note_boot = durability.note_boot

    def note_boot_late(directory: Path) -> None:
        write(db, 2, 3)  # behind the copy of the checkpoint, before anybody says that the database is durable
        note_boot(directory)

    monkeypatch.setattr(durability, "note_boot", note_boot_late)
    again = fdb_embedded.open(path, durability="fsync")
    monkeypatch.undo()
    write(again, 4)
    image = after_power_loss(path, tmp_path / "image")
    for handle in {id(handle): handle for handle in (db, again)}.values():
        fdb_embedded.close(handle)
    assert recovered(image) == [0, 1, 2, 3, 4]
