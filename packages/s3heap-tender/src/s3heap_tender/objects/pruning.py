"""Pruning: what the sysdb says is done leaves the heap's objects, and what is past and empty goes."""

from __future__ import annotations

from collections.abc import Iterable

from fdb_schema import NewerFormatError
from s3heap_tender.claims import index, outbox, tending
from s3heap_tender.claims.outbox import Verdict
from s3heap_tender.errors import ConflictError, CorruptObjectError, StoreUnavailableError
from s3heap_tender.objects.contents import MOST_UNANSWERED, Contents
from s3heap_tender.objects.heap_io import Content
from s3heap_tender.objects.heap_values import PruneStats
from s3heap_tender.objects.writer import Writers
from s3heap_tender.rows.items import HeapItem
from s3heap_tender.rows.naming import ObjectName
from s3heap_tender.sysdb import SysDb


class Pruning:
    """The prunings of one heap. What is said of their arguments is said at `Heap`."""

    def __init__(self, sysdb: SysDb, contents: Contents, writers: Writers) -> None:
        self._sysdb = sysdb
        self._contents = contents
        self._writers = writers

    def prune(self, limit: int | None, shards: Iterable[int], past_only: bool, dry_run: bool) -> PruneStats:
        """Judge every item of these shards."""
        self._sysdb.tick()
        total = PruneStats()
        seen = unanswered = 0
        for shard in shards:
            boundary = self._boundary(shard, raise_it=not dry_run)
            before = None if not past_only else self._sysdb.now_micro() // 1_000_000 + 1
            names = sorted(name for name, _ in self._contents.list(shard, before))
            for name in sorted(names, key=lambda name: name.key in self._contents.unanswered):
                if limit is not None and seen >= limit:
                    return total
                seen += 1
                try:
                    total += self._prune_object(name, name.bucket < boundary, dry_run)
                    self._contents.unanswered.discard(name.key)
                except StoreUnavailableError as error:
                    # One object that the store does not serve is no reason to leave the others.
                    self._contents.note_unanswered(name.key, error)
                    unanswered += 1
                    if unanswered >= MOST_UNANSWERED:
                        raise
                    total += PruneStats(unreadable=(name.key,))
        return total

    def prune_done(self, shard: int, limit: int, thorough: bool) -> tuple[PruneStats, int]:
        """Remove what is noted as done, `limit` notes at a time; what was done, and how many notes are settled."""
        boundary = self._boundary(shard, raise_it=True)
        total, settled, after = PruneStats(), 0, None
        while True:
            notes = self._sysdb.read(index.read_done, shard, boundary * 1000, limit, after)
            if not notes:
                return total, settled
            since = 0 if thorough else self._contents.floor(min(due_ms for _, _, due_ms in notes) // 1000)
            stats, open_ = self._prune_noted(shard, since, boundary, {task.bytes for _, task, _ in notes})
            total += stats
            if not open_:
                tending.settle_done(self._sysdb, [key for key, _, _ in notes])
                settled += len(notes)
            after = notes[-1][0]

    def _prune_noted(self, shard: int, since: int, boundary: int, tasks: set[bytes]) -> tuple[PruneStats, bool]:
        """One listing; whether something was left open."""
        contents, total = self._contents, PruneStats()
        lost = unanswered = 0
        listed = contents.list(shard, boundary, since)
        for name, etag in sorted(listed, key=lambda entry: entry[0].key in contents.unanswered):
            try:
                content = contents.read(name, etag)
                if content is None or not _may_go(content, tasks):
                    lost += name.key in contents.unreadable
                    continue
                total += self._prune_object(name, True, False, tasks=tasks, current=content)
                contents.drop(name.key)
                contents.unanswered.discard(name.key)
            except StoreUnavailableError as error:
                contents.note_unanswered(name.key, error)
                unanswered += 1
                total += PruneStats(unreadable=(name.key,))
                if unanswered >= MOST_UNANSWERED:
                    raise
        return total, bool(lost or unanswered or total.conflicts)

    def _prune_object(
        self,
        name: ObjectName,
        may_delete: bool,
        dry_run: bool,
        *,
        tasks: set[bytes] | None = None,
        current: Content | None = None,
    ) -> PruneStats:
        unknown = 0

        def keep(records: list[bytes]) -> set[bytes]:
            nonlocal unknown
            asked = [record for record in records if tasks is None or record[16:32] in tasks]
            found = self._sysdb.verdicts([HeapItem.unpack(record) for record in asked])
            unknown = sum(verdict is Verdict.UNKNOWN for verdict in found)
            done = {record for record, verdict in zip(asked, found, strict=True) if verdict is Verdict.DONE}
            return {record for record in records if record not in done}

        known = self._contents.known(name.key) if current is None else current
        try:
            if dry_run:
                content = self._contents.io.load(name, known=known)
                records = [] if content is None else content.records
                kept = keep(records)
                return PruneStats(len(records) - len(kept), len(kept), unknown=unknown)
            removed, retained, what = self._writers.of(name.shard).rewrite(
                name, keep, may_delete, known, current=current is not None
            )
        except ConflictError:
            return PruneStats(conflicts=1)
        except (CorruptObjectError, NewerFormatError) as error:
            self._contents.note_unreadable(name.key, error)
            return PruneStats(unreadable=(name.key,))
        return PruneStats(removed, retained, what == "deleted", what in ("rewritten", "emptied"), 0, unknown)

    def _boundary(self, shard: int, *, raise_it: bool) -> int:
        if not raise_it:
            return self._sysdb.read(outbox.read_boundary, shard)
        return tending.raise_boundary(self._sysdb, shard, self._contents.floor(self._sysdb.now_micro() // 1_000_000))


def _may_go(content: Content, tasks: set[bytes]) -> bool:
    return not content.records or any(record[16:32] in tasks for record in content.records)
