"""Functions as content-addressed code: what is sent of a function, and when it has to be pickled again.

**What is sent.** A function of an importable module goes by reference (module and name); any other function (of `__main__`,
a lambda, a closure, of a module that a test runner or notebook made, or one given to `register_pickle_by_value`) by value:
its bytecode, defaults, closure and the globals it uses (`value_pickler`). The bytes start with a small msgpack header, so
that a reader can name the function, the Python that pickled it and the files it needs without unpickling anything:

    uint16 big endian: length of the header | msgpack [format, "3.11.7", "module.qualname", [[module, version], ...]] | pickle

Code that runs in a setting (`settings`) is of format 2: its header has a fifth field, the length of the packed setting, which lies
between header and pickle.

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
import inspect
import pickle
import platform
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import cloudpickle
import msgpack

from futures_worker import value_pickler
from futures_worker.code.code_files import LOOK_SECONDS, needed_files
from futures_worker.code.code_modules import followed, modules
from futures_worker.code.function_changes import unchanged_check
from futures_worker.code.settings import Folder, Setting, unpack_setting
from futures_worker.errors import OversizeError, TaskUnpickleError
from futures_worker.failure import text_of

CODE_FORMAT: Final = 2
_PLAIN_FORMAT: Final = 1  # of code without a setting, which releases before this one load
DIGEST_BYTES: Final = 32  # sha256
MAX_CODE_BYTES: Final = 64 << 20
CACHED_FUNCTIONS: Final = 4096
KEPT_IN_SETTINGS: Final = 64 << 20  # bytes of code in settings that is kept
PYTHON_VERSION: Final = platform.python_version()


@dataclass(frozen=True, slots=True)
class Code:
    """A pickled function."""

    digest: bytes  # sha256 of data
    data: bytes  # header and pickle
    name: str  # module.qualname, for people
    named: frozenset[str] = frozenset()  # modules that the pickle names, which may have files to follow
    folder: Folder | None = None  # whose files it runs in
    streams: bool = False  # a call of it yields
    coroutine: bool = False  # it is awaited for


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
        self._in_settings: dict[tuple[bytes, Setting], Code] = {}
        self._folder: Folder | None = None  # of these
        self._room = KEPT_IN_SETTINGS
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

    def within(self, code: Code, setting: Setting | None) -> Code:
        """The code as it is sent to run in a setting."""
        if not setting:
            return code
        found = self._in_settings.get((code.digest, setting))
        if found is None or setting.folder is not self._folder:
            found = within(code, setting)
            with self._lock:
                if setting.folder is not self._folder or self._room < len(found.data):
                    self._in_settings.clear()
                    self._folder, self._room = setting.folder, KEPT_IN_SETTINGS
                self._in_settings[code.digest, setting] = found
                self._room -= len(found.data)
        return found


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
    fields: list[Any] = [_PLAIN_FORMAT, PYTHON_VERSION, name]
    if named:
        fields.append(needed_files(named))
    header = msgpack.packb(fields)
    data = struct.pack(">H", len(header)) + header + pickled
    if len(data) > MAX_CODE_BYTES:
        raise OversizeError(
            f"the function {name} pickles to {len(data)} bytes, over the limit of {MAX_CODE_BYTES}: pass large "
            "objects as arguments (or client.put them) instead of capturing them"
        )
    streams = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    coroutine = inspect.iscoroutinefunction(function)
    return Code(hashlib.sha256(data).digest(), data, name, named, None, streams, coroutine)


def within(code: Code, setting: Setting) -> Code:
    """Code that runs in a setting: another key, so that whoever has loaded it runs in that too."""
    packed = setting.pack()
    _, python, name, *needs = _header(code.data)[0][:4]
    header = msgpack.packb([CODE_FORMAT, python, name, needs[0] if needs else [], len(packed)])
    data = b"".join((struct.pack(">H", len(header)), header, packed, _split(code.data)[2]))
    return replace(code, digest=hashlib.sha256(data).digest(), data=data, folder=setting.folder)


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
    fields = _header(data)[0]
    return [(module, version) for module, version in fields[3]] if len(fields) > 3 else []


def code_setting(data: bytes) -> Setting | None:
    """What the function runs in, None if that is nothing of its own. Raises TaskUnpickleError."""
    try:
        fields, length = _header(data)
    except Exception:
        return None  # whoever loads it says what is wrong
    if len(fields) < 5 or fields[0] > CODE_FORMAT:
        return None
    return unpack_setting(memoryview(data)[2 + length : 2 + length + fields[4]])


def unpickle_error(what: str, error: BaseException, pickled_by: str) -> TaskUnpickleError:
    """The permanent failure for code or arguments that this process can't load."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        reason = (
            f"the module {error.name!r} is missing here: install it on every worker, start workers in its folder or with that in "
            f"PYTHONPATH, or send it along with cloudpickle.register_pickle_by_value({error.name.split('.')[0]}), "
            f"as Client(modules=[{error.name.split('.')[0]!r}]) does, or with its folder, as Client(working_dir=…)"
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


def _header(data: bytes) -> tuple[list[Any], int]:
    """The fields of the header, and its length."""
    (length,) = struct.unpack_from(">H", data)
    fields: list[Any] = msgpack.unpackb(data[2 : 2 + length])
    return fields, length


def _split(data: bytes) -> tuple[str, str, memoryview]:
    fields, length = _header(data)
    form, python, name = fields[:3]
    if form > CODE_FORMAT:
        raise TaskUnpickleError(
            f"the function {name} was submitted in format {form} by a newer release; this worker reads up to "
            f"{CODE_FORMAT}: upgrade the worker"
        )
    return python, name, memoryview(data)[2 + length + (fields[4] if len(fields) > 4 else 0) :]
