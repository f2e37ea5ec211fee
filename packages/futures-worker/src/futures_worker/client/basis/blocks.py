"""The `with client:` blocks that code of this process is in."""

from __future__ import annotations

import os
import threading
from contextvars import ContextVar
from typing import Any, Final

_here: Final[ContextVar[tuple[Any, ...]]] = ContextVar("entered", default=())
"""Those that this code runs in (this thread, or this task of asyncio), each a `ClientContext`, innermost last."""
_entered: Final[dict[int, list[Any]]] = {}  # thread -> its blocks, innermost last: for threads that have none
_lock = threading.RLock()


def here() -> tuple[Any, ...]:
    """Those that this code runs in, innermost first."""
    return _here.get()[::-1]


def elsewhere() -> set[Any]:
    """The innermost ones of all threads, but for those that are closed."""
    with _lock:
        return _innermost()  # loops in a function of its own (`turn`)


def _innermost() -> set[Any]:
    return {context for blocks in _entered.values() for context in blocks[-1:] if not context.closed}


def enter(context: Any) -> None:
    """`with client:` begins."""
    _here.set((*_here.get(), context))
    with _lock:
        _entered.setdefault(threading.get_ident(), []).append(context)


def leave(context: Any) -> None:
    """`with client:` ends; perhaps in another thread, or another context, than it began in."""
    blocks = list(_here.get())
    if context in blocks:
        del blocks[len(blocks) - 1 - blocks[::-1].index(context)]
        _here.set(tuple(blocks))
    with _lock:
        _leave_here_or_elsewhere(context)


def _leave_here_or_elsewhere(context: Any) -> None:
    mine = threading.get_ident()
    for thread in sorted(_entered, key=lambda thread: thread != mine):
        blocks = _entered[thread]
        if context in blocks:
            del blocks[len(blocks) - 1 - blocks[::-1].index(context)]
            if not blocks:
                del _entered[thread]
            return


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    mine = [context for blocks in _entered.values() for context in blocks]
    _entered.clear()
    if mine:  # the one thread that goes on; those of the others are their parent's
        _entered[threading.get_ident()] = mine


os.register_at_fork(after_in_child=_after_fork)
