"""What one transaction reads and is about to write: rows gathered and written in bulk, mail and bells once per session.

`Changes` keeps the latest value per key and lays it over what is read, so that a transition sees what earlier ones in the
same transaction did, and the order in which they say things doesn't matter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from fdb_datamodel.errors import DamagedFutureError, FutureDeletedError, UnknownFutureError, WorkerFencedError
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.elements import encode_id, is_id
from fdb_datamodel.rows.ids import show_id
from fdb_datamodel.rows.records import NO_SESSION, Failure, FutureResult, Locality, WorkerId
from fdb_datamodel.rows.requirements import Shape
from fdb_datamodel.rows.space import (
    ALLOW_RECONSTRUCTION,
    ARGS,
    AWAY,
    CLAIM,
    CODE,
    DELETED,
    DUE,
    EPOCH,
    FAILURE,
    LATEST_EXCEPTION,
    LATEST_RESULT,
    LIMITS,
    LISTENERS,
    MAX_RETRIES,
    NUM_ATTEMPTS,
    OPTIONS,
    REQUIREMENTS,
    UNCHARGED,
    Layout,
    layout_of,
)
from fdb_schema import (
    ClusterSpace,
    RecordError,
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


_T = TypeVar("_T")
_A = TypeVar("_A")


class FutureRows:
    """The rows of one future as read, and what they say. Absent rows are defaults."""

    __slots__ = ("_options", "e", "id", "rows")

    def __init__(self, future_id: bytes, e: bytes, rows: dict[bytes, bytes]) -> None:
        self.id = future_id
        self.e = e
        self.rows = rows
        self._options: dict[str, Any] | None = None

    @property
    def exists(self) -> bool:
        return CODE in self.rows or CLAIM in self.rows or FAILURE in self.rows

    @property
    def deleted(self) -> bool:
        return DELETED in self.rows

    @property
    def failed(self) -> bool:
        return FAILURE in self.rows

    @property
    def realized(self) -> bool:
        claim, result = self.rows.get(CLAIM), self.rows.get(LATEST_RESULT)
        return claim is not None and result is not None and FAILURE not in self.rows and codec.same_token(claim, result)

    @property
    def claimed(self) -> bool:
        return CLAIM in self.rows and not self.realized and not self.failed

    @property
    def ended(self) -> bool:
        return self.failed or self.realized

    @property
    def backing_off(self) -> bool:
        """Whether it waits by a row of its own: for a back-off, as a program that is away, or for a permit."""
        return DUE in self.rows or AWAY in self.rows or (LIMITS in self.rows and bool(self.permits[1]))

    @property
    def permits(self) -> tuple[tuple[str, ...], str]:
        """The limits it has a permit of, and the one it waits for, or ""."""
        return self._read(LIMITS, codec.unpack_permits, ((), ""))

    @property
    def away(self) -> tuple[str, str] | None:
        """Of a program that is away: what it waits for, "sleep", "futures" or "event", and the event's name."""
        return self._read(AWAY, codec.unpack_away, None)

    @property
    def listened(self) -> bool:
        return LISTENERS in self.rows

    @property
    def attempts(self) -> int:
        return self._int(NUM_ATTEMPTS, 0)

    @property
    def max_retries(self) -> int:
        return self._int(MAX_RETRIES, 3)

    @property
    def allow_reconstruction(self) -> bool:
        return bool(self._read(ALLOW_RECONSTRUCTION, codec.unpack, True))

    @property
    def epoch(self) -> int:
        return self._epoch()[0]

    @property
    def attempts_before_epoch(self) -> int:
        return self._epoch()[1]

    @property
    def uncharged(self) -> tuple[int, int, int]:
        """(lost with workers, out of memory, given back) of this epoch."""
        fields = self._read(UNCHARGED, _three, (0, 0, 0))
        return fields[0], fields[1], fields[2]

    @property
    def never_begun(self) -> int:
        """Of those given back, how many didn't begin to run."""
        fields: tuple[int, ...] = self._read(UNCHARGED, _three, ())
        return fields[3] if len(fields) > 3 else 0

    @property
    def begun(self) -> bool:
        """Whether an attempt may have begun to run, the one that holds the claim now included."""
        return self.attempts > self.never_begun

    @property
    def charged(self) -> int:
        """Attempts of this epoch that count against max_retries."""
        return self.attempts - self.attempts_before_epoch - sum(self.uncharged)

    @property
    def session(self) -> bytes:
        return self._read(CODE, codec.unpack_code, (NO_SESSION, b"", 0))[0]

    @property
    def code(self) -> bytes:
        """What to run, or its digest."""
        return self._read(CODE, codec.unpack_code, (NO_SESSION, b"", 0))[1]

    @property
    def due(self) -> int | None:
        """When its back-off ends, by the cluster clock."""
        return self._read(DUE, codec.unpack_int, None)

    @property
    def submitted(self) -> int:
        """When it was submitted, in µs of wall time; 0: that can't be told."""
        try:
            return int(self._read(CODE, codec.unpack_code, (b"", b"", 0))[2])
        except DamagedFutureError:
            return 0

    @property
    def arguments(self) -> tuple[bytes, tuple[bytes, ...]]:
        """(pickled arguments or their digest, dependencies)."""
        return self._read(ARGS, codec.unpack_args, (b"", ()))

    @property
    def dependencies(self) -> tuple[bytes, ...]:
        return self.arguments[1]

    @property
    def ending(self) -> bytes:
        """The row that says how a future which ended did so."""
        name, decode = (FAILURE, codec.unpack_failure) if self.failed else (LATEST_RESULT, codec.unpack_latest_result)
        self._read(name, decode, None)
        return self.rows[name]

    @property
    def placement(self) -> tuple[Shape, int, Locality | None]:
        """(shape, priority, locality)."""
        return self._read(REQUIREMENTS, codec.unpack_requirements, ((0, 0, 0), 0, None))

    @property
    def options(self) -> dict[str, Any]:
        if self._options is None:
            self._options = self._read(OPTIONS, codec.unpack_options, {})
        return self._options

    def know_options(self, options: dict[str, Any]) -> None:
        """What was just written as its options needn't be read."""
        self._options = options

    def option(self, name: str) -> Any:
        return codec.option(self.options, name)

    @property
    def claim(self) -> tuple[bytes, WorkerId, int, int] | None:
        """(token, worker, wall_us, attempt), also of the attempt that realized it."""
        return self._read(CLAIM, codec.unpack_claim, None)

    @property
    def result(self) -> FutureResult | None:
        return self._read(LATEST_RESULT, codec.unpack_latest_result, None)

    @property
    def failure(self) -> Failure | None:
        return self._read(FAILURE, codec.unpack_failure, None)

    @property
    def last_failure(self) -> Failure | None:
        return self._read(LATEST_EXCEPTION, codec.unpack_failure, None)

    def _int(self, name: bytes, default: int) -> int:
        return self._read(name, codec.unpack_int, default)

    def _epoch(self) -> tuple[int, int]:
        fields = self._read(EPOCH, _two, (0, 0))
        return fields[0], fields[1]

    def _read(self, name: bytes, decode: Callable[[bytes], _T], absent: _A) -> _T | _A:
        """What a row says. Raises `DamagedFutureError`."""
        value = self.rows.get(name)
        if value is None:
            return absent
        try:
            return decode(value)
        except RecordError as error:
            raise DamagedFutureError(self.id, str(error)) from error

    def check_program(self) -> None:
        """Raises `DamagedFutureError` unless what is to run, and with what, can be read."""
        self._read(CODE, codec.unpack_code, None)
        self._read(ARGS, codec.unpack_args, None)

    def check(self) -> dict[bytes, str]:
        """What is wrong with the rows: by name of the row."""
        wrong: dict[bytes, str] = {}
        for name, decode in _DECODERS.items():
            try:
                self._read(name, decode, None)
            except DamagedFutureError as error:
                wrong[name] = error.why
        return wrong


def _two(value: bytes) -> tuple[int, ...]:
    return codec.unpack_ints(value, 2)


def _three(value: bytes) -> tuple[int, ...]:
    return codec.unpack_ints(value, 3)


_DECODERS: dict[bytes, Callable[[bytes], Any]] = {
    CODE: codec.unpack_code,
    ARGS: codec.unpack_args,
    CLAIM: codec.unpack_claim,
    NUM_ATTEMPTS: codec.unpack_int,
    LATEST_RESULT: codec.unpack_latest_result,
    LATEST_EXCEPTION: codec.unpack_failure,
    FAILURE: codec.unpack_failure,
    MAX_RETRIES: codec.unpack_int,
    ALLOW_RECONSTRUCTION: codec.unpack,
    REQUIREMENTS: codec.unpack_requirements,
    OPTIONS: codec.unpack_options,
    EPOCH: _two,
    UNCHARGED: _three,
    DUE: codec.unpack_int,
    AWAY: codec.unpack_away,
    LIMITS: codec.unpack_permits,
}


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
        for future_id in future_ids:
            e = encode_id(future_id)
            rows, dependencies = self.keys.futures + e, self.keys.dependencies + e
            self.read_ahead([(rows, rows + b"\xff", 0), (dependencies, dependencies + b"\xff", 1)])

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
