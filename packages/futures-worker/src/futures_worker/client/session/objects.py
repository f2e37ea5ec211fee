"""Objects that a client stores on workers: puts that are too large for the database, copies and moves of results."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from typing import Any

from fdb_datamodel import (
    ClusterSpace,
    FutureResult,
    FutureSpec,
    WorkerFencedError,
    WorkerId,
    clone_result,
    list_workers,
    put_realized_future,
    session_lives,
    transfer_result,
)
from futures_worker.client.basis.diagnosis import start_hint
from futures_worker.database import ask, is_database_trouble
from futures_worker.errors import AuthenticationError, NoWorkerError, ObjectLostError
from futures_worker.objects.object_names import copy_name, put_name
from futures_worker.payload import ResultPayload


def put_on_worker(
    db: Any,
    space: ClusterSpace,
    fetcher: Any,
    spec: FutureSpec,
    payload: ResultPayload,
    begin_again: Callable[[], None],
) -> FutureResult:
    """Stream an object to a live worker with room for it and record it as the realized future of `spec`.

    The object's name tells the session that puts it: a worker removes what a dead one left unrecorded. `begin_again` is
    called should this session have been taken for dead while it was at it.

    Raises NoWorkerError if no live worker takes it.
    """
    refused: list[str] = []
    size = payload.nbytes
    name = put_name(spec.id, spec.session)

    def record(tr: Any, worker: WorkerId, result: FutureResult) -> bool:
        if not session_lives(tr, space, spec.session):
            return False  # the object may be gone already
        put_realized_future(tr, space, spec, worker, result)
        return True

    candidates = _by_room(db, space)
    while candidates:
        worker = candidates[0]
        try:
            fetcher.put_parts(worker.address, name, payload.parts, size)
        except (ObjectLostError, AuthenticationError) as error:
            refused.append(str(error))
            del candidates[0]
            continue
        result = FutureResult(size=size, name=name, worker=worker, wall_us=time.time_ns() // 1000)
        try:
            if not ask(db, record, worker, result):
                begin_again()
                continue
        except WorkerFencedError as error:  # declared dead while it took the object
            refused.append(str(error))
            with contextlib.suppress(ObjectLostError, AuthenticationError):
                fetcher.delete(worker.address, name)
            del candidates[0]
            continue
        return result
    raise NoWorkerError(
        f"no live worker of cluster {space.cluster!r} took an object of {size} bytes"
        f"{': ' + '; '.join(refused) if refused else f': {start_hint(db, space)}'}"
    )


def copy_to_worker(
    db: Any,
    space: ClusterSpace,
    fetcher: Any,
    future_id: bytes,
    stored: FutureResult,
    data: memoryview,
    target: WorkerId,
    *,
    move: bool,
) -> FutureResult | None:
    """Give `target` a copy of the stored result `data`, or move it there; the new copy.

    None: the result changed meanwhile, and nothing was recorded. Raises ObjectLostError if `target` can't take it.
    """
    name = copy_name(future_id)
    address = target.address
    fetcher.put(address, name, data)
    copy = FutureResult(None, stored.size, name, target, stored.token, time.time_ns() // 1000)
    try:
        if move and stored.worker is not None:
            recorded = ask(db, transfer_result, space, future_id, stored.worker, copy)
        else:
            recorded = ask(db, clone_result, space, future_id, copy)
    except Exception as error:
        if not is_database_trouble(
            error
        ):  # else, as at an interrupt, it may be recorded, and then it may be the only copy
            with contextlib.suppress(ObjectLostError, AuthenticationError):  # the caller is told what went wrong first
                fetcher.delete(address, name)
        if isinstance(error, WorkerFencedError):
            raise ObjectLostError(f"worker {target} was declared dead while it took a copy") from error
        raise
    if not recorded:
        fetcher.delete(address, name)
        return None
    return copy


def _by_room(db: Any, space: ClusterSpace) -> list[WorkerId]:
    """Live workers, those with the most free room for objects first."""
    found = ask(db, list_workers, space, strategy="off")
    random.shuffle(found)
    beating = [status for status in found if status.heartbeat is not None]
    beating.sort(key=lambda status: status.heartbeat.object_store_free if status.heartbeat else 0, reverse=True)
    return [status.id for status in beating]
