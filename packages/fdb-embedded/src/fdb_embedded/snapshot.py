"""A read version and the LMDB read transaction that shows it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import lmdb

from . import errors, idempotency, keys
from .errors import Code
from .keys import Row
from .scan import scan
from .versions import MAX_READ_AGE, VERSIONS_PER_SECOND, last_version

if TYPE_CHECKING:
    from .engine import Engine

MAX_AGE = MAX_READ_AGE / VERSIONS_PER_SECOND
FIRST_CHUNK = 64
LARGEST_CHUNK = 4096


class Snapshot:
    """Reads at `version`. LMDB may show a later version `shown`: then a key written in between can't be read (1007).

    That happens when a version is asked for that nobody holds open, and when the map had to grow under a snapshot.
    """

    __slots__ = ("base", "born", "ended", "engine", "shown", "txn", "users", "version")

    def __init__(self, engine: Engine, txn: Any, version: int, shown: int) -> None:
        self.engine = engine
        self.txn = txn
        self.version = version
        self.shown = shown
        self.born = time.monotonic()
        self.base = engine.store.clock.base
        self.ended = False
        self.users = 1

    def young(self) -> bool:
        """Whether it was taken less than five seconds ago, however old the newest version was then."""
        same_clock = self.base == self.engine.store.clock.base  # versions haven't jumped ahead since
        return same_clock and self.shown == self.version and time.monotonic() - self.born <= MAX_AGE

    def end(self) -> None:
        """Nobody may read here any more: too old, or released."""
        self.ended = True
        txn, self.txn = self.txn, None
        if txn is not None:
            txn.abort()

    def _renew(self) -> None:
        """The LMDB transaction was invalidated by a growing map: take another and remember that it is later."""
        if self.ended:
            raise Code(errors.TRANSACTION_TOO_OLD)
        self.txn = self.engine.store.begin_read()
        with contextlib.suppress(lmdb.Error):  # the map may grow again: then whoever reads comes here again
            if self.engine.flushing:
                self.engine.await_flush(self.txn)
            self.shown = last_version(self.txn)

    def _unchanged(self, begin: bytes, end: bytes) -> None:
        if self.engine.written_between(self.version, self.shown, begin, end):
            raise Code(errors.TRANSACTION_TOO_OLD)

    def get(self, key: bytes) -> bytes | None:
        """The value of `key` at this version."""
        for _ in range(8):
            txn = self.txn
            if txn is None:
                break
            try:
                value = txn.get(key) if 0 < len(key) <= keys.DIRECT else keys.get(txn, key)
            except lmdb.Error:
                if self.txn is txn:
                    self._renew()
                continue
            if self.shown != self.version:
                self._unchanged(key, key + b"\0")
            return value
        raise Code(errors.TRANSACTION_TOO_OLD)

    def get_many(self, wanted: list[bytes]) -> list[bytes | None]:
        """The values of many keys of 1 to 510 bytes."""
        if self.shown == self.version and self.txn is not None:
            try:
                return list(map(self.txn.get, wanted))
            except (lmdb.Error, AttributeError):
                pass
        return [self.get(key) for key in wanted]

    def rows(self, begin: bytes, end: bytes, limit: int, reverse: bool) -> list[Row]:
        """At most `limit` rows of [begin, end)."""
        for _ in range(8):
            txn = self.txn
            if txn is None:
                break
            try:
                found = scan(txn, begin, end, limit, reverse, self.engine.store.page.long_keys)
                if end > idempotency.IDS and begin < idempotency.IDS_END:
                    found = self._with_ids(txn, found, begin, end, limit, reverse)
            except lmdb.Error:
                if self.txn is txn:
                    self._renew()
                continue
            if self.shown != self.version:
                if not found or len(found) < limit:
                    self._unchanged(begin, end)
                elif reverse:
                    self._unchanged(found[-1][0], end)
                else:
                    self._unchanged(begin, found[-1][0] + b"\0")
            return found
        raise Code(errors.TRANSACTION_TOO_OLD)

    @staticmethod
    def _with_ids(txn: Any, found: list[Row], begin: bytes, end: bytes, limit: int, reverse: bool) -> list[Row]:
        """The rows together with those that idempotency ids on the log stand for."""
        virtual = idempotency.log_rows(txn, begin, end)
        if not virtual:
            return found
        merged = idempotency.merge_rows(found, virtual)
        if reverse:
            merged.reverse()
        return merged[:limit]

    def stream(self, begin: bytes, end: bytes, reverse: bool, first: int = FIRST_CHUNK) -> Iterator[Row]:
        """All rows of [begin, end), read in growing chunks."""
        size = first
        while True:
            found = self.rows(begin, end, size, reverse)
            yield from found
            if len(found) < size:
                return
            if reverse:
                end = found[-1][0]
            else:
                begin = found[-1][0] + b"\0"
            size = min(size * 4, LARGEST_CHUNK)
