"""How futures end, and what their end does to others: mail, edges settled, failures passed downstream.

An end is written at once; its listeners are settled before the transaction ends (`settle`), up to a page per upstream. The
rest is listed in `unsettled` and settled by `advance`, by anyone.
"""

from __future__ import annotations

import contextlib
import dataclasses

from fdb_datamodel.lifecycle.placement import (
    add_edges,
    clear_edges,
    come_back,
    enqueue,
    give_permits_back,
    upstream_failure,
    withdraw,
)
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes, Ended
from fdb_datamodel.rows.elements import decode_id, is_id
from fdb_datamodel.rows.future_rows import FutureRows
from fdb_datamodel.rows.ids import show_id
from fdb_datamodel.rows.records import Failure, FutureResult
from fdb_datamodel.rows.space import (
    DUE,
    EDGE,
    FAILURE,
    LATEST_EXCEPTION,
    LATEST_RESULT,
    LIMITS,
    LISTENERS,
    SESSION,
    WAKE,
)
from fdb_schema import RecordError

EDGES_PER_UPSTREAM = 256
EDGES_PER_TRANSACTION = 1024
BYTES_PER_TRANSACTION = 300_000  # of values that are written for listeners: a transaction stays under 1 MB


def fail_for_good(
    ch: Changes, f: FutureRows, failure: Failure, *, tell_worker: bool = False, grace: float = 0.0
) -> None:
    """Any unfinished future → Failed (rows `fail_future`, `cancel_future`, `expire_future`, `settle_edge`).

    `tell_worker`: the worker that runs it doesn't know yet and is mailed "cancel"; its task has `grace` seconds to end.
    """
    failure = dataclasses.replace(failure, attempt=failure.attempt or f.attempts, wall_us=failure.wall_us or ch.wall_us)
    if not failure.chain:
        failure = dataclasses.replace(failure, epoch=f.epoch)
    running_on = withdraw(ch, f)
    if running_on is not None and tell_worker:
        ch.send(running_on.incarnation, f.id, "cancel", codec.pack(float(grace)) if grace else None, f.epoch)
    write_failure(ch, f, failure)


def timed_out(f: FutureRows, kind: str) -> Failure:
    """What a future fails with whose `queue_timeout` or `total_timeout` has passed."""
    seconds = f.option(kind + "_timeout")
    what = "it was not started" if kind == "queue" else "it did not end"
    return Failure("timeout", f"future {show_id(f.id)} timed out: {what} within {kind}_timeout={seconds} s")


def write_failure(ch: Changes, f: FutureRows, failure: Failure) -> None:
    """Write the terminal failure of a future that is in no other place any more; permits that it had are the next ones'."""
    if LIMITS in f.rows:
        give_permits_back(ch, f)
    value = codec.pack_failure(failure)
    ch.put(f, FAILURE, value)
    announce(ch, f, "failed", value)


def lose_result(ch: Changes, f: FutureRows, failure: Failure) -> None:
    """Realized → Failed (row `lose_result`): every copy is gone and it may not be computed again."""
    forget_results(ch, f)
    ch.drop_claim(f)
    ch.put(f, LATEST_EXCEPTION, codec.pack_failure(failure))
    write_failure(ch, f, dataclasses.replace(failure, epoch=f.epoch, attempt=f.attempts, wall_us=ch.wall_us))


def forget_results(ch: Changes, f: FutureRows) -> list[FutureResult]:
    """Clear `latest_result` and every row of `results`; holders are mailed to free theirs. The copies that weren't inline."""
    prefix = ch.keys.results + f.e
    copies: list[FutureResult] = []
    for key, value in ch.read(prefix, prefix + b"\xff"):
        ch.clear(key)
        with contextlib.suppress(RecordError):  # what can't be read is no copy
            copy, inline = codec.unpack_result_row(value)
            if not inline:
                copies.append(copy)
                free_copy(ch, f, copy)
    ch.put(f, LATEST_RESULT, None)
    return copies


def stored_copies(ch: Changes, e: bytes, snapshot: bool = False) -> list[tuple[bytes, FutureResult, bool]]:
    """(key, copy, whether it is inline) of each row of `results`; what can't be read is no copy."""
    prefix = ch.keys.results + e
    found: list[tuple[bytes, FutureResult, bool]] = []
    for key, value in ch.read(prefix, prefix + b"\xff", snapshot=snapshot):
        with contextlib.suppress(RecordError):
            found.append((key, *codec.unpack_result_row(value)))
    return found


def free_copy(ch: Changes, f: FutureRows, copy: FutureResult) -> None:
    """Tell the holder of a copy, if it lives, that nobody will ask for it again."""
    if copy.worker is not None and ch.is_live(copy.worker):
        ch.send(
            copy.worker.incarnation, f.id, "free", codec.pack_latest_result(copy, copy.token, copy.wall_us), f.epoch
        )


def announce(ch: Changes, f: FutureRows, kind: str, value: bytes) -> None:
    """Mail the submitter of a future that ended, and note its listeners for `settle`."""
    ch.send(f.session, f.id, kind, value, f.epoch)
    if f.listened:
        ch.ended.append(Ended(f.id, f.e, kind, value, f.epoch))


def settle(ch: Changes) -> list[FutureRows]:
    """Settle the listeners of what ended in this transaction (row `settle_edge`), failures through all generations.

    Returns the futures whose last edge this cleared: the caller claims or enqueues each of them.
    """
    unblocked: dict[bytes, FutureRows] = {}
    released: dict[bytes, None] = {}
    budget = _Budget()
    while ch.ended or released:
        if ch.ended:
            _settle_one(ch, ch.ended.pop(), released, budget)
            continue
        ch.load_ahead(map(decode_id, released))
        for e in released:
            if not ch.has_dependencies(e):
                down = ch.load(decode_id(e))
                if down.away is not None:
                    come_back(ch, down)
                if down.exists and not down.ended and not down.claimed and not down.backing_off:
                    if down.option("limits"):
                        enqueue_or_fail(ch, down)  # it may have to wait for a permit
                    else:
                        unblocked[down.id] = down
        released.clear()
    return list(unblocked.values())


class _Budget:
    """What may still be settled in this transaction."""

    def __init__(self) -> None:
        self.edges = EDGES_PER_TRANSACTION
        self.bytes = BYTES_PER_TRANSACTION


def _settle_one(ch: Changes, up: Ended, released: dict[bytes, None], budget: _Budget) -> None:
    """Settle a page of one future's listeners; list it as unsettled if there are more."""
    prefix = ch.keys.listeners + up.e
    page = min(EDGES_PER_UPSTREAM, budget.edges)
    rows = ch.read(prefix, prefix + b"\xff", limit=page + 1)
    failure = codec.unpack_failure(up.value) if up.kind == "failed" and up.value is not None else None
    size = len(up.value or b"")
    done = 0
    for key, asked in rows[:page]:
        if budget.bytes <= 0:
            break
        done += 1
        ch.clear(key)
        rest = key[len(prefix) :]
        kind = next((kind for kind in (SESSION, WAKE) if rest.startswith(kind)), EDGE)
        e = rest[len(kind) :]
        if not rest.startswith(kind) or not is_id(e):
            continue  # a stray; it goes with the others
        if kind is SESSION:
            ch.send(decode_id(e), up.id, up.kind, up.value, up.epoch)
            budget.bytes -= size
            continue
        ch.clear(ch.keys.dependency(e, up.e))
        if kind is WAKE and _waits_until(asked) in ("first", "failure" if failure is not None else ""):
            clear_edges(ch, ch.load(decode_id(e)))  # this end is enough
        if failure is None or kind is WAKE:
            released[e] = None
            continue
        down = ch.load(decode_id(e))
        if down.exists and not down.ended and not down.claimed:
            released.pop(e, None)
            clear_edges(ch, down)
            fail_waiting(ch, down, upstream_failure(down, up.id, failure))
            budget.bytes -= 2 * size + 100
    budget.edges -= done
    if done < len(rows):
        ch.set(ch.keys.unsettled + up.e, b"")
        ch.unsettled = True
        ch.ring_pool()
    else:
        ch.clear(ch.keys.future(up.e, LISTENERS))
        ch.clear(ch.keys.unsettled + up.e)


def _waits_until(asked: bytes) -> str | None:
    """Of how many ends a program is to be told; of the first where that can't be read, since it looks by itself."""
    try:
        return codec.unpack_edge(asked)[1]
    except RecordError:
        return "first"


def fail_waiting(ch: Changes, f: FutureRows, failure: Failure) -> None:
    """Waiting → Failed for an upstream's failure; its edges are cleared already."""
    failure = dataclasses.replace(failure, attempt=f.attempts, wall_us=ch.wall_us)
    ch.put(f, DUE, None)
    write_failure(ch, f, failure)


def enqueue_or_fail(ch: Changes, f: FutureRows, *, anywhere: bool = False) -> None:
    """Make a future that holds no place claimable; a pinned one whose worker is gone ends."""
    failure = enqueue(ch, f, anywhere=anywhere)
    if failure is not None:
        write_failure(ch, f, dataclasses.replace(failure, wall_us=ch.wall_us))


def place(ch: Changes, f: FutureRows) -> None:
    """Put a future that holds no place (and has no back-off) where it belongs now: on edges, in the pool, with a worker.

    One whose upstream failed ends. One that waits for inputs holds no permits: what makes them may need these.
    """
    waits, failure = add_edges(ch, f, f.dependencies)
    if waits and LIMITS in f.rows:
        give_permits_back(ch, f)
    if failure is not None:
        clear_edges(ch, f)
        write_failure(ch, f, dataclasses.replace(failure, attempt=f.attempts, wall_us=ch.wall_us))
    elif not waits:
        enqueue_or_fail(ch, f)


def finish(ch: Changes) -> None:
    """The end of a transition outside a turn: settle, enqueue what was unblocked, hand everything to the transaction."""
    while ch.ended:
        for down in settle(ch):
            enqueue_or_fail(ch, down)
    ch.flush()
