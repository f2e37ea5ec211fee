"""Mutations of a transaction: into its overlay, with the conflict ranges they leave."""

from __future__ import annotations

from . import atomics, errors, idempotency, special_keys
from .errors import Code
from .overlay import Stack, subtract
from .reading import Reading
from .state import (
    CONFLICT_COST,
    KEY_LIMIT,
    METADATA_OPERAND,
    METADATA_VERSION,
    MUTATION_COST,
    SYSTEM_KEY_LIMIT,
    VALUE_LIMIT,
)


class Writing(Reading):
    """Mutations never raise: as in the C client, their first error is kept for the next read or commit."""

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
        if begin.startswith(b"\xff\xff") and end.startswith(b"\xff\xff"):
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
        if key == METADATA_VERSION:
            if operation != atomics.SET_VERSIONSTAMPED_VALUE or operand != METADATA_OPERAND:
                self._defer(errors.CLIENT_INVALID_OPERATION)
                return
            self._stack(key, operation, operand)
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
            stack.unknown = unreadable and operation != atomics.SET_VERSIONSTAMPED_VALUE
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
        overlay = self.overlay
        overlay.hide(low, high)
        overlay.stamped_keys.append((low + key[-4:], key, value))
        self.plain = False

    def _trigger_watches(self, begin: bytes, end: bytes, value: bytes | None, known: bool) -> None:
        """A later write of this same transaction ends a watch at once when it is known to change the value."""
        if not self.watches or not known:
            return
        kept = []
        for watch in self.watches:
            if begin <= watch.key < end and watch.expected != value:
                watch.set()
            else:
                kept.append(watch)
        self.watches = kept

    def writes_ids(self) -> bool:
        """Whether the transaction changes the rows of idempotency ids."""
        return any(key.startswith(idempotency.IDS) for key in self.writes) or any(
            begin < idempotency.IDS_END and end > idempotency.IDS for begin, end in self.overlay.clears
        )

    @property
    def read_only(self) -> bool:
        return not (
            self.overlay.writes
            or self.overlay.clears
            or self.overlay.stamped_keys
            or self.write_ranges
            or self.write_points
        )

    def size(self) -> int:
        """Bytes of mutations and conflict ranges, as they count against the limit."""
        writes = self.overlay.writes
        total = sum(map(len, writes)) * 3 + len(writes) * (MUTATION_COST + CONFLICT_COST)
        for value in list(writes.values()):  # another thread may be writing
            if value is not None:
                total += (
                    sum(len(o) + MUTATION_COST for _, o in value.operations) if isinstance(value, Stack) else len(value)
                )
        for key in self.unconflicted or ():
            total -= 2 * len(key) + CONFLICT_COST
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
