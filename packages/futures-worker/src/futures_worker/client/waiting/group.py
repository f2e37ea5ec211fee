"""Futures that are waited for together: who has ended is told by their sessions, in any thread."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from futures_worker.client.basis.record import FutureRecord
from futures_worker.client.basis.turn import Flag
from futures_worker.client.future import Future, known_in_its_session, record_of, tell_at_end
from futures_worker.client.session.session import Session
from futures_worker.client.session.waiting import wait_until


class Group:
    """Futures that are waited for together. Their sessions tell it who ended, so nothing is looked at twice."""

    def __init__(self, futures: set[Future[Any]], *, all_of_them: bool) -> None:
        """`all_of_them`: whether the wait ends only when every member has ended."""
        self._all_of_them = all_of_them
        self._members = {record_of(future).id: future for future in futures}
        self.remaining = set(futures)
        self._ended: deque[Future[Any]] = deque()
        self._noting = threading.Lock()  # held while a member goes from the one to the other
        self._sessions: dict[int, Session] = {}
        self._entered = False

    def add(self, future: Future[Any]) -> None:
        """One more member, at any time, in any thread; again one that has ended before."""
        with self._noting:
            self._members[record_of(future).id] = future
            self.remaining.add(future)
        if self._entered:
            self._take_up([future])

    @property
    def sessions(self) -> list[Session]:
        """Those that tell it, once it was entered."""
        return list(self._sessions.values())

    def note(self, ended: Iterable[FutureRecord]) -> None:
        """Called by a session, in any thread, with futures that just ended; also others than this group's."""
        with self._noting:
            self._note_each(ended)

    def _note_each(self, ended: Iterable[FutureRecord]) -> None:
        for record in ended:
            member = self._members.get(record.id)
            if member is not None and member in self.remaining and record_of(member).ended:
                self.remaining.discard(member)
                self._ended.append(member)

    def newly_ended(self) -> Sequence[Future[Any]]:
        """Members that ended since the last call; all, where none remained before it."""
        with self._noting:
            found = tuple(self._ended)
            self._ended.clear()
        return found

    def wait(self, enough: Callable[[], bool], timeout: float | None) -> bool:
        """Block until `enough()`, asked whenever mail came; False if `timeout` seconds passed first."""
        if enough():
            return True
        end = None if timeout is None else time.monotonic() + timeout
        if len(self._sessions) == 1:
            (session,) = self._sessions.values()
            return wait_until(session, enough, end, self._still_waiting, self._awaited)
        return self._wait_on_several(enough, end)

    def _awaited(self) -> tuple[list[bytes], bool]:
        return sorted(record_of(future).id for future in tuple(self.remaining)), self._all_of_them

    def _still_waiting(self) -> FutureRecord | None:
        return next((record_of(future) for future in tuple(self.remaining)), None)

    def _wait_on_several(self, enough: Callable[[], bool], end: float | None) -> bool:
        """Futures of several clients: a thread of each client tells."""
        told = Flag()
        troubles: list[BaseException] = []

        def fail(error: BaseException) -> None:
            troubles.append(error)
            told.set()

        for session in self._sessions.values():
            session.callbacks.watch(self, fail)
        try:
            for future in tuple(self.remaining):
                tell_at_end(future, told.set)
            while True:  # no condition (`turn`)
                if enough():
                    return True
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    return False
                told.wait(left)
                told.clear()
                if troubles and not enough():
                    raise troubles[0]
        finally:
            for session in self._sessions.values():
                session.callbacks.unwatch(self)

    def _take_up(self, futures: Sequence[Future[Any]]) -> None:
        """Have their sessions tell this group of them, and note those that have ended."""
        members: dict[int, list[FutureRecord]] = {}
        for future in futures:
            session, record = known_in_its_session(future)
            members.setdefault(id(session), []).append(record)
            if id(session) not in self._sessions:
                self._sessions[id(session)] = session
                session.join(self)
        for key, records in members.items():
            self._sessions[key].expect(records)
        self.note([record_of(future) for future in futures])
        for key in members:
            self._sessions[key].wake_followers()

    def __enter__(self) -> Group:
        try:
            self._entered = True
            self._take_up(tuple(self.remaining))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._entered = False
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            session.leave(self)
