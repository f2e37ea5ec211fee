"""Programs: futures that ask for things in a fixed order, each of which is recorded once and found again by later attempts.

    programs  ('all', id)                         → when it was submitted: every program that there is
    programs  (id, 'request', n)                  → the n-th request: what was asked, and what it got
    programs  (id, 'value', n, part)              → its value, where that is too large for the row
    programs  (id, 'event', name, versionstamp)   → sent to it, and not taken yet
    programs  (id, 'published', name)             → what it published last under a name
    programs  (id, 'charged')                     → requests there were when an attempt was charged last

Requests are written under the claim of the attempt that makes them, one transaction each, and that transaction may do what was
asked as well: submit a future, take an event, run a step. So each happens once, however many attempts there are. How a program
leaves and comes back is in `fdb_datamodel.lifecycle.programs`.

Rows of a request are the form that a later attempt has to ask for again: `kind` and `name`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple
from uuid import UUID

from fdb_datamodel.errors import ClaimLostError, FutureStateError
from fdb_datamodel.lifecycle.copies import reconstruct
from fdb_datamodel.lifecycle.endings import enqueue_or_fail, finish
from fdb_datamodel.lifecycle.placement import come_back
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.away import Away
from fdb_datamodel.rows.changes import Changes, FutureRows
from fdb_datamodel.rows.elements import decode_id, encode_id
from fdb_datamodel.rows.ids import as_id, show_id
from fdb_datamodel.rows.space import CLAIM
from fdb_schema import ClusterSpace, OversizeError, Transaction, read_clock, read_range
from fdb_schema.clock import MICROSECONDS

VALUE_LIMIT: Final = 60_000  # bytes in a request's row; more goes into rows of its own
PART_BYTES: Final = 60_000
PARTS_AT_ONCE: Final = 8  # written by one transaction, which stays under 1 MB
PAGE: Final = 200  # requests read at once, by default

__all__ = [
    "Away",
    "ProgramClaim",
    "Request",
    "begin_program",
    "clear_value",
    "find_request",
    "last_requests",
    "list_programs",
    "outcome",
    "publish",
    "read_published",
    "read_requests",
    "read_value",
    "record_request",
    "resume_program",
    "send_event",
    "take_event",
    "write_parts",
]


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

    @property
    def form(self) -> tuple[str, str]:
        """What a later attempt has to ask for in the same place."""
        return self.kind, self.name


def begin_program(tr: Transaction, space: ClusterSpace, future_id: bytes, attempt: int) -> ProgramClaim:
    """The fence of an attempt. Raises ClaimLostError."""
    ch = Changes(tr, space)
    f = ch.load_existing(future_id)
    claim = f.claim
    if not f.claimed or claim is None or (attempt and claim[3] != attempt):
        raise ClaimLostError(f"program {show_id(future_id)} is no longer claimed by attempt {attempt}")
    return ProgramClaim(future_id, claim[0])


def read_requests(
    tr: Transaction, space: ClusterSpace, future_id: UUID | bytes, start: int = 0, limit: int = PAGE
) -> list[Request]:
    """Up to `limit` requests in order from number `start`; fewer: there are no more. Values in parts are left out."""
    ch = Changes(tr, space)
    begin = ch.keys.program_request(encode_id(as_id(future_id)), start)
    rows = ch.read(begin, begin[:-8] + b"\xff" * 9, limit=limit)
    return [_unpack(value) for _, value in rows]


def last_requests(
    tr: Transaction, space: ClusterSpace, future_id: UUID | bytes, limit: int
) -> list[tuple[int, Request]]:
    """The latest requests, (number, request), in order."""
    ch = Changes(tr, space)
    begin = ch.keys.program_request(encode_id(as_id(future_id)), 0)
    rows = read_range(tr, begin, begin[:-8] + b"\xff" * 9, limit=limit, reverse=True, snapshot=True)
    return [(int.from_bytes(key[-8:], "big"), _unpack(value)) for key, value in reversed(rows)]


def record_request(
    tr: Transaction, space: ClusterSpace, claim: ProgramClaim, number: int, request: Request, *, now: bool = False
) -> Request:
    """Record a request; what is recorded: itself, or where the same attempt has written it before, that.

    `now`: `due_us` is counted from the cluster clock of this transaction. Raises ClaimLostError, OversizeError.
    """
    ch = Changes(tr, space)
    e, known = _known(ch, claim, number)
    if known is not None:
        return known
    if now:
        request = request._replace(due_us=read_clock(tr, space) + (request.due_us or 0))
    return _write(ch, e, number, request)


def find_request(tr: Transaction, space: ClusterSpace, claim: ProgramClaim, number: int) -> Request | None:
    """What the same attempt, or one before, recorded as that number; read before the transaction does what is asked.

    Raises ClaimLostError.
    """
    ch = Changes(tr, space)
    return _known(ch, claim, number)[1]


def take_event(
    tr: Transaction, space: ClusterSpace, claim: ProgramClaim, number: int, name: str, due_us: int | None = None
) -> Request | None:
    """Request an event of a name: the oldest that was sent, which is taken; or where `due_us` has passed none, which is
    recorded too (kind "event", no value). None: there is none yet. Raises ClaimLostError.
    """
    ch = Changes(tr, space)
    e, known = _known(ch, claim, number)
    if known is not None:
        return known
    events = ch.keys.program_events(e, name)
    rows = ch.read(events, events + b"\xff", limit=1)
    if rows:
        ch.clear(rows[0][0])
        return _write(ch, e, number, Request("event", name, rows[0][1]))
    if due_us is not None and read_clock(tr, space) >= due_us:
        return _write(ch, e, number, Request("event", name))
    return None


def publish(tr: Transaction, space: ClusterSpace, claim: ProgramClaim, number: int, name: str, value: bytes) -> Request:
    """Request that others may read `value` under `name`, in the place of what was there. Raises ClaimLostError, OversizeError."""
    if len(value) > VALUE_LIMIT:
        raise OversizeError(
            f"what is published under {name!r} has {len(value):,} bytes, {VALUE_LIMIT:,} are possible: publish a future of it"
        )
    ch = Changes(tr, space)
    e, known = _known(ch, claim, number)
    if known is not None:
        return known
    ch.set(ch.keys.program_published(e, name), value)
    return _write(ch, e, number, Request("publish", name))


def read_published(tr: Transaction, space: ClusterSpace, future_id: UUID | bytes) -> dict[str, bytes]:
    """What a program published last, by name. Raises UnknownFutureError, FutureDeletedError."""
    ch = Changes(tr, space)
    f = ch.load_existing(as_id(future_id))
    begin = ch.keys.program_row(f.e, "published")
    rows = ch.read(begin, begin + b"\xff", snapshot=True)
    return {str(space["programs"].unpack(key)[2]): value for key, value in rows}


def send_event(tr: Transaction, space: ClusterSpace, future_id: UUID | bytes, name: str, value: bytes) -> None:
    """Send an event to a program that hasn't ended: whoever waits for it comes back. Not to be run again blindly.

    Raises UnknownFutureError, FutureDeletedError, FutureStateError, OversizeError.
    """
    if len(value) > VALUE_LIMIT:
        raise OversizeError(
            f"the event {name!r} has {len(value):,} bytes, {VALUE_LIMIT:,} are possible: send a future of it, or a key"
        )
    ch = Changes(tr, space)
    f = _program(ch, future_id)
    if f.ended:
        raise FutureStateError(f"program {show_id(f.id)} has ended: nobody takes the event {name!r}")
    if f.away == ("event", name):
        come_back(ch, f)
        enqueue_or_fail(ch, f)
    finish(ch)
    tr.set_versionstamped_key(ch.keys.stamped_event(f.e, name), value)


def resume_program(tr: Transaction, space: ClusterSpace, future_id: UUID | bytes) -> bool:
    """Let a program that failed go on from where it was; whether it does. A last request that was an error is made again.

    Raises UnknownFutureError, FutureDeletedError, FutureStateError.
    """
    ch = Changes(tr, space)
    f = _program(ch, future_id)
    if not f.failed:
        return False
    last = last_requests(tr, space, f.id, 1)
    if last and last[0][1].error:
        number, request = last[0]
        ch.clear(ch.keys.program_request(f.e, number))
        for part in range(request.parts):
            ch.clear(ch.keys.program_value(f.e, number, part))
    reconstruct(ch, f, lost=False)
    finish(ch)
    return True


def list_programs(
    tr: Transaction, space: ClusterSpace, after: bytes | None = None, limit: int = 100, *, newest_first: bool = False
) -> tuple[list[bytes], bytes | None]:
    """A page of the ids of programs in their order, and where the next page starts (None: that was the last). By snapshot."""
    ch = Changes(tr, space)
    prefix = ch.keys.program(b"")
    begin, end = prefix, prefix + b"\xff"
    if after is not None:
        at = prefix + encode_id(after)
        begin, end = (begin, at) if newest_first else (at + b"\x00", end)
    rows = read_range(tr, begin, end, limit=limit, reverse=newest_first, snapshot=True)
    ids = [decode_id(key[len(prefix) :]) for key, _ in rows]
    return ids, ids[-1] if len(rows) == limit else None


def outcome(request: Request, now_us: int) -> str:
    """What came of a request, in words. `now_us`: the cluster clock's."""
    if request.error:
        return "raised"
    if request.kind in ("sleep", "deadline") and request.due_us is not None:
        left = (request.due_us - now_us) / MICROSECONDS
        return "over" if left <= 0 else f"{left:,.0f} s left"
    if request.kind == "event":
        return "timed out" if request.value is None else "taken"
    if request.kind == "wait":
        count = len(request.ids) if request.value is None else int.from_bytes(request.value, "little").bit_count()
        return f"{count:,} ended" if count else "none ended"
    if request.ids:
        return f"{len(request.ids)} futures" if len(request.ids) > 1 else "1 future"
    return "done"


# --- values in parts


def write_parts(
    tr: Transaction, space: ClusterSpace, claim: ProgramClaim, number: int, first: int, parts: Sequence[bytes]
) -> None:
    """Write parts of a value before its request is recorded; at most `PARTS_AT_ONCE`. Raises ClaimLostError."""
    ch = Changes(tr, space)
    e = _fence(ch, claim)
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
    e = _fence(ch, claim)
    begin = ch.keys.program_value(e, number, 0)
    tr.clear_range(begin, ch.keys.program_value(e, number + 1, 0))


# --- below


def _fence(ch: Changes, claim: ProgramClaim) -> bytes:
    """The encoded id of the program, which this attempt still has: whoever takes it over changes the row that is read."""
    e = encode_id(claim.id)
    _check_fence(claim, ch.get_many([ch.keys.future(e, CLAIM)])[0])
    return e


def _check_fence(claim: ProgramClaim, row: bytes | None) -> None:
    if row is None or codec.unpack_claim(row)[0] != claim.token:
        raise ClaimLostError(
            f"program {show_id(claim.id)} is no longer claimed by this attempt: its requests don't count"
        )


def _program(ch: Changes, future_id: UUID | bytes) -> FutureRows:
    f = ch.load_existing(as_id(future_id))
    if not f.option("durable"):
        raise FutureStateError(f"future {show_id(f.id)} is no program: only what is submitted with durable=True is one")
    return f


def _known(ch: Changes, claim: ProgramClaim, number: int) -> tuple[bytes, Request | None]:
    """The encoded id of the program, as `_fence` has it, and what is recorded as that number."""
    e = encode_id(claim.id)
    held, row = ch.get_many([ch.keys.future(e, CLAIM), ch.keys.program_request(e, number)])
    _check_fence(claim, held)
    return e, None if row is None else _unpack(row)


def _write(ch: Changes, e: bytes, number: int, request: Request) -> Request:
    if request.value is not None and len(request.value) > VALUE_LIMIT:
        raise OversizeError(f"the value of a request has {len(request.value):,} bytes: write it in parts")
    request = request._replace(wall_us=ch.wall_us)
    fields = (
        request.kind, request.name, request.wall_us, request.value, request.error, request.ids, request.due_us, request.parts
    )  # fmt: skip
    ch.set(ch.keys.program_request(e, number), codec.pack(fields))
    ch.flush()
    return request


def _unpack(row: bytes) -> Request:
    kind, name, wall_us, value, error, ids, due_us, parts = codec.unpack_request(row)
    return Request(kind, name, value, error, ids, due_us, parts, wall_us)
