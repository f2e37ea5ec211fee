"""Transactions that note what their bodies write, so that many of them can be committed as one.

One kind has no transaction behind it: as soon as its body does anything else than write, it is stopped. The other reads,
from a transaction of its own that is never committed; it is stopped by what belongs to a commit or can't be shared
(an option, a versionstamp, a watch, a chosen read version, …). A body that was stopped is run again otherwise.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from threading import get_ident
from typing import Any, Final, NoReturn

from fdb_schema import clear_many, prefix_end, set_many
from idempotent_txn.attempts.tracking import VALUED

MAX_KEY_BYTES: Final = 10_000
MAX_VALUE_BYTES: Final = 100_000
END_OF_USER_KEYS: Final = b"\xff"
BYTES_PER_OPERATION: Final = 128
"""About what an operation adds to a commit beside its bytes: its header, and its write conflict range."""


class NeedsTransaction(BaseException):
    """The body does more than this kind of transaction can. Not an `Exception`, so that a body's handlers let it pass."""


class Recording:
    """What a body wrote, in order, and what it read. What most bodies never change lies on the class."""

    size = 0
    """Bytes that the writes (and read conflicts) add to a commit, about."""
    joinable = True
    """Whether that is all there is to the transaction, and none of the writes can be refused for itself."""
    reads: Sequence[tuple[bytes, bytes]] = ()
    """Its read conflict ranges."""
    version = 0
    """The read version, where it read."""
    since = 0.0
    """The read version is not older than this, of `time.monotonic`."""

    def __init__(self) -> None:
        self.operations: list[tuple[str, bytes, bytes]] = []

    def read(self, ranges: list[tuple[bytes, bytes]]) -> None:
        """Note the read conflict ranges."""
        self.reads = ranges
        for begin, end in ranges:
            self.size += len(begin) + len(end) + BYTES_PER_OPERATION
            if end > END_OF_USER_KEYS:
                self.joinable = False

    def valued(self, name: str, key: bytes, value: bytes) -> None:
        self.operations.append((name, key, value))
        size = 2 * len(key) + len(value) + BYTES_PER_OPERATION
        self.size += size
        if key >= END_OF_USER_KEYS or (
            size > MAX_KEY_BYTES and (len(key) > MAX_KEY_BYTES or len(value) > MAX_VALUE_BYTES)
        ):
            self.joinable = False

    def ranged(self, name: str, begin: bytes, end: bytes) -> None:
        self.operations.append((name, begin, end))
        self.size += 2 * (len(begin) + len(end)) + BYTES_PER_OPERATION
        if not begin <= end <= END_OF_USER_KEYS or max(len(begin), len(end)) > MAX_KEY_BYTES:
            self.joinable = False


class SharedRecording(Recording):
    """Of a transaction that its body also reads from, maybe in several threads: the record has the order of the writes."""

    def __init__(self) -> None:
        super().__init__()
        self.order: Final = threading.RLock()
        """Held while a write is recorded and made."""
        self.writer = 0
        """The thread (`get_ident`) that makes a recorded write now; 0 is none."""


def replay(tr: Any, recordings: Iterable[Recording]) -> None:
    """Write what was recorded to `tr`, in order: neighbours that set (or clear) a key by one call together."""
    operations = [operation for recording in recordings for operation in recording.operations]
    at, count = 0, len(operations)
    while at < count:
        name, first, second = operations[at]
        end = at + 1
        if name == "set" or name == "clear":
            while end < count and operations[end][0] == name:
                end += 1
        if end - at == 1:
            if name == "clear":
                tr.clear(first)
            else:
                getattr(tr, name)(first, second)
        elif name == "set":
            set_many(tr, [(key, value) for _, key, value in operations[at:end]])
        else:
            clear_many(tr, [key for _, key, _ in operations[at:end]])
        at = end


def recording_transaction(cls: type) -> tuple[Any, Recording]:
    """A transaction that records, of a subclass of the engine's transaction class `cls`, and its record."""
    recorder: Any = _recorder_class(cls)
    tr = recorder.__new__(recorder)
    recording = tr.recording = Recording()
    return tr, recording


def record_beside(tr: Any) -> Recording:
    """Begin to record the writes of `tr`, a fresh transaction of any engine, which goes on to read and to see them."""
    tr.__class__ = _reading_class(tr.__class__)
    recording = SharedRecording()
    tr.recording = recording
    return recording


_COMMITS_OWN: Final = (
    "_set_option",
    "cancel",
    "commit",
    "get_committed_version",
    "get_versionstamp",
    "on_error",
    "reset",
    "set_idempotency_id",
    "set_read_version",
    "set_versionstamped_key",
    "set_versionstamped_value",
    "watch",
)
"""What belongs to the commit of a transaction, or changes what its reads and writes mean."""


def _stop(self: Any, *_args: Any, **_kwargs: Any) -> NoReturn:
    """In the place of what can't be recorded."""
    self.recording.joinable = False
    raise NeedsTransaction


@cache
def _reading_class(cls: type) -> type:
    """`cls`, whose writes go into its record too; what can't be merged stops the body."""
    blind = _recorder_class(cls)

    def both(name: str) -> Callable[..., None]:
        record, write = getattr(blind, name), getattr(cls, name)
        many = name.endswith("_many")

        def recorded(self: Any, *args: Any, **kwargs: Any) -> None:
            recording: SharedRecording = self.recording
            me = get_ident()
            if recording.writer == me:  # one writing method of the binding calls another
                write(self, *args, **kwargs)
                return
            if many:  # it is gone through twice
                args = tuple(map(list, args))
                kwargs = {argument: list(rows) for argument, rows in kwargs.items()}
            with recording.order:
                record(self, *args, **kwargs)
                recording.writer = me
                try:
                    write(self, *args, **kwargs)
                finally:
                    recording.writer = 0

        return recorded

    def atomic(self: Any, *args: Any, **kwargs: Any) -> None:
        if self.recording.writer != get_ident():
            _stop(self)
        cls._atomic_operation(self, *args, **kwargs)  # type: ignore[attr-defined]

    members: dict[str, Any] = {name: both(name) for name in (*VALUED, *_OTHER_WRITES) if hasattr(cls, name)}
    members |= {name: _stop for name in _COMMITS_OWN if hasattr(cls, name)}
    if hasattr(cls, "_atomic_operation"):
        members["_atomic_operation"] = atomic
    members |= {"options": property(_stop), "__module__": cls.__module__, "__doc__": cls.__doc__}
    return type(cls.__name__, (cls,), members)


_OTHER_WRITES: Final = (
    "clear",
    "clear_range",
    "clear_range_startswith",
    "add_write_conflict_range",
    "add_write_conflict_key",
    "set_many",
    "clear_many",
    "__setitem__",
    "__delitem__",
)


def _key_bytes(tr: Any, key: Any) -> bytes:
    plain = key.as_foundationdb_key() if hasattr(key, "as_foundationdb_key") else key
    if type(plain) is not bytes:
        _stop(tr)  # a key selector, or a mistake: the engine says what it is
    return plain


def _value_bytes(tr: Any, value: Any) -> bytes:
    plain = value.as_foundationdb_value() if hasattr(value, "as_foundationdb_value") else value
    if type(plain) is not bytes:
        _stop(tr)
    return plain


def _missing(self: Any, name: str) -> NoReturn:
    if name == "create_transaction" or name.startswith("__"):
        raise AttributeError(name)
    _stop(self)


# What a transaction that only records has in the place of the binding's methods; the names of the arguments are the binding's.


def _set(self: Any, key: Any, value: Any) -> None:
    if type(key) is not bytes or type(value) is not bytes:
        key, value = _key_bytes(self, key), _value_bytes(self, value)
    self.recording.valued("set", key, value)


def _atomic(name: str) -> Callable[[Any, Any, Any], None]:
    def write(self: Any, key: Any, param: Any) -> None:
        if type(key) is not bytes or type(param) is not bytes:
            key, param = _key_bytes(self, key), _value_bytes(self, param)
        self.recording.valued(name, key, param)

    return write


def _clear(self: Any, key: Any) -> None:
    self.recording.valued("clear", _key_bytes(self, key), b"")


def _clear_range(self: Any, begin: Any, end: Any) -> None:
    first = b"" if begin is None else _key_bytes(self, begin)
    last = END_OF_USER_KEYS if end is None else _key_bytes(self, end)
    self.recording.ranged("clear_range", first, last)


def _clear_range_startswith(self: Any, prefix: Any) -> None:
    first = _key_bytes(self, prefix)
    if not first.rstrip(b"\xff"):
        _stop(self)
    _clear_range(self, first, prefix_end(first))


def _add_write_conflict_range(self: Any, begin: Any, end: Any) -> None:
    self.recording.ranged("add_write_conflict_range", _key_bytes(self, begin), _key_bytes(self, end))


def _add_write_conflict_key(self: Any, key: Any) -> None:
    first = _key_bytes(self, key)
    self.recording.ranged("add_write_conflict_range", first, first + b"\0")


def _delete_item(self: Any, key: Any) -> None:
    if isinstance(key, slice):
        _clear_range(self, key.start, key.stop)
    else:
        _clear(self, key)


def _set_many(self: Any, items: Iterable[tuple[bytes, bytes]]) -> None:
    for key, value in items:
        _set(self, key, value)


def _clear_many(self: Any, keys: Iterable[bytes]) -> None:
    for key in keys:
        _clear(self, key)


def _do_nothing(self: Any) -> None:
    pass


_RECORDER: Final[dict[str, Callable[..., None]]] = {
    **{name: _atomic(name) for name in VALUED},
    "set": _set,
    "clear": _clear,
    "clear_range": _clear_range,
    "clear_range_startswith": _clear_range_startswith,
    "add_write_conflict_range": _add_write_conflict_range,
    "add_write_conflict_key": _add_write_conflict_key,
    "set_many": _set_many,
    "clear_many": _clear_many,
    "__setitem__": _set,
    "__delitem__": _delete_item,
    "__getattr__": _missing,
    "__del__": _do_nothing,
    "set_versionstamped_key": _stop,
    "set_versionstamped_value": _stop,
}


@cache
def _recorder_class(cls: type) -> type:
    """`cls` without its handle: whatever would touch it finds none, and stops the body."""
    return type(cls.__name__, (cls,), {**_RECORDER, "__module__": cls.__module__, "__doc__": cls.__doc__})
