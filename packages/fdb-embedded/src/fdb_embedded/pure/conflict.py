"""Which commits a transaction conflicts with: the commit records of the last seconds, as each process keeps them.

A commit record lists the keys and ranges that the commit wrote. A transaction that read at version r conflicts when a
record of a version in (r, now] wrote something it read. Point reads are answered from an index, key -> last version
that wrote it, and range reads from blocks of many records, so that their cost hardly grows with what others commit.
"""

from __future__ import annotations

import bisect
import itertools
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import Any

import msgpack

from ..errors import DamagedDatabase
from .keys import LOG, LOG_END, log_key
from .ranges import Range, covers, merge_ranges, touched
from .versions import MAX_READ_AGE, log_begin

Ids = list[
    tuple[bytes, int, int]
]  # of a version: (id, index in the batch, 1 when it ends once its commit was answered)

FEW = 8  # so many records are cheaper to look at than to index
BLOCK = 64  # records whose keys are sorted together, for range reads
KEEP_KEYS = 100_000
KEEP_RECORDS = 10_000  # older ones are read from the log again when a transaction is as old
INDEX_SLACK = 100_000
UNUSED = 64  # commits after the last check from which on nothing is kept: who only writes needs no window

_packer = msgpack.Packer()


def pack_record(points: Collection[bytes], ranges: list[Range], ids: Ids, seconds: int) -> bytes:
    """Serialize a commit record: [points, ranges], with ids [.., .., [seconds, ids]], and [.., .., .., 1] if any lasts.

    So the first byte says whether there are ids, and whether trimming must keep any.
    """
    if not ids:
        return _packer.pack((list(points), ranges))  # type: ignore[no-any-return]
    if (len(ids) > 1 or not ids[0][2]) and not all(item[2] for item in ids):
        return _packer.pack((list(points), ranges, (seconds, ids), 1))  # type: ignore[no-any-return]
    return _packer.pack((list(points), ranges, (seconds, ids)))  # type: ignore[no-any-return]


NOTHING_WRITTEN = pack_record((), [], [], 0)
UNCONFLICTED = b"\xff\xff\xff"
"""Before the keys, in a record's ranges, that were written though they conflict with nobody: no key that is read begins so."""


def unconflicted(points: Iterable[bytes], ranges: Iterable[Range]) -> list[Range]:
    """How a record names what was written without a conflict: a reader of an old version must know of it all the same."""
    named = [(UNCONFLICTED + key, UNCONFLICTED + key + b"\0") for key in points]
    named += ((UNCONFLICTED + begin, UNCONFLICTED + end) for begin, end in ranges)
    return named


def written_ranges(ranges: list[Range]) -> list[Range]:
    """The ranges of a record as they were written, in conflict or not."""
    if not ranges or not any(begin.startswith(UNCONFLICTED) for begin, _ in ranges):
        return ranges
    size = len(UNCONFLICTED)
    return [(b[size:], e[size:]) if b.startswith(UNCONFLICTED) else (b, e) for b, e in ranges]


WITHOUT_IDS = 0x92  # the first bytes of records: msgpack's arrays of two, and of four
WITH_LASTING_IDS = 0x94


def unpack_record(data: bytes) -> tuple[list[bytes], list[Range], Ids, int]:
    """The keys, ranges, ids and time of a commit record. Raises `DamagedDatabase`."""
    fields, points, ranges = _fields(data)
    if len(fields) == 2:
        return points, ranges, [], 0
    try:
        seconds, ids = fields[2]
        if type(ids) is not tuple or type(seconds) is not int:
            raise TypeError("its ids aren't a list with a time")
        for name, index, _ in ids:
            if type(name) is not bytes or type(index) is not int:
                raise TypeError("its ids aren't bytes and numbers")
    except (ValueError, TypeError) as error:
        raise _unreadable(data, error) from error
    return points, ranges, list(ids), seconds


def _fields(data: bytes) -> tuple[tuple[Any, ...], list[bytes], list[Range]]:
    """All fields of a commit record; of these, the keys and ranges. Raises `DamagedDatabase`.

    Each process reads every record that may conflict with what it commits, in the writer section: nothing is looked at twice.
    """
    try:
        fields = msgpack.unpackb(data, use_list=False, strict_map_key=False)
        points, ranges = fields[:2]
        if not type(fields) is type(points) is type(ranges) is tuple:
            raise TypeError("its fields aren't lists of keys and ranges")
        b"".join(points)  # of anything but bytes it is a TypeError
        for begin, end in ranges:
            if type(begin) is not bytes or type(end) is not bytes:
                raise TypeError("its ranges aren't of bytes")
    except (ValueError, TypeError, LookupError, RecursionError, msgpack.UnpackException) as error:
        raise _unreadable(data, error) from error
    return fields, list(points), list(ranges)


def _unreadable(data: bytes, error: Exception) -> DamagedDatabase:
    return DamagedDatabase(f"a commit record of {len(data)} bytes can't be read ({error})")


class Record:
    """One version's writes; the set and the sorted lists of them are made when they are first needed."""

    __slots__ = ("_merged", "_set", "_sorted", "points", "ranges", "version")

    def __init__(self, version: int, points: Collection[bytes], ranges: list[Range]) -> None:
        self.version = version
        self.points = points
        self.ranges = ranges
        self._set: AbstractSet[bytes] | None = points if isinstance(points, set) else None
        self._sorted: list[bytes] | None = None
        self._merged: list[Range] | None = None

    def hit(self, points: set[bytes] | None, ranges: list[Range]) -> Range | None:
        """What was read that this commit wrote, or None."""
        found = self.hit_by_points(points) if points else None
        if found is None and ranges:
            found = self.hit_by_ranges(ranges)
        return found

    def hit_by_points(self, points: set[bytes]) -> Range | None:
        """A key of `points` that this commit wrote."""
        written = self._set
        if written is None:
            written = self._set = frozenset(self.points)
        if not points.isdisjoint(written):
            key = min(points & written)
            return key, key + b"\0"
        return self.hit_within(points)

    def hit_within(self, points: set[bytes]) -> Range | None:
        """A key of `points` in a range that this commit wrote."""
        if self.ranges:
            merged = self._merge()
            for key in points:
                if covers(merged, key):
                    return key, key + b"\0"
        return None

    def hit_by_ranges(self, ranges: list[Range]) -> Range | None:
        """A range of `ranges` in which this commit wrote."""
        if self.points:
            keys = self._sorted
            if keys is None:
                keys = self._sorted = sorted(self.points)
            for begin, end in ranges:
                at = bisect.bisect_left(keys, begin)
                if at < len(keys) and keys[at] < end:
                    return begin, end
        if self.ranges:
            merged = self._merge()
            for begin, end in ranges:
                if touched(merged, begin, end):
                    return begin, end
        return None

    def _merge(self) -> list[Range]:
        merged = self._merged
        if merged is None:
            merged = self._merged = merge_ranges(self.ranges)
        return merged


class _Block:
    """Consecutive records, and all that they wrote as if by one."""

    __slots__ = ("first", "kept", "merged", "records")

    def __init__(self, records: list[Record]) -> None:
        self.records = records
        self.kept = len(records)  # of them, as many are still in the window
        self.first = records[0].version
        points: set[bytes] = set()
        ranges: list[Range] = []
        for record in records:
            points.update(record.points)
            ranges += record.ranges
        self.merged = Record(records[-1].version, points, ranges)


class ConflictWindow:
    """The records of versions in (floor, tail]. One thread at a time, the one that leads a commit."""

    def __init__(self) -> None:
        self.floor = 0
        self.tail = 0
        self.records: deque[Record] = deque()
        self._keys = 0
        self._index: dict[bytes, int] = {}
        self._indexed = 0
        self._ranged: deque[Record] = deque()
        self._blocks: deque[_Block] = deque()
        self._loose: deque[Record] = deque()  # the newest records, which are in no block
        self._since_check = UNUSED

    def restart(self, version: int) -> None:
        """Forget everything; the window is empty at `version`."""
        self.floor = self.tail = version
        self.records.clear()
        self._keys = 0
        self._index.clear()
        self._indexed = version
        self._ranged.clear()
        self._blocks.clear()
        self._loose.clear()

    def advance(self, txn: Any, since: int, last: int) -> None:
        """Read what is missing of (since, last] from the log, in an LMDB transaction whose last version is `last`.

        Where the log doesn't reach as far back, `floor` says afterwards from where on all is known.
        """
        if last - min(since, self.tail) > MAX_READ_AGE:
            begin = log_begin(txn)
            since = max(since, begin)
            if self.tail < begin:
                self.restart(begin)
        if since > self.tail or not self.tail:
            self.restart(min(since, last))
        elif since < self.floor:
            older = read_log(txn, since, self.floor)
            self.records.extendleft(reversed(older))
            self._keys += sum(len(record.points) for record in older)
            self.floor = since
            self._index.clear()
            self._indexed = since
            self._ranged = deque(record for record in self.records if record.ranges)
            self._blocks.clear()
            self._loose = deque(self.records)
        if last > self.tail:
            for record in read_log(txn, self.tail, last):
                self._append(record)
            self.tail = last

    def append(self, version: int, points: Collection[bytes], ranges: list[Range]) -> None:
        """Add this process's own commit, which directly follows the tail."""
        self._since_check += 1
        if self._since_check > UNUSED:
            if self.records:
                self.restart(version)
            self.floor = self.tail = self._indexed = version
            return
        self.add(version, points, ranges)

    def add(self, version: int, points: Collection[bytes], ranges: list[Range]) -> None:
        """Keep what directly follows the tail."""
        self._append(Record(version, points, ranges))
        self.tail = version

    def _append(self, record: Record) -> None:
        # In this order: what an interrupt leaves is kept once more than needed, and misleads nobody.
        self._loose.append(record)
        self.records.append(record)
        if record.ranges:
            self._ranged.append(record)
        self._keys += len(record.points)

    def prune(self, oldest: int) -> None:
        """Drop records that no transaction can need any more, or that are too many to keep."""
        records = self.records
        while records and (records[0].version <= oldest or self._keys > KEEP_KEYS or len(records) > KEEP_RECORDS):
            record = records[0]
            self.floor = record.version
            records.popleft()
            self._keys -= len(record.points)
            if self._ranged and self._ranged[0] is record:
                self._ranged.popleft()
            if self._blocks:
                self._blocks[0].kept -= 1
                if not self._blocks[0].kept:
                    self._blocks.popleft()
            else:
                self._loose.popleft()
        if self._indexed < self.floor or len(self._index) > self._keys + INDEX_SLACK:
            self._index.clear()
            self._indexed = self.floor

    def check(self, version: int, points: set[bytes] | None, ranges: list[Range]) -> Range | None:
        """What was read at `version` and written since, or None. `advance` has covered (version, tail]."""
        self._since_check = 0
        if version >= self.tail:
            return None
        records = self.records
        recent: list[Record] = []
        for record in reversed(records):
            if record.version <= version:
                break
            recent.append(record)
            if len(recent) > FEW:
                hit = self._check_points(version, points) if points else None
                return self._check_ranges(version, ranges) if hit is None and ranges else hit
        for record in recent:
            hit = record.hit(points, ranges)
            if hit is not None:
                return hit
        return None

    def _since(self, version: int) -> Iterator[Record]:
        """All that was written since `version`, in as few records as can be."""
        loose, blocks = self._loose, self._blocks
        while len(loose) >= BLOCK:
            blocks.append(_Block([loose.popleft() for _ in range(BLOCK)]))
        for record in reversed(loose):
            if record.version <= version:
                return
            yield record
        for block in reversed(blocks):
            if block.merged.version <= version:
                return
            if block.first > version:
                yield block.merged
            else:
                yield from (record for record in block.records if record.version > version)

    def _check_ranges(self, version: int, ranges: list[Range]) -> Range | None:
        """What of `ranges` was written since `version`."""
        return next(filter(None, (record.hit_by_ranges(ranges) for record in self._since(version))), None)

    def _check_points(self, version: int, points: set[bytes]) -> Range | None:
        """What of `points` was written since `version`."""
        index = self._index
        if self._indexed < self.tail:
            fresh = []
            for record in reversed(self.records):
                if record.version <= self._indexed:
                    break
                fresh.append(record)
            for record in reversed(fresh):
                index.update(dict.fromkeys(record.points, record.version))
            self._indexed = self.tail
        get = index.get
        for key in points:
            if get(key, 0) > version:
                return key, key + b"\0"
        if not self._ranged or self._ranged[-1].version <= version:
            return None
        return next(filter(None, (record.hit_within(points) for record in self._since(version))), None)


def read_log(txn: Any, since: int, last: int) -> list[Record]:
    """The commit records of versions in (since, last]."""
    return [_record(key, data) for key, data in _log(txn, since, last)]


def written_since(txn: Any, since: int, last: int, points: set[bytes]) -> Range | None:
    """A key of `points` that a commit of a version in (since, last] wrote, or None.

    Keeps nothing of what it reads, which costs a third of what a `ConflictWindow` does: it is for few points and few commits.
    """
    for key, data in _log(txn, since, last):
        if data[:3] == ONE_POINT and len(data) > 3 and len(data) == data[3] + 5 and data[-1] == NO_RANGES:
            if data[4:-1] in points:
                return data[4:-1], data[4:-1] + b"\0"
        else:
            hit = _record(key, data).hit_by_points(points)
            if hit is not None:
                return hit
    return None


ONE_POINT = b"\x92\x91\xc4"  # how a record of one key of up to 255 bytes begins: then its size, itself,
NO_RANGES = 0x90  # ... and no ranges


def _log(txn: Any, since: int, last: int) -> Iterator[tuple[bytes, bytes]]:
    """The rows of the log of versions in (since, last]."""
    cursor = txn.cursor()
    if last <= since or not cursor.set_range(log_key(since + 1)):
        return iter(())
    stop = min(log_key(last + 1), LOG_END)
    return itertools.takewhile(lambda row: row[0] < stop, cursor.iternext(True, True))


def _record(key: bytes, data: bytes) -> Record:
    version = int.from_bytes(key[len(LOG) :], "big")
    try:
        _, points, ranges = _fields(data)
    except DamagedDatabase as error:
        raise DamagedDatabase(f"commit record {version}: {error}") from error
    return Record(version, points, ranges)
