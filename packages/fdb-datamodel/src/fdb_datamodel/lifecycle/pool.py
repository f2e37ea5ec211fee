"""The scan of the pool: which entries a worker takes, at a cost of the number of distinct shapes, not of the backlog.

The cpu index is walked from shape to shape. Of a shape that fits, a page of entries is read; behind one that doesn't, a few
rows are, before it is known what they are. One that doesn't fit is skipped by one seek, and where it needs more ram than
this worker ever has, so are all that need as much cpu and more ram. Rounding puts up to an eighth of an octave into one shape, so an entry of a shape just over what is
free may fit all the same: its exact needs are in its value, and a bounded page of such a shape is looked through.

What needs named resources stands before all that needs none, in a lane for each set of amounts (`lanes`). A worker that offers none begins
behind them; one that does seeks from lane to lane, and walks those of what it has free as the rest of the index.
"""

from __future__ import annotations

import contextlib
import random
from typing import NamedTuple

from fdb_datamodel.errors import StrayKeyError
from fdb_datamodel.lifecycle.lanes import first_lane, has_all, next_lane
from fdb_datamodel.lifecycle.starts import Chosen
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.elements import decode_id, decode_int, encode_id
from fdb_datamodel.rows.requirements import (
    Capacity,
    Named,
    Requirements,
    Shape,
    Triple,
    fits,
    less,
    named_fits,
    named_of,
    round_up,
    shape_of,
)
from fdb_datamodel.rows.space import named_in, rounded
from fdb_schema import RecordError, read_range

_READS = 256  # seeks of one scan at most
_PROBE = 4  # rows read where it isn't known whether they fit
_BOUNDARY_PAGE = 256  # entries looked through in a shape that only some of fit
_PAGE_MOST = 2000
_SHAPES_SURVEYED = 64
_LANES = 128  # seeks from lane to lane of one scan at most
_LANES_LISTED = 64  # after which those of a resource that is used up are passed over together
_BEHIND_LANES = b"\x03"


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
    """Choose up to `limit` entries whose sum fits `free`, by snapshot: in order of shape, priority, age.

    What needs named resources goes first. Room is made (`hold_for`) for what waits for some, or for gpus, by leaving those alone, and
    for all else by choosing nothing else.
    """
    held = capacity.hold_for.shape if capacity.hold_for is not None else None
    kept: Named = ()
    no_gpu = False
    if held is not None:
        kept = named_of(held)
        no_gpu = not fits((0, 0, held[2]), free)
        if not no_gpu and named_fits(kept, named_of(free)):
            return _Scan(ch, capacity, free, limit, named_of(rounded(held)), ch.keys.shape_prefix(held)).run()
    if not named_of((capacity.total or capacity.free).shape):
        return _Scan(ch, capacity, free, limit, no_gpu=no_gpu).run()
    found = _scan_lanes(ch, capacity, free, limit, frozenset(name for name, _ in kept), no_gpu)
    if len(found.entries) >= limit:
        return found
    for entry in found.entries:
        free = less(free, entry.chosen.shape)
    rest = _Scan(ch, capacity, free, limit - len(found.entries), no_gpu=no_gpu).run()
    both = (*found.blocked, *rest.blocked)
    return PoolScan(found.entries + rest.entries, both, found.more or rest.more, rest.passed)


def _scan_lanes(
    ch: Changes, capacity: Capacity, free: Shape, limit: int, kept: frozenset[str], no_gpu: bool
) -> PoolScan:
    """The same of what needs named resources, but for those of the names in `kept`, which are reported as blocked."""
    total = named_of((capacity.total or capacity.free).shape)
    offered = dict(total)
    entries: list[Entry] = []
    blocked: list[Requirements] = []
    more = False
    at, end = first_lane(ch, total), ch.keys.lanes()[1]
    for seek in range(_LANES):
        rows = ch.read(at, end, limit=1, snapshot=True) if at < end else []
        if not rows or more:
            break
        key = rows[0][0]
        try:
            named, behind = named_in(key, len(ch.keys.cpu))
            shape = _shape_at(key, behind)[0]
        except StrayKeyError:
            at = key + b"\x00"
            continue
        at = key[:behind] + b"\xff"
        if (following := next_lane(ch, named, offered)) is not None:
            at = following
            continue  # none of this worker's business
        have = dict(named_of(free))
        if seek >= _LANES_LISTED and have.get(named[0][0], 0) <= 0:
            at = ch.keys.lane_names((), named[0][0]) + b"\xff"  # enough are known of what waits for that
        if not kept.isdisjoint(name for name, _ in named) or not has_all(have, named):
            blocked.append(Requirements.from_shape(shape_of(*shape, named)))
            continue
        found = _Scan(ch, capacity, free, limit - len(entries), named, no_gpu=no_gpu).run()
        for entry in found.entries:
            free = less(free, entry.chosen.shape)
        entries += found.entries
        blocked += found.blocked
        more = len(entries) >= limit
    return PoolScan(entries, tuple(blocked), more, False)


def first_page(ch: Changes, capacity: Capacity, limit: int) -> tuple[bytes, bytes, int]:
    """What `scan_pool` will read first: (begin, end, limit)."""
    total = named_of((capacity.total or capacity.free).shape)
    if capacity.hold_for is None and total:
        return first_lane(ch, total), ch.keys.lanes()[1], 1
    held = capacity.hold_for.shape if capacity.hold_for is not None else None
    within = None if held is None else ch.keys.shape_prefix(held)
    scan = _Scan(ch, capacity, capacity.room, limit, named_of(rounded(held)) if held is not None else (), within)
    return scan.begin, scan.end, min(_PROBE, scan.page) if scan.wary else scan.page


class _Scan:
    """One walk: through a lane (of `named`, as keys have it), or through all that needs nothing named; or `within` one shape."""

    def __init__(
        self,
        ch: Changes,
        capacity: Capacity,
        free: Shape,
        limit: int,
        named: Named = (),
        within: bytes | None = None,
        no_gpu: bool = False,
    ) -> None:
        """`no_gpu`: they are kept for something else."""
        self.ch = ch
        self.no_gpu = no_gpu
        self.base = ch.keys.lane(named)
        self.named = named
        self.free = free
        self.total = (capacity.total or capacity.free).shape
        self.most_ram = max(self.total[1], rounded(free)[1])  # no entry of a shape over this ever fits here
        self.limit = limit
        self.stripe, self.stripes = capacity.stripe
        self.page = min(_PAGE_MOST, limit * self.stripes + 1)
        self.entries: list[Entry] = []
        self.blocked: dict[Triple, None] = {}
        self.taken: set[Triple] = set()  # shapes, as their keys have them, of which there are entries
        self.survey, self.wary = capacity.survey, capacity.wary
        self.more = self.passed = False
        self.prefix, self.priority = b"\xff", 0  # of the entry taken last
        self.begin = within or (self.base if named else self.base + _BEHIND_LANES)
        self.end = (within or self.base) + b"\xff"

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
        blocked = tuple(Requirements.from_shape(shape_of(*shape, self.named)) for shape in self.blocked)
        return PoolScan(self.entries, blocked, self.more, self.passed)

    def _survey(self) -> None:
        """Name every shape that nothing was taken of, by one seek each."""
        at = self.begin
        for _ in range(_SHAPES_SURVEYED):
            found = self._next_shape(at)
            if found is None:
                return
            shape, prefix = found
            if shape not in self.taken:
                self._block(shape)
            at = prefix + b"\xff"

    def _next_shape(self, at: bytes) -> tuple[Triple, bytes] | None:
        """The shape of the first entry from `at` on, and what its keys start with."""
        limit = 1
        while rows := self.ch.read(at, self.end, limit=limit, snapshot=True):
            for key, _ in rows:
                with contextlib.suppress(StrayKeyError):
                    shape, _, end = self._shape_of(key)
                    _id_of(key, end)
                    return shape, key[:end]
            at, limit = rows[-1][0] + b"\x00", _PAGE_MOST
        return None

    def _shape_of(self, key: bytes) -> tuple[Triple, int, int]:
        """The shape that an entry is under, and where its cpu and all of it end. Raises StrayKeyError."""
        return _shape_at(key, len(self.base))

    def _take(self, rows: list[tuple[bytes, bytes]], asked: int) -> tuple[bytes, int] | None:
        """Take what fits from rows, as many as were asked for or all there are; where to read on, and how many.

        None: to stop. Strays are stepped over.
        """
        index, count = 0, len(rows)
        probe = min(_PROBE, self.page)
        following: tuple[bytes, int] | None = None
        while index < count:
            key = rows[index][0]
            try:
                shape, cpu_end, at = self._shape_of(key)
                fits, possible = self._fit(shape)
                if not fits:
                    _id_of(key, at)
            except StrayKeyError:
                index += 1
                following = key + b"\x00", _PAGE_MOST
                continue
            prefix = key[:at]
            if shape[0] > self.free[0]:
                self._block(shape)
                return None  # the index is in order of cpu: nothing after it fits
            if not fits and shape[1] > self.most_ram:
                prefix = key[:cpu_end]
            last = index
            while last < count and rows[last][0].startswith(prefix):
                last += 1
            if fits:
                if last == count == asked < self.page:
                    return key, self.page
                self.taken.add(shape)
                before = len(self.entries)
                self._take_shape(rows[index:last], shape, len(prefix))
                if len(self.entries) >= self.limit:
                    self.more = self.more or last < count or count == asked
                    return None
                if not self._fit(shape)[0]:
                    self._block(shape)
                elif last == count == asked:
                    # More of this shape; behind nothing but strays, as many as there may be.
                    return rows[-1][0] + b"\x00", self.page if len(self.entries) > before else _PAGE_MOST
            elif possible:
                self._search_boundary(prefix, shape)
                self._block(shape)
            else:
                self._block(shape)
            index = last
            following = prefix + b"\xff", probe
        return following if count == asked else None

    def _fit(self, shape: Triple) -> tuple[bool, bool]:
        """Whether every entry of a shape fits, and whether one may."""
        free = self.free
        cpu, ram, gpu = shape
        if cpu > free[0] or (gpu and self.no_gpu):
            return False, False
        if self.named:
            whole, some = self._fit_named()
            up = rounded(free)
            return whole and fits(shape, free), some and ram <= up[1] and gpu <= up[2]
        if gpu and len(free) == 5:
            whole, up = fits(shape, free), rounded(free)
            return whole, whole or (ram <= up[1] and gpu <= up[2])
        if ram <= free[1] and gpu <= free[2]:
            return True, True
        # Rounding adds an eighth at most: most shapes are ruled out without it.
        if ram > free[1] + free[1] // 8 + 1 or gpu > free[2] + free[2] // 8 + 1:
            return False, False
        up = rounded(free)
        return False, ram <= up[1] and gpu <= up[2]

    def _fit_named(self) -> tuple[bool, bool]:
        """The same of the lane: amounts are rounded up as the rest is."""
        have = dict(named_of(self.free))
        some = all(have.get(name, 0) > 0 and amount <= round_up(have.get(name, 0), 1000) for name, amount in self.named)
        return all(amount <= have.get(name, 0) for name, amount in self.named), some

    def _block(self, shape: Triple) -> None:
        self.passed = True
        if fits(shape, self.total):
            self.blocked[shape] = None

    def _take_shape(self, rows: list[tuple[bytes, bytes]], shape: Triple, at: int) -> None:
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

    def _take_entry(self, key: bytes, value: bytes, shape: Triple, at: int) -> bool:
        """Take an entry, or step over a stray; False: it doesn't fit."""
        try:
            if not key.startswith(self.prefix):  # of shape and priority, as the entry before had them
                priority, id_at = decode_int(key, at)
                self.priority, self.prefix = -priority, key[:id_at]
            e = key[len(self.prefix) :]
            future_id = decode_id(e)
        except StrayKeyError:
            return True
        exact: Shape = shape_of(*shape, self.named) if self.named else shape
        if value:
            with contextlib.suppress(RecordError):  # then what the key has, which is rounded up
                exact = codec.unpack_shape(value)
        if not fits(exact, self.free):
            return False
        self.free = less(self.free, exact)
        self.entries.append(Entry(key, self.priority, Chosen(future_id, e, exact)))
        return True

    def _search_boundary(self, prefix: bytes, shape: Triple) -> None:
        """Look through a page of a shape that only some entries of fit: from its start, then from a random place."""
        rows = self._boundary_page(prefix, prefix)
        taken = len(self.entries)
        self._take_fitting(rows, shape, len(prefix))
        if len(self.entries) > taken or len(rows) < _BOUNDARY_PAGE:
            return
        ends = [end for end in (_first_id(rows, len(prefix)), self._newest(prefix)) if end is not None]
        if not ends:
            return
        numbers = [int.from_bytes(future_id, "big") for _, future_id in ends]
        between = random.randint(min(numbers), max(numbers)).to_bytes(16, "big")
        somewhere = ends[0][0] + encode_id(between)
        self._take_fitting(self._boundary_page(somewhere, prefix), shape, len(prefix))

    def _boundary_page(self, begin: bytes, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """A page of a shape from `begin` on, not one of strays only."""
        limit = _BOUNDARY_PAGE
        while True:
            rows = self.ch.read(begin, prefix + b"\xff", limit=limit, snapshot=True)
            if len(rows) < limit or _first_id(rows, len(prefix)) is not None:
                return rows
            begin, limit = rows[-1][0] + b"\x00", _PAGE_MOST

    def _newest(self, prefix: bytes) -> tuple[bytes, bytes] | None:
        end, limit = prefix + b"\xff", 1
        while True:
            rows = read_range(self.ch.tr, prefix, end, limit=limit, reverse=True, snapshot=True)
            found = _first_id(rows, len(prefix))
            if found is not None or len(rows) < limit:
                return found
            end, limit = rows[-1][0], _PAGE_MOST

    def _take_fitting(self, rows: list[tuple[bytes, bytes]], shape: Triple, at: int) -> None:
        for key, value in rows:
            if len(self.entries) >= self.limit:
                return
            self._take_entry(key, value, shape, at)


def _shape_at(key: bytes, at: int) -> tuple[Triple, int, int]:
    """The cpu, ram and gpu of an entry, from `at` on, and where its cpu and all of it end. Raises StrayKeyError."""
    cpu, cpu_end = decode_int(key, at)
    ram, end = decode_int(key, cpu_end)
    gpu, end = decode_int(key, end)
    if cpu < 0 or ram < 0 or gpu < 0:
        raise StrayKeyError(key, "needs less than nothing")
    return (cpu, ram, gpu), cpu_end, end


def _id_of(key: bytes, at: int) -> tuple[bytes, bytes]:
    """What comes before the id of an entry whose shape ends at `at`, and the id. Raises StrayKeyError."""
    _, id_at = decode_int(key, at)
    return key[:id_at], decode_id(key[id_at:])


def _first_id(rows: list[tuple[bytes, bytes]], at: int) -> tuple[bytes, bytes] | None:
    """`_id_of` the first row that isn't a stray."""
    for key, _ in rows:
        with contextlib.suppress(StrayKeyError):
            return _id_of(key, at)
    return None
