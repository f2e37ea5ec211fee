"""`concurrent.futures.Executor` on the cluster: code written for executors runs on workers unchanged."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures as cf
from functools import partial
from typing import Any, TypeVar

from fdb_schema.forks import goes_on_in_children
from futures_worker.client.basis.options import SubmitOptions
from futures_worker.client.context import ClientContext
from futures_worker.client.future import Future, failure_of, known_in_its_session, record_of
from futures_worker.client.submits.submitting import submit

T = TypeVar("T")


class ExecutorFuture(cf.Future[T]):
    """A future of the standard library that ends as its durable future does (`durable`)."""

    def __init__(self, durable: Future[T]) -> None:
        super().__init__()
        self.durable = durable

    def cancel(self) -> bool:
        """Cancel on the cluster, unless it runs or ended, as executors promise."""
        with self._condition:
            if self._state == cf._base.FINISHED:
                return False
        if not self.cancelled() and not self.durable.running() and self.durable.cancel():
            self._note_cancelled()
        return self.cancelled()

    def running(self) -> bool:
        """Whether a worker runs it now."""
        return not self.done() and self.durable.running()

    def follow(self, *, patient: bool = False) -> None:
        """End as the durable future does, or once its client is closed; unless `patient`, also where the database is in trouble."""
        session, _ = known_in_its_session(self.durable)

        def troubled(error: BaseException) -> None:
            if not self.done() and (session.closed or not patient):
                self.set_exception(error)

        session.callbacks.watch(self, troubled)
        self.add_done_callback(session.callbacks.unwatch)
        self.durable.add_done_callback(self.ended)
        if record_of(self.durable).streams:  # a generator waits for a reader before it ends
            threading.Thread(target=self._read, name="mainspring-stream-reader", daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(BaseException):  # `ended` tells of it
            self.durable.result()

    def _note_cancelled(self) -> None:
        """It is cancelled, and those who wait for several are told: once, whichever thread comes first."""
        super().cancel()
        with self._condition:
            if self._state == cf._base.CANCELLED:
                self.set_running_or_notify_cancel()

    def ended(self, durable: Future[T]) -> None:
        """Its durable future ended: so does it."""
        error = failure_of(durable)
        if isinstance(error, cf.CancelledError):
            self._note_cancelled()
            return
        with self._condition:
            if self.done() or not self.set_running_or_notify_cancel():
                return
        if error is not None:
            self.set_exception(error)
            return
        try:
            value = durable.result()
        except BaseException as problem:  # lost, or not loadable here
            self.set_exception(problem)
        else:
            self.set_result(value)


class ClusterExecutor(cf.Executor):
    """Made by `Client.executor()`. Shutting it down leaves the client open."""

    def __init__(self, context: ClientContext, options: SubmitOptions) -> None:
        self._context = context
        self._options = options
        self._lock = threading.Lock()
        self._running: set[cf.Future[Any]] = set()
        self._shutdown = False
        goes_on_in_children(self)

    def after_fork(self) -> None:
        """See `fdb_schema.forks`: what runs is the parent's, whose threads are the only ones that would tell."""
        self._lock, self._running = threading.Lock(), set()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> cf.Future[T]:
        """Submit `fn(*args, **kwargs)`; every keyword goes to the function."""
        with self._lock:
            if self._shutdown:
                raise RuntimeError("cannot schedule new futures after shutdown")
            future = ExecutorFuture(submit(self._context, self._options, fn, args, kwargs))
            self._running.add(future)
        future.add_done_callback(self._forget)
        future.follow()
        return future

    def map(
        self, fn: Callable[..., T], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[T]:
        """As `concurrent.futures.Executor.map`; `chunksize` calls make one future."""
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if chunksize == 1:
            return super().map(fn, *iterables, timeout=timeout)
        items = list(zip(*iterables, strict=False))
        chunks = [items[start : start + chunksize] for start in range(0, len(items), chunksize)]
        results = super().map(partial(_call_each, fn), chunks, timeout=timeout)  # the function is none of the arguments
        return _flattened(results)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more futures; wait for those submitted, or cancel those that don't run yet."""
        with self._lock:
            self._shutdown = True
            running = list(self._running)
        if cancel_futures:
            for future in running:
                future.cancel()
        if wait:
            cf.wait(running)

    def _forget(self, future: cf.Future[Any]) -> None:
        with self._lock:
            self._running.discard(future)


def _call_each(fn: Callable[..., T], calls: list[tuple[Any, ...]]) -> list[T]:
    return [fn(*args) for args in calls]


def _flattened(chunks: Iterator[list[T]]) -> Iterator[T]:
    for chunk in chunks:
        yield from chunk
