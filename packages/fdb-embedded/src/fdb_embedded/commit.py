"""The commit pipeline of a process: concurrent commits go into one LMDB transaction, each validated as if alone.

Commits are queued; whoever waits for one leads: takes all that are queued, validates them (against the log outside the
writer section, against what came since inside), writes them with one version and an index each, and finishes their
futures. A commit that nobody waits for is led by the housekeeping thread.
"""

from __future__ import annotations

import operator
import sys
import threading
import time
import traceback
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import lmdb

from . import errors, idempotency
from .applying import apply_writes
from .conflict import ConflictWindow, Ids, Range, Record, pack_record
from .errors import Code
from .journal import Changes
from .versions import MAX_READ_AGE, VERSIONS_PER_SECOND, last_version

if TYPE_CHECKING:
    from collections.abc import Collection

    from .engine import Engine
    from .request import Commit

BATCH_MEMBERS = 1000
BATCH_KEYS = 50_000
FAR_BEHIND = 16  # so many unseen commits are read outside the writer section
ROOM_PER_BATCH = 20
TRIM_EVERY = 64
TRIM_RECORDS = 256


class _Written:
    """What one LMDB commit holds."""

    __slots__ = ("last", "members", "number", "points", "position", "ranges", "version")

    def __init__(
        self,
        version: int,
        last: int,
        members: list[tuple[Commit, int]],
        points: Collection[bytes],
        ranges: list[Range],
        position: int,
        number: int,
    ) -> None:
        self.number = number  # of the LMDB transaction
        self.position = position  # of the journal, to be flushed before anybody is told; 0 without a journal
        self.version = version
        self.last = last
        self.members = members
        self.points = points
        self.ranges = ranges


class _Outcome:
    """What became of a batch."""

    __slots__ = ("batch", "failures", "written")

    def __init__(self) -> None:
        self.batch: list[Commit] = []
        self.written: list[_Written] = []
        self.failures: list[tuple[Commit, int]] = []


class Committer:
    """The queue of a process's commits and the work of whoever leads."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.queue: deque[Commit] = deque()
        self.lead = threading.Lock()
        self.window = ConflictWindow()
        self._in_window = False  # somebody changes the window, or was interrupted when he did
        self._seen_commits = 0
        self._until_trim = TRIM_EVERY
        self.unsettled: deque[_Outcome] = deque()

    def submit(self, commit: Commit) -> None:
        """Queue a commit, which does the work when somebody waits for it. One that is done before it begins is never made."""
        if self.engine.stale:
            self.engine.check_open()
        commit.kick = self._kick
        self.queue.append(commit)
        housekeeper = self.engine.housekeeper
        if housekeeper.parked:
            housekeeper.unpark()

    def _kick(self, block: bool) -> None:
        if block:
            self.drive()
        else:
            self.engine.housekeeper.unpark(now=True)

    def drive(self) -> None:
        """Commit what is queued now. Members that another thread has taken are its to finish."""
        while self.queue:
            outcome = _Outcome()
            try:
                with self.lead:
                    self._take(outcome.batch)
                    if outcome.batch:
                        self._commit(outcome.batch, outcome)
                self.settle(outcome)
            except BaseException:
                # an interrupt of this thread: the housekeeper finishes what is left, whatever that is
                self.unsettled.append(outcome)
                self.engine.housekeeper.unpark(now=True)
                raise
        if self.unsettled:
            self.engine.housekeeper.unpark(now=True)

    def settle_left(self) -> None:
        """Finish what interrupted threads have left; only on a thread that no interrupt reaches."""
        while self.unsettled:
            outcome = self.unsettled[0]
            if outcome.written:
                self.settle(outcome)
            else:  # nothing of it has happened: it is begun again
                self.queue.extendleft(reversed(outcome.batch))
            self.unsettled.popleft()

    def _take(self, batch: list[Commit]) -> None:
        """Move what is queued to `batch`."""
        queue = self.queue
        size = 0
        try:
            while queue and len(batch) < BATCH_MEMBERS and size < BATCH_KEYS:
                # in one C call, so that no signal handler comes when a commit is in neither of them
                batch.extend(map(operator.call, (queue.popleft,)))
                size += len(batch[-1].overlay.writes)
        except IndexError:  # emptied meanwhile
            return

    def settle(self, outcome: _Outcome) -> None:
        """Tell the members of a batch, and whoever watches what they wrote. Not under `lead`: callbacks run here."""
        engine = self.engine
        if outcome.written:
            written = outcome.written[0]
            if engine.flushing and written.position:
                assert engine.store.flusher is not None
                try:
                    engine.store.flusher.wait(written.position)
                except (OSError, lmdb.Error, Code):
                    outcome.failures += ((commit, errors.COMMIT_UNKNOWN_RESULT) for commit, _ in written.members)
                    written.members.clear()
            if engine.versions_are_asked_for:
                engine.pin_committed(written.version)
            version = written.version
            for commit, index in written.members:
                commit.succeed(version, index)
            engine.store.page.ring(written.points, written.ranges)
        for commit, code in outcome.failures:
            commit.fail(code)

    # --- one batch, under `lead` ---

    def _commit(self, batch: list[Commit], outcome: _Outcome) -> None:
        if self._in_window:
            self.window = ConflictWindow()  # the log has all that it held
        self._in_window = True
        try:
            self._commit_batch(batch, outcome)
            self._in_window = False
        except BaseException as error:
            if outcome.written:
                raise
            code = self._code_of(error)
            if code is None:  # nothing was written: somebody else may lead these members
                raise
            outcome.failures = [(commit, code) for commit in batch]

    @staticmethod
    def _code_of(error: BaseException) -> int | None:
        """The error code of what went wrong in the store; None for what isn't ours to swallow."""
        if isinstance(error, lmdb.Error | OSError):
            return errors.IO_ERROR
        if isinstance(error, Exception):
            sys.stderr.write("fdb-embedded: a commit failed for a reason that isn't foreseen\n")
            traceback.print_exception(error)
            return errors.INTERNAL_ERROR
        return None

    def _commit_batch(self, batch: list[Commit], outcome: _Outcome) -> None:
        store = self.engine.store
        self._look_ahead(batch)
        with store.writing:
            while True:
                txn = store.begin_write()
                try:
                    written = self._write(txn, batch, outcome)
                    if written is None:
                        txn.abort()
                        return
                    # in one C call, so that no signal handler comes between the commit and the note of it
                    deque(map(operator.call, (txn.commit, partial(outcome.written.append, written))), maxlen=0)
                    break
                except lmdb.MapFullError:
                    txn.abort()
                    store.grow()
                except BaseException:
                    if not outcome.written:
                        txn.abort()
                    raise
        self.engine.known = (written.number, written.version)
        window = self.window
        if window.tail == written.last:
            window.append(written.version, written.points, written.ranges)
            self._seen_commits += 1
        window.prune(written.version - MAX_READ_AGE)

    def _look_ahead(self, batch: list[Commit]) -> None:
        """Read what others committed, outside the writer section, where it is much and somebody must be validated."""
        if len(batch) == 1:
            since = batch[0].read_at
        else:
            since = min((member.read_at for member in batch if member.read_at is not None), default=None)
        if since is None:
            return
        count = self.engine.store.page.commits()
        window = self.window
        if count - self._seen_commits <= FAR_BEHIND and (since >= window.floor or window.tail == window.floor):
            return
        oldest = since

        def advance(txn: Any) -> None:
            last = last_version(txn)
            window.advance(txn, oldest, last)

        self.engine.store.read(advance)
        self._seen_commits = count

    def _write(self, txn: Any, batch: list[Commit], outcome: _Outcome) -> _Written | None:
        """Validate and write the batch; None when nothing is left to write."""
        store = self.engine.store
        last = last_version(txn)
        version = store.clock.now()
        if version <= last:
            if version < last - VERSIONS_PER_SECOND:
                store.clock.reload(txn)
            version = max(last + 1, store.clock.now())
        outcome.failures.clear()
        steps: list[Changes] | None = [] if store.page.journaled else None
        pages = ROOM_PER_BATCH
        for member in batch:
            pages += len(member.overlay.writes) * 5 // 4 + 4
        store.make_room(pages)
        members: list[tuple[Commit, int]] = []
        points: Any = ()
        ranges: list[Range] = []
        ids: Ids = []
        single = len(batch) == 1
        if not single:
            points = set()  # of the members so far
        for member in batch:
            if member.done:  # given up before it began
                if member.error:
                    outcome.failures.append((member, member.error))
                continue
            code = self._validate(txn, member, version, last, points, ranges)
            if code:
                outcome.failures.append((member, code))
                continue
            index = len(members)
            stamp = version.to_bytes(8, "big") + index.to_bytes(2, "big")
            changes = None
            if steps is not None:
                changes = Changes()
                steps.append(changes)
            if member.writes_ids:
                written = ((key, key + b"\0") for key in member.overlay.writes if key.startswith(idempotency.IDS))
                idempotency.take_from_log(txn, [*member.overlay.clears, *written])
                if changes is not None:
                    changes.spills = True
            stamped = apply_writes(txn, member, stamp, store.page, changes)
            own: Any = member.points
            if stamped:
                own = [*own, *stamped]
            members.append((member, index))
            if member.idempotency_id is not None:
                ids.append((member.idempotency_id, index, 1 if member.id_ends else 0))
            if single:
                points = own
                ranges = member.write_ranges
            else:
                points.update(own)
                ranges += member.write_ranges
        if not members:
            return None
        seconds = int(time.time()) if ids else 0
        record = pack_record(points, ranges, ids, seconds)
        position = store.write_record(txn, last, version, record, steps or [])
        store.page.count_commit()
        if position:
            store.page.count_members(len(members))
        self._until_trim -= 1
        if self._until_trim <= 0:
            self._until_trim = TRIM_EVERY
            self.engine.trim(txn, version, TRIM_RECORDS)
        return _Written(version, last, members, points, ranges, position, txn.id())

    def _validate(
        self,
        txn: Any,
        member: Commit,
        version: int,
        last: int,
        points: Collection[bytes],
        ranges: list[Range],
    ) -> int:
        """0, or the code with which the member fails."""
        if not member.read_points and not member.read_ranges:
            return 0
        read = member.read_at
        if read is None:
            read = last
        if read < last and read < version - MAX_READ_AGE:
            snap = member.read_from
            if snap is None or not snap.young():  # after a silence even the newest version is old
                return errors.TRANSACTION_TOO_OLD
        hit = None
        if read < last:
            window = self.window
            if window.tail != last or window.floor > read:
                window.advance(txn, read, last)
                self._seen_commits = self.engine.store.page.commits()
            hit = window.check(read, member.read_points, member.read_ranges)
        if hit is None and (points or ranges):  # earlier members of the batch, none of which this one has seen
            hit = Record(version, points, ranges).hit(member.read_points, member.read_ranges)
        if hit is not None:
            member.conflicts = [hit]
            if member.reports_conflicts:
                member.conflicts = self._all_conflicts(member, read, points, ranges)
            return errors.NOT_COMMITTED
        return 0

    def _all_conflicts(self, member: Commit, read: int, points: Collection[bytes], ranges: list[Range]) -> list[Range]:
        """Every range that the member read and others have written since: what option 712 asks for."""
        batch = Record(0, points, ranges)
        found = []
        for key in member.read_points or ():
            if self.window.check(read, {key}, []) or batch.hit({key}, []):
                found.append((key, key + b"\0"))
        for item in member.read_ranges:
            if self.window.check(read, None, [item]) or batch.hit(None, [item]):
                found.append(item)
        return found
