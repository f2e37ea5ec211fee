"""The life of a client's session: its beats, and which futures its process still has handles of.

A session begins when its client first writes something, and is judged dead by others when it stops to beat. A handle that
is garbage collected lets its future go: the cluster may collect it a grace later, once it has ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from fdb_datamodel import SESSION_BEAT_SECONDS, ClusterSpace, beat_session, close_session, hold_futures, release_futures
from fdb_schema import DatabaseUnreachableError, process_start
from futures_worker.client.basis.turn import Flag
from futures_worker.database import ask
from futures_worker.liveness import process_space
from idempotent_txn import run

log = logging.getLogger("futures_worker")

CODES_AT_ONCE: Final = 1000  # references to code dropped at the end; those of more are collected
RELEASED_AT_ONCE: Final = 250  # ids per transaction
BEAT_SECONDS: Final = 1.0  # that a beat doesn't take while the database is well
LATE_BEATS: Final = 3  # beats without one of which this process must have stood still: others may take it for dead


class SessionLife:
    """One session's sign of life and its handles. Thread-safe."""

    def __init__(
        self,
        db: Any,
        space: ClusterSpace,
        session: bytes,
        *,
        on_beat: Callable[[], None] = lambda: None,
        on_return: Callable[[], None] = lambda: None,
        on_gone: Callable[[], None] = lambda: None,
        seconds: float = SESSION_BEAT_SECONDS,
    ) -> None:
        """`on_beat` is called with every beat, by the thread that beats; `on_return` when the session was declared dead
        meanwhile (this process was stopped) and has begun anew; `on_gone` before that, by whichever thread found it: it may not
        wait for anything.
        """
        self._db = db
        self._space = space
        self._session = session
        self._on_beat = on_beat
        self._on_return = on_return
        self._on_gone = on_gone
        self._seconds = seconds
        self._held: dict[bytes, int] = {}  # id -> handles in this process
        self._borrowed: set[bytes] = set()  # of those, what others may have submitted: a row holds it
        self._dropped: deque[bytes] = deque()
        self._unheld: list[bytes] = []  # without handles, and the database was in trouble when it was to be told
        self._untold: list[bytes] = []  # held, and the database wasn't told yet
        self._owed: deque[Callable[[], object]] = deque()
        self._lock = threading.Lock()
        self._stop = Flag()
        self._called = Flag()  # the thread that beats is to look around before its next beat
        self._hears = False  # whether it is mailed of its tasks' output
        self._counter = 0
        self._beaten = 0.0  # when it was about to beat last
        self._begun = False
        self._returning = False  # it was declared dead, and hasn't taken up again what it needs
        self._thread: threading.Thread | None = None
        self._end: Callable[[], None] | None = None

    def begin(self) -> None:
        """Write the session's row, unless it is written: called before anything that names the session."""
        if self._begun:
            return
        with self._lock:
            if self._begun or self._stop.is_set():
                return
            self._sign()
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._beat, name="mainspring-session", daemon=True)
                self._thread.start()
            self._begun = True  # last: an interrupt before leaves it to be begun again

    def hear_output(self, hears: bool) -> None:
        """From now on this session is mailed when its futures' tasks have printed something; or no more, from its next beat on."""
        self._hears = hears
        if not hears:
            return
        self.begin()
        with self._lock:
            if not self._stop.is_set():
                self._sign()

    def hold(self, future_id: bytes) -> None:
        """There is a first handle of a future that was just made."""
        self._held[future_id] = 1

    def hold_another(self, future_id: bytes) -> None:
        """There is one more handle of a future. Called before the database is told."""
        with self._lock:
            self._held[future_id] = self._held.get(future_id, 0) + 1
            self._borrowed.add(future_id)

    def share(self, future_id: bytes) -> bool:
        """There is one more handle of a future, if this process holds it by another one; whether it does."""
        with self._lock:
            count = self._held.get(future_id)
            if count is None:
                return False
            self._held[future_id] = count + 1
            self._borrowed.add(future_id)
            return True

    def tell_of_holds(self, ids: Sequence[bytes] = ()) -> None:
        """Tell the database of futures that are held already; what it refuses now is told with a later beat."""
        with self._lock:
            self._untold.extend(ids)
            page, self._untold = self._those_held(self._untold), []
        if not page:
            return
        try:
            ask(self._db, hold_futures, self._space, page, session=self._session)
        except Exception as exc:
            with self._lock:
                self._untold.extend(page)
            log.warning("the database can't be told now which futures this client holds: %s", exc)

    def drop(self, future_id: bytes) -> None:
        """A handle is gone. Called by the garbage collector, in whatever thread and amid whatever it does."""
        self._dropped.append(future_id)

    def release_dropped(self) -> int:
        """Let futures go that no handle is left of; how many."""
        count = 0
        while self._dropped or self._unheld:
            self.catch_up()  # nobody else beats meanwhile, and there may be many
            with self._lock:
                page = self._next_released()
            if page:
                try:
                    run(self._db, release_futures, self._space, self._session, page)
                except BaseException:
                    self._unheld = page
                    raise
                with self._lock:
                    again = self._those_held(page)
                if again:  # taken up while they were let go: whichever transaction came last, they are held now
                    run(self._db, hold_futures, self._space, again, session=self._session)
            count += len(page)
        return count

    def owe(self, what: Callable[[], object]) -> None:
        """Have `what()` done by the thread that beats, now and with each beat until the database lets it: what is held is to be given back."""
        self.begin()
        self._owed.append(what)
        self._called.set()

    def do_what_is_owed(self) -> None:
        """See `owe`. Raises what the database says."""
        for what in list(self._owed):
            what()
            with contextlib.suppress(ValueError):  # another thread has done it meanwhile, which is harmless
                self._owed.remove(what)

    def _those_held(self, ids: Iterable[bytes]) -> list[bytes]:
        return [one for one in ids if one in self._held]

    def _next_released(self) -> list[bytes]:
        page = [one for one in self._unheld if one not in self._held]
        self._unheld = []
        while self._dropped and len(page) < RELEASED_AT_ONCE:
            one = self._dropped.popleft()
            left = self._held.get(one, 1) - 1
            if left > 0:
                self._held[one] = left
                continue
            self._held.pop(one, None)
            self._borrowed.discard(one)
            page.append(one)
        return page

    def hold_again(self) -> None:
        """After the session was declared dead: what it held by rows of its own may have been let go by others."""
        with self._lock:
            held = list(self._borrowed)
        for start in range(0, len(held), RELEASED_AT_ONCE):
            self.catch_up()
            page = held[start : start + RELEASED_AT_ONCE]
            run(self._db, hold_futures, self._space, page, session=self._session)

    def return_again(self) -> None:
        """Begin anew under the same id after the session was declared dead."""
        with self._lock:
            if not self._stop.is_set():
                self._sign()
        self._on_return()

    def close(self, codes: Iterable[bytes] = (), *, reached: bool = True) -> None:
        """End the session in the database; its futures go on, and are nobody's. `codes`: digests of code that it put.

        Where the database doesn't answer, as who closes may know (not `reached`), others find the session dead once it is back.
        """
        self._stop.set()
        self._called.set()
        with self._lock:
            begun, self._begun = self._begun, False
        if not begun or not reached:
            return
        try:
            ask(self._db, close_session, self._space, self._session, list(codes)[:CODES_AT_ONCE])
        except DatabaseUnreachableError as error:
            log.warning("the end of this client can't be recorded, others will find it gone: %s", error)

    def abandon(self, end: Callable[[], None]) -> None:
        """Have the thread that beats call `end`, which closes the session: nobody else is left who could. Takes no lock."""
        self._end = end
        self._called.set()

    def _late(self) -> bool:
        return _now() - self._beaten > LATE_BEATS * self._seconds

    def catch_up(self) -> None:
        """Beat now if this process stood still and goes on before the thread that beats; called before what relies on the session."""
        # Where the lock isn't to be had the database is in trouble, as the caller will find.
        if self._late() and self._lock.acquire(timeout=BEAT_SECONDS):
            try:
                if self._late() and not self._stop.is_set():
                    self._sign()
            finally:
                self._lock.release()

    def _sign(self) -> None:
        """A sign of life; called with the lock held."""
        now = _now()
        if not self._begun:
            self._write_beat(begins=True)
        elif not self._write_beat(begins=False):
            log.warning("this client gave no sign of life for too long and was declared dead; it begins anew")
            self._returning = (
                True  # the thread that beats takes up again what is needed; noted before anything is written
            )
            self._on_gone()
            self._write_beat(begins=True)
        self._beaten = now

    def _write_beat(self, *, begins: bool) -> bool:
        self._counter += 1
        known: bool = ask(
            self._db,
            beat_session,
            self._space,
            self._session,
            self._counter,
            socket.gethostname(),
            os.getpid(),
            self._hears,
            process_space(),
            (process_start(os.getpid()) or (0, False))[0],
            begins=begins,
            strategy="off",
        )
        return known

    def _beat(self) -> None:
        while True:
            self._called.wait(self._seconds * random.uniform(0.8, 1.2))
            self._called.clear()  # first: whoever called has said why before
            if self._stop.is_set():
                return
            try:
                if self._end is not None:
                    self._end()
                    return
                with self._lock:
                    if self._stop.is_set():
                        return
                    self._sign()
                if self._returning:
                    self._returning = False  # first: it may be declared dead again meanwhile
                    try:
                        self._on_return()
                    except BaseException:
                        self._returning = True
                        raise
                self.tell_of_holds()
                self.release_dropped()
                self.do_what_is_owed()
                self._on_beat()
            except Exception as exc:
                log.warning("the session of this client can't be kept alive now: %s", exc)


def _now() -> float:
    """Seconds by a clock that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
