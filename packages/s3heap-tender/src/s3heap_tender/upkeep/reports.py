"""What a tender reports of a turn."""

from __future__ import annotations

from dataclasses import dataclass, field

from s3heap_tender.objects.heap_values import PruneStats


@dataclass
class TurnReport:
    """What one turn did."""

    swept: int = 0  # tasks scheduled by writes
    pushed: int = 0
    late: int = 0  # pushed below the boundary: pushed again
    reconciled: int = 0
    forgotten: int = 0  # tombstones
    pruned: PruneStats = field(default_factory=PruneStats)
    errors: list[str] = field(default_factory=list)
    store_failed: bool = False  # the store did not answer, or lost a condition: the next turn may wait a little
    lost_seconds: float = 0.0  # spent on a store that failed
    idle: bool = False  # there was nothing to sweep or push

    def add(self, part: TurnReport) -> None:
        """What one of several threads did."""
        for name in ("swept", "pushed", "late", "reconciled", "forgotten", "pruned", "errors", "lost_seconds"):
            setattr(self, name, getattr(self, name) + getattr(part, name))
        self.store_failed |= part.store_failed

    def figures(self) -> dict[str, int]:
        """What was done, as counts."""
        return {
            **{name: getattr(self, name) for name in ("swept", "pushed", "late", "reconciled", "forgotten")},
            "pruned": self.pruned.pruned,
            "errors": len(self.errors),
        }
