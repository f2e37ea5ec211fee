"""Copies every row of a database to another one, in chunks that can be taken up again, and compares both to the last byte.

    target: b"\\x15\\x00migrate" → [source's identity, its version, cursor, rows, bytes] (msgpack) while it is under way

The source must stand still. A chunk and the cursor behind it are written in one transaction. At the end both databases are read
once more, the source as one snapshot (`mainspring.migrate.sources`), and compared.

Versionstamps are part of rows (fencing tokens, claims, results), and later ones must be greater: so before anything is
copied the target's versions are brought beyond the source's.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from fdb_schema import OversizeError, pack, read_range, set_many, unpack
from idempotent_txn import run
from mainspring.migrate.errors import (
    MigrationError,
    SnapshotBrokenError,
    SourceInUseError,
    TargetInUseError,
    TargetNotEmptyError,
)
from mainspring.migrate.sources import END, MARK, Pages, Row, Source, rows_of, source_of, version_of

__all__ = [
    "MARK",
    "Copied",
    "MigrationError",
    "SnapshotBrokenError",
    "SourceInUseError",
    "TargetInUseError",
    "TargetNotEmptyError",
    "migrate_database",
    "version_of",
]

CHUNK_BYTES: Final = 400_000
COMPARISONS: Final = 5
VALUE_LIMIT: Final = 100_000
RECOVERY_SECONDS: Final = 60.0
_MIN_COMMIT_VERSION: Final = b"\xff/minRequiredCommitVersion"  # what `fdbcli advanceversion` writes
_SLACK: Final = 10_000_000

Progress = Callable[[int, int], None]
"""`progress(rows, bytes)`: so far."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What a migration did."""

    rows: int
    bytes: int
    resumed_at: int  # rows that an earlier, interrupted run had copied
    digest: str  # BLAKE2b over every key and value, in order, of both
    source_version: int
    target_version: int


def migrate_database(source: Any, target: Any, progress: Progress = lambda rows, size: None) -> Copied:
    """Copy, or go on with an interrupted copy, and verify. Raises `MigrationError` and its kinds."""
    here = source_of(source)
    if run(source, lambda tr: tr.get(MARK).value, strategy="off") is not None:
        raise MigrationError("the source is itself an unfinished copy: finish it with the command that began it")
    head = [here.identity, here.noted]
    cursor, rows, size = _begin(target, here.identity, here.noted)
    resumed = rows
    advance_version(target, here.version)
    for chunk in _chunks(here, cursor):
        before = pack([*head, cursor, rows, size])
        cursor = chunk[-1][0] + b"\0"
        rows, size = rows + len(chunk), size + sum(len(key) + len(value) for key, value in chunk)
        run(target, _write, chunk, before, pack([*head, cursor, rows, size]), strategy="off")
        progress(rows, size)
    digest = compare(here, target)
    run(target, lambda tr: tr.clear(MARK), strategy="off")
    return Copied(rows, size, resumed, digest, here.version, version_of(target))


def advance_version(db: Any, version: int) -> None:
    """Bring the database's versions beyond `version`. Raises `MigrationError` where it lets nobody do so."""
    if version_of(db) > version:
        return
    wanted = version + _SLACK

    def ask(tr: Any) -> None:
        tr.options.set_access_system_keys()
        tr.set(_MIN_COMMIT_VERSION, wanted.to_bytes(8, "little"))

    engine = getattr(getattr(db, "dpointer", None), "engine", None)
    if engine is not None and hasattr(engine, "jump_version"):
        engine.jump_version(wanted - version_of(db))
        run(db, lambda tr: tr.add_write_conflict_key(MARK), strategy="off")
    else:
        run(db, ask, strategy="off")
    until = time.monotonic() + RECOVERY_SECONDS
    while version_of(db) <= version and time.monotonic() < until:
        time.sleep(0.2)  # the cluster recovers at the new version
    if version_of(db) <= version:
        raise MigrationError(
            f"the target's versions ({version_of(db)}) are behind the source's ({version}), so that tokens would go "
            f"backwards: run `fdbcli --exec 'advanceversion {wanted}'` on it, then this command again"
        )


def _begin(target: Any, identity: bytes, version: int) -> tuple[bytes, int, int]:
    """(cursor, rows, bytes) where the copy begins or goes on."""
    mark = run(target, _claim, pack([identity, version, b"", 0, 0]), strategy="off")
    if mark is not None:
        before, noted, cursor, rows, size = unpack(bytes(mark))
        if before != identity:
            raise TargetNotEmptyError("the target holds an unfinished copy of another database: clear it first")
        if noted != version:
            raise SourceInUseError(
                f"the source was written to since the copy began (version {noted}, now {version}): stop whatever writes, "
                "clear the target, and begin anew"
            )
        return bytes(cursor), int(rows), int(size)
    return b"", 0, 0


def _claim(tr: Any, mark: bytes) -> bytes | None:
    """The mark of an unfinished copy; None where the target was empty, and is marked now: of two at once one comes first."""
    found = tr.get(MARK).value
    if found is not None:
        return bytes(found)
    first = read_range(tr, b"", END, limit=1)
    if first:
        raise TargetNotEmptyError(f"the target isn't empty (its first key is {first[0][0]!r}): give an empty database")
    tr.set(MARK, mark)
    return None


def _chunks(source: Source, begin: bytes) -> Iterator[list[Row]]:
    """The rows from `begin` on, at most about `CHUNK_BYTES` at a time."""

    def page(begin: bytes) -> list[Row]:
        source.begin_snapshot()  # each page its own: the target may take its time between two
        return source.page(begin)

    chunk: list[Row] = []
    size = 0
    for key, value in rows_of(page, begin):
        if len(value) > VALUE_LIMIT:
            raise OversizeError(f"the value of {key!r} has {len(value)} bytes; FoundationDB takes {VALUE_LIMIT}")
        size += len(key) + len(value)
        if size > CHUNK_BYTES and chunk:
            yield chunk
            chunk, size = [], len(key) + len(value)
        chunk.append((key, value))
    if chunk:
        yield chunk


def _write(tr: Any, chunk: list[Row], before: bytes, mark: bytes) -> None:
    """The chunk behind `before`. Needs no idempotency id, which would be a row of the target: the mark says what is done."""
    found = tr.get(MARK).value
    if found == mark:
        return
    if found != before:
        raise TargetInUseError("another copy goes on in the target, or has ended there: nothing was written over it")
    set_many(tr, chunk)
    tr.set(MARK, mark)


def compare(source: Source, target: Any) -> str:
    """The digest of both. Raises `MigrationError` naming the first key that differs."""
    for attempt in range(1, COMPARISONS + 1):
        try:
            return _compare(source, target)
        except SnapshotBrokenError:
            if attempt == COMPARISONS:
                raise
    raise AssertionError


def _compare(source: Source, target: Any) -> str:
    here, there = hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=16)
    theirs = (row for row in rows_of(Pages(target).page) if row[0] != MARK)
    source.begin_snapshot()
    for row in rows_of(source.page):
        other = next(theirs, None)
        if other != row:
            raise MigrationError(f"the copy differs at {row[0]!r}: clear the target and begin anew")
        for digest, (key, value) in ((here, row), (there, other)):
            digest.update(b"%d,%d:" % (len(key), len(value)) + key + value)
    left = sum(1 for _ in theirs)
    if left or here.digest() != there.digest():
        raise MigrationError(f"the target has {left} rows more than the source: clear it and begin anew")
    return here.hexdigest()
