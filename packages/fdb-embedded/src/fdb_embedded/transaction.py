"""A transaction: reads at one version, the overlay of its writes, its conflict sets, and the states of a C client's."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from . import atomics, errors, idempotency, options, special_keys
from .conflict import Range
from .errors import Code
from .futures import Future, failed, ready
from .keys import Row
from .overlay import Overlay, Stack, subtract
from .snapshot import Snapshot

if TYPE_CHECKING:
    from .engine import Database

KEY_LIMIT = 10_000
SYSTEM_KEY_LIMIT = 30_000
VALUE_LIMIT = 100_000
METADATA_VERSION = b"\xff/metadataVersion"
METADATA_OPERAND = b"\0" * 14
FIRST_BACKOFF = 0.0002
CONFLICT_COST = 25
MUTATION_COST = 28


class Transaction:
    """The engine's side of a transaction of the official binding.

    Reads raise `Code` at once. Mutations never raise: as in the C client, their first error is kept and raised by the
    next read or commit. Threads may share a transaction.
    """

    # What most transactions never set lives on the class, so that creating one is cheap.
    snap: Snapshot | None = None
    wanted_version: int | None = None
    dead = 0
    deferred = 0
    committing = False
    plain = True
    no_write_conflict = False
    committed_version = -1
    batch_index = 0
    commit_future: Future | None = None
    read_ranges: list[Range]
    checked = 0
    size_hint = 0
    conflict_hit: Range | None = None
    given_id: bytes | None = None
    automatic_id = False
    idempotency_id: bytes | None = None
    id_ends = False
    read_at: int | None = None

    def __init__(self, database: Database) -> None:
        self.database = database
        self.engine = database.engine
        self.created = time.monotonic()
        self.retries = 0
        self.backoff = FIRST_BACKOFF
        self.options = database.defaults
        if self.options.plain is False:
            self.plain = False
        self._fresh()

    def _fresh(self) -> None:
        self.overlay = Overlay()
        self.writes = self.overlay.writes
        self.read_points: set[bytes] | None = None
        self.read_ranges = []
        self.write_ranges: list[Range] = []
        self.write_points: set[bytes] | None = None
        self.unconflicted: set[bytes] | None = None
        self.watches: list[tuple[bytes, bytes | None, Future]] | None = None
        self.stamp_futures: list[Future] | None = None

    # --- states ---

    def _check(self) -> None:
        """Raise what a read or a commit of this transaction must raise."""
        if self.deferred:
            raise Code(self.deferred)
        if self.committing:
            self._used_during_commit()
            raise Code(errors.USED_DURING_COMMIT)
        if self.dead:
            raise Code(self.dead)
        deadline = self.options.deadline(self.created)
        if deadline and time.monotonic() >= deadline:
            self.fail(errors.TRANSACTION_TIMED_OUT)
            raise Code(errors.TRANSACTION_TIMED_OUT)

    def _used_during_commit(self) -> None:
        future = self.commit_future
        if future is not None and not future.done and not self.options.commit_protection_disabled:
            self.fail(errors.USED_DURING_COMMIT)

    def _defer(self, code: int) -> None:
        if not self.deferred:
            self.deferred = code
        self.plain = False

    def fail(self, code: int) -> None:
        """End everything that is pending with `code`; later reads and commits get it too."""
        if not self.dead:
            self.dead = code
        self.plain = False
        future = self.commit_future
        if future is not None and not future.done:
            self.engine.committer.abandon(self)
            future.set(None, code)
        self._fail_pending(code, code)

    def _fail_pending(self, stamp_code: int, watch_code: int) -> None:
        stamps, self.stamp_futures = self.stamp_futures, None
        for future in stamps or ():
            future.set(None, stamp_code)
        watches, self.watches = self.watches, None
        for _, _, future in watches or ():
            future.set(None, watch_code)

    def _release(self) -> None:
        snap, self.snap = self.snap, None
        if snap is not None:
            self.engine.release(snap)

    def cancel(self) -> None:
        """End the transaction: whatever is pending and whatever comes gets 1025."""
        if self.dead == 0 or (self.commit_future is not None and not self.commit_future.done):
            self.fail(errors.TRANSACTION_CANCELLED)
        self._release()

    def reset(self) -> None:
        """Start afresh, as if newly created."""
        self.fail(errors.TRANSACTION_CANCELLED)
        self.created = time.monotonic()
        self.retries = 0
        self.backoff = FIRST_BACKOFF
        self.options = self.database.defaults
        self._restart()

    def _restart(self) -> None:
        self._release()
        for name in (
            "wanted_version",
            "dead",
            "deferred",
            "committing",
            "plain",
            "no_write_conflict",
            "committed_version",
            "batch_index",
            "commit_future",
            "checked",
            "conflict_hit",
            "given_id",
            "automatic_id",
            "idempotency_id",
            "id_ends",
            "read_at",
        ):
            self.__dict__.pop(name, None)
        if self.options.plain is False:
            self.plain = False
        self._fresh()

    def __del__(self) -> None:
        snap = self.snap
        if snap is not None:
            self.snap = None
            self.engine.release(snap)

    def set_option(self, option: int, parameter: bytes | None) -> None:
        """Set a transaction option; an unknown one raises `Code` 2007 at once, a bad value is deferred."""
        if option == options.IDEMPOTENCY_ID and not self.committing:
            self.set_idempotency_id(parameter)
            return
        if option == options.AUTOMATIC_IDEMPOTENCY and not self.committing:
            self.automatic_id = True
            return
        options.check_transaction_option(option)
        if self.committing:
            self._defer(errors.USED_DURING_COMMIT)
            return
        if option == options.NEXT_WRITE_NO_WRITE_CONFLICT_RANGE:
            self.no_write_conflict = True
            self.plain = False
            return
        try:
            self.options = self.options.with_option(option, parameter)
        except Code as error:
            self._defer(error.code)
            return
        if self.options.plain is False:
            self.plain = False

    def set_idempotency_id(self, name: bytes | None, automatic: bool = False) -> None:
        """Options 504 and, with `automatic`, 505 in one call."""
        if name is None or not options.MIN_ID <= len(name) <= options.MAX_ID:
            self._defer(errors.INVALID_OPTION_VALUE)
            return
        self.given_id = name
        self.automatic_id = automatic

    # --- the read version ---

    def _begin(self) -> Snapshot:
        snap = self.snap
        if snap is None:
            wanted = self.wanted_version
            if self.database.faulty is not None:
                self.database.faulty.before_read()
            snap = self.engine.snapshot() if wanted is None else self.engine.snapshot_at(wanted)
            self.snap = snap
        return snap

    def get_read_version(self) -> int:
        self._check()
        snap = self._begin()
        self.engine.pin(snap)
        return snap.version

    def set_read_version(self, version: int) -> None:
        if self.committing:
            self._defer(errors.USED_DURING_COMMIT)
        elif version <= 0:
            self._defer(errors.VERSION_INVALID)
        elif self.snap is not None or self.wanted_version is not None:
            self._defer(2010)
        else:
            self.wanted_version = version

    # --- reading ---

    def _limit_key(self) -> bytes:
        return b"\xff\xff" if self.options.read_system else b"\xff"

    def _overlay_for(self, snapshot: bool) -> Overlay | None:
        """The overlay that a read sees, or None when it sees only the database."""
        overlay = self.overlay
        if not overlay or self.options.ryw_disabled or (snapshot and self.options.snapshot_ryw <= 0):
            return None
        return overlay

    def get(self, key: bytes, snapshot: bool) -> bytes | None:
        """The value of `key`, or None."""
        if self.deferred or self.committing or self.dead or self.options.timeout:
            self._check()
        if key >= b"\xff":
            if key.startswith(b"\xff\xff"):
                return special_keys.get(self, key)
            if key >= self._limit_key() and key != METADATA_VERSION:
                raise Code(errors.KEY_OUTSIDE_LEGAL_RANGE)
            special = special_keys.system_get(self, key)
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
                    raise Code(errors.ACCESSED_UNREADABLE)
                if not entry.depends:
                    return entry.fold(None)
                return entry.fold(self._read_point(key, snapshot))
            if overlay.clears and overlay.cleared(key):
                return None
            if overlay.unreadable and not self.options.bypass_unreadable:
                for begin, end in overlay.unreadable:
                    if begin <= key < end:
                        raise Code(errors.ACCESSED_UNREADABLE)
        return self._read_point(key, snapshot)

    def _read_point(self, key: bytes, snapshot: bool) -> bytes | None:
        snap = self.snap or self._begin()
        if not snapshot:
            points = self.read_points
            if points is None:
                self.read_points = {key}
            else:
                points.add(key)
        return snap.get(key)

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
        return snap.get_many(wanted)

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
            self.options.bypass_unreadable,
            lambda low, high: snap.stream(low, high, reverse, first),
        )

    def _resolve(self, key: bytes, or_equal: bool, offset: int, snapshot: bool) -> tuple[bytes, bool, bool]:
        """A selector's key, and whether it ran off the beginning or the end."""
        start = key + b"\0" if or_equal else key
        limit = self._limit_key()
        if offset > 0:
            if start < limit:
                for found, _ in islice(self._rows(start, limit, False, snapshot, min(offset, 256)), offset - 1, offset):
                    return found, False, False
            return limit, False, True
        back = 1 - offset
        for found, _ in islice(self._rows(b"", min(start, limit), True, snapshot, min(back, 256)), back - 1, back):
            return found, False, False
        return b"", True, False

    def get_key(self, key: bytes, or_equal: bool, offset: int, snapshot: bool) -> bytes:
        """Resolve a key selector."""
        self._check()
        if key.startswith(b"\xff\xff") and len(key) > 2:
            return special_keys.get_key(self, key, or_equal, offset)
        if key > self._limit_key():
            raise Code(errors.KEY_OUTSIDE_LEGAL_RANGE)
        found, _, _ = self._resolve(key, or_equal, offset, snapshot)
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
        self._check()
        begin_key, begin_equal, begin_offset = begin
        end_key, end_equal, end_offset = end
        if begin_key.startswith(b"\xff\xff") and len(begin_key) > 2:
            return special_keys.get_range(self, begin, end, limit, reverse, snapshot), False
        edge = self._limit_key()
        if begin_key > edge or end_key > edge:
            raise Code(errors.KEY_OUTSIDE_LEGAL_RANGE)
        if begin_equal:
            begin_key += b"\0"
        if end_equal:
            end_key += b"\0"
        if begin_offset >= end_offset and begin_key >= end_key:
            return [], False
        low, high = begin_key, end_key
        to_begin = through_end = False
        if begin_offset != 1:
            low, to_begin, ran_off = self._resolve(begin_key, False, begin_offset, snapshot)
            if ran_off:
                through_end = True
        if end_offset != 1:
            high, ran_to_begin, through = self._resolve(end_key, False, end_offset, snapshot)
            through_end = through_end or through
            to_begin = to_begin or ran_to_begin
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
            self._add_range_conflict(
                begin_key, begin_offset, end_key, end_offset, rows, more, to_begin, through_end, reverse
            )
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

    def _add_range_conflict(
        self,
        begin_key: bytes,
        begin_offset: int,
        end_key: bytes,
        end_offset: int,
        rows: list[Row],
        more: bool,
        to_begin: bool,
        through_end: bool,
        reverse: bool,
    ) -> None:
        """The conflict range of a range read, as `RYWImpl::addConflictRange` computes it."""
        if begin_key < end_key:
            low, high = begin_key, end_key
            if reverse:
                if begin_offset <= 1 and more:
                    low = end_key
            elif end_offset > 0 and more:
                high = begin_key
        else:
            low, high = end_key, begin_key
        if to_begin and begin_offset <= 0:
            low = b""
        if through_end and end_offset > 0:
            high = self._limit_key()
        if rows:
            if reverse:
                low = min(low, rows[-1][0])
                if end_offset > 0 and high <= rows[0][0]:
                    high = rows[0][0] + b"\0"
            else:
                if begin_offset <= 0:
                    low = min(low, rows[0][0])
                if high <= rows[-1][0]:
                    high = rows[-1][0] + b"\0"
        self._add_read_range(low, high)

    # --- conflict ranges ---

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
        if begin > edge or end > edge:
            if begin.startswith(b"\xff\xff"):
                return
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

    def add_write_conflict_range(self, begin: bytes, end: bytes) -> None:
        if self.committing:
            self._defer(errors.USED_DURING_COMMIT)
            return
        edge = b"\xff\xff" if self.options.write_system else b"\xff"
        if begin > edge or end > edge:
            self._defer(errors.KEY_OUTSIDE_LEGAL_RANGE)
            return
        self._insert_write_range(begin, end)

    def _insert_write_range(self, begin: bytes, end: bytes) -> None:
        if begin >= end:
            return
        if len(end) == len(begin) + 1 and end[-1] == 0 and end.startswith(begin):
            if self.write_points is None:
                self.write_points = {begin}
            else:
                self.write_points.add(begin)
        else:
            self.write_ranges.append((begin, end))

    # --- mutations ---

    def _may_write(self, key: bytes, key_limit_applies: bool = True) -> bool:
        """Whether a mutation of `key` goes on; otherwise its error is deferred."""
        if self.committing:
            self._used_during_commit()
            self._defer(errors.USED_DURING_COMMIT)
            return False
        if self.deferred:
            return False
        if key >= (b"\xff\xff" if self.options.write_system else b"\xff"):
            self._defer(errors.KEY_OUTSIDE_LEGAL_RANGE)
            return False
        if key_limit_applies and len(key) > (SYSTEM_KEY_LIMIT if key.startswith(b"\xff") else KEY_LIMIT):
            self._defer(errors.KEY_TOO_LARGE)
            return False
        return True

    def _conflict_flag(self, key: bytes) -> None:
        """Record whether the write of `key` that follows conflicts."""
        if self.no_write_conflict:
            self.no_write_conflict = False
            if key not in self.writes or (self.unconflicted is not None and key in self.unconflicted):
                if self.unconflicted is None:
                    self.unconflicted = set()
                self.unconflicted.add(key)
        elif self.unconflicted is not None:
            self.unconflicted.discard(key)

    def set(self, key: bytes, value: bytes) -> None:
        """Set a key."""
        if self.plain and key < b"\xff" and len(key) <= KEY_LIMIT and len(value) <= VALUE_LIMIT:
            self.writes[key] = value
        else:
            self._set(key, value)

    def _set(self, key: bytes, value: bytes) -> None:
        if key.startswith(b"\xff\xff"):
            special_keys.set(self, key, value)
            return
        if key == METADATA_VERSION:
            self._defer(errors.CLIENT_INVALID_OPERATION)
            return
        if not self._may_write(key):
            return
        if len(value) > VALUE_LIMIT:
            self._defer(errors.VALUE_TOO_LARGE)
            return
        self._conflict_flag(key)
        overlay = self.overlay
        entry = overlay.writes.get(key)
        if isinstance(entry, Stack) and entry.unreadable:
            entry.push(atomics.SET, value)
        elif overlay.unreadable and any(begin <= key < end for begin, end in overlay.unreadable):
            stack = Stack(depends=False)
            stack.push(atomics.SET, value)
            stack.unreadable = True
            overlay.writes[key] = stack
        else:
            overlay.writes[key] = value
        self._trigger_watches(key, key + b"\0", value, known=True)

    def set_many(self, items: list[tuple[bytes, bytes]]) -> None:
        """Set many keys at once."""
        if not items:
            return
        batch = dict(items)
        fits = self.plain and max(batch) < b"\xff" and max(map(len, batch)) <= KEY_LIMIT
        if fits and max(map(len, batch.values())) <= VALUE_LIMIT:
            self.writes.update(batch)
            return
        for key, value in items:
            self.set(key, value)

    def clear(self, key: bytes) -> None:
        """Clear a key."""
        if self.plain and key < b"\xff" and len(key) <= KEY_LIMIT:
            self.writes[key] = None
        else:
            self._clear(key)

    def _clear(self, key: bytes) -> None:
        if key.startswith(b"\xff\xff"):
            special_keys.clear(self, key, key + b"\0")
            return
        if key == METADATA_VERSION:
            self._defer(errors.CLIENT_INVALID_OPERATION)
            return
        if not self._may_write(key, key_limit_applies=False):
            return
        if len(key) > (SYSTEM_KEY_LIMIT if key.startswith(b"\xff") else KEY_LIMIT):
            return
        self._conflict_flag(key)
        overlay = self.overlay
        if overlay.unreadable:
            overlay.unreadable = [part for item in overlay.unreadable for part in subtract(item, key, key + b"\0")]
        if overlay.stamped_keys:
            overlay.stamped_keys = [item for item in overlay.stamped_keys if item[0] != key]
        overlay.writes[key] = None
        self._trigger_watches(key, key + b"\0", None, known=True)

    def clear_many(self, keys: list[bytes]) -> None:
        """Clear many keys at once."""
        if keys and self.plain and max(keys) < b"\xff" and max(map(len, keys)) <= KEY_LIMIT:
            self.writes.update(dict.fromkeys(keys))
            return
        for key in keys:
            self.clear(key)

    def clear_range(self, begin: bytes, end: bytes) -> None:
        """Clear [begin, end)."""
        if begin.startswith(b"\xff\xff") and len(begin) > 2:
            special_keys.clear(self, begin, end)
            return
        if self.committing:
            self._used_during_commit()
            self._defer(errors.USED_DURING_COMMIT)
            return
        if self.deferred:
            return
        if begin > end:
            self._defer(errors.INVERTED_RANGE)
            return
        edge = b"\xff\xff" if self.options.write_system else b"\xff"
        if begin > edge or end > edge:
            self._defer(errors.KEY_OUTSIDE_LEGAL_RANGE)
            return
        conflicts = not self.no_write_conflict
        if self.no_write_conflict:
            self.no_write_conflict = False
        if begin == end:
            return
        gone = self.overlay.clear_range(begin, end)
        if conflicts:
            self.write_ranges.append((begin, end))
        for key in gone:
            if self.unconflicted is not None and key in self.unconflicted:
                self.unconflicted.discard(key)
            elif not conflicts:
                self._insert_write_range(key, key + b"\0")
        if self.watches:
            self._trigger_watches(begin, end, None, known=True)

    def atomic(self, operation: int, key: bytes, operand: bytes) -> None:
        """An atomic operation."""
        if operation not in atomics.KNOWN:
            self._defer(errors.INVALID_MUTATION_TYPE)
            return
        if key == METADATA_VERSION:
            if operation != atomics.SET_VERSIONSTAMPED_VALUE or operand != METADATA_OPERAND:
                self._defer(errors.CLIENT_INVALID_OPERATION)
                return
            self._stack(key, operation, operand)
            return
        if not self._may_write(key):
            return
        if len(operand) > VALUE_LIMIT:
            self._defer(errors.VALUE_TOO_LARGE)
            return
        if self.database.api_version >= 510:
            if operation == atomics.MIN:
                operation = atomics.MIN_V2
            elif operation == atomics.AND:
                operation = atomics.AND_V2
        try:
            if operation == atomics.SET_VERSIONSTAMPED_KEY:
                if self.database.api_version < 520:
                    key += b"\0\0"
                self._set_stamped_key(key, operand)
                return
            if operation == atomics.SET_VERSIONSTAMPED_VALUE:
                if self.database.api_version < 520:
                    operand += b"\0\0\0\0"
                atomics.stamp_offset(operand)
        except Code as error:
            self._defer(error.code)
            return
        self._conflict_flag(key)
        self._stack(key, operation, operand)

    def _stack(self, key: bytes, operation: int, operand: bytes) -> None:
        overlay = self.overlay
        entry = overlay.writes.get(key, overlay)
        unreadable = bool(overlay.unreadable) and any(begin <= key < end for begin, end in overlay.unreadable)
        if isinstance(entry, Stack):
            entry.push(operation, operand)
        elif (
            operation == atomics.SET_VERSIONSTAMPED_VALUE
            or unreadable
            or (entry is overlay and not overlay.cleared(key))
        ):
            stack = Stack(depends=entry is overlay and not overlay.cleared(key))
            if isinstance(entry, bytes):
                stack.push(atomics.SET, entry)
            stack.push(operation, operand)
            stack.unreadable = stack.unreadable or unreadable
            overlay.writes[key] = stack
            self.plain = False
        else:
            overlay.writes[key] = atomics.apply(operation, entry if isinstance(entry, bytes) else None, operand)
        self._trigger_watches(key, key + b"\0", None, known=False)

    def _set_stamped_key(self, key: bytes, value: bytes) -> None:
        at = atomics.stamp_offset(key)
        self.no_write_conflict = False
        body = key[:-4]
        version = self.snap.version + 1 if self.snap is not None else 0
        low = body[:at] + version.to_bytes(8, "big") + b"\0\0" + body[at + 10 :]
        high = min(body[:at] + b"\xff" * 10 + body[at + 10 :] + b"\0", self._limit_key())
        overlay = self.overlay
        overlay.unreadable.append((low, high))
        overlay.stamped_keys.append((low, key, value))
        self.plain = False

    # --- watches and versionstamps ---

    def watch(self, key: bytes) -> Future:
        """A future that ends when the key's value differs from what this transaction sees."""
        try:
            self._check()
            if self.options.ryw_disabled:
                return failed(errors.WATCHES_DISABLED)
            if key >= self._limit_key() and key != METADATA_VERSION:
                return failed(errors.KEY_OUTSIDE_LEGAL_RANGE)
            if len(key) > SYSTEM_KEY_LIMIT or (len(key) > KEY_LIMIT and not key.startswith(b"\xff")):
                return failed(errors.KEY_TOO_LARGE)
            value = self.get(key, False)
            self.engine.watches.reserve(self.database)
        except Code as error:
            return failed(error.code)
        future = Future()
        if self.watches is None:
            self.watches = []
        self.watches.append((key, value, future))
        self.plain = False
        return future

    def _trigger_watches(self, begin: bytes, end: bytes, value: bytes | None, known: bool) -> None:
        """A later write of this same transaction ends a watch at once when it is known to change the value."""
        if not self.watches or not known:
            return
        kept = []
        for item in self.watches:
            if begin <= item[0] < end and item[1] != value:
                item[2].set()
                self.engine.watches.forget(self.database)
            else:
                kept.append(item)
        self.watches = kept

    def get_versionstamp(self) -> Future:
        """A future of the ten bytes that stamped operations of this transaction get."""
        if self.committing:
            return failed(errors.USED_DURING_COMMIT)
        if self.dead:
            return failed(self.dead)
        future = Future(self._kick_commit)
        if self.stamp_futures is None:
            self.stamp_futures = []
        self.stamp_futures.append(future)
        return future

    def _kick_commit(self, block: bool) -> None:
        future = self.commit_future
        if future is not None and not future.done and future.kick is not None:
            future.kick(block)

    # --- commit ---

    @property
    def read_only(self) -> bool:
        return not (
            self.overlay.writes
            or self.overlay.clears
            or self.overlay.stamped_keys
            or self.write_ranges
            or self.write_points
        )

    def written_points(self) -> Iterable[bytes]:
        """The keys that conflict as written."""
        points: Iterable[bytes] = self.overlay.writes
        if self.unconflicted:
            points = [key for key in points if key not in self.unconflicted]
        if self.write_points:
            points = self.write_points.union(points)
        return points

    def size(self) -> int:
        """Bytes of mutations and conflict ranges, as they count against the limit."""
        writes = self.overlay.writes
        total = sum(map(len, writes)) * 3 + len(writes) * (MUTATION_COST + CONFLICT_COST)
        for value in writes.values():
            if value is not None:
                total += (
                    sum(len(o) + MUTATION_COST for _, o in value.operations) if isinstance(value, Stack) else len(value)
                )
        for begin, end in self.overlay.clears:
            total += len(begin) + len(end) + MUTATION_COST
        for _, key, value in self.overlay.stamped_keys:
            total += 3 * len(key) + len(value) + MUTATION_COST + CONFLICT_COST
        for begin, end in self.write_ranges:
            total += len(begin) + len(end) + CONFLICT_COST
        for key in self.write_points or ():
            total += 2 * len(key) + CONFLICT_COST
        for begin, end in self.read_ranges:
            total += len(begin) + len(end) + CONFLICT_COST
        for key in self.read_points or ():
            total += 2 * len(key) + CONFLICT_COST
        return total

    def commit(self) -> Future:
        """Hand the transaction to the committer. Whoever waits for the future does the work."""
        if self.deferred or self.committing or self.dead or self.options.timeout:
            try:
                self._check()
            except Code as error:
                return failed(error.code)
        self.committing = True
        self.plain = False
        if self.read_only:
            future = self.commit_future = ready()
            self._finish_read_only()
            return future
        limit = self.options.size_limit
        small = len(self.writes) < 80 and limit >= 10_000_000 and not self.read_ranges and not self.read_points
        if not small and self.size() > limit:
            self.settle_failure(errors.TRANSACTION_TOO_LARGE)
            future = self.commit_future = failed(errors.TRANSACTION_TOO_LARGE)
            return future
        self._prepare_commit()
        if self.database.faulty is not None:
            return self.database.faulty.submit(self)
        return self.engine.committer.submit(self)

    def _prepare_commit(self) -> None:
        """Fix what the commit is validated at, and the idempotency id."""
        snap = self.snap
        self.read_at = self.wanted_version if snap is None else snap.version
        automatic = self.automatic_id or self.options.automatic_idempotency
        if automatic or self.given_id is not None:
            self.idempotency_id = self.given_id or os.urandom(16)
            self.id_ends = automatic
            if self.read_at is None:
                # a blind write is validated too, against what fences it from now on: any later version is higher
                self.read_at = self.engine.store.clock.now() - 1
            point = idempotency.SELF_CONFLICT + self.idempotency_id
            self._insert_point(point)
            if not automatic:
                # two transactions in flight with one id of a caller's exclude each other; automatic ids are never shared
                self.write_points = {point} if self.write_points is None else self.write_points | {point}

    def writes_ids(self) -> bool:
        """Whether the transaction changes the rows of idempotency ids."""
        if not self.options.write_system:
            return False
        return any(key.startswith(idempotency.IDS) for key in self.writes) or any(
            begin < idempotency.IDS_END and end > idempotency.IDS for begin, end in self.overlay.clears
        )

    def _finish_read_only(self) -> None:
        stamps, self.stamp_futures = self.stamp_futures, None
        for future in stamps or ():
            future.set(None, errors.NO_COMMIT_VERSION)
        self._start_watches()
        self._release()

    def _start_watches(self) -> None:
        watches, self.watches = self.watches, None
        if watches:
            self.engine.watches.add(self.database, watches)

    def settle_success(self, version: int, index: int) -> None:
        """The committer's answer, before it finishes the future."""
        self.committed_version = version
        self.batch_index = index
        stamps, self.stamp_futures = self.stamp_futures, None
        if stamps:
            stamp = version.to_bytes(8, "big") + index.to_bytes(2, "big")
            for future in stamps:
                future.set(stamp)
        self._start_watches()
        self._release()

    def settle_failure(self, code: int) -> None:
        """The commit failed, or its outcome isn't known."""
        self._fail_pending(errors.TRANSACTION_INVALID_VERSION, code)
        self._release()

    # --- retrying ---

    def on_error(self, code: int) -> Future:
        """Back off and start afresh when `code` may be retried; otherwise the future fails with it."""
        if self.dead:
            return failed(self.dead)
        deadline = self.options.deadline(self.created)
        if deadline and time.monotonic() >= deadline:
            self.fail(errors.TRANSACTION_TIMED_OUT)
            return failed(errors.TRANSACTION_TIMED_OUT)
        limit = self.options.retry_limit
        hit = limit >= 0 and self.retries >= limit
        self.retries += 1
        if hit or code not in errors.RETRYABLE_ON_ERROR:
            self.dead = errors.TRANSACTION_CANCELLED
            self.plain = False
            self._fail_pending(errors.TRANSACTION_CANCELLED, errors.TRANSACTION_CANCELLED)
            if self.database.api_version < 610:
                self._restart_for_retry()
            return failed(code)
        delay = self.backoff * random.random()
        self.backoff = min(self.options.max_retry_delay, self.backoff * 2)
        self._fail_pending(errors.TRANSACTION_CANCELLED, errors.TRANSACTION_CANCELLED)
        self._release()
        return self._retry_after(delay, deadline)

    def _retry_after(self, delay: float, deadline: float) -> Future:
        due = time.monotonic() + delay

        def kick(block: bool) -> None:
            now = time.monotonic()
            if block:
                until = min(due, deadline) if deadline else due
                if until > now:
                    future.wait_until(until - now)
                finish()
            elif not future.done:
                self.engine.housekeeper.call_at(due, finish)

        def finish() -> None:
            if future.done:
                return
            if deadline and time.monotonic() >= deadline:
                self.fail(errors.TRANSACTION_TIMED_OUT)
                return
            self._restart_for_retry()
            future.set()

        future = Future(kick)
        self.commit_future = future  # cancel, reset and use meanwhile end it
        return future

    def _restart_for_retry(self) -> None:
        self.options = self.options.after_retry(self.database)
        self._restart()

    # --- the rest ---

    def approximate_size(self) -> int:
        self._check()
        return self.size()
