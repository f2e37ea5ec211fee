"""Where rows lie: the keys of a sysdb, and how many shards they are spread over."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from s3heap_tender.rows.keys import HeapKeys


@dataclass(frozen=True, slots=True)
class Layout:
    """The keys, and how many shards they are spread over."""

    keys: HeapKeys
    shards: int

    def shard_of(self, identity: UUID) -> int:
        """The shard of a task (its intent and items) or a partition (its dirty marker)."""
        return int.from_bytes(identity.bytes[-4:], "big") % self.shards
