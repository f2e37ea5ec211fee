"""Results: copies, moves and deletion of stored objects, puts, and reconstruction of what was lost."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable, Sequence
from typing import Final
from uuid import UUID

from fdb_datamodel.actors import forget_actor
from fdb_datamodel.errors import FutureStateError, OversizeError
from fdb_datamodel.lifecycle.copies import (
    add_copy,
    begin_grace_anew,
    find_copy,
    forget_copy,
    name_latest,
    reconstruct,
    recover,
)
from fdb_datamodel.lifecycle.copies import live_copies as _live_copies
from fdb_datamodel.lifecycle.endings import finish, forget_results, stored_copies
from fdb_datamodel.lifecycle.placement import withdraw
from fdb_datamodel.lifecycle.programs import forget_program, prepare_again
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes, Ended
from fdb_datamodel.rows.elements import encode_id
from fdb_datamodel.rows.future_rows import FutureRows
from fdb_datamodel.rows.ids import as_id, show_id
from fdb_datamodel.rows.records import NO_SESSION, CodeDigest, Failure, FutureResult, FutureSpec, WorkerId
from fdb_datamodel.rows.space import (
    ALLOW_RECONSTRUCTION,
    CLAIM,
    CODE,
    DELETED,
    LATEST_RESULT,
    OPTIONS,
    layout_of,
)
from fdb_datamodel.streams import clear_stream
from fdb_schema import ClusterSpace, RecordError, Transaction, collect_blob, drop_reference, get_many, read_clock

BESIDE: Final = ("references", "results", "streams", "logs", "children")
"""Subspaces in which few futures have rows that are deleted with them."""
_NO_WORKER = WorkerId("", 0, bytes(16))  # who "claims" an inline put of a client


def read_results(tr: Transaction, space: ClusterSpace, ids: Sequence[bytes]) -> list[FutureResult | None]:
    """The latest result of each future, by snapshot; None for one that isn't Realized."""
    keys = layout_of(space)
    values = get_many(tr, [keys.future(encode_id(one), LATEST_RESULT) for one in ids], snapshot=True)
    return [None if value is None else codec.unpack_latest_result(value) for value in values]


def recorded_objects(
    tr: Transaction, space: ClusterSpace, worker: WorkerId, objects: Iterable[tuple[bytes, int | None]]
) -> set[str]:
    """The names of the objects that `worker` is recorded to hold, by snapshot: of a future's results, or (id, n) of its n-th item."""
    ch = Changes(tr, space)
    found: set[str] = set()
    wanted = dict.fromkeys(objects)
    items = [ch.keys.stream_item(encode_id(one), number) for one, number in wanted if number is not None]
    for value in ch.get_many(items, snapshot=True):
        with contextlib.suppress(RecordError):  # what can't be read is no item
            item = None if value is None else codec.unpack_latest_result(value)
            if item is not None and item.worker == worker:
                found.add(item.name)
    for one, number in wanted:
        if number is not None:
            continue
        for _, copy, inline in stored_copies(ch, encode_id(one), snapshot=True):
            if not inline and copy.worker == worker:
                found.add(copy.name)
    return found


def live_copies(tr: Transaction, space: ClusterSpace, future_id: UUID | bytes) -> list[FutureResult]:
    """The stored copies that can be fetched: inline, or held by a live incarnation (serializable reads).

    Rows of dead incarnations are deleted on the way. Raises UnknownFutureError, FutureDeletedError.
    """
    ch = Changes(tr, space)
    copies = _live_copies(ch, ch.load_existing(as_id(future_id)))
    ch.flush()
    return copies


def clone_result(tr: Transaction, space: ClusterSpace, future_id: UUID | bytes, copy: FutureResult) -> bool:
    """Register a further copy, held by `copy.worker`, under the original token; False if the result changed since.

    `copy.token` must be the token of the result that was copied. Again: nothing new. Raises WorkerFencedError,
    UnknownFutureError, FutureDeletedError.
    """
    ch = Changes(tr, space)
    f = _to_copy(ch, future_id, copy)
    if f is None:
        return False
    add_copy(ch, f, copy)
    ch.flush()
    return True


def transfer_result(
    tr: Transaction, space: ClusterSpace, future_id: UUID | bytes, source: WorkerId, copy: FutureResult
) -> bool:
    """Move a copy: register `copy` and forget `source`'s, which is mailed to free it; False if it changed since.

    Again: nothing new. Raises WorkerFencedError, UnknownFutureError, FutureDeletedError.
    """
    ch = Changes(tr, space)
    f = _to_copy(ch, future_id, copy)
    if f is None:
        return False
    old = find_copy(ch, f, source)
    if old is None and find_copy(ch, f, _holder(copy)) is None:
        return False
    if old is not None and source != copy.worker:
        ch.clear(old[0])
        if ch.is_live(source):
            value = codec.pack_latest_result(old[1], old[1].token, old[1].wall_us)
            ch.send(source.incarnation, f.id, "free", value, f.epoch)
    latest = f.result
    if latest is not None and latest.inline is None and latest.worker == source:
        name_latest(ch, f, copy)
    add_copy(ch, f, copy)
    ch.flush()
    return True


def drop_copy(tr: Transaction, space: ClusterSpace, future_id: UUID | bytes, worker: WorkerId) -> None:
    """Forget the copy that `worker` no longer has; `latest_result` then names another one, if there is one."""
    ch = Changes(tr, space)
    f = ch.load(as_id(future_id))
    if f.realized:
        forget_copy(ch, f, worker)
    ch.flush()


def give_up_copy(tr: Transaction, space: ClusterSpace, future_id: UUID | bytes, worker: WorkerId) -> bool:
    """Forget the copy that `worker` wants to be rid of, if another one can be fetched or none is needed; whether it may go."""
    ch = Changes(tr, space)
    f = ch.load(as_id(future_id))
    if f.realized:
        if all(copy.worker == worker for copy in _live_copies(ch, f)):
            return False
        forget_copy(ch, f, worker)
    ch.flush()
    return True


def put_realized_future(
    tr: Transaction, space: ClusterSpace, spec: FutureSpec, worker: WorkerId | None, result: FutureResult | bytes
) -> UUID:
    """Register an object as a realized future without code (row `put_realized_future`), with a synthetic claim.

    Of `spec` the id, the session, the name, `keep`, `ttl` and `dataset` count. `worker` None: an inline result of a client. Never reconstructed.
    Again: nothing. Raises WorkerFencedError, OversizeError (inline over 90 kB).
    """
    ch = Changes(tr, space)
    if worker is not None:
        ch.fence(worker)
    future_id = UUID(bytes=spec.id)
    f = ch.load(spec.id)
    if f.exists or f.deleted:
        return future_id
    if isinstance(result, bytes):
        result = FutureResult(result, len(result))
    if result.inline is not None and len(result.inline) > 90_000:
        raise OversizeError(
            f"object {future_id} has {len(result.inline):,} bytes, 90,000 may be inline: keep it in a store"
        )
    if result.inline is None and worker is None:
        raise ValueError(f"object {future_id} is neither inline nor held by a worker")
    full = FutureResult(result.inline, result.size, result.name, result.worker or worker, ch.token, ch.wall_us)
    named = codec.name_with_code(spec.name)
    ch.put(f, CODE, codec.pack_code(spec.session, b"", ch.wall_us, spec.name if named else ""))
    ch.put(f, CLAIM, codec.pack_claim(worker or _NO_WORKER, ch.token, ch.wall_us, 1))
    ch.put(f, ALLOW_RECONSTRUCTION, codec.pack(False))
    kept = FutureSpec(name="" if named else spec.name, keep=spec.keep, ttl=spec.ttl, dataset=spec.dataset)
    if (options := codec.pack_options(codec.options_of(kept))) is not None:
        ch.put(f, OPTIONS, options)
    name_latest(ch, f, full)
    if full.inline is None:
        ch.set(ch.keys.result(f.e, ch.token), codec.pack_result_row(full, ch.token, ch.wall_us))
    ch.flush()
    return future_id


def resubmit_future(tr: Transaction, space: ClusterSpace, future_id: UUID | bytes, epoch: int) -> bool:
    """Run a Realized or Failed future anew, in epoch + 1 (row `resubmit_future`); False unless `epoch` is the current one
    and the future has ended.

    `epoch` is the one the caller saw the loss or failure in: of any number of callers one succeeds. A Realized future
    that may not be reconstructed, or was `max_reconstructions` times, fails ("object-lost"): then the answer is True too.
    A program goes on from where it was, as by `resume_program`.

    Raises FutureStateError for what has no code (a call of an actor), and for a program that was told of its cancelling, UnknownFutureError, FutureDeletedError.
    """
    ch = Changes(tr, space)
    f = ch.load_existing(as_id(future_id))
    if not f.ended or f.epoch != epoch:
        return False
    if f.failed and not f.code:
        raise FutureStateError(f"future {show_id(f.id)} is a call of an actor or a put: it has no code to run again")
    if f.failed and f.option("durable"):
        prepare_again(ch, f)
    begin_grace_anew(ch, f)
    reconstruct(ch, f, lost=f.realized)
    finish(ch)
    return True


def recover_result(tr: Transaction, space: ClusterSpace, future_id: UUID | bytes, epoch: int) -> FutureResult | None:
    """A copy of the result that can be fetched; None if there is none: the future was then resubmitted, or is unfinished.

    `epoch` is the one the caller saw; a result of a later epoch is found all the same. Raises UnknownFutureError,
    FutureDeletedError.
    """
    ch = Changes(tr, space)
    f = ch.load_existing(as_id(future_id))
    copies = recover(ch, f) if f.epoch >= epoch else []
    finish(ch)
    return copies[0] if copies else None


def delete_future(tr: Transaction, space: ClusterSpace, future_id: UUID | bytes) -> list[FutureResult]:
    """Delete a future and its results (row `delete_future`); a tombstone stays. The copies, whose holders were mailed.

    An unfinished one is cancelled first; what waits for it fails ("upstream"). Again: nothing. Raises UnknownFutureError.
    """
    ch = Changes(tr, space)
    f = ch.load(as_id(future_id))
    if f.deleted:
        return []
    if not f.exists:
        ch.raise_absent(f.id, deleted=False)
    copies = erase(ch, f, read_clock(tr, space))
    finish(ch)
    return copies


def erase(ch: Changes, f: FutureRows, clock_us: int, *, absent: Container[str] = frozenset()) -> list[FutureResult]:
    """Delete a future that exists, and its results; the caller finishes `ch`. The copies, whose holders were mailed.

    absent: of `BESIDE`, those in which it was read that it has no rows.
    """
    tr, space = ch.tr, ch.keys.space
    unfinished = not f.ended
    if unfinished:
        running_on = withdraw(ch, f)
        if running_on is not None:
            ch.send(running_on.incarnation, f.id, "cancel", None, f.epoch)
    failure = codec.pack_failure(
        Failure("deleted", f"future {show_id(f.id)} was deleted", epoch=f.epoch, wall_us=ch.wall_us)
    )
    copies = [] if "results" in absent else forget_results(ch, f)
    if "streams" not in absent:
        clear_stream(ch, f)
    forget_program(ch, f)
    if f.listened:
        ch.ended.append(Ended(f.id, f.e, "failed", failure, f.epoch))
    if unfinished and f.session != NO_SESSION:
        ch.send(f.session, f.id, "failed", failure, f.epoch)
    args, dependencies = f.arguments
    parent = f.option("parent")
    if not f.allow_reconstruction:
        forget_actor(ch, f)
    for name in list(f.rows):
        ch.put(f, name, None)
    ch.set(ch.keys.future(f.e, DELETED), codec.pack((ch.wall_us, clock_us)))
    for upstream in dependencies:
        ch.clear(ch.keys.named_by(encode_id(upstream), f.e))
    ch.clear(ch.keys.garbage + f.e)
    for where, base in (("logs", ch.keys.logs), ("references", ch.keys.references), ("children", ch.keys.children)):
        if where not in absent:
            tr.clear_range(base + f.e, base + f.e + b"\xff")
    if parent:
        ch.clear(ch.keys.child(encode_id(parent), f.e))
    if isinstance(args, CodeDigest):
        ch.flush_rows()
        drop_reference(tr, space, bytes(args), f.id)
        collect_blob(tr, space, bytes(args))
    return copies


def _holder(copy: FutureResult) -> WorkerId:
    if copy.worker is None:
        raise ValueError("a copy names the worker that holds it")
    return copy.worker


def _to_copy(ch: Changes, future_id: UUID | bytes, copy: FutureResult) -> FutureRows | None:
    """The future, if it still has the result that was copied; the holder's incarnation is read."""
    ch.fence(_holder(copy))
    f = ch.load_existing(as_id(future_id))
    latest = f.result
    return f if f.realized and latest is not None and latest.token == copy.token else None
