"""What a transaction holds, and the states in which its operations fail: cancelled, timed out, committing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Protocol, TypeVar

from .. import errors
from ..engine.engine import Engine
from ..engine.futures import Future
from ..engine.promises import Promises
from ..engine.request import Commit
from ..engine.snapshot import Snapshot
from ..engine.watch import Holder
from ..errors import Code
from ..pure.known import Known
from ..pure.overlay import Entry, Overlay
from ..pure.ranges import Range
from ..pure.write_map import CONFLICT_COST, MUTATION_COST, Write, WriteMap
from .faulty import FaultyCommits
from .options import TransactionOptions

T = TypeVar("T")

VALUE_LIMIT = 100_000
METADATA_VERSION = b"\xff/metadataVersion"
METADATA_OPERAND = b"\0" * 14
FIRST_BACKOFF = 0.0002
NO_STAMP_AT_READ_VERSION = 730
"""Clients after 7.3 know that a stamp is higher than the read version; 7.3 takes it to be possibly the same."""
SET_COST = MUTATION_COST + CONFLICT_COST + 1
# fmt: off
_OF_ONE_ATTEMPT = (
    "wanted_version", "read_version", "shown_version", "dead", "deferred", "read_error", "committing", "plain",
    "no_write_conflict", "commit_future", "attempt", "unconflicted_clears", "approximate", "uncounted", "history",
    "stamped_parameters", "view", "asked", "cut", "given_id", "automatic_id", "write_points", "unconflicted",
    "promises",
)
# fmt: on
"""Fields that are as on the class again when the transaction starts afresh."""


class Handle(Holder, Protocol):
    """What a transaction needs of the handle that it was made by."""

    @property
    def engine(self) -> Engine: ...
    @property
    def api_version(self) -> int: ...
    @property
    def defaults(self) -> TransactionOptions: ...
    @property
    def faulty(self) -> FaultyCommits | None: ...


class View:
    """What its client has of a transaction whose reads depend on how it cuts them (`client_view`)."""

    def __init__(self) -> None:
        self.known = Known()  # of the snapshot
        self.map = WriteMap()  # the writes
        self.written = self.seen = 0  # so many of the transaction's lists are in them
        self.lock = threading.RLock()


class TransactionState:
    """The fields of a transaction. `Code`s are raised by `check`, or kept by `defer` until the next read or commit."""

    # What most transactions never set lives on the class, so that creating one is cheap.
    snap: Snapshot | None = None
    wanted_version: int | None = None
    read_version: int | None = None  # as it was told
    shown_version: int | None = None  # of a snapshot that was given back
    dead = 0
    deferred = 0
    read_error = 0  # of the first read that failed: the commit waits for all, and fails as it did
    committing = False  # set by the one call of `commit` that goes on
    plain = True
    no_write_conflict = False
    commit_future: Future | None = None  # of the commit, or of the pause before another attempt
    attempt: Commit | None = None
    unconflicted_clears: list[Range] | None = None  # ranges that were cleared without a conflict
    promises: Promises | None = None  # they pass to the commit
    read_points: set[bytes] | None = None
    write_points: set[bytes] | None = None
    unconflicted: set[bytes] | None = None
    read_ranges: list[Range]
    read_parts: tuple[list[Range], set[Range]] | None = (
        None  # `read_ranges`, and those of them that lie between own writes
    )
    approximate = 0  # bytes of all operations so far, as the client counts them: each, whatever becomes of it
    uncounted = 0  # bytes of the commit that it doesn't count
    seen: list[bytes | Range] | None = None  # what was read of the snapshot: keys and ranges
    history: list[Write] | None = None  # writes in their order, once reads depend on it
    view: View | None = None
    asked = False  # something else was read, which is neither in `seen` nor in `view`
    cut = False  # an explicit write conflict has cut the segments that the client counts
    given_id: bytes | None = None
    automatic_id = False

    def __init__(self, database: Handle) -> None:
        self.database = database
        self.engine = database.engine
        self.created = time.monotonic()
        self.retries = 0
        self.backoff = FIRST_BACKOFF
        self.options = database.defaults
        self.snap = None
        self._fresh()

    @property
    def committed_version(self) -> int:
        """The version of the last commit that succeeded, also after a reset; -1 where there is none, or it only read."""
        attempt = self.attempt
        return self.earlier_version if attempt is None or attempt.version < 0 else attempt.version

    earlier_version = -1  # of a commit before `on_error` or a reset

    first_stamp: bytes | None = None  # of the first commit since the creation or a reset; empty where it failed
    earlier_conflicts: list[Range] | None = None  # of a commit before `on_error` or a reset
    stamped_parameters: list[bytes] | None = None  # of all stamped keys, those too that were cleared since

    @property
    def stamp(self) -> bytes | None:
        """The versionstamp of the first commit since the transaction was created or reset, as its client shows it."""
        attempt = self.attempt
        if self.first_stamp is None and attempt is not None and attempt.done:
            stamp = max(0, attempt.version).to_bytes(8, "big") + attempt.index.to_bytes(2, "big")
            self.first_stamp = stamp if attempt.version >= 0 else b""
        return self.first_stamp or None

    @property
    def conflicts(self) -> list[Range] | None:
        """Why the commit failed: the ranges that were read and written since."""
        attempt = self.attempt
        return self.earlier_conflicts if attempt is None or attempt.conflicts is None else attempt.conflicts

    def written_points(self, writes: dict[bytes, Entry]) -> Iterable[bytes]:
        """The keys that conflict as written, where `writes` are set or cleared."""
        points: Iterable[bytes] = writes
        if self.unconflicted:
            points = [key for key in list(writes) if key not in self.unconflicted]
        if self.write_points:
            points = self.write_points.union(points)
        return points

    def own(self, name: str, first: T) -> T:
        """The value of a field that is made when it is first needed: `first`, or what another thread made meanwhile."""
        return self.__dict__.setdefault(name, first)  # type: ignore[no-any-return]

    def _fresh(self) -> None:
        # The first three are changed by who has found them so, without a call in between: no other thread comes there.
        # As they are the instance's from the beginning, that is one store. It costs less than `own`.
        self.committing = False
        self.read_points = None
        self.seen = None
        # What each transaction looks at is found sooner in the instance than in the class.
        self.deferred = self.dead = self.approximate = 0
        self.plain = True
        self.overlay = overlay = Overlay()
        self.writes = overlay.writes
        self.read_ranges = []
        self.write_ranges: list[Range] = []

    def check(self) -> None:
        """Raise what a read or a commit of this transaction must raise."""
        if self.deferred:
            raise Code(self.deferred)
        if self.committing:
            self.used_during_commit()
            raise Code(errors.USED_DURING_COMMIT)
        if self.dead:
            raise Code(self.dead)
        deadline = self.options.deadline(self.created)
        if deadline and time.monotonic() >= deadline:
            self.fail(errors.TRANSACTION_TIMED_OUT)
            raise Code(errors.TRANSACTION_TIMED_OUT)

    def expire(self) -> None:
        """End the transaction if its time is over: a timeout that has passed isn't taken back."""
        deadline = self.options.deadline(self.created)
        if deadline and not self.dead and time.monotonic() >= deadline:
            self.fail(errors.TRANSACTION_TIMED_OUT)

    def go_on(self) -> None:
        """Raise when a read that waits has nothing to wait for any more."""
        self.expire()
        if self.dead:
            raise Code(self.dead)

    def read_failed(self, code: int) -> Code:
        """Remember that a read ended in `code`; the commit will, too."""
        if not self.read_error:
            self.read_error = code
        return Code(code)

    def limit_key(self) -> bytes:
        """Where the keys end that may be read."""
        return b"\xff\xff" if self.options.read_system else b"\xff"

    def check_special(self) -> None:
        """What reads of special keys check: neither a commit nor the transaction's end stops them."""
        if self.deferred:
            raise Code(self.deferred)

    def used_during_commit(self) -> None:
        self.expire()
        if not self.dead and not self.options.commit_protection_disabled:
            self.fail(errors.USED_DURING_COMMIT)

    def defer(self, code: int) -> None:
        if not self.deferred:
            self.deferred = code
        self.plain = False

    def fail(self, code: int, stamp_code: int | None = None) -> None:
        """End everything that is pending with `code`; later reads and commits get it too."""
        stamp_code = stamp_code or code
        if not self.dead:
            self.dead = code
        self.plain = False
        future = self.commit_future
        if future is not None and not future.done and future.set(None, code) and isinstance(future, Commit):
            future.refuse(stamp_code, code)
        self.end_promises(stamp_code, code)

    def end_promises(self, stamp_code: int, watch_code: int) -> None:
        """End what was promised with a commit that nobody has asked for, or that writes nothing."""
        promises = self.promises
        if promises is not None:
            promises.end(stamp_code, watch_code)
            self.__dict__.pop("promises", None)  # afterwards: who is interrupted still has them

    def release(self) -> None:
        snap, self.snap = self.snap, None  # by one thread: there is no call in between
        if snap is not None:
            self.shown_version = snap.version
            self.engine.snapshots.release(snap)

    def restart(self) -> None:
        self.release()
        if self.attempt is not None:
            self.earlier_version = self.committed_version
        for name in _OF_ONE_ATTEMPT:
            self.__dict__.pop(name, None)
        self._fresh()

    def __del__(self) -> None:
        snap = self.snap
        if snap is not None:
            self.engine.snapshots.leave(snap)
