"""Values to bytes and back: calls (function and arguments), results, and failures. The only place that pickles.

    call     a function (`function_code`: content-addressed, pickled once) and its arguments, where every future found
             anywhere inside is replaced by a reference; the ids of those futures are the call's dependencies
    result   pickle protocol 5; large buffers stay out of band, so that storing or sending them copies nothing and a
             reader on the same host uses them where they lie
    failure  see `failure`: the original exception where it pickles, and always its type, message and traceback as text

Nothing here reads the database or knows about workers. Bytes are unpickled only by `load_*`, and only where user
code runs.

A framed result (what `ResultPayload.to_bytes` writes and an object store holds), offsets from its first byte:

    b"MSB1" | uint32 n | uint64 length of the pickle | n x uint64 length of a buffer | pickle
            | each buffer, starting at the next multiple of 64

A result without large buffers is the pickle alone, which starts with 0x80; the two can't be confused.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import pickle
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final
from uuid import UUID

from fdb_schema import Origin
from futures_worker import value_pickler
from futures_worker.code.code_modules import followed, follows_files, refers_to_local_module
from futures_worker.code.function_code import (
    MAX_CODE_BYTES,
    PYTHON_VERSION,
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
from futures_worker.errors import OversizeError, ResultPickleError, WrongClusterError
from futures_worker.failure import (
    Failure,
    RemoteTraceback,
    dump_exception,
    dump_retry_on,
    load_exception,
    may_retry,
    text_of,
)

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

INLINE_RESULT_BYTES: Final = 16_384  # results up to this size live in the database and survive their worker
MAX_ARGS_BYTES: Final = 64 << 20
OUT_OF_BAND_BYTES: Final = 4_096  # a smaller buffer is cheaper to copy than to describe

_FRAMED: Final = b"MSB1"
_PLAIN: Final = frozenset({type(None), bool, int, float, complex, str, bytes})
"""Types whose pickles name no module, hold no future, and are one piece."""
_SETS: Final = pickle.EMPTY_SET, pickle.FROZENSET  # of a pickle that may hold sets
_ALIGN: Final = 64


# --- calls ------------------------------------------------------------------------------------------------------------


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
    contained: dict[bytes, bytes] | None = None  # set while a result is pickled: futures inside it -> their clusters
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


def note_contained(future_id: bytes, origin: Origin | None = None) -> None:
    """For a future's `__reduce__`: it is pickled as itself; into a result of its cluster, it lives as long as that."""
    if _context.contained is not None:
        _context.contained[future_id] = b"" if origin is None else origin.identity


class AsItself:
    """Among arguments: a class or function that is called, so futures that it refers to stay futures."""

    def __init__(self, value: Any, identity: bytes) -> None:
        """Raises TypeError for what can't be pickled."""
        names: set[str] = set()
        contained: dict[bytes, bytes] = {}
        outer, _context.contained = _context.contained, contained
        try:
            self._pickled = value_pickler.dumps(value, needs=names)
        except Exception as error:
            raise TypeError(
                f"{value!r} can't be pickled: {error}. Create what has no meaning elsewhere inside it"
            ) from error
        finally:
            _context.contained = outer
        self.value: Any = self if contained else value
        """What to put among the arguments: the value where it refers to none, to share with them what it shares."""
        self.names = followed(names)  # of modules, as those of `dump_args_and_names`
        self.holds = _of_cluster(contained, identity)

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self._pickled,)


def _of_cluster(contained: Mapping[bytes, bytes], identity: bytes) -> tuple[bytes, ...]:
    return tuple(one for one, cluster in contained.items() if cluster in (b"", identity))


def _resolve_reference(index: int) -> Any:
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
    outer, _context.contained = _context.contained, {}
    try:
        code = cache.dump(function, also)
        return code, _of_cluster(_context.contained, identity) if _context.contained else ()
    finally:
        _context.contained = outer


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


# --- results ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResultPayload:
    """A pickled result: the pickle and the buffers that stayed out of it."""

    pickled: bytes
    buffers: tuple[memoryview, ...] = ()  # flat bytes, each over OUT_OF_BAND_BYTES, in the order of the pickle
    contained: tuple[bytes, ...] = ()  # ids of the futures inside
    clusters: tuple[bytes, ...] = ()  # identities of their clusters, in the same order; b"": not known

    def contained_in(self, identity: bytes) -> tuple[bytes, ...]:
        """The futures inside that are of the cluster with this identity."""
        if not self.contained:
            return ()
        return _of_cluster(dict(zip(self.contained, self.clusters, strict=True)), identity)

    @property
    def nbytes(self) -> int:
        """Bytes that `to_bytes` and `parts` produce."""
        if not self.buffers:
            return len(self.pickled)
        size = _header_bytes(len(self.buffers)) + len(self.pickled)
        for buffer in self.buffers:
            size = _aligned(size) + buffer.nbytes
        return size

    def parts(self) -> Iterator[bytes | memoryview]:
        """The framed bytes piece by piece, no buffer copied: for a vectored write, or a copy into an arena."""
        if not self.buffers:
            yield self.pickled
            return
        lengths = [buffer.nbytes for buffer in self.buffers]
        yield struct.pack(f"<4sIQ{len(lengths)}Q", _FRAMED, len(lengths), len(self.pickled), *lengths)
        yield self.pickled
        position = _header_bytes(len(lengths)) + len(self.pickled)
        for buffer in self.buffers:
            if gap := _aligned(position) - position:
                yield bytes(gap)
            yield buffer
            position = _aligned(position) + buffer.nbytes

    def write_into(self, target: memoryview) -> int:
        """Copy the framed bytes to the start of a writable flat memoryview of at least `nbytes`; returns nbytes."""
        position = 0
        for part in self.parts():
            length = len(part)
            target[position : position + length] = part
            position += length
        return position

    def to_bytes(self) -> bytes:
        """The framed bytes in one piece."""
        return self.pickled if not self.buffers else b"".join(self.parts())


def dump_result(value: Any) -> ResultPayload:
    """Pickle what a task returned. Raises ResultPickleError (permanent: another attempt would fail in the same way)."""
    if type(value) in _PLAIN:
        return ResultPayload(pickle.dumps(value, 5))
    buffers: list[memoryview] = []
    contained: dict[bytes, bytes] = {}
    outer, _context.contained = _context.contained, contained

    def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
        try:
            view = buffer.raw()
        except BufferError:  # not contiguous: pickle copies it
            return True
        if view.nbytes < OUT_OF_BAND_BYTES:
            return True
        buffers.append(view)
        return False

    try:
        try:
            pickled = pickle.dumps(value, 5, buffer_callback=keep_in_band)
        except Exception:
            pickled = b""
        if not pickled or refers_to_local_module(pickled):
            buffers.clear()
            contained.clear()
            pickled = value_pickler.dumps(value, buffer_callback=keep_in_band, begin_again=buffers.clear)
    except Exception as error:
        raise ResultPickleError(
            f"the task returned a {type(value).__module__}.{type(value).__qualname__}, which can't be pickled: "
            f"{type(error).__name__}: {text_of(error)}. Return plain data, or what the object is made from"
        ) from error
    finally:
        _context.contained = outer
    return ResultPayload(pickled, tuple(buffers), tuple(contained), tuple(contained.values()))


def load_result(data: bytes | bytearray | memoryview) -> Any:
    """The value of a framed result. Large buffers are views into `data`, which must outlive the value.

    Arrays over a read-only `data` are read-only. Raises ResultPickleError where this process can't load it.
    """
    try:
        if data[:1] == b"\x80":
            return pickle.loads(data)
        pickled, buffers = _split_frame(memoryview(data))
        return pickle.loads(pickled, buffers=buffers)
    except ResultPickleError:
        raise
    except Exception as error:
        missing = f" (the module {error.name!r} is missing here)" if isinstance(error, ModuleNotFoundError) else ""
        raise ResultPickleError(
            f"the result can't be unpickled by this process{missing}: {type(error).__name__}: {error} (Python "
            f"{PYTHON_VERSION})"
        ) from error


def load_own(data: bytes | bytearray | memoryview) -> Any:
    """As `load_result`, and arrays can be written to whatever their size: what is read-only is copied first."""
    framed = data[:1] != b"\x80"
    return load_result(bytearray(data) if framed and memoryview(data).readonly else data)


def _split_frame(data: memoryview) -> tuple[memoryview, list[memoryview]]:
    data = data.cast("B") if data.format != "B" or data.ndim != 1 else data
    if bytes(data[:4]) != _FRAMED:
        raise ResultPickleError(f"these {data.nbytes} bytes are no result: they start with {bytes(data[:4])!r}")
    count, length = struct.unpack_from("<IQ", data, 4)
    lengths = struct.unpack_from(f"<{count}Q", data, 16)
    position = _header_bytes(count)
    pickled = data[position : position + length]
    position += length
    buffers = []
    for size in lengths:
        position = _aligned(position)
        buffers.append(data[position : position + size])
        position += size
    if position > data.nbytes:
        raise ResultPickleError(f"the result is cut off: {data.nbytes} bytes of {position}")
    return pickled, buffers


def _header_bytes(buffers: int) -> int:
    return 16 + 8 * buffers


def _aligned(position: int) -> int:
    return -(-position // _ALIGN) * _ALIGN
