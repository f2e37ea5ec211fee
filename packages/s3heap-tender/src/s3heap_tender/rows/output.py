"""What a run printed, handed from its trigger to the scheduler, which keeps the end of it with the task."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

MAX_OUTPUT_TEXT: Final = 4000
_kept: ContextVar[str] = ContextVar("s3heap_tender_output", default="")


def keep_output(text: str) -> None:
    """To be called by a trigger, in its own thread: the last 4000 characters of `text` are kept with the task.

    The next run's output replaces them; `SysDb.describe` and the command `show` show them.
    """
    _kept.set(text[-MAX_OUTPUT_TEXT:])


def take_output() -> str:
    """What the trigger that was called in this thread kept; forgotten from now on."""
    text = _kept.get()
    _kept.set("")
    return text


def text_of(error: BaseException) -> str:
    """An error as one line of text; one that can't say what it is still has a type."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception as second:
        return f"{type(error).__name__} (its text can't be made: {type(second).__name__})"


def storable(text: str) -> str:
    """The text with what no encoding can hold replaced."""
    return text.encode("utf-8", "replace").decode("utf-8")
