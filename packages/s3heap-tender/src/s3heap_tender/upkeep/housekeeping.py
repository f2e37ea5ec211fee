"""What keeps the heap small and true: pruning, comparing it with the sysdb, putting aside what can't be read, forgetting the deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol
from uuid import UUID

from s3heap_tender.claims import index, outbox, tending
from s3heap_tender.heap import Heap
from s3heap_tender.rows.naming import shard_prefix
from s3heap_tender.rows.records import MICROSECONDS, Tombstone
from s3heap_tender.sysdb import SysDb
from s3heap_tender.upkeep.guarding import Guard
from s3heap_tender.upkeep.reconciling import reconcile_shard
from s3heap_tender.upkeep.reports import TurnReport

_PAGE: Final = 500
FORGET_EVERY: Final = 3600.0
OVERDUE_MS: Final = 30_000
UNSETTLED_SECONDS: Final = 60.0


@dataclass
class Look:
    """What a tender saw when it last looked at its shards."""

    now: int = 0  # cluster clock, µs
    shards: dict[int, index.ShardLook] = field(default_factory=dict)


class Times(Protocol):
    """How often, and for how long: as a `Tender` was told."""

    prune_every: float
    reconcile_every: float
    keep_tombstones: float


class Housekeeping:
    """The housekeeping of one tender, in its turns or beside them; `seen` is what the tender saw last."""

    def __init__(
        self, heap: Heap, sysdb: SysDb, guard: Guard, seen: Look, times: Times, monotonic: Callable[[], float]
    ) -> None:
        self._heap = heap
        self._sysdb = sysdb
        self._guard = guard
        self._seen = seen
        self._times = times
        self._monotonic = monotonic
        self._prune_at: dict[int, float] = {}  # no sooner
        self._overdue_wait: dict[int, float] = {}
        self.reconciled: dict[int, float] = {}  # when each shard was
        self.thorough: set[int] = set()  # shards whose next pruning lists all that is past
        self._forgot_at = float("-inf")

    def keep(self, report: TurnReport, shards: Sequence[int], prune: bool | None, reconcile: bool | None) -> None:
        """Do what there is to do in these shards; `prune` and `reconcile` force or forbid what else time decides."""
        now = self._monotonic()
        if prune:
            self._guard.each(report, shards, self._prune)
        elif prune is None:
            self._guard.each(report, self._prunable(shards), self._prune_done)
        due = self._to_reconcile(shards) if reconcile is None else shards if reconcile else []
        if due:
            self._guard.each(report, due, self._reconcile)
        if reconcile or (reconcile is None and now - self._forgot_at >= FORGET_EVERY):
            self._forgot_at = now
            self._forget(report, shards)

    def _prunable(self, shards: Sequence[int]) -> list[int]:
        """Shards with done items in buckets that are past, or with objects to be moved aside."""
        now = self._monotonic()
        bucket = self._heap.bucket_of(self._seen.now // 1_000_000) * 1000
        corrupt = list(self._heap.corrupt)
        found = []
        for shard in shards:
            done = self._seen.shards[shard].done if shard in self._seen.shards else None
            damaged = any(key.startswith(shard_prefix(shard)) for key in corrupt)
            if (damaged or (done is not None and done < bucket)) and now >= self._prune_at.get(shard, now):
                found.append(shard)
        return found

    def _to_reconcile(self, shards: Sequence[int]) -> list[int]:
        """Shards whose time has come, or where something has been due for so long that the heap may lack it."""
        now = self._monotonic()
        found = []
        for shard in shards:
            since = now - self.reconciled.get(shard, float("-inf"))
            due = self._seen.shards[shard].due if shard in self._seen.shards else None
            if due is None or due > self._seen.now // 1000 - OVERDUE_MS or self._seen.shards[shard].intents:
                self._overdue_wait.pop(shard, None)
                wait = self._times.reconcile_every
            else:
                wait = min(self._times.reconcile_every, self._overdue_wait.get(shard, OVERDUE_MS / 1000))
            if since >= wait:
                if wait < self._times.reconcile_every:
                    self._overdue_wait[shard] = wait * 2
                found.append(shard)
        return found

    def is_due(self, shards: Sequence[int]) -> bool:
        """Whether `keep` would find anything to do in these shards."""
        return bool(
            self._prunable(shards)
            or self._to_reconcile_now(shards)
            or self._monotonic() - self._forgot_at >= FORGET_EVERY
        )

    def put_off(self, shards: Iterable[int]) -> None:
        """Prune these shards no sooner than after an interval."""
        self._prune_at.update(dict.fromkeys(shards, self._monotonic() + self._times.prune_every))

    def _to_reconcile_now(self, shards: Sequence[int]) -> bool:
        kept = dict(self._overdue_wait)
        try:
            return bool(self._to_reconcile(shards))
        finally:
            self._overdue_wait = kept

    def _prune(self, shard: int, report: TurnReport) -> None:
        """Judge every item of the shard."""
        report.pruned += self._heap.prune(shards=[shard])
        self._quarantine(shard, report)

    def _prune_done(self, shard: int, report: TurnReport) -> None:
        """Remove what the sysdb notes as done."""
        # What could not be settled, as in an object that can't be read, is not looked for at every turn.
        self._prune_at[shard] = self._monotonic() + UNSETTLED_SECONDS
        stats, settled = self._heap.prune_done(shard, thorough=shard in self.thorough)
        self.thorough.discard(shard)
        report.pruned += stats
        if settled:
            self._prune_at[shard] = self._monotonic() + self._times.prune_every
        self._quarantine(shard, report)

    def _quarantine(self, shard: int, report: TurnReport) -> None:
        for key, reason in list(self._heap.corrupt.items()):
            if not key.startswith(shard_prefix(shard)):
                continue
            moved_to = self._heap.quarantine(key, reason)
            if moved_to is not None:
                self._guard.note(report, f"{f'moved {key} to {moved_to}' if moved_to else f'removed {key}'}: {reason}")
                self.reconciled.pop(shard, None)

    def _reconcile(self, shard: int, report: TurnReport) -> None:
        first = shard not in self.reconciled
        # All shards are compared at the start, and then each at a time of its own: no minute costs more than another.
        early = shard / self._heap.shards * self._times.reconcile_every if first else 0.0
        self.reconciled[shard] = self._monotonic() - early
        self.thorough.add(shard)
        tending.reindex(self._sysdb, shard)
        report.reconciled += reconcile_shard(self._heap, self._sysdb, shard)

    def _forget(self, report: TurnReport, shards: Sequence[int]) -> None:
        """A1 and A2 end: drop tombstones that are old enough and of whose task a look at the whole shard finds nothing.

        The tombstones are read first: what could still have been pushed when a task was deleted is long on the heap.
        """
        old: dict[int, list[Tombstone]] = {shard: [] for shard in shards}
        limit = self._sysdb.now_micro() - int(self._times.keep_tombstones * MICROSECONDS)
        after: UUID | None = None
        while page := self._sysdb.read(outbox.read_tombstones, after, _PAGE):
            for tombstone in page:
                shard = self._sysdb.layout.shard_of(tombstone.task)
                if tombstone.deleted <= limit and shard in old:
                    old[shard].append(tombstone)
            after = page[-1].task

        def forget(shard: int, report: TurnReport) -> None:
            there = {record[16:32] for content in self._heap.scan(shards=[shard]) for record in content.records}
            if any(key.startswith(shard_prefix(shard)) for key in self._heap.unreadable):
                return  # nobody knows what is in there
            gone = [tombstone for tombstone in old[shard] if tombstone.task.bytes not in there]
            tending.forget(self._sysdb, gone)
            report.forgotten += len(gone)

        self._guard.each(report, [shard for shard in shards if old[shard]], forget)
