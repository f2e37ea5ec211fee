"""Functions as content-addressed code: what is sent of a function, and when it has to be pickled again.

**What is sent.** A function of an importable module goes by reference (module and name); any other function (of `__main__`,
a lambda, a closure, of a module that a test runner or notebook made, or one given to `register_pickle_by_value`) by value:
its bytecode, defaults, closure and the globals it uses (`value_pickler`). The bytes start with a small msgpack header, so
that a reader can name the function, the Python that pickled it and the files it needs without unpickling anything:

    uint16 big endian: length of the header | msgpack [format, "3.11.7", "module.qualname", [[module, version], ...]] | pickle

**The key** of code is the SHA-256 of these bytes. So functions have one key if they have the same name, the same Python, the
same pickle, and if the files outside the installation that they need (`code_files`) have the same content: what behaves
otherwise has another key, and the same source in another process has the same. (Sets of texts in closures and globals are
pickled in the order in which a process iterates over them, which costs a second copy and nothing else.)

**Guarantee.** What runs is the function as it was when `dump_code` was called. A function is pickled once for as long
as it provably can't have changed: it is still the attribute of its module that its reference names, or its code,
defaults, closure cells and the globals it uses are the same objects and immutable; and its files are what they were,
which is looked at once a second. A function that reaches anything mutable (a list in its closure, a class of `__main__`) is
pickled at every call; equal bytes still share one blob. A worker's process loads a function once, and anew for each run if
that could change what comes with it (`function_changes.carries_state`).
"""

from __future__ import annotations

import functools
import hashlib
import pickle
import platform
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import cloudpickle
import msgpack

from futures_worker import value_pickler
from futures_worker.code.code_files import LOOK_SECONDS, needed_files
from futures_worker.code.code_modules import followed, modules
from futures_worker.code.function_changes import unchanged_check
from futures_worker.errors import OversizeError, TaskUnpickleError
from futures_worker.failure import text_of

CODE_FORMAT: Final = 1
DIGEST_BYTES: Final = 32  # sha256
MAX_CODE_BYTES: Final = 64 << 20
CACHED_FUNCTIONS: Final = 4096
PYTHON_VERSION: Final = platform.python_version()


@dataclass(frozen=True, slots=True)
class Code:
    """A pickled function."""

    digest: bytes  # sha256 of data
    data: bytes  # header and pickle
    name: str  # module.qualname, for people
    named: frozenset[str] = frozenset()  # modules that the pickle names, which may have files to follow


class _Entry(NamedTuple):
    """Code that was pickled, and how to know that it needn't be again."""

    function: weakref.ref[Any]
    unchanged: Callable[[], bool]
    registered: set[str]  # modules that went by value then
    code: Code
    looked: float  # at its files


class CodeCache:
    """Pickles functions, each once for as long as it can't have changed. Thread-safe."""

    def __init__(self) -> None:
        self._entries: dict[tuple[int, frozenset[str]], _Entry] = {}
        self._lock = threading.Lock()

    def dump(self, function: Callable[..., Any], also: frozenset[str] = frozenset()) -> Code:
        """The function's code; `also`: modules that its arguments name, whose files it needs too.

        Raises TypeError if it isn't callable or can't be pickled, OversizeError over 64 MiB.
        """
        key = (id(function), also)
        entry = self._entries.get(key)
        if (
            entry is not None
            and entry.function() is function
            and entry.unchanged()
            and cloudpickle.list_registry_pickle_by_value() == entry.registered
            and (not entry.code.named or time.monotonic() - entry.looked < LOOK_SECONDS)
        ):
            return entry.code
        unchanged = unchanged_check(function)
        code = dump_code(function, also)
        if unchanged is not None:
            reference = weakref.ref(function, functools.partial(_forget, self._entries, key))
            registered = cloudpickle.list_registry_pickle_by_value()
            with self._lock:
                if len(self._entries) >= CACHED_FUNCTIONS:  # a recursive closure keeps itself alive through its cell
                    self._entries.clear()
                self._entries[key] = _Entry(reference, unchanged, registered, code, time.monotonic())
        return code


def _forget(entries: dict[tuple[int, frozenset[str]], _Entry], key: tuple[int, frozenset[str]], dead: object) -> None:
    entry = entries.get(key)
    if entry is not None and entry.function is dead:  # the id may belong to a newer function by now
        entries.pop(key, None)


def dump_code(function: Callable[..., Any], also: Iterable[str] = ()) -> Code:
    """Pickle a function now, whatever was pickled before. `also`: modules that its arguments name."""
    if not callable(function):
        raise TypeError(f"submit needs a function, found {function!r} of type {type(function).__name__}")
    modules.refresh()
    name = function_name(function)
    names: set[str] = set(also)
    try:
        pickled = value_pickler.dumps(function, needs=names)
    except Exception as error:
        raise TypeError(
            f"the function {name} can't be pickled: {error}. Something that it refers to (its closure, defaults or "
            "globals) has no meaning in another process, such as an open file, a lock or a connection: create it "
            "inside the function"
        ) from error
    named = followed(names)
    fields: list[Any] = [CODE_FORMAT, PYTHON_VERSION, name]
    if named:
        fields.append(needed_files(named))
    header = msgpack.packb(fields)
    data = struct.pack(">H", len(header)) + header + pickled
    if len(data) > MAX_CODE_BYTES:
        raise OversizeError(
            f"the function {name} pickles to {len(data)} bytes, over the limit of {MAX_CODE_BYTES}: pass large "
            "objects as arguments (or client.put them) instead of capturing them"
        )
    return Code(hashlib.sha256(data).digest(), data, name, named)


def load_code(data: bytes) -> Callable[..., Any]:
    """The function of `dump_code`'s bytes. Raises TaskUnpickleError naming the missing module and both Pythons."""
    python, name, pickled = _split(data)
    try:
        if python.rpartition(".")[0] != value_pickler.PYTHON_MINOR and b"CodeType" in data:
            raise value_pickler.ForeignBytecodeError("it is a function by value of another minor version")
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


def code_needs(data: bytes) -> list[tuple[str, bytes]]:
    """(module, version of its file) of all files outside the installation that the function needs, read from the header."""
    (length,) = struct.unpack_from(">H", data)
    fields = msgpack.unpackb(data[2 : 2 + length])
    return [(module, version) for module, version in fields[3]] if len(fields) > 3 else []


def unpickle_error(what: str, error: BaseException, pickled_by: str) -> TaskUnpickleError:
    """The permanent failure for code or arguments that this process can't load."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        reason = (
            f"the module {error.name!r} is missing here: install it on every worker, start workers in its folder or with that in "
            f"PYTHONPATH, or send it along with cloudpickle.register_pickle_by_value({error.name.split('.')[0]}), "
            f"as Client(modules=[{error.name.split('.')[0]!r}]) does"
        )
    else:
        reason = f"{type(error).__name__}: {text_of(error)}"
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
