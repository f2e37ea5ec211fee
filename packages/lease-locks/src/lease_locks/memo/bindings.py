"""What a function's behaviour depends on beside its code and arguments, and whether a name of that was bound anew."""

from __future__ import annotations

import dis
import functools
import sys
import types
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Final

SCRIPTS: Final = frozenset({"__main__", "__mp_main__"})
_KEPT: Final = (int, float, complex, bool, type(None), str, bytes)
_KEPT_BYTES: Final = 4_096


def around(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """(name, value) of all that a function's behaviour depends on, beside its code and its arguments."""
    yield "its defaults", (function.__defaults__, function.__kwdefaults__)
    yield "its attributes", vars(function)
    yield from _cells(function)
    yield from _globals(function)


def _cells(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # nothing in it yet
            yield name, None


def _globals(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    space = function.__globals__
    module = space.get("__name__")
    there = vars(sys.modules.get(module or "", types))
    if module in SCRIPTS or there is not space:
        for name in _names(function.__code__)[0]:
            # In a remote a nested function of a module has globals of its own, with what the module holds in them.
            if name in space and (module in SCRIPTS or there.get(name, space) is not space[name]):
                yield name, space[name]


@functools.lru_cache(maxsize=4_096)
def _names(code: types.CodeType) -> tuple[tuple[str, ...], frozenset[str]]:
    """The globals that code names, and what it binds anew beside its locals; that of its inner functions included."""
    named: set[str] = set()
    bound: set[str] = set()
    for step in dis.get_instructions(code):
        if step.opname.endswith(("_GLOBAL", "_NAME", "_GLOBALS")):
            named.add(step.argval)
        if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF", "DELETE_DEREF"):
            bound.add(step.argval)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            more, also = _names(inner)
            named.update(more)
            bound.update(also)
    return tuple(sorted(named)), frozenset(bound)


class Bindings:
    """What the names that some functions depend on were bound to, without keeping any of it alive.

    A name that one of them binds anew as it runs, as a count of its calls, is its state and not looked at.
    """

    def __init__(self, things: Iterable[Any]) -> None:
        functions = [thing for thing in things if type(thing) is types.FunctionType]
        state = frozenset[str]().union(*(_names(function.__code__)[1] for function in functions))
        self._seen = [_Seen(function, state) for function in functions]

    def stand(self) -> bool:
        """Whether every name is bound to what it was."""
        return all(seen.stands() for seen in self._seen)


class _Seen:
    """One function as it was."""

    __slots__ = ("cells", "code", "defaults", "function", "globals")

    def __init__(self, function: types.FunctionType, state: frozenset[str]) -> None:
        self.function = weakref.ref(function)
        self.code = function.__code__
        self.defaults = id(function.__defaults__), id(function.__kwdefaults__)
        cells = enumerate(_cells(function))
        self.cells = [(at, _mark(value)) for at, (name, value) in cells if name not in state]
        told = dict(_globals(function))
        space = function.__globals__
        names = (name for name in _names(self.code)[0] if name in told or name not in space)
        self.globals = [(name, _mark(space.get(name))) for name in names if name not in state]

    def stands(self) -> bool:
        function = self.function()
        if function is None or function.__code__ is not self.code:
            return False
        if self.defaults != (id(function.__defaults__), id(function.__kwdefaults__)):
            return False
        if self.globals:
            space = function.__globals__
            for name, mark in self.globals:
                if not _is(mark, space.get(name)):
                    return False
        if self.cells:
            values = [value for _, value in _cells(function)]
            return all(_is(mark, values[at]) for at, mark in self.cells)
        return True


def _mark(value: Any) -> Any:
    """What tells this very object later: the small ones themselves, since the next may come to lie where they did."""
    if type(value) in _KEPT and sys.getsizeof(value) <= _KEPT_BYTES:
        return _Same(value)
    try:
        return weakref.ref(value)
    except TypeError:
        return id(value)


class _Same:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self) -> Any:
        return self.value


def _is(mark: Any, value: Any) -> bool:
    return mark == id(value) if type(mark) is int else mark() is value
