"""Exceptions across processes: the original type is raised again, with the remote traceback attached.

A failure carries text that any reader can show (type, message, traceback) and, where the exception pickles, the exception
itself: its type, its `args`, its attributes and so its text, whatever its `__init__` takes. One that is very large keeps its
type, and both ends of what is long. Nothing is lost on the way: an exception that holds what doesn't pickle becomes a
FutureFailedError that carries all of the text.
"""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass, replace
from typing import Any, Final

import msgpack

from fdb_schema import RecordError
from futures_worker import value_pickler
from futures_worker.errors import FutureFailedError

FAILURE_FORMAT: Final = 1
MAX_PICKLED_BYTES: Final = 32_768  # of one exception; of a larger one what is long is cut short
MAX_TEXT_CHARS: Final = 12_000  # of the message and of the traceback each; both ends of a longer one are kept


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception as data. Reading it unpickles nothing; only `load_exception` does."""

    error_type: str  # qualified class name: "builtins.ValueError"
    message: str  # str(exception)
    traceback: str  # formatted, causes and contexts included
    pickled: bytes = b""  # pickled (exception, its cause or None); empty: carried as text only

    def to_bytes(self) -> bytes:
        """msgpack [format, error_type, message, traceback, pickled]."""
        packed: bytes = msgpack.packb([FAILURE_FORMAT, self.error_type, self.message, self.traceback, self.pickled])
        return packed

    def untraced(self) -> Failure:
        """Itself without the traceback, which the future's row holds as text for everybody to read."""
        return replace(self, traceback="")

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Failure:
        """The failure of `to_bytes`; fields that a newer release appended are ignored. Raises `RecordError`."""
        try:
            fields = msgpack.unpackb(data)
            kind, error_type, message, text, pickled = fields[:5]
        except (ValueError, TypeError, LookupError, RecursionError, msgpack.UnpackException) as error:
            raise RecordError(f"{len(data)} bytes are no failure ({error}): {bytes(data[:40])!r}") from error
        if (
            type(kind) is not int
            or {type(error_type), type(message), type(text)} != {str}
            or type(pickled) is not bytes
        ):
            raise RecordError(f"{len(data)} bytes are no failure: its fields have other types")
        return cls(error_type, message, text, pickled)


class RemoteTraceback(Exception):
    """The cause of an exception raised again here: the traceback of the process that raised it first, as text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text.rstrip()}\n"""'


def dump_exception(error: BaseException, *, skip_frames: int = 0) -> Failure:
    """An exception as data. `skip_frames`: outermost frames to leave out (the runner's own)."""
    frames = error.__traceback__
    for _ in range(skip_frames):
        frames = frames.tb_next if frames is not None and frames.tb_next is not None else frames
    try:
        text = "".join(traceback.format_exception(type(error), error, frames))
    except Exception as reason:  # what it says of itself can't be shown
        text = "".join(traceback.format_tb(frames)) + f"{_type_name(error)} (can't be shown: {type(reason).__name__})"
    return Failure(
        error_type=_storable(_type_name(error)),
        message=_shortened(_message(error)),
        traceback=_shortened(text),
        pickled=_pickled(error),
    )


def text_of(error: BaseException, limit: int = 500) -> str:
    """What an exception says of itself, in at most `limit` characters that UTF-8 has. Never raises."""
    return _storable(_message(error))[:limit]


def load_exception(failure: Failure) -> BaseException:
    """The exception to raise: of the original type where it could be carried, else a FutureFailedError with the text.

    Its `__cause__` is a RemoteTraceback, whose own `__cause__` is the original cause.
    """
    cause = RemoteTraceback(failure.traceback) if failure.traceback else None
    if failure.pickled:
        try:
            error, original_cause = pickle.loads(failure.pickled)
        except Exception as reason:
            return _as_text(failure, cause, f"its exception can't be loaded here: {type(reason).__name__}: {reason}")
        if isinstance(error, BaseException):
            if cause is not None:
                cause.__cause__ = original_cause
                error.__cause__ = cause
            if isinstance(error, FutureFailedError) and not error.remote_traceback:
                error.remote_traceback = failure.traceback
            return error
    return _as_text(failure, cause, "its exception doesn't pickle")


PROGRAM: Final = b"program"
"""In the place of the exception types: it is a program. What it raises ends it, since its next attempt would raise it again."""


def dump_retry_on(kinds: tuple[type[BaseException], ...]) -> bytes:
    """The exception types that a failed attempt is retried for, as bytes; empty for the default, `(Exception,)`."""
    if tuple(kinds) == (Exception,):
        return b""
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise TypeError(f"retry_on takes exception classes, found {kinds!r}")
    return value_pickler.dumps(tuple(kinds))


def may_retry(retry_on: bytes, error: BaseException) -> bool:
    """Whether an attempt that ended with `error` is worth another one by `dump_retry_on`'s bytes.

    Types that don't unpickle here decide nothing: the attempt may be retried.
    """
    if not retry_on:
        return isinstance(error, Exception)
    if retry_on == PROGRAM:
        return False
    try:
        kinds = pickle.loads(retry_on)
    except Exception:
        return True
    return isinstance(error, kinds)


def _as_text(failure: Failure, cause: RemoteTraceback | None, why: str) -> FutureFailedError:
    error = FutureFailedError(f"the task raised {failure.error_type}: {failure.message} ({why})")
    error.error_type = failure.error_type
    error.error_message = failure.message
    error.remote_traceback = failure.traceback
    error.__cause__ = cause
    return error


def _pickled(error: BaseException) -> bytes:
    """The exception and its cause as bytes that load as what they are; empty where the exception doesn't."""
    try:
        whole = _carried(error, MAX_PICKLED_BYTES)
        if whole is None:
            return b""
        room = MAX_PICKLED_BYTES - len(_dumps((whole, None)))
        return _dumps((whole, None if error.__cause__ is None else _carried(error.__cause__, room)))
    except Exception:  # one that contains itself
        return b""


def _carried(error: BaseException, most: int) -> object | None:
    """What to pickle, in at most `most` bytes, so that an exception of the same type and text is loaded; None: nothing.

    The exception itself, if it loads as it was; else what it is made of, put together without its `__init__`, which may
    take something else than `args`; else that with what is long cut short.
    """
    too_large = False
    args, attributes = _made_of(error)
    for candidate in (error, _Parts(type(error), args, attributes)):
        try:
            data = _dumps(candidate)
            if _alike(pickle.loads(data), error):
                if len(data) <= most:
                    return candidate
                too_large = True
        except Exception:
            continue
    if too_large:
        for limit in (MAX_TEXT_CHARS, MAX_TEXT_CHARS // 10, MAX_TEXT_CHARS // 100):
            shorter = _Parts(
                type(error),
                tuple(_shorter(one, limit) for one in args),
                {name: _shorter(value, limit) for name, value in attributes.items()},
            )
            try:
                data = _dumps(shorter)
                str(pickle.loads(data))
            except Exception:
                return None
            if len(data) <= most:
                return shorter
    return None


class _Parts:
    """What an exception is made of; pickles as that exception."""

    def __init__(self, kind: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]) -> None:
        self._parts = kind, args, dict(attributes)

    def __reduce__(self) -> tuple[Any, ...]:
        return _put_together, self._parts


def _made_of(error: BaseException) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the built-in class that it derives from takes, and its attributes."""
    reduced: Any = _built_in(type(error)).__reduce__(error)
    attributes = reduced[2] if len(reduced) > 2 and reduced[2] else {}
    return tuple(map(_inner, reduced[1])), {name: _inner(value) for name, value in attributes.items()}


def _inner(value: Any) -> Any:
    """What to pickle for an exception inside another one (of a group)."""
    if isinstance(value, BaseException):
        return _carried(value, MAX_PICKLED_BYTES) or value
    return [_inner(one) for one in value] if type(value) is list else value


def _built_in(kind: type[BaseException]) -> type[BaseException]:
    return next(base for base in kind.__mro__ if base.__module__ == "builtins")


def _put_together(kind: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]) -> BaseException:
    base = _built_in(kind)
    error: BaseException = base.__new__(kind, *args)
    base.__init__(error, *args)
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


def _dumps(value: object) -> bytes:
    try:
        data = pickle.dumps(value, 5)
        pickle.loads(data)
    except Exception:
        return value_pickler.dumps(value)
    return data


def _alike(loaded: BaseException, error: BaseException) -> bool:
    return (
        type(loaded) is type(error)
        and _message(loaded) == _message(error)
        and len(loaded.args) == len(error.args)
        and all(map(_equal, loaded.args, error.args))
        and loaded.__dict__.keys() == error.__dict__.keys()
    )


def _equal(one: Any, other: Any) -> bool:
    """Whether they are equal; also where they can't be compared but by identity."""
    if type(one) is not type(other):
        return False
    if isinstance(one, BaseException):
        return _alike(one, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_equal, one, other))
    if getattr(type(one), "__eq__", None) is object.__eq__:
        return True
    try:
        return bool(one == other)
    except Exception:  # arrays
        return True


def _shorter(value: Any, limit: int) -> Any:
    if isinstance(value, str):
        return _cut(value, limit)
    try:
        if len(_dumps(value)) <= limit:
            return value
    except Exception:
        pass
    return _cut(repr(value), limit)


def _type_name(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as reason:  # a __str__ of the user's that raises
        return f"<its __str__ raised {type(reason).__name__}: {_message(reason)}>"


def _shortened(text: str) -> str:
    return _cut(_storable(text), MAX_TEXT_CHARS)


def _storable(text: str) -> str:
    """Text that UTF-8 has: half a surrogate pair, as of a file's name that isn't UTF-8, is written as an escape."""
    return text.encode("utf-8", "backslashreplace").decode()


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - limit} characters left out ...]\n{text[-half:]}"
