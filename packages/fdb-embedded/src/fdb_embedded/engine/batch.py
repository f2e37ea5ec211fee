"""Commits that go into one LMDB transaction: each is validated as if alone, and all are written with one version.

They are validated against the log outside the writer section, and against what came since inside.
"""

from __future__ import annotations

import operator
import sys
import time
import traceback
from collections.abc import Collection
from functools import partial
from struct import Struct
from typing import Any, Protocol

import lmdb

from .. import errors
from ..errors import Code, DamagedDatabase, EngineClosed
from ..pure import idempotency
from ..pure.conflict import ConflictWindow, Ids, pack_record, written_since
from ..pure.keys import clipped
from ..pure.ranges import Range, merge_ranges
from ..pure.versions import MAX_READ_AGE, last_version
from ..sharing.waiting import GivenUp
from ..storage.journal import Changes
from .applying import apply_writes
from .futures import Future
from .request import Commit
from .snapshot import DAMAGE
from .snapshots import Snapshots
from .trimming import trim

FAR_BEHIND = 16  # so many unseen commits are read outside the writer section
FAR_BEHIND_POINTS = 200  # ... by who read few points, who need not keep them
FEW_POINTS = 4
FEW_SNAPSHOTS = (
    16  # so many are looked through for the oldest after each commit; more of them by the housekeeping thread
)
_STAMP = Struct(">QH").pack
TRIM_EVERY = 64
TRIM_RECORDS = 256


class Closing(Protocol):
    """Who may close while a batch waits to be written."""

    @property
    def closes_at(self) -> float: ...


class Written:
    """What one LMDB commit holds."""

    __slots__ = ("last", "members", "place", "points", "position", "ranges", "version")

    def __init__(
        self,
        version: int,
        last: int,
        members: list[tuple[Commit, int]],
        points: Collection[bytes],
        ranges: list[Range],
        position: int,
        place: int,
    ) -> None:
        self.place = place  # of its debt to those who watch
        self.position = position  # of the journal, to be flushed before anybody is told; 0 without a journal
        self.version = version
        self.last = last
        self.members = members
        self.points = points
        self.ranges = ranges


def is_late(future: Future, now: float) -> bool:
    return isinstance(future, Commit) and 0.0 < future.deadline <= now


def _read_few(commit: Commit) -> bool:
    """Whether it read so little that who validates it need not keep what others wrote."""
    points = commit.read_points
    few = points is not None and len(points) <= FEW_POINTS
    return few and not commit.read_ranges and not commit.reports_conflicts


class Outcome:
    """What became of a batch, or is to become of it."""

    __slots__ = ("batch", "begun", "committer", "failures", "held", "until", "waiter", "written")

    def __init__(self, committer: Closing, waiter: Future | None, until: float) -> None:
        self.committer = committer
        self.waiter = waiter
        self.until = until
        self.held: list[bool] = []  # ends with True while its thread leads
        self.batch: list[Commit] = []
        self.begun = False  # nobody else writes any more
        self.written: list[Written] = []
        self.failures: list[tuple[Commit, int]] = []

    def go_on(self) -> None:
        """Raises `GivenUp` when somebody who waits to write has to be told something, or the time is over."""
        now, waiter = time.monotonic(), self.waiter
        if now >= min(self.until, self.committer.closes_at):
            raise GivenUp
        if waiter is not None and (waiter.done or is_late(waiter, now)):
            raise GivenUp
        if any(commit.done or is_late(commit, now) for commit in self.batch):
            raise GivenUp


class Batches:
    """The work of whoever leads, one batch after another. All of it under `lead`."""

    def __init__(self, snapshots: Snapshots) -> None:
        self.snapshots = snapshots
        self.store = snapshots.store
        self.soundness = snapshots.soundness
        self.window = ConflictWindow()
        self._in_window = False  # somebody changes the window, or was interrupted when he did
        self._seen_commits = 0
        self._until_trim = TRIM_EVERY

    def commit(self, batch: list[Commit], outcome: Outcome) -> None:
        try:
            if time.monotonic() >= self.soundness.look_there_at:  # who only writes begins no snapshot that would look
                self.soundness.look_there()
        except Code as gone:
            outcome.failures = [(commit, gone.code) for commit in batch]
            return
        if self._in_window:
            self.window = ConflictWindow()  # the log has all that it held
        self._in_window = True
        try:
            self._commit_batch(batch, outcome)
            self._in_window = False
        except GivenUp:
            self._in_window = False  # it comes before and after the window's changes
            raise
        except BaseException as error:
            if outcome.written:
                raise
            if isinstance(error, DAMAGE):
                self.soundness.damaged(error)
            code = self._code_of(error, outcome.begun)
            if code is None:  # nothing was written: somebody else may lead these members
                raise
            outcome.failures = [(commit, code) for commit in batch]

    @staticmethod
    def _code_of(error: BaseException, begun: bool) -> int | None:
        """The error code of what went wrong in the store; None for what isn't ours to swallow."""
        if isinstance(error, lmdb.Error | OSError | DamagedDatabase):
            return errors.IO_ERROR
        if isinstance(error, EngineClosed):
            return errors.TRANSACTION_CANCELLED
        if isinstance(error, Exception) and begun:  # what is raised in a wait before comes from a signal handler
            sys.stderr.write("fdb-embedded: a commit failed for a reason that isn't foreseen\n")
            traceback.print_exception(error)
            return errors.INTERNAL_ERROR
        return None

    def _commit_batch(self, batch: list[Commit], outcome: Outcome) -> None:
        store = self.store
        first = batch[0]
        if len(batch) > 1 or not (first.read_at is None or first.blind):  # what it can conflict with has hardly begun
            self._look_ahead(batch, outcome)
        try:  # as `writer_section`, which costs each small commit
            store.writer.take(outcome)
            outcome.begun = True
            while True:
                change_map = store.map.adopt
                with store.map.writing:
                    try:
                        txn = store.begin_write()
                        if txn is not None:
                            number = txn.id()
                            written = None
                            try:
                                written = self._write(txn, number, batch, outcome)
                                if written is None:
                                    store.abort_write(txn, number)
                                    return
                                # in one C call, so that no signal handler comes between the commit and the note of it
                                any(map(operator.call, (txn.commit, partial(outcome.written.append, written))))
                                break
                            except BaseException as error:
                                if not outcome.written:
                                    store.abort_write(txn, number)
                                    if written is not None:
                                        store.page.slots.pay(written.place, written.version)
                                    store.take_back_record()
                                if not isinstance(error, lmdb.MapFullError):
                                    raise
                                change_map = store.map.grow
                    finally:
                        # An interrupt may have kept it from its end. LMDB's lock belongs to the thread that began, so nobody else can
                        # end it; no signal handler comes between the way here and this call.
                        store.last_write.abort()
                change_map(outcome.go_on)
        finally:
            store.writer.leave()
        store.page.end_version(number)
        snapshots = self.snapshots
        snapshots.known = (number, written.version)
        shared = snapshots.shared
        if shared is not None:
            snapshots.end_unused(shared)  # who begins from now on sees more
        if len(store.map.snapshots) <= FEW_SNAPSHOTS:
            store.readers.advance(number)
        window = self.window
        if window.tail == written.last:
            window.append(written.version, written.points, written.ranges)
            self._seen_commits += 1
        if window.records:
            window.prune(written.version - MAX_READ_AGE)

    def _look_ahead(self, batch: list[Commit], outcome: Outcome) -> None:
        """Read what others committed, outside the writer section, where it is much and somebody must be validated."""
        if len(batch) == 1:
            since = batch[0].read_at
        else:
            since = min((member.read_at for member in batch if member.read_at is not None), default=None)
        if since is None:
            return
        count = self.store.page.commits()
        window = self.window
        behind = count - self._seen_commits
        near = behind <= FAR_BEHIND or (behind <= FAR_BEHIND_POINTS and len(batch) == 1 and _read_few(batch[0]))
        if near and (since >= window.floor or window.tail == window.floor):
            return
        oldest = since

        def advance(txn: Any) -> None:
            last = last_version(txn)
            window.advance(txn, oldest, last)

        self.store.read(advance, outcome.go_on)
        self._seen_commits = count

    def _write(self, txn: Any, number: int, batch: list[Commit], outcome: Outcome) -> Written | None:
        """Validate and write the batch; None when nothing is left to write."""
        store = self.store
        before, last = self.snapshots.known
        if before != number - 1:  # else it was this process that committed last
            last = last_version(txn)
        version = store.next_version(txn, number, last)
        if outcome.failures:
            outcome.failures.clear()
        steps: list[Changes] | None = [] if store.page.journaled else None
        members: list[tuple[Commit, int]] = []
        points: Any = ()
        ranges: list[Range] = []
        ids: Ids = []
        single = len(batch) == 1
        earlier = (
            None if single else ConflictWindow()
        )  # of the members so far, none of which those behind them have seen
        if not single:
            points = set()  # of the members so far
        for member in batch:
            if member.done:  # given up before it began
                member.never_made = True
                if member.error:
                    outcome.failures.append((member, member.error))
                continue
            name = member.idempotency_id
            if (name is not None or member.read_points or member.read_ranges) and not (
                single and member.blind and member.read_at == last
            ):
                code = self._validate(txn, member, version, last, earlier)
                if code:
                    outcome.failures.append((member, code))
                    continue
            index = len(members)
            stamp = _STAMP(version, index)
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
            if earlier is not None:
                earlier.add(index + 1, own, member.write_ranges)
            members.append((member, index))
            if name is not None:
                ids.append((name, index, 1 if member.id_ends else 0))
            if single:
                points = own
                ranges = member.write_ranges
            else:
                points.update(own)
                ranges += member.write_ranges
            if member.unconflicted:
                if single:
                    ranges = [*ranges, *member.unconflicted]  # of a list that isn't this one's to change
                else:
                    ranges += member.unconflicted
        if not members:
            return None
        seconds = int(time.time()) if ids else 0
        record = pack_record(points, ranges, ids, seconds)
        position = store.write_record(txn, last, version, record, steps)
        store.page.count_commit()
        if position:
            store.page.count_members(len(members))
        self._until_trim -= 1
        if self._until_trim <= 0:
            self._until_trim = TRIM_EVERY
            trim(txn, version, TRIM_RECORDS)
        # Last of all that may fail: a debt is left without a commit only where this transaction or its process comes to an end here.
        place = store.page.slots.owe(version)
        return Written(version, last, members, points, ranges, position, place)

    def _validate(
        self,
        txn: Any,
        member: Commit,
        version: int,
        last: int,
        earlier: ConflictWindow | None,
    ) -> int:
        """0, or the code with which the member fails, which has read something."""
        read = member.read_at
        if read is None:
            read = last
        if read < version - MAX_READ_AGE and not member.blind:
            snap = member.read_from
            if snap is None or not snap.young():  # after a silence even the newest version is old
                return errors.TRANSACTION_TOO_OLD
        hit = None
        if read >= last and earlier is None:
            return 0
        read_points = member.validated_points()
        if read < last:
            window = self.window
            if read_points and window.tail <= read >= last - MAX_READ_AGE and earlier is None and _read_few(member):
                hit = written_since(txn, read, last, read_points)  # no more of them than `_look_ahead` leaves
            else:
                if window.tail != last or window.floor > read:
                    window.advance(txn, read, last)
                    self._seen_commits = self.store.page.commits()
                    if window.floor > read:  # it was stopped for so long that what it may conflict with is forgotten
                        return errors.TRANSACTION_TOO_OLD
                hit = window.check(read, read_points, member.read_ranges)
        if hit is None and earlier is not None:
            hit = earlier.check(0, read_points, member.read_ranges)
        if hit is not None:
            if member.reports_conflicts:
                member.conflicts = self._all_conflicts(member, read, earlier)
            return errors.NOT_COMMITTED
        return 0

    def _all_conflicts(self, member: Commit, read: int, earlier: ConflictWindow | None) -> list[Range]:
        """Every range that the member read and others have written since: what option 712 asks for."""
        windows = [(self.window, read)] if earlier is None else [(self.window, read), (earlier, 0)]
        found = []
        reads = [*member.read_ranges, *((key, key + b"\0") for key in member.validated_points() or ())]
        for item in merge_ranges(reads):  # as the client sends them
            if any(window.check(since, None, [item]) for window, since in windows):
                found.append((clipped(item[0]), clipped(item[1])))
        return found
