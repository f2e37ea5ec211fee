"""Actors: a future that stays Claimed while its object lives, and calls that the process which runs it records itself.

The actor's own future holds its place with a worker by the ordinary rules: claimed, reaped when the worker dies, started
again while its budgets last, cancelled to end it. It never becomes Realized. A call is a future of its own: either it
appears when it ended, Realized or Failed at once (row `finish_call`), or it was recorded before that, and is Waiting on an
edge to the actor; so it fails with the actor, whoever is left to see it. Calls have no code and are never run again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from fdb_datamodel.errors import ClaimLostError, DamagedFutureError
from fdb_datamodel.lifecycle.endings import fail_for_good, finish
from fdb_datamodel.lifecycle.placement import clear_edges
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes, Ended
from fdb_datamodel.rows.elements import decode_id, encode_id, is_id
from fdb_datamodel.rows.future_rows import FutureRows
from fdb_datamodel.rows.ids import show_id
from fdb_datamodel.rows.records import Failure, FutureResult, FutureSpec, MailEntry, WorkerId
from fdb_datamodel.rows.space import (
    ALLOW_RECONSTRUCTION,
    CLAIM,
    CODE,
    DELETED,
    EDGE,
    FAILURE,
    LATEST_RESULT,
    LISTENERS,
    NUM_ATTEMPTS,
    OPTIONS,
)
from fdb_datamodel.transitions.submit import submit_futures
from fdb_schema import ClusterSpace, RecordError, Transaction

CALLS_PER_PAGE = 100
_ONE = codec.pack(1)
_FALSE = codec.pack(False)


class ActorHost(NamedTuple):
    """One start of an actor, the fence of everything its process writes. start: counts from 1."""

    id: bytes
    worker: WorkerId
    token: bytes
    start: int


class ActorPlace(NamedTuple):
    """What a caller needs to know of an actor. ip, port: where start `start` takes calls; "", 0: not up yet.

    taking: the start that takes calls made now, up or not. failure: why the actor is no more.
    """

    start: int
    ip: str
    port: int
    taking: int
    failure: Failure | None


class RecordedCall(NamedTuple):
    """A call that was recorded before it ran. dependencies: of its arguments."""

    id: bytes
    session: bytes
    method: str
    args: bytes
    dependencies: tuple[bytes, ...]
    name: str


class CallOutcome(NamedTuple):
    """How a call ended: with a result or a failure. name: for people; session: of the caller.

    contained: ids of the futures inside the result, which live as long as it.
    """

    id: bytes
    session: bytes
    name: str
    result: FutureResult | None = None
    failure: Failure | None = None
    contained: Sequence[bytes] = ()


def create_actor(tr: Transaction, space: ClusterSpace, spec: FutureSpec, name: str = "") -> bytes:
    """Submit an actor's future, or find the unfinished one of that name; its id.

    A name whose actor ended is given to the new one. Safe to repeat.
    """
    ch = Changes(tr, space)
    if name:
        known = ch.get_many([ch.keys.actor_name(name)])[0]
        if known is not None and not _ended(ch, codec.unpack_bytes(known)):
            return codec.unpack_bytes(known)
    submit_futures(tr, space, [spec])
    if name:
        tr.set(ch.keys.actor_name(name), codec.pack(spec.id))
    tr.set(ch.keys.name_of_actor(encode_id(spec.id)), codec.pack(name))
    return spec.id


def named_actor(tr: Transaction, space: ClusterSpace, name: str) -> bytes | None:
    """The id of the actor of that name; None if there is none, or it ended."""
    ch = Changes(tr, space)
    known = ch.get_many([ch.keys.actor_name(name)])[0]
    if known is None or _ended(ch, codec.unpack_bytes(known)):
        return None
    return codec.unpack_bytes(known)


def _ended(ch: Changes, actor: bytes) -> bool:
    f = ch.load(actor)
    return not f.exists or f.ended


def forget_actor(ch: Changes, f: FutureRows) -> None:
    """A deleted future has no place as an actor, nor a name that isn't another one's by now."""
    ch.clear(ch.keys.actor_place(f.e))
    key = ch.keys.name_of_actor(f.e)
    row = ch.get_many([key])[0]
    if row is None:
        return
    ch.clear(key)
    # What can't be read names nobody, and keeps nothing from being deleted.
    with contextlib.suppress(RecordError, TypeError, AttributeError):
        name = ch.keys.actor_name(codec.unpack(row))
        holder = ch.get_many([name])[0]
        if holder is not None and codec.unpack(holder) == f.id:
            ch.clear(name)


def begin_host(tr: Transaction, space: ClusterSpace, actor: bytes, attempt: int = 0) -> ActorHost:
    """The start that runs now. Raises ClaimLostError unless it is attempt `attempt` (0: any), UnknownFutureError."""
    f = Changes(tr, space).load_existing(actor)
    claim = f.claim
    if not f.claimed or claim is None or (attempt and claim[3] != attempt):
        raise ClaimLostError(f"actor {show_id(actor)} is no longer held by its attempt {attempt}: its process must end")
    return ActorHost(actor, claim[1], claim[0], claim[3])


def place_host(tr: Transaction, space: ClusterSpace, host: ActorHost, ip: str, port: int) -> None:
    """This start takes calls at an address now. Raises ClaimLostError, WorkerFencedError."""
    ch = Changes(tr, space)
    _check_host(ch, host)
    ch.set(ch.keys.actor_place(encode_id(host.id)), codec.pack((host.start, ip, port)))
    ch.flush()


def find_actor(tr: Transaction, space: ClusterSpace, actor: bytes) -> ActorPlace:
    """Where an actor takes calls, by snapshot. Raises UnknownFutureError, FutureDeletedError."""
    ch = Changes(tr, space)
    f = ch.load_existing(actor, snapshot=True)
    place = ch.get_many([ch.keys.actor_place(f.e)], snapshot=True)[0]
    start, ip, port = codec.unpack(place)[:3] if place is not None else (0, "", 0)
    claim = f.claim
    if claim is None or claim[3] != start:
        start, ip, port = 0, "", 0
    return ActorPlace(start, ip, port, f.attempts + (not f.claimed), f.failure)


def call_options(start: int, method: str) -> bytes:
    """For `FutureSpec.call_options` of a call that is recorded before it ran: the start it is sent to, and its method.

    Such a spec has no code, and its dependencies are the actor and then those of the arguments.
    """
    return codec.pack((start, method))


def recorded_calls(
    tr: Transaction, space: ClusterSpace, host: ActorHost, after: bytes = b""
) -> tuple[list[RecordedCall], bytes]:
    """A page of the calls that wait for this actor, in the order of their ids, and the cursor of the next (b"": the last).

    Those sent to an earlier start fail: they may have run. Raises ClaimLostError, WorkerFencedError.
    """
    ch = Changes(tr, space)
    _check_host(ch, host)
    prefix = ch.keys.listeners + encode_id(host.id) + EDGE
    rows = ch.read(prefix + after, prefix + b"\xff", limit=CALLS_PER_PAGE)
    found: list[RecordedCall] = []
    for key, _ in rows:
        if not is_id(key[len(prefix) :]):
            continue
        f = ch.load(decode_id(key[len(prefix) :]))
        if not _is_call(f, host.id):
            continue  # something that waits for the actor's end
        try:
            start, method = codec.unpack(f.option("call_options"))[:2]
        except (RecordError, TypeError, ValueError) as error:
            raise DamagedFutureError(f.id, f"call_options: {error}") from error
        if start < host.start:
            fail_for_good(ch, f, lost_call(f.id, host.id, "the process it was sent to died; it may have run"))
            continue
        args, dependencies = f.arguments
        found.append(RecordedCall(f.id, f.session, method, args, dependencies[1:], f.name))
    finish(ch)
    return found, rows[-1][0][len(prefix) :] + b"\x00" if len(rows) == CALLS_PER_PAGE else b""


def _is_call(f: FutureRows, actor: bytes) -> bool:
    """Whether a future that waits for the actor is a call of it that hasn't ended."""
    if f.ended or f.dependencies[:1] != (actor,) or not f.option("call_options"):
        return False
    return not f.code


def actor_of_call(tr: Transaction, space: ClusterSpace, call: bytes) -> bytes | None:
    """The actor that a call was made of, if it is one and was recorded before it ran. By snapshot."""
    f = Changes(tr, space).load(call, snapshot=True)
    if not f.exists or f.code or not f.option("call_options"):
        return None
    return f.arguments[1][0] if f.arguments[1] else None


def orphaned_calls(
    tr: Transaction, space: ClusterSpace, host: ActorHost, known: Collection[bytes], after: bytes = b""
) -> tuple[list[RecordedCall], bytes]:
    """As `recorded_calls`, of calls whose caller's session is gone: nobody will send them any more.

    `known`: ids of calls, and sessions, that are left out. Raises ClaimLostError, WorkerFencedError.
    """
    found, cursor = recorded_calls(tr, space, host, after)
    unknown = [call for call in found if call.id not in known and call.session not in known]
    ch = Changes(tr, space)
    lives = ch.get_many([ch.keys.session(call.session) for call in unknown])
    return [call for call, row in zip(unknown, lives, strict=True) if row is None], cursor


def fail_calls(tr: Transaction, space: ClusterSpace, ids: Sequence[bytes], actor: bytes, why: str) -> None:
    """Recorded calls that will never run, or may have run, end Failed ("actor-died"); others are left as they are."""
    ch = Changes(tr, space)
    for one in ids:
        f = ch.load(one)
        if f.exists and not f.ended and f.dependencies[:1] == (actor,):
            fail_for_good(ch, f, lost_call(one, actor, why))
    finish(ch)


def lost_call(call: bytes, actor: bytes, why: str) -> Failure:
    return Failure("actor-died", f"call {show_id(call)} of actor {show_id(actor)} is lost: {why}")


def ended_calls(tr: Transaction, space: ClusterSpace, ids: Sequence[bytes]) -> list[MailEntry | None]:
    """How each call ended; None: it hasn't, or isn't recorded."""
    ch = Changes(tr, space)
    found: list[MailEntry | None] = []
    for one in ids:
        f = ch.load(one)
        if f.failed:
            found.append(MailEntry(one, "failed", None, f.failure, f.epoch))
        elif f.realized:
            found.append(MailEntry(one, "realized", f.result, None, f.epoch))
        else:
            found.append(None)
    return found


def finish_calls(
    tr: Transaction, space: ClusterSpace, host: ActorHost, outcomes: Sequence[CallOutcome]
) -> list[tuple[str, bytes]]:
    """Record how calls ended (row `finish_call`); per call what to tell the caller: kind and value, as in a mailbox.

    One that ended otherwise meanwhile (cancelled, deleted) keeps that end. Callers are answered by the process that ran
    the call, so no mail is written to them; other listeners are settled. Safe to repeat. Keep a batch under 200 calls and
    400 kB of inline results. Raises ClaimLostError, WorkerFencedError: nothing was recorded, and nothing may be answered.
    """
    ch = Changes(tr, space)
    keys = ch.keys
    encoded = [encode_id(one.id) for one in outcomes]
    rows = _check_host(ch, host, [keys.futures + e + name for e in encoded for name in (CODE, LISTENERS, DELETED)])
    token, wall_us = ch.token, ch.wall_us
    claim = codec.pack_claim(host.worker, token, wall_us, 1)
    said: list[tuple[str, bytes]] = []
    codes: dict[tuple[bytes, str], bytes] = {}
    writes = ch.writes
    for at, (one, e) in enumerate(zip(outcomes, encoded, strict=True)):
        prefix = keys.futures + e
        f: FutureRows | None = None
        if rows[3 * at] is not None or rows[3 * at + 1] is not None or rows[3 * at + 2] is not None:
            f = ch.load(one.id)
            writes = ch.writes  # a read may have flushed them
            if f.deleted or f.ended:
                said.append(_end_of(f, one))
                continue
            clear_edges(ch, f)
        else:
            kind_of_call = one.session, one.name
            named = codec.name_with_code(one.name)
            if kind_of_call not in codes:
                codes[kind_of_call] = codec.pack_code(one.session, b"", wall_us, one.name if named else "")
            writes[prefix + CODE] = codes[kind_of_call]
            writes[prefix + ALLOW_RECONSTRUCTION] = _FALSE
            if not named:
                writes[prefix + OPTIONS] = codec.pack({"name": one.name})
        if one.failure is not None:
            told = one.failure
            value = codec.pack_failure(replace(told, wall_us=told.wall_us or wall_us, attempt=told.attempt or 1))
            kind = "failed"
            writes[prefix + FAILURE] = value
            writes[prefix + NUM_ATTEMPTS] = _ONE  # of one that was realized its claim says so
        else:
            result = one.result or FutureResult(b"")
            value = codec.pack_latest_result(_held(result, host.worker), token, wall_us)
            kind = "realized"
            writes[prefix + CLAIM] = claim
            writes[prefix + LATEST_RESULT] = value
            if result.inline is None:
                writes[keys.result(e, token)] = codec.pack_result_row(_held(result, host.worker), token, wall_us)
            for inner in one.contained:
                writes[keys.held_by_future(encode_id(inner), e)] = b""
        said.append((kind, value))
        if f is not None and f.listened:
            ch.ended.append(Ended(f.id, e, kind, value, f.epoch))
    finish(ch)
    return said


def read_answer(call: bytes, kind: str, value: bytes) -> MailEntry:
    """What `finish_calls` said, as the mail that it stands for."""
    if kind == "failed":
        return MailEntry(call, kind, None, codec.unpack_failure(value), 0)
    return MailEntry(call, kind, codec.unpack_latest_result(value), None, 0)


def _held(result: FutureResult, worker: WorkerId) -> FutureResult:
    return FutureResult(result.inline, result.size, result.name, result.worker or worker)


def _end_of(f: FutureRows, one: CallOutcome) -> tuple[str, bytes]:
    if f.realized:
        return "realized", f.rows[LATEST_RESULT]
    gone = Failure("deleted", f"call {show_id(one.id)} was deleted")
    return "failed", f.rows.get(FAILURE) or codec.pack_failure(gone)


def _check_host(ch: Changes, host: ActorHost, more: Sequence[bytes] = ()) -> list[bytes | None]:
    """Raises unless this start is the actor's and its worker's incarnation is live; the values of `more`."""
    worker = host.worker
    live, row, *rest = ch.get_many(
        [ch.keys.incarnation(worker.ip, worker.port), ch.keys.future(encode_id(host.id), CLAIM), *more]
    )
    ch.check_fence(worker, live)
    if row is None or codec.unpack_claim(row)[0] != host.token:
        raise ClaimLostError(
            f"start {host.start} of actor {show_id(host.id)} is over (another began, or it was ended): "
            "its process must end"
        )
    return rest
