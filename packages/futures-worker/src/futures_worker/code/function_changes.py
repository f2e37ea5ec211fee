"""Whether a function can have changed since it was pickled: a cheap check, or none where nothing cheap can prove it; and
whether a run of it can change what the next one begins with.
"""

from __future__ import annotations

import dis
import functools
import itertools
import sys
import types
import typing
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

from fdb_schema.whole_copies import CACHED_FUNCTION, names_of_class_bodies
from futures_worker.code.code_modules import made_outside_the_import_system, modules

_ATOMS: Final = (type(None), bool, int, float, complex, str, bytes, type(...), range)


def unchanged_check(function: Any) -> Callable[[], bool] | None:
    """A cheap check that the function is still what it is now; None if nothing cheap can prove it."""
    if not isinstance(function, (types.FunctionType, types.BuiltinFunctionType, type)):
        return None
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    name = function.__qualname__
    by_reference = (
        module is not None
        and module.__name__ != "__main__"
        and "." not in name
        and getattr(module, name, None) is function
        and not modules.goes_by_value(module.__name__)
        and not made_outside_the_import_system(module)
    )
    if by_reference:
        namespace = module.__dict__
        identity = id(function)  # the caller compares with the very function; keep no reference to it
        return lambda: id(namespace.get(name)) == identity
    if not isinstance(function, types.FunctionType):
        return None
    reached = list(_reached_by(function, {}))
    if any(not constant for _, _, constant in reached):
        return None
    sources = [(source, value) for source, value, _ in reached]
    return lambda: all(source() is value for source, value in sources)


def carries_state(function: Any) -> bool:
    """Whether what comes with a callable can be changed by a run: its closure, its defaults, the object whose method it is.

    Globals, attributes of classes and of functions, and caches (`functools.lru_cache`) are the process's, as in any module.
    """
    return _carries_state(function, set())


def _carries_state(value: Any, seen: set[int]) -> bool:
    if isinstance(value, functools.partial):
        parts: Iterator[Any] = itertools.chain([value.func], value.args, value.keywords.values())
    elif isinstance(value, CACHED_FUNCTION):
        parts = iter([value.__wrapped__])
    elif isinstance(value, types.FunctionType) and not _found_by_name(value):
        if set(value.__code__.co_freevars) & _stored_in_closures(value.__code__):
            return True
        cells = map(_cell_contents, value.__closure__ or ())
        parts = itertools.chain(cells, value.__defaults__ or (), (value.__kwdefaults__ or {}).values())
    else:
        return not (isinstance(value, (type, types.ModuleType)) or _constant(value))
    if id(value) in seen:
        return False
    seen.add(id(value))
    return any(_carries_state(part, seen) for part in parts)


def _stored_in_closures(code: types.CodeType) -> set[str]:
    """Names of variables of a closure that the code assigns to, or functions within it do."""
    if not code.co_freevars:  # nor has any function within it one from outside
        return set()
    names = {i.argval for i in dis.get_instructions(code) if i.opname in ("STORE_DEREF", "DELETE_DEREF")}
    inner = (one for one in code.co_consts if isinstance(one, types.CodeType))
    return names.union(*map(_stored_in_closures, inner))


def _reached_by(
    function: types.FunctionType, seen: dict[int, types.FunctionType]
) -> Iterator[tuple[Callable[[], Any], Any, bool]]:
    """(how to look the value up again, the value, whether it can't change in place) for all that pickling would copy."""
    if id(function) in seen:
        return
    seen[id(function)] = function
    weak = weakref.ref(function)
    attributes, annotations = dict(function.__dict__), dict(function.__annotations__)
    fixed = all(map(_constant, (*attributes.values(), function.__defaults__, function.__kwdefaults__))) and all(
        map(_constant_annotation, annotations.values())
    )
    parts = function.__code__, function.__defaults__, function.__kwdefaults__
    names = function.__name__, function.__qualname__, function.__module__, function.__doc__
    yield (functools.partial(_same, weak, parts, names, attributes, annotations), True, fixed)
    lookups: list[Callable[[], Any]] = [functools.partial(_cell_contents, cell) for cell in function.__closure__ or ()]
    names_used = sorted(_global_names(function.__code__))
    lookups += [functools.partial(function.__globals__.get, name, _EMPTY_CELL) for name in names_used]
    for look in lookups:
        value = look()
        if isinstance(value, types.FunctionType) and not _found_by_name(value):
            yield (look, value, True)
            yield from _reached_by(value, seen)
        else:
            yield (look, value, _constant(value))


_EMPTY_CELL: Final = object()


def _same(
    function: weakref.ref[types.FunctionType],
    parts: tuple[Any, ...],
    names: tuple[Any, ...],
    attributes: dict[str, Any],
    annotations: dict[str, Any],
) -> bool:
    """Whether what the function itself refers to are still these very objects."""
    f = function()
    if f is None or f.__code__ is not parts[0] or f.__defaults__ is not parts[1] or f.__kwdefaults__ is not parts[2]:
        return False
    return (
        (f.__name__, f.__qualname__, f.__module__, f.__doc__) == names
        and _same_items(f.__dict__, attributes)
        and _same_items(f.__annotations__, annotations)
    )


def _same_items(now: dict[str, Any], as_it_was: dict[str, Any]) -> bool:
    return len(now) == len(as_it_was) and (
        not now or all(now.get(name, _EMPTY_CELL) is value for name, value in as_it_was.items())
    )


def _constant_annotation(value: Any) -> bool:
    origin = typing.get_origin(value)
    if origin is not None:
        return _constant_annotation(origin) and all(map(_constant_annotation, typing.get_args(value)))
    return _constant(value) or (type(value).__module__ == "typing" and not hasattr(value, "__bound__"))


def _cell_contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _EMPTY_CELL


def _global_names(code: types.CodeType) -> set[str]:
    names = {
        i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL")
    }
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names.union(names_of_class_bodies(code))


def _found_by_name(value: types.FunctionType | type) -> bool:
    module = sys.modules.get(value.__module__ or "")
    return (
        module is not None
        and module.__name__ != "__main__"
        and not modules.goes_by_value(module.__name__)
        and getattr(module, value.__qualname__, None) is value
    )


def _constant(value: Any) -> bool:
    if isinstance(value, (tuple, frozenset)) and type(value) in (tuple, frozenset):
        return all(_constant(item) for item in value)
    if isinstance(value, type):
        return _found_by_name(value)
    if isinstance(value, types.ModuleType):  # one that can't be imported goes by value
        return sys.modules.get(value.__name__) is value and not modules.goes_by_value(value.__name__)
    if isinstance(value, types.BuiltinFunctionType):  # a bound method of a list changes with its list
        return value.__self__ is None or isinstance(value.__self__, types.ModuleType)
    if isinstance(value, types.FunctionType):
        return _found_by_name(value)
    return type(value) in _ATOMS or type(value) is types.CodeType or value is _EMPTY_CELL
