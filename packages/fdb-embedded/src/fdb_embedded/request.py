"""What the committer needs of a commit: a transaction, or the copy of one that lands later than its caller was told."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from .conflict import Range
from .futures import Future
from .overlay import Entry, Overlay
from .snapshot import Snapshot


class CommitRequest(Protocol):
    """A commit on its way."""

    overlay: Overlay
    writes: dict[bytes, Entry]
    read_points: set[bytes] | None
    read_ranges: list[Range]
    write_ranges: list[Range]
    read_at: int | None  # None: nothing was read, so nothing can conflict
    read_from: Snapshot | None  # what shows how long ago that was
    idempotency_id: bytes | None
    id_ends: bool
    commit_future: Future | None
    conflicts: list[Range] | None

    @property
    def reports_conflicts(self) -> bool: ...

    def written_points(self) -> Iterable[bytes]: ...

    def writes_ids(self) -> bool: ...

    def settle_success(self, version: int, index: int) -> None: ...

    def settle_failure(self, code: int) -> None: ...


class Detached:
    """A commit without its transaction: everything was copied when the transaction handed it over."""

    def __init__(self, source: CommitRequest | None = None, read_at: int | None = None) -> None:
        self.overlay = source.overlay if source else Overlay()
        self.writes = self.overlay.writes
        self.read_points = set(source.read_points) if source and source.read_points else None
        self.read_ranges = list(source.read_ranges) if source else []
        self.write_ranges = list(source.write_ranges) if source else []
        self.points: list[bytes] = list(source.written_points()) if source else []
        self.read_at = read_at
        self.read_from: Snapshot | None = None
        self.idempotency_id = source.idempotency_id if source else None
        self.id_ends = source.id_ends if source else False
        self.commit_future: Future | None = None
        self.conflicts: list[Range] | None = None
        self.reports_conflicts = source.reports_conflicts if source else False
        self._writes_ids = source.writes_ids() if source else False
        self.version = -1
        self.index = 0

    def written_points(self) -> Iterable[bytes]:
        return self.points

    def writes_ids(self) -> bool:
        return self._writes_ids

    def settle_success(self, version: int, index: int) -> None:
        self.version = version
        self.index = index

    def settle_failure(self, code: int) -> None:
        return None
