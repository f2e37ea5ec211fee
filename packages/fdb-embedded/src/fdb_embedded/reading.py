"""Reads of a transaction: through its overlay, at its read version, and the conflict ranges they leave."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import islice

from . import errors, range_conflicts, special_keys
from .errors import Code
from .keys import Row
from .overlay import Overlay, Stack
from .snapshot import Snapshot
from .state import KEY_LIMIT, METADATA_VERSION, NO_STAMP_AT_READ_VERSION, SYSTEM_KEY_LIMIT, TransactionState

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
                snap = self.engine.snapshot() if wanted is None else self._snapshot_at(wanted)
            except Code as error:
                raise self._read_failed(error.code) from None
            self.snap = snap
        return snap

    def _snapshot_at(self, version: int) -> Snapshot:
        """A snapshot of `version`; one of the future is waited for, as a storage server waits for it."""
        self.engine.versions_are_asked_for = True  # and not where one is only set: a commit is validated there without
        give_up = time.monotonic() + FUTURE_VERSION_SECONDS
        while True:
            try:
                return self.engine.snapshot_at(version)
            except Code as error:
                if error.code != errors.FUTURE_VERSION or time.monotonic() >= give_up:
                    raise
            self._expire()
            if self.dead:
                raise Code(self.dead)
            time.sleep(FUTURE_VERSION_LOOK_SECONDS)

    def get_read_version(self) -> int:
        if self.committing and not self.deferred:  # the one read that a commit doesn't forbid
            if self.dead:
                raise Code(self.dead)
            return self._read_version_of_commit()
        self._check()
        snap = self._begin()
        self.engine.pin(snap)
        return snap.version

    def peek_read_version(self) -> int:
        """The read version, without keeping what it shows for who might ask for that version again."""
        if self.committing:
            return self.get_read_version()
        self._check()
        return self._begin().version

    def _read_version_of_commit(self) -> int:
        """The read version stays known after the commit; one that was never asked for is that of a blind write."""
        if self.snap is not None:
            return self.snap.version
        if self.read_version is None:
            snap = self.engine.snapshot()
            self.read_version = snap.version if self.committed_version < 0 else self.committed_version - 1
            self.engine.release(snap)
        return self.read_version

    def set_read_version(self, version: int) -> None:
        if self.committing:
            self._defer(errors.USED_DURING_COMMIT)
        elif version <= 0:
            self._defer(errors.VERSION_INVALID)
        elif self.snap is not None or self.wanted_version is not None:
            self._defer(2010)
        else:
            self.wanted_version = version

    def lowest_stamp(self) -> bytes:
        """What no stamp of this transaction can lie below, as far as its client knows."""
        version = self.snap.version if self.snap is not None else self.wanted_version or self.read_version
        if version is None:
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
        if len(key) > KEY_LIMIT and len(key) > (SYSTEM_KEY_LIMIT if key.startswith(b"\xff") else KEY_LIMIT):
            return None
        overlay = self._overlay_for(snapshot)
        if overlay is not None:
            entry = overlay.writes.get(key, overlay)  # the overlay itself stands for "nothing"
            if entry is not overlay:
                if not isinstance(entry, Stack):
                    return entry  # type: ignore[return-value]
                if entry.unreadable and not self.options.bypass_unreadable:
                    raise self._read_failed(errors.ACCESSED_UNREADABLE)
                if not entry.depends:
                    return entry.fold(None)
                return entry.fold(self._read_point(key, snapshot))
            if overlay.unreadable and not self.options.bypass_unreadable:
                for begin, end in overlay.unreadable:
                    if begin <= key < end:
                        raise self._read_failed(errors.ACCESSED_UNREADABLE)
            if overlay.clears and overlay.cleared(key):
                return None
        return self._read_point(key, snapshot)

    def _read_point(self, key: bytes, snapshot: bool) -> bytes | None:
        snap = self.snap or self._begin()
        if not snapshot:
            points = self.read_points
            if points is None:
                self.read_points = {key}
            else:
                points.add(key)
        try:
            return snap.get(key)
        except Code as error:
            raise self._read_failed(error.code) from None

    def get_many(self, wanted: list[bytes], snapshot: bool) -> list[bytes | None]:
        """The values of many keys, as one `get` each."""
        if self.overlay or not wanted or max(wanted) >= b"\xff" or not min(wanted) or max(map(len, wanted)) > 510:
            return [self.get(key, snapshot) for key in wanted]
        self._check()
        snap = self.snap or self._begin()
        if not snapshot:
            if self.read_points is None:
                self.read_points = set(wanted)
            else:
                self.read_points.update(wanted)
        try:
            return snap.get_many(wanted)
        except Code as error:
            raise self._read_failed(error.code) from None

    def _rows(self, begin: bytes, end: bytes, reverse: bool, snapshot: bool, first: int) -> Iterator[Row]:
        """The rows of [begin, end) as this transaction sees them."""
        overlay = self._overlay_for(snapshot)
        snap = self.snap or self._begin()
        if overlay is None:
            return snap.stream(begin, end, reverse, first)
        return overlay.merge(
            begin,
            end,
            reverse,
            lambda low, high: snap.stream(low, high, reverse, first),
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
        try:
            found, _ = self._resolve(key, or_equal, offset, snapshot)
        except Code as error:
            raise self._read_failed(error.code) from None
        if not snapshot:
            edge = key + b"\0" if or_equal else key
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
        if begin_key.startswith(b"\xff\xff") and end_key.startswith(b"\xff\xff"):
            self._check_special()
            return special_keys.get_range(self, begin, end, limit, reverse), False
        self._check()
        edge = self._limit_key()
        if begin_key > edge or end_key > edge:
            raise Code(errors.KEY_OUTSIDE_LEGAL_RANGE)
        if begin_equal:
            begin_key += b"\0"
        if end_equal:
            end_key += b"\0"
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
        if low < high:
            overlay = self._overlay_for(snapshot)
            if overlay is None and not target_bytes and limit:
                rows = (self.snap or self._begin()).rows(low, high, limit, reverse)
                more = len(rows) >= limit
            else:
                rows, more = self._collect(self._rows(low, high, reverse, snapshot, limit or 64), limit, target_bytes)
        if not snapshot:
            begin, end = (begin_key, begin_offset), (end_key, end_offset)
            if self.options.ryw_disabled:
                to_begin = begin_at < 1 and low < high and not (more and reverse)
                self._add_read_range(*range_conflicts.plain(begin, end, rows, more, to_begin, reverse))
                if not reverse and not more and end_at > 1:
                    self._add_read_range(end_key, edge)  # it went on into the system's keys
            else:
                found = (low, begin_at), (high, end_at)
                self._add_read_range(*range_conflicts.overlaid(begin, end, *found, rows, more, reverse, edge))
        return rows, more

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
        if (overlay.writes or overlay.clears) and not self.options.ryw_disabled:
            for low, high in overlay.unknown_parts(begin, end):
                self._insert_read_range(low, high)
        else:
            self._insert_read_range(begin, end)

    def _insert_point(self, key: bytes) -> None:
        if self.read_points is None:
            self.read_points = {key}
        else:
            self.read_points.add(key)

    def _insert_read_range(self, begin: bytes, end: bytes) -> None:
        if len(end) == len(begin) + 1 and end[-1] == 0 and end.startswith(begin):
            self._insert_point(begin)
        else:
            self.read_ranges.append((begin, end))

    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        if self.committing:
            self._defer(errors.USED_DURING_COMMIT)
            return
        edge = self._limit_key()
        if (begin > edge or end > edge) and not (begin == METADATA_VERSION and end == METADATA_VERSION + b"\0"):
            self._defer(errors.KEY_OUTSIDE_LEGAL_RANGE)
            return
        self._add_read_range(begin, end)

    def add_read_conflict_keys(self, keys: Iterable[bytes]) -> None:
        """A read conflict for each key."""
        if self.committing or self.overlay or self.options.ryw_disabled:
            for key in keys:
                self.add_read_conflict_range(key, key + b"\0")
            return
        if self.read_points is None:
            self.read_points = set(keys)
        else:
            self.read_points.update(keys)
