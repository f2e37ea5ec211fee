"""What a client does with results as data: puts, copies, moves, deletes, and futures found again by their id."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from fdb_datamodel import (
    ClusterSpace,
    DamagedFutureError,
    FutureSpec,
    WorkerId,
    as_id,
    delete_future,
    describe_future,
    find_worker,
    hold_futures,
    put_realized_future,
    read_results,
    set_apart,
)
from fdb_schema import MainspringError, Origin
from futures_worker.client import processes, untouched
from futures_worker.client.future import Future
from futures_worker.client.home import ClientHome
from futures_worker.client.objects import copy_to_worker, put_on_worker
from futures_worker.client.options import DEFAULT_OPTIONS, SubmitOptions, split_address
from futures_worker.client.session import Session
from futures_worker.client.waiting import check_futures
from futures_worker.database import ask
from futures_worker.errors import NoWorkerError, ObjectLostError
from futures_worker.payload import INLINE_RESULT_BYTES, dump_result
from futures_worker.worker.task_context import current_task


class DataMethods:
    """The part of `Client` that moves data."""

    cluster: str
    origin: Origin
    _session_of: ClientHome
    _space: ClusterSpace
    _db: Any

    @property
    def _live(self) -> Session:
        raise NotImplementedError

    def _object_fetcher(self) -> Any:
        raise NotImplementedError

    def flush(self) -> None:
        """Return once everything submitted so far is in the database."""
        self._live.flush()

    def put(
        self, obj: Any, *, name: str | None = None, keep: bool | None = None, ttl: float | None = None
    ) -> Future[Any]:
        """Store an object and get a future that is realized already.

        Small objects live in the database; others on a live worker, and are never computed again if it dies. `name`, `keep`
        and `ttl` as of `submit`.

        Raises NoWorkerError if a large object finds no worker; TypeError if it can't be pickled.
        """
        return self._put(DEFAULT_OPTIONS.changed(name=name, keep=keep, ttl=ttl), obj)

    def _put(self, options: SubmitOptions, obj: Any) -> Future[Any]:
        payload = dump_result(obj)
        session = self._live
        session.keeping.begin()
        spec = FutureSpec(
            session=session.id, name=options.name, keep=options.kept, ttl=options.ttl, dataset=options.dataset
        )
        if payload.nbytes > INLINE_RESULT_BYTES:
            put_on_worker(self._db, self._space, self._object_fetcher(), spec, payload, session.keeping.return_again)
        else:
            ask(self._db, put_realized_future, self._space, spec, None, payload.to_bytes())
        contained = payload.contained_in(self.origin.identity)
        if contained:
            ask(self._db, hold_futures, self._space, contained, outer=spec.id)
        future: Future[Any] = Future(self._session_of, spec.id, options.name, stored=True, subscribed=False)
        future._session = session
        session.keeping.hold(spec.id)
        return future

    def clone(self, future: Future[Any], worker: Any) -> None:
        """Give a worker (a `WorkerId` or its address "ip:port") a copy of the result, so that it survives the holder.

        Waits for the result; nothing is done for small ones, which live in the database. Raises what `result` raises,
        NoWorkerError, and ObjectLostError if the worker can't take it.
        """
        self._copy(future, worker, move=False)

    def transfer(self, future: Future[Any], worker: Any) -> None:
        """Move the result to a worker, as `clone`; the worker that held it frees its copy."""
        self._copy(future, worker, move=True)

    def take_ownership(self, future: Future[Any]) -> None:
        """Inside a task: move the result to the worker that runs the task."""
        task = current_task()
        if task is None:
            raise MainspringError(
                "take_ownership is called inside a task: elsewhere use client.transfer(future, worker)"
            )
        info = ask(self._db, describe_future, self._space, task.id, strategy="off")
        if info.worker is None:
            raise MainspringError(f"the task {task.future_id} is no longer claimed by this worker")
        self._copy(future, info.worker, move=True)

    def get_future(self, future_id: UUID | bytes | str) -> Future[Any]:
        """The future with this id, whichever process submitted it, dead or alive.

        Raises ValueError for what is no id. An id that no future has is found out by the first wait or `state()`:
        UnknownFutureError.
        """
        if isinstance(future_id, str):
            try:
                future_id = UUID(future_id)
            except ValueError:
                raise ValueError(f"{future_id!r} is no id of a future: give the UUID that its `id` shows") from None
        return self._attach(as_id(future_id), "")

    def delete(self, future: Future[Any]) -> None:
        """Delete a future and its results. Whoever asks for them later gets FutureDeletedError."""
        self.delete_all([future])

    def delete_all(self, futures: Iterable[Future[Any]]) -> None:
        """Delete several futures and their results."""
        ids = [future._id for future in check_futures(futures, "delete")]
        self.flush()
        processes.flush_others(self, ids)
        for start in range(0, len(ids), 50):
            page = ids[start : start + 50]

            def body(tr: Any, page: list[bytes] = page) -> None:
                for future_id in page:
                    delete_future(tr, self._space, future_id)

            damaged: set[bytes] = set()
            while True:
                try:
                    ask(self._db, body)
                    break
                except DamagedFutureError as error:
                    if error.id in damaged:
                        raise
                    damaged.add(error.id)
                    set_apart(self._db, self._space, error)  # without its damaged rows it can be deleted

    # --- inside ---

    def _copy(self, future: Future[Any], worker: Any, *, move: bool) -> None:
        target = worker if isinstance(worker, WorkerId) else self._worker_at(worker)
        session = self._live
        while True:
            error = future.exception()
            if error is not None:
                raise error
            entry = future._entry
            stored = entry.result if entry is not None else None
            if entry is None or stored is None or stored.inline is not None or stored.worker == target:
                return
            data = session.fetch(future, stored, True)
            if data is None:
                continue  # it was lost: wait for it anew
            copy = copy_to_worker(
                self._db, self._space, self._object_fetcher(), future._id, stored, data, target, move=move
            )
            if copy is None:  # it moved, or was computed again, meanwhile
                (now,) = ask(self._db, read_results, self._space, [future._id], strategy="off")
                if now is None:
                    raise ObjectLostError(f"{future!r} has no result any more: wait for it again")
                future._entry = entry._replace(result=now)
                continue
            if move:
                future._entry = entry._replace(result=copy)
            return

    def _worker_at(self, address: str) -> WorkerId:
        status = ask(self._db, find_worker, self._space, *split_address(address), strategy="off")
        if status is None:
            raise NoWorkerError(
                f"cluster {self.cluster!r} has no live worker at {address}: see `futures-worker workers`"
            )
        return status.id

    def _attach(self, future_id: bytes, name: str) -> Future[Any]:
        session = self._live
        known = session.pending(future_id)
        if known is not None:
            return known
        future: Future[Any] = Future(self._session_of, future_id, name, stored=True, subscribed=False)
        if session.keeping.share(future_id):  # by another handle, which may go before this one
            future._session = session
        else:
            untouched.note(future)
        return future
