"""What a failed, lost or returned attempt is charged to, and where its future goes: again, later, or Failed."""

from __future__ import annotations

import dataclasses

from fdb_datamodel.lifecycle.endings import fail_for_good, place, timed_out
from fdb_datamodel.lifecycle.placement import release_claim, set_timer
from fdb_datamodel.lifecycle.programs import has_come_further
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.future_rows import FutureRows
from fdb_datamodel.rows.records import SHORTAGE, Failure
from fdb_datamodel.rows.requirements import Requirements
from fdb_datamodel.rows.space import DUE, LATE, LATEST_EXCEPTION, REQUIREMENTS, UNCHARGED
from fdb_datamodel.rows.states import FutureState

#: Reasons that no retry can mend.
PERMANENT_REASONS = frozenset({"unpickle", "result-pickle", "oversize"})

#: Seconds before an attempt that a shortage of its host ended is tried again: the first time, and at most.
_SHORTAGE_PAUSE, _SHORTAGE_MOST = 0.5, 30.0


def end_attempt(
    ch: Changes,
    f: FutureRows,
    failure: Failure,
    *,
    permanently: bool = False,
    returned: bool = False,
    started: bool = True,
    requirements: Requirements | None = None,
) -> FutureState:
    """A Claimed future's attempt ended without a result (rows `fail_future`, `relinquish_claim`); the state it leads to.

    Charged to max_worker_losses ("worker-lost"), to max_oom ("oom"), to nothing (`returned`), else to max_retries, and where
    there is one to max_restarts, each that `started`. A future that may start once only is failed by any end of such an
    attempt. `requirements`: what the retry
    needs instead.
    """
    if f.option("durable") and has_come_further(ch, f):
        # All before this attempt is forgiven: what counts is how often it ends at one and the same place.
        ch.put(f, UNCHARGED, codec.pack((0, 0, f.attempts - f.attempts_before_epoch - 1, f.never_begun)))
    once = f.max_retries == 0 and f.option("max_worker_losses") == 0 and f.option("max_oom") == 0
    over = _charge(ch, f, failure, returned, started)
    claim = f.claim
    failure = dataclasses.replace(failure, attempt=f.attempts, epoch=f.epoch, wall_us=ch.wall_us)
    if claim is not None:
        token, worker, began_us, _ = claim
        failure = dataclasses.replace(failure, token=token, began_us=began_us, worker=f"{worker.ip}:{worker.port}")
    if not returned or failure.reason == SHORTAGE:
        ch.put(f, LATEST_EXCEPTION, codec.pack_failure(failure))
    if returned and LATE in f.rows and not f.begun:
        fail_for_good(ch, f, timed_out(f, "queue"))
        return FutureState.failed
    if permanently or over or failure.reason in PERMANENT_REASONS or (once and started):
        fail_for_good(ch, f, failure)
        return FutureState.failed
    release_claim(ch, f)
    if requirements is not None:
        _, priority, locality = f.placement
        ch.put(f, REQUIREMENTS, codec.pack_requirements(requirements.shape, priority, locality))
    if failure.reason == SHORTAGE:
        pause = min(_SHORTAGE_MOST, _SHORTAGE_PAUSE * 2.0 ** min(f.uncharged[2] - 1, 16))
    else:
        pause = 0.0 if returned or failure.reason == "worker-lost" else backoff_seconds(f)
    if pause > 0:
        ch.put(f, DUE, codec.pack(set_timer(ch, f.e, "backoff", pause)))
        return FutureState.waiting
    place(ch, f)
    return state_after_placing(ch, f)


def _charge(ch: Changes, f: FutureRows, failure: Failure, returned: bool, started: bool) -> bool:
    """Count an attempt that ended among those that it is charged to; whether these are more than its future may have."""
    lost, oom, given_back = before = f.uncharged
    never_begun = f.never_begun
    if failure.reason == "worker-lost":
        lost += 1
        over = lost > f.option("max_worker_losses")
    elif failure.reason == "oom":
        oom += 1
        over = oom > f.option("max_oom")
    elif returned:
        # What counts its restarts has lost its state by any end of an attempt that started.
        given_back += 0 if started and f.option("max_restarts") is not None else 1
        never_begun += 0 if started else 1
        over = False
    else:
        over = f.charged > f.max_retries
    if (restarts := f.option("max_restarts")) is not None:
        over = over or f.attempts - f.attempts_before_epoch - given_back > restarts
    if (lost, oom, given_back) != before:
        ch.put(f, UNCHARGED, codec.pack((lost, oom, given_back, never_begun)))
    return bool(over)


def backoff_seconds(f: FutureRows) -> float:
    """The pause before the next attempt; an out-of-memory retry counts as a charged one here."""
    backoff = codec.backoff_of(f.options)
    if backoff is None or backoff.initial <= 0:
        return 0.0
    failures = max(1, f.charged + f.uncharged[1])
    try:
        return float(min(backoff.maximum, backoff.initial * backoff.factor ** min(failures - 1, 64)))
    except OverflowError:
        return float(backoff.maximum)


def state_after_placing(ch: Changes, f: FutureRows) -> FutureState:
    """The state of a future that was just placed in this transaction."""
    if f.failed:
        return FutureState.failed
    return FutureState.waiting if f.backing_off or ch.has_dependencies(f.e) else FutureState.unclaimed
