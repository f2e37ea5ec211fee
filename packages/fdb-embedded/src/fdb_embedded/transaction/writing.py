"""Mutations of a transaction: into its overlay, with the conflict ranges they leave."""

from __future__ import annotations

import bisect
import contextlib

from .. import errors
from ..errors import Code
from ..pure import atomics, idempotency
from ..pure.conflict import Range, merge_ranges
from ..pure.keys import KEY_LIMIT, READ_KEY_LIMIT, clipped, key_limit
from ..pure.overlay import Stack
from ..pure.write_map import CONFLICT_COST, MUTATION_COST
from . import special_keys
from .reading import Reading
from .state import (
    METADATA_OPERAND,
    METADATA_VERSION,
    SET_COST,
    VALUE_LIMIT,
)


class Writing(Reading):
    """Mutations never raise: as in the C client, their first error is kept for the next read or commit."""

    def add_write_conflict_range(self, begin: bytes, end: bytes) -> None:
        if self.deferred:
            return
        if self.committing:
            self._used_during_commit()
            self._defer(errors.USED_DURING_COMMIT)
            return
        edge = b"\xff\xff" if self.options.write_system else b"\xff"
        if begin > edge or end > edge:
            self._defer(errors.KEY_OUTSIDE_LEGAL_RANGE)
            return
        begin, end = clipped(begin), clipped(end)
        if begin >= end:
            return
        self.approximate += len(begin) + len(end) + CONFLICT_COST
        if self.history is None:
            self.cut = True
        else:
            self.history.append(lambda map: map.add_conflict(begin, end))
        self._insert_write_range(begin, end)

    def _insert_write_range(self, begin: bytes, end: bytes) -> None:
        if begin >= end:
            return
        if len(end) == len(begin) + 1 and end[-1] == 0 and end.startswith(begin):
            points = self.write_points
            if points is None:
                points = self._own("write_points", set())
            points.add(begin)
        else:
            self.write_ranges.append((begin, end))

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
        if key_limit_applies and len(key) > KEY_LIMIT and len(key) > self._write_key_limit(key):
            self._defer(errors.KEY_TOO_LARGE)
            return False
        return True

    def _write_key_limit(self, key: bytes) -> int:
        return key_limit(key) if key.startswith(b"\xff") or self.options.raw_access else KEY_LIMIT

    def _conflict_flag(self, key: bytes) -> None:
        """Record whether the write of `key` that follows conflicts."""
        if self.no_write_conflict:
            self.no_write_conflict = False
            if key not in self.writes or (self.unconflicted is not None and key in self.unconflicted):
                if self.unconflicted is None:
                    self._own("unconflicted", set[bytes]())
                self.unconflicted.add(key)  # type: ignore[union-attr]
        elif self.unconflicted is not None:
            self.unconflicted.discard(key)

    def set(self, key: bytes, value: bytes) -> None:
        """Set a key."""
        if self.plain and key < b"\xff" and len(key) <= KEY_LIMIT and len(value) <= VALUE_LIMIT:
            self.approximate += 3 * len(key) + len(value) + SET_COST
            self.writes[key] = value
        else:
            self._set(key, value)

    def _set(self, key: bytes, value: bytes) -> None:
        if special_keys.BEGIN <= key < special_keys.END:
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
        self._count_write(key, key, value, atomics.SET)
        self._conflict_flag(key)
        overlay = self.overlay
        entry = overlay.writes.get(key)
        if isinstance(entry, Stack) and entry.unreadable:
            entry.push(atomics.SET, value)
        else:
            overlay.writes[key] = value
        self._trigger_watches(key, key + b"\0", value, known=True)

    def set_many(self, items: list[tuple[bytes, bytes]]) -> None:
        """Set many keys at once."""
        if not items:
            return
        batch = dict(items)
        keys = batch if len(batch) == len(items) else [key for key, _ in items]
        values = batch.values() if len(batch) == len(items) else [value for _, value in items]
        fits = self.plain and max(batch) < b"\xff" and max(map(len, batch)) <= KEY_LIMIT
        if fits and max(map(len, batch.values())) <= VALUE_LIMIT:
            self.approximate += 3 * sum(map(len, keys)) + sum(map(len, values)) + SET_COST * len(items)
            self.writes.update(batch)
            return
        for key, value in items:
            self.set(key, value)

    def clear(self, key: bytes) -> None:
        """Clear a key."""
        if self.plain and key < b"\xff" and len(key) <= KEY_LIMIT:
            self.approximate += 4 * len(key) + 2 + 2 * CONFLICT_COST
            self.writes[key] = None
        else:
            self._clear(key)

    def _clear(self, key: bytes) -> None:
        if special_keys.BEGIN <= key < special_keys.END and not self.committing:
            special_keys.clear(self, key, key + b"\0")
            return
        if not self._may_write(key, key_limit_applies=False):
            return
        if len(key) > READ_KEY_LIMIT and len(key) > key_limit(key):
            self.no_write_conflict = False
            return
        quiet = self.no_write_conflict
        size = 2 * len(key) + 1
        if self.options.ryw_disabled:
            self.uncounted += size + MUTATION_COST + (0 if quiet else size + CONFLICT_COST)
        else:
            self.approximate += size + CONFLICT_COST + (0 if quiet else size + CONFLICT_COST)
        if self.history is not None:
            self.history.append(lambda map: map.clear(key, key + b"\0", not quiet))
        self._conflict_flag(key)
        overlay = self.overlay
        overlay.uncover(key, key + b"\0")
        overlay.writes[key] = None
        self._trigger_watches(key, key + b"\0", None, known=True)

    def clear_many(self, keys: list[bytes]) -> None:
        """Clear many keys at once."""
        if keys and self.plain and max(keys) < b"\xff" and max(map(len, keys)) <= KEY_LIMIT:
            self.approximate += 4 * sum(map(len, keys)) + (2 + 2 * CONFLICT_COST) * len(keys)
            self.writes.update(dict.fromkeys(keys))
            return
        for key in keys:
            self.clear(key)

    def clear_range(self, begin: bytes, end: bytes) -> None:
        """Clear [begin, end)."""
        if self.deferred:
            return
        if begin > end:
            self._defer(errors.INVERTED_RANGE)
            return
        quiet, self.no_write_conflict = self.no_write_conflict, False
        if self.committing:
            self._used_during_commit()
            self._defer(errors.USED_DURING_COMMIT)
            return
        if begin >= special_keys.BEGIN and end <= special_keys.END:
            special_keys.clear(self, begin, end)
            return
        edge = b"\xff\xff" if self.options.write_system else b"\xff"
        if begin > edge or end > edge:
            self._defer(errors.KEY_OUTSIDE_LEGAL_RANGE)
            return
        conflicts = not quiet
        self.approximate += (len(begin) + len(end)) * (2 if conflicts else 1) + MUTATION_COST
        self.approximate += CONFLICT_COST if conflicts else 0
        begin, end = clipped(begin), clipped(end)
        if begin >= end:
            return
        if self.history is not None:
            self.history.append(lambda map: map.clear(begin, end, conflicts))
        gone = self.overlay.clear_range(begin, end)
        if conflicts:
            self.write_ranges.append((begin, end))
        else:
            (self.unconflicted_clears or self._own("unconflicted_clears", list[Range]())).append((begin, end))
        for key in gone:
            if self.unconflicted is not None and key in self.unconflicted:
                self.unconflicted.discard(key)
            elif not conflicts:
                self._insert_write_range(key, key + b"\0")
        if self.promises is not None:
            self._trigger_watches(begin, end, None, known=True)

    def atomic(self, operation: int, key: bytes, operand: bytes) -> None:
        """An atomic operation."""
        if key == METADATA_VERSION and not self.committing and not self.deferred:
            if operation != atomics.SET_VERSIONSTAMPED_VALUE or operand != METADATA_OPERAND:
                self._defer(errors.CLIENT_INVALID_OPERATION)
                return
            self._atomic(operation, key, operand)
            return
        if not self._may_write(key, key_limit_applies=False):
            return
        if operation not in atomics.KNOWN:
            self._defer(errors.INVALID_MUTATION_TYPE)
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
        self._atomic(operation, key, operand)

    def _atomic(self, operation: int, key: bytes, operand: bytes) -> None:
        if self.history is None and operation in (atomics.SET_VERSIONSTAMPED_VALUE, atomics.COMPARE_AND_CLEAR):
            self._noted()
        self._count_write(key, key, operand, operation)
        self._conflict_flag(key)
        self._stack(key, operation, operand)

    def _count_write(self, key: bytes, named: bytes, operand: bytes, operation: int) -> None:
        """Count a set or an atomic operation, and note it where reads depend on it; `named` is the key that conflicts."""
        conflicts = not self.no_write_conflict and operation != atomics.SET_VERSIONSTAMPED_KEY
        self.approximate += len(key) + len(operand) + MUTATION_COST
        if conflicts:
            self.approximate += 2 * len(named) + 1 + CONFLICT_COST
        if self.history is not None:
            self.history.append(lambda map: map.mutate(key, operation, operand, conflicts))

    def _stack(self, key: bytes, operation: int, operand: bytes) -> None:
        overlay = self.overlay
        entry = overlay.writes.get(key, overlay)
        if isinstance(entry, Stack):
            entry.push(operation, operand)
        elif operation == atomics.SET_VERSIONSTAMPED_VALUE or (entry is overlay and not overlay.cleared(key)):
            stack = Stack(depends=entry is overlay and not overlay.cleared(key))
            if isinstance(entry, bytes):
                stack.push(atomics.SET, entry)
            stack.push(operation, operand)
            overlay.writes[key] = stack
            self.plain = False
        else:
            overlay.writes[key] = atomics.apply(operation, entry if isinstance(entry, bytes) else None, operand)
        self._trigger_watches(key, key + b"\0", None, known=False)

    def _set_stamped_key(self, key: bytes, value: bytes) -> None:
        at = atomics.stamp_offset(key)
        self.no_write_conflict = False
        body = key[:-4]
        low = body[:at] + self.lowest_stamp() + body[at + 10 :]
        high = min(body[:at] + b"\xff" * 10 + body[at + 10 :] + b"\0", self._limit_key())
        self._noted()
        if low < high:
            self._noted().append(lambda map: map.hide(low, high))
        self._count_write(low + key[-4:], key, value, atomics.SET_VERSIONSTAMPED_KEY)
        item = (low + key[-4:], key, value)
        if self.options.ryw_disabled:
            self.overlay.send(item)
        else:
            self.overlay.stamp(item, low, high)
        (self.stamped_parameters or self._own("stamped_parameters", list[bytes]())).append(key)
        self.plain = False

    def _trigger_watches(self, begin: bytes, end: bytes, value: bytes | None, known: bool) -> None:
        """A later write of this same transaction ends a watch at once when it is known to change the value."""
        promises = self.promises
        if promises is None or not known:
            return
        for watch in promises.watches.copy():
            if begin <= watch.key < end and watch.expected != value:
                watch.set()
                with contextlib.suppress(ValueError):  # the commit, or another thread, has taken it
                    promises.watches.remove(watch)

    def writes_ids(self) -> bool:
        """Whether the transaction changes the rows of idempotency ids."""
        return any(key.startswith(idempotency.IDS) for key in list(self.writes)) or any(
            begin < idempotency.IDS_END and end > idempotency.IDS for begin, end in self.overlay.clears.copy()
        )

    @property
    def read_only(self) -> bool:
        return not (
            self.overlay.writes or self.overlay.clears or self.overlay.stamped or self.write_ranges or self.write_points
        )

    def size(self) -> int:
        """Bytes of the commit's mutations and conflict ranges, as they count against the limit."""
        if self.options.ryw_disabled:
            return self.approximate + self.uncounted
        reads = [(key, key + b"\0") for key in list(self.read_points or ())]
        total = 0
        for begin, end in merge_ranges([*self.read_ranges, *reads]):
            total += len(clipped(begin)) + len(clipped(end)) + CONFLICT_COST
        if self.history is not None:
            return total + self._client_view().map.size()
        overlay = self.overlay
        writes = overlay.writes.copy()  # another thread may be writing
        gone: list[Range] = overlay.clears.copy()
        for key, entry in writes.items():
            if entry is None:
                gone.append((key, key + b"\0"))
            elif isinstance(entry, Stack):
                total += sum(len(key) + len(operand) + MUTATION_COST for operand in entry.operands())
            else:
                total += len(key) + len(entry) + MUTATION_COST
        kept = sorted(key for key, entry in writes.items() if entry is not None)
        for begin, end in merge_ranges(gone):
            at = begin
            for key in kept[bisect.bisect_left(kept, begin) : bisect.bisect_left(kept, end)]:
                if at < key:  # it is cleared up to what is written, and from there
                    total += len(at) + len(key) + MUTATION_COST
                at = key + b"\0"
            if at < end:
                total += len(at) + len(end) + MUTATION_COST
        points = [(key, key + b"\0") for key in self.written_points(writes)]
        ranges = merge_ranges([*self.write_ranges, *points])
        return total + sum(len(begin) + len(end) + CONFLICT_COST for begin, end in ranges)
