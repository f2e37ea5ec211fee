"""Where an unfinished future is: in the pool's indices, with a worker, on edges, or held by a claim; and getting it out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from fdb_datamodel.errors import DamagedFutureError
from fdb_datamodel.lifecycle.holdings import unlist_claim
from fdb_datamodel.lifecycle.limits import admit, give_back
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.elements import encode_id
from fdb_datamodel.rows.future_rows import FutureRows
from fdb_datamodel.rows.ids import show_id
from fdb_datamodel.rows.records import Failure, Locality, WorkerId
from fdb_datamodel.rows.space import (
    ARGS,
    AWAY,
    CODE,
    DELETED,
    DUE,
    EPOCH,
    FAILURE,
    LATEST_RESULT,
    LIMITS,
    LISTENERS,
    REQUIREMENTS,
)
from fdb_schema import RecordError, due_after

WORTH_A_WAIT = 1 << 20  # bytes of inputs with one worker
INPUTS_WAIT = 0.5  # seconds that a future waits for the worker that holds them
STATE = (CODE, FAILURE, LATEST_RESULT, DELETED, EPOCH)
_UPSTREAMS_AT_ONCE = 100  # whose states are read together: inline results are among them
_CHAIN_KEPT = 64  # ids of a chain of failures that are stored


# --- the pool and assignments: Unclaimed


def index_keys(ch: Changes, f: FutureRows) -> list[bytes]:
    """The keys that a future of the pool has: in the index of cpu, and in those of ram and gpu if it needs some."""
    shape, priority, _ = f.placement
    return [prefix + f.e for prefix in ch.keys.index_prefixes(shape, priority)[:3] if prefix]


def enqueue(ch: Changes, f: FutureRows, *, anywhere: bool = False) -> Failure | None:
    """Make a future claimable: with the worker it is to run on, else in the pool.

    One that names no worker goes to the holder of most of its inputs, if that is much, unless it may run `anywhere`.

    Soft locality of a worker that isn't live falls back to the pool at once; a pinned future can't be placed then, and
    the failure to end it with is returned.
    """
    if f.option("limits") and not admit(ch, f):
        return None
    shape, priority, locality = f.placement
    if locality is not None:
        if ch.is_live(locality.worker):
            assign(ch, f, locality)
            return None
        if locality.pinned:
            return lost_pinned(f, locality.worker)
        ch.put(f, REQUIREMENTS, codec.pack_requirements(shape, priority, None))
    elif not anywhere and (near := near_inputs(ch, f)) is not None and has_room(ch, near.worker):
        ch.put(f, REQUIREMENTS, codec.pack_requirements(shape, priority, near))
        assign(ch, f, near)
        return None
    cpu, ram, gpu, exact = ch.keys.index_prefixes(shape, priority)
    writes = ch.writes
    writes[cpu + f.e] = b"" if exact else codec.pack(shape)
    if ram:
        writes[ram + f.e] = b""
    if gpu:
        writes[gpu + f.e] = b""
    ch.ring_pool()
    return None


def near_inputs(ch: Changes, f: FutureRows) -> Locality | None:
    """Where a future should run for its inputs' sake: with the live holder of most bytes, if they are worth a moment."""
    if ARGS not in f.rows:
        return None
    upstreams = f.dependencies
    if not upstreams:
        return None
    held: dict[WorkerId, int] = {}
    largest: dict[WorkerId, tuple[int, bytes]] = {}
    values = ch.get_many([ch.keys.future(encode_id(one), LATEST_RESULT) for one in upstreams], snapshot=True)
    for upstream, value in zip(upstreams, values, strict=True):
        result = None
        if value is not None:
            with suppress(RecordError):  # whoever takes it as its input meets it again
                result = codec.unpack_latest_result(value)
        if result is not None and result.inline is None and result.worker is not None:
            held[result.worker] = held.get(result.worker, 0) + result.size
            largest[result.worker] = max(largest.get(result.worker, (0, b"")), (result.size, upstream))
    if not held:
        return None
    worker, size = max(held.items(), key=lambda item: item[1])
    if size < WORTH_A_WAIT or not ch.is_live(worker):
        return None
    return Locality(worker, reason=largest[worker][1], wait=INPUTS_WAIT)


def has_room(ch: Changes, worker: WorkerId) -> bool:
    """Whether a worker has fewer assignments than slots: what many take as input shall not queue up at its holder."""
    row = ch.get_many([ch.keys.incarnation(worker.ip, worker.port)], snapshot=True)[0]
    if row is None:
        return False
    try:
        slots = codec.unpack_worker_info(row)[1].slots
    except RecordError:  # it is the worker's row that is damaged, and no future's
        return False
    return len(ch.read_ids(ch.keys.assignment_rows(worker.ip, worker.port), limit=slots, snapshot=True)) < slots


def assign(ch: Changes, f: FutureRows, locality: Locality) -> None:
    """Give a future to a live worker (which the caller has read); a soft assignment gets a timer."""
    shape, _, _ = f.placement
    worker = locality.worker
    ch.set(ch.keys.assignment_rows(worker.ip, worker.port) + f.e, codec.pack_assignment(locality, shape))
    ch.ring_session(worker.incarnation)
    if not locality.pinned:
        set_timer(ch, f.e, "locality", locality.wait)


def lost_pinned(f: FutureRows, worker: WorkerId) -> Failure:
    return Failure(
        "worker-lost", f"future {show_id(f.id)} could only run on worker {worker}, which is gone", attempt=f.attempts
    )


def dequeue(ch: Changes, f: FutureRows) -> None:
    """Take an Unclaimed future out of wherever `enqueue` put it."""
    locality = f.placement[2]
    if locality is not None:
        ch.clear(ch.keys.assignment_rows(locality.worker.ip, locality.worker.port) + f.e)
        return
    for key in index_keys(ch, f):
        ch.clear(key)


def set_timer(ch: Changes, e: bytes, kind: str, seconds: float) -> int:
    """Arm a timer on the cluster clock; when it is due (µs). Timers are never disarmed: one that is stale does nothing."""
    due = due_after(ch.tr, ch.keys.space, seconds)
    ch.set(ch.keys.timer(due, e, kind), b"")
    return due


# --- claims


def release_claim(ch: Changes, f: FutureRows) -> None:
    """Clear `claim`, the worker's row of it, and what the attempt blocked on."""
    claim = f.claim
    if claim is not None:
        waits = ch.keys.waits + f.e
        ch.tr.clear_range(waits, waits + b"\xff")
        unlist_claim(ch, f)
        ch.drop_claim(f)
        if LIMITS in f.rows:
            give_permits_back(ch, f)


def give_permits_back(ch: Changes, f: FutureRows) -> None:
    """A future with limits ended, or its attempt did: who waits for its permits is next."""
    for following in give_back(ch, f):
        enqueue(ch, following)


# --- edges: Waiting


def add_edges(
    ch: Changes, f: FutureRows, upstreams: Iterable[bytes], fresh: frozenset[bytes] | set[bytes] = frozenset()
) -> tuple[bool, Failure | None]:
    """Make a future wait for those upstreams that aren't realized; (whether it waits, the failure to end it with).

    Reads each upstream's state serializably, so that of this and the upstream's end one sees the other. `fresh`: ids
    known to be unfinished in this transaction, in epoch 0 and without rows to read.
    """
    waits = False
    distinct = list(dict.fromkeys(upstreams))
    for start in range(0, len(distinct), _UPSTREAMS_AT_ONCE):
        page = distinct[start : start + _UPSTREAMS_AT_ONCE]
        states = _states(ch, [one for one in page if one not in fresh])
        for upstream in page:
            e, epoch = encode_id(upstream), 0
            if upstream not in fresh:
                code, failure, result, deleted, epoch_row = states[upstream]
                if failure is not None:
                    return waits, upstream_failure(f, upstream, codec.unpack_failure(failure))
                if code is None:
                    reason, state = ("unknown", "isn't there") if deleted is None else ("deleted", "was deleted")
                    gone = Failure(reason, f"future {show_id(upstream)} {state}")
                    return waits, upstream_failure(f, upstream, gone)
                if result is not None:
                    continue
                epoch = codec.unpack(epoch_row)[0] if epoch_row is not None else 0
            waits = True
            asked = codec.pack(epoch)
            ch.set(ch.keys.dependency(f.e, e), asked)
            ch.set(ch.keys.edge(e, f.e), asked)
            ch.set(ch.keys.future(e, LISTENERS), b"")
    return waits, None


def _states(ch: Changes, ids: Sequence[bytes]) -> dict[bytes, list[bytes | None]]:
    """The rows of `STATE` of each."""
    if not ids:
        return {}
    rows = ch.get_many([key for one in ids for key in state_keys(ch, one)])
    return {one: rows[at * len(STATE) : (at + 1) * len(STATE)] for at, one in enumerate(ids)}


def state_keys(ch: Changes, future_id: bytes) -> list[bytes]:
    """The rows that say whether a future has ended, and how."""
    e = encode_id(future_id)
    return [ch.keys.future(e, name) for name in STATE]


def clear_edges(ch: Changes, f: FutureRows) -> bool:
    """Clear every edge of a Waiting future, both ends; whether there was one."""
    rows = ch.read_ids(ch.keys.dependencies + f.e)
    for key, upstream, value in rows:
        ch.clear(key)
        ch.clear(ch.keys.wake(upstream, f.e) if _is_wake(value) else ch.keys.edge(upstream, f.e))
    return bool(rows)


def _is_wake(value: bytes) -> bool:
    with suppress(RecordError):
        return codec.unpack_edge(value)[1] is not None
    return False


def is_call_of(f: FutureRows, actor: bytes) -> bool:
    """Whether it is a call of that actor, recorded before it ran: it has no code, and depends on the actor first."""
    if f.dependencies[:1] != (actor,) or f.code:
        return False
    return bool(f.option("call_options"))


def upstream_failure(f: FutureRows, upstream: bytes, cause: Failure) -> Failure:
    """What a dependent fails with: the chain from its direct upstream to the future that failed first, and its message.

    A call fails with its actor as one does that was never recorded.
    """
    if is_call_of(f, upstream):
        try:
            sent_to = int(codec.unpack(f.option("call_options"))[0])  # the start that it was recorded for
        except (RecordError, TypeError, ValueError, LookupError) as error:
            raise DamagedFutureError(f.id, f"what a call is sent with can't be read: {error}") from error
        ran = "; the call may have run" if sent_to <= cause.attempt else ""
        text = f"actor {show_id(upstream)} is no more ({cause.reason}): {cause.message}{ran}"
        return Failure("actor-died", text, cause.payload, cause.traceback)
    chain = (upstream, *cause.chain)
    if len(chain) > _CHAIN_KEPT:
        chain = chain[: _CHAIN_KEPT // 2] + chain[-_CHAIN_KEPT // 2 :]
    first = cause.cause or cause.message or cause.reason
    through = "" if chain[-1] == upstream else f", through {show_id(upstream)}"
    return Failure(
        "upstream",
        f"future {show_id(f.id)} depends on {show_id(chain[-1])}{through}, which failed: {first}",
        cause.payload,
        cause.traceback,
        chain,
        cause.epoch,
        cause=first,
    )


# --- out of any unfinished state


def withdraw(ch: Changes, f: FutureRows) -> WorkerId | None:
    """Take an unfinished future out of its place, whatever its state; the worker that was running it, if one was."""
    if f.claimed:
        claim = f.claim
        release_claim(ch, f)
        return claim[1] if claim else None
    waited = clear_edges(ch, f)
    if f.permits[1]:
        give_permits_back(ch, f)
        return None
    if LIMITS in f.rows:
        give_permits_back(ch, f)
    if f.away is not None:
        come_back(ch, f)
    elif f.backing_off:
        ch.put(f, DUE, None)
    elif not waited:
        dequeue(ch, f)
    return None


def come_back(ch: Changes, f: FutureRows) -> None:
    """A program that is away waits for nothing any more; the caller makes it claimable, or ends it."""
    clear_edges(ch, f)
    due = f.due
    if due is not None:
        ch.clear(ch.keys.timer(due, f.e, "backoff"))
        ch.put(f, DUE, None)
    ch.put(f, AWAY, None)
