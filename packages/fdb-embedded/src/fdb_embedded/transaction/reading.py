"""Reads of a transaction: through its overlay, at its read version, and the conflict ranges they leave."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import islice

from .. import errors
from ..engine.snapshot import Snapshot
from ..errors import Code
from ..pure import range_conflicts
from ..pure.client_reads import Selector
from ..pure.conflict import Range
from ..pure.keys import READ_KEY_LIMIT, Row, clipped, key_limit
from ..pure.overlay import Overlay, Stack
from ..pure.write_map import CONFLICT_COST
from . import special_keys
from .client_view import ClientView, Write, copy_of_writes
from .state import (
    METADATA_VERSION,
    NO_STAMP_AT_READ_VERSION,
    TransactionState,
)

FUTURE_VERSION_SECONDS = 1.0
"""How long a storage server waits for a version to come before it answers 1009 (its knob FUTURE_VERSION_DELAY)."""
FUTURE_VERSION_LOOK_SECONDS = 0.01


class Reading(TransactionState):
    """Reads raise `Code` at once."""

    def _begin(self) -> Snapshot:
        snap = self.snap
        if snap is None:
            wanted = self.wanted_version
            try:
                if self.database.faulty is not None:
                    self.database.faulty.before_read()
                snap = self.engine.snapshot(self.go_on) if wanted is None else self._snapshot_at(wanted)
            except Code as error:
                raise self._read_failed(error.code) from None
            first = self.snap
            if first is None:  # no call until it is set
                self.snap = snap
            else:  # another thread that shares the transaction was first
                self.engine.release(snap)
                snap = first
        return snap

    def _snapshot_at(self, version: int) -> Snapshot:
        """A snapshot of `version`; one of the future is waited for, as a storage server waits for it."""
        self.engine.versions_are_asked_for = True  # and not where one is only set: a commit is validated there without
        give_up = time.monotonic() + FUTURE_VERSION_SECONDS
        while True:
            try:
                return self.engine.snapshot_at(version, self.go_on)
            except Code as error:
                if error.code != errors.FUTURE_VERSION or time.monotonic() >= give_up:
                    raise
            self._expire()
            if self.dead:
                raise Code(self.dead)
            time.sleep(FUTURE_VERSION_LOOK_SECONDS)

    def get_read_version(self) -> int:
        if self.committing and not self.deferred:  # the one read that a commit doesn't forbid
            self._expire()
            if self.dead:
                raise Code(self.dead)
            return self._read_version_of_commit()
        self._check()
        snap = self._begin()
        version = self._told(snap.version)
        self.engine.pin(snap, version)
        return version

    def peek_read_version(self) -> int:
        """The read version, without keeping what it shows for who might ask for that version again."""
        if self.committing:
            return self.get_read_version()
        self._check()
        return self._told(self._begin().version)

    def _told(self, shown: int) -> int:
        """The read version of this transaction, which reads what a commit of version `shown` has left."""
        told = self.read_version
        if told is None:
            wanted = self.wanted_version
            told = self.read_version = self.engine.read_version(shown, self.go_on) if wanted is None else wanted
        return told

    def _read_version_of_commit(self) -> int:
        """The read version stays known after the commit; one that was never asked for is that of a blind write."""
        shown = self.snap.version if self.snap is not None else self.shown_version
        if shown is not None or self.wanted_version is not None or self.read_version is not None:
            return self._told(shown or 0)
        snap = self.engine.snapshot(self.go_on)
        attempt = self.attempt
        self.read_version = snap.version if attempt is None or attempt.version < 0 else attempt.version - 1
        self.engine.release(snap)
        return self.read_version

    def set_read_version(self, version: int) -> None:
        if self.deferred:
            return
        known = (self.snap, self.wanted_version, self.read_version, self.shown_version, self.attempt)
        if any(item is not None for item in known):
            self._defer(errors.READ_VERSION_ALREADY_SET)
        elif version <= 0:
            self._defer(errors.VERSION_INVALID)
        else:
            self.wanted_version = version

    def lowest_stamp(self) -> bytes:
        """What no stamp of this transaction can lie below, as far as its client knows."""
        snap = self.snap
        if snap is not None:
            version = self._told(snap.version)
        else:
            version = self.wanted_version or self.read_version or self.shown_version or 0
            if not version and self.attempt is not None:  # its commit has asked for one
                version = self._read_version_of_commit()
            if not version:
                return b"\0" * 10
        if self.database.api_version > NO_STAMP_AT_READ_VERSION:
            version += 1
        return version.to_bytes(8, "big") + b"\0\0"

    def _limit_key(self) -> bytes:
        return b"\xff\xff" if self.options.read_system else b"\xff"

    def _overlay_for(self, snapshot: bool) -> Overlay | None:
        """The overlay that a read sees, or None when it sees only the database."""
        overlay = self.overlay
        if not overlay or self.options.ryw_disabled or (snapshot and self.options.snapshot_ryw <= 0):
            return None
        return overlay

    def _read_failed(self, code: int) -> Code:
        """Remember that a read ended in `code`; the commit will, too."""
        if not self.read_error:
            self.read_error = code
        return Code(code)

    def get(self, key: bytes, snapshot: bool) -> bytes | None:
        """The value of `key`, or None."""
        if key >= b"\xff\xff":
            self._check_special()
            if key < b"\xff\xff\xff":
                return special_keys.get(self, key)
        if self.deferred or self.committing or self.dead or self.options.timeout:
            self._check()
        if key >= b"\xff":
            if key >= self._limit_key() and key != METADATA_VERSION:
                raise Code(errors.KEY_OUTSIDE_LEGAL_RANGE)
            try:
                special = special_keys.system_get(self, key)
            except Code as error:
                raise self._read_failed(error.code) from None
            if special is not None:
                return special[0]
        if len(key) > READ_KEY_LIMIT and len(key) > key_limit(key):
            return None
        overlay = self._overlay_for(snapshot)
        if overlay is not None:
            if self.history is not None:
                try:
                    return self._client_view().get(key, snapshot)
                except Code as error:
                    raise self._read_failed(error.code) from None
            entry = overlay.writes.get(key, overlay)  # the overlay itself stands for "nothing"
            if entry is not overlay:
                if not isinstance(entry, Stack):
                    return entry  # type: ignore[return-value]
                if not entry.depends:
                    return entry.fold(None)
                return entry.fold(self._read_point(key, snapshot))
            if overlay.clears and overlay.cleared(key):
                return None
        return self._read_point(key, snapshot)

    def _read_point(self, key: bytes, snapshot: bool) -> bytes | None:
        snap = self.snap or self._begin()
        if not snapshot:
            if self.options.ryw_disabled:
                self.uncounted += 2 * len(key) + 1 + CONFLICT_COST
            else:
                self.approximate += 2 * len(key) + 1 + CONFLICT_COST
            points = self.read_points
            if points is None:
                points = set()
                if self.read_points is None:  # as in `_first_points`, which costs a call
                    self.read_points = points
                else:
                    points = self.read_points
            points.add(key)
        seen = self.seen
        if seen is None:
            seen = []
            if self.seen is None:
                self.seen = seen
            else:
                seen = self.seen
        seen.append(key)
        try:
            return snap.get(key, self)
        except Code as error:
            raise self._read_failed(error.code) from None

    def get_many(self, wanted: list[bytes], snapshot: bool) -> list[bytes | None]:
        """The values of many keys, as one `get` each."""
        if self.overlay or not wanted or max(wanted) >= b"\xff" or not min(wanted) or max(map(len, wanted)) > 510:
            return [self.get(key, snapshot) for key in wanted]
        self._check()
        snap = self.snap or self._begin()
        self._saw(*wanted)
        if not snapshot:
            size = 2 * sum(map(len, wanted)) + (1 + CONFLICT_COST) * len(wanted)
            if self.options.ryw_disabled:
                self.uncounted += size
            else:
                self.approximate += size
            self._insert_points(wanted)
        try:
            return snap.get_many(wanted, self)
        except Code as error:
            raise self._read_failed(error.code) from None

    def _saw(self, *what: bytes | Range) -> None:
        """Note keys and ranges of which the snapshot's contents are known from now on."""
        seen = self.seen
        if seen is None:
            seen = self._first_seen()
        seen.extend(what)

    def _first_points(self) -> set[bytes]:
        fresh: set[bytes] = set()
        points = self.read_points
        if points is None:  # no call until it is set: not by another thread meanwhile
            self.read_points = points = fresh
        return points

    def _first_seen(self) -> list[bytes | Range]:
        fresh: list[bytes | Range] = []
        seen = self.seen
        if seen is None:
            self.seen = seen = fresh
        return seen

    def _noted(self) -> list[Write]:
        """The writes in their order: noted from now on, since reads depend on how the client cuts them into segments."""
        history = self.history
        if history is None:
            self.plain = False  # first: what another thread writes meanwhile is copied here or noted
            history = self._own("history", [copy_of_writes(self)])
        return history

    def _client_view(self) -> ClientView:
        view = self.view
        if view is None:
            view = self._own("view", ClientView(self))
        return view

    def count_conflict(self, begin: bytes, end: bytes) -> None:
        """A read conflict that counts for the size of the transaction."""
        size = len(begin) + len(end) + CONFLICT_COST
        if self.options.ryw_disabled:
            self.uncounted += size
        else:
            self.approximate += size

    def _rows(self, begin: bytes, end: bytes, reverse: bool, snapshot: bool, first: int) -> Iterator[Row]:
        """The rows of [begin, end) as this transaction sees them."""
        overlay = self._overlay_for(snapshot)
        if overlay is not None and self.snap is None and not overlay.unknown_parts(begin, end):
            return overlay.merge(begin, end, reverse, lambda low, high: iter(()))  # without a read version
        snap = self.snap or self._begin()
        if overlay is None:
            return snap.stream(begin, end, reverse, first, self)
        return overlay.merge(
            begin,
            end,
            reverse,
            lambda low, high: snap.stream(low, high, reverse, first, self),
        )

    def _resolve(self, key: bytes, or_equal: bool, offset: int, snapshot: bool) -> tuple[bytes, int]:
        """A selector's key, and its offset there: 1 where the key is found, else what is left beyond begin or end."""
        start = key + b"\0" if or_equal else key
        limit = self._limit_key()
        if offset > 0:
            if start < limit:
                for found, _ in islice(self._rows(start, limit, False, snapshot, min(offset, 256)), offset):
                    offset -= 1
                    if not offset:
                        return found, 1
            return limit, offset
        for found, _ in islice(self._rows(b"", min(start, limit), True, snapshot, min(1 - offset, 256)), 1 - offset):
            if not found:
                break  # the empty key counts as the beginning
            offset += 1
            if offset == 1:
                return found, 1
        return b"", offset

    def get_key(self, key: bytes, or_equal: bool, offset: int, snapshot: bool) -> bytes:
        """Resolve a key selector."""
        self._check()
        if key > self._limit_key():
            raise Code(errors.KEY_OUTSIDE_LEGAL_RANGE)
        edge = clipped(key) + b"\0" if or_equal else clipped(key)
        if not edge and offset <= 0:
            self.asked = True
            return b""  # before the beginning: nothing needs to be read for that
        try:
            if not self.options.ryw_disabled and (self.history is not None or self.overlay or self.cut):
                self._noted()
                return self._client_view().get_key(edge, offset, snapshot)
            found, _ = self._resolve(edge, False, offset, snapshot)
        except Code as error:
            raise self._read_failed(error.code) from None
        if not self.options.ryw_disabled:
            if self.snap is None:
                self.asked = True  # behind the last key: nothing was read for that
            else:
                self._saw((edge, found + b"\0") if offset > 0 else (found, edge))
        if not snapshot:
            if offset <= 0:
                self._add_read_range(found, edge)
            else:
                self._add_read_range(edge, found + b"\0")
        return found

    def get_range(
        self,
        begin: tuple[bytes, bool, int],
        end: tuple[bytes, bool, int],
        limit: int,
        target_bytes: int,
        snapshot: bool,
        reverse: bool,
    ) -> tuple[list[Row], bool]:
        """Rows between two selectors and whether there are more; 0 means no limit, of rows or of bytes."""
        begin_key, begin_equal, begin_offset = begin
        end_key, end_equal, end_offset = end
        if b"\xff\xff" <= begin_key < b"\xff\xff\xff" and b"\xff\xff" <= end_key <= b"\xff\xff\xff":
            self._check_special()
            if limit < 0:
                raise Code(errors.RANGE_LIMITS_INVALID)
            return special_keys.get_range(self, begin, end, limit, reverse), False
        self._check()
        edge = self._limit_key()
        if begin_key > edge or end_key > edge:
            raise Code(errors.KEY_OUTSIDE_LEGAL_RANGE)
        if limit < 0:
            raise Code(errors.RANGE_LIMITS_INVALID)
        begin_key = clipped(begin_key + b"\0" if begin_equal else begin_key)
        end_key = clipped(end_key + b"\0" if end_equal else end_key)
        if begin_offset >= end_offset and begin_key >= end_key:
            return [], False
        try:
            return self._range(begin_key, begin_offset, end_key, end_offset, limit, target_bytes, snapshot, reverse)
        except Code as error:
            raise self._read_failed(error.code) from None

    def _range(
        self,
        begin_key: bytes,
        begin_offset: int,
        end_key: bytes,
        end_offset: int,
        limit: int,
        target_bytes: int,
        snapshot: bool,
        reverse: bool,
    ) -> tuple[list[Row], bool]:
        stepwise = self.history is not None or begin_offset != 1 or end_offset != 1
        if not stepwise and self.snap is None and self.overlay:
            stepwise = self._may_end_with_own(begin_key, end_key, snapshot, reverse)
        if stepwise and not self.options.ryw_disabled:
            if self.overlay or self.cut:
                self._noted()
            begin, end = Selector(begin_key, begin_offset), Selector(end_key, end_offset)
            answer = self._client_view().get_range(begin, end, limit, target_bytes, snapshot, reverse)
            return answer.rows, answer.more
        edge = self._limit_key()
        low, high = begin_key, end_key
        begin_at = end_at = 1
        if begin_offset != 1:
            low, begin_at = self._resolve(begin_key, False, begin_offset, snapshot)
        if end_offset != 1:
            high, end_at = self._resolve(end_key, False, end_offset, snapshot)
        if self.options.ryw_disabled and reverse and end_offset > 1:  # the client resolves this one by itself
            if not snapshot:
                self._add_read_range(end_key, high + b"\0")
            end_key, end_offset = high, 1
        rows: list[Row] = []
        more = False
        if low < high and (low < edge or self.options.ryw_disabled):  # the client asks for nothing behind the end
            overlay = self._overlay_for(snapshot)
            if overlay is None and not target_bytes and limit:
                rows = (self.snap or self._begin()).rows(low, high, limit, reverse, self)
                more = len(rows) >= limit
            else:
                rows, more = self._collect(self._rows(low, high, reverse, snapshot, limit or 64), limit, target_bytes)
        if self.options.ryw_disabled:
            self._saw(low)
            if not snapshot:
                begin_selector, end_selector = (begin_key, begin_offset), (end_key, end_offset)
                to_begin = begin_at < 1 and low < high and not (more and reverse)
                conflict = range_conflicts.plain(begin_selector, end_selector, rows, more, to_begin, reverse)
                self._add_read_range(*conflict)
                if not reverse and not more and end_at > 1:
                    self._add_read_range(end_key, edge)  # it went on into the system's keys
            return rows, more
        if more and reverse:
            low = rows[-1][0]
        elif more:
            high = rows[-1][0] + b"\0"
        if self.snap is not None:  # else all of it was known from the transaction's own writes
            self._saw((low, high))
        if not snapshot:
            self._add_read_range(low, high)
        return rows, more

    def _may_end_with_own(self, begin: bytes, end: bytes, snapshot: bool, reverse: bool) -> bool:
        """Whether a read comes first to what the transaction wrote, and ends there, without a read version, or goes on."""
        overlay = self._overlay_for(snapshot)
        if overlay is None or begin >= end:
            return False
        return (overlay.known_before(end) if reverse else overlay.known(begin)) and bool(
            overlay.unknown_parts(begin, end)
        )

    @staticmethod
    def _collect(source: Iterator[Row], limit: int, target_bytes: int) -> tuple[list[Row], bool]:
        if not target_bytes:
            rows = list(islice(source, limit)) if limit else list(source)
            return rows, bool(limit) and len(rows) >= limit
        rows = []
        size = 0
        for row in source:
            rows.append(row)
            size += len(row[0]) + len(row[1])
            if size >= target_bytes or len(rows) == limit:
                return rows, True
        return rows, False

    def _add_read_range(self, begin: bytes, end: bytes) -> None:
        """A read conflict, but for what this transaction wrote itself."""
        if begin >= end:
            return
        overlay = self.overlay
        if (self.history is not None or self.cut) and not self.options.ryw_disabled:
            self._noted()
            self._client_view().add_conflict(begin, end)
        elif (overlay.writes or overlay.clears) and not self.options.ryw_disabled:
            for low, high in overlay.unknown_parts(begin, end):
                self.count_conflict(begin, end)
                self._insert_read_part(low, high)
        else:
            self.count_conflict(begin, end)
            self._insert_read_range(begin, end)

    def _insert_point(self, key: bytes) -> None:
        points = self.read_points
        if points is None:
            points = self._first_points()
        points.add(key)

    def _insert_points(self, keys: Iterable[bytes]) -> None:
        points = self.read_points
        if points is None:
            points = self._first_points()
        points.update(keys)

    def _insert_read_range(self, begin: bytes, end: bytes) -> None:
        if len(end) == len(begin) + 1 and end[-1] == 0 and end.startswith(begin):
            self._insert_point(begin)
        else:
            self.read_ranges.append((begin, end))

    def _insert_read_part(self, begin: bytes, end: bytes) -> None:
        """A part between the transaction's own writes: who reads from one place again and again meets the same ones each time."""
        parts = self.read_parts
        if parts is None or parts[0] is not self.read_ranges:  # the conflicts were given up meanwhile
            parts = self.read_parts = (self.read_ranges, set())
        if (begin, end) not in parts[1]:
            self._insert_read_range(begin, end)
            parts[1].add((begin, end))  # afterwards: another thread that meets it relies on it

    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        if self.deferred:
            return
        if self.committing:
            self._used_during_commit()
            self._defer(errors.USED_DURING_COMMIT)
            return
        edge = self._limit_key()
        if (begin > edge or end > edge) and not (begin == METADATA_VERSION and end == METADATA_VERSION + b"\0"):
            self._defer(errors.KEY_OUTSIDE_LEGAL_RANGE)
            return
        begin, end = clipped(begin), clipped(end)
        if self.options.ryw_disabled and begin < end:  # the client counts these, and not those of reads
            self.approximate += len(begin) + len(end) + CONFLICT_COST
            self._insert_read_range(begin, end)
            return
        self._add_read_range(begin, end)

    def add_read_conflict_keys(self, keys: Iterable[bytes]) -> None:
        """A read conflict for each key."""
        keys = list(keys)
        overlay = self.overlay
        touched = bool(overlay.clears or overlay.stamped) or not overlay.writes.keys().isdisjoint(keys)
        if self.committing or touched or self.cut or self.history is not None or self.options.ryw_disabled:
            for key in keys:
                self.add_read_conflict_range(key, key + b"\0")
            return
        self.approximate += 2 * sum(map(len, keys)) + (1 + CONFLICT_COST) * len(keys)
        self._insert_points(keys)
