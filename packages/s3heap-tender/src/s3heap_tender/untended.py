"""Pruning of shards that no tender looks after, so that what is done leaves the heap even where nothing tends it."""

from __future__ import annotations

from typing import Any

from fdb_schema import RecordError
from s3heap_tender.heap import Heap
from s3heap_tender.ownership import SHARD_LEASE


def prune_untended(heap: Heap, locks: Any) -> int:
    """Prune every shard whose lease is free, as its owner meanwhile; returns how many done items were removed.

    A tender prunes the shards it holds by itself, and is not disturbed.
    """
    removed = 0
    for shard in range(heap.shards):
        try:
            lease = locks.try_acquire(f"{SHARD_LEASE}{shard}")
        except RecordError:
            removed += heap.prune(shards=[shard]).pruned  # nobody can hold it; the tenders prune it without it too
            continue
        if lease is None:
            continue
        try:
            heap.own(shard, lease.token.version)
            removed += heap.prune(shards=[shard]).pruned
        finally:
            heap.disown(shard)
            if lease.held:
                lease.release()
    return removed
