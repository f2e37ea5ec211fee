"""Values to bytes and back: calls (function and arguments), results, and failures. The only place that pickles.

    call     a function (`function_code`: content-addressed, pickled once) and its arguments, where every future found
             anywhere inside is replaced by a reference; the ids of those futures are the call's dependencies
    result   see `result_payload`: pickle protocol 5, large buffers out of band
    failure  see `failure`: the original exception where it pickles, and always its type, message and traceback as text

Nothing here reads the database or knows about workers. Bytes are unpickled only by `load_*`, and only where user
code runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final
from uuid import UUID

from fdb_schema import Origin
from futures_worker import value_pickler
from futures_worker.code.code_modules import followed, follows_files, refers_to_local_module
from futures_worker.code.function_code import (
    MAX_CODE_BYTES,
    Code,
    CodeCache,
    code_name,
    code_needs,
    code_python,
    code_setting,
    dump_code,
    load_code,
    unpickle_error,
)
from futures_worker.contained import inside, of_cluster
from futures_worker.errors import OversizeError, WrongClusterError
from futures_worker.failure import (
    Failure,
    RemoteTraceback,
    dump_exception,
    dump_retry_on,
    load_exception,
    may_retry,
)
from futures_worker.result_payload import INLINE_RESULT_BYTES, ResultPayload, dump_result, load_own, load_result

__all__ = [
    "INLINE_RESULT_BYTES",
    "MAX_ARGS_BYTES",
    "MAX_CODE_BYTES",
    "AsItself",
    "Code",
    "CodeCache",
    "Failure",
    "PickledTask",
    "RemoteTraceback",
    "ResultPayload",
    "arguments_digest",
    "code_name",
    "code_needs",
    "code_python",
    "code_setting",
    "dump_args",
    "dump_call",
    "dump_code",
    "dump_exception",
    "dump_function",
    "dump_result",
    "dump_retry_on",
    "load_args",
    "load_call",
    "load_code",
    "load_exception",
    "load_own",
    "load_result",
    "may_retry",
    "reference_to",
]

MAX_ARGS_BYTES: Final = 64 << 20
_SETS: Final = pickle.EMPTY_SET, pickle.FROZENSET  # of a pickle that may hold sets


@dataclass(frozen=True, slots=True)
class PickledTask:
    """A call, ready to be stored."""

    code: Code  # the function
    args: bytes  # pickled (args, kwargs) with references in place of futures; empty: no arguments
    dependencies: tuple[
        bytes, ...
    ]  # ids of the futures among the arguments, each once; reference i stands for the i-th


class _Context(threading.local):
    found: dict[bytes, int] | None = None  # set while arguments are pickled: the futures met so far
    origin: Origin | None = None  # beside `found`: the cluster of the client that submits
    values: Sequence[Any] | None = None  # set while arguments are unpickled: what the references stand for


_context: Final = _Context()


def reference_to(future_id: bytes, origin: Origin | None = None) -> tuple[Callable[[int], Any], tuple[int]] | None:
    """For a future's `__reduce__`: what stands for it in the arguments being pickled; None outside `dump_args`.

    Raises WrongClusterError if it is of another cluster than the call.
    """
    found = _context.found
    if found is None:
        return None
    here = _context.origin
    if here is not None and origin is not None and here.identity != origin.identity:
        raise WrongClusterError(
            f"future {UUID(bytes=future_id)} is of {origin}, and can't be waited for by a task of {here}: pass its "
            ".result(), or submit to the client of its own cluster"
        )
    return _resolve_reference, (found.setdefault(future_id, len(found)),)


class AsItself:
    """Among arguments: a class or function that is called, so futures that it refers to stay futures."""

    def __init__(self, value: Any, identity: bytes) -> None:
        """Raises TypeError for what can't be pickled."""
        names: set[str] = set()
        contained: dict[bytes, bytes] = {}
        outer, inside.futures = inside.futures, contained
        try:
            self._pickled = value_pickler.dumps(value, needs=names)
        except Exception as error:
            raise TypeError(
                f"{value!r} can't be pickled: {error}. Create what has no meaning elsewhere inside it"
            ) from error
        finally:
            inside.futures = outer
        self.value: Any = self if contained else value
        """What to put among the arguments: the value where it refers to none, to share with them what it shares."""
        self.names = followed(names)  # of modules, as those of `dump_args_and_names`
        self.holds = of_cluster(contained, identity)

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self._pickled,)


def _resolve_reference(index: int) -> Any:
    """Stored arguments name it by its place: here."""
    values = _context.values
    if values is None:
        raise pickle.UnpicklingError("these are a task's arguments, which only load_args can unpickle")
    return values[index]


def dump_args(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], origin: Origin | None = None
) -> tuple[bytes, tuple[bytes, ...]]:
    """Pickle a call's arguments: (bytes, ids of the futures found among them, which have to be of the cluster `origin`).

    C pickle where it is enough; cloudpickle where it fails, or where the arguments name a module that only this process
    has (`__main__`). Raises TypeError for what can't be pickled, WrongClusterError, OversizeError over 64 MiB.
    """
    data, dependencies, _ = dump_args_and_names(args, kwargs, origin)
    return data, dependencies


def dump_args_and_names(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], origin: Origin | None = None
) -> tuple[bytes, tuple[bytes, ...], frozenset[str]]:
    """As `dump_args`, and the modules named by the bytes whose files are to be followed (`code_files`)."""
    if not args and not kwargs:
        return b"", (), frozenset()
    names: set[str] = set()
    call = (args, dict(kwargs))
    found: dict[bytes, int] = {}
    outer = _context.found, _context.origin
    _context.found, _context.origin = found, origin
    try:
        try:
            data = _dumps_noting(call, names) if follows_files() else pickle.dumps(call, 5)
        except Exception:
            data = b""
        if not data or refers_to_local_module(data):
            found.clear()
            names.clear()
            data = value_pickler.dumps(call, needs=names)
    except WrongClusterError:
        raise
    except Exception as error:
        raise TypeError(
            f"the arguments {_which(args, kwargs)} can't be pickled: {error}. Pass what it is made from (a path, an "
            "address) and open it inside the function"
        ) from error
    finally:
        _context.found, _context.origin = outer
    if len(data) > MAX_ARGS_BYTES:
        raise OversizeError(
            f"the arguments pickle to {len(data)} bytes, over the limit of {MAX_ARGS_BYTES}: "
            "put large objects with client.put(obj) and pass the future"
        )
    return data, tuple(found), followed(names) if names else frozenset()


def _dumps_noting(call: Any, names: set[str]) -> bytes:
    with io.BytesIO() as file:
        value_pickler.ReferencePickler(file, names).dump(call)
        return file.getvalue()


def arguments_digest(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Names these arguments: equal ones made in the same way have the same name. Raises as `dump_args`."""
    data, dependencies = dump_args(args, kwargs)
    if not dependencies:
        with contextlib.suppress(Exception):  # what contains itself
            plain = _memoless((args, sorted(kwargs.items())))
            if not refers_to_local_module(plain):  # what goes by value is named by its content
                data = plain
    return hashlib.sha256(b"".join((data, *dependencies))).hexdigest()[:32]


class _InOrder(pickle._Pickler):
    """Sets as the sorted pickles of their members: each process iterates over them in an order of its own."""

    dispatch: ClassVar[dict[type, Callable[..., None]]] = dict(pickle._Pickler.dispatch)

    def save_in_order(self, members: set[Any] | frozenset[Any]) -> None:
        """A set, wherever it is."""
        self.save_reduce(type(members), (sorted(map(_memoless, members)),), obj=members)  # type: ignore[attr-defined]

    dispatch[set] = dispatch[frozenset] = save_in_order


def _memoless(value: Any) -> bytes:
    """A pickle in which it makes no difference whether two equal parts are one object, nor how a set is iterated over.

    Raises on what contains itself.
    """
    data = _dump_memoless(pickle.Pickler, value)
    return _dump_memoless(_InOrder, value) if any(opcode in data for opcode in _SETS) else data


def _dump_memoless(kind: Callable[..., Any], value: Any) -> bytes:
    with io.BytesIO() as file:
        pickler = kind(file, 5)
        pickler.fast = True
        pickler.dump(value)
        return file.getvalue()


class Joined(tuple[Any, ...]):
    """Results of several futures as one; where arguments are loaded, they stand in its place."""

    __slots__ = ()


def dump_call(
    function: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    cache: CodeCache | None = None,
) -> PickledTask:
    """Pickle a call; `cache` makes the same function be pickled once (see `function_code` for what is guaranteed)."""
    data, dependencies, names = dump_args_and_names(args, kwargs or {})
    code = cache.dump(function, names) if cache is not None else dump_code(function, names)
    return PickledTask(code, data, dependencies)


def dump_function(
    function: Callable[..., Any], also: frozenset[str], cache: CodeCache, identity: bytes
) -> tuple[Code, tuple[bytes, ...]]:
    """A function's code, and the futures of the cluster `identity` that it refers to: they live as long as what it is called for."""
    outer, inside.futures = inside.futures, {}
    try:
        code = cache.dump(function, also)
        return code, of_cluster(inside.futures, identity) if inside.futures else ()
    finally:
        inside.futures = outer


def load_args(
    data: bytes | memoryview, values: Sequence[Any] = (), *, name: str = "the task", python: str = ""
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(args, kwargs) with `values[i]` in the place of the i-th dependency.

    Raises TaskUnpickleError naming the missing module and both Pythons (`python`: the one that pickled, if known).
    """
    if not data:
        return (), {}
    outer = _context.values
    if any(type(value) is Joined for value in values):
        values = [one for value in values for one in (value if type(value) is Joined else (value,))]
    _context.values = values
    try:
        args, kwargs = pickle.loads(data)
    except Exception as error:
        raise unpickle_error(f"the arguments of {name}", error, python or "an unknown version") from error
    finally:
        _context.values = outer
    return args, kwargs


def load_call(
    code: bytes, args: bytes | memoryview = b"", values: Sequence[Any] = ()
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """(function, args, kwargs) ready to be called. Raises TaskUnpickleError."""
    function = load_code(code)
    positional, keywords = load_args(args, values, name=code_name(code), python=code_python(code))
    return function, positional, keywords


def _which(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Names the argument that doesn't pickle."""
    named = [(f"number {i + 1}", value) for i, value in enumerate(args)] + [(repr(k), v) for k, v in kwargs.items()]
    for label, value in named:
        try:
            value_pickler.dumps(value)
        except Exception:
            return f"(argument {label}, a {type(value).__module__}.{type(value).__qualname__})"
    return ""
