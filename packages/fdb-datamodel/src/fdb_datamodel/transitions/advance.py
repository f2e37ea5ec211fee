"""What time and earlier turns left over: due timers and unsettled edges, in pages, by anyone."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from fdb_datamodel.errors import StrayKeyError
from fdb_datamodel.lifecycle.endings import enqueue_or_fail, fail_for_good, finish, timed_out
from fdb_datamodel.lifecycle.limits import ADMITTED_AT_ONCE, next_in_line
from fdb_datamodel.lifecycle.placement import come_back, set_timer
from fdb_datamodel.lifecycle.programs import is_cancelled
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes, Ended
from fdb_datamodel.rows.elements import decode_id
from fdb_datamodel.rows.forms import check_key
from fdb_datamodel.rows.future_rows import FutureRows
from fdb_datamodel.rows.ids import show_id
from fdb_datamodel.rows.records import Failure
from fdb_datamodel.rows.requirements import Requirements
from fdb_datamodel.rows.space import DUE, LATE, layout_of, span
from fdb_datamodel.transitions.assign import is_unclaimed, relocate
from fdb_datamodel.transitions.schedules import next_due
from fdb_datamodel.transitions.workers import list_workers
from fdb_schema import ClusterSpace, Transaction, read_range

_UNSCHEDULABLE_RECHECK = 1.0  # seconds
Totals = Callable[[], list[Requirements]]


class Progress(NamedTuple):
    """moved: futures that changed. more: call again at once. next_due_us: cluster clock of the next timer, or None."""

    moved: int
    more: bool
    next_due_us: int | None


def advance(tr: Transaction, space: ClusterSpace, now_us: int, limit: int = 100) -> Progress:
    """Fire timers due at `now_us` of the cluster clock (back-offs, waits for locality, timeouts), settle a page of edges.

    Workers call it when `Claims.unsettled`, when idle and a few times a second; running it twice is harmless.
    """
    ch = Changes(tr, space)
    moved = 0
    totals = cache(lambda: [status.info.total for status in list_workers(tr, space, count=False)])
    begin, end = span(ch.keys.timers)
    rows = ch.read(begin, end, limit=limit + 1)
    next_due: int | None = None
    for key, _ in rows[:limit]:
        try:
            check_key(ch.keys, "timers", key)
        except StrayKeyError:
            ch.clear(key)
            continue
        due, future_id, kind = space["timers"].unpack(key)
        if due > now_us:
            next_due = due
            break
        ch.clear(key)
        f = ch.load(future_id)
        if f.exists and not f.ended:
            moved += _fire(ch, f, due, kind, now_us, totals)
    more = next_due is None and len(rows) > limit
    leftovers = ch.read_ids(ch.keys.unsettled, limit=2)
    if leftovers:
        _resume(ch, *leftovers[0][:2])
        moved += 1
    finish(ch)
    return Progress(moved, more or ch.unsettled or len(leftovers) > 1, next_due)


def how_late(tr: Transaction, space: ClusterSpace, now_us: int) -> int | None:
    """µs of the cluster clock since when there is something for `advance` to do; None: there is nothing. By snapshot."""
    keys = layout_of(space)
    for key, _ in read_range(tr, *span(keys.timers), limit=1, snapshot=True):
        try:
            check_key(keys, "timers", key)
        except StrayKeyError:
            return 0
        due = int(space["timers"].unpack(key)[0])
        if due <= now_us:
            return now_us - due
    scheduled = next_due(tr, space)
    if scheduled is not None and scheduled <= now_us:
        return now_us - scheduled
    return 0 if read_range(tr, *span(keys.unsettled), limit=1, snapshot=True) else None


def _fire(ch: Changes, f: FutureRows, due: int, kind: str, now_us: int, totals: Totals) -> int:
    """One due timer of an unfinished future; 1 if the future changed. Stale ones change nothing. `totals`: what each worker has."""
    if kind == "backoff":
        if f.due != due:
            return 0
        if f.away is not None:
            come_back(ch, f)
        ch.put(f, DUE, None)
        if not ch.has_dependencies(f.e):
            enqueue_or_fail(ch, f)
        return 1
    if kind == "locality":
        locality = f.placement[2]
        if locality is None or locality.pinned or not is_unclaimed(ch, f):
            return 0
        relocate(ch, f, None)
        return 1
    if kind == "limit":
        return _begin_next(ch, f.permits[1], now_us)
    if kind == "cancel":
        if f.option("durable") and is_cancelled(ch, f):
            told = "was cancelled, and had not ended when its grace was over"
            fail_for_good(ch, f, Failure("cancelled", f"program {show_id(f.id)} {told}"), tell_worker=True)
            return 1
        return 0
    if kind == "unschedulable":
        return _check_schedulable(ch, f, totals())
    if kind == "queue" and f.begun:
        return _ask_whether_begun(ch, f)
    fail_for_good(ch, f, timed_out(f, kind), tell_worker=True)
    return 1


def _begin_next(ch: Changes, limit: str, now_us: int) -> int:
    """A limit of starts has the next one, which one in its queue had the timer for; how many begin."""
    begun = next_in_line(ch, limit, ADMITTED_AT_ONCE, now_us) if limit else []
    for f in begun:
        enqueue_or_fail(ch, f)
    ch.unsettled |= len(begun) == ADMITTED_AT_ONCE
    return len(begun)


def _ask_whether_begun(ch: Changes, f: FutureRows) -> int:
    """The queue timeout of a future whose first claim may wait in its worker's line: only the worker knows.

    It gives back what it hasn't begun, which then fails by its mark.
    """
    claim = f.claim
    if claim is None or not f.claimed or f.attempts > f.never_begun + 1:
        return 0  # it did begin, some time
    ch.put(f, LATE, b"")
    ch.send(claim[1].incarnation, f.id, "late", None, f.epoch)
    return 1


def _check_schedulable(ch: Changes, f: FutureRows, totals: list[Requirements]) -> int:
    """Fail a queued future that no registered worker is large enough for; look again later at one that has a place."""
    shape, _, locality = f.placement
    needs = Requirements.from_shape(shape)
    if locality is None and not f.claimed and not any(needs.fits(total) for total in totals):
        seconds = f.option("unschedulable_timeout")
        largest = ", ".join(map(str, totals[:3])) or "there is no live worker"
        failure = Failure(
            "unschedulable",
            f"future {show_id(f.id)} needs {needs} and for unschedulable_timeout={seconds} s no live worker had that ({largest})",
        )
        fail_for_good(ch, f, failure)
        return 1
    set_timer(ch, f.e, "unschedulable", max(_UNSCHEDULABLE_RECHECK, float(f.option("unschedulable_timeout") or 0)))
    return 0


def _resume(ch: Changes, key: bytes, e: bytes) -> None:
    """Settle a further page of an ended future's listeners."""
    f = ch.load(decode_id(e))
    if f.deleted:
        failure = Failure("deleted", f"future {show_id(f.id)} was deleted", wall_us=ch.wall_us)
        ch.ended.append(Ended(f.id, f.e, "failed", codec.pack_failure(failure), 0))
    elif f.failed:
        ch.ended.append(Ended(f.id, f.e, "failed", f.ending, f.epoch))
    elif f.realized:
        ch.ended.append(Ended(f.id, f.e, "realized", f.ending, f.epoch))
    else:
        ch.clear(key)  # resubmitted meanwhile: its next end settles them
