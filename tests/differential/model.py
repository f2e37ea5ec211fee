"""The oracle: what FoundationDB does, said as plainly as possible and without any speed.

Every committed state is kept as a dictionary. A transaction is a list of mutations in their order, an overlay to read
them back from, and sets of ranges for its conflicts, after the rules of FoundationDB's client (`ReadYourWrites`,
`WriteMap`). Nothing here is shared with the engine under test.

Commits that write are numbered 1, 2, 3, …; the version in the versionstamp of commit n is n × `SPACING`, so that there are
versions between them as there are between real ones.
"""

from __future__ import annotations

import copy
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.conformance.atomics import OPERATIONS
from tests.differential.ranges import RangeSet

END = b"\xff"
KEY_LIMIT = 10_000
VALUE_LIMIT = 100_000
SPACING = 16
RETRYABLE = {1007, 1009, 1020, 1021, 1037}

Selector = tuple[bytes, bool, int]
Row = tuple[bytes, bytes]


class ModelError(Exception):
    """A FoundationDB error code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def after(key: bytes) -> bytes:
    """The first key after `key`."""
    return key + b"\x00"


def stamp_of(number: int) -> bytes:
    """The stamp of a commit."""
    return struct.pack(">QH", number * SPACING, 0)


def stamp_offset(param: bytes) -> int:
    """Where the stamp goes, or error 2000 when it doesn't fit."""
    if len(param) < 4:
        raise ModelError(2000)
    (offset,) = struct.unpack("<i", param[-4:])
    if offset < 0 or offset + 10 > len(param) - 4:
        raise ModelError(2000)
    return int(offset)


def stamped(param: bytes, stamp: bytes) -> bytes:
    at = stamp_offset(param)
    return param[:at] + stamp + param[at + 10 : -4]


@dataclass
class Entry:
    """What a transaction wrote at one key since it last cleared it."""

    operations: list[tuple[str, bytes]]
    cleared_before: bool
    unreadable: bool

    @property
    def depends(self) -> bool:
        """Whether the value after these operations depends on the stored one."""
        return not self.cleared_before and self.operations[0][0] not in ("set", "set_versionstamped_value")

    def value(self, stored: bytes | None) -> bytes | None:
        result = None if self.cleared_before else stored
        for name, param in self.operations:
            result = param if name == "set" else OPERATIONS[name](result, param)
        return result


@dataclass
class Overlay:
    """The writes of a transaction as its reads see them."""

    entries: dict[bytes, Entry] = field(default_factory=dict)
    cleared: RangeSet = field(default_factory=RangeSet)
    unreadable: RangeSet = field(default_factory=RangeSet)

    def barriers(self) -> RangeSet:
        """Where nothing can be read before the commit."""
        result = self.unreadable.copy()
        for key, entry in self.entries.items():
            if entry.unreadable:
                result.add(key, after(key))
            else:
                result.remove(key, after(key))
        return result

    def unknown_parts(self, begin: bytes, end: bytes) -> RangeSet:
        """Where a read of `[begin, end)` depends on what is stored."""
        parts = RangeSet([(begin, end)])
        for low, high in self.cleared:
            parts.remove(low, high)
        for key, entry in self.entries.items():
            parts.remove(key, after(key))
            if entry.depends and begin <= key < end:
                parts.add(key, after(key))
        return parts


class View:
    """A state with an overlay over it: what one read sees."""

    def __init__(self, state: dict[bytes, bytes], overlay: Overlay | None) -> None:
        self.rows: dict[bytes, bytes] = dict(state)
        self.ghosts: set[bytes] = set()  # keys left without a value: selectors count them all the same
        self.barriers = RangeSet()
        if overlay is None:
            return
        for key in list(self.rows):
            if key in overlay.cleared:
                del self.rows[key]
        for key, entry in overlay.entries.items():
            if entry.unreadable:
                self.rows.pop(key, None)
                continue
            value = entry.value(state.get(key))
            self.rows.pop(key, None)
            if value is not None:
                self.rows[key] = value
            else:
                self.ghosts.add(key)
        self.barriers = overlay.barriers()
        for key in list(self.rows):
            if key in self.barriers:
                del self.rows[key]

    def get(self, key: bytes) -> bytes | None:
        if key in self.barriers:
            raise ModelError(1036)
        return self.rows.get(key)

    def scan(self, begin: bytes, end: bytes, reverse: bool, ghosts: bool = False) -> Iterator[Row]:
        """Rows in order; error 1036 on reaching what is unreadable."""
        known = self.ghosts.union(self.rows) if ghosts else self.rows
        keys = sorted(key for key in known if begin <= key < end)
        walls = self.barriers.within(begin, end).ranges
        if not reverse:
            for key in keys:
                if walls and walls[0][0] <= key:
                    raise ModelError(1036)
                yield key, self.rows.get(key, b"")
        else:
            for key in reversed(keys):
                if walls and walls[-1][1] > key:
                    raise ModelError(1036)
                yield key, self.rows.get(key, b"")
        if walls:
            raise ModelError(1036)

    def resolve(self, selector: Selector) -> tuple[bytes, bool, bool]:
        """The key of a selector, and whether it ran off the beginning or the end.

        All keys but the last that it comes to are counted, those without a value too; the last one has a value.
        """
        base, or_equal, offset = selector
        if or_equal:
            base = after(base)
        if offset > 0:
            for at, (key, _) in enumerate(self.scan(base, END, False, ghosts=True), 1):
                if at >= offset and key in self.rows:
                    return key, False, False
            return END, False, True
        for at, (key, _) in enumerate(self.scan(b"", base, True, ghosts=True)):
            if at >= -offset and key in self.rows:
                return key, False, False
        return b"", True, False

    def border(self, selector: Selector) -> bytes:
        """Where a range begins or ends: the key that a selector comes to, whether or not it has a value."""
        base, or_equal, offset = selector
        if or_equal:
            base = after(base)
        if offset == 1:
            return base
        if offset > 1:
            for at, (key, _) in enumerate(self.scan(base, END, False, ghosts=True), 1):
                if at == offset:
                    return key
            return END
        for at, (key, _) in enumerate(self.scan(b"", base, True, ghosts=True)):
            if at == -offset:
                return key
        return b""

    def get_range(self, begin: Selector, end: Selector, limit: int, reverse: bool) -> list[Row]:
        low, high = self.border(begin), self.border(end)
        rows: list[Row] = []
        for row in self.scan(low, high, reverse):
            rows.append(row)
            if len(rows) == limit:
                break
        return rows


class Model:
    """A database: all its states, and who wrote where."""

    def __init__(self) -> None:
        self.states: list[dict[bytes, bytes]] = [{}]
        self.written: list[RangeSet] = [RangeSet()]
        self.silent = [False]  # whether a commit changed what it declared no write conflict for

    @property
    def version(self) -> int:
        return len(self.states) - 1

    def transaction(self, *, ryw: bool = True, snapshot_ryw: bool = True) -> ModelTransaction:
        return ModelTransaction(self, ryw, snapshot_ryw)


class ModelTransaction:
    """The operations of a transaction. Reads and commits raise `ModelError`; writes keep their error for those."""

    def __init__(self, model: Model, ryw: bool, snapshot_ryw: bool) -> None:
        self.model = model
        self.ryw = ryw
        self.snapshot_ryw = snapshot_ryw
        self.fresh()

    def fresh(self) -> None:
        self.read_version: int | None = None
        self.overlay = Overlay()
        self.mutations: list[tuple[str, bytes, bytes]] = []
        self.reads = RangeSet()  # exactly what conflicts
        self.maybe_reads = RangeSet()  # where an engine may see a conflict of a read whose rule isn't spelled out here
        self.rechecks: list[Callable[[dict[bytes, bytes]], bool]] = []
        self.writes = RangeSet()
        self.stamped_anchors: dict[bytes, int] = {}  # where the client keeps the write of a stamped key
        self.quiet = self.silent = False
        self.deferred = 0
        self.dead = 0
        self.read_error = 0
        self.committing = False

    # --- states ---

    def check(self) -> None:
        if self.deferred:
            raise ModelError(self.deferred)
        if self.committing:
            raise ModelError(2017)
        if self.dead:
            raise ModelError(self.dead)

    def defer(self, code: int) -> None:
        self.deferred = self.deferred or code

    def cancel(self) -> None:
        self.dead = self.dead or 1025

    def reset(self) -> None:
        self.ryw, self.snapshot_ryw = True, True
        self.fresh()

    def on_error(self, code: int) -> None:
        if self.dead:
            raise ModelError(self.dead)
        if code not in RETRYABLE:
            self.dead = 1025
            raise ModelError(code)
        self.reset()

    def get_read_version(self) -> None:
        committing, self.committing = self.committing, False  # the one read that a commit doesn't forbid
        try:
            self.check()
        finally:
            self.committing = committing
        if self.read_version is None:
            self.read_version = self.model.version

    # --- reads ---

    def view(self, snapshot: bool) -> View:
        return View(self.state(), self.seen_overlay(snapshot))

    def state(self) -> dict[bytes, bytes]:
        assert self.read_version is not None, "the stream reads before it has a read version"
        return self.model.states[self.read_version]

    def seen_overlay(self, snapshot: bool) -> Overlay | None:
        if not self.ryw or (snapshot and not self.snapshot_ryw):
            return None
        return self.overlay

    def conflict(self, begin: bytes, end: bytes) -> None:
        """A read conflict, but for what this transaction wrote itself."""
        parts = self.overlay.unknown_parts(begin, end) if self.ryw else RangeSet([(begin, end)])
        for anchor in self.stamped_anchors if self.ryw else ():
            parts.remove(anchor, after(anchor))
        for low, high in parts:
            self.reads.add(low, high)

    def recheck(self, snapshot: bool, read: Callable[[View], object]) -> None:
        """Remember a read, so that the commit can see whether others changed its result."""
        if snapshot:
            return
        overlay = copy.deepcopy(self.seen_overlay(False))
        before = read(View(self.state(), overlay))

        def differs(state: dict[bytes, bytes]) -> bool:
            try:
                return read(View(state, overlay)) != before
            except ModelError:
                return True

        self.rechecks.append(differs)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """The commit waits for every read, and fails as one of them did."""
        try:
            yield
        except ModelError as error:
            self.read_error = self.read_error or error.code
            raise

    def get(self, key: bytes, snapshot: bool) -> bytes | None:
        self.check()
        if key >= END:
            raise ModelError(2004)
        with self.reading():
            result = self.view(snapshot).get(key)
        if not snapshot:
            self.conflict(key, after(key))
            self.recheck(snapshot, lambda view: view.get(key))
        return result

    def get_key(self, selector: Selector, snapshot: bool) -> bytes:
        self.check()
        base, or_equal, offset = selector
        if base > END:
            raise ModelError(2004)
        with self.reading():
            result = self.view(snapshot).resolve(selector)[0]
        if not snapshot:
            edge = after(base) if or_equal else base
            low, high = (result, edge) if offset <= 0 else (edge, after(result))
            (self.conflict if self.ryw else self.maybe_reads.add)(low, high)
            self.recheck(snapshot, lambda view: view.resolve(selector)[0])
        return result

    def get_range(self, begin: Selector, end: Selector, limit: int, reverse: bool, snapshot: bool) -> list[Row]:
        self.check()
        if begin[0] > END or end[0] > END:
            raise ModelError(2004)
        low = begin[0] + (b"\x00" if begin[1] else b"")
        high = end[0] + (b"\x00" if end[1] else b"")
        if begin[2] >= end[2] and low >= high:
            return []
        view = self.view(snapshot)
        with self.reading():
            rows = view.get_range(begin, end, limit, reverse)
        if snapshot:
            return rows
        if begin[2] == end[2] == 1 and self.ryw:
            more = bool(rows) and len(rows) == limit
            if not reverse:
                self.conflict(low, after(rows[-1][0]) if more else high)
            else:
                self.conflict(rows[-1][0] if more else low, high)
        else:
            edges = [low, high, view.resolve(begin)[0], view.resolve(end)[0], *(after(key) for key, _ in rows)]
            self.maybe_reads.add(min(edges), after(max(edges)))
        self.recheck(snapshot, lambda view: view.get_range(begin, end, limit, reverse))
        return rows

    def read_conflict_ranges(self) -> list[tuple[bytes, bytes]]:
        return list(self.reads)

    def write_conflict_ranges(self) -> list[tuple[bytes, bytes]]:
        return list(self.writes)

    # --- explicit conflicts ---

    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        if begin > end:
            raise ModelError(2005)
        if self.committing:
            self.defer(2017)
        elif begin > END or end > END:
            self.defer(2004)
        elif begin < end:
            self.conflict(begin, end)

    def add_write_conflict_range(self, begin: bytes, end: bytes) -> None:
        if begin > end:
            raise ModelError(2005)
        if self.committing:
            self.defer(2017)
        elif begin > END or end > END:
            self.defer(2004)
        else:
            self.writes.add(begin, end)

    # --- writes ---

    def next_write_no_write_conflict_range(self) -> None:
        if self.committing:
            self.defer(2017)
        self.quiet = True

    def take_quiet(self) -> bool:
        quiet, self.quiet = self.quiet, False
        self.silent = self.silent or quiet
        return quiet

    def mutate(self, name: str, key: bytes, param: bytes) -> None:
        quiet = self.take_quiet()
        if self.committing:
            return self.defer(2017)
        if key >= END:
            return self.defer(2004)
        if len(key) > KEY_LIMIT:
            return self.defer(2102)
        if len(param) > VALUE_LIMIT:
            return self.defer(2103)
        if name == "set_versionstamped_key":
            return self.stamp_key(key, param)
        if name == "set_versionstamped_value":
            try:
                stamp_offset(param)
            except ModelError as error:
                return self.defer(error.code)
        self.mutations.append((name, key, param))
        if not quiet:
            self.writes.add(key, after(key))
        entry = self.overlay.entries.get(key)
        unreadable = key in self.overlay.barriers() or name == "set_versionstamped_value"
        if entry is None:
            cleared = key in self.overlay.cleared
            self.overlay.entries[key] = Entry([(name, param)], cleared, unreadable)
        elif name in ("set", "set_versionstamped_value") and not entry.unreadable:
            self.overlay.entries[key] = Entry([(name, param)], entry.cleared_before, unreadable)
        else:
            entry.operations.append((name, param))
            entry.unreadable = unreadable
        return None

    def stamp_key(self, key: bytes, param: bytes) -> None:
        try:
            at = stamp_offset(key)
        except ModelError as error:
            return self.defer(error.code)
        body = key[:-4]
        lowest = stamp_of(self.read_version or 0)
        low = body[:at] + lowest + body[at + 10 :]
        high = min(after(body[:at] + b"\xff" * 10 + body[at + 10 :]), END)
        for written in [k for k in self.overlay.entries if low <= k < high]:
            del self.overlay.entries[written]
        self.overlay.cleared.remove(low, high)
        self.overlay.unreadable.add(low, high)
        self.stamped_anchors[low + key[-4:]] = len(self.mutations)
        self.mutations.append(("set_versionstamped_key", key, param))
        return None

    def clear_range(self, begin: bytes, end: bytes) -> None:
        quiet = self.take_quiet()
        if self.committing:
            return self.defer(2017)
        if begin > end:
            return self.defer(2005)
        if begin > END or end > END:
            return self.defer(2004)
        if begin == end:
            return None
        self.mutations.append(("clear_range", begin, end))
        for anchor, at in list(self.stamped_anchors.items()):
            if begin <= anchor < end:  # the client drops the stamped key with the range that it stands at
                self.mutations[at] = ("nothing", b"", b"")
                del self.stamped_anchors[anchor]
        if not quiet:
            self.writes.add(begin, end)
        for key in [key for key in self.overlay.entries if begin <= key < end]:
            del self.overlay.entries[key]
        self.overlay.cleared.add(begin, end)
        self.overlay.unreadable.remove(begin, end)
        return None

    def clear(self, key: bytes) -> None:
        if self.committing:
            self.defer(2017)
        elif key >= END:
            self.take_quiet()
            self.defer(2004)
        elif len(key) > KEY_LIMIT:
            self.take_quiet()
        else:
            self.clear_range(key, after(key))

    # --- commit ---

    def commit(self, refused: bool) -> int | None:
        """The version committed, or None for a read-only transaction. Raises `ModelError`.

        `refused` says what the database under test decided. It is believed only where this model leaves it open: where
        a read with offsets, or without read-your-writes, may conflict with what changed nothing in its result.
        """
        self.check()
        if self.read_error:
            self.committing = True
            raise ModelError(self.read_error)
        if not self.mutations and not self.writes:
            return None
        if self.read_version is not None:
            since = RangeSet()
            for written in self.model.written[self.read_version + 1 :]:
                for begin, end in written:
                    since.add(begin, end)
            exact, maybe = self.reads.intersects(since), self.maybe_reads.intersects(since)
            silent = any(self.model.silent[self.read_version + 1 :])
            if not silent and any(differs(self.model.states[-1]) for differs in self.rechecks):
                assert exact or maybe, "the model's conflict ranges miss a change that it sees"
                raise ModelError(1020)
            if exact or (maybe and refused):
                raise ModelError(1020)
        return self.apply()

    def apply(self) -> int:
        state = dict(self.model.states[-1])
        version = len(self.model.states)
        stamp = stamp_of(version)
        written = self.writes.copy()
        for name, key, param in self.mutations:
            if name == "clear_range":
                for stored in [k for k in state if key <= k < param]:
                    del state[stored]
            elif name == "set_versionstamped_key":
                final = stamped(key, stamp)
                state[final] = param
                written.add(final, after(final))
            elif name != "nothing":
                if name == "set":
                    value: bytes | None = param
                elif name == "set_versionstamped_value":
                    value = stamped(param, stamp)
                else:
                    value = OPERATIONS[name](state.get(key), param)
                state.pop(key, None)
                if value is not None:
                    state[key] = value
        self.model.states.append(state)
        self.model.written.append(written)
        self.model.silent.append(self.silent)
        return version
