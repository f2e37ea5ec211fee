"""The client: submits functions as durable futures to a cluster and gets their results."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from datetime import timedelta
from os import PathLike
from types import ModuleType
from typing import Any, TypeVar, Unpack, overload
from uuid import UUID

from fdb_datamodel.transitions.limits import LimitStatus
from fdb_schema import Origin
from futures_worker.client import data
from futures_worker.client.actors import ACTOR_OPTIONS, Actor, end_actor, get_actor, make_actor
from futures_worker.client.basis.blocks import enter, leave
from futures_worker.client.basis.html import panel
from futures_worker.client.basis.options import OPTION_NAMES, OPTION_SET
from futures_worker.client.basis.spelling import check_keywords
from futures_worker.client.bound import BoundOptions
from futures_worker.client.context import ClientContext, attach_context, open_context
from futures_worker.client.dataset import Dataset, make_dataset
from futures_worker.client.executor import ClusterExecutor
from futures_worker.client.future import Future
from futures_worker.client.operating import ClientOperations
from futures_worker.client.submits.limiting import limit, limits
from futures_worker.client.submits.scheduling import Schedule, every, schedules
from futures_worker.client.submits.submitting import submit, submit_each
from futures_worker.client.waiting.gathering import GatherOptions, gather
from futures_worker.client.waiting.waits import await_all
from futures_worker.code.code_modules import send_along
from futures_worker.coordination.event import Event, make_event
from futures_worker.coordination.queue import Queue, make_queue
from futures_worker.coordination.semaphore import Semaphore, make_semaphore
from futures_worker.doors import door

T = TypeVar("T")
K = TypeVar("K")


class Client(ClientOperations):
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
        modules: Iterable[str | ModuleType] = (),
        working_dir: str | PathLike[str] | None = None,
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
            modules: modules and packages, or their names, that are sent along: workers need not have them. From now on, by this process.
            working_dir: a folder that is sent along: tasks run in a copy of it on their host, find its modules first, and once a file in
                it has changed run in another copy. 64 MiB and 10,000 files at most, without what its .mainspringignore says.
            options: those of `submit`, as this client's defaults for `submit`, `map` and datasets: `max_retries=0`; and
                `env={"LEVEL": "3"}`, variables of the environment that its tasks have.

        Raises ValueError for a folder or variables that can't be sent, OversizeError for too much of them; DatabaseUrlError, NotADatabaseError, NewerFormatError, DatabaseUnreachableError, NameInvalidError.
        """
        send_along(modules)
        context = url if isinstance(url, ClientContext) else None
        if context is None:
            context = open_context(
                url, cluster, durability=durability, secret=secret, options=options, working_dir=working_dir
            )
        self._context = context
        context.face = weakref.ref(self)

    @property
    def cluster(self) -> str:
        """The cluster's name."""
        return self._context.cluster

    @property
    def origin(self) -> Origin:
        """The cluster's identity, and how to reach it."""
        return self._context.origin

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._context.closed

    # --- submitting ---------------------------------------------------------------------------------------------------

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Submit `fn(*args, **kwargs)`; returns at once.

        The future is durable as soon as anybody waits for it, reads its `id`, calls `flush()`, or a few milliseconds have
        passed. Futures among the arguments, however deep, are waited for by the cluster and replaced by their results.

        Keywords named below are options; all others go to the function (`client.options(...).submit` passes all).

        Args:
            resources: {"cpu": cores, "ram": bytes or "2GiB", "gpu": devices, "db": what a worker offers by that name}; None: a slot
                and nothing else.
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
            durable: it is a program, whose requests survive the process that makes them; see `durable`.
            limits: names of limits (`limit`): it begins when each of them has room.
            after, at: seconds that it waits before it may begin, or a datetime before which it doesn't.
            tr: submit within this transaction of yours; the future exists once it commits.

        Raises:
            TypeError: something can't be pickled, or an option doesn't exist.
            ValueError: an option's value makes no sense.
            OversizeError: the function or the arguments are over 64 MiB.
        """
        options = self._context.options
        if kwargs:
            if not OPTION_SET.isdisjoint(kwargs):
                options = options.changed(**{name: kwargs.pop(name) for name in OPTION_SET & kwargs.keys()})
            check_keywords(fn, kwargs, OPTION_NAMES, "submit")
        return submit(self._context, options, fn, args, kwargs)

    def options(self, **options: Any) -> BoundOptions:
        """Options for submits to come: `client.options(timeout=5).submit(fn, *args, **every_keyword_for_fn)`.

        Those of `submit`, and `env`: variables of the environment, added to the client's.
        """
        return BoundOptions(self._context, self._context.options.changed(**options))

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
        options = self._context.options.changed(**{name: kwargs.pop(name) for name in OPTION_SET & kwargs.keys()})
        check_keywords(fn, kwargs, OPTION_NAMES, "map")
        return submit_each(self._context, options, fn, iterables, batch, kwargs, keys)

    def every(self, when: str | float | timedelta, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Schedule:
        """Submit `fn(*args, **kwargs)` again and again, whoever is there: any worker does it, each occurrence once.

        A schedule is known by its name, and one of the same name is replaced; made again with the same times, it goes on from where
        it was, so a program may make its schedules whenever it starts.

        Args:
            when: seconds between two, 1 or more (or a timedelta), or a cron expression: `*/5 * * * *`.
            name, zone: of the schedule, by default the function's; of a cron expression's times, by default "UTC".
            missed: of those that were due while no worker was there, run "one" (the latest), "all", or none ("skip").
            overlap: whether one begins while the one before hasn't ended. Default True.

        Other keywords are as in `submit`, but for key, tr, after, at and locality. Raises ValueError, TypeError; OversizeError.
        """
        return every(self._context, when, fn, args, kwargs)

    def schedules(self) -> list[Schedule]:
        """Every schedule of the cluster, by name."""
        return schedules(self._context)

    def limit(self, name: str, *, concurrent: int | None = None, per_second: float | None = None) -> None:
        """Make a limit, or change it: of futures with `limits=[name]`, `concurrent` at once and `per_second` starts, on all workers.

        First come first served within a priority. Both None: remove it, and what waits for it begins. Raises ValueError.
        """
        limit(self._context, name, concurrent, per_second)

    def limits(self) -> list[LimitStatus]:
        """Every limit, how many of its permits are held, and how many futures wait for one."""
        return limits(self._context)

    # --- actors ---------------------------------------------------------------------------------------------------------

    def actor(self, kind: type[T], /, *args: Any, **kwargs: Any) -> Actor[T]:
        """Make an object that lives in a worker's process: `actor.method(...)` calls it and returns the call's future.

        Calls of one client run in the order they were made. A call runs at most once; its result is never computed again.
        An actor without a name ends when this client is closed; one with a name lives until `kill_actor`.

        Args:
            kind: the class; further arguments and keywords are its constructor's, but for these:
            name: get the actor of that name, or create it.
            max_restarts: how often it is started again, with fresh state, after its process or worker died; -1: always.
            concurrency: calls that run at a time, 1 by default: coroutine methods in turn on one loop, others in threads.
            resources: as in `submit`. Without cpu it holds no slot; with cpu it holds a slot and that cpu all its life.
            priority, locality, unschedulable_timeout: as in `submit`, for finding it a place.

        Raises TypeError or ValueError for wrong arguments. A constructor that raises ends the actor: its calls fail.
        """
        settings = {name: kwargs.pop(name) for name in ACTOR_OPTIONS & kwargs.keys()}
        return make_actor(self._context, kind, args, kwargs, settings)

    def get_actor(self, name: str) -> Actor[Any]:
        """The living actor of that name. Raises LookupError."""
        return get_actor(self._context, name)

    def kill_actor(self, actor: Actor[Any]) -> None:
        """End an actor at once, whatever it runs; its calls fail. Ending it twice is harmless."""
        end_actor(self._context, actor)

    # --- collecting ---------------------------------------------------------------------------------------------------

    @overload
    def gather(self, futures: tuple[Any, ...], **how: Unpack[GatherOptions]) -> tuple[Any, ...]: ...
    @overload
    def gather(self, futures: dict[K, Any], **how: Unpack[GatherOptions]) -> dict[K, Any]: ...  # type: ignore[overload-overlap]
    @overload
    def gather(self, futures: Iterable[Future[T]], **how: Unpack[GatherOptions]) -> list[T]: ...
    @overload
    def gather(self, futures: Iterable[Any], **how: Unpack[GatherOptions]) -> Any: ...
    def gather(
        self, futures: Any, *, progress: bool = True, timeout: float | None = None, errors: str = "raise"
    ) -> Any:
        """The results of `futures`, in order: a list; of lists, tuples and dicts, however nested, the same with results in it.

        Args:
            progress: show a bar, in a terminal or a notebook, if it takes more than a moment.
            timeout: seconds for all of it.
            errors: "raise" the first failure as soon as it happened, "return" exceptions in the place of results, or "skip" what
                failed, which then is missing.
        """
        return gather(futures, progress=progress, timeout=timeout, errors=errors)

    def await_all(self, futures: Iterable[Future[Any]], timeout: float | None = None) -> None:
        """Wait until all of `futures` ended; raises the first failure. Fetches no results."""
        await_all(futures, timeout)

    def dataset(self, parts: Iterable[Any], **options: Any) -> Dataset[Any]:
        """A collection in partitions: `client.dataset(parts).map(fn).repartition(8).collect()`.

        `parts`: each a list of items, which is put into the cluster, or a future of one. `options` are those of `submit`,
        for all work on it.
        """
        chosen = self._context.options.changed(**options)
        chosen.refuse_key("a dataset's pieces of work")
        return make_dataset(self._context, parts, chosen)

    def executor(self, **options: Any) -> ClusterExecutor:
        """A `concurrent.futures.Executor` that runs on the cluster.

        `options` are those of `submit`, for everything that is submitted through it. As executors promise, what a call
        raises is how it ended: `max_retries` is 0 unless it is given. One whose worker dies starts again.
        """
        chosen = self._context.options.changed(**{"max_retries": 0, **options})
        chosen.refuse_key("an executor's calls")
        return ClusterExecutor(self._context, chosen)

    # --- data -----------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Return once everything submitted so far is in the database."""
        self._context().flush()

    def put(
        self, obj: Any, *, name: str | None = None, keep: bool | None = None, ttl: float | None = None
    ) -> Future[Any]:
        """Store an object and get a future that is realized already.

        Small objects live in the database; others on a live worker, and are never computed again if it dies. `name`, `keep`
        and `ttl` as of `submit`.

        Raises NoWorkerError if a large object finds no worker; TypeError if it can't be pickled.
        """
        return data.put(self._context, obj, name=name, keep=keep, ttl=ttl)

    def clone(self, future: Future[Any], worker: Any) -> None:
        """Give a worker (of `workers()`, a `WorkerId` or its address "ip:port") a copy of the result, so that it survives the holder.

        Waits for the result; nothing is done for small ones, which live in the database. Raises what `result` raises,
        NoWorkerError, and ObjectLostError if the worker can't take it.
        """
        data.copy(self._context, future, worker, move=False)

    def transfer(self, future: Future[Any], worker: Any) -> None:
        """Move the result to a worker, as `clone`; the worker that held it frees its copy."""
        data.copy(self._context, future, worker, move=True)

    def take_ownership(self, future: Future[Any]) -> None:
        """Inside a task: move the result to the worker that runs the task."""
        data.copy(self._context, future, data.own_worker(self._context), move=True)

    def get_future(self, future_id: UUID | bytes | str | None = None, *, key: str | None = None) -> Future[Any]:
        """The future with this id, or that was submitted with this `key`, whichever process did, dead or alive.

        Raises ValueError for what is no id or key, TypeError for both. That there is no such future is found out by the
        first wait or `state()`: UnknownFutureError.
        """
        return data.find(self._context, future_id, key)

    def delete(self, future: Future[Any]) -> None:
        """Delete a future and its results. Whoever asks for them later gets FutureDeletedError."""
        data.delete_all(self._context, [future])

    def delete_all(self, futures: Iterable[Future[Any]]) -> None:
        """Delete several futures and their results."""
        data.delete_all(self._context, futures)

    # --- what processes share by a name -------------------------------------------------------------------------------

    def queue(self, name: str, maxsize: int | None = None) -> Queue:
        """The queue of that name, made if there is none: any process puts and gets, and it stays until it is deleted.

        `maxsize`: how many items it takes, 0 for any number; None: as it is. Raises ValueError where it takes another number.
        """
        return make_queue(self._context, name, maxsize)

    def semaphore(self, name: str, value: int | None = None) -> Semaphore:
        """The semaphore of that name, made if there is none: `value` permits (1 by default), for whatever processes.

        Raises ValueError where it has another number of them.
        """
        return make_semaphore(self._context, name, value)

    def event(self, name: str) -> Event:
        """The event of that name, which any process sets, clears and waits for."""
        return make_event(self._context, name)

    # --- Dask -----------------------------------------------------------------------------------------------------------

    asynchronous = False
    """What Dask asks of a scheduler before it calls `get`."""

    def get(self, dsk: Any, keys: Any, **options: Any) -> Any:
        """The values of `keys` of a Dask graph, computed on this cluster: what `dask.compute(…, scheduler=client)` calls.

        `options`: `retries`, and those of `submit`, for every task. Raises what a task raised; ImportError where Dask isn't installed.
        """
        return door("dask").get(self._context, dsk, keys, options)

    # --- life ---------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Store what was submitted and let go of the session; futures go on. Closing twice is harmless."""
        self._context.close()

    def __enter__(self) -> Client:
        enter(self._context)
        return self

    def __exit__(self, *exc_info: object) -> None:
        leave(self._context)
        self.close()

    async def __aenter__(self) -> Client:
        return self.__enter__()

    async def __aexit__(self, *exc_info: object) -> None:
        import asyncio

        leave(self._context)
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    def __repr__(self) -> str:
        return f"<Client of cluster {self.cluster!r}{' (closed)' if self.closed else ''}>"

    def _repr_html_(self) -> str:
        rows = {"cluster": self.cluster, "database": self._context.url or "", "closed": "yes" if self.closed else "no"}
        return panel("Client", rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return client_over, (self._context,)


def client_over(context: ClientContext) -> Client:
    """The client whose face a context is; made if it has none yet."""
    return context.face() or Client(context)


def attach_client(origin: tuple[str, bytes, str | None], options: dict[str, Any]) -> Client:
    """What a client that an earlier release pickled becomes: as `attach_context`."""
    defaults = {name: value for name, value in options.items() if name != "durability"}
    return client_over(attach_context(origin, {"durability": options.get("durability"), "options": defaults}))
