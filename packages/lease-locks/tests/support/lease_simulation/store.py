"""FoundationDB in small: strict serializability by conflict ranges, versionstamps, versions that follow time and jump."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


class Value:
    def __init__(self, value: bytes | None) -> None:
        self.value = value

    def present(self) -> bool:
        return self.value is not None


@dataclass(frozen=True, slots=True)
class Row:
    key: bytes
    value: bytes


class Store:
    """The committed rows and, for conflict checks, the ranges that recent commits wrote."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.rows: dict[bytes, bytes] = {}
        self.version = 1_000
        self.ahead = 0  # by how much versions ran ahead of time, by jumps
        self.commits: list[tuple[int, list[tuple[bytes, bytes]]]] = []

    def at(self, now: float) -> None:
        """Versions follow time, about a million a second."""
        self.version = max(self.version, int(now * 1_000_000) + 1_000 + self.ahead)

    def put(self, key: bytes, value: bytes) -> None:
        if key not in self.rows:
            bisect.insort(self.keys, key)
        self.rows[key] = value

    def drop(self, begin: bytes, end: bytes) -> None:
        low, high = bisect.bisect_left(self.keys, begin), bisect.bisect_left(self.keys, end)
        for key in self.keys[low:high]:
            del self.rows[key]
        del self.keys[low:high]

    def scan(self, begin: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        low, high = bisect.bisect_left(self.keys, begin), bisect.bisect_left(self.keys, end)
        return [(key, self.rows[key]) for key in self.keys[low:high]]

    def conflicts(self, transaction: Transaction) -> bool:
        for version, written in reversed(self.commits):
            if version <= transaction.read_version:
                return False
            for begin, end in transaction.reads:
                if any(begin < e and b < end for b, e in written):
                    return True
        return False

    def commit(self, transaction: Transaction) -> list[bytes] | None:
        """Apply it; the keys it changed, or None where it conflicts."""
        if self.conflicts(transaction):
            return None
        self.version += 1
        stamp = self.version.to_bytes(8, "big") + b"\x00\x00"
        written = list(transaction.writes)
        changed: list[bytes] = []
        for kind, key, value in transaction.operations:
            if kind == "range":
                changed += [k for k, _ in self.scan(key, value)]
                self.drop(key, value)
                written.append((key, value))
                continue
            if kind == "key":
                place = int.from_bytes(key[-4:], "little")
                key = key[:place] + stamp + key[place + 10 : -4]
            elif kind == "value":
                place = int.from_bytes(value[-4:], "little")
                value = value[:place] + stamp + value[place + 10 : -4]
            elif kind == "add":
                old = int.from_bytes(self.rows.get(key, b""), "little")
                value = (old + int.from_bytes(value, "little")).to_bytes(8, "little")
            self.put(key, value)
            changed.append(key)
            written.append((key, key + b"\x00"))
        self.commits.append((self.version, written))
        del self.commits[:-4096]
        return changed


class Transaction:
    """What the transitions use of the binding's transaction. The body runs at one instant, the commit comes later."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.read_version = store.version
        self.reads: list[tuple[bytes, bytes]] = []
        self.writes: list[tuple[bytes, bytes]] = []
        self.operations: list[tuple[str, bytes, bytes]] = []
        self.snapshot = Snapshot(self)

    def look(self, begin: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        rows = dict(self._store.scan(begin, end))
        for kind, key, value in self.operations:
            # As the real thing's error 1036: what a versionstamp will complete can't be read in its transaction.
            if kind == "value":
                assert not begin <= key < end, f"a row that its transaction completes later is read: {key!r}"
            elif kind == "key":
                low = key[:-16]
                assert not (low < end and begin < low + b"\xff" * 11), f"a row without its key yet is read: {low!r}"
            if kind == "set" and begin <= key < end:
                rows[key] = value
            elif kind == "range":
                for known in [k for k in rows if key <= k < value]:
                    del rows[known]
        return sorted(rows.items())

    def _read(self, begin: bytes, end: bytes, limit: int, reverse: bool) -> list[tuple[bytes, bytes]]:
        rows = self.look(begin, end)
        if reverse:
            rows.reverse()
        return rows[:limit] if limit else rows

    def get(self, key: bytes) -> Value:
        self.add_read_conflict_key(key)
        return self.snapshot.get(key)

    def get_range(
        self, begin: bytes, end: bytes, limit: int = 0, reverse: bool = False, mode: Any = None
    ) -> Iterator[Row]:
        # All of what was asked for, even beyond the rows returned: stricter than the real thing.
        self.add_read_conflict_range(begin, end)
        return self.snapshot.get_range(begin, end, limit, reverse)

    def get_read_version(self) -> Any:
        return _Ready(self.read_version)

    def set(self, key: bytes, value: bytes) -> None:
        self.operations.append(("set", key, value))

    def clear(self, key: bytes) -> None:
        self.operations.append(("range", key, key + b"\x00"))

    def clear_range(self, begin: bytes, end: bytes) -> None:
        self.operations.append(("range", begin, end))

    def add(self, key: bytes, value: bytes) -> None:
        self.operations.append(("add", key, value))

    def set_versionstamped_key(self, key: bytes, value: bytes) -> None:
        self.operations.append(("key", key, value))

    def set_versionstamped_value(self, key: bytes, value: bytes) -> None:
        self.operations.append(("value", key, value))

    def add_read_conflict_key(self, key: bytes) -> None:
        self.reads.append((key, key + b"\x00"))

    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        self.reads.append((begin, end))

    def add_write_conflict_key(self, key: bytes) -> None:
        self.writes.append((key, key + b"\x00"))

    @property
    def read_only(self) -> bool:
        return not self.operations and not self.writes


class Snapshot:
    def __init__(self, tr: Transaction) -> None:
        self._tr = tr

    def get(self, key: bytes) -> Value:
        rows = self._tr.look(key, key + b"\x00")
        return Value(rows[0][1] if rows else None)

    def get_range(
        self, begin: bytes, end: bytes, limit: int = 0, reverse: bool = False, mode: Any = None
    ) -> Iterator[Row]:
        return (Row(k, v) for k, v in self._tr._read(begin, end, limit, reverse))


class _Ready:
    def __init__(self, value: int) -> None:
        self._value = value

    def wait(self) -> int:
        return self._value
