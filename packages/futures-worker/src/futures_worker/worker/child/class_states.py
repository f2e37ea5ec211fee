"""Classes by value, which all code that a process has loaded shares: each function finds them as when it was submitted.

A class that goes by value is one object in a child, whatever brings it; cloudpickle gives it the attributes that come with
what was loaded last. A function that was loaded before, and is kept, would find those of another submit.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from cloudpickle import cloudpickle

from futures_worker import payload, value_pickler

ClassState = tuple[type, Any, bytes]  # a class, the state that came with some code, a name of its content


class ClassStates:
    """What the classes of this process are now. One per process, which is a child: it stands in cloudpickle's way."""

    def __init__(self) -> None:
        self._now: WeakKeyDictionary[type, bytes] = WeakKeyDictionary()  # b"": not known
        self._names: WeakKeyDictionary[type, frozenset[str]] = WeakKeyDictionary()  # attributes that were given
        self._found: list[tuple[type, Any]] | None = None  # while code is loaded
        self._set = cloudpickle._class_setstate
        cloudpickle._class_setstate = functools.wraps(self._set)(lambda kind, state: self._given(kind, state))

    def load(self, data: bytes) -> tuple[Callable[..., Any], list[ClassState]]:
        """The function of some code, and the classes as it knows them."""
        self._found = found = list[tuple[type, Any]]()
        try:
            function = payload.load_code(data)
        finally:
            self._found = None
        states = [(kind, state, _content(state)) for kind, state in found]
        self._now.update({kind: content for kind, _, content in states})
        return function, states

    def restore(self, states: list[ClassState]) -> None:
        """Before a function is called: its classes are as they were when it was submitted."""
        for kind, state, content in states:
            if self._now.get(kind) != content:
                self._given(kind, state)
                self._now[kind] = content

    def _given(self, kind: type, state: Any) -> type:
        for name in self._names.get(kind, frozenset()) - state[0].keys():
            with contextlib.suppress(AttributeError, TypeError):
                delattr(kind, name)
        self._names[kind] = frozenset(state[0])
        self._now[kind] = b""
        if self._found is not None:
            self._found.append((kind, state))
        self._set(kind, state)
        return kind


def _content(state: Any) -> bytes:
    try:
        return hashlib.sha256(value_pickler.dumps(state)).digest()
    except Exception:
        return os.urandom(32)  # like no other
