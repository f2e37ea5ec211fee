"""What others tell a program and it tells them: events, what it publishes, its end; and which programs there are."""

from __future__ import annotations

from uuid import UUID

from fdb_datamodel.errors import FutureStateError
from fdb_datamodel.lifecycle.copies import begin_grace_anew, reconstruct
from fdb_datamodel.lifecycle.endings import enqueue_or_fail, finish
from fdb_datamodel.lifecycle.placement import come_back, set_timer
from fdb_datamodel.lifecycle.programs import prepare_again
from fdb_datamodel.programs.requests import (
    CANCEL,
    VALUE_LIMIT,
    ProgramClaim,
    Request,
    known_request,
    load_program,
    note_delivered,
    write_request,
)
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.elements import decode_id, encode_id, is_id
from fdb_datamodel.rows.ids import as_id, show_id
from fdb_datamodel.rows.states import FutureState
from fdb_datamodel.transitions.finish import cancel_future
from fdb_datamodel.views.reading import state_of
from fdb_schema import ClusterSpace, OversizeError, Transaction, read_clock, read_range
from fdb_schema.clock import MICROSECONDS


def take_event(
    tr: Transaction, space: ClusterSpace, claim: ProgramClaim, number: int, name: str, due_us: int | None = None
) -> Request | None:
    """Request an event of a name: the oldest that was sent, which is taken; or where `due_us` has passed none, which is
    recorded too (kind "event", no value). None: there is none yet. Raises ClaimLostError.
    """
    ch = Changes(tr, space)
    e, known, cancels = known_request(ch, claim, number)
    if known is not None:
        return known
    events = ch.keys.program_events(e, name)
    rows = ch.read(events, events + b"\xff", limit=1)
    if rows:
        ch.clear(rows[0][0])
        return write_request(ch, e, number, Request("event", name, rows[0][1]), cancels=cancels)
    if due_us is not None and read_clock(tr, space) >= due_us:
        return write_request(ch, e, number, Request("event", name), cancels=cancels)
    return None


def publish(tr: Transaction, space: ClusterSpace, claim: ProgramClaim, number: int, name: str, value: bytes) -> Request:
    """Request that others may read `value` under `name`, in the place of what was there. Raises ClaimLostError, OversizeError."""
    if len(value) > VALUE_LIMIT:
        raise OversizeError(
            f"what is published under {name!r} has {len(value):,} bytes, {VALUE_LIMIT:,} are possible: publish a future of it"
        )
    ch = Changes(tr, space)
    e, known, cancels = known_request(ch, claim, number)
    if known is not None:
        return known
    ch.set(ch.keys.program_published(e, name), value)
    return write_request(ch, e, number, Request("publish", name), cancels=cancels)


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
    f = load_program(ch, future_id)
    if f.ended:
        raise FutureStateError(f"program {show_id(f.id)} has ended: nobody takes the event {name!r}")
    if f.away == ("event", name):
        come_back(ch, f)
        enqueue_or_fail(ch, f)
    finish(ch)
    tr.set_versionstamped_key(ch.keys.stamped_event(f.e, name), value)


def cancel_program(
    tr: Transaction,
    space: ClusterSpace,
    future_id: UUID | bytes,
    grace: float | None = None,
    task_grace: float = 0.0,
) -> FutureState:
    """Tell a program that it is to end (row `cancel_program`), and end it after `grace` seconds of the cluster clock; its state now.

    Its next request raises, so that it can undo what it did; one that is away comes back for that. One that never began, any
    other future, and with `grace` 0 any program, is cancelled at once; the task of what is no program, if it runs, has
    `task_grace` seconds to clean up. Again: another `grace` of a program counts as well.
    Raises UnknownFutureError, FutureDeletedError.
    """
    ch = Changes(tr, space)
    f = ch.load_existing(as_id(future_id))
    if f.ended or not f.option("durable") or not f.begun or grace == 0:
        return cancel_future(tr, space, f.id, grace=task_grace)
    key = ch.keys.program_row(f.e, "cancel")
    row = ch.get_many([key])[0]
    if row is None or codec.unpack_ints(row, 2)[0] != f.epoch:
        ch.set(key, codec.pack((f.epoch, 0)))
    if grace is not None:
        set_timer(ch, f.e, "cancel", grace)
    if f.away is not None:
        come_back(ch, f)
        enqueue_or_fail(ch, f)
    finish(ch)
    return state_of(ch, f)


def deliver_cancel(tr: Transaction, space: ClusterSpace, claim: ProgramClaim, number: int) -> bool:
    """Whether a program that is about to wait was cancelled: then that is recorded as its request of that number.

    Raises ClaimLostError.
    """
    ch = Changes(tr, space)
    e, known, cancels = known_request(ch, claim, number)
    if known is None and cancels:
        write_request(ch, e, number, CANCEL)
        note_delivered(ch, e)
        ch.flush()
    return cancels or (known is not None and known.form == CANCEL.form)


def resume_program(tr: Transaction, space: ClusterSpace, future_id: UUID | bytes) -> bool:
    """Let a program that failed go on from where it was; whether it does. A last request that was an error is made again.

    Raises UnknownFutureError, FutureDeletedError, FutureStateError.
    """
    ch = Changes(tr, space)
    f = load_program(ch, future_id)
    if not f.failed:
        return False
    prepare_again(ch, f)
    begin_grace_anew(ch, f)
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
    ids: list[bytes] = []
    while rows := read_range(tr, begin, end, limit=limit - len(ids), reverse=newest_first, snapshot=True):
        last = rows[-1][0]
        ids += [
            decode_id(key[len(prefix) :]) for key, _ in rows if is_id(key[len(prefix) :])
        ]  # no release wrote others
        if len(ids) == limit:
            return ids, ids[-1]
        begin, end = (begin, last) if newest_first else (last + b"\x00", end)
    return ids, None


def outcome(request: Request, now_us: int) -> str:
    """What came of a request, in words. `now_us`: the cluster clock's."""
    if request.error:
        return "raised"
    if request.form == CANCEL.form:
        return "told"
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
