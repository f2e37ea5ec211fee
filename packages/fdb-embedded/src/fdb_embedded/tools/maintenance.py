"""Work on a whole database: checking that everything in it can be read and means something, and compacting its file."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from ..errors import EmbeddedError
from ..pure import keys
from ..sharing import private
from ..storage import checking, disk, durability, journal
from ..storage.files import DATA


def check(engine: Any) -> dict[str, Any]:
    """Read every page and record; returns counts and the list `problems`, empty when all is well."""
    problems: list[str] = []
    with engine.store.reading() as txn:
        counts = checking.check_rows(txn, problems)
        data = txn.get(keys.FORMAT)
        if data is None:
            problems.append("the format record is missing")
        at = journal.place(txn)
    if engine.path is not None and at is not None:
        _check_journal(engine.path, at, problems)
    return {**counts, "problems": problems}


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
        try:
            copy.mkdir(mode=private.PRIVATE_DIRECTORY)
            engine.store.copy(copy)
            with (copy / DATA).open("rb") as file:
                os.fchmod(file.fileno(), private.PRIVATE_FILE)
                os.fsync(file.fileno())
            engine.close()
            os.replace(copy / DATA, directory / DATA)
            (directory / "lock.mdb").unlink(missing_ok=True)
        finally:
            shutil.rmtree(copy, ignore_errors=True)  # a part of one would take the last room
        disk.flush_directory(directory)
        return before, (directory / DATA).stat().st_blocks * 512
