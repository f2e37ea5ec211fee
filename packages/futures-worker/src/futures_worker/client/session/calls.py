"""Takes in the answers of actors: by the thread that waits for a call, or by one of the session where nobody does alone."""

from __future__ import annotations

import random
import select
import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

from futures_worker.client.basis.nested import RECORD_AFTER, NestedWait
from futures_worker.client.basis.record import CallRecord
from futures_worker.client.basis.turn import Flag
from futures_worker.client.session.actor_link import ActorLink
from futures_worker.client.session.call_records import LinkSession
from futures_worker.client.session.callbacks import Callbacks
from futures_worker.worker.child.task_context import current_task

if TYPE_CHECKING:
    from collections.abc import Iterable

TICK: Final = 0.02  # seconds between two looks for answers that nobody waits for
LOOK_SECONDS: Final = 1.0  # between two looks (jittered) whether the actor is still the one we talk to
MOST_RESTING: Final = 128  # connections to actors kept open while nothing is under way on them, about
REST_SECONDS: Final = 60.0  # without a call after which a connection is closed


class CallSession(LinkSession, Protocol):
    """What is asked of the session."""

    closed: bool
    callbacks: Callbacks

    def check_open(self) -> None:
        """See `Session`."""

    def look_after_workers(self) -> None:
        """See `Session`."""

    def watched(self) -> bool:
        """See `Session`."""


def await_call(call: CallRecord, deadline: float | None) -> bool:
    """Block until a call ended; False if the deadline passed first."""
    link: ActorLink = call.link
    session: CallSession = link.session  # type: ignore[assignment]

    def ended() -> bool:
        return call.ended

    if ended():
        return True
    in_task = current_task() is not None
    with NestedWait(session.db, session.space, lambda: ([call.id], True)) as nested:
        record_at = time.monotonic() + RECORD_AFTER
        while True:  # no condition (`turn`)
            if ended():
                return True
            session.check_open()
            pause = LOOK_SECONDS * random.uniform(0.8, 1.2)
            if in_task:  # a wait that lasts is recorded, so that cycles are found
                now = time.monotonic()
                if now >= record_at:
                    link.record(call)
                    if call.trouble is not None:
                        raise call.trouble
                pause = nested.look(pause, now)
            if deadline is not None:
                pause = min(pause, deadline - time.monotonic())
                if pause <= 0:
                    return False
            turn = link.reading if link.connected else link.connecting
            rest: float | None = 0.0
            try:
                if turn is link.reading:
                    came = link.read(pause, ended)
                else:
                    came, rest = True, link.connect()
            finally:
                session.callbacks.run_due()
            if came is None or rest is None:
                # Whoever gives the turn up tells those who follow; who comes just then finds it free.
                session.follow(lambda turn=turn: ended() or turn.holder is None, min(pause, TICK))  # type: ignore[misc]
            elif rest:
                time.sleep(min(pause, rest))
                session.look_after_workers()
            elif not came:
                session.look_after_workers()
                link.check()
                session.calls_delivered()


class CallReader:
    """The links of one session, and a thread that runs while calls are unanswered."""

    def __init__(self, session: CallSession) -> None:
        self._session = session
        self._links: dict[bytes, ActorLink] = {}
        self._lock = threading.Lock()
        self._sweep_at = MOST_RESTING
        self._work = Flag()
        self._hurry = Flag()
        self._thread: threading.Thread | None = None

    def link(self, actor: bytes, label: str) -> ActorLink:
        """The link to an actor."""
        with self._lock:
            now = time.monotonic()
            link = self._links.get(actor)
            if link is None:
                if len(self._links) >= self._sweep_at:
                    self._sweep(now)
                link = self._links[actor] = ActorLink(self._session, actor, label)
            link.used = now
            link.label = link.label or label
            return link

    def _sweep(self, now: float) -> None:
        """Hang up where nothing is under way: a client may use any number of actors in its life. Called with the lock held."""
        for actor, link in list(self._links.items()):
            if link.rest(now, REST_SECONDS) and now - link.used >= REST_SECONDS:
                del self._links[actor]
        self._sweep_at = len(self._links) + MOST_RESTING

    def submit(self, call: CallRecord) -> None:
        """Send a call, and see to it that its answer is read."""
        call.link.submit(call)
        if not self._work.is_set():
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="mainspring-calls", daemon=True)
                self._thread.start()
            self._work.set()  # last: an interrupt before leaves it to the next call

    def unanswered(self) -> bool:
        """Whether any call hasn't ended."""
        return any(link.unanswered for link in tuple(self._links.values()))

    def record(self, ids: Iterable[bytes] | None = None) -> None:
        """Make unanswered calls known to the cluster: all, or those of `ids`."""
        for link in tuple(self._links.values()):
            wanted = tuple(link.unanswered.values()) if ids is None else [link.unanswered.get(one) for one in ids]
            for call in wanted:
                if call is not None:
                    link.record(call)

    def hurry(self) -> None:
        """Somebody waits for several futures, or has a callback called: answers matter at once."""
        self._hurry.set()

    def leave_calls(self) -> None:
        """See to it that calls which weren't sent yet are made all the same."""
        for link in tuple(self._links.values()):
            link.leave_calls()

    def close(self) -> None:
        """Hang up everywhere."""
        for link in tuple(self._links.values()):
            link.close()
        self._work.set()
        self._hurry.set()

    def _run(self) -> None:
        session = self._session
        while not session.closed:
            links = tuple(self._links.values())
            if not self._work.wait(REST_SECONDS / 2 if any(link.connected for link in links) else None):
                for link in links:  # an actor has only so many places for callers
                    link.rest(time.monotonic(), REST_SECONDS)
                continue
            began = time.monotonic()
            try:
                if not self.unanswered():
                    self._work.clear()
                    if self.unanswered():
                        self._work.set()
                    continue
                self._look()
            except Exception as error:
                if session.closed:
                    return
                session.callbacks.tell_trouble(error, began)
                time.sleep(TICK * 10)

    def _look(self) -> None:
        session = self._session
        links = [link for link in tuple(self._links.values()) if link.unanswered]
        for link in links:
            if not link.connected:
                link.connect()
        if session.watched():
            poll = select.poll()
            for link in links:
                if link.connected and link.fileno() >= 0:
                    poll.register(link.fileno(), select.POLLIN)
            came = poll.poll(TICK * 1000)
        else:
            came = []
            self._hurry.wait(TICK)
            self._hurry.clear()
        for link in links:
            if link.connected:
                while (taken := link.read(0.0)) and came and link.connected:
                    pass
                if taken is not None:
                    link.check()
        session.calls_delivered()
