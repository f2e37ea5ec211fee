"""A shard's faults are its own: they are reported and waited out, and every other shard goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from fdb_schema import NewerFormatError, RecordError
from s3heap_tender.errors import DuplicateWriterError, HeapTenderError, StoreError, is_waited_out
from s3heap_tender.heap import Heap
from s3heap_tender.upkeep.reports import TurnReport

log = logging.getLogger("s3heap_tender.tender")
STORE_PATIENCE: Final = 20.0
REPEAT_LOG_SECONDS: Final = 60.0


class Guard:
    """Runs the work of shards. `step_down` leaves a shard to the other process that was found to write it."""

    def __init__(self, heap: Heap, step_down: Callable[[int], None], monotonic: Callable[[], float]) -> None:
        self._heap = heap
        self._step_down = step_down
        self._monotonic = monotonic
        self._noted: dict[str, float] = {}

    def each(self, report: TurnReport, shards: Sequence[int], work: Callable[[int, TurnReport], None]) -> None:
        """One step of each shard, until the store has cost this turn its patience; the next begins elsewhere."""
        for shard in shards:
            if report.lost_seconds >= STORE_PATIENCE:
                return
            self.run(report, shard, lambda s=shard: work(s, report))  # type: ignore[misc]

    def run(self, report: TurnReport, shard: int, work: Callable[[], None]) -> None:
        """Run one shard's work; its faults are its own, and every other shard goes on."""
        began = self._monotonic()
        try:
            work()
        except DuplicateWriterError as error:
            self.note(report, str(error))
            report.store_failed = True
            self._step_down(shard)
        except (HeapTenderError, RecordError, NewerFormatError) as error:
            self.note(report, str(error))
            if isinstance(error, StoreError):
                report.store_failed = True
                report.lost_seconds += self._monotonic() - began
            self._heap.writer(shard).forget_all()
        except Exception as error:
            if is_waited_out(error):
                raise
            log.exception("shard %d: a defect", shard)
            report.errors.append(f"shard {shard}: {type(error).__name__}: {error}")

    def note(self, report: TurnReport, message: str) -> None:
        """Report it; what goes on turn after turn is logged once a minute."""
        report.errors.append(message)
        now = self._monotonic()
        if now - self._noted.get(message, float("-inf")) >= REPEAT_LOG_SECONDS:
            if len(self._noted) >= 1000:
                self._noted.clear()
            self._noted[message] = now
            log.warning("%s", message)
