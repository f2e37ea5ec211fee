"""Pruning of shards that no tender looks after, so that what is done leaves the heap even where nothing tends it."""

from __future__ import annotations

from functools import partial
from typing import Any

from fdb_schema import RecordError
from s3heap_tender.claims import index
from s3heap_tender.heap import Heap
from s3heap_tender.runs.ownership import SHARD_LEASE


def prune_untended(heap: Heap, locks: Any) -> int:
    """Prune every shard with done items whose lease is free, as its owner meanwhile; returns how many were removed.

    A tender prunes the shards it holds by itself, and is not disturbed. Where nothing is done it costs one transaction.
    """
    removed = 0
    heap.sysdb.tick()
    _, looked = heap.sysdb.read(partial(index.look, runs=False), range(heap.shards))
    for shard in (shard for shard, there in looked.items() if there.done is not None):
        try:
            lease = locks.try_acquire(f"{SHARD_LEASE}{shard}")
        except RecordError:
            removed += _prune(heap, shard)  # nobody can hold it; the tenders prune it without it too
            continue
        if lease is None:
            continue
        try:
            heap.own(shard, lease.token.version)
            removed += _prune(heap, shard)
        finally:
            heap.disown(shard)
            if lease.held:
                lease.release()
    return removed


def _prune(heap: Heap, shard: int) -> int:
    removed = heap.prune(shards=[shard]).pruned
    return removed + heap.prune_done(shard)[0].pruned  # which settles the notes of what is past
