"""The program that this thread runs, if it runs one: what asks for something inside of it asks by it, so that it is recorded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from fdb_schema import MainspringError


class RunningProgram(Protocol):
    """What the client asks of the program it is used in; see `futures_worker.programs.running`."""

    def submit(self, context: Any, calls: Sequence[Any]) -> list[Any]:
        """Futures of calls that are prepared: made once, and found again by later attempts."""

    def send(self, context: Any, program: bytes, name: str, value: Any) -> None:
        """An event to another program, sent once."""

    def put(self, context: Any, name: str, put: Callable[[], Any]) -> Any:
        """The same of an object."""

    def await_end(
        self, future_id: bytes, timeout: float | None, wait: Callable[[float | None], None], what: Callable[[], str]
    ) -> None:
        """`wait(seconds)` until a future ended; the program leaves where that takes longer. Raises TimeoutError."""

    def wait(self, futures: Sequence[Any], timeout: float | None, return_when: str) -> Any:
        """See `futures_worker.wait`."""

    def as_completed(self, left: list[Any], timeout: float | None) -> Iterator[Any]:
        """See `futures_worker.as_completed`. What came is taken out of `left`; more may be put into it meanwhile."""

    def gather(self, futures: Sequence[Any], timeout: float | None, errors: str) -> list[Any]:
        """See `Client.gather`."""

    def refuse(self, what: str) -> None:
        """Raises MainspringError: later attempts would do it again."""


class _Here(threading.local):
    program: RunningProgram | None = None


_here = _Here()
_running: RunningProgram | None = None  # by whichever thread of this process; it runs one task at a time


def current_program() -> RunningProgram | None:
    """The program that this thread runs; None also inside its steps."""
    return _here.program


class running:
    """`with running(program):` inside, this thread runs `program`; None: what asks for something does so for itself."""

    __slots__ = ("_before", "_program")

    def __init__(self, program: RunningProgram | None) -> None:
        self._program = program

    def __enter__(self) -> None:
        global _running
        self._before, _here.program = _here.program, self._program
        _running = self._program

    def __exit__(self, *_: object) -> None:
        global _running
        _running = _here.program = self._before


def refuse_in_other_thread(what: str) -> None:
    """Raises MainspringError in a thread that the body of a program started: the order of its requests would be chance."""
    if _here.program is None and _running is not None:
        raise MainspringError(
            f"{what} is asked for by another thread than the one that runs the program, which alone may: what threads ask for "
            "comes in another order each time. Start the threads in a step, or submit futures in their place"
        )


def refuse_in_program(what: str) -> None:
    """Raises MainspringError in the body of a program: its next attempt would do it again."""
    program = _here.program
    if program is not None:
        program.refuse(what)
