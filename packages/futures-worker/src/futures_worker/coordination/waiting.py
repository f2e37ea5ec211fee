"""How a thread waits in a line of the database: woken by its watch when it is its turn, and by nothing else.

`wait_in_line` tries what is asked for; where it can't be had, or where others were faster, it stands in line, and tries again when what
it watches has changed. As every wait here it looks again by itself, about once a second: it sees then who died before it, or while
holding what it waits for, and puts that in order.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, TypeVar

from fdb_datamodel import SESSION_TTL_SECONDS, Observer, TrialCommits, declare_session_dead
from fdb_datamodel.coordination.lines import (
    GETTERS,
    Line,
    Sight,
    join_line,
    leave_line,
    look_around,
    put_in_order,
    see_holders,
)
from fdb_datamodel.transitions.sessions import SessionSighting
from fdb_schema import MainspringError, RecordError, process_gone
from futures_worker.client.basis.nested import NestedWait
from futures_worker.client.context import ClientContext
from futures_worker.client.session.mailbox import Watch
from futures_worker.client.session.reader import LOOK_SECONDS, rest_between_looks
from futures_worker.client.session.session import Session
from futures_worker.database import ask, ask_stamped

T = TypeVar("T")

Attempt = Callable[[Any, bytes | None], T | None]
"""Tries, in a transaction, to have what is asked for: `attempt(tr, place)`, where `place` is that of the caller in line."""

_TRIES_BEFORE: Final = 4
"""Of one who comes, before it stands in line though there may be something: others were faster each time."""
_TRIES_IN_VAIN: Final = 3
"""In a row, before one who is first waits a moment though something seems to be there."""


class Stopped(Exception):
    """Nobody waits any more for what this thread waits for."""


def never() -> bool:
    """Nobody stops this wait."""
    return False


def remaining(deadline: float | None) -> float:
    """Seconds until a deadline by the monotonic clock."""
    return float("inf") if deadline is None else deadline - time.monotonic()


class Pauses:
    """The pauses of one wait: each until a watch fires, as long as the wait may last, or until it is time to look again."""

    def __init__(
        self, session: Session, nested: NestedWait, deadline: float | None, stopped: Callable[[], bool]
    ) -> None:
        self._session = session
        self._nested = nested
        self._deadline = deadline
        self._stopped = stopped
        self._began = time.monotonic()

    def wait(self, watch: Any, most: float = float("inf")) -> bool:
        """Whether the watch fired, within `most` seconds. Raises Stopped, and MainspringError once the client is closed."""
        now = time.monotonic()
        rest = rest_between_looks(now - self._began) * random.uniform(0.8, 1.2)
        waiting = Watch(watch)
        fired = False
        try:
            self.check()
            fired = waiting.wait(max(0.0, min(self._nested.look(rest, now), remaining(self._deadline), most)))
            self.check()
        finally:
            if not fired:
                waiting.cancel()
        return fired

    def check(self) -> None:
        """Raises Stopped, and MainspringError once the client is closed."""
        self._session.check_open()
        if self._stopped():
            raise Stopped


@contextlib.contextmanager
def pausing(context: ClientContext, deadline: float | None, stopped: Callable[[], bool] = never) -> Iterator[Pauses]:
    """Around a wait. Inside a task its slot is free for others meanwhile."""
    with NestedWait(context.db, context.space, lambda: ((), False)) as nested:
        yield Pauses(context(), nested, deadline, stopped)


class _Judge:
    """Judges, of what one in a line sees at each look, who is dead, and who doesn't take what is there for it."""

    def __init__(self, context: ClientContext) -> None:
        trial = TrialCommits(context.db, context.space)
        self._observer: Observer[SessionSighting] = Observer(SESSION_TTL_SECONDS, trial)
        self._head = b""
        self._since = 0.0

    def dead(self, sight: Sight, now: float) -> tuple[list[SessionSighting], list[bytes]]:
        """(sessions to be declared dead, sessions that are gone)."""
        seen = [sighting for _, sighting in sight.sessions if sighting is not None]
        stopped = {sighting.id for sighting in self._observer.observe(seen, now)}
        dead = [one for one in seen if one.id in stopped or session_gone(one)]
        return dead, [session for session, sighting in sight.sessions if sighting is None]

    def idle_head(self, sight: Sight, now: float) -> bytes | None:
        """The place of a first in line who has taken nothing since the look before, though something was there."""
        if sight.first or not sight.there or sight.head != self._head:
            self._head, self._since = (sight.head, now) if sight.there and not sight.first else (b"", now)
            return None
        return sight.head if now - self._since >= LOOK_SECONDS / 2 else None


def session_gone(sighting: SessionSighting) -> bool:
    """Whether the process of a session is certainly gone: it ran on this host, and is no more."""
    boot, _, namespace = sighting.place.partition("/")
    return process_gone(boot, namespace, sighting.pid, sighting.pid_start)


def see_to_the_dead(context: ClientContext, line: Line, dead: list[SessionSighting], gone: list[bytes]) -> bool:
    """Declare sessions dead, and take back what those that are gone had; whether there were any."""
    gone = list(gone)
    for one in dead:
        with contextlib.suppress(RecordError):  # of a row that can't be read nobody judges
            if ask(context.db, declare_session_dead, context.space, one):
                gone.append(one.id)
    if gone:
        ask(context.db, put_in_order, context.space, line, gone, strategy="off")
    return bool(gone)


def try_once(context: ClientContext, line: Line, attempt: Callable[[Any], T | None]) -> T | None:
    """What `attempt` has now, whoever waits; also what the dead had. One transaction, where nobody died."""
    session = context()
    session.life.begin()
    session.life.catch_up()

    def body(tr: Any) -> tuple[T | None, list[tuple[bytes, SessionSighting | None]]]:
        found = attempt(tr)
        return found, see_holders(tr, context.space, line) if found is None and line.kind == GETTERS else []

    while True:
        found, sessions = ask(context.db, body)
        gone = [one for one, sighting in sessions if sighting is None]
        dead = [sighting for _, sighting in sessions if sighting is not None and session_gone(sighting)]
        if found is not None or not see_to_the_dead(context, line, dead, gone):
            return found


def wait_in_line(
    context: ClientContext,
    line: Line,
    attempt: Attempt[T],
    deadline: float | None,
    stopped: Callable[[], bool] = never,
) -> T | None:
    """What `attempt` had, the first time that it had something; None: the deadline passed before."""
    session = context()
    session.life.begin()
    session.life.catch_up()
    if stopped():
        raise Stopped
    tries = 0

    def come(tr: Any) -> T | None:
        nonlocal tries
        tries += 1
        found = attempt(tr, None) if tries <= _TRIES_BEFORE else None  # others were faster each time
        if found is None:
            join_line(tr, context.space, line, session.id)
        return found

    standing = _Standing(context, line, session, attempt)
    try:
        found, standing.place = ask_stamped(context.db, come)
        if found is not None:
            standing.place = None
            return found
        with pausing(context, deadline, stopped) as pauses:
            waited: T | None = standing.wait(pauses, deadline, at_once=tries > _TRIES_BEFORE)
            return waited
    finally:
        standing.leave()


class _Standing:
    """One who stands in a line."""

    def __init__(self, context: ClientContext, line: Line, session: Session, attempt: Attempt[Any]) -> None:
        self._context = context
        self._line = line
        self._session = session
        self.place: bytes | None = None
        self._attempt = attempt
        self._judge = _Judge(context)

    def wait(self, pauses: Pauses, deadline: float | None, *, at_once: bool) -> Any:
        """See `wait_in_line`. `at_once`: there may be something already."""
        try_it, in_vain = at_once, 0
        while True:
            if self.place is None:
                self.place = self._join()
                continue
            if try_it:
                pauses.check()
                found = ask(self._context.db, self._attempt, self.place)
                if found is not None:
                    self.place = None
                    return found
                in_vain += 1
            sight = ask(self._context.db, look_around, self._context.space, self._line, self.place, strategy="off")
            if not sight.standing:
                self.place, try_it = None, False
                continue
            if sight.first and sight.there and in_vain < _TRIES_IN_VAIN:
                sight.watch.cancel()
                try_it = True
                continue
            in_vain = 0
            if self._put_in_order(sight):
                sight.watch.cancel()
                try_it = False
                continue
            if remaining(deadline) <= 0:
                sight.watch.cancel()
                return None
            try_it = pauses.wait(sight.watch, LOOK_SECONDS if sight.there else float("inf"))

    def _join(self) -> bytes | None:
        _, place = ask_stamped(self._context.db, join_line, self._context.space, self._line, self._session.id)
        return place

    def _put_in_order(self, sight: Sight) -> bool:
        now = time.monotonic()
        if see_to_the_dead(self._context, self._line, *self._judge.dead(sight, now)):
            return True
        head = self._judge.idle_head(sight, now)
        if head is not None:
            ask(self._context.db, put_in_order, self._context.space, self._line, (), head, strategy="off")
        return head is not None

    def leave(self) -> None:
        """Stand there no more: now, or with a beat of this client, when the database answers again."""
        place = self.place
        if place is None:
            return
        try:
            ask(self._context.db, leave_line, self._context.space, self._line, place, strategy="off")
        except BaseException as error:
            context = self._context
            owed = partial(ask, context.db, leave_line, context.space, self._line, place, strategy="off")
            self._session.life.owe(owed)
            if not isinstance(error, MainspringError):  # who waited is told what ended the wait
                raise
