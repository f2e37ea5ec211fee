"""What a client does with results as data: puts, copies, moves, deletes, and futures found again by their id."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from fdb_datamodel import (
    DamagedFutureError,
    FutureSpec,
    WorkerId,
    as_id,
    delete_future,
    describe_future,
    hold_futures,
    id_for_key,
    put_realized_future,
    read_results,
    set_apart,
)
from fdb_schema import MainspringError
from futures_worker.client.basis import processes, untouched
from futures_worker.client.basis.options import DEFAULT_OPTIONS, SubmitOptions, read_key
from futures_worker.client.basis.program import current_program
from futures_worker.client.basis.record import FutureRecord
from futures_worker.client.context import ClientContext, worker_context
from futures_worker.client.future import Future, record_of
from futures_worker.client.session.objects import copy_to_worker, put_on_worker
from futures_worker.client.submits.locality import worker_at
from futures_worker.client.waiting.waits import check_futures
from futures_worker.database import ask
from futures_worker.errors import ObjectLostError
from futures_worker.payload import INLINE_RESULT_BYTES, dump_result
from futures_worker.streams import read_items_by
from futures_worker.worker.child.task_context import current_task

DELETED_AT_ONCE = 50  # futures of one transaction


def put(
    context: ClientContext, obj: Any, *, name: str | None = None, keep: bool | None = None, ttl: float | None = None
) -> Future[Any]:
    """See `Client.put`."""
    options = DEFAULT_OPTIONS.changed(name=name, keep=keep, ttl=ttl)
    program = current_program()
    if program is not None:
        return program.put(context, options.name, lambda: put_with(context, options, obj))  # type: ignore[no-any-return]
    return put_with(context, options, obj)


def put_with(context: ClientContext, options: SubmitOptions, obj: Any) -> Future[Any]:
    """The same with options that were checked."""
    payload = dump_result(obj)
    session = context()
    session.life.begin()
    spec = FutureSpec(
        session=session.id, name=options.name, keep=options.kept, ttl=options.ttl, dataset=options.dataset
    )
    if payload.nbytes > INLINE_RESULT_BYTES:
        put_on_worker(context.db, context.space, context.object_fetcher(), spec, payload, session.life.return_again)
    else:
        ask(context.db, put_realized_future, context.space, spec, None, payload.to_bytes())
    contained = payload.contained_in(context.origin.identity)
    if contained:
        ask(context.db, hold_futures, context.space, contained, outer=spec.id)
    record = FutureRecord(spec.id, options.name, stored=True, subscribed=False)
    record.life = session.life
    session.life.hold(spec.id)
    return Future(context, record)


def own_worker(context: ClientContext) -> WorkerId:
    """The worker that runs the task this is called in. Raises MainspringError elsewhere."""
    task = current_task()
    if task is None:
        raise MainspringError("take_ownership is called inside a task: elsewhere use client.transfer(future, worker)")
    worker = ask(context.db, describe_future, context.space, task.id, strategy="off").worker
    if worker is None:
        raise MainspringError(f"the task {task.future_id} is no longer claimed by this worker")
    return worker


def copy(context: ClientContext, future: Future[Any], worker: Any, *, move: bool) -> None:
    """See `Client.clone` and `Client.transfer`."""
    target = worker if isinstance(worker, WorkerId) else worker_at(context, worker)
    session = context()
    while True:
        error = future.exception()
        if error is not None:
            raise error
        record = record_of(future)
        entry = record.entry
        stored = entry.result if entry is not None else None
        if entry is None or stored is None or stored.inline is not None or stored.worker == target:
            return
        data = session.results.fetch(record, stored, True, None)
        if data is None:
            continue  # it was lost: wait for it anew
        made = copy_to_worker(
            context.db, context.space, context.object_fetcher(), record.id, stored, data, target, move=move
        )
        if made is None:  # it moved, or was computed again, meanwhile
            (now,) = ask(context.db, read_results, context.space, [record.id], strategy="off")
            if now is None:
                raise ObjectLostError(f"{future!r} has no result any more: wait for it again")
            record.entry = entry._replace(result=now)
            continue
        if move:
            record.entry = entry._replace(result=made)
        return


def find(context: ClientContext, future_id: UUID | bytes | str | None, key: str | None = None) -> Future[Any]:
    """See `Client.get_future`."""
    if (future_id is None) == (key is None):
        found = "neither" if key is None else f"the id {future_id!r} and the key {key!r}"
        raise TypeError(f"get_future takes the id of a future, or the key= it was submitted with, found {found}")
    if future_id is None:
        future_id = id_for_key(context.cluster, read_key(key))
    if isinstance(future_id, str):
        try:
            future_id = UUID(future_id)
        except ValueError:
            raise ValueError(f"{future_id!r} is no id of a future: give the UUID that its `id` shows") from None
    known_id, session = as_id(future_id), context()
    known = session.pending.get(known_id)
    if known is not None:
        return Future(context, known)
    record = FutureRecord(known_id, stored=True, subscribed=False)
    if not session.share(record):  # with another handle, which may go before this one
        untouched.note(context, record)
    return Future(context, record)


def delete_all(context: ClientContext, futures: Iterable[Future[Any]]) -> None:
    """See `Client.delete_all`."""
    ids = [record_of(future).id for future in check_futures(futures, "delete")]
    context().flush()
    processes.flush_others(context, ids)
    for start in range(0, len(ids), DELETED_AT_ONCE):
        page = ids[start : start + DELETED_AT_ONCE]

        def body(tr: Any, page: list[bytes] = page) -> None:
            for future_id in page:
                delete_future(tr, context.space, future_id)

        damaged: set[bytes] = set()
        while True:
            try:
                ask(context.db, body)
                break
            except DamagedFutureError as error:
                if error.id in damaged:
                    raise
                damaged.add(error.id)
                set_apart(context.db, context.space, error)  # without its damaged rows it can be deleted


read_items_by(lambda future_id: find(worker_context(), future_id).stream())
