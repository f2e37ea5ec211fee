"""Commits of concurrent transactions combined: the ids of many cost one row, and many commits cost one.

Whoever commits while nobody commits takes along what is queued; the others queue while a commit is in flight, and one
of them takes the next. There is no timer and no thread: alone, a transaction commits at once.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from types import GeneratorType
from typing import Any, Final, TypeVar
from weakref import WeakSet

from fdb_schema import fdb_error_code, read_version
from idempotent_txn.classification import RETRYABLE_IN_BODY
from idempotent_txn.errors import CommitUnknownResultFatal
from idempotent_txn.loop import run
from idempotent_txn.merging import READ_CONFLICTS, Group, ranges_of
from idempotent_txn.recording import NeedsTransaction, Recording, record_beside, recording_transaction, replay
from idempotent_txn.strategy import StrategyName

T = TypeVar("T")

MAX_MEMBER_BYTES: Final = 100_000
MAX_GROUP_BYTES: Final = 1_000_000
MAX_GROUP_MEMBERS: Final = 1_000


class _Member:
    """A transaction that waits to be committed with others."""

    gate: Any = None
    """Held while the member waits; whoever settles it, or gives it the lead, opens it, once."""
    leads = False
    """It is this member's turn to commit what is queued."""
    settled = False
    """Committed, or `error` says what came of it."""
    error: BaseException | None = None

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
        db: the database.
        strategy: of the commits, as for `run`.
        max_bytes: most bytes of a group; a member over a tenth of it commits alone.
    """

    def __init__(self, db: Any, *, strategy: StrategyName | None = None, max_bytes: int = MAX_GROUP_BYTES) -> None:
        if max_bytes < 1:
            raise ValueError(f"max_bytes is at least 1, not {max_bytes}")
        self._db = db
        self._strategy: Final = strategy
        self._max_bytes: Final = max_bytes
        self._member_bytes: Final = min(MAX_MEMBER_BYTES, max_bytes)
        self._mutex: Final = threading.Lock()
        self._queue: Final[deque[_Member]] = deque()
        self._busy = False
        self._crowded = False
        """Others come while a commit is in flight: it pays to let them come before the next one."""
        self._transaction_class: Final[type] = type(db.create_transaction())
        self._in_flight = 0
        """How many transactions that read are under way here."""
        self._reads: Final[WeakSet[Callable[..., Any]]] = WeakSet()
        self._alone: Final[WeakSet[Callable[..., Any]]] = WeakSet()

    def run(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run `fn(tr, *args, **kwargs)` until it committed, once, with others or alone; return what it returned.

        Raises what `run` raises.
        """
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
            _remember(self._reads, fn)
            return self._run_reading(fn, args, kwargs)
        return self._join(recording, value, fn, args, kwargs)

    def _run_reading(self, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        """With others where there are any: alone, there is nothing to gain from a second transaction."""
        with self._mutex:
            self._in_flight += 1
            alone = self._in_flight == 1 and not self._busy
        try:
            if alone:
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
                _remember(self._alone, fn)
                return run(self._db, fn, *args, strategy=self._strategy, **kwargs)
            return self._join(recording, value, fn, args, kwargs)
        finally:
            with self._mutex:
                self._in_flight -= 1

    def _join(
        self, recording: Recording, value: T, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> T:
        """Commit what was recorded with others; where that can't be, run the body by itself."""
        if recording.size > self._member_bytes or type(value) is GeneratorType:
            return run(self._db, fn, *args, strategy=self._strategy, **kwargs)
        if recording.operations:
            try:
                self._commit(_Member(recording))
            except _Alone:
                return run(self._db, fn, *args, strategy=self._strategy, **kwargs)
        return value

    def _commit(self, member: _Member) -> None:
        interruption: BaseException | None = None
        try:
            with self._mutex:
                self._queue.append(member)
                if self._busy:
                    member.gate = _closed_gate()
                    self._crowded = True
                else:
                    self._busy = member.leads = True
            while member.gate is not None and not (member.settled or member.leads):
                try:
                    member.gate.acquire()
                except BaseException as error:
                    # The member may be in a group in flight: what comes of it is known soon.
                    interruption = interruption or error
            if member.leads:
                if self._crowded:
                    time.sleep(0)  # they may be waiting for nothing but this thread to yield
                self._commit_group(self._take_group())
        finally:
            if member.leads:
                self._pass_on()
        if interruption is not None:
            raise interruption
        if member.error is not None:
            raise member.error

    def _take_group(self) -> list[_Member]:
        """What is queued, as far as it fits; this thread's member is its first."""
        # Signal handlers run in the main thread, and may raise anywhere: there it answers for nobody but itself.
        most = 1 if threading.current_thread() is threading.main_thread() else MAX_GROUP_MEMBERS
        group: list[_Member] = []
        size = 0
        with self._mutex:
            while self._queue and len(group) < most:
                size += self._queue[0].recording.size
                if group and size > self._max_bytes:
                    break
                group.append(self._queue.popleft())
            self._crowded = len(group) > 1 or bool(self._queue)
        return group

    def _commit_group(self, group: list[_Member]) -> None:
        error: BaseException | None = CommitUnknownResultFatal(
            "the thread that committed this transaction together with others was stopped: nobody can tell the outcome"
        )
        merged: Group[_Member] = Group(group)
        try:
            if merged.members:
                run(self._db, lambda tr: replay(tr, merged.begin(tr)), strategy=self._strategy)
            error = None
        except CommitUnknownResultFatal as fatal:
            error = fatal
        except Exception:
            error = _Alone()
        finally:
            for member in merged.left_out:
                member.error = _Alone()
            for member in group:
                if member.error is None:
                    member.error = error
                member.settled = True
                if member.gate is not None and not member.leads:
                    member.gate.release()

    def _pass_on(self) -> None:
        """Let the first of those queued commit next."""
        with self._mutex:
            successor = self._queue[0] if self._queue else None
            if successor is None:
                self._busy = False
            else:
                successor.leads = True
        if successor is not None and successor.gate is not None:
            successor.gate.release()


def _remember(functions: WeakSet[Callable[..., Any]], fn: Callable[..., Any]) -> None:
    try:
        functions.add(fn)
    except TypeError:  # no weak reference to it can be had; it is found out anew each time
        pass
