"""A Shell on the cluster's workers: `Callable[[Sequence[str]], Future]`, for runners that start remotes by one.

A remote is a module with a `main(args)`; it runs in a worker's process. The future outlives whoever asked for it, so
another process finds it by its handle and goes on with it.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from concurrent import futures as cf
from typing import TYPE_CHECKING, Any
from uuid import UUID

from futures_worker.client.executor import ExecutorFuture
from futures_worker.errors import FutureDeletedError, UnknownFutureError

if TYPE_CHECKING:
    from futures_worker.client.client import Client

MEMO_REMOTE = "lease_locks.memo.remote"


def run_main(module: str, args: Sequence[str]) -> Any:
    """What the worker runs: `main(args)` of a module, imported there."""
    return importlib.import_module(module).main(list(args))


class WorkerPoolShell:
    """Run each remote as a future, at most once at a time, again if its worker is lost.

    Args:
        client: the cluster.
        module: whose `main(args)` is the remote; by default that of lease-locks' memoizing runner.
        options: of `Client.submit`, e.g. resources={"cpu": 4}. `max_retries` is 0: a remote that fails has said so itself.
    """

    def __init__(self, client: Client, *, module: str = MEMO_REMOTE, **options: Any) -> None:
        self.client = client
        self.module = module
        self.options = {"max_retries": 0, **options}

    def __call__(self, args: Sequence[str]) -> cf.Future[Any]:
        """Start a remote; the future's `handle` finds it again. It ends with the exit code that `main` returned."""
        durable = self.client.options(**self.options).submit(run_main, self.module, list(args))
        return self._follow(durable)

    def attach(self, handle: str) -> cf.Future[Any] | None:
        """The future of `handle`, pending or running; None where it has ended or is not there."""
        try:
            durable = self.client.get_future(UUID(handle))
            return None if durable.done() else self._follow(durable)
        except (ValueError, UnknownFutureError, FutureDeletedError):
            return None  # ValueError: the handle is another Shell's

    def cancel(self, handle: str) -> bool:
        """Cancel the remote; False where it has ended, or is not there."""
        try:
            return self.client.get_future(UUID(handle)).cancel()
        except (ValueError, UnknownFutureError, FutureDeletedError):
            return False

    def _follow(self, durable: Any) -> cf.Future[Any]:
        future: ExecutorFuture[Any] = ExecutorFuture(durable)
        future.handle = str(durable.id)  # type: ignore[attr-defined]
        future.follow(patient=True)  # its runner waits for as long as the remote may run
        return future
