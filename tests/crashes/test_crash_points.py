"""Durability `fsync` at every point where the machine may crash: what was acknowledged is there, and damage is told of.

Runs of several writing threads, with checkpoints and with flushes that fail, are recorded with all that they write and flush; then a
crash is played at points of them, with what wasn't flushed dropped, torn or done in another order. `nox -s crashes` plays
thousands of them; `MAINSPRING_CRASH_POINTS=N` says how many.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest
from tests.crashes.recorder import RecordingDisk

import fdb_embedded
from fdb_embedded.pure.scan import scan
from fdb_embedded.pure.versions import last_version
from fdb_embedded.storage import checking, disk, durability, journal, recovery

POINTS = int(os.environ.get("MAINSPRING_CRASH_POINTS") or 180)
PER_RUN = 60  # crash points of one recorded run
THREADS = 3
COMMITS = 8
SIZES = (10, 10, 300, 5_000, 30_000)
LONG = b"k" * 600
"""How some of the keys begin, which lie behind one node."""

Rows = dict[bytes, int]  # key -> commit version


@pytest.fixture
def folder() -> Iterator[Path]:
    memory = Path("/dev/shm")  # nothing here has to reach a disk: the recorder is the disk
    path = Path(tempfile.mkdtemp(prefix="crashes-", dir=memory if os.access(memory, os.W_OK) else None))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def is_judged(key: bytes) -> bool:
    """Whether it is one of the keys that stay."""
    return key.removeprefix(LONG)[:1] in b"012f"


class Run:
    """A recorded run: the disk, and the version of every commit that was made."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.folder = folder
        self.disk = RecordingDisk(folder / "db", self._fails)
        self.failing = seed % 3 == 2
        self.versions: Rows = {}
        self._work()

    def _fails(self) -> bool:
        return self.failing and self.disk.failures < 4 and self.chance.random() < 0.08

    def _work(self) -> None:
        path = self.folder / "db"
        with self.disk.installed(), pytest.MonkeyPatch.context() as patched:
            patched.setattr(durability, "REPAIR_SECONDS", 0.0)
            patched.setattr(journal, "ALLOCATE", 1 << 16)
            failing, self.failing = self.failing, False
            db = fdb_embedded.open(path, durability="process" if self.seed % 2 else "fsync")
            if self.seed % 2:  # it becomes durable when there is something in it
                self._set(db, b"first", 10)
                again = fdb_embedded.open(path, durability="fsync")
            self.failing = failing
            threads = [threading.Thread(target=self._write, args=(db, number)) for number in range(THREADS)]
            for thread in threads:
                thread.start()
            for _ in range(2):
                try:
                    self._append_and_die(db)
                    durability.checkpoint(db.dpointer.engine.store, path)
                except OSError:
                    assert failing
            for thread in threads:
                thread.join()
            self.failing = False
            self._set(db, b"finally", 10)  # what nobody was told of is seen once something behind it is flushed
            self.disk.acknowledge(b"finally")
            for key, value in db.get_range(b"", b"\xff"):
                if is_judged(bytes(key)):
                    self.versions[bytes(key)] = int.from_bytes(value[:8], "big")
            self.events = self.disk.now
            fdb_embedded.close(db)
            if self.seed % 2:
                fdb_embedded.close(again)

    @staticmethod
    def _append_and_die(db: Any) -> None:
        """What a process leaves that is killed between its record in the journal and its commit."""
        store = db.dpointer.engine.store
        with store.writer_section() as txn:
            changes = journal.Changes()
            changes.rows.append((b"never committed", b"v" * 100))
            store.write_record(txn, last_version(txn), store.clock.now(), b"\x92\x90\x90", [changes])

    @staticmethod
    def _set(db: Any, key: bytes, size: int) -> None:
        tr = db.create_transaction()
        tr.clear_range(LONG + b"passing", LONG + b"passinh")  # with the last of them their nodes go
        if size == 10:
            tr[LONG + b"passing" * 100 + key] = b"by"
        tr.set_versionstamped_value(key, bytes(10) + b"v" * size + bytes(4))
        tr.commit().wait()

    def _write(self, db: Any, thread: int) -> None:
        chance = random.Random(self.seed * 10 + thread)
        for number in range(COMMITS):
            key = chance.choice((b"", LONG)) + b"%d-%03d" % (thread, number)
            try:
                self._set(db, key, chance.choice(SIZES))
            except fdb_embedded.load().FDBError as error:
                if error.code not in (1021, 1510):
                    raise
            else:
                self.disk.acknowledge(key)

    def crash(self, point: int, name: str, damage: bool = False) -> tuple[Path, int]:
        """An image of a crash at some event."""
        chance = random.Random(self.seed * 1_000_003 + point)
        at = chance.randrange(1, self.events + 1)
        image = self.folder / name
        self.disk.image(at, image, chance)
        if (image / "boot").exists():
            (image / "boot").write_text("another boot")
        if damage:
            self._damage(image, at, chance)
        return image, at

    def _damage(self, image: Path, at: int, chance: random.Random) -> None:
        page = self.disk.last_page(at)
        if page is not None:
            (image / "shared").write_bytes(page.ljust(1 << 20, b"\0"))
        files = [path for _, path in journal.segments(image) if path.stat().st_size]
        checkpoint = image / durability.CHECKPOINT
        if checkpoint.exists() and (not files or chance.random() < 0.3):
            files = [checkpoint]
        if not files:
            return
        path = chance.choice(files)
        data = bytearray(path.read_bytes())
        written = len(data.rstrip(b"\0"))
        if written:
            data[chance.randrange(written)] ^= 1 << chance.randrange(8)
            path.write_bytes(data)

    def promised(self, at: int) -> set[bytes]:
        return {name for when, name in self.disk.acknowledged if when <= at}


def recovered(image: Path) -> Rows:
    recovery.recover(image)
    with (
        lmdb.open(str(image), readonly=True, lock=False, map_size=1 << 30) as env,
        env.begin() as txn,
    ):
        rows = {}
        problems: list[str] = []
        checking.check_rows(txn, problems)
        assert not problems
        for key, value in scan(txn, b"", b"\xff", 1_000_000, False, True):
            if is_judged(key):
                assert not value[10:].strip(b"v") and len(value) - 10 in SIZES, f"{key!r} has another value"
                rows[key] = int.from_bytes(value[:8], "big")
        return rows


def judge(run: Run, at: int, rows: Rows, point: str) -> None:
    lost = run.promised(at) - set(rows)
    assert not lost, f"{point}: acknowledged commits are gone: {sorted(lost)}"
    for key, version in rows.items():
        assert run.versions[key] == version, f"{point}: {key!r} has another version"
    newest = max(rows.values(), default=0)
    skipped = {key for key, version in run.versions.items() if version <= newest} - set(rows)
    assert not skipped, f"{point}: commits are gone, and later ones are there: {sorted(skipped)}"


def play_crashes(folder: Path, seed: int) -> None:
    """Record a run, and judge what is recovered after crashes at points of it."""
    run = Run(folder, seed)
    for number in range(PER_RUN):
        image, at = run.crash(number, f"image{number}")
        point = f"seed {seed}, point {number}, event {at} of {run.events}"
        if not (image / "boot").exists():
            assert not run.promised(at), f"{point}: it was never noted that the database is durable"
            continue
        if number % 3 == 0:  # the machine crashes again, in the midst of the recovery
            again = RecordingDisk(image)
            _adopt(again, image)
            with again.installed():
                rows = recovered(image)
            judge(run, at, rows, point)
            chance = random.Random(number)
            second = folder / f"second{number}"
            again.image(chance.randrange(1, again.now + 1), second, chance)
            judge(run, at, recovered(second), point + ", and again in its recovery")
            shutil.rmtree(second)
        else:
            judge(run, at, recovered(image), point)
        shutil.rmtree(image)


def _adopt(disk: RecordingDisk, image: Path) -> None:
    """What is in a directory before the recording begins is on disk."""
    for path in sorted(image.iterdir()):
        if path.is_file():
            with path.open("rb") as file:
                known, _ = disk._file(file.fileno())
                known.base, known.base_at = file.read(), 0
    for naming in disk.namings:
        naming.at = naming.safe_at = 0


def play_damage(folder: Path, seed: int) -> None:
    """Record a run, and judge what is recovered where a bit of what was flushed has changed besides."""
    run = Run(folder, seed)
    told = 0
    for number in range(PER_RUN):
        image, at = run.crash(number, f"image{number}", damage=True)
        point = f"seed {run.seed}, point {number}, event {at} of {run.events}"
        if (image / "boot").exists():
            try:
                rows = recovered(image)
            except fdb_embedded.DamagedDatabase as error:
                told += str(image) in str(error)
            else:
                judge(run, at, rows, point)
        shutil.rmtree(image)
    assert told, f"seed {run.seed}: no damage was told of"


@pytest.mark.parametrize("seed", range(max(1, POINTS // PER_RUN)))
def test_after_a_crash_at_any_point_all_that_was_acknowledged_is_there(folder: Path, seed: int) -> None:
    play_crashes(folder, seed)


@pytest.mark.parametrize("seed", range(1000, 1000 + max(1, POINTS // PER_RUN // 2)))
def test_damage_of_what_was_flushed_is_told_or_harmless(folder: Path, seed: int) -> None:
    play_damage(folder, seed)


def _acknowledge_at_once(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(durability.Flusher, "wait", lambda *_: None)


def _trust_the_next_flush(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(durability.Flusher, "failed", lambda *_: None)


def _read_beyond_the_next_segment(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(journal, "_is_begun", lambda *_: False)


def _end_where_a_record_is_broken(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(journal.Replay, "_flushed_by", lambda *_: 0)
    patched.setattr(recovery, "flushed_before", lambda _: 0)


def _remove_the_journal_first(patched: pytest.MonkeyPatch) -> None:
    flush = durability.flush_path

    def too_early(path: Path) -> None:
        if path.parent.name == "copying":
            for _, segment in journal.segments(path.parent.parent)[:-1]:
                disk.remove(segment)
        flush(path)

    patched.setattr(durability, "flush_path", too_early)


@pytest.mark.parametrize(
    ("defect", "play"),
    [
        (_acknowledge_at_once, play_crashes),
        (_trust_the_next_flush, play_crashes),
        (_read_beyond_the_next_segment, play_crashes),
        (_remove_the_journal_first, play_crashes),
        (_end_where_a_record_is_broken, play_damage),
    ],
)
def test_planted_defects_are_found(folder: Path, monkeypatch: pytest.MonkeyPatch, defect: Any, play: Any) -> None:
    defect(monkeypatch)

    def runs() -> None:
        for seed in (
            2,
            5,
            3,
            8,
            11,
            4,
            *range(20, 50),
        ):  # the first is enough nearly always; flushes fail in every third
            inner = folder / str(seed)
            inner.mkdir()
            play(inner, seed)

    with pytest.raises((AssertionError, fdb_embedded.DamagedDatabase)):
        runs()
