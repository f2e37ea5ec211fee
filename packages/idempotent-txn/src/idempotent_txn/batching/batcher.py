"""Commits of concurrent transactions combined: the ids of many cost one row, and many commits cost one.

Whoever commits while nobody commits takes along what is queued; the others queue while a commit is in flight, and one
of them takes the next. There is no timer and no thread: alone, a transaction commits at once.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar
from weakref import WeakSet

from fdb_schema import fdb_error_code, read_version
from fdb_schema.database import as_database
from idempotent_txn.attempts.classification import RETRYABLE_IN_BODY
from idempotent_txn.attempts.guarding import refuse_unfinished
from idempotent_txn.attempts.settle import had_committed, note_outcome
from idempotent_txn.attempts.strategy import StrategyName
from idempotent_txn.batching.merging import READ_CONFLICTS, Group, ranges_of
from idempotent_txn.batching.recording import NeedsTransaction, Recording, record_beside, recording_transaction, replay
from idempotent_txn.errors import CommitUnknownResultFatal
from idempotent_txn.ids.native import was_acknowledged
from idempotent_txn.loop import run

T = TypeVar("T")

MAX_MEMBER_BYTES: Final = 100_000
MAX_GROUP_BYTES: Final = 1_000_000
MAX_GROUP_MEMBERS: Final = 1_000


class _Member:
    """A transaction that waits to be committed with others. What most of them never change lies on the class."""

    gate: Any = None
    """Held while the member waits; opened by whoever settles it, or gives it the lead."""
    taken = False
    """It is in a group: no longer in the queue, and settled by whoever leads that group."""
    settled = False
    """Committed, or `error` says what came of it."""
    error: BaseException | None = None
    group: tuple[_Member, ...] | list[_Member] = ()
    """What it has taken to commit, where it leads."""
    merged: Group[_Member] | None = None
    """What of that goes into the commit."""

    def __init__(self, recording: Recording) -> None:
        self.recording: Final = recording


class _Alone(Exception):
    """The member did not commit with its group: it runs by itself, and has its own error."""


def _closed_gate() -> Any:
    """A lock that is held: much less than an event, of which each waiting member would need one."""
    gate = threading.Lock()
    gate.acquire()
    return gate


class Batcher:
    """Runs transactions of many threads, combining their commits.

    Transactions that read join while others run at the same time; each function's reads are validated, and one whose
    reads no longer hold runs by itself, again. Those that set options, watch, or use versionstamps always run by
    themselves. Nothing that a caller sees differs, but that members of a group have one commit version.

    Args:
        db: the database, or its URL.
        strategy: of the commits, as for `run`.
        max_bytes: most bytes of a group; a member over a tenth of it commits alone.
    """

    def __init__(self, db: Any, *, strategy: StrategyName | None = None, max_bytes: int = MAX_GROUP_BYTES) -> None:
        if max_bytes < 1:
            raise ValueError(f"max_bytes is at least 1, not {max_bytes}")
        self._db = as_database(db)
        self._strategy: Final = strategy
        self._max_bytes: Final = max_bytes
        self._member_bytes: Final = min(MAX_MEMBER_BYTES, max_bytes)
        self._transaction_class: Final[type] = type(self._db.create_transaction())
        self._begin()
        _batchers.add(self)
        self._remembers = False
        """Whether any function is in one of these two."""
        self._reads: Final[WeakSet[Callable[..., Any]]] = WeakSet()
        self._alone: Final[WeakSet[Callable[..., Any]]] = WeakSet()

    def _begin(self) -> None:
        """Nobody is here: at first, and in a forked child, where the threads that were are not."""
        self._mutex = threading.Lock()
        self._queue: deque[_Member] = deque()
        self._leader: _Member | None = None
        """Whose thread commits; None only while nobody is queued."""
        self._crowded = False
        """Others come while a commit is in flight: it pays to let them come before the next one."""
        self._under_way: set[object] = set()
        """A mark for each transaction that reads and is under way here."""

    def run(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run `fn(tr, *args, **kwargs)` until it committed, once, with others or alone; return what it returned.

        Raises what `run` raises.
        """
        if self._remembers:
            if fn in self._alone:
                return run(self._db, fn, *args, strategy=self._strategy, **kwargs)
            if fn in self._reads:
                return self._run_reading(fn, args, kwargs)
        tr, recording = recording_transaction(self._transaction_class)
        try:
            value = fn(tr, *args, **kwargs)
        except NeedsTransaction:
            recording.joinable = False
        if not recording.joinable:
            self._remember(self._reads, fn)
            return self._run_reading(fn, args, kwargs)
        return self._join(recording, value, fn, args, kwargs)

    def _run_reading(self, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        """With others where there are any: alone, there is nothing to gain from a second transaction."""
        mark = object()
        try:
            self._under_way.add(mark)
            if len(self._under_way) == 1 and self._leader is None:
                return run(self._db, fn, *args, strategy=self._strategy, **kwargs)
            since = time.monotonic()
            tr = self._db.create_transaction()
            recording = record_beside(tr)
            try:
                value = fn(tr, *args, **kwargs)
                if recording.joinable and recording.operations:
                    recording.read(ranges_of(tr, READ_CONFLICTS))
                    if recording.reads:
                        recording.version, recording.since = read_version(tr), since
            except NeedsTransaction:
                recording.joinable = False
            except Exception as error:
                if fdb_error_code(error) not in RETRYABLE_IN_BODY:
                    raise
                return run(self._db, fn, *args, strategy=self._strategy, **kwargs)
            tr = None  # its snapshot isn't needed while the commit waits
            if not recording.joinable:
                self._remember(self._alone, fn)
                return run(self._db, fn, *args, strategy=self._strategy, **kwargs)
            return self._join(recording, value, fn, args, kwargs)
        finally:
            self._under_way.discard(mark)

    def _remember(self, functions: WeakSet[Callable[..., Any]], fn: Callable[..., Any]) -> None:
        self._remembers = True
        try:
            functions.add(fn)
        except TypeError:  # no weak reference to it can be had; it is found out anew each time
            pass

    def _join(
        self, recording: Recording, value: T, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> T:
        """Commit what was recorded with others; where that can't be, run the body by itself."""
        refuse_unfinished(value, getattr(fn, "__qualname__", None) or repr(fn))
        if recording.size > self._member_bytes:
            return run(self._db, fn, *args, strategy=self._strategy, **kwargs)
        if recording.operations:
            try:
                self._commit(_Member(recording))
            except _Alone:
                return run(self._db, fn, *args, strategy=self._strategy, **kwargs)
        return value

    def _commit(self, member: _Member) -> None:
        """Commit `member`, with others; an interruption is raised once its outcome is known and somebody else can lead."""
        try:
            with self._mutex:
                if self._leader is None:
                    self._leader = member
                else:
                    member.gate = _closed_gate()
                    self._crowded = True
                self._queue.append(member)
            while True:  # no condition: CPython 3.12 and later take its jump back for no part of the `try`
                if member.settled or self._leader is member:
                    break
                member.gate.acquire()
            if self._leader is member:
                if self._crowded:
                    time.sleep(0)  # they may be waiting for nothing but this thread to yield
                self._take_group(member)
                self._commit_group(member)
                self._pass_on(member)
        except BaseException as interruption:
            while True:
                try:
                    self._withdraw(member, interruption)
                    break
                except BaseException:
                    continue  # the first interruption is kept; more of them change nothing
            raise
        if member.error is not None:
            raise member.error

    def _take_group(self, leader: _Member) -> None:
        """Move what is queued, as far as it fits, to the group of `leader`, which is its first."""
        # Signal handlers run in the main thread, and may raise anywhere: there it answers for nobody but itself.
        most = 1 if threading.current_thread() is threading.main_thread() else MAX_GROUP_MEMBERS
        group: list[_Member] = []
        leader.group = group
        queue = self._queue
        size = 0
        with self._mutex:
            while True:  # no condition: CPython 3.12 and later take its jump back for no part of the `with`
                if not queue or len(group) >= most:
                    break
                member = queue[0]
                size += member.recording.size
                if group and size > self._max_bytes:
                    break
                group.append(member)  # before it leaves the queue: an interruption in between loses nobody
                member.taken = True
                queue.popleft()
            self._crowded = len(group) > 1 or bool(queue)

    def _commit_group(self, leader: _Member) -> None:
        merged = leader.merged = Group(leader.group)
        error: BaseException | None = None
        try:
            if merged.members:
                run(self._db, lambda tr: replay(tr, merged.begin(tr)), strategy=self._strategy)
        except CommitUnknownResultFatal as fatal:
            error = fatal
        except Exception as failure:
            if fdb_error_code(failure) is None and (len(merged.members) == 1 or _has_committed(merged, failure)):
                raise  # its own error; or what a signal handler raised, which may be any exception
            error = _Alone()
        _settle(leader, error)

    def _pass_on(self, leader: _Member) -> None:
        """Let the first of those queued commit next; once more changes nothing."""
        with self._mutex:
            if self._leader is leader:
                self._leader = self._queue[0] if self._queue else None
            successor = self._leader
            if successor is not None:
                _open(successor)

    def _withdraw(self, member: _Member, interruption: BaseException) -> None:
        """After an interruption, wherever it struck: nothing of `member` is in flight, and nobody waits for its thread.

        Interrupted itself, it is called again.
        """
        with self._mutex:
            if self._queue and member.group and self._queue[0] is member.group[-1]:
                self._queue.popleft().taken = True  # the interruption came before it left
            if member in self._queue:
                self._queue.remove(member)
                member.error = member.error or _Alone()
            leads = self._leader is member
        if leads:
            done = member.merged is not None and _has_committed(member.merged, interruption)
            _settle(member, None if done else _Alone())
        elif member.taken:
            while not member.settled:
                member.gate.acquire()
        self._pass_on(member)
        if member.taken and self._strategy != "off" and not isinstance(member.error, CommitUnknownResultFatal):
            note_outcome(interruption, member.error is None)


_batchers: Final[WeakSet[Batcher]] = WeakSet()


def _after_fork_in_child() -> None:
    for batcher in list(_batchers):
        batcher._begin()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _settle(leader: _Member, error: BaseException | None) -> None:
    """Tell the members of its group what came of their commit, once each; interrupted, it can be done again."""
    merged = leader.merged
    for member in merged.left_out if merged is not None else ():
        if not member.settled:
            member.error = _Alone()
    for member in leader.group:
        if not member.settled:
            if member.error is None:
                member.error = error
            member.settled = True
        if member is not leader:
            _open(member)


def _open(member: _Member) -> None:
    """Open its gate. Who waited there may hold it again by now, whereupon it matters to nobody."""
    gate = member.gate
    if gate is not None and gate.locked():
        gate.release()


def _has_committed(merged: Group[_Member], interruption: BaseException) -> bool:
    """Whether the commit of an interrupted group took place. `run` settles it before it lets an interruption through."""
    return had_committed(interruption) or (merged.attempted is not None and was_acknowledged(merged.attempted))
