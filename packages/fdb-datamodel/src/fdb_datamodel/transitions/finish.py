"""Ends of claims: realize, fail, relinquish, miss inputs; and a worker's turn, which does all at once and claims next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from uuid import UUID

from fdb_datamodel.errors import ClaimLostError, OversizeError
from fdb_datamodel.lifecycle.attempts import end_attempt
from fdb_datamodel.lifecycle.copies import miss_inputs
from fdb_datamodel.lifecycle.endings import fail_for_good, finish, settle
from fdb_datamodel.lifecycle.holdings import keep_listed, members
from fdb_datamodel.lifecycle.placement import give_permits_back
from fdb_datamodel.lifecycle.programs import leave_program
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes, Ended
from fdb_datamodel.rows.elements import decode_id, encode_id, token_stamp
from fdb_datamodel.rows.future_rows import FutureRows
from fdb_datamodel.rows.ids import as_id, show_id
from fdb_datamodel.rows.records import NO_SESSION, Claim, Claims, Failure, FutureResult, Outcome, WorkerId
from fdb_datamodel.rows.requirements import Capacity
from fdb_datamodel.rows.space import LATEST_RESULT, LISTENERS, Layout, layout_of
from fdb_datamodel.rows.states import FutureState
from fdb_datamodel.transitions.claim import first_reads, take
from fdb_schema import ClusterSpace, Transaction, get_many

INLINE_RESULT_LIMIT = 90_000  # bytes


def finish_turn(
    tr: Transaction,
    space: ClusterSpace,
    worker: WorkerId,
    outcomes: Sequence[Outcome],
    capacity: Capacity,
    limit: int,
    seen: Mapping[bytes, bytes | None] = MappingProxyType({}),
) -> Claims:
    """One turn of a worker, one transaction: write outcomes, settle edges, mail waiters, claim up to `limit` futures.

    Futures unblocked by an outcome are claimed first if they fit. `capacity` is what is free after the outcomes. Outcomes
    whose claim was lost are dropped and named in `.stale`, and so is what took the result of such a one, which goes back.
    With `limit` 0 nothing is claimed.

    `seen`: rows that this same transaction has read already, by `see_turn`.

    Keep a turn under about 500 outcomes and 400 kB of inline results, which are written twice: a transaction stays under 1 MB.

    Raises WorkerFencedError: the incarnation was declared dead; none of its outcomes counts.
    """
    ch = Changes(tr, space)
    looks = limit > 0 and capacity.look
    if looks:
        ch.read_ahead(first_reads(ch, worker, capacity, limit))
    ch.load_ahead(one.claim.id for one in outcomes if one.event != "realize_future")
    stale = _realize(ch, worker, [(one.claim, one.result) for one in outcomes if one.event == "realize_future"], seen)
    retried: list[bytes] = []
    for one in outcomes:
        if one.event != "realize_future":
            f = ch.load(one.claim.id)
            if not _holds(f, one.claim):
                stale.append(f.id)
            elif _end(ch, f, one) is not FutureState.failed and one.away is None:
                retried.append(f.id)
    unblocked: list[FutureRows] = []
    while ch.ended:
        unblocked += settle(ch)
    claims = take(ch, worker, capacity, limit, unblocked, pool=looks) if unblocked or looks else Claims()
    finish(ch)
    claims.stale, claims.retried, claims.unsettled = tuple(stale), tuple(retried), ch.unsettled
    return claims


def see_turn(
    tr: Transaction, space: ClusterSpace, worker: WorkerId, claims: Sequence[Claim]
) -> dict[bytes, bytes | None]:
    """Read, serializably, what a `finish_turn` that realizes exactly these claims reads first: while they run, say."""
    keys, encoded = layout_of(space), [encode_id(claim.id) for claim in claims]
    wanted = _realize_keys(keys, worker, _lists(keys, worker, claims, encoded), encoded)
    return dict(zip(wanted, get_many(tr, wanted), strict=True))


def realize_future(tr: Transaction, space: ClusterSpace, claim: Claim, result: FutureResult | bytes) -> None:
    """The claim's future has its result (row `realize_future`): bytes are stored inline.

    Again with the same claim: nothing. Raises ClaimLostError, WorkerFencedError, OversizeError (inline over 90 kB).
    """
    if realize_futures(tr, space, [(claim, result)]):
        raise _claim_lost(claim)


def realize_futures(
    tr: Transaction, space: ClusterSpace, results: Sequence[tuple[Claim, FutureResult | bytes]]
) -> list[bytes]:
    """Realize a batch of claims of one worker; the ids whose claim was lost (dropped, not raised).

    Raises WorkerFencedError, OversizeError.
    """
    if not results:
        return []
    ch = Changes(tr, space)
    stale = _realize(ch, results[0][0].worker, results)
    finish(ch)
    return stale


def fail_future(
    tr: Transaction,
    space: ClusterSpace,
    claim: Claim,
    error: Failure | BaseException | str,
    permanently: bool = False,
) -> FutureState:
    """The attempt failed (row `fail_future`); the state it leads to.

    Failed where `permanently` or the budget that `error.reason` is charged to is used up; else Waiting for its back-off,
    or Unclaimed. Again with the same claim: the state it is in now. Raises ClaimLostError, WorkerFencedError.
    """
    if isinstance(error, BaseException):
        error = Failure("error", f"{type(error).__name__}: {error}")
    elif isinstance(error, str):
        error = Failure("error", error)
    return _finish_one(tr, space, Outcome.failed(claim, error, permanently), fenced=True)


def relinquish_claim(tr: Transaction, space: ClusterSpace, claim: Claim, reason: str = "drained") -> FutureState:
    """Give the claim back unfinished (row `relinquish_claim`); the state it leads to.

    Only reason "worker-lost" counts against a budget; it may be given by others than the worker, for a dead one. Again
    with the same claim: the state it is in now, if nobody claimed it since. Raises ClaimLostError, and WorkerFencedError
    for any other reason.
    """
    return _finish_one(tr, space, Outcome.relinquished(claim, reason), fenced=reason != "worker-lost")


def cancel_future(
    tr: Transaction,
    space: ClusterSpace,
    future_id: UUID | bytes,
    failure: Failure | None = None,
    *,
    grace: float = 0.0,
) -> FutureState:
    """Fail an unfinished future for good (row `cancel_future`), by default with reason "cancelled"; its state now.

    A Realized or Failed future is left as it is. A running one's worker is told by its mailbox ("cancel"); its outcome,
    if it comes, is stale. `grace`: seconds that its task, if it runs, has to clean up before its process is killed; of a
    program none. Raises UnknownFutureError, FutureDeletedError.
    """
    ch = Changes(tr, space)
    f = ch.load_existing(as_id(future_id))
    if f.realized:
        return FutureState.realized
    if not f.failed:
        why = failure or Failure("cancelled", f"future {show_id(f.id)} was cancelled")
        fail_for_good(ch, f, why, tell_worker=True, grace=0.0 if f.option("durable") else grace)
        finish(ch)
    return FutureState.failed


def children_of(
    tr: Transaction, space: ClusterSpace, future_id: UUID | bytes, after: bytes = b"", limit: int = 200
) -> list[bytes]:
    """A page of the futures that a future's task submitted, by snapshot, in the order of their ids from beyond `after`."""
    ch = Changes(tr, space)
    prefix = ch.keys.children + encode_id(as_id(future_id))
    begin = prefix + encode_id(after) + b"\x00" if after else prefix
    return [decode_id(e) for _, e, _ in ch.read_ids(prefix, limit, snapshot=True, begin=begin)]


def _realize(
    ch: Changes,
    worker: WorkerId,
    results: Sequence[tuple[Claim, FutureResult | bytes | None]],
    seen: Mapping[bytes, bytes | None] = MappingProxyType({}),
) -> list[bytes]:
    """Read the fence and write the results of claims that are held; the ids of the others.

    What took the result of one of these goes back: that came to nothing, as where it was cancelled after it had run.
    """
    keys = ch.keys
    futures, stored = keys.futures, keys.results
    encoded = [encode_id(claim.id) for claim, _ in results]
    lists, found, together, held = _read_lists(ch, worker, [claim for claim, _ in results], encoded, seen)
    fewer: dict[bytes, None] = {}
    writes, mail, pack = ch.writes, ch.mail, codec.pack
    here = pack("") + codec.pack_worker(worker) + pack(ch.wall_us)
    stale: list[bytes] = []
    for at, (claim, result) in enumerate(results):
        future_id, token, e, key = claim.id, claim.token, encoded[at], lists[at]
        if not held[at] or (stale and not set(stale).isdisjoint(claim.dependencies)):
            if _dropped(ch, claim, held[at]):
                stale.append(future_id)
            writes = ch.writes
            continue
        head = b"\x96\xc4\x0a" + token
        if type(result) is bytes:
            size = len(result)
            if size > INLINE_RESULT_LIMIT:
                raise _oversize(future_id, size)
            value = head + pack(result) + pack(size) + here  # which is all there is of it
        else:
            full = _complete(future_id, result, worker)
            value = codec.pack_latest_result(full, token, ch.wall_us)
            if full.inline is None:
                writes[stored + e + token_stamp(token)] = codec.pack_result_row(full, token, ch.wall_us)
        writes[futures + e + LATEST_RESULT] = value
        if claim.claimed_with:
            together[key].pop(future_id, None)  # it may be told of twice
            fewer[key] = None
        else:
            writes[key] = None
        if claim.limited:
            give_permits_back(ch, ch.load(future_id))
            writes = ch.writes
        session = claim.session
        if session != NO_SESSION:
            entries = mail.get(session)
            if entries is None:
                entries = mail[session] = []
            entries.append((future_id, "realized", value, claim.epoch))
        if found[futures + e + LISTENERS] is not None:
            ch.ended.append(Ended(future_id, e, "realized", value, claim.epoch))
    for key in fewer:
        keep_listed(ch, key, together[key], reread=bool(stale))
    return stale


def _read_lists(
    ch: Changes,
    worker: WorkerId,
    claims: Sequence[Claim],
    encoded: Sequence[bytes],
    seen: Mapping[bytes, bytes | None],
) -> tuple[list[bytes], Mapping[bytes, bytes | None], dict[bytes, dict[bytes, bytes]], list[bool]]:
    """Read the fence, and what `_realize_keys` names.

    For each claim the row that lists it; all rows; the members of those that list several; whether each claim is held.
    """
    lists = _lists(ch.keys, worker, claims, encoded)
    wanted = _realize_keys(ch.keys, worker, lists, encoded)
    found = seen if seen.keys() >= set(wanted) else dict(zip(wanted, ch.get_many(wanted), strict=True))
    ch.check_fence(worker, found[wanted[0]])
    together: dict[bytes, dict[bytes, bytes]] = {}
    held: list[bool] = []
    for key, claim in zip(lists, claims, strict=True):
        row = found[key]
        if not claim.claimed_with:
            held.append(row is not None and row[3:13] == claim.token)
            continue
        if key not in together:
            together[key] = members(key, row, claim.id)
        held.append(claim.id in together[key])
    return lists, found, together, held


def _dropped(ch: Changes, claim: Claim, held: bool) -> bool:
    """A claim that is lost, or that goes back: whether its result is of no use. Not if a run before has recorded it."""
    f = ch.load(claim.id)
    if held:
        _end(ch, f, Outcome.relinquished(claim, "its input came to nothing", started=True))
        return True
    found = f.result
    return not f.realized or found is None or found.token != claim.token


def _lists(keys: Layout, worker: WorkerId, claims: Sequence[Claim], encoded: Sequence[bytes]) -> list[bytes]:
    """For each claim the row of its worker that lists it: as `claim_key`, of a batch that few rows list."""
    held = keys.claim_rows(worker.ip, worker.port)
    first, token, key = b"", b"", b""
    lists = []
    for claim, e in zip(claims, encoded, strict=True):
        if not claim.claimed_with:
            lists.append(held + e)
            continue
        if claim.claimed_with != first or claim.token != token:
            first, token = claim.claimed_with, claim.token
            key = held + encode_id(first) + token_stamp(token)
        lists.append(key)
    return lists


def _realize_keys(keys: Layout, worker: WorkerId, lists: Sequence[bytes], encoded: Sequence[bytes]) -> list[bytes]:
    """The fence, then the rows of the worker that list the claims, then whether each has listeners."""
    futures = keys.futures
    return [
        keys.incarnation(worker.ip, worker.port),
        *dict.fromkeys(lists),
        *[futures + e + LISTENERS for e in encoded],
    ]


def _complete(future_id: bytes, result: FutureResult | bytes | None, worker: WorkerId) -> FutureResult:
    if isinstance(result, FutureResult):
        if result.inline is None:
            return FutureResult(None, result.size, result.name, result.worker or worker)
        result = result.inline
    if result is None:
        raise ValueError(f"future {show_id(future_id)} is to be realized without a result")
    if len(result) > INLINE_RESULT_LIMIT:
        raise _oversize(future_id, len(result))
    return FutureResult(bytes(result), len(result), "", worker)


def _oversize(future_id: bytes, size: int) -> OversizeError:
    return OversizeError(
        f"the result of future {show_id(future_id)} has {size:,} bytes, {INLINE_RESULT_LIMIT:,} may be inline: keep it in an "
        f"object store and realize the future with its name"
    )


def _finish_one(tr: Transaction, space: ClusterSpace, outcome: Outcome, *, fenced: bool) -> FutureState:
    ch = Changes(tr, space)
    if fenced:
        ch.fence(outcome.claim.worker)
    f = ch.load(outcome.claim.id)
    if not _holds(f, outcome.claim):
        if _already(ch, f, outcome):
            return _state(ch, f)
        raise _claim_lost(outcome.claim)
    state = _end(ch, f, outcome)
    finish(ch)
    return state


def _holds(f: FutureRows, claim: Claim) -> bool:
    found = f.claim
    return f.claimed and found is not None and found[0] == claim.token and found[1] == claim.worker


def _already(ch: Changes, f: FutureRows, outcome: Outcome) -> bool:
    """Whether a run before, whose commit's outcome wasn't known, did what `outcome` asks for."""
    if not f.exists or f.attempts != outcome.claim.attempt or f.realized or f.claimed:
        return False
    last = f.last_failure
    if outcome.event == "fail_future":
        return last is not None and last.token == outcome.claim.token
    return not f.failed


def _state(ch: Changes, f: FutureRows) -> FutureState:
    if f.failed:
        return FutureState.failed
    return FutureState.waiting if f.backing_off or ch.has_dependencies(f.e) else FutureState.unclaimed


def _end(ch: Changes, f: FutureRows, outcome: Outcome) -> FutureState:
    """A held claim's end but realized."""
    if outcome.event == "miss_inputs":
        return miss_inputs(ch, f, outcome.lost, outcome.absent)
    if outcome.away is not None:
        return leave_program(ch, f, outcome.away)
    failure = outcome.failure or Failure("error", "no reason was given")
    return end_attempt(
        ch,
        f,
        failure,
        permanently=outcome.permanently,
        returned=outcome.event == "relinquish_claim" and failure.reason != "worker-lost",
        started=outcome.started,
        requirements=outcome.requirements,
    )


def _claim_lost(claim: Claim) -> ClaimLostError:
    return ClaimLostError(
        f"attempt {claim.attempt} of future {show_id(claim.id)} on worker {claim.worker} no longer holds the future's claim: "
        f"somebody else decided its fate; drop the outcome"
    )
