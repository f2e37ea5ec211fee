"""What becomes of clients when their process forks or ends: nothing that was submitted is lost, nothing is shared."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

from futures_worker.client import untouched
from futures_worker.payload import CodeCache

if TYPE_CHECKING:
    from futures_worker.client.client import Client
    from futures_worker.client.data import DataMethods

_open_clients: weakref.WeakSet[Client] = weakref.WeakSet()
_lock = threading.Lock()


def opened(client: Client) -> None:
    """A client and its database were opened."""
    _close_before_the_engine()
    with _lock:
        _open_clients.add(client)
    untouched.found_client()


def closed(client: Client) -> None:
    """A client was closed."""
    with _lock:
        _open_clients.discard(client)


def open_clients() -> list[Client]:
    """Those of this process."""
    with _lock:
        return list(_open_clients)


def flush_others(client: DataMethods, ids: Sequence[bytes]) -> None:
    """Those futures of `ids` that other clients here made of the same cluster are in the database: it is about to be named them."""
    for other in open_clients():
        session = other._session
        if other is not client and session is not None and other.origin.identity == client.origin.identity:
            session.make_known(ids)


def _before_fork() -> None:
    for client in open_clients():
        if client._session is not None and not client.closed:
            try:
                client._session.flush()
            except Exception:  # the futures were told; a fork must not fail for it
                pass


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    for client in list(_open_clients):
        client._session = None  # made anew at the first use: threads, locks and the watch stayed with the parent
        client._fetcher = None
        client._code = CodeCache()
        client._own_actors = []  # they end with the parent's client


def _at_exit() -> None:
    for client in open_clients():
        try:
            client.close()
        except Exception:  # the database is gone: nothing more can be stored, and nobody is left to be told
            pass


def _close_before_the_engine() -> None:
    """Exit handlers run last in, first out: ours has to be newer than that of any engine opened so far."""
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
