"""A call as a key and as bytes: what identifies it, and what a remote needs to make it."""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import reprlib
import traceback
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from lease_locks.errors import LeaseError
from lease_locks.grants.records import storable
from lease_locks.memo.bindings import plain
from lease_locks.memo.calling.arguments import bound_arguments
from lease_locks.memo.calling.keying import KEY, PLAIN, Keying, keying_of
from lease_locks.memo.canonical import MemoKeyError, canonical, canonical_digest, identity
from lease_locks.memo.content.identities import noting_identities
from lease_locks.memo.content.names import by_name, logic_key, module_of
from lease_locks.memo.pickling import dumps, dumps_result, loads
from lease_locks.memo.stored.addresses import Memo
from lease_locks.memo.stored.payloads import INLINE_BYTES

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 160
_NAMED: Final = (types.FunctionType, types.BuiltinFunctionType, type)
_PLACEHOLDER: Final = type(getattr(functools, "Placeholder", ...))
_LATER: Final = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_NO_VALUE: Final[dict[str, Callable[[Any], bool]]] = {
    "a coroutine function": inspect.iscoroutinefunction,
    "a generator function": inspect.isgeneratorfunction,
    "an asynchronous generator function": inspect.isasyncgenfunction,
}
_PART_BYTES: Final = (INLINE_BYTES, INLINE_BYTES // 8, INLINE_BYTES // 64)
"""What each part of a failure may take: less, where the whole doesn't fit its row."""


class RemoteTraceback(Exception):
    """The cause of an exception raised again here: the traceback of the process that raised it first, as text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text.rstrip()}\n"""'


class RemoteError(LeaseError):
    """A function's exception that doesn't pickle: its type, message and traceback as text."""


class UnpicklableResult(LeaseError, TypeError):
    """A function returned, and its result doesn't pickle, or doesn't unpickle."""


class ReboundError(LeaseError):
    """Before the function was called: another thread bound a name anew that it uses, or changed an argument. The call begins anew."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function, bound."""

    memo: Memo
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    bound: Mapping[str, Any]  # parameter → argument, defaults included
    digests: Mapping[
        str, bytes
    ]  # parameter → SHA-256 of its argument's canonical bytes; of the function: ""; not of what is left out
    counted: Callable[
        [], Iterable[tuple[str, Any]]
    ]  # (parameter, argument) of those that are part of the key, as they are now
    met: Sequence[tuple[Any, bytes]] = ()  # functions and classes known by their content, with what that was

    def check(self) -> None:
        """Raises `ReboundError` where the call would not be what its key says any more."""
        if any(identity(thing) != known for thing, known in self.met):
            raise ReboundError(
                f"a name that {self.memo.function} uses was bound anew while it was called: pass what changes as arguments"
            )
        self._compare("", self.function)

    def as_it_is(self) -> Call:
        """The same, of whatever names its function uses, and in whatever state that is; its arguments have to stay."""
        return replace(self, digests={name: digest for name, digest in self.digests.items() if name}, met=())

    def _compare(self, name: str, value: Any) -> None:
        if name in self.digests and canonical_digest(value) != self.digests[name]:
            what = f"argument {name!r}" if name else "the object that it is called on"
            raise ReboundError(
                f"{what} of {self.memo.function} changed while it was called: pass a copy, or what identifies it"
            )

    def dump(self) -> bytes:
        """Its bytes for a remote. Raises `ReboundError` where they are of another call than its key: of an argument that another
        thread changed since, as one that fills an array again while the call waits for its lock."""
        data = dump_call(self)
        self.check()
        for name, value in self.counted():
            self._compare(name, value)
        return data

    def shown(self) -> tuple[tuple[str, str, bytes], ...]:
        """(parameter, its value for people, digest of its canonical bytes)."""
        arguments = dict(self.bound) if KEY not in self.digests else {**self.bound, **dict(self.counted())}
        return tuple((name, _show(value), self.digests.get(name, b"")) for name, value in arguments.items())


def _show(value: Any) -> str:
    try:
        return storable(_SHORT.repr(value))[:200]
    except Exception as error:
        return f"<{type(value).__qualname__}, whose repr raises {type(error).__name__}>"


def _described(function: Any) -> tuple[str, str]:
    """(module--qualname, function-logic-key) of a callable; an object's is its class's."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{module_of(named) or '__main__'}--{named.__qualname__}", logic_key(named)


def function_name(function: Callable[..., Any]) -> str:
    """module--qualname[@function-logic-key]"""
    name, key = _described(plain(function))
    return f"{name}@{key}" if key else name


def check_memoizable(function: Any) -> None:
    """Raises `MemoKeyError` for what doesn't return its value when it is called."""
    if type(function) is types.FunctionType and not function.__code__.co_flags & _LATER:
        return
    if not callable(function):  # a property, a classmethod: the runner's decorator has to stand below theirs
        raise MemoKeyError(
            f"{_show(function)} can't be called: a runner memoizes functions; where it is what another decorator made, put the "
            f"runner's below that one"
        )
    for kind, told in _NO_VALUE.items():
        if told(function):
            raise MemoKeyError(
                f"{_described(function)[0]} is {kind}: a runner memoizes what a call returns; wrap it in a function "
                f"that returns the value"
            )


def _given(
    function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], keying: Keying
) -> tuple[Any, tuple[Any, ...], Mapping[str, Any], Keying]:
    """The function itself, with the arguments that partials of it bind, and what its `memoize` was told."""
    while True:
        keying = keying_of(function) if keying is PLAIN else keying
        function = plain(function)
        if type(function) is functools.partial and _PLACEHOLDER not in map(type, function.args):
            args, kwargs = (*function.args, *args), {**function.keywords, **kwargs}
            function = function.func
        elif isinstance(function, types.MethodType) and keying_of(function.__func__) is not PLAIN:
            args, function = (function.__self__, *args), function.__func__  # as it is called by itself
        else:
            return function, args, kwargs, keying


def bind(
    pipeline: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    keying: Keying = PLAIN,
) -> Call:
    """The call's address. Positional, keyword and default arguments that bind alike give one address.

    They are bound to the signature of the callable as it is given: a decorator's own, where it has one. `keying`: what its
    `memoize` was told; that of a runner's wrapper is found.

    Raises `TypeError` where the arguments don't fit, `MemoKeyError` where one can't be part of a key.
    """
    function, args, kwargs, keying = _given(function, args, kwargs, keying)
    check_memoizable(function)
    name, key = _described(function)
    bound = bound_arguments(function, args, kwargs)
    counted = functools.partial(_counted, name, keying, bound)
    digest, digests = hashlib.sha256(canonical((pipeline, name, key))), dict[str, bytes]()
    with noting_identities() as met:
        for parameter, value in (("", function), *counted()):
            try:
                digests[parameter] = canonical_digest(value)
                digest.update(canonical(parameter) + digests[parameter])
            except MemoKeyError as error:
                raise MemoKeyError(f"{_part_of_call(name, parameter)}: {error}") from error
        if callees := keying.followed(function):
            digest.update(canonical(("content", [identity(callee) for callee in callees])))
    memo = Memo(pipeline, f"{name}@{key}" if key else name, digest.digest())
    return Call(memo, function, bound.args, bound.kwargs, bound.arguments, digests, counted, met)


def _counted(name: str, keying: Keying, bound: inspect.BoundArguments) -> Iterable[tuple[str, Any]]:
    """(parameter, argument) of those that are part of the key, as they are now."""
    try:
        return keying.counted(bound)
    except MemoKeyError:
        raise
    except Exception as error:
        raise MemoKeyError(f"the key function of {name} raised {type(error).__name__}: {error}") from error


def _part_of_call(name: str, parameter: str) -> str:
    if parameter == KEY:
        return f"what the key function of {name} returned"
    return f"argument {parameter!r} of {name}" if parameter else f"{name} itself, or the object it is called on"


def dump_call(call: Call) -> bytes:
    """The call for a remote: its function by name where it has one, by value where it hasn't.

    Of a function that doesn't pickle only the reason is told: a remote in this process needs no copy of it.
    """
    function, failure = b"", ""
    module, name = getattr(call.function, "__module__", ""), getattr(call.function, "__qualname__", "")
    reference = (module, name) if isinstance(call.function, _NAMED) and by_name(call.function) else None
    if reference is None:
        try:
            function = dumps(call.function)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
    try:
        return dumps((reference, function, failure, call.args, dict(call.kwargs)))
    except Exception as error:
        for parameter, value in call.bound.items():
            _check_pickles(call, parameter, value)
        raise MemoKeyError(
            f"the arguments of {call.memo.function} don't pickle: {type(error).__name__}: {error}"
        ) from error


def _check_pickles(call: Call, parameter: str, value: Any) -> None:
    """One that is left out of the key is looked at only now."""
    try:
        dumps(value)
    except Exception as error:
        raise MemoKeyError(
            f"argument {parameter!r} of {call.memo.function} can't be sent to its remote ({type(error).__name__}: {error}): also "
            f"what is left out of the key is stored with the call; make it within the function, or let the function look it up"
        ) from error


def load_call(data: bytes, live: Callable[..., Any] | None = None) -> Callable[[], Any]:
    """What makes the call: of the function itself, never of its memoizing wrapper; of `live` where that is given."""
    reference, pickled, failure, args, kwargs = loads(data)
    function: Any = live
    if function is None and failure:
        raise MemoKeyError(
            f"the function can't be sent to another process ({failure}): use samethread_shell, or pass what it needs "
            f"as arguments"
        )
    if function is None and reference is not None:
        module, name = reference
        function = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
        function = plain(function)
    elif function is None:
        function = loads(pickled)
    return functools.partial(function, *args, **kwargs)


def dump_value(value: Any, what: str) -> bytes:
    """A result's bytes. Raises `UnpicklableResult`, which names `what` it is."""
    try:
        return dumps_result(value)
    except Exception as error:
        raise UnpicklableResult(
            f"the function returned, but {what}, a {type(value).__qualname__}, can't be stored: {type(error).__name__}: {error}"
        ) from error


def load_value(data: bytes, uri: str) -> Any:
    """A result. Raises `UnpicklableResult` where it can't be made again from its bytes."""
    try:
        return loads(data)
    except Exception as error:
        raise UnpicklableResult(
            f"the result of {uri} was stored and can't be unpickled here: {type(error).__name__}: {error}. `lease-locks "
            f"invalidate {uri}` forgets it, and the next call computes it again"
        ) from error


def dump_failure(error: BaseException) -> tuple[bytes, str, str]:
    """(pickled exception or b"", "type: message", formatted traceback).

    One that doesn't pickle, or is too large for its row, goes by its type, its message and those of its parts that do and
    aren't; of long texts by how they begin and end.
    """
    text = "".join(traceback.format_exception(error))
    name = f"{type(error).__module__}.{type(error).__qualname__}: {_message(error)}"
    plain_error = error.with_traceback(None)
    data = _fitting(plain_error)
    for most in _PART_BYTES:
        data = data or _fitting(_Parts(plain_error, most))
    return data, storable(name)[:2_000], storable(text)[-12_000:]


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as trouble:
        return f"<its text raises {type(trouble).__name__}>"


def _round_trip(value: Any) -> bytes:
    """The value's pickle, where it can be unpickled as well; b"" where it can't."""
    try:
        data = dumps_result(value)
        loads(data)
    except Exception:
        return b""
    return data


def _fitting(value: Any) -> bytes:
    """`_round_trip`, where that fits its row; b"" where it doesn't."""
    data = _round_trip(value)
    return data if len(data) <= INLINE_BYTES else b""


def _kept(value: Any, most: int) -> tuple[Any, ...]:
    """(what is kept of a part,): the part itself, or how a long text begins and ends; () of any other that takes more than `most`."""
    if 0 < len(_round_trip(value)) <= most:
        return (value,)
    end = most // 10  # of characters, which take up to four bytes
    if type(value) is str:
        return (f"{value[:end]} … {value[-end:]}",)
    if type(value) is bytes:
        return (value[:end] + b" ... " + value[-end:],)
    return ()


def _part(arg: Any, most: int) -> Any:
    """What stands for an exception's argument; one that is an exception itself, or has some (a group), keeps theirs."""
    kept = _kept(arg, most)
    if kept:
        return kept[0]
    if isinstance(arg, BaseException):
        return _Parts(arg, most)
    if isinstance(arg, (list, tuple)) and any(isinstance(one, BaseException) for one in arg):
        return [_part(one, most) for one in arg]
    return _show(arg)


class _Parts:
    """What an exception that doesn't pickle, or is too large, is rebuilt from: a `RemoteError` that is of its type, too."""

    def __init__(self, error: BaseException, most: int) -> None:
        args = tuple(_part(arg, most) for arg in error.args)
        state = {name: kept[0] for name, value in vars(error).items() if (kept := _kept(value, most))}
        self._parts = type(error), args, state, _part(_message(error), most)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, self._parts


def _rebuilt(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any], message: str) -> BaseException:
    members = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__str__": lambda self: message}
    made: type[BaseException] = type(kind.__name__, (kind, RemoteError), members)
    error = made.__new__(made, *args)
    # Not its own __init__, which may want other arguments: that of the built-in exception that it is.
    next(base for base in kind.__mro__ if base.__module__ == "builtins").__init__(error, *args)  # type: ignore[misc]
    error.args = args
    vars(error).update(state)
    return error


def load_failure(data: bytes, name: str, text: str) -> BaseException:
    """The exception to raise here, its cause the remote's traceback."""
    error: BaseException
    try:
        error = loads(data) if data else RemoteError(name)
    except Exception:
        error = RemoteError(name)
    error.__cause__ = RemoteTraceback(text)
    return error
