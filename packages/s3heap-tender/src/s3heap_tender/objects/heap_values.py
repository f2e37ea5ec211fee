"""What the heap's operations return."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bucket:
    """One object of the heap."""

    key: str
    shard: int
    start: int  # seconds of the cluster clock
    part: int
    size: int  # bytes
    items: int


@dataclass(frozen=True, slots=True)
class Summary:
    """What is on the heap."""

    items: int  # done ones among them, until they are pruned
    due: int  # live items due by now
    buckets: int
    oldest: int | None  # start of the oldest bucket, seconds of the cluster clock
    newest: int | None
    by_shard: dict[int, int]
    unreadable: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PruneStats:
    """What a prune did."""

    pruned: int = 0
    retained: int = 0
    deleted: int = 0  # objects
    rewritten: int = 0
    conflicts: int = 0  # objects left for the next time, because they changed
    unknown: int = 0  # items of tasks the sysdb never had: retained
    unreadable: tuple[str, ...] = ()

    def __add__(self, other: PruneStats) -> PruneStats:
        return PruneStats(
            self.pruned + other.pruned,
            self.retained + other.retained,
            self.deleted + other.deleted,
            self.rewritten + other.rewritten,
            self.conflicts + other.conflicts,
            self.unknown + other.unknown,
            self.unreadable + other.unreadable,
        )
