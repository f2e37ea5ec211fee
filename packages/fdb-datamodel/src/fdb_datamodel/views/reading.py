"""Reading the state for people and programs: nothing here writes or unpickles."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from fdb_datamodel.errors import StrayKeyError
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.elements import decode_id, encode_id, split_id
from fdb_datamodel.rows.future_rows import FutureRows
from fdb_datamodel.rows.ids import as_id, show_id
from fdb_datamodel.rows.pages import after_future, read_futures
from fdb_datamodel.rows.records import NO_SESSION, CodeDigest, FutureInfo, FutureResult, WorkerId, WorkerStatus
from fdb_datamodel.rows.requirements import Requirements, named_of
from fdb_datamodel.rows.space import ARGS, AWAY, CLAIM, CODE, DELETED, DUE, FAILURE, LATEST_RESULT, LIMITS
from fdb_datamodel.rows.states import FutureState
from fdb_datamodel.transitions.workers import list_workers
from fdb_schema import ClusterSpace, RecordError, Transaction

_PAGE_ROWS = 2000
_TOMBSTONES = 200  # looked at for the beginning of an id
_SHOWN = 1000  # edges and copies listed of one future


def get_future_state(tr: Transaction, space: ClusterSpace, future_id: UUID | bytes) -> FutureState:
    """The state, decided from the keys by serializable reads. Raises UnknownFutureError, FutureDeletedError."""
    ch = Changes(tr, space)
    return state_of(ch, ch.load_existing(as_id(future_id)))


def state_of(ch: Changes, f: FutureRows) -> FutureState:
    """The state of an existing future from its rows, and where they don't tell from its edges."""
    if f.failed:
        return FutureState.failed
    if f.realized:
        return FutureState.realized
    if f.claimed:
        return FutureState.claimed
    return FutureState.waiting if f.backing_off or ch.has_dependencies(f.e) else FutureState.unclaimed


def get_future_states(
    tr: Transaction, space: ClusterSpace, ids: Sequence[bytes], snapshot: bool = True
) -> list[FutureState | None]:
    """States of many; None for ids that are unknown or deleted."""
    ch = Changes(tr, space)
    names = (CODE, FAILURE, CLAIM, LATEST_RESULT, DUE, AWAY, LIMITS)
    encoded = [encode_id(one) for one in ids]
    values = ch.get_many([ch.keys.future(e, name) for e in encoded for name in names], snapshot)
    states: list[FutureState | None] = []
    for at, e in enumerate(encoded):
        code, failure, claim, result, due, away, limits = values[at * len(names) : (at + 1) * len(names)]
        if code is None:
            states.append(None)
        elif failure is not None:
            states.append(FutureState.failed)
        elif claim is not None:
            ended = result is not None and codec.same_token(claim, result)
            states.append(FutureState.realized if ended else FutureState.claimed)
        elif due is not None or away is not None or (limits is not None and codec.unpack_permits(limits)[1]):
            states.append(FutureState.waiting)
        else:
            waits = ch.read_ids(ch.keys.dependencies + e, limit=1, snapshot=snapshot)
            states.append(FutureState.waiting if waits else FutureState.unclaimed)
    return states


def describe_future(tr: Transaction, space: ClusterSpace, future_id: UUID | bytes) -> FutureInfo:
    """Everything known about a future, with the reason for its state, by snapshot. Raises as `get_future_state`."""
    ch = Changes(tr, space)
    f = ch.load_existing(as_id(future_id), snapshot=True)
    waiting_on = _upstreams(ch, f)
    prefix = ch.keys.results + f.e
    rows = ch.read(prefix, prefix + b"\xff", limit=_SHOWN, snapshot=True)
    copies = []
    for _, value in rows:
        with contextlib.suppress(RecordError):
            copy, inline = codec.unpack_result_row(value)
            if not inline:  # releases before format 2 wrote one beside `latest_result`
                copies.append(copy)
    with contextlib.suppress(RecordError):
        if f.result is not None and f.result.inline is not None:
            copies.insert(0, replace(f.result, inline=None))
    info = _describe(f, waiting_on, tuple(copies))
    return with_reason(info, list_workers(tr, space)) if _in_pool(info) else info


def why_unclaimed(needs: Requirements, workers: Sequence[WorkerStatus]) -> str:
    """Why a future of the pool isn't running: no workers, none large enough, or all busy."""
    if not workers:
        return "no live worker"
    offered = {name for status in workers for name, amount in named_of(status.info.total.shape) if amount}
    unknown = [name for name, _ in named_of(needs.shape) if name not in offered]
    if unknown:
        return f"unschedulable: needs {needs}, and no live worker offers {' or '.join(unknown)}"
    if not any(needs.fits(status.info.total) for status in workers):
        largest = max((status.info.total for status in workers), key=lambda total: total.shape)
        return f"unschedulable: needs {needs}, the largest live worker has {largest}"
    if named := named_of(needs.shape):
        what = ", ".join(f"{name}={amount / 1000:g}" for name, amount in named)
        return f"in the pool, waiting for a worker with {what} free"
    return "in the pool, waiting for a free worker"


def list_futures(
    tr: Transaction,
    space: ClusterSpace,
    after: bytes | None = None,
    limit: int = 100,
    state: FutureState | None = None,
    *,
    newest_first: bool = False,
) -> tuple[list[FutureInfo], bytes | None]:
    """A page of futures in the order of their ids, and where the next page starts (None: that was the last).

    Ids begin with a time: the oldest come first, or the newest with `newest_first`; `after` goes on in the same order.
    `state` filters; a page may then be short though more follow. `reason` is left brief: `with_reason` says why a future
    of the pool isn't run. By snapshot.
    """
    ch = Changes(tr, space)
    base = ch.keys.futures
    begin, end = base, base + b"\xff"
    if after is not None and newest_first:
        end = base + encode_id(after)
    elif after is not None:
        begin = after_future(ch, encode_id(after))
    page = read_futures(ch, begin, end, min(_PAGE_ROWS, 16 * limit), newest_first=newest_first)
    infos: list[FutureInfo] = []
    last: bytes | None = None
    for f in page.futures:
        last = f.id
        if f.exists:
            info = _describe(f, _upstreams(ch, f), ())
            if state is None or info.state is state:
                infos.append(info)
        if len(infos) == limit:
            return infos, last
    return infos, last if page.more else None


def ids_beginning(tr: Transaction, space: ClusterSpace, digits: str, limit: int = 2) -> list[bytes]:
    """Ids of futures that begin with these hexadecimal digits, in order, at most `limit`; a read for each. By snapshot.

    Deleted futures count only where no other begins so, as one, and where there are so many that not all are looked at.
    """
    ch = Changes(tr, space)
    base = ch.keys.futures
    first, last = (bytes.fromhex(digits.ljust(32, fill)) for fill in "0f")
    begin, end = base + encode_id(first), base + encode_id(last) + b"\xff"
    found: list[bytes] = []
    deleted: list[bytes] = []
    while len(found) < limit and len(deleted) < _TOMBSTONES:
        rows = ch.read(begin, end, limit=1, snapshot=True)
        if not rows:
            return found or deleted[:1]
        try:
            e, name = split_id(rows[0][0], len(base))
        except StrayKeyError:
            begin = rows[0][0] + b"\x00"
            continue
        (deleted if name == DELETED else found).append(decode_id(e))
        begin = after_future(ch, e)
    return (found + deleted)[:limit]


def list_downstreams(tr: Transaction, space: ClusterSpace, future_id: UUID | bytes, limit: int = 100) -> list[bytes]:
    """Ids of futures that have this one among their arguments, ended or not, at most `limit`, by snapshot."""
    ch = Changes(tr, space)
    prefix = ch.keys.named_by(encode_id(as_id(future_id)), b"")
    return [decode_id(e) for _, e, _ in ch.read_ids(prefix, limit=limit, snapshot=True)]


def _upstreams(ch: Changes, f: FutureRows) -> tuple[bytes, ...]:
    if f.ended or f.claimed or (ARGS not in f.rows and f.away is None):
        return ()
    rows = ch.read_ids(ch.keys.dependencies + f.e, limit=_SHOWN, snapshot=True)
    return tuple(decode_id(e) for _, e, _ in rows)


def _describe(f: FutureRows, waiting_on: tuple[bytes, ...], copies: tuple[FutureResult, ...]) -> FutureInfo:
    try:
        if CODE not in f.rows:
            raise RecordError("that of its code is gone")
        return _describe_whole(f, waiting_on, copies)
    except RecordError as error:  # it keeps nobody from seeing the others
        rows = {name: value for name, value in f.rows.items() if name not in f.check()}
        rows.setdefault(CODE, codec.pack_code(NO_SESSION, b"", 0))
        info = _describe_whole(FutureRows(f.id, f.e, rows), waiting_on, copies)
        return replace(info, reason=f"a row of it is damaged: {error}"[:500], details={**info.details, "damaged": True})


def _why_by_itself(f: FutureRows) -> str:
    """Why a future waits that waits by a row of its own, for neither a future nor a back-off."""
    if f.permits[1]:
        return f"waiting for a permit of limit {f.permits[1]!r}"
    if f.away is None:
        return ""
    kind, event = f.away
    what = "asleep" if kind == "sleep" else f"waiting for the event {event!r}" if kind == "event" else "waiting"
    return f"a program that is {what}"


def _state_and_reason(f: FutureRows, waiting_on: tuple[bytes, ...], worker: WorkerId | None) -> tuple[FutureState, str]:
    if f.failed:
        failure = f.failure
        return FutureState.failed, f"{failure.reason}: {failure.message}" if failure else "failed"
    if f.realized:
        result = f.result
        where = "inline" if result is None or result.inline is not None else f"on worker {result.worker}"
        return FutureState.realized, f"result {where}"
    if f.claimed:
        return FutureState.claimed, f"attempt {f.attempts} on worker {worker}"
    if (why := _why_by_itself(f)) and not waiting_on:
        return FutureState.waiting, why
    if waiting_on:
        many = f"{len(waiting_on)} futures, first" if len(waiting_on) > 1 else "1 future,"
        return FutureState.waiting, f"waiting on {many} {show_id(waiting_on[0])}"
    if f.backing_off:
        return FutureState.waiting, "back-off before the next attempt" if f.attempts else "it is to begin later"
    if worker is not None:
        return FutureState.unclaimed, f"assigned to worker {worker}"
    return FutureState.unclaimed, "in the pool"


def _describe_whole(f: FutureRows, waiting_on: tuple[bytes, ...], copies: tuple[FutureResult, ...]) -> FutureInfo:
    shape, priority, locality = f.placement
    claim = f.claim
    failure, last_failure = f.failure, f.last_failure
    worker: WorkerId | None = claim[1] if claim is not None else locality.worker if locality is not None else None
    state, reason = _state_and_reason(f, waiting_on, worker)
    if last_failure is not None and not f.ended:
        reason += f"; the last attempt failed ({last_failure.reason}: {last_failure.message})"
    session, code, wall_us, _ = codec.unpack_code(f.rows[CODE])
    args = f.rows.get(ARGS)
    lost, oom, _ = f.uncharged
    return FutureInfo(
        id=f.id,
        state=state,
        reason=reason,
        name=f.name,
        session=session,
        attempts=f.attempts,
        charged=f.charged,
        losses=lost,
        out_of_memory=oom,
        epoch=f.epoch,
        max_retries=f.max_retries,
        priority=priority,
        requirements=Requirements.from_shape(shape),
        worker=worker,
        dependencies=f.dependencies,
        waiting_on=waiting_on,
        result=f.result,
        copies=copies,
        failure=failure,
        last_failure=last_failure,
        allow_reconstruction=f.allow_reconstruction,
        code_size=None if isinstance(code, CodeDigest) else len(code),
        args_size=len(codec.unpack_args(args)[0]),
        wall_us=wall_us,
        claimed_us=claim[2] if claim is not None else failure.began_us if failure is not None else 0,
        details={name: value for name, value in f.options.items() if name not in ("name", "call_options")},
    )


def with_reason(info: FutureInfo, workers: Sequence[WorkerStatus]) -> FutureInfo:
    """A row of `list_futures` with the reason why nobody runs it, as `describe_future` has it."""
    if not _in_pool(info):
        return info
    why = why_unclaimed(info.requirements, workers)
    return replace(info, reason=info.reason.replace("in the pool", why, 1))


def _in_pool(info: FutureInfo) -> bool:
    return info.state is FutureState.unclaimed and info.worker is None
