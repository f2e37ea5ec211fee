"""Claiming: one start of a future by one worker, singly by id or in batches from assignments and the pool."""

from __future__ import annotations

from collections.abc import Sequence, Set
from uuid import UUID

from fdb_datamodel.errors import DamagedFutureError, FutureStateError
from fdb_datamodel.lifecycle.chains import claim_ahead
from fdb_datamodel.lifecycle.endings import enqueue_or_fail, finish
from fdb_datamodel.lifecycle.holdings import held_claims
from fdb_datamodel.lifecycle.placement import dequeue, index_keys, near_inputs
from fdb_datamodel.lifecycle.pool import Entry, first_page, scan_pool
from fdb_datamodel.lifecycle.starts import Chosen, affordable, read_rows, result_of, start
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.elements import decode_id, encode_id
from fdb_datamodel.rows.future_rows import FutureRows
from fdb_datamodel.rows.ids import as_id, show_id
from fdb_datamodel.rows.records import Claim, Claims, WorkerId
from fdb_datamodel.rows.requirements import Capacity, Shape, fits, less, named_fits, named_of, shape_of
from fdb_datamodel.rows.space import ARGS, CODE, LATEST_RESULT
from fdb_schema import ClusterSpace, RecordError, Transaction, add_read_conflict_keys


def claim_future(tr: Transaction, space: ClusterSpace, future_id: UUID | bytes, worker: WorkerId) -> Claim:
    """Claim one Unclaimed future (row `claim_future`), whatever it requires; a worker may claim its assignments so.

    Raises FutureStateError if it isn't Unclaimed or is another worker's assignment, UnknownFutureError,
    FutureDeletedError, WorkerFencedError.
    """
    ch = Changes(tr, space)
    ch.fence(worker)
    f = ch.load_existing(as_id(future_id))
    if f.ended or f.claimed:
        state = "failed" if f.failed else "realized" if f.realized else "claimed"
        raise FutureStateError(f"future {show_id(f.id)} is {state}, not unclaimed: it can't be claimed")
    if f.backing_off or ch.has_dependencies(f.e):
        what = "its back-off" if f.backing_off else "other futures"
        raise FutureStateError(f"future {show_id(f.id)} is waiting for {what}, not unclaimed: it can't be claimed")
    shape, _, locality = f.placement
    if locality is not None and (locality.worker.ip, locality.worker.port) != (worker.ip, worker.port):
        raise FutureStateError(
            f"future {show_id(f.id)} is assigned to {locality.worker}, not to {worker}: reassign it before claiming it"
        )
    if locality is None:
        add_read_conflict_keys(tr, index_keys(ch, f)[:1])
    dequeue(ch, f)
    reason = locality.reason if locality else None
    claims = start(ch, worker, [Chosen(f.id, f.e, shape, f, locality is not None, reason)])
    finish(ch)
    if not claims:
        raise FutureStateError(f"future {show_id(f.id)} can't be claimed: an input was lost, it waits for it again")
    return claims[0]


def claim_futures(tr: Transaction, space: ClusterSpace, worker: WorkerId, capacity: Capacity, limit: int) -> Claims:
    """Claim up to `limit` futures that fit: the worker's assignments first, then the pool.

    The scan is a snapshot and costs the number of distinct shapes; only the chosen entries are read-conflict keys, so two
    workers conflict only over an entry both chose. The sum of the claims' shapes fits `capacity.free`.

    Raises WorkerFencedError.
    """
    ch = Changes(tr, space)
    ch.fence(worker)
    claims = take(ch, worker, capacity, limit, ())
    finish(ch)
    claims.unsettled = ch.unsettled
    return claims


def take(
    ch: Changes, worker: WorkerId, capacity: Capacity, limit: int, unblocked: Sequence[FutureRows], *, pool: bool = True
) -> Claims:
    """Claim `unblocked` futures (in no place) that fit, then assignments, then from the pool; the fence was read.

    Those of `unblocked` that aren't claimed are enqueued. What running tasks of this worker wait for goes before all.
    """
    claims = Claims()
    free = capacity.room
    wanted: list[Chosen] = []
    if capacity.wanted:
        free = _choose_wanted(ch, capacity, free, limit, wanted)
    limit -= len(wanted)
    chosen: list[Chosen] = []
    if unblocked:
        free = _choose_unblocked(ch, worker, capacity, free, limit, unblocked, chosen)
    entries: list[Entry] = []
    assigned = len(chosen)
    if len(chosen) < limit and pool:
        free = _choose_assignments(ch, worker, free, limit, chosen)
    pooled = len(chosen)
    if len(chosen) < limit and pool:
        scan = scan_pool(ch, capacity, free, limit - len(chosen))
        claims.blocked, claims.more, claims.passed = scan.blocked, scan.more, scan.passed
        entries = scan.entries
        chosen += [entry.chosen for entry in entries]
    everything = wanted + chosen
    found = read_rows(ch, everything)
    taken = everything[: affordable(ch, everything, found, capacity, max(capacity.at_once, len(wanted)))]
    count = len(taken) - len(wanted)
    if count < len(chosen):
        claims.cut = claims.more = True
        for one in chosen[count:assigned]:
            assert one.rows is not None
            enqueue_or_fail(ch, one.rows)
    _take_out(ch, worker, chosen[assigned : min(count, pooled)], entries[: max(0, count - pooled)])
    started = start(ch, worker, taken, found=found)
    claims.extend(started)
    if capacity.ahead > 0:
        free = capacity.room
        for one in taken:
            free = less(free, one.shape)
        claims.extend(claim_ahead(ch, worker, started, free, capacity))
    return claims


def _take_out(ch: Changes, worker: WorkerId, assignments: Sequence[Chosen], entries: Sequence[Entry]) -> None:
    """Take futures out of the places where they were chosen by snapshot: who chose one of them too conflicts."""
    keys, writes = ch.keys, ch.writes
    conflicts: list[bytes] = []
    if assignments:
        prefix = keys.assignment_rows(worker.ip, worker.port)
        conflicts += [prefix + one.e for one in assignments]
        writes.update(dict.fromkeys(conflicts))
    for key, priority, one in entries:
        _, ram, gpu, _ = keys.index_prefixes(one.shape, priority)
        writes[key] = None
        if ram:
            writes[ram + one.e] = None
        if gpu:
            writes[gpu + one.e] = None
        conflicts.append(key)
    if conflicts:
        add_read_conflict_keys(ch.tr, conflicts)


def _choose_unblocked(
    ch: Changes,
    worker: WorkerId,
    capacity: Capacity,
    free: Shape,
    limit: int,
    unblocked: Sequence[FutureRows],
    chosen: list[Chosen],
) -> Shape:
    """Choose of futures that are in no place, and enqueue the others; what stays free."""
    for f in unblocked:
        shape, _, locality = f.placement
        if locality is None and (near := near_inputs(ch, f)) is not None and near.worker != worker:
            enqueue_or_fail(ch, f)
        elif (
            len(chosen) < limit
            and (locality is None or locality.worker == worker)
            and _not_held(capacity, shape, free)
            and fits(shape, free)
        ):
            free = less(free, shape)
            chosen.append(Chosen(f.id, f.e, shape, f, locality is not None, locality.reason if locality else None))
        else:
            enqueue_or_fail(ch, f)
    return free


def _choose_wanted(ch: Changes, capacity: Capacity, free: Shape, limit: int, chosen: list[Chosen]) -> Shape:
    """Choose from the pool by id; what stays free (no less than nothing)."""
    total = (capacity.total or capacity.free).shape
    conflicts: list[bytes] = []
    for future_id in capacity.wanted:
        if len(chosen) >= limit:
            break
        f = ch.load(future_id, snapshot=True)
        if not f.exists or f.ended or f.claimed or f.backing_off:
            continue
        shape, _, locality = f.placement
        if locality is not None or not (
            fits(shape, free) or (capacity.overcommit and _may_be_overcommitted(shape, free, total))
        ):
            continue
        entry = index_keys(ch, f)
        if ch.get_many(entry[:1], snapshot=True)[0] is None:
            continue  # it waits on edges itself
        for key in entry:
            ch.clear(key)
        conflicts.append(entry[0])
        free = less(free, shape)
        chosen.append(Chosen(f.id, f.e, shape, f))
    if conflicts:
        add_read_conflict_keys(ch.tr, conflicts)
    if free[0] >= 0 and free[1] >= 0:
        return free
    return less(free, (min(0, free[0]), min(0, free[1]), 0))  # no less than nothing


def _not_held(capacity: Capacity, shape: Shape, free: Shape) -> bool:
    """Whether room that is made for something leaves this alone: where that waits for gpus or named resources, and this needs none."""
    if capacity.hold_for is None:
        return True
    held = capacity.hold_for.shape
    kept = named_of(held)
    no_gpu = not fits((0, 0, held[2]), free)
    if not no_gpu and named_fits(kept, named_of(free)):
        return False
    return not (no_gpu and shape[2]) and dict(kept).keys().isdisjoint(name for name, _ in named_of(shape))


def _may_be_overcommitted(shape: Shape, free: Shape, total: Shape) -> bool:
    """Whether it may be claimed though cpu and ram aren't free. Gpus and what is named are for one at a time, whoever waits."""
    rest = shape_of(min(0, free[0]), min(0, free[1]), shape[2], named_of(shape))
    return fits((shape[0], shape[1], 0), total) and fits(rest, free)


def first_reads(ch: Changes, worker: WorkerId, capacity: Capacity, limit: int) -> list[tuple[bytes, bytes, int]]:
    """What `take` will read of assignments and pool, as far as it is known before: (begin, end, limit)."""
    prefix = ch.keys.assignment_rows(worker.ip, worker.port)
    return [(prefix, prefix + b"\xff", max(2 * limit, 64)), first_page(ch, capacity, limit)]


def _choose_assignments(ch: Changes, worker: WorkerId, free: Shape, limit: int, chosen: list[Chosen]) -> Shape:
    """Choose from what is assigned to this incarnation, and leave it there; what stays free."""
    prefix = ch.keys.assignment_rows(worker.ip, worker.port)
    for key, e, value in ch.read_ids(prefix, limit=max(2 * limit, 64), snapshot=True):
        try:
            incarnation, reason, _, shape = codec.unpack_assignment(value)
        except RecordError as error:
            raise DamagedFutureError(decode_id(e), str(error), key) from error
        if incarnation != worker.incarnation or not fits(shape, free):
            continue
        free = less(free, shape)
        chosen.append(Chosen(decode_id(e), e, shape, None, True, reason))
        if len(chosen) >= limit:
            break
    return free


def claims_of(
    tr: Transaction, space: ClusterSpace, worker: WorkerId, limit: int = 1000, known: Set[bytes] = frozenset()
) -> list[Claim]:
    """The claims this incarnation holds, but those of the futures in `known`: what it was pushed, or lost track of."""
    ch = Changes(tr, space)
    claims: list[Claim] = []
    for one in held_claims(ch, worker.ip, worker.port, limit):
        if one.incarnation != worker.incarnation or one.id in known:
            continue
        f = ch.load(one.id)
        found = f.claim
        if found is not None and found[0] == one.token and f.claimed:
            claims.append(describe_claim(ch, f, found[1], one.token, found[3]))
    return claims


def claim_of(tr: Transaction, space: ClusterSpace, future_id: UUID | bytes, attempt: int) -> Claim | None:
    """The claim of a running future's attempt, for the code that runs in it; None if that attempt holds it no more."""
    ch = Changes(tr, space)
    f = ch.load(as_id(future_id))
    found = f.claim
    if found is None or not f.claimed or found[3] != attempt:
        return None
    return describe_claim(ch, f, found[1], found[0], attempt)


def describe_claim(ch: Changes, f: FutureRows, worker: WorkerId, token: bytes, attempt: int) -> Claim:
    """A `Claim` from the rows of a Claimed future."""
    f.check_program()
    session, code, _, _ = codec.unpack_code(f.rows[CODE])
    payload, dependencies = codec.unpack_args(f.rows.get(ARGS))
    values = ch.get_many([ch.keys.future(encode_id(up), LATEST_RESULT) for up in dependencies], snapshot=True)
    inputs = {up: result_of(up, value) for up, value in zip(dependencies, values, strict=True) if value is not None}
    shape, _, locality = f.placement
    return Claim(
        f.id,
        worker,
        token,
        attempt,
        f.epoch,
        session,
        code,
        payload,
        dependencies,
        inputs,
        shape,
        f.option("run_timeout"),
        f.name,
        f.option("call_options"),
        locality is not None,
        locality.reason if locality else None,
        limited=bool(f.option("limits")),
        claimed_with=f.claimed_with,
    )
