"""A read version and the LMDB read transaction that shows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any, Protocol, TypeVar

import lmdb

from .. import errors
from ..errors import Code, DamagedDatabase
from ..pure import idempotency, keys
from ..pure.keys import Row
from ..pure.scan import scan
from ..pure.versions import MAX_READ_AGE, VERSIONS_PER_SECOND
from ..sharing.waiting import GoOn, Waiter
from ..storage.store import Store
from .soundness import Soundness

T = TypeVar("T")

DAMAGE = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.PanicError, DamagedDatabase)
SHARED_FOR = 0.05  # seconds: those that begin while nobody commits share a snapshot as long as it is no older
MAX_AGE = MAX_READ_AGE / VERSIONS_PER_SECOND + SHARED_FOR
FIRST_CHUNK = 64
LARGEST_CHUNK = 4096


class Owner(Protocol):
    """Who keeps the snapshots of a database."""

    @property
    def store(self) -> Store: ...
    @property
    def soundness(self) -> Soundness: ...
    @property
    def live(self) -> dict[int, Snapshot]: ...
    def newest(self, go_on: GoOn | None = None) -> tuple[Any, int]:
        """An LMDB read transaction and the version it shows."""

    def written_between(self, since: int, until: int, begin: bytes, end: bytes, go_on: GoOn | None = None) -> bool:
        """Whether a commit of a version in (since, until] wrote in [begin, end)."""


class Snapshot:
    """Reads at `version`. LMDB may show a later version `shown`: then a key written in between can't be read (1007).

    That happens when a version is asked for that nobody holds open, and when the map had to grow under a snapshot.

    LMDB reads without Python's lock, and an LMDB transaction that is ended, or whose map is moved, while another thread
    reads in it is a crash of the process. So a thread notes itself in `inside` while it reads, and then looks whether it
    may; who ends a snapshot marks it as ended first, and leaves the transaction to the last reader where there is one.
    """

    __slots__ = (
        "base",
        "born",
        "ended",
        "guard",
        "inside",
        "map",
        "mark",
        "new_until",
        "owner",
        "shown",
        "store",
        "told",
        "txn",
        "users",
        "version",
    )

    def __init__(self, owner: Owner, txn: Any, version: int, guard: int, mark: int = -1) -> None:
        self.owner = owner
        self.guard = guard  # what the process's slot of readers may name as long as this is open
        self.store = store = owner.store
        self.map = store.map
        self.inside: set[int] = set()  # threads that read in `txn` at this moment
        self.txn = txn
        self.version = version
        self.shown = version
        self.told = version  # the highest version that it was handed out as
        self.born = born = time.monotonic()
        self.new_until = born + SHARED_FOR  # who begins before may share it, and reads here for five seconds
        self.base = store.clock.base
        self.ended = False
        self.users = 1
        self.mark = mark  # it is the newest as long as the page's number of the last commit to begin is this one

    def is_new(self) -> bool:
        """Whether those that begin now may read here for five seconds, too."""
        return time.monotonic() < self.new_until

    def young(self) -> bool:
        """Whether the last to share it began less than five seconds ago, however old the newest version was then."""
        same_clock = self.base == self.store.clock.base  # versions haven't jumped ahead since
        return same_clock and self.shown == self.version and time.monotonic() - self.born <= MAX_AGE

    def end(self) -> None:
        """Nobody may begin to read here any more: too old, or released."""
        self.ended = True
        self._left()

    def _left(self) -> None:
        """Where it has ended and nobody reads, the LMDB transaction ends: by whoever is last."""
        if self.inside or not self.ended:
            return
        self.owner.live.pop(id(self), None)
        txn, self.txn = self.txn, None
        if txn is not None:
            try:
                txn.abort()
            except lmdb.Error:  # it went with its map
                pass

    def _read(self, read: Callable[[Any], T], waiter: Waiter | None) -> T:
        """What `read` gives of the LMDB transaction. Raises 1007 where the snapshot has ended, and what ends a wait for the map."""
        me, inside = get_ident(), self.inside
        for _ in range(8):
            try:
                inside.add(me)
                txn = self.txn
                if not self.ended and not self.map.gate:
                    return read(txn)
            except DAMAGE as error:
                raise self.owner.soundness.damaged(error) from error
            except lmdb.Error:
                pass
            finally:
                inside.discard(me)
                if self.ended:
                    self._left()
            if self.ended:
                break
            if self.map.gate:
                self.map.await_change(None if waiter is None else waiter.go_on)
            elif self.txn is txn:
                self._renew(waiter)
        raise Code(errors.TRANSACTION_TOO_OLD)

    def _renew(self, waiter: Waiter | None) -> None:
        """The LMDB transaction was invalidated by a growing map: take another and remember that it is later."""
        if self.ended:
            raise Code(errors.TRANSACTION_TOO_OLD)
        txn, self.shown = self.owner.newest(None if waiter is None else waiter.go_on)
        self.txn = txn
        self._left()

    def _unchanged(self, begin: bytes, end: bytes, waiter: Waiter | None) -> None:
        go_on = None if waiter is None else waiter.go_on
        if self.owner.written_between(self.version, self.shown, begin, end, go_on):
            raise Code(errors.TRANSACTION_TOO_OLD)

    def get(self, key: bytes, waiter: Waiter | None = None) -> bytes | None:
        """The value of `key` at this version."""
        direct = 0 < len(key) <= keys.DIRECT
        me, inside = get_ident(), self.inside
        try:
            inside.add(me)
            if self.ended or self.map.gate:
                raise lmdb.Error("not now")
            value: bytes | None = self.txn.get(key) if direct else keys.get(self.txn, key)
        except (lmdb.Error, DamagedDatabase):
            inside.discard(me)
            value = self._read(lambda txn: keys.get(txn, key), waiter)
        finally:
            inside.discard(me)
            if self.ended:
                self._left()
        if self.shown != self.version:
            self._unchanged(key, key + b"\0", waiter)
        return value

    def get_many(self, wanted: list[bytes], waiter: Waiter | None = None) -> list[bytes | None]:
        """The values of many keys of 1 to 510 bytes."""
        if self.shown == self.version:
            found = self._read(lambda txn: list(map(txn.get, wanted)), waiter)
            if self.shown == self.version:  # else the map grew meanwhile, and each has to be looked at
                return found
        return [self.get(key, waiter) for key in wanted]

    def rows(self, begin: bytes, end: bytes, limit: int, reverse: bool, waiter: Waiter | None = None) -> list[Row]:
        """At most `limit` rows of [begin, end)."""

        def read(txn: Any) -> list[Row]:
            rows = scan(txn, begin, end, limit, reverse, self.store.page.long_keys)
            if end > idempotency.IDS and begin < idempotency.IDS_END:
                return self._with_ids(txn, rows, begin, end, limit, reverse)
            return rows

        found = self._read(read, waiter)
        if self.shown != self.version:
            if not found or len(found) < limit:
                self._unchanged(begin, end, waiter)
            elif reverse:
                self._unchanged(found[-1][0], end, waiter)
            else:
                self._unchanged(begin, found[-1][0] + b"\0", waiter)
        return found

    @staticmethod
    def _with_ids(txn: Any, found: list[Row], begin: bytes, end: bytes, limit: int, reverse: bool) -> list[Row]:
        """The rows together with those that idempotency ids on the log stand for."""
        virtual = idempotency.log_rows(txn, begin, end, limit, reverse)
        if not virtual:
            return found
        merged = idempotency.merge_rows(found, virtual)
        if reverse:
            merged.reverse()
        return merged[:limit]

    def stream(
        self, begin: bytes, end: bytes, reverse: bool, first: int = FIRST_CHUNK, waiter: Waiter | None = None
    ) -> Iterator[Row]:
        """All rows of [begin, end), read in growing chunks."""
        size = first
        while True:
            found = self.rows(begin, end, size, reverse, waiter)
            yield from found
            if len(found) < size:
                return
            if reverse:
                end = found[-1][0]
            else:
                begin = found[-1][0] + b"\0"
            size = min(size * 4, LARGEST_CHUNK)
