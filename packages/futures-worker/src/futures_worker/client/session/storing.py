"""Writes a batch of submitted futures, with the code and large arguments they refer to, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Final

import fdb

from fdb_datamodel import (
    Claim,
    ClusterSpace,
    CodeDigest,
    FutureSpec,
    MailEntry,
    UnknownFutureError,
    WorkerFencedError,
    WorkerId,
    get_future_states,
    hold_futures,
    put_code,
    refer_to_code,
    ring_session,
    session_referrer,
    submit_claimed,
    submit_futures,
    subscribe,
)
from fdb_datamodel.rows.ids import show_id
from fdb_schema import put_blob, unpin_blob
from fdb_schema.errors import NOT_COMMITTED
from futures_worker.client.basis.intake import MAX_BATCH_BYTES
from futures_worker.client.basis.record import FutureRecord
from futures_worker.client.session.line import Line
from futures_worker.client.session.mailbox import Mailbox
from futures_worker.database import ask, is_database_trouble
from futures_worker.payload import Code
from idempotent_txn import run

# Whether the transaction before was told to run again: what it submits anew whenever it runs it would never find.
_told: Final[ContextVar[bool]] = ContextVar("told", default=False)


class Submission:
    """A future on its way into the database."""

    __slots__ = ("code", "holds", "nbytes", "record", "spec")

    def __init__(
        self,
        record: FutureRecord,
        spec: FutureSpec,
        code: Code | None,
        holds: Sequence[bytes] = (),
        *,
        stored: bool = False,
    ) -> None:
        """`stored`: this session has stored the code, as far as it knows."""
        self.record = record
        self.spec = spec
        self.code = code  # to be stored with it, unless this session has; None: it has none
        self.holds = holds  # ids of the futures that its code refers to
        size = len(code.data) if code is not None and not stored else 0
        self.nbytes = 300 + len(spec.args) + 32 * len(spec.dependencies) + size + 64 * len(holds)


class SubmitStore:
    """The writing side of one session. Its caller sees to it that one thread at a time uses it."""

    def __init__(
        self,
        db: Any,
        space: ClusterSpace,
        session: bytes,
        mailbox: Mailbox,
        stored: Callable[[Sequence[FutureRecord], Sequence[MailEntry]], None],
        refused: Callable[[FutureRecord, BaseException], None],
        line: Line,
    ) -> None:
        """`stored(records, entries)` is told of those that weren't this session's alone, and how they ended before, if they
        did; `refused(record, why)` of each future that can't be stored. Delivered mail is deleted on the way.
        """
        self._db = db
        self._space = space
        self._session = session
        self._mailbox = mailbox
        self._stored = stored
        self._refused = refused
        self._line = line
        self._stored_code: set[bytes] = set()

    def has_code(self, digest: bytes) -> bool:
        """Whether this session has stored the code."""
        return digest in self._stored_code

    @property
    def codes(self) -> frozenset[bytes]:
        """Digests of the code that this session stored."""
        return frozenset(self._stored_code)

    def forget_code(self) -> None:
        """Store every code anew when it is next used: this session was gone for a while, and its code may be."""
        self._stored_code.clear()

    def store(self, batch: Sequence[Submission], idle: WorkerId | None = None) -> None:
        """Store a batch; a lone future that any worker may run goes to `idle`, already claimed.

        Raises what is the database's trouble; nothing was stored then.
        """
        try:
            self._store_together(batch, idle)
        except Exception as error:
            if is_database_trouble(error):
                raise  # nothing is wrong with the batch: it is kept, and stored later
            if len(batch) > 1:
                for submission in batch:  # one is at fault, the others shall not suffer
                    self.store([submission])
                return
            for submission in batch:
                self._refused(submission.record, error)

    def _store_together(self, batch: Sequence[Submission], idle: WorkerId | None) -> None:
        found = (s.code for s in batch if s.code is not None)
        codes = {code.digest: code.data for code in found if code.digest not in self._stored_code}
        specs = [s.spec for s in batch]
        large_codes = [self._upload(data, "the code") for data in codes.values() if len(data) > MAX_BATCH_BYTES]
        codes = {digest: data for digest, data in codes.items() if digest not in large_codes}
        uploaded = list(large_codes)  # pinned until what refers to them is stored
        for spec in specs:
            if len(spec.args) > MAX_BATCH_BYTES:
                spec.args = CodeDigest(self._upload(spec.args, f"the arguments of future {show_id(spec.id)}"))
                uploaded.append(spec.args)

        push_to = idle if len(specs) == 1 and _may_be_pushed(specs[0]) else None
        # By line goes what nobody else can have submitted: a key's claim that is there already may have run by the time it comes.
        alone = batch[0].record.subscribed and not batch[0].record.streams
        by_line = push_to is not None and alone and self._line.open_to(push_to)
        claims: list[Claim] = []
        shared = [
            s.record for s in batch if not s.record.subscribed
        ]  # of keys: the session is mailed if it asks for it
        entries: list[MailEntry] = []

        def body(tr: Any, worker: WorkerId | None) -> Callable[[], None] | None:
            cleared = self._mailbox.clear_delivered(tr)  # first: what is submitted may end at once, and is mailed
            for data in codes.values():
                put_code(tr, self._space, data, self._session)
            for digest in large_codes:
                refer_to_code(tr, self._space, digest, self._session)
            if worker is not None:
                claims[:] = submit_claimed(tr, self._space, specs, worker, ring=not by_line)
            else:
                submit_futures(tr, self._space, specs)
            if shared:
                entries[:] = subscribe(tr, self._space, self._session, [record.id for record in shared])
            for submission in batch:
                if submission.holds:
                    hold_futures(tr, self._space, submission.holds, outer=submission.spec.id)
            for digest in uploaded:
                unpin_blob(tr, self._space, digest, session_referrer(self._session))
            return cleared

        try:
            committed = ask(self._db, body, push_to, strategy="off")  # the ids make a submit safe to repeat
        except WorkerFencedError:  # it died, or ended
            claims.clear()
            self._line.hang_up()
            committed = ask(self._db, body, None, strategy="off")
        if by_line and claims and not self._line.send(claims[0]):
            ask(self._db, ring_session, self._space, claims[0].worker.incarnation, strategy="off")
        if committed is not None:
            committed()
        self._stored_code.update(codes, large_codes)
        for submission in batch:
            submission.record.stored = True
        if shared:
            self._stored(shared, entries)

    def upload(self, spec: FutureSpec, code: Code) -> tuple[bytes, ...]:
        """What of a future is too large for a transaction, stored before it and pinned: `store_within` refers to it."""
        uploaded = []
        if len(code.data) > MAX_BATCH_BYTES:
            uploaded.append(self._upload(code.data, "the code"))
        if len(spec.args) > MAX_BATCH_BYTES:
            spec.args = CodeDigest(self._upload(spec.args, f"the arguments of future {show_id(spec.id)}"))
            uploaded.append(spec.args)
        return tuple(uploaded)

    def store_within(
        self, tr: Any, spec: FutureSpec, code: Code, holds: Sequence[bytes], uploaded: Sequence[bytes] = ()
    ) -> None:
        """Store a future in somebody's transaction. One that began to read before its dependencies were stored can't see
        them: it is told that it conflicts, and finds them when it runs again. `uploaded`: by `upload`.
        """
        if code.digest in uploaded:
            refer_to_code(tr, self._space, code.digest, self._session)
        else:
            put_code(tr, self._space, code.data, self._session)
        try:
            submit_futures(tr, self._space, [spec])
        except UnknownFutureError:
            again = not _told.get() and None not in ask(self._db, get_future_states, self._space, spec.dependencies)
            _told.set(again)
            if again:
                raise fdb.FDBError(NOT_COMMITTED) from None
            raise
        _told.set(False)
        hold_futures(tr, self._space, holds, outer=spec.id)
        for digest in uploaded:
            unpin_blob(tr, self._space, digest, session_referrer(self._session))

    def _upload(self, data: bytes, what: str) -> bytes:
        return put_blob(run, self._db, self._space, data, session=session_referrer(self._session), what=what)


def _may_be_pushed(spec: FutureSpec) -> bool:
    """Whether any worker with a free slot will do."""
    return not (spec.dependencies or spec.after or spec.limits) and spec.requirements is None and spec.locality is None
