"""joblib on a cluster: `joblib.parallel_config("mainspring")`, so that what uses joblib, scikit-learn say, runs on workers.

joblib makes batches of calls, as large as they have to be to take 0.2 s, and asks for a few at a time; a batch is a future. What
is large among the arguments is put into the cluster once and passed as a future. The caller has it still, so that if it is lost
with its worker it is put again, and the batch submitted again.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import is_
from typing import Any, Final

from joblib import parallel_config, register_parallel_backend
from joblib.parallel import BACKENDS, AutoBatchingMixin, ParallelBackendBase

from fdb_schema.forks import goes_on_in_children
from futures_worker.adapters.leaving import leave_nothing
from futures_worker.client import Client, Future, current_client
from futures_worker.client.executor import ExecutorFuture
from futures_worker.errors import (
    FutureDeletedError,
    ObjectLostError,
    UnknownFutureError,
    UpstreamDependencyFailedException,
)

NAME: Final = "mainspring"
LARGE_BYTES: Final = 1_000_000
"""From so many on an argument is put into the cluster, unless `max_nbytes` of joblib says otherwise."""
WORKER_SECONDS: Final = 60.0
"""That the first worker has to appear."""
KEPT_SECONDS: Final = 60.0
"""That what this process can't delete any more is kept: it was killed, say."""
DELETED_AT_ONCE: Final = 50
DEPTH: Final = 3
WIDTH: Final = 100
"""How deep in lists, tuples and dicts of an argument, and in how long ones, large parts are looked for."""
RESUBMITS: Final = 3
"""Of a batch whose inputs died with their workers."""
LOST: Final = (ObjectLostError, UpstreamDependencyFailedException, FutureDeletedError, UnknownFutureError)


def register() -> None:
    """See `futures_worker.register_joblib`."""
    register_parallel_backend(NAME, MainspringBackend)


class MainspringBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
    """What joblib asks for when it is to use a cluster."""

    supports_retrieve_callback = True
    default_n_jobs = -1

    def __init__(
        self,
        nesting_level: int | None = None,
        *,
        client: Client | None = None,
        url: str | None = None,
        cluster: str | None = None,
        **options: Any,
    ) -> None:
        """What `parallel_config("mainspring", …)` takes.

        Args:
            nesting_level: of joblib.
            client: the cluster. None: that of `url` and `cluster`, as `Client` takes them; without those the current one
                (`current_client`): of the `with` block, of the task this runs in.
            url, cluster: see `client`.
            options: those of `Client.submit`, for the batches: `resources`, `timeout`, `priority`; `max_retries` is 0 unless given.

        Raises TypeError, ValueError for wrong ones, and what `Client` raises.
        """
        super().__init__(nesting_level=nesting_level)
        if client is not None and not isinstance(client, Client):
            raise TypeError(
                f"client is a futures_worker.Client, found {client!r:.200}: pass a LocalCluster's as cluster.client"
            )
        if client is not None and (url is not None or cluster is not None):
            raise TypeError("give client, or url and cluster of one that is to be made, and not both")
        if client is None and (url is not None or cluster is not None):
            client = Client(url, cluster)
        self._client = client
        self._options = {"max_retries": 0, "ttl": KEPT_SECONDS, **options}
        self._shared = _Shared(self)
        self._jobs: set[_Job] = set()
        self._ended: list[Future[Any]] = []  # whose results were taken
        self._lock = threading.Lock()
        self._calls = 0  # of `Parallel` that are under way: generators of one `parallel_config` have one backend
        goes_on_in_children(self)
        self.large: int | None = LARGE_BYTES
        if client is not None:
            client.options(**self._options)  # a wrong option is told here, not amid the work

    def after_fork(self) -> None:
        """See `fdb_schema.forks`: what was sent and put is the parent's, who deletes it."""
        self._lock, self._shared = threading.Lock(), _Shared(self)
        self._jobs, self._ended, self._calls = set(), [], 0

    @property
    def client(self) -> Client:
        """The cluster's client."""
        if self._client is None or self._client.closed:
            self._client = current_client()
        return self._client

    # --- what joblib asks -----------------------------------------------------------------------------------------------

    def configure(
        self,
        n_jobs: int = 1,
        parallel: Any = None,
        prefer: str | None = None,
        require: str | None = None,
        max_nbytes: int | None = LARGE_BYTES,
        **_others: Any,
    ) -> int:
        """A `Parallel` is about to use this: how many batches it runs at a time."""
        self.parallel = parallel
        self.large = max_nbytes
        return self.effective_n_jobs(n_jobs)

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """As many as asked for; of -1 and less, what the cluster's workers can run at a time, and 2 at least.

        Of 1 joblib runs everything in this process. Waits for the first worker. Raises TimeoutError, ValueError.
        """
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is not None and n_jobs > 0:
            return n_jobs
        self.client.wait_for_workers(1, timeout=WORKER_SECONDS)
        slots = sum(worker.slots for worker in self.client.workers())
        return max(2, slots + 1 + (-1 if n_jobs is None else n_jobs))

    def submit(self, func: Any, callback: Callable[[Any], object] | None = None) -> _Job:
        """Send a batch; `callback(job)` is called once it ended, by another thread."""
        job = _Job(self, func.items, callback or (lambda job: None))
        with self._lock:
            self._jobs.add(job)
        job.send()
        return job

    def retrieve_result_callback(self, out: _Job) -> Any:
        """The results of a batch that ended, or what it raised."""
        return out.result()

    def start_call(self) -> None:
        """A `Parallel` begins."""
        with self._lock:
            self._calls += 1

    def stop_call(self) -> None:
        """A `Parallel` has its results: nobody needs what was put, and what came back."""
        with self._lock:
            self._calls -= 1
            if self._calls > 0:
                return
            left, self._jobs = self._jobs, set()  # joblib asks for no more results once one raised
        self.forget([*self._shared.clear(), *(job.durable for job in left if job.durable)], all_of_them=True)

    def terminate(self) -> None:
        """It ends: batches of the next one are measured anew."""
        self.reset_batch_stats()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Stop every batch, as one raised or the program was interrupted."""
        with self._lock:
            jobs, self._jobs = self._jobs, set()
        for job in jobs:
            job.callback = None
        sent = [job.durable for job in jobs if job.durable is not None]
        self.client.cancel(sent)
        self.forget(sent)

    def get_nested_backend(self) -> tuple[MainspringBackend, int]:
        """Of a `Parallel` inside a call: on the cluster too if it names its n_jobs, else one after the other where it is.

        A task that waits for others gives its slot to them.
        """
        return _nested((self.nesting_level or 0) + 1, self._options), 1

    def __reduce__(self) -> tuple[Any, ...]:
        return _nested, (self.nesting_level, self._options)

    # --- what batches need ------------------------------------------------------------------------------------------------

    def run(self, calls: Sequence[Any]) -> tuple[Future[Any], list[Future[Any]]]:
        """Submit a batch; its future, and those of what was put, which stand for large arguments in it."""
        inputs: list[Future[Any]] = []
        sent = [self._shared.call(call, self.large, inputs) for call in calls]
        options = self.client.options(**{"name": _name(calls), **self._options})
        return options.submit(run_batch, sent, *self.get_nested_backend()), inputs

    def taken(self, job: _Job, future: Future[Any]) -> None:
        """A batch's results were asked for."""
        with self._lock:
            self._jobs.discard(job)
        self.forget([future])

    def lost(self, inputs: Iterable[Future[Any]]) -> None:
        """One of what was put is gone: who needs these from now on puts them again."""
        self._shared.renounce(inputs)

    def forget(self, futures: Iterable[Future[Any]], *, all_of_them: bool = False) -> None:
        """Delete futures that nobody asks for again, some at a time."""
        with self._lock:
            self._ended.extend(futures)
            if len(self._ended) < (1 if all_of_them else DELETED_AT_ONCE):
                return
            page, self._ended = [*self._ended, *self._shared.left()], []
        leave_nothing(self.client.delete_all, page)


def _nested(nesting_level: int, options: Mapping[str, Any]) -> MainspringBackend:
    """The backend inside a task: of the client of the task's own cluster."""
    return MainspringBackend(nesting_level, **options)


class _Job:
    """One batch on its way, and on its way again if what it needs was lost."""

    def __init__(self, backend: MainspringBackend, calls: list[Any], callback: Callable[[_Job], object]) -> None:
        self._backend = backend
        self._calls = calls
        self._inputs: list[Future[Any]] = []
        self._resubmits = 0
        self._future: ExecutorFuture[Any] | None = None
        self.durable: Future[Any] | None = None  # the batch's
        self.callback: Callable[[_Job], object] | None = callback

    def send(self) -> None:
        """Submit it."""
        self.durable, self._inputs = self._backend.run(self._calls)  # first: an interrupt from here on cancels it
        self._future = ExecutorFuture(self.durable)
        self._future.add_done_callback(self._ended)
        self._future.follow()

    def result(self) -> Any:
        """Its results, once it ended."""
        assert self._future is not None
        try:
            return self._future.result()
        finally:
            self._backend.taken(self, self._future.durable)

    def _ended(self, future: Any) -> None:
        callback = self.callback
        if callback is None:  # given up
            return
        if not future.cancelled() and isinstance(future.exception(), LOST) and self._resubmits < RESUBMITS:
            self._resubmits += 1
            self._backend.lost(self._inputs)
            self._backend.forget([future.durable])
            self.send()
            return
        self._calls, self._inputs = [], []
        callback(self)


class _Shared:
    """The large arguments that were put into the cluster, by identity: each once, for as long as the caller has it. Thread-safe."""

    def __init__(self, backend: MainspringBackend) -> None:
        self._backend = backend
        self._lock = threading.Lock()  # held while something is put, so that it is put once
        self._known: dict[int, tuple[weakref.ref[Any], Future[Any]]] = {}
        self._left: deque[Future[Any]] = (
            deque()
        )  # of what is no more: nothing under way needs it, since that would hold it

    def call(self, call: Any, large: int | None, inputs: list[Future[Any]]) -> Any:
        """A call with futures, which `inputs` takes, in the place of arguments of `large` bytes and more."""
        if large is None:
            return call
        function, args, kwargs = call
        return function, self._part(args, large, inputs), self._part(kwargs, large, inputs)

    def _part(self, value: Any, large: int, inputs: list[Future[Any]], depth: int = 0) -> Any:
        kind = type(value)
        if kind in (list, tuple, dict):
            if depth == DEPTH or len(value) > WIDTH:  # many are small
                return value
            parts = list(value.values() if kind is dict else value)
            sent = [self._part(one, large, inputs, depth + 1) for one in parts]
            if all(map(is_, parts, sent)):
                return value  # itself: what it shares with others stays shared
            return dict(zip(value, sent, strict=True)) if kind is dict else kind(sent)
        if _size(value) < large:
            return value
        future = self._put(value)
        if future is None:
            return value
        inputs.append(future)
        return future

    def _put(self, value: Any) -> Future[Any] | None:
        key = id(value)
        with self._lock:
            known = self._known.get(key)
            if known is not None and known[0]() is value:
                return known[1]
            try:
                reference = weakref.ref(value, lambda _: self._gone(key))
            except TypeError:
                return None  # whether it is the same one next time couldn't be told
            future = self._backend.client.put(value, ttl=KEPT_SECONDS)
            self._known[key] = reference, future
            return future

    def _gone(self, key: int) -> None:
        """Called amid anything, so it takes no lock; the id is nobody else's before."""
        known = self._known.pop(key, None)
        if known is not None:
            self._left.append(known[1])

    def left(self) -> list[Future[Any]]:
        """What nobody has any more, to be deleted."""
        return [self._left.popleft() for _ in range(len(self._left))]

    def renounce(self, inputs: Iterable[Future[Any]]) -> None:
        """Forget these, which may be lost; others may need them still."""
        gone = set(inputs)
        with self._lock:
            for key, (_, future) in list(self._known.items()):
                if future in gone:
                    self._known.pop(key, None)

    def clear(self) -> list[Future[Any]]:
        """Forget all; what is to be deleted."""
        with self._lock:
            known, self._known = self._known, {}
        return [*self.left(), *(future for _, future in known.values())]


def _size(value: Any) -> int:
    """Bytes of what holds its data in buffers: an array, a frame, a sparse matrix, a table; 0 of anything else."""
    try:
        if hasattr(value, "iloc"):
            usage = value.memory_usage()  # of a frame by column, of a series all of it
            return int(getattr(usage, "sum", lambda: usage)())
        size = getattr(value, "nbytes", None)
        return int(value.data.nbytes if size is None else size)
    except Exception:  # it has something else by these names
        return 0


def _name(calls: Any) -> str:
    """What a batch is called: as the function that it begins with."""
    function = calls[0][0]
    function = getattr(function, "function", function)  # of scikit-learn's wrapper
    return str(getattr(function, "__qualname__", type(function).__qualname__))[:500]


def run_batch(calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]], nested: Any, n_jobs: int) -> list[Any]:
    """The task: the results of the calls, one after the other, in which `Parallel` means `nested`."""
    if NAME not in BACKENDS:
        register()
    with parallel_config(backend=nested, n_jobs=n_jobs):
        return [function(*args, **kwargs) for function, args, kwargs in calls]
