"""Writes a batch of submitted futures, with the code and large arguments they refer to, in one transaction."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence, Set
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

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
from fdb_schema import BlobMissingError, add_reference, drop_reference, put_blob, unpin_blob
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

_LET_GO_AT_ONCE: Final = 200
"""Of code in an older folder, by one transaction."""


class Submission:
    """A future on its way into the database."""

    __slots__ = ("args", "code", "holds", "nbytes", "record", "spec")

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
        self.args: Any = None  # those that were uploaded, and are in the spec by their digest
        self.code = code  # to be stored with it, unless this session has; None: it has none
        self.holds = holds  # ids of the futures that its code refers to
        size = len(code.data) if code is not None and not stored else 0
        self.nbytes = 300 + len(spec.args) + 32 * len(spec.dependencies) + size + 64 * len(holds)


class _FreshCode(NamedTuple):
    """Code that is to be stored. folder: the digest of that in which it runs."""

    digest: bytes
    data: bytes
    large: bool  # it was uploaded, and is pinned
    folder: bytes | None


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
        self._stored_code: dict[bytes, bytes] = {}  # digest -> of the folder it runs in, b"" of none
        self._stored_folders: set[bytes] = set()
        self._uploading = threading.Lock()

    def has_code(self, digest: bytes) -> bool:
        """Whether this session has stored the code."""
        return digest in self._stored_code

    @property
    def codes(self) -> frozenset[bytes]:
        """Digests of the code that this session stored, and of folders."""
        return frozenset(self._stored_code.keys() | self._stored_folders)

    def forget_code(self) -> None:
        """Store every code anew when it is next used: this session was gone for a while, and its code may be."""
        self._stored_code.clear()
        self._stored_folders.clear()

    def keep_folder(self, code: Code) -> bytes | None:
        """The digest of the folder that code runs in, which is stored and stays as long as this session; None: it runs in none.

        What this process hasn't got the bytes of is there: the task that runs here has it. Callable by any thread.
        """
        folder = code.folder
        if folder is None or not folder.data or folder.digest in self._stored_folders:
            return None if folder is None else folder.digest
        referrer = session_referrer(self._session)

        def keep(tr: Any) -> None:
            add_reference(tr, self._space, folder.digest, referrer)
            unpin_blob(tr, self._space, folder.digest, referrer)

        with self._uploading:
            if folder.digest not in self._stored_folders:
                self._upload(folder.data, "working_dir, packed,")
                ask(self._db, keep, strategy="off")
                self._stored_folders.add(folder.digest)
        return folder.digest

    def _let_older_go(self, tr: Any, folders: Set[bytes]) -> list[bytes]:
        """Let go of code in folders that aren't what they were, and of these: futures that have it keep it. What it was."""
        if not folders or folders >= self._stored_folders:
            return []
        older = [digest for digest, folder in self._stored_code.items() if folder and folder not in folders]
        older += self._stored_folders - folders
        for digest in older[:_LET_GO_AT_ONCE]:
            drop_reference(tr, self._space, digest, session_referrer(self._session))
        return older[:_LET_GO_AT_ONCE]

    def store(self, batch: Sequence[Submission], idle: WorkerId | None = None, *, again: bool = False) -> None:
        """Store a batch; a lone future that any worker may run goes to `idle`, already claimed.

        Raises what is the database's trouble; nothing was stored then. `again`: after all that was stored before was found missing.
        """
        try:
            self._store_together(batch, idle)
        except Exception as error:
            if is_database_trouble(error):
                raise  # nothing is wrong with the batch: it is kept, and stored later
            if isinstance(error, BlobMissingError) and not again:  # this session was gone, and may not know it yet
                self.forget_code()
                for submission in batch:
                    submission.spec.args = submission.spec.args if submission.args is None else submission.args
                self.store(batch, again=True)
                return
            if len(batch) > 1:
                for submission in batch:  # one is at fault, the others shall not suffer
                    self.store([submission], again=again)
                return
            for submission in batch:
                self._refused(submission.record, error)

    def _store_together(self, batch: Sequence[Submission], idle: WorkerId | None) -> None:
        fresh = self._fresh_codes(batch)
        specs = [s.spec for s in batch]
        uploaded = [code.digest for code in fresh if code.large]  # pinned until what refers to them is stored
        older: list[bytes] = []
        for submission in batch:
            spec = submission.spec
            if len(spec.args) > MAX_BATCH_BYTES:
                submission.args = spec.args
                spec.args = CodeDigest(self._upload(spec.args, f"the arguments of future {show_id(spec.id)}"))
            if submission.args is not None:  # also before a commit that failed: they are pinned still
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
            older[:] = self._put_codes(tr, fresh)
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
        self._remember(fresh, older)
        for submission in batch:
            submission.record.stored = True
        if shared:
            self._stored(shared, entries)
        if not all(s.record.subscribed for s in batch):  # this session was found dead meanwhile: they may have ended
            self.forget_code()
            self._store_together(batch, None)

    def _fresh_codes(self, batch: Sequence[Submission]) -> list[_FreshCode]:
        """The code in a batch that this session hasn't stored yet, what is large uploaded, and the folders stored that it runs in."""
        found = {s.code.digest: s.code for s in batch if s.code is not None and s.code.digest not in self._stored_code}
        fresh: list[_FreshCode] = []
        for digest, code in found.items():
            large = len(code.data) > MAX_BATCH_BYTES
            if large:
                self._upload(code.data, "the code")
            fresh.append(_FreshCode(digest, code.data, large, self.keep_folder(code)))
        return fresh

    def _put_codes(self, tr: Any, fresh: Sequence[_FreshCode]) -> list[bytes]:
        """Store code within a transaction; what is let go of for it."""
        for code in fresh:
            if code.large:
                refer_to_code(tr, self._space, code.digest, self._session, code.folder)
            else:
                put_code(tr, self._space, code.data, self._session, code.folder)
        return self._let_older_go(tr, {code.folder for code in fresh if code.folder is not None})

    def _remember(self, fresh: Sequence[_FreshCode], older: Sequence[bytes]) -> None:
        """That code is stored, and older isn't this session's any more."""
        self._stored_folders.difference_update(older)
        for digest in older:
            self._stored_code.pop(digest, None)
        for code in fresh:
            self._stored_code[code.digest] = code.folder or b""

    def upload(self, spec: FutureSpec, code: Code) -> tuple[bytes, ...]:
        """What of a future is too large for a transaction, stored before it and pinned: `store_within` refers to it."""
        uploaded = []
        self.keep_folder(code)
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
        folder = self.keep_folder(code)
        if code.digest in uploaded:
            refer_to_code(tr, self._space, code.digest, self._session, folder)
        else:
            put_code(tr, self._space, code.data, self._session, folder)
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
