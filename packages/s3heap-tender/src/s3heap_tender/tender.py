"""Tender: makes the heap follow the sysdb. Sweeps dirty partitions, pushes intents, prunes, reconciles."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from uuid import UUID

from fdb_schema import NewerFormatError, RecordError
from s3heap_tender.claims import index, outbox, tending
from s3heap_tender.errors import DuplicateWriterError, HeapTenderError, StoreError, is_waited_out
from s3heap_tender.heap import Heap
from s3heap_tender.objects.contents import MOST_UNANSWERED
from s3heap_tender.objects.heap_values import PruneStats
from s3heap_tender.rows.items import HeapItem
from s3heap_tender.rows.layout import Layout
from s3heap_tender.rows.naming import shard_prefix
from s3heap_tender.rows.records import MICROSECONDS, Dirty, Intent, TaskRow, Tombstone, item_of
from s3heap_tender.rows.states import State
from s3heap_tender.runs.bells import Bells
from s3heap_tender.runs.ownership import Everything, Ownership, leased_ownership
from s3heap_tender.sysdb import SysDb

log = logging.getLogger("s3heap_tender.tender")
PAGE: Final = 500
STORE_PATIENCE: Final = 20.0
FORGET_EVERY: Final = 3600.0
KEEP_TOMBSTONES: Final = 7 * 86_400.0
REPEAT_LOG_SECONDS: Final = 60.0
IDLE_SECONDS: Final = 5.0
STOP_SECONDS: Final = 0.2
PUSHERS: Final = 8
OVERDUE_MS: Final = 30_000
UNSETTLED_SECONDS: Final = 60.0
POISONED_SECONDS: Final = 5.0
MOST_POISONED: Final = 10_000


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
        self._now = 0  # cluster clock of the last look, µs
        self._looked: dict[int, index.ShardLook] = {}
        self._prune_at: dict[int, float] = {}  # no sooner
        self._overdue_wait: dict[int, float] = {}
        self._push_after: dict[int, UUID] = {}  # where the next round of a shard's pushes begins, if not at its first
        self._ownership_lock = threading.Lock()
        self._totals_lock = threading.Lock()
        self._reconciled: dict[int, float] = {}
        self._thorough: set[int] = set()  # shards whose next pruning lists all that is past
        self._forgot_at = float("-inf")
        self._owned: set[int] = set()
        self._noted: dict[str, float] = {}
        self._poisoned: dict[Dirty, float] = {}  # markers of partitions with a row that can't be read → last look
        self._conflicts = 0
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
        dirty = [shard for shard in shards if self._looked[shard].dirty]
        for shard in dirty:
            self._guarded(report, shard, lambda s=shard: self._sweep(s, report))  # type: ignore[misc]
        if report.swept:
            self._look(shards)
        pending = [shard for shard in shards if self._looked[shard].intents]
        if pending:
            self._side_by_side(report, shards)
        report.idle = not (report.swept or report.pushed or report.late or report.store_failed)
        self._house(report, shards, prune, reconcile)
        self._count_conflicts()
        with self._totals_lock:
            self.totals.update(report.figures())
        return report

    def _look(self, shards: Sequence[int]) -> None:
        self._now, self._looked = self.sysdb.read(partial(index.look, runs=False), shards)

    def _side_by_side(self, report: TurnReport, shards: Sequence[int]) -> None:
        """The pushes of all shards: each waits for the store, so they go out together where the heap has threads."""
        if self.heap.serial or len(shards) < 2:
            self._with_store(report, shards, self._push)
            return
        parts = [TurnReport() for _ in shards]
        with ThreadPoolExecutor(min(PUSHERS, len(shards)), thread_name_prefix="s3heap-push") as pool:
            done = [
                pool.submit(self._with_store, part, [shard], self._push)
                for part, shard in zip(parts, shards, strict=True)
            ]
        for part in parts:
            report.add(part)
        for future in done:
            future.result()

    # pruning and reconciling

    def _house(self, report: TurnReport, shards: Sequence[int], prune: bool | None, reconcile: bool | None) -> None:
        now = self._monotonic()
        if prune:
            self._with_store(report, shards, self._prune)
        elif prune is None:
            self._with_store(report, self._prunable(shards), self._prune_done)
        due = self._to_reconcile(shards) if reconcile is None else shards if reconcile else []
        if due:
            self._with_store(report, due, self._reconcile)
        if reconcile or (reconcile is None and now - self._forgot_at >= FORGET_EVERY):
            self._forgot_at = now
            self._forget(report, shards)

    def _prunable(self, shards: Sequence[int]) -> list[int]:
        """Shards with done items in buckets that are past, or with objects to be moved aside."""
        now = self._monotonic()
        bucket = self.heap.bucket_of(self._now // 1_000_000) * 1000
        corrupt = list(self.heap.corrupt)
        found = []
        for shard in shards:
            done = self._looked[shard].done if shard in self._looked else None
            damaged = any(key.startswith(shard_prefix(shard)) for key in corrupt)
            if (damaged or (done is not None and done < bucket)) and now >= self._prune_at.get(shard, now):
                found.append(shard)
        return found

    def _to_reconcile(self, shards: Sequence[int]) -> list[int]:
        """Shards whose time has come, or where something has been due for so long that the heap may lack it."""
        now = self._monotonic()
        found = []
        for shard in shards:
            since = now - self._reconciled.get(shard, float("-inf"))
            due = self._looked[shard].due if shard in self._looked else None
            if due is None or due > self._now // 1000 - OVERDUE_MS or self._looked[shard].intents:
                self._overdue_wait.pop(shard, None)
                wait = self.reconcile_every
            else:
                wait = min(self.reconcile_every, self._overdue_wait.get(shard, OVERDUE_MS / 1000))
            if since >= wait:
                if wait < self.reconcile_every:
                    self._overdue_wait[shard] = wait * 2
                found.append(shard)
        return found

    def _housekeeping_due(self) -> bool:
        shards = sorted(self._owned)
        return bool(
            self._prunable(shards)
            or self._to_reconcile_now(shards)
            or self._monotonic() - self._forgot_at >= FORGET_EVERY
        )

    def _to_reconcile_now(self, shards: Sequence[int]) -> bool:
        kept = dict(self._overdue_wait)
        try:
            return bool(self._to_reconcile(shards))
        finally:
            self._overdue_wait = kept

    def _keep_house(self) -> None:
        """Beside the turns of `run`: a write waits for none of this."""
        report = TurnReport()
        try:
            self._house(report, sorted(self._owned), None, None)
        except Exception as error:
            if not is_waited_out(error):
                log.exception("housekeeping failed and will be repeated")
            else:
                log.warning("housekeeping failed and will be repeated: %s", error)
            self._prune_at.update(dict.fromkeys(self._owned, self._monotonic() + self.prune_every))
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
        now = self._monotonic()
        # What can't be read keeps its partition's marker. It is looked at again in a while, or after the next write.
        markers = [m for m in markers if now - self._poisoned.get(m, float("-inf")) >= POISONED_SECONDS]
        changed, unreadable = tending.sweep(self.sysdb, markers)
        if len(self._poisoned) >= MOST_POISONED:
            self._poisoned.clear()
        for task, marker in unreadable.items():
            self._poisoned[marker] = now
            self._note(report, f"task {task} of partition {marker.partition} has a row that can't be read")
        return changed

    def _push(self, shard: int, report: TurnReport) -> None:
        if shard in self._looked and not self._looked[shard].intents:
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
            self._note(report, str(fault))
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
                self._note(report, f"task {intent.item.task} has a row that can't be read: it is not pushed")
            else:
                (wanted if verdict is outbox.Verdict.LIVE else done).append(intent)
        placed, faults = self.heap.place([intent.item for intent in wanted])
        pushed = [(intent, placed[intent.item]) for intent in wanted if intent.item in placed]
        # What is done for ever needs no place on the heap, so no boundary can hold its intent back.
        report.late += tending.clear_intents(self.sysdb, shard, [*pushed, *((intent, 2**62) for intent in done)])
        report.pushed += len(pushed)
        return faults

    def _prune(self, shard: int, report: TurnReport) -> None:
        """Judge every item of the shard."""
        report.pruned += self.heap.prune(shards=[shard])
        self._quarantine(shard, report)

    def _prune_done(self, shard: int, report: TurnReport) -> None:
        """Remove what the sysdb notes as done."""
        # What could not be settled, as in an object that can't be read, is not looked for at every turn.
        self._prune_at[shard] = self._monotonic() + UNSETTLED_SECONDS
        stats, settled = self.heap.prune_done(shard, thorough=shard in self._thorough)
        self._thorough.discard(shard)
        report.pruned += stats
        if settled:
            self._prune_at[shard] = self._monotonic() + self.prune_every
        self._quarantine(shard, report)

    def _quarantine(self, shard: int, report: TurnReport) -> None:
        for key, reason in list(self.heap.corrupt.items()):
            if not key.startswith(shard_prefix(shard)):
                continue
            moved_to = self.heap.quarantine(key, reason)
            if moved_to is not None:
                self._note(report, f"{f'moved {key} to {moved_to}' if moved_to else f'removed {key}'}: {reason}")
                self._reconciled.pop(shard, None)

    def _reconcile(self, shard: int, report: TurnReport) -> None:
        first = shard not in self._reconciled
        # All shards are compared at the start, and then each at a time of its own: no minute costs more than another.
        early = shard / self.heap.shards * self.reconcile_every if first else 0.0
        self._reconciled[shard] = self._monotonic() - early
        self._thorough.add(shard)
        tending.reindex(self.sysdb, shard)
        report.reconciled += reconcile_shard(self.heap, self.sysdb, shard)

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
            with self._ownership_lock:
                if self._ownership is not None:
                    self._ownership.step_down(shard)
        except (HeapTenderError, RecordError, NewerFormatError) as error:
            self._note(report, str(error))
            if isinstance(error, StoreError):
                report.store_failed = True
                report.lost_seconds += self._monotonic() - began
            self.heap.writer(shard).forget_all()
        except Exception as error:
            if is_waited_out(error):
                raise
            log.exception("shard %d: a defect", shard)
            report.errors.append(f"shard {shard}: {type(error).__name__}: {error}")

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
    One that lies in another bucket than it was pushed to is as good as none: whoever may write to the store put it there.
    """
    needed: list[HeapItem] = []
    after: UUID | None = None
    while True:
        items, after = sysdb.read(_without_intent, shard, after)
        needed.extend(items)
        if after is None:
            break
    if not needed:
        return 0
    found: dict[bytes, set[int]] = {}  # item → the buckets that it lies in
    wanted = {item.pack() for item in needed}
    for content in heap.scan(shards=[shard]):
        for record in wanted.intersection(content.records):
            found.setdefault(record, set()).add(content.name.bucket)
    current = heap.bucket_of(sysdb.now_micro() // MICROSECONDS)
    missing = [item for item in needed if not _in_place(heap, item, found.get(item.pack(), ()), current)]
    if dry_run or not missing:
        return len(missing)
    return tending.reconcile(sysdb, missing)


def _in_place(heap: Heap, item: HeapItem, buckets: Iterable[int], current: int) -> bool:
    """Whether a scheduler finds an item that lies in these buckets: from that of its due time on, and not in the future."""
    due = heap.bucket_of(item.due_ms // 1000)
    return any(due <= bucket <= max(due, current) for bucket in buckets)


def _without_intent(tr: object, at: Layout, shard: int, after: UUID | None) -> tuple[list[HeapItem], UUID | None]:
    """A page of the items that are on the heap or missing there, and the task to go on after."""
    tasks = outbox.active_tasks(tr, at, shard, after, PAGE)
    rows = outbox.read_rows(tr, at, tasks)
    intents = outbox.pending_intents(tr, at, tasks)
    found = [
        item_of(task, row)
        for task, row, intent in zip(tasks, rows, intents, strict=True)
        if isinstance(row, TaskRow) and row.state is not State.WAITING and not intent
    ]
    return found, tasks[-1] if len(tasks) == PAGE else None
