"""The pickler of what goes by value: cloudpickle, with the same bytes for the same source, and bound to a Python.

- A class of `__main__` has an id under which a process that loads it twice finds the one it has. cloudpickle draws it at
  random; here it comes from the class's own content, so that the next process that runs the same source sends the same. A
  class that has an id keeps it, unless its bases or its name become others.
- What a class of this process's own was when it was sent doesn't come back with an instance of it: the class here goes on as it is.
- What cloudpickle leaves out of functions and classes is put back (`fdb_schema.whole_copies`).
- Constant sets in code (`x in {"a", "b"}`) are sent in sorted order.
- Bytecode is refused by a Python of another minor version, which would die of it: the error names both.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import io
import os
import pickle
import sys
import threading
import types
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

import cloudpickle

from fdb_schema.whole_copies import (
    CLASSES_OF_IDS,
    IDS_OF_CLASSES,
    Cells,
    empty_cell,
    has_id,
    whole_class,
    whole_code,
    whole_named,
    whole_names,
)

PYTHON_MINOR: Final = f"{sys.version_info.major}.{sys.version_info.minor}"

_SET_STATE: Final[Any] = getattr(cloudpickle.cloudpickle, "_class_setstate", None)
_own: Final[WeakKeyDictionary[type, Any]] = WeakKeyDictionary()
"""Classes that this process made, and has sent by value, with what can't be told later of one that a process has."""
_lock = threading.RLock()


def _renew_lock() -> None:
    """In a forked child: another thread of the parent may have held it."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


def _set_state_of_others(kind: type, state: Any) -> type:
    """What cloudpickle calls with a class and the attributes that came with it."""
    if kind not in _own:
        _SET_STATE(kind, state)
    return kind


if _SET_STATE is not None:  # a pickle names it by its place in cloudpickle, here and elsewhere
    cloudpickle.cloudpickle._class_setstate = functools.wraps(_SET_STATE)(_set_state_of_others)


class ForeignBytecodeError(Exception):
    """Code by value that another minor version of Python compiled."""


class ValuePickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Notes what it meets: `needs`, modules that are sent by name; `classes`, those sent by value; `fresh`, those of them
    that had no id before.
    """

    def __init__(
        self, file: io.BytesIO, needs: set[str], buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None
    ) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)
        self.needs = needs
        self.classes: list[type] = []
        self.fresh: list[type] = []
        self._cells = Cells()

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.CodeType):
            self.needs.update(i.argval for i in dis.get_instructions(obj) if i.opname == "IMPORT_NAME" and i.argval)
            _, args = whole_code(obj, self.dispatch_table[types.CodeType](obj))
            return _code, (PYTHON_MINOR, *map(_with_sets_in_order, args))
        if self._cells.has(obj):
            return empty_cell, ()
        if isinstance(obj, types.FunctionType):
            whole_names(obj)
        if has_id(obj) and obj in _own and _own[obj] != _fixed(obj):
            IDS_OF_CLASSES.pop(obj, None)  # another class from now on
        known = has_id(obj)
        reduced = super().reducer_override(obj)
        if reduced is NotImplemented:
            reduced = whole_named(obj)
        if reduced is NotImplemented or isinstance(obj, types.ModuleType):
            note_module(obj, self.needs)
        elif isinstance(obj, types.FunctionType) and obj.__closure__:
            reduced = self._cells.share(obj, reduced)
        elif has_id(obj):
            if len(reduced) == 6:
                reduced = whole_class(obj, reduced)
            self.classes.append(obj)
            if not known:
                self.fresh.append(obj)
        return reduced


class ReferencePickler(pickle.Pickler):
    """The plain pickler, which notes what modules it names: for arguments that go by reference."""

    def __init__(self, file: io.BytesIO, needs: set[str]) -> None:
        super().__init__(file, 5)
        self.needs = needs

    def reducer_override(self, obj: Any) -> Any:
        note_module(obj, self.needs)
        return NotImplemented


def note_module(obj: Any, needs: set[str]) -> None:
    """The module that a pickle of a module, class or function names."""
    if isinstance(obj, types.ModuleType):
        needs.add(obj.__name__)
    elif isinstance(obj, (type, types.FunctionType)) and isinstance(obj.__module__, str):
        needs.add(obj.__module__)


def dumps(
    obj: Any,
    *,
    needs: set[str] | None = None,
    buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None,
    begin_again: Callable[[], None] = lambda: None,
) -> bytes:
    """`cloudpickle.dumps`, as the module says.

    `needs` takes the modules that the bytes name. `begin_again` is called if all of it is pickled a second time.
    """
    noted: set[str] = set() if needs is None else needs
    data, pickler = _dump(obj, noted, buffer_callback)
    if not pickler.fresh:
        return data
    with _lock:
        for one in pickler.fresh:
            _identify(one)
    begin_again()
    return _dump(obj, noted, buffer_callback)[0]


def _dump(
    obj: Any, needs: set[str], buffer_callback: Callable[[pickle.PickleBuffer], Any] | None
) -> tuple[bytes, ValuePickler]:
    with io.BytesIO() as file:
        pickler = ValuePickler(file, needs, buffer_callback)
        pickler.dump(obj)
        return file.getvalue(), pickler


def _identify(kind: type) -> None:
    """Give a class the id of its content: that of its pickle, the ids of all classes in it left out."""
    data, pickler = _dump(kind, set(), None)
    for number, one in enumerate(dict.fromkeys(pickler.classes)):
        data = data.replace(IDS_OF_CLASSES[one].encode(), b"%032d" % number)
    same = 0
    while True:
        name = hashlib.sha256(data + b"%d" % same).hexdigest()[:32]
        known = CLASSES_OF_IDS.get(name)
        if known is None or known is kind:
            break
        same += 1  # another class of the same content: they stay two
    _own[kind] = _fixed(kind)
    IDS_OF_CLASSES[kind] = name
    CLASSES_OF_IDS[name] = kind


def _fixed(kind: type) -> Any:
    bases = kind.__mro__[1:]
    return type(kind), bases, [(one.__name__, one.__qualname__) for one in (kind, *bases)]


class _Ordered:
    """A constant set on its way: made anew from its members in order."""

    def __init__(self, members: frozenset[Any]) -> None:
        self._members = sorted(members, key=lambda one: (type(one).__name__, repr(one)))

    def __reduce__(self) -> tuple[Any, ...]:
        return frozenset, (tuple(map(_with_sets_in_order, self._members)),)


def _with_sets_in_order(value: Any) -> Any:
    if type(value) is frozenset:
        return _Ordered(value)
    if type(value) is tuple:
        return tuple(map(_with_sets_in_order, value))
    return value


def _code(minor: str, *args: Any) -> types.CodeType:
    if minor != PYTHON_MINOR:
        raise ForeignBytecodeError(
            f"it contains a function by value, pickled by Python {minor}, which Python {PYTHON_MINOR} can't run: use the "
            f"same minor version on both sides, or put the function into a module that the workers can import"
        )
    return types.CodeType(*args)
