"""A call's arguments by the parameters of its callable, defaults included."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Mapping
from typing import Any, Final

from lease_locks.memo.canonical import MemoKeyError

_DEFAULT: Final = object()
_ANY: Final = inspect.signature(lambda *args, **kwargs: None)


@functools.lru_cache(maxsize=4096)
def _shape(code: types.CodeType, with_default: tuple[str, ...]) -> inspect.Signature:
    """The parameters of a plain function; `_DEFAULT` stands for a default. It keeps code, never what code refers to."""
    bare = types.FunctionType(code, {}, closure=tuple(types.CellType() for _ in code.co_freevars))
    parameters = inspect.signature(bare).parameters.values()
    return inspect.Signature([p.replace(default=_DEFAULT) if p.name in with_default else p for p in parameters])


def bound_arguments(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
    """The arguments of a call, bound, with its defaults."""
    if type(function) is not types.FunctionType or hasattr(function, "__signature__"):
        bound = _signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        return bound
    code, defaults = function.__code__, dict(function.__kwdefaults__ or ())
    values = function.__defaults__ or ()
    defaults.update(zip(code.co_varnames[code.co_argcount - len(values) : code.co_argcount], values, strict=True))
    bound = _shape(code, tuple(defaults)).bind(*args, **kwargs)
    bound.apply_defaults()
    for name, value in defaults.items():
        if bound.arguments[name] is _DEFAULT:
            bound.arguments[name] = value
    return bound


def _signature(function: Any) -> inspect.Signature:
    """Its own, not that of what it wraps."""
    try:
        return inspect.signature(function, follow_wrapped=False)
    except ValueError as error:  # a builtin that doesn't say
        if hasattr(function, "__wrapped__"):  # functools.lru_cache: it takes whatever it is given
            return _ANY
        raise MemoKeyError(f"{error}: its arguments can't be told apart; wrap it in a function of your own") from error
