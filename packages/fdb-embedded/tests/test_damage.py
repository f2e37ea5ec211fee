"""A damaged file is told of when it is opened, with the place, and never by a crash, a hang, or rows that are missing."""

from __future__ import annotations

import logging
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import lmdb
import pytest

import fdb_embedded
from fdb_embedded.storage import durability, seal

ROWS = [(b"row%05d" % number, b"value %d" % number * 5) for number in range(3000)]

USE = """
import sys
import fdb_embedded
try:
    db = fdb_embedded.open(sys.argv[1])
    rows = [(row.key, row.value) for row in db.get_range(b"", b"\\xff")]
    expected = [(b"row%05d" % number, b"value %d" % number * 5) for number in range(3000)]
    assert rows == expected, "other rows, silently"
    db[b"row00000"] = b"value 0" * 5
    fdb_embedded.close(db)
    print("whole")
except fdb_embedded.DamagedDatabase as error:
    print("told:", error)
"""

KILLED = """
import os, signal, sys
import fdb_embedded
db = fdb_embedded.open(sys.argv[1])
tr = db.create_transaction()
tr.set_many([(b"row%05d" % number, b"value %d" % number * 5) for number in range(3000)])
tr.commit().wait()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("closed") / "db"
    db = fdb_embedded.open(path)
    tr = db.create_transaction()
    tr.set_many(ROWS)
    tr.commit().wait()
    fdb_embedded.close(db)
    return path


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("killed") / "db"
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    return path


def used(path: Path) -> int:
    with (path / "data.mdb").open("rb") as file:
        found = seal.extent(file.fileno())
    assert found is not None
    return found.used


def use(path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", USE, str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout


def opened(path: Path) -> list[tuple[bytes, bytes]]:
    db = fdb_embedded.open(path)
    try:
        return [(row.key, row.value) for row in db.get_range(b"", b"\xff")]
    finally:
        fdb_embedded.close(db)


@pytest.mark.parametrize("seed", range(24))
def test_any_damage_to_a_closed_file_is_told_with_its_place(closed: Path, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    path = tmp_path / "db"
    shutil.copytree(closed, path)
    data = bytearray((path / "data.mdb").read_bytes())
    length = used(path)
    kind = seed % 4
    if kind == 0:  # a bit
        data[chance.randrange(length)] ^= 1 << chance.randrange(8)
    elif kind == 1:  # a page of zeros
        at = chance.randrange(length // 4096) * 4096
        data[at : at + 4096] = bytes(4096)
    elif kind == 2:  # a page in the place of another
        source, target = chance.sample(range(length // 4096), 2)
        data[target * 4096 : (target + 1) * 4096] = data[source * 4096 : (source + 1) * 4096]
    else:  # cut
        del data[chance.randrange(length) :]
    (path / "data.mdb").write_bytes(data)
    if (path / "data.mdb").read_bytes()[:length] == (closed / "data.mdb").read_bytes()[:length]:
        assert opened(path) == ROWS
        return
    for _ in range(2):  # it isn't taken for whole later, either
        with pytest.raises(fdb_embedded.DamagedDatabase, match=r"data\.mdb"):
            fdb_embedded.open(path)


@pytest.mark.parametrize("seed", range(6))
def test_damage_of_the_pages_after_a_kill_ends_no_process_and_hides_no_row(
    killed: Path, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    path = tmp_path / "db"
    shutil.copytree(killed, path)
    data = bytearray((path / "data.mdb").read_bytes())
    at = chance.randrange(used(path) // 4096) * 4096
    if seed % 2:
        data[at : at + 4096] = bytes(4096)
    else:
        data[at + chance.randrange(24)] ^= 1 << chance.randrange(8)  # of its head
    (path / "data.mdb").write_bytes(data)
    said = use(path)
    assert said.startswith(("told:", "whole")), said


@pytest.mark.parametrize("turn", range(3))
def test_a_file_that_killed_processes_left_is_whole(tmp_path: Path, turn: int) -> None:
    path = tmp_path / "db"
    code = KILLED.replace(
        "os.kill(os.getpid(), signal.SIGKILL)",
        "print('written', flush=True)\nfor n in range(10**9): db[b'x'] = b'%d' % n",
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    process.kill()
    process.wait()
    process.stdout.close()
    assert not (path / seal.SEAL).exists()
    assert seal.walk(path / "data.mdb") == []
    assert [row for row in opened(path) if row[0] != b"x"] == ROWS


def test_after_a_restart_of_the_machine_every_page_and_record_is_looked_at(
    killed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("whole", "pages", "records"):
        path = tmp_path / name
        shutil.copytree(killed, path)
        (path / "attached.lock").write_text("the boot before")
        if name == "pages":
            with (path / "data.mdb").open("r+b") as file:
                file.seek(used(path) // 8192 * 4096)
                file.write(bytes(4096))
        elif name == "records":
            with lmdb.open(str(path), writemap=True) as env, env.begin(write=True) as txn:
                txn.put(b"\xff\xff\x01" + (1 << 62).to_bytes(8, "big"), b"\x92\x90 not a record")
            (path / "lock.mdb").unlink()
        caplog.clear()
        if name == "whole":
            with caplog.at_level(logging.WARNING, "fdb_embedded"):
                assert opened(path) == ROWS
            assert "may be missing" in caplog.text
            caplog.clear()
            assert opened(path) == ROWS
            assert caplog.text == ""
        else:
            with pytest.raises(fdb_embedded.DamagedDatabase, match=r"data\.mdb"):
                fdb_embedded.open(path)


def test_a_database_that_was_copied_or_restored_is_whole_though_its_times_differ(closed: Path, tmp_path: Path) -> None:
    shutil.copytree(closed, tmp_path / "copy", copy_function=shutil.copyfile)
    (tmp_path / "copy" / "attached.lock").write_text("the boot before")
    assert opened(tmp_path / "copy") == ROWS


class _Damaged:
    """A read transaction that comes upon a page which isn't one."""

    def __init__(self, txn: Any) -> None:
        self.txn = txn

    def get(self, key: bytes) -> bytes | None:
        raise lmdb.CorruptedError("mdb_get: MDB_CORRUPTED: Located page was wrong type")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.txn, name)


def test_a_read_that_comes_upon_damage_gets_1510_and_the_place_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fdb = fdb_embedded.load()
    db = fdb_embedded.open(tmp_path / "db")
    tr = db.create_transaction()
    engine = db.dpointer.engine
    with caplog.at_level(logging.ERROR, "fdb_embedded"):
        for _ in range(3):
            tr = db.create_transaction()
            tr.get_read_version().wait()
            snap = tr.tpointer.snap
            snap.txn, whole = _Damaged(snap.txn), snap.txn
            with pytest.raises(fdb.FDBError) as told:
                tr[b"k"].wait()
            assert told.value.code == 1510
            snap.txn = whole
    assert caplog.text.count("is damaged") == 1
    assert str(tmp_path / "db") in caplog.text
    assert isinstance(engine.soundness.damage, fdb_embedded.DamagedDatabase)
    fdb_embedded.close(db)
    assert not (tmp_path / "db" / seal.SEAL).exists()


@pytest.mark.parametrize("value", [None, b"", b"\xff" * 12, b"\x05\x00\x00\x00" * 3])
def test_a_node_of_long_keys_that_is_garbled_is_damage(tmp_path: Path, value: bytes | None) -> None:
    fdb = fdb_embedded.load()
    db = fdb_embedded.open(tmp_path / "db")
    db[b"k" * 600] = b"v"
    store = db.dpointer.engine.store
    with store.writer_section() as txn:
        txn.put(b"k" * 511, txn.get(b"k" * 511) if value is None else value)
        txn.commit()
    for read in (lambda: db[b"k" * 600], lambda: list(db.get_range(b"", b"\xff"))):
        if value is not None:
            with pytest.raises(fdb.FDBError, match="1510"):
                read()
        else:
            assert read()
    fdb_embedded.close(db)


def test_a_commit_record_that_can_t_be_read_is_trimmed_and_stops_no_commit(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    db = fdb_embedded.open(tmp_path / "db")
    store = db.dpointer.engine.store
    with store.writer_section() as txn:
        txn.put(b"\xff\xff\x01" + (1000).to_bytes(8, "big"), b"\x94 not a record")
        txn.commit()
    for number in range(200):  # the log is trimmed meanwhile
        db[b"k"] = b"%d" % number
    assert db[b"k"] == b"199"
    assert "commit record 1000 can't be read" in capfd.readouterr().err
    fdb_embedded.close(db)


def test_who_closes_seals_no_other_database_that_lies_in_its_place(tmp_path: Path) -> None:
    path, other = tmp_path / "db", tmp_path / "other"
    for place in (path, other):
        db = fdb_embedded.open(place)
        db[b"k"] = place.name.encode()
        fdb_embedded.close(db)
    db = fdb_embedded.open(path)
    path.rename(tmp_path / "gone")
    other.rename(path)
    fdb_embedded.close(db)
    os.utime(path / "data.mdb")  # so that its bytes decide
    found = fdb_embedded.open(path)
    assert found[b"k"] == b"other"
    fdb_embedded.close(found)


@pytest.mark.parametrize("state", ["missing", "empty"])
@pytest.mark.parametrize("durable", ["process", "fsync"])
@pytest.mark.parametrize("sealed", [True, False])
def test_a_data_file_that_is_gone_is_told_of_and_no_empty_database_takes_its_place(
    tmp_path: Path, state: str, durable: str, sealed: bool
) -> None:
    path = tmp_path / "db"
    db = fdb_embedded.open(path, durability=durable)
    db[b"key"] = b"value"
    fdb_embedded.close(db)
    if not sealed:
        (path / seal.SEAL).unlink()
    kept = (path / "data.mdb").rename(tmp_path / "kept")
    if state == "empty":
        (path / "data.mdb").touch()
    for _ in range(2):
        with pytest.raises(fdb_embedded.DamagedDatabase, match=rf"data\.mdb is {state}"):
            fdb_embedded.open(path, durability=durable)
    kept.rename(path / "data.mdb")
    db = fdb_embedded.open(path, durability=durable)
    assert db[b"key"] == b"value"
    fdb_embedded.close(db)


@pytest.mark.parametrize("text", [b"another boot, says the damage", b"\xff" * 36])
def test_a_damaged_note_of_the_boot_recovers_nothing_under_those_who_have_the_database_open(
    tmp_path: Path, text: bytes
) -> None:
    path = tmp_path / "db"
    db = fdb_embedded.open(path, durability="fsync")
    (path / durability.BOOT).write_bytes(text)
    files = {entry.name: entry.stat().st_ino for entry in path.iterdir()}
    found = subprocess.run([sys.executable, "-c", USE, str(path)], capture_output=True, text=True, check=True)
    assert found.stdout.startswith(f"told: {path}: boot is damaged"), found
    assert {entry.name: entry.stat().st_ino for entry in path.iterdir()} == files
    db[b"key"] = b"value"
    fdb_embedded.close(db)
    db = fdb_embedded.open(path, durability="fsync")  # nobody else: recovered as after a restart
    assert db[b"key"] == b"value"
    fdb_embedded.close(db)


@pytest.mark.parametrize("name", ["sealed", "boot", "attached.lock"])
def test_of_a_small_file_that_damage_has_made_huge_no_more_is_read_than_it_ever_has(tmp_path: Path, name: str) -> None:
    path = tmp_path / "db"
    db = fdb_embedded.open(path, durability="fsync")
    db[b"key"] = b"value"
    fdb_embedded.close(db)
    with (path / name).open("wb") as file:
        file.truncate(1 << 42)
    db = fdb_embedded.open(path, durability="fsync")
    assert db[b"key"] == b"value"
    fdb_embedded.close(db)
