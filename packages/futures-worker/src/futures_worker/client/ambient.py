"""The client of this process, for code that has none at hand: handles that are unpickled, and code inside tasks."""

from __future__ import annotations

import os
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from fdb_schema import MainspringError, Origin
from futures_worker.client import processes, untouched
from futures_worker.client.home import OriginHome, find_database
from futures_worker.worker.task_context import current_task, own_cluster

if TYPE_CHECKING:
    from futures_worker.client.client import Client
    from futures_worker.client.future import Future

_lock = threading.RLock()
_here: ContextVar[tuple[Client, ...]] = ContextVar("entered", default=())
"""The `with client:` blocks that this code runs in (this thread, or this task of asyncio), innermost last."""

_entered: dict[int, list[Client]] = {}  # thread -> its blocks, innermost last: for threads that have none
_own: dict[tuple[str, str] | None, Client] = {}  # made here: by (url, cluster) of a worker; None: the default one
_found: dict[bytes, Client] = {}  # made here, for handles: by the cluster's identity
_homes: dict[tuple[str, bytes, str | None] | None, OriginHome] = {}


def current_client() -> Client:
    """The client that this code is meant to use, where none was passed to it.

    That of the innermost `with` block this thread (or asyncio task) is in; else, inside a task, one of the task's cluster;
    else that of the blocks of other threads; else a default one, made at the first call. The last two and the task's are
    shared by the process. Raises MainspringError where other threads are in blocks of different clusters.
    """
    for client in reversed(_here.get()):
        if not client.closed:
            return client
    if current_task() is not None:
        return worker_client()
    with _lock:
        others = {client for blocks in _entered.values() for client in blocks[-1:] if not client.closed}
        if len({client.origin for client in others}) > 1:
            names = " and ".join(sorted(str(client.origin) for client in others))
            raise MainspringError(
                f"this thread is in no `with` block of a client, and other threads are in blocks of {names}: pass it the "
                "client that it should use"
            )
        return next(iter(others), None) or _made(None)


def worker_client() -> Client:
    """Inside a worker's process: a client of the worker's cluster, whichever clients the task's code has entered."""
    task = current_task()
    where = (task.url, task.cluster) if task is not None else own_cluster()
    if where is None:
        raise MainspringError("this process belongs to no worker")
    with _lock:
        return _made(where)


def client_of(origin: Origin) -> Client:
    """A client of that very cluster: an open one of this process, or one that is made for it, which the process shares.

    Raises WrongClusterError if the cluster can't be found; nothing is created.
    """
    from futures_worker.client.client import Client

    with _lock:
        known = known_client_of(origin)
        if known is not None:
            return known
        client = _found[origin.identity] = Client(find_database(origin), origin.cluster)
        return client


def known_client_of(origin: Origin) -> Client | None:
    """A client of that very cluster which this process has, or the worker's whose process it is; None if there is none."""
    with _lock:
        for client in (*reversed(_here.get()), *processes.open_clients()):
            if not client.closed and client.origin.identity == origin.identity:
                return client
        if own_cluster() is not None:
            client = worker_client()
            if client.origin.identity == origin.identity:
                return client
        return None


def home_of(origin: tuple[str, bytes, str | None] | None) -> OriginHome:
    """The home of unpickled handles of a cluster: one for all of them."""
    home = _homes.get(origin)
    if home is None:
        home = _homes[origin] = OriginHome(None if origin is None else Origin(*origin))
    return home


def attach_future(future_id: bytes, name: str, origin: tuple[str, bytes, str | None] | None = None) -> Future[Any]:
    """What a pickled future becomes where it is unpickled. It finds its client when it is first used."""
    from futures_worker.client.future import Future

    future: Future[Any] = Future(home_of(origin), future_id, name, stored=True, subscribed=False)
    untouched.note(future)
    return future


def attach_client(origin: tuple[str, bytes, str | None], options: dict[str, Any]) -> Client:
    """What a pickled client becomes: another client of its cluster, with a session of its own. Raises WrongClusterError."""
    from futures_worker.client.client import Client

    found = Origin(*origin)
    return Client(client_of(found)._db, found.cluster, **options)


def enter(client: Client) -> None:
    """`with client:` begins."""
    _here.set((*_here.get(), client))
    with _lock:
        _entered.setdefault(threading.get_ident(), []).append(client)


def leave(client: Client) -> None:
    """`with client:` ends; perhaps in another thread, or another context, than it began in."""
    blocks = list(_here.get())
    if client in blocks:
        del blocks[len(blocks) - 1 - blocks[::-1].index(client)]
        _here.set(tuple(blocks))
    with _lock:
        mine = threading.get_ident()
        for thread in sorted(_entered, key=lambda thread: thread != mine):
            blocks = _entered[thread]
            if client in blocks:
                del blocks[len(blocks) - 1 - blocks[::-1].index(client)]
                if not blocks:
                    del _entered[thread]
                return


def _made(where: tuple[str, str] | None) -> Client:
    from futures_worker.client.client import Client

    client = _own.get(where)
    if client is None or client.closed:
        client = _own[where] = Client() if where is None else Client._of_worker(*where)
    return client


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    mine = [client for blocks in _entered.values() for client in blocks]
    _entered.clear()
    if mine:  # the one thread that goes on; those of the others are their parent's
        _entered[threading.get_ident()] = mine


os.register_at_fork(after_in_child=_after_fork)
