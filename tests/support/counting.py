"""What transactions ask of a database, counted in the engine: keys and bytes read and written, conflict ranges, watches."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fdb_embedded.transaction import handles
from fdb_embedded.transaction.transaction import Transaction
from mainspring.size.costs import Cost


class Tally:
    """What was asked since it began."""

    def __init__(self) -> None:
        self.transactions = self.commits = self.watches = 0
        self.calls = 0
        """Reads that were asked for: of a key, of many keys at once, of a page of a range."""
        self.read = self.read_bytes = self.written = self.written_bytes = self.conflicts = 0
        self.keys: Counter[bytes] = Counter()
        """How often each key was written."""

    def without(self, other: Tally) -> Tally:
        for name in Cost._fields:
            setattr(self, name, getattr(self, name) - getattr(other, name))
        return self

    def cost(self) -> Cost:
        return Cost(
            self.transactions,
            self.commits,
            self.read,
            self.read_bytes,
            self.written,
            self.written_bytes,
            self.conflicts,
            self.watches,
        )


class Counted:
    """A database that counts the transactions made by it."""

    def __init__(self, db: Any, *, but_by: str = "") -> None:
        """`but_by`: the name of a thread of which none counts."""
        self._db = db
        self._but_by = but_by
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def create_transaction(self) -> Any:
        self.count += threading.current_thread().name != self._but_by
        return self._db.create_transaction()


@contextmanager
def counted(db: Any) -> Iterator[Tally]:
    """What all transactions of this process on a database ask meanwhile that are begun meanwhile."""
    engine = db.dpointer.engine
    tally, lock = Tally(), threading.Lock()

    class Counting(Transaction):
        asked = False

        def get(self, key: bytes, snapshot: bool) -> Any:
            return self._read(super().get(key, snapshot), 1)

        def get_many(self, keys: list[bytes], snapshot: bool) -> Any:
            found = super().get_many(keys, snapshot)
            with lock:
                tally.calls += 1
                tally.read += len(keys)
                tally.read_bytes += sum(len(one) for one in found if one is not None)
            self._begin()
            return found

        def get_range(self, *arguments: Any, **named: Any) -> Any:
            rows = super().get_range(*arguments, **named)
            found = rows[0] if isinstance(rows, tuple) else rows
            with lock:
                tally.calls += 1
                tally.read += max(1, len(found))
                tally.read_bytes += sum(len(key) + len(value) for key, value in found)
            self._begin()
            return rows

        def get_key(self, *arguments: Any, **named: Any) -> Any:
            return self._read(super().get_key(*arguments, **named), 1)

        def _read(self, found: Any, keys: int) -> Any:
            with lock:
                tally.calls += 1
                tally.read += keys
                tally.read_bytes += len(found or b"")
            self._begin()
            return found

        def _begin(self) -> None:
            if not self.asked:
                self.asked = True
                with lock:
                    tally.transactions += 1

        def _wrote(self, key: bytes, size: int) -> None:
            with lock:
                tally.written += 1
                tally.written_bytes += len(key) + size
                tally.keys[key] += 1

        def set(self, key: bytes, value: bytes) -> None:
            super().set(key, value)
            self._wrote(key, len(value))

        def set_many(self, items: list[tuple[bytes, bytes]]) -> None:
            super().set_many(items)
            for key, value in items:
                self._wrote(key, len(value))

        def clear(self, key: bytes) -> None:
            super().clear(key)
            self._wrote(key, 0)

        def clear_many(self, keys: list[bytes]) -> None:
            super().clear_many(keys)
            for key in keys:
                self._wrote(key, 0)

        def clear_range(self, begin: bytes, end: bytes) -> None:
            super().clear_range(begin, end)
            self._wrote(begin, len(end))

        def atomic(self, operation: int, key: bytes, operand: bytes) -> None:
            super().atomic(operation, key, operand)
            self._wrote(key, len(operand))

        def watch(self, key: bytes) -> Any:
            with lock:
                tally.watches += 1
            return super().watch(key)

        def commit(self) -> Any:
            ranges = len(self.read_points or ()) + len(self.read_ranges)
            writes = bool(self.overlay.writes) or bool(self.write_ranges)
            if writes:
                self._begin()
                with lock:
                    tally.commits += 1
                    tally.conflicts += ranges
            return super().commit()

    real = handles.Database.transaction

    def transaction(self: Any) -> Any:
        made = real(self)  # raises where the database is closed
        return Counting(self) if self.engine is engine else made

    handles.Database.transaction = transaction  # type: ignore[method-assign]
    try:
        yield tally
    finally:
        handles.Database.transaction = real  # type: ignore[method-assign]
