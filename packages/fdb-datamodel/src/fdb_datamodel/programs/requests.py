"""The requests of a program: rows that are written once under a claim, and their values."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, NamedTuple
from uuid import UUID

from fdb_datamodel.errors import ClaimLostError, FutureStateError
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.elements import encode_id
from fdb_datamodel.rows.future_rows import FutureRows
from fdb_datamodel.rows.ids import as_id, show_id
from fdb_datamodel.rows.space import CLAIM, EPOCH, layout_of, number_in
from fdb_schema import (
    ClusterSpace,
    OversizeError,
    RecordError,
    Transaction,
    add_read_conflict_keys,
    due_after,
    read_range,
)
from fdb_schema.clock import MICROSECONDS

VALUE_LIMIT: Final = 60_000
"""Bytes in a request's row; more goes into rows of its own."""
PART_BYTES: Final = 60_000
PARTS_AT_ONCE: Final = 8
"""Written by one transaction, which stays under 1 MB."""
PAGE: Final = 200
"""Requests read at once, by default."""


class ProgramClaim(NamedTuple):
    """The attempt that makes requests: the fence of what it records."""

    id: bytes
    token: bytes


class Request(NamedTuple):
    """One request as it is recorded.

    kind, name: its form. value: opaque bytes of what it got, `error` where that is an exception. ids: the futures it made, or
    found. due_us: cluster clock. parts: rows that hold the value instead. wall_us: for people.
    """

    kind: str
    name: str = ""
    value: bytes | None = None
    error: bool = False
    ids: tuple[bytes, ...] = ()
    due_us: int | None = None
    parts: int = 0
    wall_us: int = 0
    cancels: bool = False  # not stored: the next one is recorded too, and is `CANCEL`

    @property
    def form(self) -> tuple[str, str]:
        """What a later attempt has to ask for in the same place."""
        return self.kind, self.name


CANCEL: Final = Request("cancel")
"""What is recorded in the place of the next request, whichever that is, of a program that was cancelled: it raises."""


def read_requests(
    tr: Transaction, space: ClusterSpace, future_id: UUID | bytes, start: int = 0, limit: int = PAGE
) -> list[Request]:
    """Up to `limit` requests in order from number `start`; fewer: there are no more. Values in parts are left out."""
    ch = Changes(tr, space)
    rows = ch.read(*ch.keys.program_requests(encode_id(as_id(future_id)), start), limit=limit)
    return [_unpack(value, future_id, number_in(key)) for key, value in rows]


def last_requests(
    tr: Transaction, space: ClusterSpace, future_id: UUID | bytes, limit: int
) -> list[tuple[int, Request]]:
    """The latest requests, (number, request), in order."""
    ch = Changes(tr, space)
    span = ch.keys.program_requests(encode_id(as_id(future_id)))
    rows = read_range(tr, *span, limit=limit, reverse=True, snapshot=True)
    numbered = [(number_in(key), value) for key, value in reversed(rows)]
    return [(number, _unpack(value, future_id, number)) for number, value in numbered]


def record_request(
    tr: Transaction, space: ClusterSpace, claim: ProgramClaim, number: int, request: Request, *, now: bool = False
) -> Request:
    """Record a request; what is recorded: itself, or where the same attempt has written it before, that.

    `now`: `due_us` is counted from the cluster clock of this transaction. Raises ClaimLostError, OversizeError.
    """
    ch = Changes(tr, space)
    e, known, cancels = known_request(ch, claim, number)
    if known is not None:
        return known
    if now:
        request = request._replace(due_us=due_after(tr, space, (request.due_us or 0) / MICROSECONDS))
    return write_request(ch, e, number, request, cancels=cancels)


def record_following(
    tr: Transaction, space: ClusterSpace, claim: ProgramClaim, number: int, request: Request, after: int
) -> Request:
    """`record_request` without a read, where the request before was recorded by this attempt in the commit of version `after`.

    So the program was its own then, not cancelled, and nothing recorded as that number. Whatever has changed of that since is a
    conflict, which nobody but who reads can tell from other ones: another try is `record_request`.
    """
    keys, e = layout_of(space), encode_id(claim.id)
    row = keys.program_request(e, number)
    tr.set_read_version(after - 1)  # what is behind that commit in its batch has its version
    add_read_conflict_keys(tr, (keys.future(e, CLAIM), row, keys.program_row(e, "cancel")))
    request = request._replace(wall_us=time.time_ns() // 1000)
    tr.set(row, _pack(request))
    return request


def find_request(tr: Transaction, space: ClusterSpace, claim: ProgramClaim, number: int) -> Request | None:
    """What the same attempt, or one before, recorded as that number; read before the transaction does what is asked.

    Raises ClaimLostError.
    """
    ch = Changes(tr, space)
    return known_request(ch, claim, number)[1]


def write_parts(
    tr: Transaction, space: ClusterSpace, claim: ProgramClaim, number: int, first: int, parts: Sequence[bytes]
) -> None:
    """Write parts of a value before its request is recorded; at most `PARTS_AT_ONCE`. Raises ClaimLostError."""
    ch = Changes(tr, space)
    e = fence(ch, claim)
    for at, part in enumerate(parts, start=first):
        ch.set(ch.keys.program_value(e, number, at), part)
    ch.flush()


def read_value(
    tr: Transaction, space: ClusterSpace, future_id: bytes, number: int, first: int, limit: int
) -> list[bytes]:
    """Parts of a request's value from `first` on."""
    keys = Changes(tr, space).keys
    e = encode_id(future_id)
    begin, end = keys.program_value(e, number, first), keys.program_value(e, number, first + limit)
    return [value for _, value in read_range(tr, begin, end)]


def clear_value(tr: Transaction, space: ClusterSpace, claim: ProgramClaim, number: int) -> None:
    """Clear parts that an attempt before wrote of a request that it didn't come to record. Raises ClaimLostError."""
    ch = Changes(tr, space)
    e = fence(ch, claim)
    begin, end = ch.keys.program_value(e, number, 0), ch.keys.program_value(e, number + 1, 0)
    tr.add_read_conflict_range(begin, end)  # one that comes late doesn't clear what was written meanwhile
    tr.clear_range(begin, end)


def fence(ch: Changes, claim: ProgramClaim) -> bytes:
    """The encoded id of the program, which this attempt still has: whoever takes it over changes the row that is read."""
    e = encode_id(claim.id)
    _check_fence(claim, ch.get_many([ch.keys.future(e, CLAIM)])[0])
    return e


def _check_fence(claim: ProgramClaim, row: bytes | None) -> None:
    if row is None or codec.unpack_claim(row)[0] != claim.token:
        raise ClaimLostError(
            f"program {show_id(claim.id)} is no longer claimed by this attempt: its requests don't count"
        )


def load_program(ch: Changes, future_id: UUID | bytes) -> FutureRows:
    f = ch.load_existing(as_id(future_id))
    if not f.option("durable"):
        raise FutureStateError(f"future {show_id(f.id)} is no program: only what is submitted with durable=True is one")
    return f


def known_request(ch: Changes, claim: ProgramClaim, number: int) -> tuple[bytes, Request | None, bool]:
    """The encoded id of the program, as `_fence` has it, what is recorded as that number, and whether the program is to be told
    that it was cancelled."""
    e = encode_id(claim.id)
    keys = ch.keys
    names = [keys.future(e, CLAIM), keys.program_request(e, number), keys.program_row(e, "cancel")]
    held, row, cancel = ch.get_many(names)
    _check_fence(claim, held)
    cancels = False
    if cancel is not None:
        epoch = ch.get_many([keys.future(e, EPOCH)])[0]
        cancels = codec.unpack_ints(cancel, 2)[:2] == (0 if epoch is None else codec.unpack_ints(epoch, 2)[0], 0)
    if row is None:
        return e, None, cancels
    known = _unpack(row, claim.id, number)
    if known.form != CANCEL.form:  # a commit whose outcome wasn't known, perhaps of both
        (following,) = ch.get_many([keys.program_request(e, number + 1)])
        known = known._replace(
            cancels=following is not None and _unpack(following, claim.id, number + 1).form == CANCEL.form
        )
    return e, known, cancels


def note_delivered(ch: Changes, e: bytes) -> None:
    key = ch.keys.program_row(e, "cancel")
    row = ch.get_many([key])[0]
    if row is not None:
        ch.set(key, codec.pack((codec.unpack_ints(row, 2)[0], 1)))


def write_request(ch: Changes, e: bytes, number: int, request: Request, *, cancels: bool = False) -> Request:
    """Record a request, and with `cancels` the end of the program in the place of the next one."""
    request = request._replace(wall_us=ch.wall_us)
    ch.set(ch.keys.program_request(e, number), _pack(request))
    if cancels:
        write_request(ch, e, number + 1, CANCEL)
        note_delivered(ch, e)
        request = request._replace(cancels=True)
    ch.flush()
    return request


def _pack(request: Request) -> bytes:
    """Raises OversizeError."""
    kind, name, value, error, ids, due_us, parts, wall_us, _ = request
    if value is not None and len(value) > VALUE_LIMIT:
        raise OversizeError(f"the value of a request has {len(value):,} bytes: write it in parts")
    return codec.pack((kind, name, wall_us, value, error, ids, due_us, parts))


def _unpack(row: bytes, future_id: UUID | bytes, number: int) -> Request:
    try:
        kind, name, wall_us, value, error, ids, due_us, parts = codec.unpack_request(row)
    except RecordError as damage:
        raise RecordError(
            f"request {number} of program {show_id(as_id(future_id))} can't be read, so it can't go on: {damage}; cancel or delete it, "
            "or restore its rows from a dump"
        ) from damage
    return Request(kind, name, value, error, ids, due_us, parts, wall_us)
