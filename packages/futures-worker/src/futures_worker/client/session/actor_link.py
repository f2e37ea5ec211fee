"""One client's connection to one actor: calls go out in order, answers come back, and a broken connection says so.

A thread that waits for a call reads the answers itself, for all; where nobody waits for one call alone, a thread of the
session does (`calls`). Who can't have the turn to read follows the session until the turn is free, and whoever gives it up
wakes those who follow. After the process that runs the actor died, calls that were sent and not answered fail, since they
may have run; those that were not sent go to the actor's next start.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgpack

from fdb_datamodel import Failure, FutureDeletedError, MailEntry, UnknownFutureError, actors
from futures_worker.client.basis.answers import Answers
from futures_worker.client.basis.record import CallRecord
from futures_worker.client.basis.turn import Turn
from futures_worker.client.session.call_records import CallRecords, LinkSession
from futures_worker.database import ask
from futures_worker.errors import WireError
from futures_worker.objects.store_secret import ClusterSecrets
from futures_worker.ports import wire
from futures_worker.ports.handshake import ACTOR, NoPlaceError
from futures_worker.ports.hanging_up import is_at_end, let_everything_arrive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PLACE_PAUSE: Final = 0.005  # seconds between two looks whether an actor is up, at first
MOST_PLACE_PAUSE: Final = 0.25
PAGE: Final = 100  # calls of one transaction
CLOSE_SECONDS: Final = 30.0  # that `close` gives an actor to take in what was sent
INTERRUPTED: Final = "its client was interrupted while it sent to the actor"


class ActorLink:
    """Thread-safe. Calls are `queued` until they are sent, and `unanswered` from their making to their end."""

    def __init__(self, session: LinkSession, actor: bytes, label: str) -> None:
        self.session = session
        self.actor = actor
        self.label = label  # for messages
        self._records = CallRecords(session, actor)
        self.reading = Turn()  # of the thread that reads answers for all
        self.connecting = Turn()  # of the thread that looks for the actor
        self.unanswered: dict[bytes, CallRecord] = {}
        self._sending = threading.RLock()
        self._queued: deque[CallRecord] = deque()
        self._sock: socket.socket | None = None
        self._answers: Answers | None = None  # of the connection
        self._start = 0  # that the connection is to
        self._dead: Failure | None = None
        self._broken: deque[tuple[list[CallRecord], str]] = deque()  # sent before a connection broke, not settled yet
        self.refused = ""  # why the actor, which is up, takes no calls of this client
        self.used = 0.0  # when it was last asked for (monotonic)
        self._withdrawn: deque[bytes] = deque()  # calls cancelled in the database, of which the actor is to be told
        self._pack = msgpack.Packer(autoreset=True).pack
        self._pause = PLACE_PAUSE
        self._next_look = 0.0
        self._look_after = 0.0
        self._closed = False

    @property
    def connected(self) -> bool:
        """Whether calls are being sent."""
        return self._sock is not None

    def fileno(self) -> int:
        """Of the connection; -1: there is none."""
        sock = self._sock
        return -1 if sock is None else sock.fileno()

    # --- sending ------------------------------------------------------------------------------------------------------

    def submit(self, call: CallRecord) -> None:
        """Send a call, or keep it until the actor is up. Blocks only while the actor has too many."""
        with self._sending:
            if self._dead is not None:
                self.session.deliver_calls([self._of_dead(call)])
                return
            self.unanswered[call.id] = call
            if self._sock is None:
                self._queued.append(call)
            else:
                self._send(self._frame(call))

    def _frame(self, call: CallRecord) -> bytes:
        method, args, dependencies = call.what
        frame: bytes = self._pack(("call", call.id, method, call.name, args, dependencies))
        return frame

    def _send(self, data: bytes) -> None:
        """Called with `_sending` held. While the actor takes nothing, answers are read, so that both ends get on."""
        sock, answers = self._sock, self._answers
        if sock is None or answers is None:
            return  # it broke: the call is among those that are lost
        try:
            view = memoryview(answers.records.pack(data))
            while view and self._sock is sock:
                try:
                    view = view[sock.send(view) :]
                except BlockingIOError:
                    both = select.poll()
                    both.register(sock.fileno(), select.POLLIN | select.POLLOUT)
                    both.poll(1000)
                    self.read(0.0)
        except OSError as error:
            self._break(f"the connection broke: {error}", sock)
        except BaseException:  # nobody knows how much of it is on its way
            self._cut(INTERRUPTED, sock)
            raise

    def cancel(self, call: CallRecord) -> None:
        """Ask that a call doesn't begin."""
        with self._sending:
            if call not in self._queued:
                if self._sock is not None and call.id in self.unanswered:
                    self._send(self._pack(("cancel", call.id)))
                return
            self._queued.remove(call)
            self.unanswered.pop(call.id, None)
        session = self.session
        gone = Failure("cancelled", f"call {UUID(bytes=call.id)} was cancelled before it was sent")
        entry: MailEntry | None = MailEntry(call.id, "failed", None, gone)
        if call.recorded:  # the actor's next start would find it
            session.flush_before(())
            with contextlib.suppress(UnknownFutureError, FutureDeletedError):
                entry = self._records.cancel(call, gone)
                self.withdraw(call.id)
        session.deliver_calls([entry] if entry is not None else [])
        session.calls_delivered()

    def withdraw(self, call_id: bytes) -> None:
        """Tell the actor, if it is up, that a call was cancelled in the database: it may be about to run it."""
        with self._sending:
            self._withdrawn.append(call_id)
            self._send_withdrawn()
        if self._sock is None:
            self.connect()
            self.rest(
                time.monotonic(), 0.0
            )  # nothing else may be asked of it: an actor has only so many places for callers

    def _send_withdrawn(self) -> None:
        """Called with `_sending` held."""
        while self._withdrawn and self._sock is not None:
            self._send(self._pack(("cancel", self._withdrawn.popleft())))

    def forget(self, call: CallRecord) -> None:
        """A call was given up: it is not to be sent any more, and no answer is waited for. Takes no lock: a sender may be stuck."""
        self.unanswered.pop(call.id, None)

    def record(self, call: CallRecord) -> None:
        """Make a call that hasn't ended known to the cluster, and with it those that are to be sent before it."""
        with self._sending:
            if call.recorded or call.entry is not None:
                return
            waiting = list(self._queued)
            batch = waiting[: waiting.index(call) + 1] if call in waiting else [call]
            start = self._start
            if self._sock is None:
                start = self._records.find().taking
            fresh = _unrecorded(batch)
            for one in fresh:
                one.recorded = True
        self._records.store(fresh, start)

    # --- receiving ----------------------------------------------------------------------------------------------------

    def read(self, timeout: float, done: Callable[[], bool] = lambda: False) -> bool | None:
        """Take in answers, if it is anybody's turn; wait for the first at most `timeout` seconds, and not at all once `done()`.

        Whether any came, or was there; None: another thread reads.
        """
        me = object()
        try:
            if not self.reading.take(me):
                return None
            return done() or self._read(timeout)
        finally:
            if self.reading.holder is me:
                self.reading.holder = None
                self.session.wake_followers()

    def _read(self, timeout: float) -> bool:
        answers = self._answers
        if answers is None:
            return False
        try:
            if not answers.receive(timeout):
                return False
        except (OSError, ValueError) as error:
            self._break(f"the connection broke: {error}", answers.sock)
            return True
        entries, over = answers.decode()
        self._take(entries)
        answers.taken()
        if over:
            self._break(over, answers.sock)
        return True

    def _take(self, entries: list[MailEntry]) -> None:
        self.session.deliver_calls(entries)  # first: what an interrupt keeps from it is taken again
        for entry in entries:
            self.unanswered.pop(entry.id, None)

    # --- the actor comes and goes -------------------------------------------------------------------------------------

    def connect(self) -> float | None:
        """Look where the actor is and connect; seconds until another look is worth it. None: another thread does that."""
        me = object()
        try:
            return self._connect() if self.connecting.take(me) else None
        finally:
            if self.connecting.holder is me:
                self.connecting.holder = None
                self.session.wake_followers()

    def _connect(self) -> float:
        self._settle_broken()
        if self._sock is not None or self._closed:
            return 0.0
        early = self._next_look - time.monotonic()
        if early > 0:
            return early
        session = self.session
        try:
            place = self._records.find()
        except (UnknownFutureError, FutureDeletedError) as error:
            place = actors.ActorPlace(0, "", 0, 0, Failure("deleted", str(error)))
        if place.failure is not None:
            self._die(place.failure)
            return 0.0
        if place.ip:
            self._forget_ended()
            try:
                secrets = ClusterSecrets(session.db, session.space, ask=ask)
                connection = wire.connect((place.ip, place.port), secrets, role=ACTOR, incarnation=self.actor)
            except NoPlaceError as error:
                self.refused = f"the actor takes no call of this client yet: {error}"
            except (OSError, WireError):
                pass  # it died, and its place isn't given up yet
            else:
                self.refused = ""
                self._begin(connection, place.start)
                return 0.0
        pause, self._pause = self._pause, min(MOST_PLACE_PAUSE, self._pause * 1.5)
        self._next_look = time.monotonic() + pause
        return pause

    def _forget_ended(self) -> None:
        """Before calls are sent: those that others cancelled meanwhile aren't."""
        recorded = [call for call in tuple(self._queued) if call.recorded]
        for start in range(0, len(recorded), PAGE):
            page = recorded[start : start + PAGE]
            entries = []
            for call, entry in zip(page, self._records.ended(page), strict=True):
                if entry is not None:
                    entries.append(entry)
                    with self._sending, contextlib.suppress(ValueError):  # cancelled here just now
                        self._queued.remove(call)
            self._take(entries)

    def _begin(self, connection: wire.Connection, start: int) -> None:
        connection.sock.setblocking(False)
        with self._sending:  # what other threads send waits for the hello
            if self._closed:
                connection.close()
                return
            sock, answers = connection.sock, Answers(connection)
            self._start, self._pause = start, PLACE_PAUSE
            self._sock, self._answers = sock, answers
            try:
                self._send(self._pack(("hello", self.actor, start, self.session.id)))
                self._send_withdrawn()
                while True:  # no condition (`turn`)
                    if not self._queued or self._sock is not sock:
                        break
                    call = self._queued.popleft()
                    if not call.ended:  # else it was given up meanwhile
                        self._send(self._frame(call))
            except BaseException:
                self._cut(INTERRUPTED, sock)
                raise

    def check(self) -> None:
        """Whether the connection is still to the actor's present start, at most once a second."""
        now = time.monotonic()
        if now < self._look_after or self._sock is None:
            return
        self._look_after = now + 1.0
        self._settle_broken()
        try:
            place = self._records.find()
        except (UnknownFutureError, FutureDeletedError):
            self._break("it was deleted")
            return
        if place.failure is not None or place.start != self._start:
            self._break("its worker was declared dead, or it was ended")

    def _break(self, why: str, sock: socket.socket | None = None) -> None:
        """The connection is over: what was sent and not answered ended in a recorded way, or is lost."""
        if self._cut(why, sock):
            self._settle_broken()

    def _cut(self, why: str, sock: socket.socket | None = None) -> bool:
        """The part of that which needs no database; False: it was done before."""
        broken = sock or self._sock
        if broken is not None:
            with contextlib.suppress(OSError):
                broken.shutdown(socket.SHUT_RDWR)  # whoever is stuck in sending gets on
        with self._sending:
            if self._sock is None or (sock is not None and self._sock is not sock):
                return False
            sent = _sent(self.unanswered, self._queued)
            text = f"{why}; the call may have run"
            self._broken.extend([(sent[at : at + PAGE], text) for at in range(0, len(sent), PAGE)])
            sock, self._sock, self._answers = self._sock, None, None  # last: after an interrupt it is cut once more
            sock.close()
        return True

    def _settle_broken(self) -> None:
        """Learn what became of calls whose connection broke. A database in trouble is asked again by the next `connect`."""
        while self._broken:
            try:
                broken = self._broken[0]
            except IndexError:
                return
            page, text = broken
            self._take(self._records.fail(page, text))
            with contextlib.suppress(ValueError):  # another thread has settled it, too
                self._broken.remove(broken)

    def rest(self, now: float, longest: float) -> bool:
        """Hang up if nothing is under way and the actor hung up, or nothing was for `longest` seconds; whether it has."""
        if self.unanswered:
            return False
        me = object()
        with self._sending:
            try:
                if self.unanswered or self._queued or self._broken or not self.reading.take(me):
                    return False
                sock = self._sock
                if sock is not None and (now - self.used >= longest or is_at_end(sock)):
                    self._sock = self._answers = None
                    sock.close()
                return self._sock is None
            finally:
                if self.reading.holder is me:
                    self.reading.holder = None
                    self.session.wake_followers()

    def _die(self, failure: Failure) -> None:
        """The actor is no more: so are the calls that wait for it."""
        with self._sending:
            self._dead = failure
            lost, self._queued = list(self._queued), deque()
        self._take([self._of_dead(call) for call in lost])

    def _of_dead(self, call: CallRecord) -> MailEntry:
        why = self._dead
        assert why is not None
        text = f"actor {self.label} ({UUID(bytes=self.actor)}) is no more ({why.reason}): {why.message}"
        return MailEntry(call.id, "failed", None, Failure("actor-died", text, why.payload, why.traceback))

    def leave_calls(self) -> None:
        """Before `close`: calls that wait to be sent are sent now, or recorded for the actor to find when it is up."""
        while self._queued and self._sock is None and self.connect() is None:
            self.session.follow(lambda: self.connecting.holder is None, PLACE_PAUSE)
        queued = tuple(self._queued)
        if queued:
            self.record(queued[-1])  # and with it all before it

    def close(self) -> None:
        """Hang up; what was sent runs all the same."""
        with self._sending:
            self._closed = True
            sock, self._sock, self._answers = self._sock, None, None
        if sock is None:
            return
        with contextlib.suppress(OSError):
            let_everything_arrive(sock, CLOSE_SECONDS)
        sock.close()


def _unrecorded(calls: Iterable[CallRecord]) -> list[CallRecord]:
    return [call for call in calls if not call.recorded]


def _sent(unanswered: dict[bytes, CallRecord], queued: Iterable[CallRecord]) -> list[CallRecord]:
    waiting = {call.id for call in queued}
    return [call for call in unanswered.values() if call.id not in waiting]
