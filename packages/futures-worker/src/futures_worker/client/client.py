"""The client: submits functions as durable futures to a cluster and gets their results."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from inspect import isgeneratorfunction
from typing import Any, TypeVar

from fdb_datamodel import (
    CodeDigest,
    FutureSpec,
    Locality,
    WorkerId,
    id_for_key,
    new_future_id,
    open_cluster,
    read_results,
)
from fdb_schema import (
    DEFAULT_CLUSTER,
    ClusterSpace,
    MainspringError,
    Origin,
    cluster_identity,
    open_database,
    tracing,
    url_of,
)
from fdb_schema.keyspace import CLUSTER_VARIABLE
from futures_worker.client import ambient, processes
from futures_worker.client.actors import ACTOR_OPTIONS, Actor, end_actor, end_own_actors, get_actor, make_actor
from futures_worker.client.bound import BoundOptions
from futures_worker.client.data import DataMethods
from futures_worker.client.dataset import Dataset, make_dataset
from futures_worker.client.executor import ClusterExecutor
from futures_worker.client.future import Future
from futures_worker.client.home import ClientHome
from futures_worker.client.inputs import MOST_INPUTS, join, joined
from futures_worker.client.large_arguments import LARGE, note_large
from futures_worker.client.options import (
    DEFAULT_OPTIONS,
    OPTION_NAMES,
    OPTION_SET,
    SubmitOptions,
    check_defaults,
    options_of,
)
from futures_worker.client.session import Session
from futures_worker.client.spelling import check_keywords
from futures_worker.client.waiting import check_futures, gather, wait
from futures_worker.database import ask
from futures_worker.payload import CodeCache, arguments_digest, dump_args_and_names, dump_function
from futures_worker.worker.task_context import current_task

T = TypeVar("T")


def _begin(tr: Any, space: ClusterSpace) -> bytes:
    """Check that this release can read the cluster; its identity."""
    open_cluster(tr, space)
    return cluster_identity(tr, space)


class Client(DataMethods):
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
        **options: Any,
    ) -> None:
        """Connect.

        Args:
            url: the database, as `fdb_schema.open_database` takes it, or an open `Database`. None: the database of the
                task this code runs in, else of the environment variable MAINSPRING_DB, else embedded:./.mainspring.
            cluster: the cluster's name; None: that of the task this code runs in, else of the environment variable
                MAINSPRING_CLUSTER, else the default one.
            secret: what the cluster's processes prove to one another that they know; None: read from the database.
            durability: of an `embedded:` database: "process" or "fsync".
            options: those of `submit`, as this client's defaults for `submit`, `map` and datasets: `max_retries=0`.

        Raises DatabaseUrlError, NotADatabaseError, NewerFormatError, DatabaseUnreachableError, NameInvalidError.
        """
        task = current_task()
        inside = url is None and task is not None
        if url is None and task is not None:
            url, cluster = task.url, cluster or task.cluster
        self.cluster = cluster or os.environ.get(CLUSTER_VARIABLE) or DEFAULT_CLUSTER
        self.closed = False
        self._space = ClusterSpace(self.cluster)
        self._durability = durability
        self._secret = secret
        self._code = CodeCache()
        self._defaults = options
        self._options = check_defaults(options) if options else DEFAULT_OPTIONS
        self._fetcher: Any = None
        given = url is not None and not isinstance(url, str)
        self._db: Any = url if given else open_database(url, durability=durability, create=not inside)
        self._url = url_of(self._db)  # with an absolute path: a fork or a task may run in another directory
        self._from_url = not given or not (self._url or "memory:").startswith("memory:")
        self.origin = Origin(self.cluster, ask(self._db, _begin, self._space, strategy="off"), self._url)
        self._session_of = ClientHome(self)
        self._own_actors: list[bytes] = []  # unnamed ones, which end with this client
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
            name: for people; also keeps the future. Default: the function's, and the future isn't kept.
            keep: never collect it, only delete it. Others are collected an hour after they ended and nobody holds them.
            ttl: seconds instead of that hour.
            key: submits with the same key are the same future, whoever makes them. (Of `map`: a prefix.)
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
        if kwargs:
            if not OPTION_SET.isdisjoint(kwargs):
                options = options.changed(**{name: kwargs.pop(name) for name in OPTION_SET & kwargs.keys()})
            check_keywords(fn, kwargs, OPTION_NAMES, "submit")
        return self._submit(options, fn, args, kwargs)

    def options(self, **options: Any) -> BoundOptions:
        """Options for submits to come: `client.options(timeout=5).submit(fn, *args, **every_keyword_for_fn)`."""
        return BoundOptions(self, self._options.changed(**options))

    def map(
        self, fn: Callable[..., T], *iterables: Iterable[Any], batch: int | None = None, **kwargs: Any
    ) -> list[Future[T]]:
        """Submit `fn` once per item (of several iterables, in step, until the shortest ends); the futures, in order.

        `batch`: how many futures at most go into one transaction (default: as many as fit well). `key`: a prefix, to which
        each item's arguments are added (equal items are one future, whoever maps them), or a list of a key per item. Other
        keywords as `submit`.
        """
        keys = kwargs.pop("key") if isinstance(kwargs.get("key"), (list, tuple)) else None
        if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
            raise ValueError(f"batch is a whole number, 1 or more, found {batch!r}")
        options = self._options.changed(**{name: kwargs.pop(name) for name in OPTION_SET & kwargs.keys()})
        check_keywords(fn, kwargs, OPTION_NAMES, "map")
        return self._map(options, fn, iterables, batch, kwargs, keys)

    # --- actors ---------------------------------------------------------------------------------------------------------

    def actor(self, kind: type[T], /, *args: Any, **kwargs: Any) -> Actor[T]:
        """Make an object that lives in a worker's process: `actor.method(...)` calls it and returns the call's future.

        Calls of one client run in the order they were made. A call runs at most once; its result is never computed again.
        An actor without a name ends when this client is closed; one with a name lives until `kill_actor`.

        Args:
            kind: the class; further arguments and keywords are its constructor's, but for these:
            name: get the actor of that name, or create it.
            max_restarts: how often it is started again, with fresh state, after its process or worker died; -1: always.
            resources: as in `submit`. Without cpu it holds no slot; with cpu it holds a slot and that cpu all its life.
            priority, locality, unschedulable_timeout: as in `submit`, for finding it a place.

        Raises TypeError or ValueError for wrong arguments. A constructor that raises ends the actor: its calls fail.
        """
        settings = {name: kwargs.pop(name) for name in ACTOR_OPTIONS & kwargs.keys()}
        return make_actor(self, kind, args, kwargs, settings)

    def get_actor(self, name: str) -> Actor[Any]:
        """The living actor of that name. Raises LookupError."""
        return get_actor(self, name)

    def kill_actor(self, actor: Actor[Any]) -> None:
        """End an actor at once, whatever it runs; its calls fail. Ending it twice is harmless."""
        end_actor(self, actor)

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
        return gather(futures, progress=progress, timeout=timeout, errors=errors)

    def await_all(self, futures: Iterable[Future[Any]], timeout: float | None = None) -> None:
        """Wait until all of `futures` ended; raises the first failure. Fetches no results."""
        ended = wait(check_futures(futures, "await_all"), timeout=timeout, return_when="FIRST_EXCEPTION")
        for future in ended.done:
            error = future.exception()
            if error is not None:
                raise error
        if ended.not_done:
            raise TimeoutError(f"{len(ended.not_done)} of {len(ended.done) + len(ended.not_done)} futures did not end")

    def dataset(self, parts: Iterable[Any], **options: Any) -> Dataset[Any]:
        """A collection in partitions: `client.dataset(parts).map(fn).repartition(8).collect()`.

        `parts`: each a list of items, which is put into the cluster, or a future of one. `options` are those of `submit`,
        for all work on it.
        """
        chosen = self._options.changed(**options)
        chosen.refuse_key("a dataset's pieces of work")
        return make_dataset(self, parts, chosen, self._put)

    def executor(self, **options: Any) -> ClusterExecutor:
        """A `concurrent.futures.Executor` that runs on the cluster.

        `options` are those of `submit`, for everything that is submitted through it. As executors promise, what a call
        raises is how it ended: `max_retries` is 0 unless it is given. One whose worker dies starts again.
        """
        chosen = self._options.changed(**{"max_retries": 0, **options})
        chosen.refuse_key("an executor's calls")
        return ClusterExecutor(self, chosen)

    # --- life ---------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Store what was submitted and let go of the session; futures go on. Closing twice is harmless."""
        if self.closed:
            return
        if self._own_actors:
            end_own_actors(self)
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
        if not self._from_url:
            raise TypeError("a client made from an open database can't be pickled: make it from a URL")
        return ambient.attach_client, (tuple(self.origin), {"durability": self._durability, **self._defaults})

    # --- inside -------------------------------------------------------------------------------------------------------

    @property
    def _live(self) -> Session:
        session = self._session
        if session is None:
            if self._url is not None and not self._url.startswith("memory:"):
                self._db = open_database(self._url, durability=self._durability, create=False)
            session = self._session = Session(self._db, self._space, self._object_fetcher)
            self._fetcher = None
        if self.closed:
            raise MainspringError(f"this client of cluster {self.cluster!r} is closed: make a new one")
        return session

    @classmethod
    def _of_worker(cls, url: str, cluster: str) -> Client:
        """A client of the worker whose process this is; its database exists."""
        return cls(open_database(url, create=False), cluster)

    def _object_fetcher(self) -> Any:
        if self._fetcher is None:
            from futures_worker.store_client import ObjectFetcher
            from futures_worker.store_secret import ClusterSecrets

            self._fetcher = ObjectFetcher(self._secret or ClusterSecrets(self._db, self._space, ask=ask), own=True)
        return self._fetcher

    def _submit(
        self, options: SubmitOptions, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Future[Any]:
        session = self._live
        defaults = options_of(fn)
        if defaults:
            options = options.with_defaults(defaults)
        data, dependencies, names = dump_args_and_names(args, kwargs, self.origin)
        code, holds = dump_function(fn, names, self._code, self.origin.identity)
        if len(data) >= LARGE:
            note_large(args, kwargs, options.name or code.name)
        if dependencies:
            session.record_calls(dependencies)
            processes.flush_others(self, dependencies)
        name = options.name or code.name
        future_id = new_future_id() if options.key is None else id_for_key(self.cluster, options.key)
        joints: tuple[Future[Any], ...] = ()
        if len(dependencies) > MOST_INPUTS and options.tr is None:
            joints = self._join(dependencies, name, options)
            dependencies = tuple(joint._id for joint in joints)
        spec = FutureSpec(
            code=CodeDigest(code.digest),
            args=data,
            id=future_id,
            session=session.id,
            dependencies=dependencies,
            name=name,
        )
        task = current_task()
        if task is not None and not task.actor:
            spec.parent = task.id
        if options is not DEFAULT_OPTIONS:
            self._apply(options, spec)
            if options.key is not None and options.tr is None:  # a transaction has to hold it, whoever else may
                known = session.pending(future_id)
                if known is not None:
                    return known
        if tracing.enabled():
            spec.call_options = tracing.with_trace(spec.call_options)
        own = options.key is None and options.tr is None  # its rows are this session's, and are sure to be
        future: Future[Any] = Future(self._session_of, future_id, name, stored=False, subscribed=own)
        future._streams = isgeneratorfunction(fn)
        if options.tr is not None:
            session.submit_within(options.tr, future, spec, code, holds)
        else:
            session.submit(future, spec, code, holds)
        return future

    def _join(self, dependencies: tuple[bytes, ...], name: str, options: SubmitOptions) -> tuple[Future[Any], ...]:
        """Futures in between, of at most `MOST_INPUTS` each."""

        def submit(inputs: tuple[Future[Any], ...], number: int) -> Future[Any]:
            key = None if options.key is None else f"{options.key}/inputs-{number}"
            chosen = replace(
                DEFAULT_OPTIONS, name=f"inputs of {name}"[:500], keep=False, key=key, priority=options.priority
            )
            return self._submit(chosen, joined, inputs, {})

        return join(dependencies, self._session_of, submit)

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
        spec.keep, spec.ttl, spec.dataset = options.kept, options.ttl, options.dataset

    def _locality(self, wanted: Any) -> Locality | None:
        if wanted is None or isinstance(wanted, Locality):
            return wanted
        if isinstance(wanted, WorkerId):
            return Locality(wanted)
        if isinstance(wanted, str):
            return Locality(self._worker_at(wanted))
        (result,) = ask(self._db, read_results, self._space, [wanted._id], strategy="off")
        return Locality(result.worker, reason=wanted._id) if result is not None and result.worker is not None else None

    def _map(
        self,
        options: SubmitOptions,
        fn: Callable[..., Any],
        iterables: Sequence[Iterable[Any]],
        batch: int | None,
        kwargs: dict[str, Any],
        keys: Sequence[Any] | None = None,
    ) -> list[Future[Any]]:
        items: Iterable[tuple[Any, ...]] = zip(*iterables, strict=False)
        if keys is not None:
            items = list(items)
            if len(items) != len(keys):
                raise ValueError(f"key has {len(keys)} keys for {len(items)} items: give one per item, or a prefix")
        futures = []
        for number, args in enumerate(items, start=1):
            one = options
            if keys is not None:
                one = options.changed(key=keys[number - 1])
            elif options.key is not None:
                one = replace(options, key=f"{options.key}-{arguments_digest(args, kwargs)}")
            futures.append(self._submit(one, fn, args, kwargs))
            if batch is not None and number % batch == 0:
                self._live.flush()
        return futures
