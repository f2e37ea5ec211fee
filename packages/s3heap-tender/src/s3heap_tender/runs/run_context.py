"""What a trigger may ask and tell of the run that it makes: whether it was cancelled, and what is cancelled with it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

_over: Final[ContextVar[threading.Event | None]] = ContextVar("s3heap_tender_run_over", default=None)
_awaits: Final[ContextVar[Callable[[Any], None] | None]] = ContextVar("s3heap_tender_run_awaits", default=None)


def enter_run(over: threading.Event, awaits: Callable[[Any], None] | None = None) -> None:
    """This thread makes a run from now on; `over` is set when the run is cancelled, `awaits` is told what it waits for."""
    _over.set(over)
    _awaits.set(awaits)


def run_over() -> threading.Event | None:
    """What is set when this thread's run is cancelled; None outside of a run."""
    return _over.get()


def run_awaits(outcome: Any) -> bool:
    """This thread's run waits for `outcome`, whose `cancel()` is called when the run is cancelled; False outside of a run."""
    awaits = _awaits.get()
    if awaits is not None:
        awaits(outcome)
    return awaits is not None


def run_is_cancelled() -> bool:
    """To be asked by a trigger, in its own thread: its claim is lost, or its time is up, and its result won't count."""
    over = _over.get()
    return over is not None and over.is_set()
