"""What becomes of clients when their process forks or ends: nothing that was submitted is lost, nothing is shared."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from futures_worker.client import untouched

_open: weakref.WeakSet[Any] = weakref.WeakSet()  # of `ClientContext`
_lock = threading.Lock()


def opened(context: Any) -> None:
    """A client and its database were opened."""
    _close_before_the_engine()
    with _lock:
        _open.add(context)
    untouched.found_client()


def closed(context: Any) -> None:
    """A client was closed."""
    with _lock:
        _open.discard(context)


def open_contexts() -> list[Any]:
    """Those of this process, each a `ClientContext`."""
    with _lock:
        return list(_open)


def flush_others(context: Any, ids: Sequence[bytes]) -> None:
    """Those futures of `ids` that other clients here made of the same cluster are in the database: it is about to be named them."""
    for other in open_contexts():
        if other is not context and other.origin.identity == context.origin.identity:
            other.make_known(ids)


def _before_fork() -> None:
    for context in open_contexts():
        try:
            context.flush()
        except Exception:  # the futures were told; a fork must not fail for it
            pass


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    for context in list(_open):
        context.forked()


def _at_exit() -> None:
    for context in open_contexts():
        try:
            context.close()
        except Exception:  # the database is gone: nothing more can be stored, and nobody is left to be told
            pass


def _close_before_the_engine() -> None:
    """Exit handlers run last in, first out: ours has to be newer than that of any engine opened so far."""
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
