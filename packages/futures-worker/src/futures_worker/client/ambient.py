"""The client of this process, for code that has none at hand: futures that are unpickled, and code inside tasks."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from futures_worker.worker.task_context import current_task

if TYPE_CHECKING:
    from futures_worker.client.client import Client
    from futures_worker.client.future import Future
    from futures_worker.client.session import Session

_lock = threading.RLock()
_entered: list[Client] = []  # `with client:` blocks, innermost last
_of_tasks: dict[tuple[str, str], Client] = {}


def current_client() -> Client:
    """The innermost client in a `with` block, else (inside a task) a client of the task's cluster, else a default one.

    The client of tasks, and the default one, is made at the first call and shared by the process.
    """
    from futures_worker.client.client import Client

    with _lock:
        if _entered:
            return _entered[-1]
        task = current_task()
        where = (task.url, task.cluster) if task is not None else ("", "")
        client = _of_tasks.get(where)
        if client is None or client.closed:
            client = _of_tasks[where] = Client(*where) if task is not None else Client()
        return client


def attach_future(future_id: bytes, name: str) -> Future[Any]:
    """What a pickled future becomes where it is unpickled. It finds its client when it is first used."""
    from futures_worker.client.future import Future

    return Future(_session, future_id, name, stored=True, subscribed=False)


def _session() -> Session:
    return current_client()._live


def enter(client: Client) -> None:
    """`with client:` begins."""
    with _lock:
        _entered.append(client)


def leave(client: Client) -> None:
    """`with client:` ends."""
    with _lock:
        if client in _entered:
            _entered.reverse()
            _entered.remove(client)
            _entered.reverse()


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
