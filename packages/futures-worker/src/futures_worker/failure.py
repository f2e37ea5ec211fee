"""Exceptions across processes: the original type is raised again, with the remote traceback attached.

A failure carries text that any reader can show (type, message, traceback) and, where the exception pickles and loads
again, the exception itself. Nothing is lost on the way: an exception that doesn't pickle becomes a FutureFailedError that
carries all of the text.
"""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from typing import Any, Final

import cloudpickle
import msgpack

from futures_worker.errors import FutureFailedError

FAILURE_FORMAT: Final = 1
MAX_PICKLED_BYTES: Final = 32_768  # of one exception; a larger one is carried as text
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

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Failure:
        """The failure of `to_bytes`; fields that a newer release appended are ignored."""
        fields = msgpack.unpackb(data)
        return cls(*fields[1:5])


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
    text = "".join(traceback.format_exception(type(error), error, frames))
    return Failure(
        error_type=_type_name(error),
        message=_shortened(_message(error)),
        traceback=_shortened(text),
        pickled=_pickled(error),
    )


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


def dump_retry_on(kinds: tuple[type[BaseException], ...]) -> bytes:
    """The exception types that a failed attempt is retried for, as bytes; empty for the default, `(Exception,)`."""
    if tuple(kinds) == (Exception,):
        return b""
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise TypeError(f"retry_on takes exception classes, found {kinds!r}")
    data: bytes = cloudpickle.dumps(tuple(kinds), protocol=5)
    return data


def may_retry(retry_on: bytes, error: BaseException) -> bool:
    """Whether an attempt that ended with `error` is worth another one by `dump_retry_on`'s bytes.

    Types that don't unpickle here decide nothing: the attempt may be retried.
    """
    if not retry_on:
        return isinstance(error, Exception)
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
    """The exception and its cause, if they pickle, load again as the same type, and are small; else as much as does."""
    cause = error.__cause__
    for candidate in [(error, cause), (error, None)] if cause is not None else [(error, None)]:
        data = _round_trip(candidate)
        if data:
            return data
    return b""


def _round_trip(pair: tuple[BaseException, BaseException | None]) -> bytes:
    data = b""
    for dumps in (pickle.dumps, cloudpickle.dumps):
        try:
            data = dumps(pair, protocol=5)
            loaded, _ = pickle.loads(data)
            same = type(loaded) is type(pair[0]) and len(loaded.args) == len(pair[0].args)
        except Exception:
            continue
        if same and len(data) <= MAX_PICKLED_BYTES:
            return data
    return b""


def _type_name(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}"


def _message(error: BaseException) -> Any:
    try:
        return str(error)
    except Exception as reason:  # a __str__ of the user's that raises
        return f"<its __str__ raised {type(reason).__name__}: {reason}>"


def _shortened(text: str) -> str:
    if len(text) <= MAX_TEXT_CHARS:
        return text
    half = MAX_TEXT_CHARS // 2
    return f"{text[:half]}\n[... {len(text) - MAX_TEXT_CHARS} characters left out ...]\n{text[-half:]}"
