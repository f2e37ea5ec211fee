"""What a function is, without the wrapper that `memoize` puts around it; what its behaviour depends on beside its code and arguments; and
whether a name of that was bound anew.
"""

from __future__ import annotations

import abc
import dis
import functools
import inspect
import itertools
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from fdb_schema.whole_copies import DISPATCHER_ATTRIBUTES, SCRIPTS, is_dispatching, named_as_text

_ABSENT: Final = object()
_PLAIN: Final = (str, bytes, int, float, complex, tuple, list, dict, set, frozenset)
_REGISTERED: Final = vars(abc)["_get_dump"]  # as cloudpickle has it; Python names nothing public that says it


class Attached:
    """What `memoize` gives a function beside its calls, as an attribute: no part of what the function is known by, nor of what any decorator
    makes of it that copies attributes, as `functools.wraps` does."""

    __slots__ = ()


def memoizing(
    call: Callable[..., Any],
    function: Callable[..., Any],
    attributes: Mapping[str, Attached] = types.MappingProxyType({}),
) -> Callable[..., Any]:
    """`function` with its calls made by `call(function, *args, **kwargs)`, and with these attributes."""

    @functools.wraps(function)
    def memoized(*args: Any, **kwargs: Any) -> Any:
        return call(function, *args, **kwargs)

    # Those that it copied are of a runner's wrapper further within.
    for name in [name for name, value in vars(memoized).items() if isinstance(value, Attached)]:
        delattr(memoized, name)
    vars(memoized).update(attributes)
    return memoized


_CODE: Final = memoizing(functools.partial, print).__code__


def is_wrapper(function: Any) -> TypeGuard[types.FunctionType]:
    """Whether a runner's `memoize` made it: told by its code, which a pickled copy has, too."""
    return isinstance(function, types.FunctionType) and function.__code__ == _CODE


def plain(function: Any) -> Any:
    """The function itself, where this is a runner's wrapper of it."""
    while is_wrapper(function):
        function = function.__wrapped__  # type: ignore[attr-defined]
    return function


def without_attached(attributes: dict[str, Any]) -> dict[str, Any]:
    """The attributes of a function, or of an object that has copied a function's."""
    return {name: value for name, value in attributes.items() if not isinstance(value, Attached)}


def around(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """(name, value) of all that a function's behaviour depends on, beside its code and its arguments."""
    if is_dispatching(function):
        yield "its registrations", registrations(function)
        yield (
            "its attributes",
            without_attached({n: v for n, v in vars(function).items() if n not in DISPATCHER_ATTRIBUTES}),
        )
        return
    yield "its defaults", (function.__defaults__, function.__kwdefaults__)
    yield "its attributes", without_attached(vars(function))
    yield from _cells(function)
    yield from _globals(function)


def registrations(function: types.FunctionType) -> dict[type, Any]:
    """What `functools.singledispatch` chooses from, by the type of the first argument; of any other function nothing."""
    return dict(function.registry) if is_dispatching(function) else {}  # type: ignore[attr-defined]


def registered_with(kind: type) -> set[weakref.ref[type]]:
    """The classes that an abstract base class was told are subclasses of it (`register`)."""
    found: set[weakref.ref[type]] = _REGISTERED(kind)[0] if "_abc_impl" in vars(kind) else set()
    return found


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
        for name in sorted({*_names(function.__code__).globals, *named_as_text(function)}):
            # In a remote a nested function of a module has globals of its own, with what the module holds in them.
            if name in space and (module in SCRIPTS or not _is_copy(space[name], there.get(name, space))):
                yield name, space[name]


def _is_copy(value: Any, held: Any) -> bool:
    """Whether it is what the module holds, or plain data like that, as it comes to a remote."""
    if value is held:
        return True
    try:
        return type(value) is type(held) and isinstance(value, _PLAIN) and bool(value == held)
    except Exception:  # of what is in it
        return False


def unplaced(code: types.CodeType) -> dict[str, Any]:
    """What the code of a class's body is made of without the line that it begins on, which it sets as `__firstlineno__` from Python
    3.13 on; of any other code nothing."""
    if code.co_flags & inspect.CO_OPTIMIZED or "__firstlineno__" not in code.co_names:
        return {}
    steps = list(dis.get_instructions(code))
    pairs = itertools.pairwise(steps)
    load = next((one for one, then in pairs if (then.opname, then.argval) == ("STORE_NAME", "__firstlineno__")), None)
    if load is None:
        return {}
    if load.opname == "LOAD_SMALL_INT":
        return {"co_code": code.co_code[: load.offset + 1] + b"\0" + code.co_code[load.offset + 2 :]}
    if load.opcode not in dis.hasconst or any(
        step.opcode in dis.hasconst and step.arg == load.arg for step in steps if step is not load
    ):
        return {}  # a number of the program's is the same
    return {"co_consts": tuple(None if at == load.arg else one for at, one in enumerate(code.co_consts))}


@dataclass(frozen=True, slots=True)
class _Names:
    """What code names beside its own locals; that of its inner functions included."""

    globals: tuple[str, ...]
    binds_globals: frozenset[str]
    binds_cells: frozenset[str]  # of what it closes over


@functools.lru_cache(maxsize=4_096)
def _names(code: types.CodeType) -> _Names:
    named: set[str] = set()
    bound: set[str] = set()
    cells: set[str] = set()
    for step in dis.get_instructions(code):
        if step.opname.endswith(("_GLOBAL", "_NAME", "_GLOBALS")):
            named.add(step.argval)
        if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            bound.add(step.argval)
        elif step.opname in ("STORE_DEREF", "DELETE_DEREF"):
            cells.add(step.argval)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            more = _names(inner)
            named.update(more.globals)
            bound.update(more.binds_globals)
            cells.update(more.binds_cells)
    # A local that an inner function uses is bound like one of an outer function, and nobody else's.
    return _Names(tuple(sorted(named)), frozenset(bound), frozenset(cells.intersection(code.co_freevars)))


class Bindings:
    """What the names that some functions depend on were bound to.

    A name that one of them binds anew as it runs, as a count of its calls, is its state and not looked at.
    """

    def __init__(self, things: Iterable[Any]) -> None:
        things = list(things)
        self._token = abc.get_cache_token()  # changes with every registration anywhere
        self._registered = [(_mark(kind), registered_with(kind)) for kind in things if isinstance(kind, abc.ABCMeta)]
        self._named = [
            (_mark(kind), _marks(named)) for kind in things if isinstance(kind, type) and (named := named_as_text(kind))
        ]
        functions = [thing for thing in things if type(thing) is types.FunctionType]
        state: set[tuple[int, str]] = set()  # (of whose globals, name) and (cell, "")
        for function in functions:
            names = _names(function.__code__)
            state.update((id(function.__globals__), name) for name in names.binds_globals)
            closure = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
            state.update((id(cell), "") for name, cell in closure if name in names.binds_cells)
        self._seen = [_Seen(function, state) for function in functions]

    def stand(self) -> bool:
        """Whether every name is bound to what it was, and the same is registered."""
        token = abc.get_cache_token()
        if token != self._token:
            for mark, registered in self._registered:
                kind = mark()
                if kind is None or registered_with(kind) != registered:
                    return False
            self._token = token
        for mark, named in self._named:
            kind = mark()
            now = {} if kind is None else named_as_text(kind)
            if now.keys() != named.keys() or not all(_is(named[name], value) for name, value in now.items()):
                return False
        return all(seen.stands() for seen in self._seen)


class _Seen:
    """One function as it was."""

    __slots__ = ("cells", "code", "defaults", "function", "globals", "registered")

    def __init__(self, function: types.FunctionType, state: Set[tuple[int, str]]) -> None:
        self.function = weakref.ref(function)
        self.code = function.__code__
        self.registered = [(_mark(kind), _mark(chosen)) for kind, chosen in registrations(function).items()]
        self.defaults = _mark(function.__defaults__), _mark(function.__kwdefaults__)
        closure = function.__closure__ or ()
        values = enumerate(zip(closure, _cells(function), strict=True))
        self.cells = [(at, _mark(value)) for at, (cell, (_, value)) in values if (id(cell), "") not in state]
        told = dict(_globals(function))
        space = function.__globals__
        names = (*told, *(name for name in _names(self.code).globals if name not in space))
        self.globals = [(name, _mark(space.get(name, _ABSENT))) for name in names if (id(space), name) not in state]

    def stands(self) -> bool:
        function = self.function()
        if function is None or function.__code__ is not self.code:
            return False
        if is_dispatching(function):
            now = registrations(function)
            if len(now) != len(self.registered):
                return False
            pairs = zip(self.registered, now.items(), strict=True)
            if not all(_is(mark, kind) and _is(chosen, found) for (mark, chosen), (kind, found) in pairs):
                return False
        defaults, keywords = self.defaults
        if not (_is(defaults, function.__defaults__) and _is(keywords, function.__kwdefaults__)):
            return False
        if self.globals:
            space = function.__globals__
            for name, mark in self.globals:
                if not _is(mark, space.get(name, _ABSENT)):
                    return False
        if self.cells:
            values = [value for _, value in _cells(function)]
            return all(_is(mark, values[at]) for at, mark in self.cells)
        return True


def _mark(value: Any) -> Callable[[], Any]:
    """What tells this very object later. What takes no weak reference, as a list, is kept: another may come to lie where it did."""
    try:
        return weakref.ref(value)
    except TypeError:
        return _Same(value)


def _marks(named: dict[str, type]) -> dict[str, Callable[[], Any]]:
    return {name: _mark(value) for name, value in named.items()}


class _Same:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self) -> Any:
        return self.value


def _is(mark: Callable[[], Any], value: Any) -> bool:
    # None is kept itself: the weak reference that says it is that of an object which is gone.
    return mark() is value and (value is not None or type(mark) is _Same)
