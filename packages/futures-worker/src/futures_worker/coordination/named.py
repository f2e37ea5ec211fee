"""Handles of what is known by a name: they can be pickled, and find their cluster wherever they are used."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future as Answer
from typing import Any, ClassVar, TypeVar

from futures_worker.client.basis.off_loop import in_thread
from futures_worker.client.basis.program import refuse_in_other_thread, refuse_in_program
from futures_worker.client.basis.turn import Flag
from futures_worker.client.context import ClientContext, Home, home_of
from futures_worker.client.session.waiting import check_timeout
from futures_worker.coordination.waiting import Stopped

log = logging.getLogger("futures_worker")

A = TypeVar("A")


class Named:
    """A thing of one cluster that is known by its name. Handles of one thing are equal, in whatever process."""

    kind: ClassVar[str]
    """What it is, for messages."""

    def __init__(self, home: Home, name: str) -> None:
        self._home = home
        self.name = name

    def context_for(self, what: str) -> ClientContext:
        """The client's whose database is asked. Raises MainspringError in the body of a program: it would be asked again."""
        refuse_in_other_thread(f"{what} of {self.kind} {self.name!r}")
        refuse_in_program(f"{what} of {self.kind} {self.name!r}")
        return self._home.context()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Named):
            return NotImplemented
        return type(self) is type(other) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[bytes, str]:
        origin = self._home.origin
        return b"" if origin is None else origin.identity, self.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        origin = self._home.origin
        return attach_named, (type(self), None if origin is None else tuple(origin), self.name)


def attach_named(kind: Callable[[Home, str], A], origin: tuple[str, bytes, str | None] | None, name: str) -> A:
    """What a pickled handle becomes. It finds its client when it is first used."""
    return kind(home_of(origin), name)


def deadline_after(timeout: float | None) -> float | None:
    """The end of a wait, by the monotonic clock. Raises TypeError, ValueError."""
    check_timeout(timeout)
    if timeout is None:
        return None
    if timeout < 0:
        raise ValueError(f"timeout is a number of seconds, 0 or more, or None for no limit, found {timeout!r}")
    return time.monotonic() + timeout


async def off_loop(wait: Callable[[Callable[[], bool]], A], undo: Callable[[A], object] = lambda _: None) -> A:
    """What `wait(stopped)` answers, in a thread of its own. Where it is cancelled the wait is stopped; `undo` what it had all the same."""
    stop = Flag()
    begun = in_thread(lambda: wait(stop.is_set))
    try:
        return await asyncio.wrap_future(begun)
    except asyncio.CancelledError:
        stop.set()
        begun.add_done_callback(lambda answer: in_thread(lambda: _undo(answer, undo)))
        raise


def _undo(answer: Answer[A], undo: Callable[[A], object]) -> None:
    try:
        found = answer.result()
    except BaseException:  # it had nothing
        return
    try:
        undo(found)
    except Exception as error:
        if not isinstance(error, Stopped):
            log.warning("what was waited for, and isn't any more, can't be given back: %s", error)
