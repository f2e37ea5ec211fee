"""The client: submits functions as durable futures to a cluster and gets their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar
from uuid import UUID

from fdb_datamodel import (
    CodeDigest,
    FutureSpec,
    Locality,
    WorkerId,
    as_id,
    delete_future,
    describe_future,
    find_worker,
    id_for_key,
    new_future_id,
    open_cluster,
    put_realized_future,
    read_results,
)
from fdb_schema import DEFAULT_CLUSTER, ClusterSpace, MainspringError, open_database
from futures_worker.client import ambient, processes
from futures_worker.client.bound import BoundOptions
from futures_worker.client.future import Future
from futures_worker.client.objects import copy_to_worker, put_on_worker
from futures_worker.client.options import DEFAULT_OPTIONS, OPTION_SET, SubmitOptions, split_address
from futures_worker.client.session import Session
from futures_worker.client.waiting import gather, wait
from futures_worker.errors import NoWorkerError, ObjectLostError
from futures_worker.payload import INLINE_RESULT_BYTES, CodeCache, dump_args, dump_result
from futures_worker.worker.task_context import current_task
from idempotent_txn import run

T = TypeVar("T")


class Client:
    """A connection to one cluster of workers.

    Threads may share a client. A forked child that uses its parent's client gets a session of its own. Leaving a
    `with` block, `close()` and the end of the process store what was submitted; futures go on without their client.
    """

    def __init__(
        self,
        url: str | Any | None = None,
        cluster: str | None = None,
        secret: bytes | None = None,
        *,
        durability: str | None = None,
    ) -> None:
        """Connect.

        Args:
            url: the database, as `fdb_schema.open_database` takes it, or an open `Database`. None: the database of the
                task this code runs in, else of the environment variable MAINSPRING_DB, else embedded:./.mainspring.
            cluster: the cluster's name; None: that of the task this code runs in, else the default one.
            secret: what the cluster's processes prove to one another that they know; None: read from the database.
            durability: of an `embedded:` database: "process" or "fsync".

        Raises DatabaseUrlError, NotADatabaseError, NewerFormatError, DatabaseUnreachableError, NameInvalidError.
        """
        task = current_task()
        if url is None and task is not None:
            url, cluster = task.url, cluster or task.cluster
        self.cluster = cluster or DEFAULT_CLUSTER
        self.closed = False
        self._space = ClusterSpace(self.cluster)
        self._url = url
        self._durability = durability
        self._secret = secret
        self._code = CodeCache()
        self._options = DEFAULT_OPTIONS
        self._fetcher: Any = None
        self._db: Any = self._open()
        run(self._db, open_cluster, self._space, strategy="off")
        self._session: Session | None = Session(self._db, self._space, self._object_fetcher)
        processes.opened(self)

    # --- submitting ---------------------------------------------------------------------------------------------------

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Submit `fn(*args, **kwargs)`; returns at once.

        The future is durable as soon as anybody waits for it, reads its `id`, calls `flush()`, or a few milliseconds have
        passed. Futures among the arguments, however deep, are waited for by the cluster and replaced by their results.

        Keywords named below are options; all others go to the function (`client.options(...).submit` passes all).

        Args:
            resources: {"cpu": cores, "ram": bytes or "2GiB", "gpu": devices}; None: a slot and nothing else.
            max_retries: further attempts after an exception of the task or a crash of its process. Default 3.
            max_worker_losses, max_oom: deaths of its worker, kills for memory, that it survives. Default 3 each.
            priority: greater runs first. Default 0.
            timeout: seconds that one attempt may run, or {"queue": s, "run": s, "total": s}. Default none.
            unschedulable_timeout: seconds after which a future that fits no worker fails. Default none.
            locality: run near this future's result, or on this worker, if possible.
            name: for people. Default: the function's.
            key: submits with the same key are the same future, whoever makes them.
            allow_reconstruction: whether a lost result may be computed again. Default True.
            retry_on: the exception types worth a retry. Default (Exception,).
            backoff: pause before a retry: seconds, or {"initial": s, "factor": 2, "maximum": s}. Default none.
            tr: submit within this transaction of yours; the future exists once it commits.

        Raises:
            TypeError: something can't be pickled, or an option doesn't exist.
            ValueError: an option's value makes no sense.
            OversizeError: the function or the arguments are over 64 MiB.
        """
        options = self._options
        if kwargs and not OPTION_SET.isdisjoint(kwargs):
            options = options.changed(**{name: kwargs.pop(name) for name in OPTION_SET & kwargs.keys()})
        return self._submit(options, fn, args, kwargs)

    def options(self, **options: Any) -> BoundOptions:
        """Options for submits to come: `client.options(timeout=5).submit(fn, *args, **every_keyword_for_fn)`."""
        return BoundOptions(self, self._options.changed(**options))

    def map(
        self, fn: Callable[..., T], *iterables: Iterable[Any], batch: int | None = None, **kwargs: Any
    ) -> list[Future[T]]:
        """Submit `fn` once per item (of several iterables, in step, until the shortest ends); the futures, in order.

        `batch`: how many futures at most go into one transaction (default: as many as fit well). Other keywords as `submit`.
        """
        if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
            raise ValueError(f"batch is a whole number, 1 or more, found {batch!r}")
        options = self._options.changed(**{name: kwargs.pop(name) for name in OPTION_SET & kwargs.keys()})
        return self._map(options, fn, iterables, batch, kwargs)

    def put(self, obj: Any, *, name: str | None = None) -> Future[Any]:
        """Store an object and get a future that is realized already.

        Small objects live in the database; others on a live worker, and are never computed again if it dies.

        Raises NoWorkerError if a large object finds no worker; TypeError if it can't be pickled.
        """
        payload = dump_result(obj)
        spec = FutureSpec(session=self._live.id, name=name or "", allow_reconstruction=False)
        if payload.nbytes > INLINE_RESULT_BYTES:
            put_on_worker(self._db, self._space, self._object_fetcher(), spec, payload)
        else:
            run(self._db, put_realized_future, self._space, spec, None, payload.to_bytes())
        return Future(self._session_of, spec.id, name or "", stored=True, subscribed=False)

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
        info = run(self._db, describe_future, self._space, task.id, strategy="off")
        if info.worker is None:
            raise MainspringError(f"the task {task.future_id} is no longer claimed by this worker")
        self._copy(future, info.worker, move=True)

    # --- collecting ---------------------------------------------------------------------------------------------------

    def gather(
        self,
        futures: Iterable[Future[T]],
        *,
        progress: bool = True,
        timeout: float | None = None,
        errors: str = "raise",
    ) -> list[T]:
        """The results of `futures`, in order.

        Args:
            progress: show a bar, in a terminal, if it takes more than a moment.
            timeout: seconds for all of it.
            errors: "raise" the first failure as soon as it happened, or "return" exceptions in the place of results.
        """
        return gather(list(futures), progress=progress, timeout=timeout, errors=errors)

    def await_all(self, futures: Iterable[Future[Any]], timeout: float | None = None) -> None:
        """Wait until all of `futures` ended; raises the first failure. Fetches no results."""
        ended = wait(futures, timeout=timeout, return_when="FIRST_EXCEPTION")
        for future in ended.done:
            error = future.exception()
            if error is not None:
                raise error
        if ended.not_done:
            raise TimeoutError(f"{len(ended.not_done)} of {len(ended.done) + len(ended.not_done)} futures did not end")

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
        ids = [future._id for future in futures]
        self.flush()
        for start in range(0, len(ids), 50):
            page = ids[start : start + 50]

            def body(tr: Any, page: list[bytes] = page) -> None:
                for future_id in page:
                    delete_future(tr, self._space, future_id)

            run(self._db, body)

    def executor(self) -> Any:
        """A `concurrent.futures.Executor` that runs on the cluster."""
        from futures_worker.client.executor import ClusterExecutor

        return ClusterExecutor(self)

    # --- life ---------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Return once everything submitted so far is in the database."""
        self._live.flush()

    def close(self) -> None:
        """Store what was submitted and let go of the session; futures go on. Closing twice is harmless."""
        if self.closed:
            return
        self.closed = True
        processes.closed(self)
        try:
            if self._session is not None:
                self._session.close()
        finally:
            if self._fetcher is not None:
                self._fetcher.close()

    def __enter__(self) -> Client:
        ambient.enter(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        ambient.leave(self)
        self.close()

    async def __aenter__(self) -> Client:
        return self.__enter__()

    async def __aexit__(self, *exc_info: object) -> None:
        import asyncio

        ambient.leave(self)
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    def __repr__(self) -> str:
        return f"<Client of cluster {self.cluster!r}{' (closed)' if self.closed else ''}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if not (self._url is None or isinstance(self._url, str)):
            raise TypeError("a client made from an open database can't be pickled: make it from a URL")
        return Client, (self._url, self.cluster)

    # --- inside -------------------------------------------------------------------------------------------------------

    @property
    def _live(self) -> Session:
        session = self._session
        if session is None:
            self._db = self._open()
            session = self._session = Session(self._db, self._space, self._object_fetcher)
            self._fetcher = None
        if self.closed:
            raise MainspringError(f"this client of cluster {self.cluster!r} is closed: make a new one")
        return session

    def _session_of(self) -> Session:
        return self._live

    def _open(self) -> Any:
        if self._url is None or isinstance(self._url, str):
            return open_database(self._url, durability=self._durability)
        return self._url

    def _object_fetcher(self) -> Any:
        if self._fetcher is None:
            from futures_worker.store_client import ObjectFetcher
            from futures_worker.store_secret import cluster_secret

            self._fetcher = ObjectFetcher(self._secret or cluster_secret(self._db, self._space))
        return self._fetcher

    def _attach(self, future_id: bytes, name: str) -> Future[Any]:
        known = self._live.pending(future_id)
        return known or Future(self._session_of, future_id, name, stored=True, subscribed=False)

    def _submit(
        self, options: SubmitOptions, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Future[Any]:
        session = self._live
        code = self._code.dump(fn)
        data, dependencies = dump_args(args, kwargs)
        name = options.name or code.name
        future_id = new_future_id() if options.key is None else id_for_key(self.cluster, options.key)
        spec = FutureSpec(
            code=CodeDigest(code.digest),
            args=data,
            id=future_id,
            session=session.id,
            dependencies=dependencies,
            name=name,
        )
        if options is not DEFAULT_OPTIONS:
            self._apply(options, spec)
            if options.key is not None:
                known = session.pending(future_id)
                if known is not None:
                    return known
        future: Future[Any] = Future(self._session_of, future_id, name, stored=False, subscribed=options.key is None)
        if options.tr is not None:
            session.submit_within(options.tr, future, spec, code)
        else:
            session.submit(future, spec, code)
        return future

    def _apply(self, options: SubmitOptions, spec: FutureSpec) -> None:
        spec.requirements = options.requirements
        spec.max_retries = options.max_retries
        spec.max_worker_losses = options.max_worker_losses
        spec.max_oom = options.max_oom
        spec.priority = options.priority
        spec.queue_timeout = options.queue_timeout
        spec.run_timeout = options.run_timeout
        spec.total_timeout = options.total_timeout
        spec.unschedulable_timeout = options.unschedulable_timeout
        spec.allow_reconstruction = options.allow_reconstruction
        spec.call_options = options.call_options
        spec.backoff = options.backoff
        spec.locality = self._locality(options.locality)

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
                (now,) = run(self._db, read_results, self._space, [future._id], strategy="off")
                if now is None:
                    raise ObjectLostError(f"{future!r} has no result any more: wait for it again")
                future._entry = entry._replace(result=now)
                continue
            if move:
                future._entry = entry._replace(result=copy)
            return

    def _worker_at(self, address: str) -> WorkerId:
        status = run(self._db, find_worker, self._space, *split_address(address), strategy="off")
        if status is None:
            raise NoWorkerError(
                f"cluster {self.cluster!r} has no live worker at {address}: see `futures-worker workers`"
            )
        return status.id

    def _locality(self, wanted: Any) -> Locality | None:
        if wanted is None or isinstance(wanted, Locality):
            return wanted
        if isinstance(wanted, WorkerId):
            return Locality(wanted)
        if isinstance(wanted, str):
            return Locality(self._worker_at(wanted))
        (result,) = run(self._db, read_results, self._space, [wanted._id], strategy="off")
        return Locality(result.worker, reason=wanted._id) if result is not None and result.worker is not None else None

    def _map(
        self,
        options: SubmitOptions,
        fn: Callable[..., Any],
        iterables: Sequence[Iterable[Any]],
        batch: int | None,
        kwargs: dict[str, Any],
    ) -> list[Future[Any]]:
        futures = []
        for number, args in enumerate(zip(*iterables, strict=False), start=1):
            futures.append(self._submit(options, fn, args, kwargs))
            if batch is not None and number % batch == 0:
                self._live.flush()
        return futures
