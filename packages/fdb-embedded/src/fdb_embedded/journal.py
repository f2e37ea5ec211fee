"""The journal of a durable database: what each commit wrote, appended before the commit and flushed before its answer.

    journal-START(16 hex digits)    records from the position START on; positions count bytes since the database began
    record: magic(4) length(4) crc32 of the rest(4) previous version(8) version(8), then msgpack
            [[[[begin, end of a cleared range]*, [key, value or nil]*, spills]*, commit record]

LMDB itself says where the journal ends (`JOURNAL` in keys.py), so what a killed process appended and never committed is
overwritten. After a power loss the records after the last checkpoint are applied again, up to the first that isn't whole.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Any

import msgpack

from . import keys
from .conflict import Range
from .shared import allocate

MAGIC = 0x4A424446
PREFIX = "journal-"
_HEAD = Struct("<IIIQQ")
_PLACE = Struct("<QQ")
ALLOCATE = 16 << 20

Change = tuple[bytes, bytes | None]


class Changes:
    """What one commit does to the rows, in the order in which it is done."""

    __slots__ = ("cleared", "rows", "spills")

    def __init__(self) -> None:
        self.spills = False  # rows of idempotency ids change: those of them on the log become rows first
        self.cleared: list[Range] = []
        self.rows: list[Change] = []


def pack(previous: int, version: int, steps: list[Changes], record: bytes) -> bytes:
    """One journal record, of all members of a batch."""
    body: bytes = msgpack.packb(([(step.cleared, step.rows, step.spills) for step in steps], record))
    checked = previous.to_bytes(8, "little") + version.to_bytes(8, "little")
    crc = zlib.crc32(body, zlib.crc32(checked))
    head: bytes = _HEAD.pack(MAGIC, len(body), crc, previous, version)
    return head + body


def unpack(data: bytes, at: int) -> tuple[int, int, Any, int] | None:
    """(previous version, version, contents, end) of the record at an offset, or None when it isn't whole."""
    if at + _HEAD.size > len(data):
        return None
    magic, length, crc, previous, version = _HEAD.unpack_from(data, at)
    start = at + _HEAD.size
    if magic != MAGIC or start + length > len(data):
        return None
    body = data[start : start + length]
    checked = previous.to_bytes(8, "little") + version.to_bytes(8, "little")
    if zlib.crc32(body, zlib.crc32(checked)) != crc:
        return None
    return previous, version, msgpack.unpackb(body, use_list=False), start + length


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


def read(directory: Path, version: int) -> Iterator[tuple[int, Any]]:
    """The (version, contents) of whole records that follow `version`, in order; ends where the chain breaks."""
    for _, path in segments(directory):
        data = path.read_bytes()
        at = 0
        while True:
            found = unpack(data, at)
            if found is None:
                break
            previous, at_version, contents, at = found
            if at_version <= version:
                continue
            if previous != version:
                return
            version = at_version
            yield version, contents


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
            self.fd = os.open(segment_path(self.directory, start), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            self.start = start
            self.allocated = os.fstat(self.fd).st_size
        return self.fd

    def append(self, start: int, end: int, data: bytes) -> int:
        """Write a record at the position `end`; returns the new end. Room is allocated ahead, so that a flush is short."""
        fd = self.use(start)
        offset = end - start
        if offset + len(data) > self.allocated:
            size = offset + len(data) + ALLOCATE
            allocate(fd, self.allocated, size - self.allocated)
            os.ftruncate(fd, size)
            self.allocated = size
            os.fsync(fd)
        written = 0
        while written < len(data):
            written += os.pwrite(fd, data[written:], offset + written)
        return end + len(data)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self.start = -1


def sync_directory(directory: Path) -> None:
    """Make names in a directory survive a power loss."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
