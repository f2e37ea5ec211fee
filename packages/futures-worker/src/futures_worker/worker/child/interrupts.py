"""Exceptions from outside for the task that runs: it was cancelled and may clean up, or its soft limit of time has passed.

The template writes into a little memory that it shares with the child which task is meant, then sends a signal, again and again
until the child has taken it in: a signal that comes just before a system call begins would else be noticed when that call ends.
The child's handler, in its main thread, raises only inside the task's own code, and once for each cause:

    words of 8 bytes    CANCEL, LIMIT      1 + the number of the task that is asked to end, that is over its soft limit
                        2 + each of these  the same number, once the child has taken it in

Code of ours that runs inside a task and may not be torn is `shielded`. The memory is also what `cancel_requested` looks at:
any thread of the task, and whatever it forks, sees it at once, however long its main thread stays in native code.
"""

from __future__ import annotations

import mmap
import signal
import time
from collections.abc import Callable
from contextvars import ContextVar
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from futures_worker.errors import SoftTimeLimitExceeded, TaskCancelled
from futures_worker.worker.messages import CANCEL, LIMIT

if TYPE_CHECKING:
    import asyncio

INTERRUPT_SIGNAL: Final = signal.SIGRTMAX - 4
"""One that programs seldom use."""
NEARLY: Final = 0.9
"""Of a soft limit, after which it is taken to have passed."""
FIRST_REPEAT, LAST_REPEAT = 0.05, 1.0
"""Seconds between two signals about the same: at first, and at most."""

_HEARD: Final = 2
_BEFORE, _INSIDE, _AFTER = range(3)
F = TypeVar("F", bound=Callable[..., Any])
_SHIELDED: Final[set[CodeType]] = set()
_OWN: Final[set[CodeType]] = set()


def shielded(function: F) -> F:
    """A decorator: the function, and what it calls, isn't interrupted; what is asked for meanwhile comes after it."""
    _SHIELDED.add(function.__code__)
    return function


def ours(function: F) -> F:
    """A decorator: the function isn't interrupted itself; what it calls is."""
    _OWN.add(function.__code__)
    return function


class SharedWords:
    """The memory that the template and one child share."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self.words = memoryview(self._memory).cast("Q")

    def ask(self, cause: int, seq: int) -> None:
        """The template's side: have a task interrupted; the signal follows."""
        self.words[cause] = seq + 1

    def heard(self) -> bool:
        """Whether the child has taken in all that it was asked."""
        words = self.words
        return words[CANCEL] == words[CANCEL + _HEARD] and words[LIMIT] == words[LIMIT + _HEARD]

    def close(self) -> None:
        """Let it go."""
        self.words.release()
        self._memory.close()


class Gate:
    """The child's side: what of the process may be interrupted just now."""

    def __init__(self, shared: SharedWords) -> None:
        self.struck = False  # whether a task was interrupted in this process
        self._words = shared.words
        self._task = 0  # the number of the one that runs, plus 1
        self._state = _AFTER
        self._seconds = 0.0  # its soft limit
        self._began = 0.0  # when its code began, if it has one
        self._cancelled = False  # it has been interrupted for that
        self._over: SoftTimeLimitExceeded | None = None  # to be thrown into the coroutine that runs
        self._loop_task: asyncio.Task[Any] | None = None
        signal.signal(INTERRUPT_SIGNAL, self._hear)

    def begin(self, seq: int, soft_timeout: float | None) -> None:
        """A task is about to be run by this process; nothing of its code runs yet."""
        self._state = _BEFORE
        self._task = seq + 1
        self._seconds = soft_timeout or 0.0
        self._cancelled = False
        self._over = None

    def run(self, call: Callable[..., Any], *args: Any) -> Any:
        """`call(*args)`, which is the task's code and may be interrupted. Not itself (`ours`): so it always gets to its end."""
        if self._seconds:
            self._began = time.monotonic()
        self._state = _INSIDE
        try:
            return self._run(call, args)
        finally:
            self._state = _AFTER

    def _run(self, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        words = self._words
        if self._task in (words[CANCEL], words[LIMIT]):  # asked for before it began
            signal.raise_signal(INTERRUPT_SIGNAL)
        return call(*args)

    def end(self) -> None:
        """It ended, or was not begun."""
        self._state = _AFTER

    @property
    def cancel_requested(self) -> bool:
        """Whether the task that runs is asked to end."""
        return self._words[CANCEL] == self._task

    @property
    def limited(self) -> bool:
        """Whether the task that runs has a soft limit."""
        return self._seconds > 0

    # --- coroutines: they are cancelled by their loop, at an await

    def follow(self, task: asyncio.Task[Any] | None) -> None:
        """From now on the task of a loop in the main thread is what is interrupted; None: none is any more."""
        self._loop_task = task

    def take_over(self) -> SoftTimeLimitExceeded | None:
        """What the cancellation that was thrown into the coroutine stands for; once."""
        over, self._over = self._over, None
        return over

    # --- the handler

    def _hear(self, number: int, frame: FrameType | None) -> None:
        words = self._words
        for cause in (CANCEL, LIMIT):
            asked = words[cause]
            if asked == words[cause + _HEARD]:
                continue
            meant = asked == self._task
            if asked > self._task or (meant and self._state != _AFTER and not self._may_strike(frame)):
                continue  # it is told again in a moment
            if cause == LIMIT and meant and self._is_early():
                continue
            words[cause + _HEARD] = asked
            if meant and self._state == _INSIDE and not self._cancelled:
                self._strike(cause)

    def _is_early(self) -> bool:
        """Whether the task's own code hasn't run for its limit, about: the worker counts from when it sent the task."""
        return self._state == _INSIDE and time.monotonic() - self._began < NEARLY * self._seconds

    def _may_strike(self, frame: FrameType | None) -> bool:
        if self._state != _INSIDE or frame is None or frame.f_code in _OWN:
            return False
        while frame is not None:
            if frame.f_code in _SHIELDED:
                return False
            frame = frame.f_back
        return True

    def _strike(self, cause: int) -> None:
        self.struck = True
        error: BaseException
        if cause == CANCEL:
            self._cancelled = True
            error = TaskCancelled(
                "the future of this task was cancelled: it may clean up, and is killed when its grace is over"
            )
        else:
            error = SoftTimeLimitExceeded(f"the task ran longer than its soft_timeout of {self._seconds} s")
        task = self._loop_task
        if task is None or task.done():
            raise error
        if isinstance(error, SoftTimeLimitExceeded):
            self._over = error
        task.cancel()
        task.get_loop().call_soon_threadsafe(lambda: None)  # it may be waiting for events


ours(Gate.run)
shielded(Gate._hear)  # another signal may come while one is taken in

_gate: Gate | None = None


def install(shared: SharedWords) -> Gate:
    """Called once by a child: from now on it can be interrupted."""
    global _gate
    _gate = Gate(shared)
    return _gate


_instead: ContextVar[Callable[[], bool] | None] = ContextVar("cancel_requested", default=None)


def ask_instead(asked: Callable[[], bool]) -> None:
    """From now on `asked` tells this context (a thread, a task of asyncio) whether it is asked to end: it runs a call of an actor."""
    _instead.set(asked)


def cancel_requested() -> bool:
    """Whether what runs here is asked to end: a call of an actor, or the task of this process."""
    asked = _instead.get()
    if asked is not None:
        return asked()
    return _gate is not None and _gate.cancel_requested


def interrupted() -> bool:
    """Whether a task of this process has been."""
    return _gate is not None and _gate.struck


def gate() -> Gate | None:
    """That of this process; None outside of a worker's child."""
    return _gate
