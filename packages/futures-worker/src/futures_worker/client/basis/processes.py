"""What becomes of clients when their process forks or ends: nothing that was submitted is lost, nothing is shared."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from futures_worker.client.basis import untouched

_open: weakref.WeakSet[Any] = weakref.WeakSet()  # of `ClientContext`
_with_actors: set[Any] = set()  # those whose actors end with them: as long as the process, if they aren't closed
_left: dict[int, weakref.ref[Any]] = {}  # sessions of contexts that nobody has any more, until they have ended
_lock = threading.Lock()
_is_child = False  # made by a fork
_ends_for = 0  # the process that multiprocessing is to tell of its end


def opened(context: Any) -> None:
    """A client and its database were opened."""
    _close_before_the_engine()
    used()
    with _lock:
        _open.add(context)
    untouched.found_client()


def used() -> None:
    """This process has a session, or is about to submit. One that multiprocessing has forked ends without exit handlers: it tells by
    others. It is known as such once its own work begins, after its arguments were loaded."""
    global _ends_for
    if _ends_for == os.getpid():
        return
    process, util = sys.modules.get("multiprocessing.process"), sys.modules.get("multiprocessing.util")
    if process is not None and util is not None and process.parent_process() is not None:
        _ends_for = os.getpid()
        util.Finalize(None, _at_exit if _is_child else store_all, exitpriority=0)


def closed(context: Any) -> None:
    """A client was closed."""
    with _lock:
        _open.discard(context)
        _with_actors.discard(context)


def has_actors(context: Any) -> None:
    """Actors end with this client: it isn't let go before it is closed, or the process ends."""
    with _lock:
        _with_actors.add(context)


def left(session: Any) -> None:
    """Nobody has this session's client any more; it is about to be closed. Called by the garbage collector: takes no lock."""
    key = id(session)
    _left[key] = weakref.ref(session, lambda _: _left.pop(key, None))


def open_contexts() -> list[Any]:
    """Those of this process, each a `ClientContext`."""
    with _lock:
        return list(_open)


def flush_others(context: Any, ids: Sequence[bytes]) -> None:
    """Those futures of `ids` that other clients here made of the same cluster are in the database: it is about to be named them."""
    for other in open_contexts():
        if other is not context and other.origin.identity == context.origin.identity:
            other.make_known(ids)


def store_all() -> None:
    """Before this process is left without exit handlers: what was submitted is stored, also by clients that nobody has any more."""
    flush_all()
    _close_left()


def flush_all() -> None:
    """Before this process forks: what was submitted is stored."""
    for context in open_contexts():
        try:
            context.flush()
        except Exception:  # the futures were told; a fork must not fail for it
            pass


def _after_fork_in_child() -> None:
    global _is_child, _lock
    _is_child = True
    _lock = threading.Lock()
    for context in list(_open):
        context.forked()
    _with_actors.clear()
    _left.clear()


def _at_exit() -> None:
    for context in open_contexts():
        try:
            context.close()
        except Exception:  # the database is gone: nothing more can be stored, and nobody is left to be told
            pass
    _close_left()


def _close_left() -> None:
    for reference in list(_left.values()):
        session = reference()
        if session is not None:
            with contextlib.suppress(Exception):
                session.close()


def _close_before_the_engine() -> None:
    """Exit handlers run last in, first out: ours has to be newer than that of any engine opened so far."""
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)


os.register_at_fork(before=flush_all, after_in_child=_after_fork_in_child)
