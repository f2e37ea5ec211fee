"""One client's session with the database: its batches of submits, its mailbox, and the waiting for both.

Every thread that waits runs the same loop: one of them (the reader) blocks on the client's one watch and delivers the
mail for all; the others block until it has. Whoever waits long also looks after the cluster: it reaps dead workers, so
that a lone client sees its future retried, keeps time limits where no worker does, and says why a wait takes long.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from fdb_datamodel import (
    ClusterSpace,
    FutureSpec,
    MailEntry,
    UnknownFutureError,
    streams,
    subscribe,
)
from fdb_schema import MainspringError
from futures_worker.client.actor_calls import ActorCalls
from futures_worker.client.callbacks import Callbacks
from futures_worker.client.calls import CallReader
from futures_worker.client.diagnosis import warn_of_wait
from futures_worker.client.expected import Expected, Group
from futures_worker.client.future import Future
from futures_worker.client.intake import Intake
from futures_worker.client.keeping import Keeping
from futures_worker.client.line import Line
from futures_worker.client.mailbox import Mailbox
from futures_worker.client.nested import Awaited, NestedWait
from futures_worker.client.outcome import describe
from futures_worker.client.queries import FutureQueries
from futures_worker.client.reading import ResultReader
from futures_worker.client.storing import Submission, SubmitStore
from futures_worker.client.turn import Turn, Waiters
from futures_worker.database import ask
from futures_worker.liveness import TimeKeeper, WorkerObserver, reap_dead
from futures_worker.payload import Code
from futures_worker.worker.task_context import current_task

LOOK_SECONDS: Final = 1.0  # between two looks (jittered) of a thread that waits: mail missed, workers dead
MOST_LOOK_SECONDS: Final = (
    8.0  # the same of a task that has waited long: there may be hundreds on a host, and mail wakes each
)
SUBSCRIBED_AT_ONCE: Final = 250  # futures of one transaction
WARN_SECONDS: Final = 10.0  # of waiting for one future after which its reason is told


def check_timeout(timeout: object) -> None:
    """Raises TypeError for what is no number of seconds."""
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, (int, float))):
        raise TypeError(f"timeout is a number of seconds, or None for no limit, found {timeout!r:.80}")


def rest_between_looks(waited: float) -> float:
    """Seconds between two looks of a thread that has waited for so long."""
    return LOOK_SECONDS if current_task() is None else min(MOST_LOOK_SECONDS, max(LOOK_SECONDS, waited / 4))


class Session(FutureQueries, ActorCalls):
    """The state that threads of one client in one process share. Thread-safe."""

    def __init__(self, db: Any, space: ClusterSpace, fetcher: Callable[[], Any]) -> None:
        self.db = db
        self.space = space
        self.id = os.urandom(16)
        self.closed = False
        self._fetcher = fetcher
        self._results = ResultReader(db, space, fetcher, self.look_after_workers)
        self._expected = Expected()
        self._pending = self._expected.pending
        self._intake: Intake[Submission] = Intake(self._store_batch)
        self._mailbox = Mailbox(db, space, self.id, self._deliver)
        self.keeping = Keeping(
            db,
            space,
            self.id,
            on_beat=self._take_mail,
            on_return=self._take_up_again,
            on_gone=lambda: self._store.forget_code(),
        )
        self.line = Line(lambda address: fetcher().open_line(address))
        self._store = SubmitStore(db, space, self.id, self._mailbox, self._refused, self.line)
        self._reading = Turn()  # of the thread that reads the mailbox for all
        self._followers = Waiters()  # who wait for what the reader delivers
        self._taking = threading.Lock()  # held while a handle becomes this session's
        self._joining = threading.Lock()  # held by the thread that makes the reader of actors' calls
        self.callbacks = Callbacks(self)
        self._calls: CallReader | None = None  # of actors, once there is one
        self._observer = WorkerObserver()
        self._time = TimeKeeper(db, space)
        self._looked = 0.0

    # --- submits ------------------------------------------------------------------------------------------------------

    def submit(self, future: Future[Any], spec: FutureSpec, code: Code, holds: Sequence[bytes] = ()) -> None:
        """Take a future to be stored with the next batch. `holds`: the futures that its code refers to."""
        future._session = self
        if future._subscribed:
            self.keeping.hold(spec.id)
        else:  # a key's: there may be other handles
            self.keeping.hold_another(spec.id)
        self._pending[spec.id] = future
        self._intake.add(Submission(future, spec, code, holds, stored=self._store.has_code(code.digest)))

    def submit_within(
        self, tr: Any, future: Future[Any], spec: FutureSpec, code: Code, holds: Sequence[bytes] = ()
    ) -> None:
        """Store a future in the caller's own transaction; it exists if that commits, so nobody waits for it before he asks."""
        self.keeping.begin()
        self.make_known(spec.dependencies)
        self._store.store_within(tr, spec, code, holds)
        future._session = self
        self.keeping.hold_another(spec.id)
        future._stored = True

    def pending(self, future_id: bytes) -> Future[Any] | None:
        """The handle that waits for this id, if there is one."""
        return self._pending.get(future_id)

    def flush(self) -> None:
        """Store everything that was submitted before the call."""
        self._check_open()
        self._intake.flush()
        if self._calls is not None:
            self._calls.record()

    def _store_batch(self, batch: Sequence[Submission]) -> None:
        self.keeping.begin()
        self.keeping.catch_up()
        idle = self._expected.take_idle()
        self.line.interrupt()
        self._store.store(batch, idle if len(self._pending) == 1 else None)

    def _refused(self, future: Future[Any], error: BaseException) -> None:
        self._pending.pop(future._id, None)
        future._trouble = error
        self._expected.tell([future])
        self.callbacks.run([future])
        self.wake_followers()

    # --- waiting ------------------------------------------------------------------------------------------------------

    @staticmethod
    def deadline(timeout: float | None) -> float | None:
        """The absolute end of a wait, by this process's monotonic clock. Raises TypeError."""
        check_timeout(timeout)
        return None if timeout is None else time.monotonic() + timeout

    def await_one(
        self, future: Future[Any], deadline: float | None, timeout: float | None, *, reading: bool = False
    ) -> None:
        """Return once the future ended. Raises TimeoutError with the reason it takes so long, or why it wasn't stored.

        `reading`: also once it is seen that it yields items (`_streams`), for which it may wait for a reader.
        """
        self.expect([future])

        def look() -> None:
            future._streams = ask(self.db, streams.yields_items, self.space, future._id, strategy="off")

        if not self.wait_until(
            lambda: future._entry is not None or future._trouble is not None or (reading and future._streams),
            deadline,
            lambda: future,
            lambda: ([future._id], True),
            look=look if reading else None,
        ):
            raise TimeoutError(
                f"{describe(future._id, future._name)} did not end within {timeout} s: {self._reason(future)}"
            )
        if future._entry is None and future._trouble is not None:
            raise future._trouble

    def expect(self, futures: Iterable[Future[Any]]) -> None:
        """Store what isn't yet, and ask for mail of what won't be mailed to this session by itself."""
        self._check_open()
        unasked = []
        unstored = False
        for future in futures:
            if future._entry is not None or future._trouble is not None:
                continue
            unstored = unstored or not future._stored
            if not future._subscribed or future._session is not self:
                unasked.append(future)
        if unstored:
            self._intake.flush()
        if unasked:
            self._subscribe(unasked)

    def wait_until(
        self,
        done: Callable[[], bool],
        deadline: float | None,
        waited_for: Callable[[], Future[Any] | None],
        awaited: Awaited,
        *,
        pump: bool = False,
        look: Callable[[], None] | None = None,
    ) -> bool:
        """Block until `done()`, which may change whenever mail was delivered; False if the deadline passed first.

        `waited_for` names a future that explains the wait if it gets long. `pump`: the caller is the thread that reads for
        others. `look` is called about once a second, and may change what `done` says. Inside a task its slot is free for others meanwhile, and a wait for what waits for this task raises
        DeadlockError. Raises the database's error if it doesn't answer.
        """
        if done():
            return True
        with NestedWait(self.db, self.space, awaited) as nested:
            started = time.monotonic()
            warn_at = started + WARN_SECONDS
            look_at = started + LOOK_SECONDS
            while not done():
                now = time.monotonic()
                rest = rest_between_looks(now - started)
                if look is not None and now >= look_at:
                    look_at = now + rest
                    look()
                    if done():
                        break
                if deadline is not None and now >= deadline:
                    return False
                if now >= warn_at:
                    warn_at = float("inf")
                    slow = waited_for()
                    if slow is not None:
                        warn_of_wait(describe(slow._id, slow._name), now - started, self._reason(slow))
                pause = nested.look(rest * random.uniform(0.8, 1.2), now)
                if deadline is not None:
                    pause = min(pause, deadline - now)
                if pump or not self.waits_for_both():
                    self._wait_for_mail(done, pause)
                else:
                    self.callbacks.start()
                    self.follow(done, pause)
                    if not done():
                        self.callbacks.check(started)
                self._check_open()
        return True

    def _wait_for_mail(self, done: Callable[[], bool], pause: float, *, mail_only: bool = False) -> None:
        me = object()
        try:
            if self._reading.take(me):
                if not done():
                    if self.line.awaited:
                        self._wait_on_line(0.0 if mail_only else pause, leave=mail_only)
                    else:
                        self._mailbox.wait(pause)
                    self._look_after_workers()
                return
        finally:
            if self._reading.holder is me:
                self._reading.holder = None
                self._stopped_reading()
        # A reader that leaves gives its turn up before it wakes who waits.
        self._followers.wait(pause, lambda: self._reading.holder is None or done())

    def _wait_on_line(self, pause: float, *, leave: bool = False) -> None:
        """Wait for the answer to the lone request on the line; ask the database if it doesn't come there."""
        awaited = self.line.awaited
        settled, entry = self.line.wait(pause)
        if entry is not None:
            self._deliver([entry])
        elif settled or leave or self.line.overdue():
            # Until the database was asked: no mail comes of a request on the line, so trouble must not forget it.
            self.line.awaited = awaited
            if awaited in self._pending:
                self._deliver(ask(self.db, subscribe, self.space, self.id, [awaited]))
            self.line.awaited = b""

    def waits_for_both(self) -> bool:
        """Whether somebody waits for several futures while calls of actors are unanswered: no thread can block on both."""
        return self._calls is not None and self._expected.has_groups and self._calls.unanswered()

    def follow(self, done: Callable[[], bool], pause: float) -> None:
        """Wait at most `pause` seconds for others to deliver something."""
        self._followers.wait(pause, done)

    def wake_followers(self) -> None:
        """Futures may have ended: let those who wait for others' reading look."""
        if self._followers:
            self._followers.wake()

    def join(self, group: Group) -> None:
        """Tell `group` of every future that ends, from now on."""
        self._expected.join(group)
        if self._calls is not None:
            self._calls.hurry()

    def leave(self, group: Group) -> None:
        """The end of `join`."""
        self._expected.leave(group)

    def look(self, future: Future[Any]) -> None:
        """Read the mail once, without waiting."""
        self.expect([future])
        self._read_once()

    def _read_once(self) -> None:
        me = object()
        try:
            if self._reading.take(me):
                if self.line.awaited:
                    self._wait_on_line(0.0)
                self._mailbox.read()
        finally:
            if self._reading.holder is me:
                self._reading.holder = None
                self._stopped_reading()

    def _stopped_reading(self) -> None:
        """Another thread may read: wake them, then run callbacks, which may wait for futures themselves."""
        self.wake_followers()
        self.callbacks.run_due()

    def _deliver(self, entries: Sequence[MailEntry]) -> None:
        """Called by the reader. Callbacks run once it stopped reading."""
        self._expected.settle(entries, self.callbacks.due)

    def _subscribe(self, futures: Sequence[Future[Any]]) -> None:
        self.line.interrupt()
        for start in range(0, len(futures), SUBSCRIBED_AT_ONCE):
            page = futures[start : start + SUBSCRIBED_AT_ONCE]
            for future in page:
                self._expected.add(future)
                self._take(future)  # held first: a handle of before may be let go meanwhile
            try:
                self.keeping.begin()
                entries = ask(self.db, subscribe, self.space, self.id, [future._id for future in page])
            except BaseException:
                self._expected.forget(future for future in page if not future._subscribed)
                raise
            for future in page:
                future._stored = future._subscribed = True
            self._deliver(entries)
            self.callbacks.run_due()
            self.wake_followers()

    def _take(self, future: Future[Any]) -> bool:
        """The handle is this session's, which holds its future from now on; whether it wasn't."""
        with self._taking:
            if future._session is self:
                return False
            future._session = self
            self.keeping.hold_another(future._id)
            return True

    def take_up(self, futures: Sequence[Future[Any]]) -> None:
        """Hold the futures of handles that nobody has waited with. An id that no future has is found out by the first wait."""
        self._check_open()
        self.keeping.begin()
        for start in range(0, len(futures), SUBSCRIBED_AT_ONCE):
            page = futures[start : start + SUBSCRIBED_AT_ONCE]
            self.keeping.tell_of_holds([future._id for future in page if self._take(future)])

    def _look_after_workers(self) -> None:
        if current_task() is not None:
            return  # its worker does
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        if self._looked:
            reap_dead(self.db, self.space, self._observer, now)
            self._time.look_alone()
        self._looked = now

    def _take_mail(self) -> None:
        """With every beat: mail is read and removed, and workers and time limits looked after, also of a client that never waits."""
        if self._pending:
            self._read_once()
            self.look_after_workers()
        committed = ask(self.db, self._mailbox.clear_delivered, strategy="off") if self._mailbox.undeleted else None
        if committed is not None:
            committed()

    def _take_up_again(self) -> None:
        """After others had declared this session dead: mail and what it held were lost meanwhile, and code may have gone."""
        self._store.forget_code()
        self.keeping.hold_again()
        stored = [future for future in list(self._pending.values()) if future._stored]
        for start in range(0, len(stored), SUBSCRIBED_AT_ONCE):
            page = stored[start : start + SUBSCRIBED_AT_ONCE]
            try:
                self._subscribe(page)
            except UnknownFutureError:  # whoever waits for that one is told; the others get their mail
                for future in page:
                    with contextlib.suppress(UnknownFutureError):
                        self._subscribe([future])

    # --- streams ------------------------------------------------------------------------------------------------------

    def signals_of(self, future_id: bytes) -> int:
        """Changes whenever there are more items, or some were taken."""
        return self._expected.signals.get(future_id, 0)

    def wait_for_signal(self, future_id: bytes, seen: int, pause: float) -> None:
        """Wait for a change of `signals_of`, at most `pause` seconds."""
        self._wait_for_mail(lambda: self.signals_of(future_id) != seen, pause, mail_only=True)

    def look_after_workers(self) -> None:
        """Reap the dead, at most once a second, unless a thread that reads the mail does."""
        me = object()
        try:
            if self._reading.take(me):
                self._look_after_workers()
        finally:
            if self._reading.holder is me:
                self._reading.holder = None
                self._stopped_reading()

    def close(self) -> None:
        """Store what was submitted, then forget the session; its futures go on."""
        if self.closed:
            return
        try:
            if self._calls is not None:
                self._calls.leave_calls()
            self._intake.close()
        finally:
            self.closed = True
            self.callbacks.close()
            if self._calls is not None:
                self._calls.close()
            self.wake_followers()
            self._hang_up()
            self.keeping.close(self._store.codes)

    def _hang_up(self) -> None:
        """Once the thread that reads has left, which it does within a pause."""
        me = object()
        try:
            while not self._reading.take(me):
                self.follow(lambda: self._reading.holder is None, LOOK_SECONDS / 10)
            self._mailbox.close()
            self.line.hang_up()
        finally:
            if self._reading.holder is me:
                self._reading.holder = None

    def _check_open(self) -> None:
        if self.closed:
            raise MainspringError(f"this client of cluster {self.space.cluster!r} is closed: make a new one")
