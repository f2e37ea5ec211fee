"""Functions as content-addressed code: what is sent of a function, and when it has to be pickled again.

A function of an importable module is sent by reference (module and name); any other function (of `__main__`, a
lambda, a closure, a module that a test runner or notebook made) by value. The bytes start with a small msgpack header,
so that a reader can name the function and the Python that pickled it without unpickling anything:

    uint16 big endian: length of the header | msgpack [format, "3.11.7", "module.qualname"] | pickle

**Guarantee.** What runs is the function as it was when `dump_code` was called. A function is pickled once for as long
as it provably can't have changed: it is still the attribute of its module that its reference names, or its code,
defaults, closure cells and the globals it uses are the same objects and immutable. A function that reaches
anything mutable (a list in its closure, a class of `__main__`) is pickled at every call; equal bytes still share one
blob.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import os
import pickle
import platform
import struct
import sys
import sysconfig
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import cloudpickle
import msgpack

from futures_worker.errors import OversizeError, TaskUnpickleError

CODE_FORMAT: Final = 1
DIGEST_BYTES: Final = 32  # sha256
MAX_CODE_BYTES: Final = 64 << 20
CACHED_FUNCTIONS: Final = 4096
PYTHON_VERSION: Final = platform.python_version()

_IMPORT_SYSTEM: Final = ("_frozen_importlib_external", "_frozen_importlib", "zipimport")
_INSTALLED: Final = tuple(
    {sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_ATOMS: Final = (type(None), bool, int, float, complex, str, bytes, type(...), range)


@dataclass(frozen=True, slots=True)
class Code:
    """A pickled function."""

    digest: bytes  # sha256 of data
    data: bytes  # header and pickle
    name: str  # module.qualname, for people


class _ByValueModules:
    """Modules whose names mean nothing to another process, so that what they define is sent by value.

    That is every module that the import system of Python didn't load. cloudpickle is told of them. `markers` are their
    names as they would appear in a pickle that refers to them.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._count = 0
        self.markers: tuple[bytes, ...] = (b"__main__",)

    def refresh(self) -> None:
        if len(sys.modules) == self._count:
            return
        self._count = len(sys.modules)
        for name, module in list(sys.modules.items()):
            if name in self._seen or module is None:
                continue
            self._seen.add(name)
            if name != "__main__" and _made_outside_the_import_system(module):
                cloudpickle.register_pickle_by_value(module)
                self.markers = (*self.markers, name.encode())


def _made_outside_the_import_system(module: types.ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    loader = getattr(getattr(module, "__spec__", None), "loader", None)
    if not isinstance(module, types.ModuleType) or file is None or loader is None or file.startswith(_INSTALLED):
        return False
    kind = loader if isinstance(loader, type) else type(loader)
    return not any(base.__module__ in _IMPORT_SYSTEM for base in kind.__mro__)


_by_value: Final = _ByValueModules()


def refers_to_local_module(data: bytes) -> bool:
    """Whether a plain pickle may name a module that only this process has (a false alarm is harmless)."""
    _by_value.refresh()
    return any(marker in data for marker in _by_value.markers)


class CodeCache:
    """Pickles functions, each once for as long as it can't have changed. Thread-safe."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Any], Callable[[], bool], Code]] = {}
        self._lock = threading.Lock()

    def dump(self, function: Callable[..., Any]) -> Code:
        """The function's code. Raises TypeError if it isn't callable or can't be pickled, OversizeError over 64 MiB."""
        entry = self._entries.get(id(function))
        if entry is not None and entry[0]() is function and entry[1]():
            return entry[2]
        unchanged = _unchanged_check(function)
        code = dump_code(function)
        if unchanged is not None:
            key = id(function)
            reference = weakref.ref(function, functools.partial(_forget, self._entries, key))
            with self._lock:
                if len(self._entries) >= CACHED_FUNCTIONS:  # a recursive closure keeps itself alive through its cell
                    self._entries.clear()
                self._entries[key] = (reference, unchanged, code)
        return code


def _forget(entries: dict[int, tuple[weakref.ref[Any], Callable[[], bool], Code]], key: int, dead: object) -> None:
    entry = entries.get(key)
    if entry is not None and entry[0] is dead:  # the id may belong to a newer function by now
        entries.pop(key, None)


def dump_code(function: Callable[..., Any]) -> Code:
    """Pickle a function now, whatever was pickled before."""
    if not callable(function):
        raise TypeError(f"submit needs a function, found {function!r} of type {type(function).__name__}")
    _by_value.refresh()
    name = function_name(function)
    try:
        pickled = cloudpickle.dumps(function, protocol=5)
    except Exception as error:
        raise TypeError(
            f"the function {name} can't be pickled: {error}. Something that it refers to (its closure, defaults or "
            "globals) has no meaning in another process, such as an open file, a lock or a connection: create it "
            "inside the function"
        ) from error
    header = msgpack.packb([CODE_FORMAT, PYTHON_VERSION, name])
    data = struct.pack(">H", len(header)) + header + pickled
    if len(data) > MAX_CODE_BYTES:
        raise OversizeError(
            f"the function {name} pickles to {len(data)} bytes, over the limit of {MAX_CODE_BYTES}: pass large "
            "objects as arguments (or client.put them) instead of capturing them"
        )
    return Code(hashlib.sha256(data).digest(), data, name)


def load_code(data: bytes) -> Callable[..., Any]:
    """The function of `dump_code`'s bytes. Raises TaskUnpickleError naming the missing module and both Pythons."""
    python, name, pickled = _split(data)
    try:
        return pickle.loads(pickled)  # type: ignore[no-any-return]
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        raise unpickle_error(f"the function {name}", error, python) from error


def code_name(data: bytes) -> str:
    """The function's name, read from the header; nothing is unpickled."""
    return _split(data)[1]


def code_python(data: bytes) -> str:
    """The version of Python that pickled the function; nothing is unpickled."""
    return _split(data)[0]


def unpickle_error(what: str, error: BaseException, pickled_by: str) -> TaskUnpickleError:
    """The permanent failure for code or arguments that this process can't load."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        reason = (
            f"the module {error.name!r} is missing here: install it on every worker, or send it along with "
            f"cloudpickle.register_pickle_by_value({error.name.split('.')[0]})"
        )
    else:
        reason = f"{type(error).__name__}: {error}"
    versions = f"pickled by Python {pickled_by}, loaded by Python {PYTHON_VERSION}"
    return TaskUnpickleError(f"{what} can't be unpickled on this worker: {reason} ({versions})")


def function_name(function: object) -> str:
    """`module.qualname` of a callable, as people read it."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    module = getattr(function, "__module__", None) or type(function).__module__
    return f"{module}.{name}"


def _split(data: bytes) -> tuple[str, str, memoryview]:
    (length,) = struct.unpack_from(">H", data)
    form, python, name = msgpack.unpackb(data[2 : 2 + length])[:3]
    if form > CODE_FORMAT:
        raise TaskUnpickleError(
            f"the function {name} was submitted in format {form} by a newer release; this worker reads up to "
            f"{CODE_FORMAT}: upgrade the worker"
        )
    return python, name, memoryview(data)[2 + length :]


# --- whether a function can have changed since it was pickled ---------------------------------------------------------


def _unchanged_check(function: Any) -> Callable[[], bool] | None:
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
        and module.__name__ not in cloudpickle.list_registry_pickle_by_value()
        and not _made_outside_the_import_system(module)
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


def _reached_by(
    function: types.FunctionType, seen: dict[int, types.FunctionType]
) -> Iterator[tuple[Callable[[], Any], Any, bool]]:
    """(how to look the value up again, the value, whether it can't change in place) for all that pickling would copy."""
    if id(function) in seen:
        return
    seen[id(function)] = function
    if function.__dict__:
        yield (lambda: None, None, False)
        return
    weak = weakref.ref(function)
    lookups = [functools.partial(_attribute, weak, name) for name in ("__code__", "__defaults__", "__kwdefaults__")]
    lookups += [functools.partial(_cell_contents, cell) for cell in function.__closure__ or ()]
    lookups += [functools.partial(function.__globals__.get, name) for name in sorted(_global_names(function.__code__))]
    for look in lookups:
        value = look()
        if isinstance(value, types.FunctionType) and not _found_by_name(value):
            yield (look, value, True)
            yield from _reached_by(value, seen)
        else:
            yield (look, value, _constant(value))


_EMPTY_CELL: Final = object()


def _attribute(function: weakref.ref[types.FunctionType], name: str) -> Any:
    return getattr(function(), name, None)


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
    return names


def _found_by_name(value: types.FunctionType | type) -> bool:
    module = sys.modules.get(value.__module__ or "")
    return (
        module is not None
        and module.__name__ != "__main__"
        and module.__name__ not in cloudpickle.list_registry_pickle_by_value()
        and getattr(module, value.__qualname__, None) is value
    )


def _constant(value: Any) -> bool:
    if isinstance(value, (tuple, frozenset)) and type(value) in (tuple, frozenset):
        return all(_constant(item) for item in value)
    if isinstance(value, type):
        return _found_by_name(value)
    if isinstance(value, types.ModuleType):
        return value.__name__ not in cloudpickle.list_registry_pickle_by_value()
    if isinstance(value, types.BuiltinFunctionType):  # a bound method of a list changes with its list
        return value.__self__ is None or isinstance(value.__self__, types.ModuleType)
    if isinstance(value, types.FunctionType):
        return _found_by_name(value)
    return type(value) in _ATOMS or type(value) is types.CodeType or value is _EMPTY_CELL
