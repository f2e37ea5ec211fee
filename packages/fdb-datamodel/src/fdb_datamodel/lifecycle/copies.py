"""Stored copies of results: which can be fetched, and what to do when none can."""

from __future__ import annotations

from collections.abc import Iterable

from fdb_datamodel.lifecycle.attempts import state_after_placing
from fdb_datamodel.lifecycle.endings import fail_for_good, forget_results, lose_result, place, stored_copies, timed_out
from fdb_datamodel.lifecycle.placement import add_edges, release_claim, set_timer
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.future_rows import FutureRows
from fdb_datamodel.rows.ids import show_id
from fdb_datamodel.rows.marks import Mark, read_mark
from fdb_datamodel.rows.records import Failure, FutureResult, WorkerId
from fdb_datamodel.rows.space import DUE, EPOCH, FAILURE, LATE, LATEST_RESULT, UNCHARGED
from fdb_datamodel.rows.states import FutureState

UNREACHABLE_PAUSE = 0.25  # seconds


def live_copies(ch: Changes, f: FutureRows) -> list[FutureResult]:
    """The copies of a Realized future that can be fetched: inline, or held by a live incarnation.

    Serializable reads; rows of dead incarnations are deleted, so the transaction re-reads both what it judges and by what.
    """
    latest = f.result
    if latest is None or not f.realized:
        return []
    if latest.inline is not None:
        return [latest]
    rows = [(key, copy) for key, copy, _ in stored_copies(ch, f.e)]
    holders = list(dict.fromkeys((copy.worker.ip, copy.worker.port) for _, copy in rows if copy.worker is not None))
    live = dict(zip(holders, ch.get_many([ch.keys.incarnation(ip, port) for ip, port in holders]), strict=True))
    copies: list[FutureResult] = []
    for key, copy in rows:
        holder = copy.worker
        if holder is not None and codec.incarnation_of(live[holder.ip, holder.port]) == holder.incarnation:
            copies.append(copy)
        else:
            ch.clear(key)
    return copies


def find_copy(ch: Changes, f: FutureRows, worker: WorkerId) -> tuple[bytes, FutureResult] | None:
    """The row of the copy a worker holds, and its key."""
    for key, copy, inline in stored_copies(ch, f.e):
        if not inline and copy.worker == worker:
            return key, copy
    return None


def forget_copy(ch: Changes, f: FutureRows, worker: WorkerId) -> bool:
    """Clear the row of a worker's copy; `latest_result` then names another one, if there is one. Whether it was there."""
    found = find_copy(ch, f, worker)
    if found is None:
        return False
    ch.clear(found[0])
    latest = f.result
    if latest is not None and latest.worker == worker and latest.inline is None:
        others = live_copies(ch, f)
        if others:
            name_latest(ch, f, others[0])
    return True


def name_latest(ch: Changes, f: FutureRows, copy: FutureResult) -> None:
    """Let `latest_result` name this copy; the token stays that of the claim."""
    ch.put(f, LATEST_RESULT, codec.pack_latest_result(copy, copy.token, copy.wall_us))


def recover(ch: Changes, f: FutureRows) -> list[FutureResult]:
    """Copies that can be fetched; [] after seeing to it that the future ends anew if it was Realized and all were lost."""
    if not f.realized:
        return []
    copies = live_copies(ch, f)
    if not copies:
        reconstruct(ch, f, lost=True)
    return copies


def add_copy(ch: Changes, f: FutureRows, copy: FutureResult) -> None:
    """Write the row of a further copy under its commit's stamp, or over the row its holder had."""
    value = codec.pack_result_row(copy, copy.token, copy.wall_us or ch.wall_us)
    found = find_copy(ch, f, copy.worker) if copy.worker is not None else None
    if found is not None:
        ch.set(found[0], value)
    else:
        ch.flush_rows()
        ch.tr.set_versionstamped_key(ch.keys.stamped_result(f.e), value)


def reconstruct(ch: Changes, f: FutureRows, *, lost: bool) -> FutureState:
    """Run an ended future anew in a new epoch with a fresh budget (row `resubmit_future`); the state it leads to.

    `lost`: its result is gone, and nobody asked for another run: it fails if it may not be reconstructed or has been
    too often.
    """
    if lost and not f.allow_reconstruction:
        what = "it may not be reconstructed (put, actor call, or allow_reconstruction=False)"
    elif lost and f.epoch >= f.option("max_reconstructions"):
        what = f"it was reconstructed {f.epoch} times already (max_reconstructions)"
    else:
        what = ""
    if what:
        result = f.result
        holder = f" on worker {result.worker}" if result is not None and result.worker is not None else ""
        lose_result(ch, f, Failure("object-lost", f"the result of future {show_id(f.id)}{holder} is lost and {what}"))
        return FutureState.failed
    forget_results(ch, f)
    ch.drop_claim(f)
    ch.put(f, FAILURE, None)
    ch.put(f, UNCHARGED, None)
    ch.put(f, EPOCH, codec.pack((f.epoch + 1, f.attempts)))
    place(ch, f)
    return state_after_placing(ch, f)


def begin_grace_anew(ch: Changes, f: FutureRows) -> None:
    """Somebody asked for it to run again: no sweep sees that it does, where it ends within the grace that had begun."""
    key = ch.keys.garbage + f.e
    row = ch.get_many([key])[0]
    if row is not None and (mark := read_mark(row)).since is not None:
        ch.set(key, Mark(mark.released).pack())


def miss_inputs(
    ch: Changes, f: FutureRows, lost: Iterable[bytes], absent: Iterable[tuple[bytes, WorkerId]]
) -> FutureState:
    """A Claimed future couldn't get its inputs (row `miss_inputs`): it holds nothing, is charged nothing and waits.

    `lost`: the dependencies it couldn't get. `absent`: copies whose live holder said that it has no such object; they are
    forgotten. A dependency without any copy left is computed again. Where copies are left that just couldn't be reached,
    the future waits a moment.
    """
    for upstream, holder in absent:
        up = ch.load(upstream)
        if up.realized:
            forget_copy(ch, up, holder)
    unreachable = False
    for upstream in dict.fromkeys(lost):
        unreachable |= bool(recover(ch, ch.load(upstream)))
    lost_before, oom, given_back = f.uncharged
    ch.put(f, UNCHARGED, codec.pack((lost_before, oom, given_back + 1, f.never_begun + 1)))
    if LATE in f.rows and not f.begun:
        fail_for_good(ch, f, timed_out(f, "queue"))
        return FutureState.failed
    release_claim(ch, f)
    waits, failure = add_edges(ch, f, f.dependencies)
    if failure is None and not waits and unreachable:
        ch.put(f, DUE, codec.pack(set_timer(ch, f.e, "backoff", UNREACHABLE_PAUSE)))
        return FutureState.waiting
    place(ch, f)
    return state_after_placing(ch, f)
