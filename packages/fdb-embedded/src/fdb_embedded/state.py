"""What a transaction holds, and the states in which its operations fail: cancelled, timed out, committing."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from . import errors
from .conflict import Range
from .errors import Code
from .futures import Future
from .overlay import Overlay
from .request import Commit, refuse
from .snapshot import Snapshot

if TYPE_CHECKING:
    from .engine import Engine
    from .handles import Database
    from .watches import Watch

KEY_LIMIT = 10_000
SYSTEM_KEY_LIMIT = 30_000
VALUE_LIMIT = 100_000
METADATA_VERSION = b"\xff/metadataVersion"
METADATA_OPERAND = b"\0" * 14
FIRST_BACKOFF = 0.0002
NO_STAMP_AT_READ_VERSION = 730
"""Clients after 7.3 know that a stamp is higher than the read version; 7.3 takes it to be possibly the same."""
CONFLICT_COST = 25
MUTATION_COST = 28


class TransactionState:
    """The fields of a transaction. `Code`s are raised by `_check`, or kept by `_defer` until the next read or commit."""

    # What most transactions never set lives on the class, so that creating one is cheap.
    snap: Snapshot | None = None
    wanted_version: int | None = None
    read_version: int | None = None
    dead = 0
    deferred = 0
    read_error = 0  # of the first read that failed: the commit waits for all, and fails as it did
    committing = False
    plain = True
    no_write_conflict = False
    commit_future: Future | None = None  # of the commit, or of the pause before another attempt
    attempt: Commit | None = None
    watches: list[Watch] | None = None  # these two pass to the commit
    stamp_futures: list[Future] | None = None
    read_ranges: list[Range]
    given_id: bytes | None = None
    automatic_id = False

    def __init__(self, database: Database) -> None:
        self.database = database
        self.engine: Engine = database.engine
        self.created = time.monotonic()
        self.retries = 0
        self.backoff = FIRST_BACKOFF
        self.options = database.defaults
        self._fresh()

    @property
    def committed_version(self) -> int:
        """The version of this transaction's commit; -1 while there is none, and for one that only read."""
        attempt = self.attempt
        return -1 if attempt is None else attempt.version

    @property
    def conflicts(self) -> list[Range] | None:
        """Why the commit failed: the ranges that were read and written since."""
        attempt = self.attempt
        return None if attempt is None else attempt.conflicts

    def written_points(self) -> Iterable[bytes]:
        """The keys that conflict as written."""
        points: Iterable[bytes] = self.overlay.writes
        if self.unconflicted:
            points = [key for key in points if key not in self.unconflicted]
        if self.write_points:
            points = self.write_points.union(points)
        return points

    def _fresh(self) -> None:
        self.overlay = Overlay()
        self.writes = self.overlay.writes
        self.read_points: set[bytes] | None = None
        self.read_ranges = []
        self.write_ranges: list[Range] = []
        self.write_points: set[bytes] | None = None
        self.unconflicted: set[bytes] | None = None
        self.watches = None
        self.stamp_futures = None

    def _check(self) -> None:
        """Raise what a read or a commit of this transaction must raise."""
        if self.deferred:
            raise Code(self.deferred)
        if self.committing:
            self._used_during_commit()
            raise Code(errors.USED_DURING_COMMIT)
        if self.dead:
            raise Code(self.dead)
        deadline = self.options.deadline(self.created)
        if deadline and time.monotonic() >= deadline:
            self.fail(errors.TRANSACTION_TIMED_OUT)
            raise Code(errors.TRANSACTION_TIMED_OUT)

    def _expire(self) -> None:
        """End the transaction if its time is over: a timeout that has passed isn't taken back."""
        deadline = self.options.deadline(self.created)
        if deadline and not self.dead and not self.committing and time.monotonic() >= deadline:
            self.fail(errors.TRANSACTION_TIMED_OUT)

    def _check_special(self) -> None:
        """What reads of special keys check: a commit doesn't stop them."""
        if self.deferred:
            raise Code(self.deferred)
        if self.dead:
            raise Code(self.dead)

    def _used_during_commit(self) -> None:
        future = self.commit_future
        if future is not None and not future.done and not self.options.commit_protection_disabled:
            self.fail(errors.USED_DURING_COMMIT)

    def _defer(self, code: int) -> None:
        if not self.deferred:
            self.deferred = code
        self.plain = False

    def fail(self, code: int) -> None:
        """End everything that is pending with `code`; later reads and commits get it too."""
        if not self.dead:
            self.dead = code
        self.plain = False
        future = self.commit_future
        if future is not None and not future.done and future.set(None, code) and isinstance(future, Commit):
            future.refuse(code, code)
        self._fail_pending(code, code)

    def _fail_pending(self, stamp_code: int, watch_code: int) -> None:
        """End what was promised with a commit that nobody has asked for."""
        refuse(self.stamp_futures, self.watches, stamp_code, watch_code)
        self.stamp_futures = self.watches = None

    def _release(self) -> None:
        snap, self.snap = self.snap, None
        if snap is not None:
            self.read_version = snap.version
            self.engine.release(snap)

    def _restart(self) -> None:
        self._release()
        for name in (
            "wanted_version",
            "read_version",
            "dead",
            "deferred",
            "read_error",
            "committing",
            "plain",
            "no_write_conflict",
            "commit_future",
            "attempt",
            "given_id",
            "automatic_id",
        ):
            self.__dict__.pop(name, None)
        self._fresh()

    def __del__(self) -> None:
        snap = self.snap
        if snap is not None:
            self.snap = None
            self.engine.release(snap)
        attempt = self.attempt
        unsent = attempt is not None and not attempt.done and attempt.kick is None  # `commit` was interrupted
        if unsent or self.stamp_futures or self.watches:
            # Nobody can commit this any more. The collector may be at work anywhere, so another thread ends it.
            self.engine.housekeeper.call_at(0.0, partial(_abandon, attempt, self.stamp_futures, self.watches))


def _abandon(attempt: Commit | None, stamps: list[Future] | None, watches: list[Watch] | None) -> None:
    """End what a transaction that is garbage had promised."""
    code = errors.TRANSACTION_CANCELLED
    refuse(stamps, watches, code, code)
    if attempt is not None and not attempt.done and attempt.kick is None:
        attempt.fail(code)
