"""One client's session with the database: its batches of submits, its mailbox, and the waiting for both.

Every thread that waits runs the same loop (`wait_until`): one of them reads for all, the others follow it (`MailReader`).
Whoever waits long is told why it takes so long.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fdb_datamodel import ClusterSpace, FutureSpec, FutureState, MailEntry, streams
from fdb_schema import DatabaseUnreachableError, MainspringError
from futures_worker.client.basis.intake import Intake
from futures_worker.client.basis.record import CallRecord, FutureRecord
from futures_worker.client.basis.session_life import SessionLife
from futures_worker.client.outcome import Status, describe
from futures_worker.client.session.callbacks import Callbacks
from futures_worker.client.session.calls import CallReader
from futures_worker.client.session.expected import Expected, Group
from futures_worker.client.session.line import Line
from futures_worker.client.session.queries import FutureQueries, cancel_children
from futures_worker.client.session.reader import MailReader
from futures_worker.client.session.reading import ResultReader
from futures_worker.client.session.storing import Submission, SubmitStore
from futures_worker.client.session.subscriptions import Subscriptions
from futures_worker.client.session.waiting import wait_until
from futures_worker.database import ask
from futures_worker.payload import Code


class Session:
    """The state that threads of one client in one process share. Thread-safe."""

    def __init__(self, db: Any, space: ClusterSpace, fetcher: Callable[[], Any]) -> None:
        self.db = db
        self.space = space
        self.id = os.urandom(16)
        self.closed = False
        self.expected = Expected()
        self.pending = self.expected.pending
        self.callbacks = Callbacks(self, self.expected.due)
        self.line = Line(lambda address: fetcher().open_line(address))
        self.reader = MailReader(db, space, self.id, self.expected, self.line, self.callbacks.run_due)
        self.calls = CallReader(self)
        self.results = ResultReader(db, space, fetcher, self.reader.look_after_workers)
        self.queries = FutureQueries(db, space, fetcher)
        self._store = SubmitStore(db, space, self.id, self.reader.mailbox, self._stored, self._refused, self.line)
        self._intake: Intake[Submission] = Intake(self._store_batch)
        self.life = SessionLife(
            db,
            space,
            self.id,
            on_beat=self._take_mail,
            on_return=self._take_up_again,
            on_gone=self._store.forget_code,
        )
        self._subscriptions = Subscriptions(
            db, space, self.id, self.expected, self.life, self.line, self._delivered, self._refused
        )

    # --- submits ------------------------------------------------------------------------------------------------------

    def submit(self, record: FutureRecord, spec: FutureSpec, code: Code, holds: Sequence[bytes] = ()) -> FutureRecord:
        """Take a future to be stored with the next batch; what is known of it. `holds`: the futures that its code refers to."""
        if record.subscribed:
            record.life = self.life
            self.life.hold(spec.id)
            self.pending[spec.id] = record
        else:  # a key's: other threads may submit it, too, and wait for it
            record = self.known(record)
            self._subscriptions.take(record)
        self._intake.add(Submission(record, spec, code, holds, stored=self._store.has_code(code.digest)))
        return record

    def submit_within(
        self, tr: Any, record: FutureRecord, spec: FutureSpec, code: Code, holds: Sequence[bytes] = ()
    ) -> None:
        """Store a future in the caller's own transaction; it exists if that commits, so nobody waits for it before he asks."""
        self.begin_within(spec.dependencies)
        self.store_within(tr, spec, code, holds)
        self.took_within(record)

    def begin_within(self, dependencies: Sequence[bytes]) -> None:
        """What a transaction that submits futures itself needs before it begins."""
        self.life.begin()
        self.make_known(dependencies)

    def upload(self, spec: FutureSpec, code: Code) -> tuple[bytes, ...]:
        """What of it is too large for that transaction, stored before it begins."""
        return self._store.upload(spec, code)

    def store_within(
        self, tr: Any, spec: FutureSpec, code: Code, holds: Sequence[bytes] = (), uploaded: Sequence[bytes] = ()
    ) -> None:
        """Store a future in that transaction."""
        self._store.store_within(tr, spec, code, holds, uploaded)

    def keep_folder(self, code: Code) -> bytes | None:
        """The folder that code runs in is stored, for whoever puts the code by himself; its digest."""
        self.life.begin()
        return self._store.keep_folder(code)

    def took_within(self, record: FutureRecord) -> None:
        """A handle of such a future is kept here."""
        record.life = self.life
        self.life.hold_another(record.id)
        record.stored = True

    def flush(self) -> None:
        """Store everything that was submitted before the call."""
        self.check_open()
        self._intake.flush()
        self.calls.record()

    def flush_before(self, dependencies: Iterable[bytes]) -> None:
        """What another process is about to ask for is in the database: submits, and those calls of actors."""
        self._intake.flush()
        self.calls.record(dependencies)

    def make_known(self, ids: Sequence[bytes]) -> None:
        """Those of `ids` that this session made and hasn't stored are in the database."""
        made = (self.pending.get(one) for one in ids)
        if any(record is not None and not record.stored for record in made):
            self._intake.flush()
        self.calls.record(ids)

    def store(self, submissions: Iterable[Submission]) -> None:
        """Store submissions that no batch waits for."""
        for submission in submissions:
            self._intake.add(submission)
        self._intake.flush()

    def _store_batch(self, batch: Sequence[Submission]) -> None:
        self.life.begin()
        self.life.catch_up()
        idle = self.expected.take_idle()
        self.line.interrupt()
        self._store.store(batch, idle if len(self.pending) == 1 else None)

    def _stored(self, records: Sequence[FutureRecord], entries: Sequence[MailEntry]) -> None:
        """Futures that others may have submitted before are stored, and their ends will be mailed, or are `entries`."""
        for record in records:
            record.stored = record.subscribed = True
            if not record.ended:
                self.pending.setdefault(record.id, record)
        self.expected.settle(entries)
        self._delivered()

    def _delivered(self) -> None:
        """Futures have ended: callbacks are run, and whoever waits looks."""
        self.callbacks.run_due()
        self.wake_followers()

    def _refused(self, record: FutureRecord, error: BaseException) -> None:
        record.trouble = error
        if self.pending.get(record.id) is record:
            self.pending.pop(record.id, None)
        if isinstance(record, CallRecord):
            record.link.forget(record)
        self.expected.tell([record])
        self.callbacks.run([record])
        self.wake_followers()

    # --- calls of actors ------------------------------------------------------------------------------------------------

    def submit_call(self, call: CallRecord) -> None:
        """Take a call to be sent to its actor."""
        self.check_open()
        self.life.begin()
        self.life.hold(call.id)
        call.life = self.life
        self.pending[call.id] = call
        self.calls.submit(call)

    def deliver_calls(self, entries: Sequence[MailEntry]) -> None:
        """Calls ended. `calls_delivered` runs their callbacks, when the caller holds no lock any more."""
        self.expected.settle(entries, calls=True)

    def calls_delivered(self) -> None:
        """After `deliver_calls`."""
        self.wake_followers()
        self.callbacks.run_due()

    def watched(self) -> bool:
        """Whether somebody waits for several futures, or has a callback called."""
        return self.expected.has_groups or bool(self.callbacks)

    def waits_for_both(self) -> bool:
        """Whether somebody waits for several futures while calls of actors are unanswered: no thread can block on both."""
        return self.expected.has_groups and self.calls.unanswered()

    # --- waiting ------------------------------------------------------------------------------------------------------

    def known(self, record: FutureRecord) -> FutureRecord:
        """The record by which this session waits for a future: `record`, or the one that others wait by. `expect` it next.

        What ended stays as it is. Of a record of another session (its client was closed, or its process forked) a new one is made.
        """
        if record.ended:
            return record
        if record.life is not None and record.life is not self.life:
            known, record = record, FutureRecord(record.id, record.name, stored=True, subscribed=False)
            record.epoch, record.streams = known.epoch, known.streams
        known = self.pending.setdefault(record.id, record)  # whichever of several threads comes first
        if known.ended and self.pending.get(record.id) is known:  # just now, and its mail was taken before
            self.pending.pop(record.id, None)
        return known

    def await_end(
        self, record: FutureRecord, deadline: float | None, timeout: float | None, *, reading: bool = False
    ) -> None:
        """Return once the future ended, also where it couldn't be stored. Raises TimeoutError with the reason it takes so long.

        `reading`: also once it is seen that it yields items (`streams`), for which it may wait for a reader.
        """
        self.expect([record])

        def look() -> None:
            record.streams = ask(self.db, streams.yields_items, self.space, record.id, strategy="off")

        if not wait_until(
            self,
            lambda: record.ended or (reading and record.streams),
            deadline,
            lambda: record,
            lambda: ([record.id], True),
            look=look if reading else None,
        ):
            raise TimeoutError(
                f"{describe(record.id, record.name)} did not end within {timeout} s: {self.reason(record.id)}"
            )

    def expect(self, records: Iterable[FutureRecord]) -> None:
        """Store what isn't yet, and ask for mail of what won't be mailed to this session by itself. `records`: `known` here."""
        self.check_open()
        unended = [record for record in records if not record.ended]
        if not all(record.stored and record.subscribed for record in unended):
            self._intake.flush()  # also what another thread submits under a key that is known by its id here
        unasked = [one for one in unended if not one.ended and not (one.subscribed and one.life is self.life)]
        if unasked:
            self._subscriptions.subscribe(unasked)

    def look(self, record: FutureRecord) -> None:
        """Read the mail once, without waiting."""
        self.expect([record])
        self.reader.read()

    def wait_once(self, done: Callable[[], bool], pause: float, since: float, *, pump: bool = False) -> None:
        """Read for at most `pause` seconds, or follow who reads (`wait_until`); `since` when is waited for `done`.

        `pump`: the caller is the thread that reads for others. Raises the trouble of that thread.
        """
        if pump or not self.waits_for_both():
            self.reader.wait(done, pause)
        else:
            self.callbacks.start()
            self.follow(done, pause)
            if not done():
                self.callbacks.check(since)
        self.check_open()

    def follow(self, done: Callable[[], bool], pause: float) -> None:
        """Wait at most `pause` seconds for others to deliver something."""
        self.reader.follow(done, pause)

    def wake_followers(self) -> None:
        """Futures may have ended: let those who wait for others' reading look."""
        self.reader.wake_followers()

    def look_after_workers(self) -> None:
        """Reap the dead, at most once a second, unless a thread that reads the mail does."""
        self.reader.look_after_workers()

    def join(self, group: Group) -> None:
        """Tell `group` of every future that ends, from now on."""
        self.expected.join(group)
        self.calls.hurry()

    def leave(self, group: Group) -> None:
        """The end of `join`."""
        self.expected.leave(group)

    # --- holding ------------------------------------------------------------------------------------------------------

    def take_up(self, records: Sequence[FutureRecord]) -> None:
        """Hold the futures of handles that nobody has waited with. An id that no future has is found out by the first wait."""
        self.check_open()
        self.life.begin()
        self._subscriptions.take_all(records)

    def share(self, record: FutureRecord) -> bool:
        """This session holds the future for `record` too, if it does for another record; whether it does."""
        return self._subscriptions.share(record)

    def _take_mail(self) -> None:
        """With every beat: mail is read and removed, and workers and time limits looked after, also of a client that never waits."""
        if self.pending:
            self.reader.read()
            self.look_after_workers()
        mailbox = self.reader.mailbox
        committed = ask(self.db, mailbox.clear_delivered, strategy="off") if mailbox.undeleted else None
        if committed is not None:
            committed()

    def _take_up_again(self) -> None:
        """After others had declared this session dead: mail and what it held were lost meanwhile, and code may have gone."""
        self._subscriptions.doubt_unstored()
        self._store.forget_code()  # afterwards: what is being stored now, with code that may go, is stored once more
        self._subscriptions.renew()

    # --- one future -----------------------------------------------------------------------------------------------------

    def status(self, future_id: bytes) -> Status:
        """The state and its reason, read now."""
        self.check_open()
        return self.queries.status(future_id)

    def reason(self, future_id: bytes) -> str:
        """The same for a message: also why it can't be read."""
        return self.queries.reason(future_id)

    def runs(self, future_id: bytes) -> bool:
        """Whether the worker that claimed it has begun it, as that worker says."""
        self.check_open()
        return self.queries.runs(future_id)

    def cancel(self, future_id: bytes, children: bool, grace: float | None) -> bool:
        """Cancel it in the database, and what its task submitted; whether it failed, by this or before, or will, as a program."""
        self.check_open()
        self.line.interrupt()
        state, actor = self.queries.cancel(future_id, children, grace)
        if actor is not None and state is FutureState.failed:
            self.calls.link(actor, "").withdraw(future_id)
        return state is not FutureState.realized

    def cancel_children(self, future_id: bytes, grace: float | None = None) -> None:
        """Cancel what its task submitted, once it ended."""
        cancel_children(self.db, self.space, future_id, grace)

    # --- streams ------------------------------------------------------------------------------------------------------

    def signals_of(self, future_id: bytes) -> int:
        """Changes whenever there are more items, or some were taken."""
        return self.expected.signals.get(future_id, 0)

    def wait_for_signal(self, future_id: bytes, seen: int, pause: float) -> None:
        """Wait for a change of `signals_of`, at most `pause` seconds."""
        self.reader.wait(lambda: self.signals_of(future_id) != seen, pause, mail_only=True)

    # --- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Store what was submitted, then forget the session; its futures go on.

        Raises DatabaseUnreachableError where what was submitted can't be stored: it is tried on while this process lives.
        """
        if self.closed:
            return
        reached = True
        try:
            self.calls.leave_calls()
            self._intake.close()
        except DatabaseUnreachableError:
            reached = False
            raise
        finally:
            self.closed = True
            self.callbacks.close()
            self.calls.close()
            self.wake_followers()
            self.reader.close()
            self.life.close(self._store.codes, reached=reached)

    def abandon(self, then: Callable[[], None]) -> None:
        """As `close`, and `then`, soon and by a thread of its own: called by the garbage collector, which may hold any lock."""

        def end() -> None:
            try:
                self.close()
            finally:
                then()

        self.life.abandon(end)

    def check_open(self) -> None:
        """Raises MainspringError once the client is closed."""
        if self.closed:
            raise self.closed_error()

    def closed_error(self) -> MainspringError:
        """What is said of it then."""
        return MainspringError(f"this client of cluster {self.space.cluster!r} is closed: make a new one")
