"""The scan of the pool: which entries a worker takes, at a cost of the number of distinct shapes, not of the backlog.

The cpu index is walked from shape to shape. Of a shape that fits, a page of entries is read; behind one that doesn't, a few
rows are, before it is known what they are. One that doesn't fit is skipped by one seek, and where it needs more ram than
this worker ever has, so are all that need as much cpu and more ram. Rounding puts up to an eighth of an octave into one shape, so an entry of a shape just over what is
free may fit all the same: its exact needs are in its value, and a bounded page of such a shape is looked through.
"""

from __future__ import annotations

import contextlib
import random
from typing import NamedTuple

from fdb_schema import RecordError, read_range

from . import codec
from .changes import Changes
from .requirements import Capacity, Requirements, Shape
from .space import decode_id, decode_int, encode_id, rounded
from .starts import Chosen

_READS = 256  # seeks of one scan at most
_PROBE = 4  # rows read where it isn't known whether they fit
_BOUNDARY_PAGE = 256  # entries looked through in a shape that only some of fit
_PAGE_MOST = 2000
_SHAPES_SURVEYED = 64


class Entry(NamedTuple):
    """An entry of the cpu index and the future it is of."""

    key: bytes
    priority: int
    chosen: Chosen


class PoolScan(NamedTuple):
    """entries: what was chosen. blocked: shapes that don't fit what is free. more: the pool holds more that fits.

    passed: there was something that doesn't fit.
    """

    entries: list[Entry]
    blocked: tuple[Requirements, ...]
    more: bool
    passed: bool


def scan_pool(ch: Changes, capacity: Capacity, free: Shape, limit: int) -> PoolScan:
    """Choose up to `limit` entries whose sum fits `free`, by snapshot: in order of shape, priority, age."""
    return _Scan(ch, capacity, free, limit).run()


def first_page(ch: Changes, capacity: Capacity, limit: int) -> tuple[bytes, bytes, int]:
    """What `scan_pool` will read first: (begin, end, limit)."""
    scan = _Scan(ch, capacity, capacity.free.shape, limit)
    return scan.begin, scan.end, min(_PROBE, scan.page) if scan.wary else scan.page


class _Scan:
    def __init__(self, ch: Changes, capacity: Capacity, free: Shape, limit: int) -> None:
        self.ch = ch
        self.base = ch.keys.cpu
        self.free = list(free)
        self.total = (capacity.total or capacity.free).shape
        self.most_ram = max(self.total[1], rounded(free)[1])  # no entry of a shape over this ever fits here
        self.limit = limit
        self.stripe, self.stripes = capacity.stripe
        self.page = min(_PAGE_MOST, limit * self.stripes + 1)
        self.entries: list[Entry] = []
        self.blocked: dict[Shape, None] = {}
        self.taken: set[Shape] = set()  # shapes, as their keys have them, of which there are entries
        self.survey, self.wary = capacity.survey, capacity.wary
        self.more = self.passed = False
        self.prefix, self.priority = b"\xff", 0  # of the entry taken last
        self.begin, self.end = self.base, self.base + b"\xff"
        if capacity.hold_for is not None:
            self.begin = ch.keys.shape_prefix(capacity.hold_for.shape)
            self.end = self.begin + b"\xff"

    def run(self) -> PoolScan:
        at, asked = self.begin, min(_PROBE, self.page) if self.wary else self.page
        for _ in range(_READS):
            rows = self.ch.read(at, self.end, limit=asked, snapshot=True)
            following = self._take(rows, asked)
            if following is None or following[0] >= self.end:
                break
            at, asked = following
        if self.survey:
            self._survey()
        blocked = tuple(Requirements.from_shape(shape) for shape in self.blocked)
        return PoolScan(self.entries, blocked, self.more, self.passed)

    def _survey(self) -> None:
        """Name every shape that nothing was taken of, by one seek each."""
        at = self.begin
        for _ in range(_SHAPES_SURVEYED):
            rows = self.ch.read(at, self.end, limit=1, snapshot=True)
            if not rows:
                return
            key = rows[0][0]
            cpu, end = decode_int(key, len(self.base))
            ram, end = decode_int(key, end)
            gpu, end = decode_int(key, end)
            if (cpu, ram, gpu) not in self.taken:
                self._block((cpu, ram, gpu))
            at = key[:end] + b"\xff"

    def _take(self, rows: list[tuple[bytes, bytes]], asked: int) -> tuple[bytes, int] | None:
        """Take what fits from rows, as many as were asked for or all there are; where to read on, and how many.

        None: to stop.
        """
        index, count = 0, len(rows)
        probe = min(_PROBE, self.page)
        while index < count:
            key = rows[index][0]
            cpu, cpu_end = decode_int(key, len(self.base))
            ram, at = decode_int(key, cpu_end)
            gpu, at = decode_int(key, at)
            prefix, shape = key[:at], (cpu, ram, gpu)
            if cpu > self.free[0]:
                self._block(shape)
                return None  # the index is in order of cpu: nothing after it fits
            fits, possible = self._fit(shape)
            if not fits and ram > self.most_ram:
                prefix = key[:cpu_end]
            last = index
            while last < count and rows[last][0].startswith(prefix):
                last += 1
            if fits:
                if last == count == asked < self.page:
                    return key, self.page
                self.taken.add(shape)
                self._take_shape(rows[index:last], shape, len(prefix))
                if len(self.entries) >= self.limit:
                    self.more = self.more or last < count or count == asked
                    return None
                if last == count == asked and self._fit(shape)[0]:
                    return rows[-1][0] + b"\x00", self.page  # more of this shape
                if not self._fit(shape)[0]:
                    self._block(shape)
            elif possible:
                self._search_boundary(prefix, shape)
                self._block(shape)
            else:
                self._block(shape)
            if last == count:
                return None if count < asked else (prefix + b"\xff", probe)
            index = last
        return None

    def _fit(self, shape: Shape) -> tuple[bool, bool]:
        """Whether every entry of a shape fits, and whether one may."""
        free = self.free
        cpu, ram, gpu = shape
        if cpu > free[0]:
            return False, False
        if ram <= free[1] and gpu <= free[2]:
            return True, True
        # Rounding adds an eighth at most: most shapes are ruled out without it.
        if ram > free[1] + free[1] // 8 + 1 or gpu > free[2] + free[2] // 8 + 1:
            return False, False
        up = rounded((free[0], free[1], free[2]))
        return False, ram <= up[1] and gpu <= up[2]

    def _block(self, shape: Shape) -> None:
        self.passed = True
        if all(need <= have for need, have in zip(shape, self.total, strict=True)):
            self.blocked[shape] = None

    def _take_shape(self, rows: list[tuple[bytes, bytes]], shape: Shape, at: int) -> None:
        """Take entries of a shape that fits: own stripe first, then others' from their end."""
        if self.stripes > 1 and len(rows) > 1:
            own = [row for row in rows if row[0][-2] % self.stripes == self.stripe]
            others = [row for row in rows if row[0][-2] % self.stripes != self.stripe]
            rows = own + others[::-1]
        for key, value in rows:
            if len(self.entries) >= self.limit:
                self.more = True
                return
            if not self._take_entry(key, value, shape, at):
                return

    def _take_entry(self, key: bytes, value: bytes, shape: Shape, at: int) -> bool:
        exact = shape
        if value:
            with contextlib.suppress(RecordError):  # then what the key has, which is rounded up
                exact = codec.unpack_shape(value)
        free = self.free
        if exact[0] > free[0] or exact[1] > free[1] or exact[2] > free[2]:
            return False
        free[0] -= exact[0]
        free[1] -= exact[1]
        free[2] -= exact[2]
        if not key.startswith(self.prefix):  # of shape and priority, as the entry before had them
            priority, id_at = decode_int(key, at)
            self.priority, self.prefix = -priority, key[:id_at]
        e = key[len(self.prefix) :]
        self.entries.append(Entry(key, self.priority, Chosen(decode_id(e), e, exact)))
        return True

    def _search_boundary(self, prefix: bytes, shape: Shape) -> None:
        """Look through a page of a shape that only some entries of fit: from its start, then from a random place."""
        rows = self.ch.read(prefix, prefix + b"\xff", limit=_BOUNDARY_PAGE, snapshot=True)
        taken = len(self.entries)
        self._take_fitting(rows, shape, len(prefix))
        if len(self.entries) > taken or len(rows) < _BOUNDARY_PAGE:
            return
        newest = read_range(self.ch.tr, prefix, prefix + b"\xff", limit=1, reverse=True, snapshot=True)[0][0]
        _, id_at = decode_int(rows[0][0], len(prefix))
        first = int.from_bytes(decode_id(rows[0][0][id_at:]), "big")
        _, newest_at = decode_int(newest, len(prefix))
        last = int.from_bytes(decode_id(newest[newest_at:]), "big")
        between = random.randint(min(first, last), max(first, last)).to_bytes(16, "big")
        somewhere = rows[0][0][:id_at] + encode_id(between)
        rows = self.ch.read(somewhere, prefix + b"\xff", limit=_BOUNDARY_PAGE, snapshot=True)
        self._take_fitting(rows, shape, len(prefix))

    def _take_fitting(self, rows: list[tuple[bytes, bytes]], shape: Shape, at: int) -> None:
        for key, value in rows:
            if len(self.entries) >= self.limit:
                return
            self._take_entry(key, value, shape, at)
