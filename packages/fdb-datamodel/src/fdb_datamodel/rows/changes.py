"""What one transaction reads and is about to write: rows gathered and written in bulk, mail and bells once per session.

`Changes` keeps the latest value per key and lays it over what is read, so that a transition sees what earlier ones in the
same transaction did, and the order in which they say things doesn't matter.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from fdb_datamodel.errors import FutureDeletedError, UnknownFutureError, WorkerFencedError
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.elements import encode_id, is_id
from fdb_datamodel.rows.future_rows import FutureRows
from fdb_datamodel.rows.ids import show_id
from fdb_datamodel.rows.records import NO_SESSION, WorkerId
from fdb_datamodel.rows.space import CLAIM, NUM_ATTEMPTS, Layout, layout_of
from fdb_schema import (
    ClusterSpace,
    Transaction,
    clear_many,
    get_many,
    read_ahead,
    read_range,
    read_version,
    set_many,
)

_ONE = (1).to_bytes(8, "little")
_MAIL_ROW_BYTES = 80_000
# Rows kept back are looked through at every read; when that many were, they are handed to the transaction instead.
_LOOKED_THROUGH = 20_000
_PAGE_PAST_STRAYS = 256


class Ended(NamedTuple):
    """A future that ended in this transaction and may have listeners. kind, value, epoch: as mailed to sessions."""

    id: bytes
    e: bytes
    kind: str
    value: bytes | None
    epoch: int


class Changes:
    """One transaction of transitions. Make it, call transitions, `flush()` at the end."""

    __slots__ = (
        "_ahead",
        "_looked",
        "_token",
        "bells",
        "ended",
        "keys",
        "mail",
        "tr",
        "unsettled",
        "wall_us",
        "writes",
    )

    def __init__(self, tr: Transaction, space: ClusterSpace) -> None:
        self.tr = tr
        self.keys: Layout = layout_of(space)
        self.writes: dict[bytes, bytes | None] = {}  # None: clear
        self.mail: dict[bytes, list[tuple[bytes, str, bytes | None, int]]] = {}
        self.bells: set[bytes] = set()
        self.ended: list[Ended] = []  # futures with listeners, to be settled before the transaction ends
        self.wall_us = time.time_ns() // 1000  # for people
        self.unsettled = False
        self._token = b""
        self._looked = 0
        self._ahead: list[Any] = []  # reads under way, see `read_ahead`

    @property
    def token(self) -> bytes:
        """The token of claims made by this transaction: its read version as a versionstamp (10 bytes).

        A later claim of the same future reads what gave the earlier one up, so its read version is greater than that
        transaction's commit version, and so than the earlier claim's token.
        """
        if not self._token:
            self._token = read_version(self.tr).to_bytes(8, "big") + b"\x00\x00"
        return self._token

    # --- reads

    def get_many(self, keys: Sequence[bytes], snapshot: bool = False) -> list[bytes | None]:
        writes = self.writes
        if not writes:
            return get_many(self.tr, keys, snapshot)
        unknown = [key for key in keys if key not in writes]
        found = dict(zip(unknown, get_many(self.tr, unknown, snapshot), strict=True)) if unknown else {}
        return [writes[key] if key in writes else found[key] for key in keys]

    def read(self, begin: bytes, end: bytes, limit: int = 0, snapshot: bool = False) -> list[tuple[bytes, bytes]]:
        writes = self.writes
        self._looked += len(writes)
        if self._looked > _LOOKED_THROUGH:
            self.flush_rows()
            writes = self.writes
        pending = [key for key in writes if begin <= key < end] if writes else []
        if not pending:
            return read_range(self.tr, begin, end, limit=limit, snapshot=snapshot)
        # Each pending key hides at most one stored row, so that many more rows suffice.
        rows = read_range(self.tr, begin, end, limit=limit and limit + len(pending), snapshot=snapshot)
        merged: dict[bytes, bytes | None] = dict(rows)
        reached = rows[-1][0] if limit and len(rows) == limit + len(pending) else end
        merged.update((key, writes[key]) for key in pending if key <= reached)
        found = sorted((key, value) for key, value in merged.items() if value is not None)
        return found[:limit] if limit else found

    def read_ids(
        self, prefix: bytes, limit: int = 0, snapshot: bool = False, begin: bytes = b""
    ) -> list[tuple[bytes, bytes, bytes]]:
        """Rows whose key is a prefix and an id: (key, encoded id, value), at most `limit`, from `begin` on.

        Other keys there are stepped over, and keep none from being found.
        """
        found: list[tuple[bytes, bytes, bytes]] = []
        at, end = len(prefix), prefix + b"\xff"
        begin, page = begin or prefix, limit
        while True:
            rows = self.read(begin, end, limit=page, snapshot=snapshot)
            found += [(key, key[at:], value) for key, value in rows if is_id(key[at:])]
            if not page or len(rows) < page or len(found) >= limit:
                return found[:limit] if limit else found
            begin, page = rows[-1][0] + b"\x00", max(page, _PAGE_PAST_STRAYS)

    def read_ahead(self, ranges: Iterable[tuple[bytes, bytes, int]]) -> None:
        """Start reads of (begin, end, limit) that `read` or `load` will ask for one after another."""
        self._ahead += read_ahead(self.tr, ranges)

    def load_ahead(self, future_ids: Iterable[bytes]) -> None:
        """`load`, and `has_dependencies`, are about to be called for each of these."""
        bases = ((self.keys.futures, 0), (self.keys.dependencies, 1))
        encoded = (encode_id(future_id) for future_id in future_ids)
        self.read_ahead((base + e, base + e + b"\xff", limit) for e in encoded for base, limit in bases)

    def load(self, future_id: bytes, snapshot: bool = False) -> FutureRows:
        """Every row of one future."""
        e = encode_id(future_id)
        prefix = self.keys.futures + e
        at = len(prefix)
        rows = {key[at:]: value for key, value in self.read(prefix, prefix + b"\xff", snapshot=snapshot)}
        return FutureRows(future_id, e, rows)

    def load_existing(self, future_id: bytes, snapshot: bool = False) -> FutureRows:
        """As `load`. Raises UnknownFutureError, FutureDeletedError."""
        found = self.load(future_id, snapshot)
        if not found.exists:
            self.raise_absent(future_id, found.deleted)
        return found

    def raise_absent(self, future_id: bytes, deleted: bool) -> None:
        cluster = self.keys.space.cluster
        if deleted:
            raise FutureDeletedError(
                f"future {show_id(future_id)} of cluster {cluster!r} was deleted: submit the work anew"
            )
        raise UnknownFutureError(
            f"cluster {cluster!r} has no future {show_id(future_id)}: check the id and the cluster's name"
        )

    def has_dependencies(self, e: bytes) -> bool:
        """Whether a future still waits for an upstream; the emptiness is read serializably."""
        return bool(self.read_ids(self.keys.dependencies + e, limit=1))

    def live_incarnation(self, ip: str, port: int) -> bytes | None:
        """The registered incarnation of an address, read serializably."""
        return codec.incarnation_of(self.get_many([self.keys.incarnation(ip, port)])[0])

    def is_live(self, worker: WorkerId) -> bool:
        return self.live_incarnation(worker.ip, worker.port) == worker.incarnation

    def fence(self, worker: WorkerId) -> None:
        """Raises WorkerFencedError unless `worker` is the live incarnation of its address."""
        self.check_fence(worker, self.get_many([self.keys.incarnation(worker.ip, worker.port)])[0])

    @staticmethod
    def check_fence(worker: WorkerId, row: bytes | None) -> None:
        live = codec.incarnation_of(row)
        if live != worker.incarnation:
            state = (
                "nobody is registered there" if live is None else f"incarnation {live.hex()[:8]} is registered there"
            )
            raise WorkerFencedError(
                f"worker {worker} was declared dead or never registered ({state}): stop, and start as a new incarnation"
            )

    # --- writes

    def set(self, key: bytes, value: bytes) -> None:
        self.writes[key] = value

    def clear(self, key: bytes) -> None:
        self.writes[key] = None

    def put(self, future: FutureRows, name: bytes, value: bytes | None) -> None:
        """Set or clear (None) a row of a future, in the rows as read too."""
        if value is None:
            if future.rows.pop(name, None) is None:
                return
        else:
            future.rows[name] = value
        self.writes[self.keys.futures + future.e + name] = value

    def drop_claim(self, future: FutureRows) -> None:
        """Clear the row `claim`; what it counted is kept."""
        if CLAIM in future.rows:
            self.put(future, NUM_ATTEMPTS, codec.pack(future.attempts))
            self.put(future, CLAIM, None)

    def ring_pool(self) -> None:
        self.bells.add(self.keys.pool_bell)

    def ring_session(self, session: bytes) -> None:
        self.bells.add(self.keys.session_bell(session))

    def send(self, session: bytes, future_id: bytes, kind: str, value: bytes | None, epoch: int = 0) -> None:
        """Mail a session: one row per session and flush, however many entries."""
        if session == NO_SESSION:
            return
        entries = self.mail.get(session)
        if entries is None:
            entries = self.mail[session] = []
        entries.append((future_id, kind, value, epoch))

    def flush_rows(self) -> None:
        """Hand the gathered rows to the transaction."""
        writes = self.writes
        if writes:
            self.writes = {}
            cleared = [key for key, value in writes.items() if value is None]
            if cleared:
                clear_many(self.tr, cleared)
            if len(cleared) < len(writes):
                set_many(self.tr, [item for item in writes.items() if item[1] is not None])  # type: ignore[misc]

    def flush(self) -> None:
        """Hand everything to the transaction: rows, mail, bells."""
        self.flush_rows()
        for session, entries in self.mail.items():
            self._write_mail(session, entries)
            self.bells.add(self.keys.session_bell(session))
        self.mail.clear()
        for bell in self.bells:
            self.tr.add(bell, _ONE)
        self.bells.clear()

    def _write_mail(self, session: bytes, entries: list[tuple[bytes, str, bytes | None, int]]) -> None:
        page: list[tuple[bytes, str, bytes | None, int]] = []
        size = 0
        for entry in entries:
            size += 40 + len(entry[2] or b"")
            if page and size > _MAIL_ROW_BYTES:
                self._write_mail_row(session, page)
                page, size = [], 40 + len(entry[2] or b"")
            page.append(entry)
        self._write_mail_row(session, page)

    def _write_mail_row(self, session: bytes, page: Iterable[tuple[bytes, str, bytes | None, int]]) -> None:
        rows = list(page)
        key = self.keys.stamped_mail(session, encode_id(rows[0][0]))
        self.tr.set_versionstamped_key(key, codec.pack(rows))
