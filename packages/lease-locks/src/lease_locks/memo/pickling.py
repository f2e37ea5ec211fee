"""What goes to another process as bytes: functions and classes of a script by value, and a result's as its script's own again.

A script's module is `__main__`, in a process of multiprocessing also `__mp_main__`; a remote has neither, and the next process
has another one. So a script's classes go by value, as cloudpickle has it, and what came back would be of copies: unequal to what
the script itself makes, and not caught as its exceptions. A class is therefore told by its name and by what it does.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import io
import pickle
import sys
import types
import weakref
from collections.abc import Iterator
from typing import Any, Final

import cloudpickle

from fdb_schema.whole_copies import SCRIPTS, Cells, empty_cell, whole_class, whole_code, whole_named, whole_names
from lease_locks.memo.canonical import canonical
from lease_locks.memo.content.classes import DESCRIPTOR_PARTS, DESCRIPTORS, body_of
from lease_locks.memo.content.names import module_of

_PROTOCOL: Final = 5
_Told = tuple[str, bytes]  # the class's qualified name, a digest of what it does
_newest: weakref.WeakValueDictionary[_Told, type] = weakref.WeakValueDictionary()
_made_here: weakref.WeakValueDictionary[int, type] = (
    weakref.WeakValueDictionary()
)  # by id; of those that went elsewhere
_came_here: weakref.WeakValueDictionary[int, type] = weakref.WeakValueDictionary()


def dumps(value: Any) -> bytes:
    """The bytes of a call, for a remote."""
    return _dumps(value, _Calls)


def dumps_result(value: Any) -> bytes:
    """The bytes of what is kept: whoever runs the same script gets instances of its very classes."""
    return _dumps(value, _Results)


def loads(data: bytes) -> Any:
    """The value of such bytes. Runs code that they name."""
    return pickle.loads(data)


def _dumps(value: Any, pickler: Any) -> bytes:
    main = sys.modules.get("__mp_main__")
    if main is not None and main.__name__ == "__mp_main__":  # else taken for a module that a remote can import
        cloudpickle.register_pickle_by_value(main)
    buffer = io.BytesIO()
    pickler(buffer, protocol=_PROTOCOL).dump(value)
    return buffer.getvalue()


class _Calls(cloudpickle.Pickler):  # type: ignore[misc]
    """Everything in one pickle, so that functions and methods share their globals and variables in a remote as here."""

    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol=protocol)
        self._cells = Cells()

    def reducer_override(self, obj: Any) -> Any:
        if self._cells.has(obj):
            return empty_cell, ()
        if isinstance(obj, types.CodeType):
            return whole_code(obj, self.dispatch_table[types.CodeType](obj))
        if isinstance(obj, types.FunctionType):
            whole_names(obj)
        reduced = super().reducer_override(obj)
        if isinstance(obj, types.FunctionType) and obj.__closure__ and isinstance(reduced, tuple):
            return self._cells.share(obj, reduced)
        if isinstance(obj, type) and isinstance(reduced, tuple) and len(reduced) == 6:
            # Of classes that a metaclass calls equal cloudpickle knows one for the other.
            if _came_here.get(id(obj)) is not obj and type(obj).__eq__ is type.__eq__:
                _made_here[id(obj)] = obj
            make, args, state, items, pairs, set_state = whole_class(obj, reduced)
            return make, args, (_tell(obj), state, set_state), items, pairs, _came
        return whole_named(obj) if reduced is NotImplemented else reduced


class _Results(_Calls):
    def reducer_override(self, obj: Any) -> Any:
        told = _tell(obj) if isinstance(obj, type) else None
        return super().reducer_override(obj) if told is None else (_own, (told, _dumps(obj, _Calls)))


def _tell(kind: type) -> _Told | None:
    """How a class of a script is told; None of any other."""
    if kind.__module__ not in SCRIPTS or "<" in kind.__qualname__:
        return None
    return kind.__qualname__, _does(kind)


def _came(kind: type, state: tuple[_Told | None, Any, Any]) -> None:
    """A class came here by value. One that this process made stays as it is: its methods and its state are the program's."""
    told, inner, set_state = state
    if _made_here.get(id(kind)) is kind:
        return
    _came_here[id(kind)] = kind
    set_state(kind, inner)
    if told is not None:
        _newest[told] = kind  # that of the script's name from now on
        if kind.__qualname__ != told[0]:  # cloudpickle keeps the last part only
            with contextlib.suppress(Exception):  # a metaclass may refuse
                kind.__qualname__ = told[0]


def _own(told: _Told, data: bytes) -> Any:
    """The class of this process's script that has this name and does the same; in a remote, that of its call."""
    found: Any = sys.modules.get("__main__")
    for part in told[0].split("."):
        found = getattr(found, part, None)
    if isinstance(found, type) and found.__module__ in SCRIPTS and _does(found) == told[1]:
        return found
    return _newest.get(told) or loads(data)


def _does(kind: type) -> bytes:
    """A digest of a class's bases and code, and of an enumeration's members; not of state, which may change as it runs."""
    bases = [f"{module_of(base)}:{base.__qualname__}" for base in kind.__bases__]
    code = [(name, code) for name, value in body_of(kind) for code in _code(value)]
    members: Any = kind.__members__.items() if isinstance(kind, enum.EnumMeta) else ()
    told = bases, code, [(name, repr(member.value)) for name, member in members]
    return hashlib.sha256(canonical(told)).digest()


def _code(value: Any) -> Iterator[types.CodeType]:
    if isinstance(value, types.FunctionType):
        yield value.__code__
    elif isinstance(value, DESCRIPTORS):
        for part in DESCRIPTOR_PARTS:
            yield from _code(getattr(value, part, None))
