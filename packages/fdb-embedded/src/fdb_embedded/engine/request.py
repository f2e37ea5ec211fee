"""A commit on its way: what it reads and writes, fixed when it was handed over, and the future of its outcome.

The transaction goes on without it: whatever becomes of the transaction meanwhile (a timeout, a reset, another commit), the
outcome of this commit reaches this future and what was promised with it, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable

from .. import errors
from ..pure.idempotency import SELF_CONFLICT
from ..pure.overlay import Overlay
from ..pure.ranges import Range
from .futures import Future
from .promises import Promises
from .snapshot import Snapshot


class Commit(Future):
    """The future of a commit, which is also what the committer queues. None of what it writes changes any more."""

    __slots__ = (
        "__dict__",
        "id_ends",
        "idempotency_id",
        "index",
        "overlay",
        "points",
        "read_at",
        "read_from",
        "read_points",
        "read_ranges",
        "version",
        "write_ranges",
    )

    # What few commits have lives on the class, so that making one is cheap.
    reports_conflicts = False
    unconflicted: list[Range] | None = None  # what it writes without a conflict, as a commit record names it
    deadline = 0.0  # when the transaction times out; 0 is never
    blind = False  # it has read nothing: what it is validated for is its idempotency id
    writes_ids = False  # rows of idempotency ids change
    conflicts: list[Range] | None = None  # why it failed: the ranges that were read and written since
    never_made = False  # it was given up before it was begun: certain once it is True
    promises: Promises | None = None  # its versionstamp, and watches that begin once it is made

    def __init__(
        self,
        overlay: Overlay,
        points: Iterable[bytes],
        write_ranges: list[Range],
        read_points: set[bytes] | None,
        read_ranges: list[Range],
        read_at: int | None,
        read_from: Snapshot | None,
    ) -> None:
        self.value = None
        self.error = 0
        self.done = False
        self.callbacks = None
        self.kick = None
        self.direct = None
        self.overlay = overlay
        self.points = points  # the keys that conflict as written
        self.write_ranges = write_ranges
        self.read_points = read_points
        self.read_ranges = read_ranges
        self.read_at = read_at  # None: nothing was read, so nothing can conflict
        self.read_from = read_from  # what shows how long ago that was
        self.idempotency_id: bytes | None = None
        self.id_ends = False  # once its commit was answered
        self.version = -1
        self.index = 0

    def again(self, read_at: int | None) -> Commit:
        """The same commit with a future of its own, and without what was promised with this one."""
        copy = Commit(
            self.overlay, self.points, self.write_ranges, self.read_points, self.read_ranges, read_at, self.read_from
        )
        copy.deadline = self.deadline
        copy.idempotency_id = self.idempotency_id
        copy.id_ends = self.id_ends
        copy.blind = self.blind
        copy.reports_conflicts = self.reports_conflicts
        copy.writes_ids = self.writes_ids
        copy.unconflicted = self.unconflicted
        return copy

    def validated_points(self) -> set[bytes] | None:
        """The keys it is validated for: those it read, and its id's own, which is written by whoever ends its being in flight."""
        name, points = self.idempotency_id, self.read_points
        if name is None:
            return points
        return {SELF_CONFLICT + name} if points is None else points | {SELF_CONFLICT + name}

    # Each of these may be called again when an interrupt came between: what was done stays, the rest is done.

    def succeed(self, version: int, index: int) -> None:
        """It was made. The version is noted also where the caller was told otherwise meanwhile."""
        self.index = index
        self.version = version
        if self.promises is not None:
            if self.error:  # it timed out, or was cancelled, while it was being made
                self.refuse(self.error, self.error)
            else:
                self.promises.end(0, 0, version.to_bytes(8, "big") + index.to_bytes(2, "big"))
        self.set()

    def fail(self, code: int) -> None:
        """It wasn't made, or nobody knows."""
        self.refuse(errors.TRANSACTION_INVALID_VERSION, code)
        self.set(None, code)

    def refuse(self, stamp_code: int, watch_code: int) -> None:
        """End what was promised with it."""
        if self.promises is not None:
            self.promises.end(stamp_code, watch_code)
