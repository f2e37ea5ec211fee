"""A call as a key and as bytes: what identifies it, and what a remote needs to make it."""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import io
import pickle
import reprlib
import traceback
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import cloudpickle

from lease_locks.errors import LeaseError
from lease_locks.memo.canonical import MemoKeyError, canonical, canonical_digest, logic_key, plain_cells
from lease_locks.memo.rows import INLINE_BYTES, Memo

_PICKLE_PROTOCOL: Final = 5
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 160
_SMALL_ARGUMENT: Final = 4_096


class RemoteTraceback(Exception):
    """The cause of an exception raised again here: the traceback of the process that raised it first, as text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text.rstrip()}\n"""'


class RemoteError(LeaseError):
    """A function's exception that doesn't pickle: its type, message and traceback as text."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function, bound."""

    memo: Memo
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    bound: Mapping[str, Any]  # parameter → argument, defaults included

    def shown(self) -> tuple[tuple[str, str, bytes], ...]:
        """(parameter, its value for people, digest of its canonical bytes)."""
        return tuple((name, _show(value), canonical_digest(value)) for name, value in self.bound.items())


def _show(value: Any) -> str:
    try:
        return _SHORT.repr(value)[:200]
    except Exception as error:
        return f"<{type(value).__qualname__}, whose repr raises {type(error).__name__}>"


@functools.lru_cache(maxsize=4096)
def _described(function: Callable[..., Any]) -> tuple[str, str, inspect.Signature]:
    plain = inspect.unwrap(function)
    module = getattr(plain, "__module__", None) or "__main__"
    name = getattr(plain, "__qualname__", None) or type(plain).__qualname__
    try:
        signature = inspect.signature(plain)
    except ValueError as error:  # a builtin that doesn't say
        raise MemoKeyError(f"{error}: its arguments can't be told apart; wrap it in a function of your own") from error
    return f"{module}--{name}", logic_key(plain), signature


def function_name(function: Callable[..., Any]) -> str:
    """module--qualname[@function-logic-key]"""
    name, key, _ = _described(inspect.unwrap(function))
    return f"{name}@{key}" if key else name


def bind(pipeline: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
    """The call's address. Positional, keyword and default arguments that bind alike give one address.

    Raises `TypeError` where the arguments don't fit, `MemoKeyError` where one can't be part of a key.
    """
    while isinstance(function, functools.partial):
        args, kwargs = (*function.args, *args), {**function.keywords, **kwargs}
        function = function.func
    plain = inspect.unwrap(function)
    name, key, signature = _described(plain)
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    digest = hashlib.sha256()
    digest.update(canonical((pipeline, name, key)))
    if "<lambda>" in name and not key:
        digest.update(canonical(plain.__code__))  # its name says nothing: a lambda goes by its code, and by what it
        digest.update(canonical(plain_cells(plain)))  # closes over where that is plain
    owner = _owner(plain)
    if owner is not None:
        try:
            digest.update(canonical_digest(owner))
        except MemoKeyError as error:
            raise MemoKeyError(f"the object that {name} is called on: {error}") from error
    for parameter, value in bound.arguments.items():
        try:
            digest.update(canonical(parameter))
            digest.update(canonical_digest(value))
        except MemoKeyError as error:
            raise MemoKeyError(f"argument {parameter!r} of {name}: {error}") from error
    memo = Memo(pipeline, f"{name}@{key}" if key else name, digest.digest())
    return Call(memo, plain, bound.args, bound.kwargs, bound.arguments)


def _owner(function: Callable[..., Any]) -> Any:
    """The object that a bound method, or a callable object, computes with: as much a part of the call as an argument."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, type):
        return f"{owner.__module__}:{owner.__qualname__}"
    if owner is not None:
        return None if isinstance(owner, types.ModuleType) else owner
    return None if isinstance(function, type | types.FunctionType | types.BuiltinFunctionType) else function


def dump_call(call: Call) -> bytes:
    """The call for a remote: by reference where the function can be imported, by value where it can't."""
    reference = _reference(call.function)
    data: bytes = cloudpickle.dumps(
        (reference, None if reference else call.function, call.args, dict(call.kwargs)), protocol=_PICKLE_PROTOCOL
    )
    return data


def load_call(data: bytes) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """The function itself (never its memoizing wrapper) and its arguments."""
    reference, function, args, kwargs = pickle.loads(data)
    if reference is not None:
        module, name = reference
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        function = inspect.unwrap(found)
    return function, args, kwargs


def _reference(function: Callable[..., Any]) -> tuple[str, str] | None:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "<")
    if not module or module == "__main__" or "<" in name:
        return None
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return None
    return (module, name) if inspect.unwrap(found) is function else None


def dump_value(value: Any) -> bytes:
    """A result's bytes."""
    buffer = io.BytesIO()
    cloudpickle.Pickler(buffer, protocol=_PICKLE_PROTOCOL).dump(value)
    return buffer.getvalue()


def load_value(data: bytes) -> Any:
    return pickle.loads(data)


def dump_failure(error: BaseException) -> tuple[bytes, str, str]:
    """(pickled exception or b"", "type: message", formatted traceback)."""
    text = "".join(traceback.format_exception(error))
    name = f"{type(error).__module__}.{type(error).__qualname__}: {error}"
    try:
        data: bytes = cloudpickle.dumps(error.with_traceback(None), protocol=_PICKLE_PROTOCOL)
        pickle.loads(data)
    except Exception:
        data = b""
    if len(data) > INLINE_BYTES:
        data = b""  # carried as text: a failure is one row
    return data, name[:2_000], text[-12_000:]


def load_failure(data: bytes, name: str, text: str) -> BaseException:
    """The exception to raise here, its cause the remote's traceback."""
    error: BaseException
    try:
        error = pickle.loads(data) if data else RemoteError(name)
    except Exception:
        error = RemoteError(name)
    error.__cause__ = RemoteTraceback(text)
    return error
