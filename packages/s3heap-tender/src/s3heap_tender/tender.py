"""Tender: makes the heap follow the sysdb. Sweeps dirty partitions, pushes intents, prunes, reconciles."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final
from uuid import UUID

from s3heap_tender.claims import index, outbox, tending
from s3heap_tender.errors import is_waited_out
from s3heap_tender.heap import Heap
from s3heap_tender.objects.contents import MOST_UNANSWERED
from s3heap_tender.rows.records import Dirty, Intent
from s3heap_tender.runs.bells import Bells
from s3heap_tender.runs.ownership import Everything, Ownership, leased_ownership
from s3heap_tender.sysdb import SysDb
from s3heap_tender.upkeep.guarding import Guard
from s3heap_tender.upkeep.housekeeping import Housekeeping, Look
from s3heap_tender.upkeep.reports import TurnReport

log = logging.getLogger("s3heap_tender.tender")
PAGE: Final = 500
KEEP_TOMBSTONES: Final = 7 * 86_400.0
IDLE_SECONDS: Final = 5.0
STOP_SECONDS: Final = 0.2
PUSHERS: Final = 8
POISONED_SECONDS: Final = 5.0
MOST_POISONED: Final = 10_000


class Tender:
    """Runs the heap's side of the protocol for the shards it owns.

    Correct with any number of tenders and with none of the leases held: those only keep two from doing the same work.

    Args:
        ownership: which shards are this process's; by default leases of lease-locks, taken when `run` starts.
        poll: seconds between turns of `run` that find something; idle_poll: the most between turns that find nothing.
        prune_every: the least seconds between prunings of a shard.
        reconcile_every: seconds between comparisons of heap and sysdb; a shard with something long overdue is compared
            sooner.
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
        reconcile_every: float = 3600.0,
        idle_poll: float = IDLE_SECONDS,
        keep_tombstones: float = KEEP_TOMBSTONES,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if heap.sysdb.id != sysdb.id:
            raise ValueError(f"the heap at {heap.store.url} is of another sysdb ({heap.sysdb.id}, not {sysdb.id})")
        self.heap = heap
        self.sysdb = sysdb
        self.poll = poll
        self.idle_poll = idle_poll
        self.prune_every = prune_every
        self.reconcile_every = reconcile_every
        self.keep_tombstones = keep_tombstones
        self.turns = 0
        self.totals: Counter[str] = Counter()  # of the figures of every turn
        self._ownership = ownership
        self._monotonic = monotonic
        self._rng = random.Random()
        self._seen = Look()
        self._push_after: dict[int, UUID] = {}  # where the next round of a shard's pushes begins, if not at its first
        self._ownership_lock = threading.Lock()
        self._totals_lock = threading.Lock()
        self._owned: set[int] = set()
        self._poisoned: dict[Dirty, float] = {}  # markers of partitions with a row that can't be read → last look
        self._conflicts = 0
        self._guard = Guard(heap, self._step_down, self._now)
        self._housekeeping = Housekeeping(heap, sysdb, self._guard, self._seen, self, self._now)
        self._stop = threading.Event()

    def run(self, stop: threading.Event | None = None) -> None:
        """Turn after turn until `stop` is set or `stop()` is called. Faults of store and database are waited out.

        Where there is nothing to do a turn waits for the bells of its shards; pruning and reconciling go on beside.
        """
        self._stop = stop or self._stop
        faults = 0
        bells = Bells(self.sysdb.db)
        beside = ThreadPoolExecutor(1, thread_name_prefix="s3heap-housekeeping")
        housekeeping: Future[None] | None = None
        try:
            while not self._stop.is_set():
                idle = False
                try:
                    if self._ownership is None:
                        self._ownership = leased_ownership(self.sysdb)
                    report = self.turn(prune=False, reconcile=False)
                    # What is poisoned is no reason for the sound rest to wait; a store that doesn't answer is.
                    faults = min(8, faults + 1) if report.store_failed else 0
                    idle = report.idle and not bells.arm(map(self.sysdb.layout.keys.bell, sorted(self._owned)))
                    if (housekeeping is None or housekeeping.done()) and self._housekeeping_due():
                        housekeeping = beside.submit(self._keep_house)
                except Exception as error:
                    if not is_waited_out(error):
                        raise
                    faults = min(8, faults + 1)
                    log.warning("the tender's turn failed and will be repeated: %s", error)
                delay = self.poll if not faults else min(5.0, self.poll * 2**faults)
                if idle and not faults:
                    self._rest(bells, max(delay, self.idle_poll))
                else:
                    self._wait(delay * self._rng.uniform(0.8, 1.2))
        finally:
            beside.shutdown(wait=True)
            bells.close()
            if self._ownership is not None:
                self._ownership.close()

    def _rest(self, bells: Bells, seconds: float) -> None:
        """Wait for a bell; the stop event is looked at meanwhile, and the poll is kept to where bells ring fast."""
        end = self._monotonic() + seconds * self._rng.uniform(0.8, 1.0)
        began = self._monotonic()
        while (rest := end - self._monotonic()) > 0 and not self._stop.is_set():
            if self._rang(bells, min(rest, STOP_SECONDS)):
                self._wait(max(0.0, began + self.poll - self._monotonic()))
                return

    def _rang(self, bells: Bells, seconds: float) -> bool:
        return bells.wait(seconds)

    def _wait(self, seconds: float) -> None:
        self._stop.wait(seconds)

    def _now(self) -> float:
        return self._monotonic()

    def stop(self) -> None:
        """Let `run` return after the turn under way."""
        self._stop.set()

    def turn(self, *, prune: bool | None = None, reconcile: bool | None = None) -> TurnReport:
        """One pass over the owned shards. `prune` and `reconcile` force or forbid what else time decides.

        Where nothing is to be done it costs two transactions, one of which moves the clock, and no request to the store.
        """
        report = TurnReport()
        self.turns += 1
        self.sysdb.tick()
        shards = self._take_shards()
        self._look(shards)
        dirty = [shard for shard in shards if self._seen.shards[shard].dirty]
        for shard in dirty:
            self._guard.run(report, shard, lambda s=shard: self._sweep(s, report))  # type: ignore[misc]
        if report.swept:
            self._look(shards)
        pending = [shard for shard in shards if self._seen.shards[shard].intents]
        if pending:
            self._side_by_side(report, shards)
        report.idle = not (report.swept or report.pushed or report.late or report.store_failed)
        self._housekeeping.keep(report, shards, prune, reconcile)
        self._count_conflicts()
        with self._totals_lock:
            self.totals.update(report.figures())
        return report

    def _look(self, shards: Sequence[int]) -> None:
        self._seen.now, self._seen.shards = self.sysdb.read(partial(index.look, runs=False), shards)

    def _side_by_side(self, report: TurnReport, shards: Sequence[int]) -> None:
        """The pushes of all shards: each waits for the store, so they go out together where the heap has threads."""
        if self.heap.serial or len(shards) < 2:
            self._guard.each(report, shards, self._push)
            return
        parts = [TurnReport() for _ in shards]
        with ThreadPoolExecutor(min(PUSHERS, len(shards)), thread_name_prefix="s3heap-push") as pool:
            done = [
                pool.submit(self._guard.each, part, [shard], self._push)
                for part, shard in zip(parts, shards, strict=True)
            ]
        for part in parts:
            report.add(part)
        for future in done:
            future.result()

    def _housekeeping_due(self) -> bool:
        return self._housekeeping.is_due(sorted(self._owned))

    def _keep_house(self) -> None:
        """Beside the turns of `run`: a write waits for none of this."""
        report = TurnReport()
        try:
            self._housekeeping.keep(report, sorted(self._owned), None, None)
        except Exception as error:
            if not is_waited_out(error):
                log.exception("housekeeping failed and will be repeated")
            else:
                log.warning("housekeeping failed and will be repeated: %s", error)
            self._housekeeping.put_off(self._owned)
        with self._totals_lock:
            self.totals.update(report.figures())

    def _take_shards(self) -> list[int]:
        """The shards of this turn. Each turn begins with another, so that none is always the last to get its share."""
        with self._ownership_lock:
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

    def _step_down(self, shard: int) -> None:
        """Another process writes the shard: leave it to that one."""
        self.heap.disown(shard)
        with self._ownership_lock:
            if self._ownership is not None:
                self._ownership.step_down(shard)

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
        now = self._monotonic()
        # What can't be read keeps its partition's marker. It is looked at again in a while, or after the next write.
        markers = [m for m in markers if now - self._poisoned.get(m, float("-inf")) >= POISONED_SECONDS]
        changed, unreadable = tending.sweep(self.sysdb, markers)
        if len(self._poisoned) >= MOST_POISONED:
            self._poisoned.clear()
        for task, marker in unreadable.items():
            self._poisoned[marker] = now
            self._guard.note(report, f"task {task} of partition {marker.partition} has a row that can't be read")
        return changed

    def _push(self, shard: int, report: TurnReport) -> None:
        if shard in self._seen.shards and not self._seen.shards[shard].intents:
            return
        after = self._push_after.pop(shard, None)
        from_the_first = after is None
        faults: list[Exception] = []
        while True:
            intents = self.sysdb.read(outbox.read_intents, shard, after, PAGE)
            if intents:
                faults += self.push(shard, intents, report)
            more = len(intents) == PAGE
            after = intents[-1].item.task if more else None
            if len(faults) >= MOST_UNANSWERED:
                if after is not None:
                    self._push_after[shard] = after  # what a few bad objects hold up is no reason to leave the rest
                break
            if not more and from_the_first:
                break
            from_the_first = from_the_first or not more
        for fault in faults[1:]:
            self._guard.note(report, str(fault))
        if faults:
            raise faults[0]

    def push(self, shard: int, intents: Sequence[Intent], report: TurnReport) -> list[Exception]:
        """B2 → B1 for the intents of a shard: write, then clear exactly what was read. Returns why some did not land."""
        verdicts = self.sysdb.verdicts([intent.item for intent in intents])
        # An intent of a task of which nothing is known is a deleted task's that was forgotten: as done as any.
        wanted: list[Intent] = []
        done: list[Intent] = []
        for intent, verdict in zip(intents, verdicts, strict=True):
            if verdict is outbox.Verdict.UNREADABLE:
                self._guard.note(report, f"task {intent.item.task} has a row that can't be read: it is not pushed")
            else:
                (wanted if verdict is outbox.Verdict.LIVE else done).append(intent)
        placed, faults = self.heap.place([intent.item for intent in wanted])
        pushed = [(intent, placed[intent.item]) for intent in wanted if intent.item in placed]
        # What is done for ever needs no place on the heap, so no boundary can hold its intent back.
        report.late += tending.clear_intents(self.sysdb, shard, [*pushed, *((intent, 2**62) for intent in done)])
        report.pushed += len(pushed)
        return faults
