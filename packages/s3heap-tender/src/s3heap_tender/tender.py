"""Tender: makes the heap follow the sysdb. Sweeps dirty partitions, pushes intents, prunes, reconciles."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from fdb_schema import NewerFormatError, RecordError
from s3heap_tender import outbox, tending
from s3heap_tender.errors import DuplicateWriterError, HeapTenderError, StoreError, is_waited_out
from s3heap_tender.heap import Heap
from s3heap_tender.heap_values import PruneStats
from s3heap_tender.items import HeapItem
from s3heap_tender.naming import shard_prefix
from s3heap_tender.ownership import Everything, Ownership, leased_ownership
from s3heap_tender.records import MICROSECONDS, Dirty, Intent, Tombstone, item_of
from s3heap_tender.states import State
from s3heap_tender.sysdb import SysDb
from s3heap_tender.transitions import Layout

log = logging.getLogger("s3heap_tender.tender")
PAGE: Final = 500
STORE_PATIENCE: Final = 20.0
FORGET_EVERY: Final = 3600.0
KEEP_TOMBSTONES: Final = 7 * 86_400.0
REPEAT_LOG_SECONDS: Final = 60.0


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

    def figures(self) -> dict[str, int]:
        """What was done, as counts."""
        return {
            **{name: getattr(self, name) for name in ("swept", "pushed", "late", "reconciled", "forgotten")},
            "pruned": self.pruned.pruned,
            "errors": len(self.errors),
        }


class Tender:
    """Runs the heap's side of the protocol for the shards it owns.

    Correct with any number of tenders and with none of the leases held: those only keep two from doing the same work.

    Args:
        ownership: which shards are this process's; by default leases of lease-locks, taken when `run` starts.
        poll: seconds between turns of `run`.
        prune_every, reconcile_every: seconds between prunings of past buckets, and of comparisons of heap and sysdb.
        keep_tombstones: seconds of the cluster clock for which a deleted task's id is remembered at least; longer than
            any process may be suspended between reading an intent and pushing its item.
    """

    def __init__(
        self,
        heap: Heap,
        sysdb: SysDb,
        *,
        ownership: Ownership | None = None,
        poll: float = 0.2,
        prune_every: float = 5.0,
        reconcile_every: float = 300.0,
        keep_tombstones: float = KEEP_TOMBSTONES,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if heap.sysdb.id != sysdb.id:
            raise ValueError(f"the heap at {heap.store.url} is of another sysdb ({heap.sysdb.id}, not {sysdb.id})")
        self.heap = heap
        self.sysdb = sysdb
        self.poll = poll
        self.prune_every = prune_every
        self.reconcile_every = reconcile_every
        self.keep_tombstones = keep_tombstones
        self.turns = 0
        self.totals: Counter[str] = Counter()  # of the figures of every turn
        self._ownership = ownership
        self._monotonic = monotonic
        self._rng = random.Random()
        self._pruned_at = float("-inf")
        self._pruned_all_at = float("-inf")
        self._reconciled: dict[int, float] = {}
        self._forgot_at = float("-inf")
        self._owned: set[int] = set()
        self._noted: dict[str, float] = {}
        self._conflicts = 0
        self._stop = threading.Event()

    def run(self, stop: threading.Event | None = None) -> None:
        """Turn after turn until `stop` is set or `stop()` is called. Faults of store and database are waited out."""
        self._stop = stop or self._stop
        faults = 0
        try:
            while not self._stop.is_set():
                try:
                    if self._ownership is None:
                        self._ownership = leased_ownership(self.sysdb)
                    report = self.turn()
                    # What is poisoned is no reason for the sound rest to wait; a store that doesn't answer is.
                    faults = min(8, faults + 1) if report.store_failed else 0
                except Exception as error:
                    if not is_waited_out(error):
                        raise
                    faults = min(8, faults + 1)
                    log.warning("the tender's turn failed and will be repeated: %s", error)
                delay = self.poll if not faults else min(5.0, self.poll * 2**faults)
                self._stop.wait(delay * self._rng.uniform(0.8, 1.2))
        finally:
            if self._ownership is not None:
                self._ownership.close()

    def stop(self) -> None:
        """Let `run` return after the turn under way."""
        self._stop.set()

    def turn(self, *, prune: bool | None = None, reconcile: bool | None = None) -> TurnReport:
        """One pass over the owned shards. `prune` and `reconcile` force or forbid what else time decides."""
        report = TurnReport()
        self.turns += 1
        self.sysdb.tick()
        shards = self._take_shards()
        for shard in shards:
            self._guarded(report, shard, lambda s=shard: self._sweep(s, report))  # type: ignore[misc]
        self._with_store(report, shards, self._push)
        now = self._monotonic()
        if prune or (prune is None and now - self._pruned_at >= self.prune_every):
            everything = bool(prune) or now - self._pruned_all_at >= 12 * self.prune_every
            self._pruned_at = now
            if everything:
                self._pruned_all_at = now
            self._with_store(report, shards, lambda s, r: self._prune(s, everything, r))
        due = [s for s in shards if now - self._reconciled.get(s, float("-inf")) >= self.reconcile_every]
        if reconcile or (reconcile is None and due):
            self._with_store(report, shards if reconcile else due, self._reconcile)
        if reconcile or (reconcile is None and now - self._forgot_at >= FORGET_EVERY):
            self._forgot_at = now
            self._forget(report, shards)
        self._count_conflicts()
        self.totals.update(report.figures())
        return report

    def _take_shards(self) -> list[int]:
        """The shards of this turn. Each turn begins with another, so that none is always the last to get its share."""
        owned = (self._ownership or Everything(self.sysdb.shards)).shards()
        for shard in self._owned - owned.keys():
            self.heap.disown(shard)
        self._owned = set(owned)
        for shard, epoch in owned.items():
            if epoch and self.heap.writer(shard).epoch != epoch:
                self.heap.own(shard, epoch)
        order = sorted(owned)
        first = self.turns % len(order) if order else 0
        return order[first:] + order[:first]

    def _with_store(self, report: TurnReport, shards: Sequence[int], work: Callable[[int, TurnReport], None]) -> None:
        """One step of each shard, until the store has cost this turn its patience; the next begins elsewhere."""
        for shard in shards:
            if report.lost_seconds >= STORE_PATIENCE:
                return
            self._guarded(report, shard, lambda s=shard: work(s, report))  # type: ignore[misc]

    def _count_conflicts(self) -> None:
        conflicts = self.heap.io.requests["conflict"]
        if conflicts != self._conflicts:
            tending.count_conflicts(self.sysdb, conflicts - self._conflicts)
            self._conflicts = conflicts

    # the steps of a turn

    def _sweep(self, shard: int, report: TurnReport) -> None:
        after: UUID | None = None
        while True:
            markers = self.sysdb.read(outbox.read_dirty, shard, after, PAGE)
            if markers:
                report.swept += self._sweep_page(markers, report)
            if len(markers) < PAGE:
                return
            after = markers[-1].partition

    def _sweep_page(self, markers: Sequence[Dirty], report: TurnReport) -> int:
        try:
            return tending.sweep(self.sysdb, markers)
        except RecordError:
            # One partition's row can't be read: it keeps its marker, and must not keep the others from being swept.
            changed = 0
            for marker in markers:
                try:
                    changed += tending.sweep(self.sysdb, [marker])
                except RecordError as error:
                    self._note(report, f"partition {marker.partition} has a row that can't be read: {error}")
            return changed

    def _push(self, shard: int, report: TurnReport) -> None:
        after: UUID | None = None
        while True:
            intents = self.sysdb.read(outbox.read_intents, shard, after, PAGE)
            if intents:
                self.push(shard, intents, report)
            if len(intents) < PAGE:
                return
            after = intents[-1].item.task

    def push(self, shard: int, intents: Sequence[Intent], report: TurnReport) -> None:
        """B2 → B1 for the intents of a shard: write, then clear exactly what was read."""
        verdicts = self.sysdb.verdicts([intent.item for intent in intents])
        # An intent of a task of which nothing is known is a deleted task's that was forgotten: as done as any.
        wanted = [i for i, verdict in zip(intents, verdicts, strict=True) if verdict is outbox.Verdict.LIVE]
        done = [i for i, verdict in zip(intents, verdicts, strict=True) if verdict is not outbox.Verdict.LIVE]
        pushed: list[tuple[Intent, int]] = []
        if wanted:
            placed = self.heap.push([intent.item for intent in wanted])
            pushed = [(intent, placed[intent.item]) for intent in wanted]
        # What is done for ever needs no place on the heap, so no boundary can hold its intent back.
        report.late += tending.clear_intents(self.sysdb, shard, [*pushed, *((intent, 2**62) for intent in done)])
        report.pushed += len(wanted)

    def _prune(self, shard: int, everything: bool, report: TurnReport) -> None:
        report.pruned += self.heap.prune(shards=[shard], past_only=not everything)
        self._quarantine(shard, report)

    def _quarantine(self, shard: int, report: TurnReport) -> None:
        for key, reason in list(self.heap.corrupt.items()):
            if not key.startswith(shard_prefix(shard)):
                continue
            moved_to = self.heap.quarantine(key, reason)
            if moved_to is not None:
                self._note(report, f"moved {key} to {moved_to}: {reason}")
                self._reconciled.pop(shard, None)

    def _reconcile(self, shard: int, report: TurnReport) -> None:
        report.reconciled += reconcile_shard(self.heap, self.sysdb, shard)
        self._reconciled[shard] = self._monotonic()

    def _forget(self, report: TurnReport, shards: Sequence[int]) -> None:
        """A1 and A2 end: drop tombstones that are old enough and of whose task a look at the whole shard finds nothing.

        The tombstones are read first: what could still have been pushed when a task was deleted is long on the heap.
        """
        old: dict[int, list[Tombstone]] = {shard: [] for shard in shards}
        limit = self.sysdb.now_micro() - int(self.keep_tombstones * MICROSECONDS)
        after: UUID | None = None
        while page := self.sysdb.read(outbox.read_tombstones, after, PAGE):
            for tombstone in page:
                shard = self.sysdb.layout.shard_of(tombstone.task)
                if tombstone.deleted <= limit and shard in old:
                    old[shard].append(tombstone)
            after = page[-1].task

        def forget(shard: int, report: TurnReport) -> None:
            there = {record[16:32] for content in self.heap.scan(shards=[shard]) for record in content.records}
            if any(key.startswith(shard_prefix(shard)) for key in self.heap.unreadable):
                return  # nobody knows what is in there
            gone = [tombstone for tombstone in old[shard] if tombstone.task.bytes not in there]
            tending.forget(self.sysdb, gone)
            report.forgotten += len(gone)

        self._with_store(report, [shard for shard in shards if old[shard]], forget)

    def _guarded(self, report: TurnReport, shard: int, work: Callable[[], None]) -> None:
        """Run one shard's work; its faults are its own, and every other shard goes on."""
        began = self._monotonic()
        try:
            work()
        except DuplicateWriterError as error:
            self._note(report, str(error))
            report.store_failed = True
            self.heap.disown(shard)
            if self._ownership is not None:
                self._ownership.step_down(shard)
        except (HeapTenderError, RecordError, NewerFormatError) as error:
            self._note(report, str(error))
            if isinstance(error, StoreError):
                report.store_failed = True
                report.lost_seconds += self._monotonic() - began
            self.heap.writer(shard).forget_all()

    def _note(self, report: TurnReport, message: str) -> None:
        """Report it; what goes on turn after turn is logged once a minute."""
        report.errors.append(message)
        now = self._monotonic()
        if now - self._noted.get(message, float("-inf")) >= REPEAT_LOG_SECONDS:
            if len(self._noted) >= 1000:
                self._noted.clear()
            self._noted[message] = now
            log.warning("%s", message)


def reconcile_shard(heap: Heap, sysdb: SysDb, shard: int, *, dry_run: bool = False) -> int:
    """Ask for a push of every item of a shard that the sysdb needs and the heap lacks; returns how many.

    Rows and intents are read first: an item without an intent was on the heap before, so a later look must find it.
    """
    needed: list[HeapItem] = []
    after: UUID | None = None
    while True:
        tasks = sysdb.read(outbox.active_tasks, shard, after, PAGE)
        needed.extend(sysdb.read(_without_intent, tasks))
        if len(tasks) < PAGE:
            break
        after = tasks[-1]
    if not needed:
        return 0
    there = {record for content in heap.scan(shards=[shard]) for record in content.records}
    missing = [item for item in needed if item.pack() not in there]
    if dry_run or not missing:
        return len(missing)
    return tending.reconcile(sysdb, missing)


def _without_intent(tr: object, at: Layout, tasks: Sequence[UUID]) -> list[HeapItem]:
    rows = outbox.read_rows(tr, at, tasks)
    intents = outbox.pending_intents(tr, at, tasks)
    return [
        item_of(task, row)
        for task, row, intent in zip(tasks, rows, intents, strict=True)
        if row is not None and row.state is not State.WAITING and not intent
    ]
