"""Work on a whole database: checking that everything in it can be read and means something, and compacting its file."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import lmdb
import msgpack

from . import durability, journal, keys
from .conflict import unpack_record
from .errors import EmbeddedError
from .store import DATA


def check(engine: Any) -> dict[str, Any]:
    """Read every page and record; returns counts and the list `problems`, empty when all is well."""
    problems: list[str] = []
    counts = {"rows": 0, "buckets": 0, "commit_records": 0, "bytes": 0}
    with engine.store.reading() as txn:
        previous = b""
        version = 0
        try:
            for key, value in txn.cursor().iternext(True, True):
                if key <= previous:
                    problems.append(f"keys out of order at {key!r}")
                previous = key
                if key.startswith(keys.LOG):
                    counts["commit_records"] += 1
                    version = _check_record(key, value, version, problems)
                elif key.startswith(keys.META):
                    counts["rows"] += key == keys.EMPTY
                    continue
                elif len(key) == keys.BUCKET:
                    counts["buckets"] += 1
                    counts["rows"] += _check_bucket(key, value, problems)
                else:
                    counts["rows"] += 1
                counts["bytes"] += len(key) + len(value)
        except lmdb.Error as error:
            problems.append(f"the store can't be read behind {previous!r}: {error}")
        data = txn.get(keys.FORMAT)
        if data is None:
            problems.append("the format record is missing")
        at = journal.place(txn)
    if engine.path is not None and at is not None:
        _check_journal(engine.path, at, problems)
    return {**counts, "version": version, "problems": problems}


def _check_record(key: bytes, value: bytes, version: int, problems: list[str]) -> int:
    found = int.from_bytes(key[len(keys.LOG) :], "big")
    if found <= version:
        problems.append(f"commit record {found} doesn't follow {version}")
    try:
        unpack_record(value)
    except (ValueError, IndexError, TypeError, msgpack.UnpackException) as error:
        problems.append(f"commit record {found} can't be read: {error}")
    return found


def _check_bucket(key: bytes, value: bytes, problems: list[str]) -> int:
    try:
        rows = keys.unpack_bucket(value)
    except Exception as error:
        problems.append(f"the bucket of long keys {key[:20]!r}... can't be read: {error}")
        return 0
    names = [name for name, _ in rows]
    if names != sorted(set(names)) or not rows or keys.pack_bucket(rows) != value:
        problems.append(f"the bucket of long keys {key[:20]!r}... is out of order or cut")
    return len(rows)


def _check_journal(directory: Path, at: tuple[int, int], problems: list[str]) -> None:
    start, end = at
    path = journal.segment_path(directory, start)
    if end > start and not path.exists():
        problems.append(f"the journal's segment {path.name} is missing")
        return
    if end > start:
        data = path.read_bytes()
        position = 0
        while position < end - start:
            found = journal.unpack(data, position)
            if found is None:
                problems.append(f"the journal {path.name} is damaged at byte {position}")
                return
            position = found[3]
    if not (directory / durability.CHECKPOINT).exists():
        problems.append(f"{durability.CHECKPOINT} is missing: a restart of the machine would lose the database")


def compact(engine: Any) -> tuple[int, int]:
    """Rewrite the data file without free pages; returns its bytes before and after.

    Raises `EmbeddedError` while any other process (or another handle of this one) has the database open.
    """
    directory: Path | None = engine.path
    if directory is None:
        raise EmbeddedError("a database in memory has no file to compact")
    with durability.locked(directory / durability.OPEN_LOCK):
        if engine.handles > 1 or not engine.store.alone():
            raise EmbeddedError(f"{directory} is open elsewhere; stop the processes that use it, then compact")
        before = (directory / DATA).stat().st_blocks * 512
        copy = directory / "compacting"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        engine.store.env.copy(str(copy), compact=True)
        with (copy / DATA).open("rb") as file:
            os.fsync(file.fileno())
        engine.close()
        os.replace(copy / DATA, directory / DATA)
        (directory / "lock.mdb").unlink(missing_ok=True)
        shutil.rmtree(copy, ignore_errors=True)
        journal.sync_directory(directory)
        return before, (directory / DATA).stat().st_blocks * 512
