"""The identities of functions and classes that were taken in this process: each once, while what it depends on stands."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from lease_locks.memo.bindings import Bindings

# By id, not by equality: a metaclass may say that two classes are equal.
_identities: dict[int, tuple[weakref.ref[Any], bytes, Bindings]] = {}
_identifying = threading.RLock()
_noting = threading.local()


def _renew_lock() -> None:
    """In a forked child: another thread of the parent may have held it."""
    global _identifying
    _identifying = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


def taken(thing: Any, take: Callable[[Any], tuple[bytes, list[Any]]]) -> bytes:
    """What `take` gave for this function or class, with those that it depends on; taken again where a name of theirs was bound anew."""
    with _identifying:
        at = id(thing)
        there = _identities.get(at)
        known = there[1] if there is not None and there[0]() is thing and there[2].stand() else b""
        if not known:
            known, met = take(thing)
            _identities[at] = weakref.ref(thing, lambda gone: _forget(at, gone)), known, Bindings(met)
    noted = getattr(_noting, "list", None)
    if noted is not None:
        noted.append((thing, known))
    return known


@contextlib.contextmanager
def noting_identities() -> Iterator[list[tuple[Any, bytes]]]:
    """What this thread asks for the identity of within the block, with what that was."""
    before, noted = getattr(_noting, "list", None), list[tuple[Any, bytes]]()
    _noting.list = noted
    try:
        yield noted
    finally:
        _noting.list = before


def _forget(at: int, gone: weakref.ref[Any]) -> None:
    there = _identities.get(at)
    if there is not None and there[0] is gone:
        del _identities[at]
