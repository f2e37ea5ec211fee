"""Copies every row of a database to another one, in chunks that can be taken up again, and compares both to the last byte.

    target: b"\\x15\\x00migrate" → [source's identity, its version, cursor, rows, bytes] (msgpack) while it is under way

The source must stand still: its version is noted at the start and must be the same in every transaction that reads it. So the
chunks together are one snapshot though none lives long. A chunk and the cursor behind it are written in one transaction.

Versionstamps are part of rows (fencing tokens, claims, results), and later ones must be greater: so before anything is
copied the target's versions are brought beyond the source's.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from fdb_schema import MainspringError, OversizeError, pack, read_range, set_many, unpack
from fdb_schema.errors import EXIT_USAGE
from idempotent_txn import run

MARK: Final = b"\x15\x00migrate"
END: Final = b"\xff"
CHUNK_BYTES: Final = 400_000
PAGE_ROWS: Final = 1_000
VALUE_LIMIT: Final = 100_000
RECOVERY_SECONDS: Final = 60.0
_MIN_COMMIT_VERSION: Final = b"\xff/minRequiredCommitVersion"  # what `fdbcli advanceversion` writes
_SLACK: Final = 10_000_000

Row = tuple[bytes, bytes]
Progress = Callable[[int, int], None]
"""`progress(rows, bytes)`: so far."""


class MigrationError(MainspringError):
    """The copy can't be made, or isn't equal."""


class SourceInUseError(MigrationError):
    """The source is written to: a copy would hold one part from before and one from after."""


class TargetNotEmptyError(MigrationError):
    """The target holds something that no unfinished copy of this source put there."""

    exit_code: ClassVar[int] = EXIT_USAGE


class TargetInUseError(MigrationError):
    """Another migration writes to the target, or has finished it meanwhile."""


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
    identity, version = source_identity(source), version_of(source)
    cursor, rows, size = _begin(target, identity, version)
    resumed = rows
    advance_version(target, version)
    while True:
        chunk = _chunk(source, cursor, version)
        if not chunk:
            break
        before = pack([identity, version, cursor, rows, size])
        cursor = chunk[-1][0] + b"\0"
        rows, size = rows + len(chunk), size + sum(len(key) + len(value) for key, value in chunk)
        run(target, _write, chunk, before, pack([identity, version, cursor, rows, size]), strategy="off")
        progress(rows, size)
    digest = compare(source, target, version)
    run(target, lambda tr: tr.clear(MARK), strategy="off")
    return Copied(rows, size, resumed, digest, version, version_of(target))


def source_identity(db: Any) -> bytes:
    """What tells this database from every other."""
    return bytes(run(db, lambda tr: tr.get(b"\xff\xff/cluster_id").value or b"", strategy="off"))


def version_of(db: Any) -> int:
    """The read version: on a source that stands still, that of its last commit."""
    return int(run(db, lambda tr: tr.get_read_version().wait(), strategy="off"))


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


def _chunk(source: Any, begin: bytes, version: int) -> list[Row]:
    """The next rows, at most about `CHUNK_BYTES`, read at `version`."""
    rows = run(source, _page, begin, version, strategy="off")
    size = 0
    for count, (key, value) in enumerate(rows):
        if len(value) > VALUE_LIMIT:
            raise OversizeError(f"the value of {key!r} has {len(value)} bytes; FoundationDB takes {VALUE_LIMIT}")
        size += len(key) + len(value)
        if size > CHUNK_BYTES and count:
            return list(rows[:count])
    return list(rows)


def _page(tr: Any, begin: bytes, version: int) -> list[Row]:
    found = tr.get_read_version().wait()
    if found != version:
        raise SourceInUseError(
            f"the source was written to during the copy (version {version}, now {found}): stop every service and client "
            "of it, clear the target, and begin anew"
        )
    return read_range(tr, begin, END, limit=PAGE_ROWS, snapshot=True)


def _write(tr: Any, chunk: list[Row], before: bytes, mark: bytes) -> None:
    """The chunk behind `before`. Needs no idempotency id, which would be a row of the target: the mark says what is done."""
    found = tr.get(MARK).value
    if found == mark:
        return
    if found != before:
        raise TargetInUseError("another copy goes on in the target, or has ended there: nothing was written over it")
    set_many(tr, chunk)
    tr.set(MARK, mark)


def compare(source: Any, target: Any, version: int) -> str:
    """The digest of both. Raises `MigrationError` naming the first key that differs."""
    here, there = hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=16)
    theirs = _rows(lambda begin: run(target, _plain_page, begin, strategy="off"))
    for row in _rows(lambda begin: run(source, _page, begin, version, strategy="off")):
        other = next(theirs, None)
        if other is not None and other[0] == MARK:
            other = next(theirs, None)
        if other != row:
            raise MigrationError(f"the copy differs at {row[0]!r}: clear the target and begin anew")
        for digest, (key, value) in ((here, row), (there, other)):
            digest.update(b"%d,%d:" % (len(key), len(value)) + key + value)
    left = [row for row in theirs if row[0] != MARK]
    if left or here.digest() != there.digest():
        raise MigrationError(f"the target has {len(left)} rows more than the source: clear it and begin anew")
    return here.hexdigest()


def _plain_page(tr: Any, begin: bytes) -> list[Row]:
    return read_range(tr, begin, END, limit=PAGE_ROWS, snapshot=True)


def _rows(page: Callable[[bytes], list[Row]]) -> Iterator[Row]:
    begin = b""
    while rows := page(begin):
        yield from rows
        begin = rows[-1][0] + b"\0"
