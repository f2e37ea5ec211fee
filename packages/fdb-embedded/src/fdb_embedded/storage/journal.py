"""The journal of a durable database: what each commit wrote, appended before the commit and flushed before its answer.

    journal-START(16 hex digits)    records from the position START on; positions count bytes since the database began
    record: magic(4) length(4) crc32 of the rest(4) previous version(8) version(8) position(8) flushed(8), then msgpack
            [[[[begin, end of a cleared range]*, [key, value or nil]*, spills]*, commit record]

LMDB itself says where the journal ends (`JOURNAL` in keys.py), so what a killed process appended and never committed is
overwritten, or left behind where the next segment begins. After a power loss the records after the last checkpoint are applied
again, up to the first that isn't whole. A record says up to which position the journal was on disk when it was written: where a
whole record says so of a broken one before it, that one isn't the end that a crash may leave but damage, and it is reported.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

import msgpack

from ..errors import DamagedDatabase
from ..pure import keys
from ..pure.ranges import Range
from ..sharing.private import PRIVATE_FILE
from . import disk

MAGIC = 0x4B424446
MAGIC_BYTES = MAGIC.to_bytes(4, "little")
MAGIC_BEFORE = 0x4A424446  # records of the first release end their head with the version
PREFIX = "journal-"
_HEAD = Struct("<IIIQQQQ")
_HEAD_BEFORE = Struct("<IIIQQ")
_CHECKED = Struct("<QQQQ")
_PLACE = Struct("<QQ")
ALLOCATE = 16 << 20

Change = tuple[bytes, bytes | None]


class FlushFailed(OSError):
    """What was written to the journal since its last flush may be lost, whatever later flushes say."""


class Changes:
    """What one commit does to the rows, in the order in which it is done."""

    __slots__ = ("cleared", "rows", "spills")

    def __init__(self) -> None:
        self.spills = False  # rows of idempotency ids change: those of them on the log become rows first
        self.cleared: list[Range] = []
        self.rows: list[Change] = []


class Found(NamedTuple):
    """A whole record."""

    previous: int  # the version that it follows
    version: int
    contents: Any  # (steps, commit record)
    end: int  # its end, where it was found
    position: int  # in the journal; -1 in a record that doesn't say
    flushed: int  # the position up to which the journal was on disk when it was written


def pack(
    previous: int, version: int, steps: list[Changes], record: bytes, position: int = 0, flushed: int = 0
) -> bytes:
    """One journal record, of all members of a batch."""
    body: bytes = msgpack.packb(([(step.cleared, step.rows, step.spills) for step in steps], record))
    crc = zlib.crc32(body, zlib.crc32(_CHECKED.pack(previous, version, position, flushed)))
    head: bytes = _HEAD.pack(MAGIC, len(body), crc, previous, version, position, flushed)
    return head + body


def unpack(data: Any, at: int) -> tuple[int, int, Any, int] | None:
    """(previous version, version, contents, end) of the record at an offset, or None when it isn't whole."""
    found = find(data, at)
    return None if found is None else found[:4]


def find(data: Any, at: int, place: int | None = None) -> Found | None:
    """The record at an offset of what can be sliced to bytes, or None when it isn't whole.

    `place` is where that is in the journal: what says to be elsewhere is none, and is no further looked at.
    """
    if at + _HEAD_BEFORE.size > len(data):
        return None
    magic, length, crc, previous, version = _HEAD_BEFORE.unpack_from(data, at)
    if magic == MAGIC and at + _HEAD.size <= len(data):
        *_, position, flushed = _HEAD.unpack_from(data, at)
        checked = _CHECKED.pack(previous, version, position, flushed)
        start = at + _HEAD.size
    elif magic == MAGIC_BEFORE:
        position, flushed = -1, 0
        checked = previous.to_bytes(8, "little") + version.to_bytes(8, "little")
        start = at + _HEAD_BEFORE.size
    else:
        return None
    if start + length > len(data) or (place is not None and position not in (-1, place)):
        return None
    body = data[start : start + length]
    if zlib.crc32(body, zlib.crc32(checked)) != crc:
        return None
    contents = msgpack.unpackb(body, use_list=False)
    return Found(previous, version, contents, start + length, position, flushed)


def place(txn: Any) -> tuple[int, int] | None:
    """(start of the current segment, end of the journal) as an LMDB transaction sees them; None without a journal."""
    data = txn.get(keys.JOURNAL)
    return _PLACE.unpack(data) if data is not None else None


def set_place(txn: Any, start: int, end: int) -> None:
    """Note where the journal ends, in the transaction that appended."""
    txn.put(keys.JOURNAL, _PLACE.pack(start, end))


def segment_path(directory: Path, start: int) -> Path:
    return directory / f"{PREFIX}{start:016x}"


def segments(directory: Path) -> list[tuple[int, Path]]:
    """(start, path) of the journal's segments, oldest first."""
    found = []
    for path in directory.glob(PREFIX + "*"):
        try:
            found.append((int(path.name[len(PREFIX) :], 16), path))
        except ValueError:
            continue
    return sorted(found)


def goes_on(directory: Path, version: int, start: int, end: int) -> bool:
    """Whether more follows than one record, of which a killed writer didn't commit the store's part, where a store has its end."""
    found = segments(directory)
    if any(start < later and _is_begun(later, path) for later, path in found):
        return True
    at = end - start
    for path in [path for first, path in found if first == start]:
        with contents_of(path) as data:
            for _ in range(2):
                record = find(data, at, start + at)
                if record is None or record.previous != version:
                    return False
                at, version = record.end, record.version
            return True
    return False


class Replay:
    """Reads the journal for what follows a checkpoint; afterwards `version` and `end` say how far it reaches."""

    def __init__(self, directory: Path, version: int, position: int) -> None:
        self.directory = directory
        self.version = version  # of the checkpoint, then of the last record given
        self.covered = position  # the checkpoint has everything before it
        self.end = position  # of the records given
        self._segments = segments(directory)

    def records(self, flushed: int = 0) -> Iterator[tuple[int, Any]]:
        """The (version, contents) of the records that follow the checkpoint, in order.

        They end with the first that isn't whole, as a crash may leave it: written, never flushed, and so never acknowledged. Raises
        `DamagedDatabase` when that one was on disk once: because `flushed`, or a whole record behind it, says so.
        """
        for number, (start, path) in enumerate(self._segments):
            with contents_of(path) as data:
                # Behind the place where the next segment begins lies at most what a killed process never committed. One that nobody
                # has begun isn't that: a process left it that ended, or whose disk failed, before it told the others.
                begun = (later for later, other in self._segments[number + 1 :] if _is_begun(later, other))
                limit = next(begun, start + len(data)) - start
                at = max(0, self.covered - start)
                while at < limit:
                    found = find(data, at, start + at)
                    if found is None:
                        break
                    if found.version > self.version:
                        if found.previous != self.version:
                            break
                        self.version = found.version
                        yield found.version, found.contents
                    at = found.end
                    self.end = max(self.end, start + at)
        lost = max(flushed, *(self._flushed_by(start, path) for start, path in self._segments), 0)
        if lost > self.end:
            raise DamagedDatabase(self._damage(lost))

    def _flushed_by(self, start: int, path: Path) -> int:
        """Up to which position the records behind the end of this replay say that the journal was on disk."""
        most = 0
        with contents_of(path) as data:
            at = data.find(MAGIC_BYTES, max(0, self.end - start)) if len(data) else -1
            while at >= 0:
                found = find(data, at, start + at)
                if found is not None and found.version > self.version:
                    most = max(most, found.flushed)
                    at = data.find(MAGIC_BYTES, found.end)
                else:
                    at = data.find(MAGIC_BYTES, at + 1)
        return most

    def _damage(self, lost: int) -> str:
        place = "the journal is missing"
        for start, path in self._segments:
            if start <= self.end:
                place = f"{path.name} is damaged or cut at byte {self.end - start}"
        return (
            f"{self.directory}: {place}: acknowledged commits after version {self.version} ({lost - self.end} bytes of journal) can't be "
            "recovered from it; restore the directory from a copy, or load a dump"
        )


@contextlib.contextmanager
def contents_of(path: Path) -> Iterator[Any]:
    """The bytes of a file, without reading them into memory at once."""
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data


def _is_begun(start: int, path: Path) -> bool:
    """Whether a segment has a whole first record: only then it is certain that no other segment went on beyond its start."""
    with contents_of(path) as data:
        return find(data, 0, start) is not None


class Segments:
    """This process's open segments: appends go to the newest."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.start = -1
        self.fd = -1
        self.allocated = 0

    def use(self, start: int) -> int:
        """The descriptor of the segment that starts at `start`."""
        if self.start != start:
            self.close()
            self.fd = os.open(segment_path(self.directory, start), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
            self.start = start
            self.allocated = os.fstat(self.fd).st_size
        return self.fd

    def append(self, start: int, end: int, data: bytes) -> int:
        """Write a record at the position `end`; returns the new end. Room is allocated ahead, so that a flush is short."""
        fd = self.use(start)
        offset = end - start
        if offset + len(data) > self.allocated:
            size = offset + len(data) + ALLOCATE
            disk.extend(fd, self.allocated, size)
            try:
                disk.flush_all(fd)
            except OSError as error:
                raise FlushFailed(
                    error.errno, f"{error.strerror} (flushing {segment_path(self.directory, start)})"
                ) from error
            if not self.allocated:
                disk.flush_directory(self.directory)
            self.allocated = size
        disk.write(fd, data, offset)
        return end + len(data)

    def take_back(self, start: int, end: int) -> None:
        """What was appended at `end` is no record any more. Raises OSError."""
        fd = self.use(start)
        disk.write(fd, bytes(len(MAGIC_BYTES)), end - start)
        disk.flush(fd)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self.start = -1
