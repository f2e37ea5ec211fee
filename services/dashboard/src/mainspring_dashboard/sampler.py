"""Takes one sample a second: counts, rates, latencies, workers. The page's live part."""

from __future__ import annotations

import time
from typing import Any, Final

from fdb_datamodel import Counted, FutureState
from mainspring_dashboard.census import Census
from mainspring_dashboard.history import History, Sample, quantile
from mainspring_dashboard.reading import Cluster

BUDGET_SECONDS: Final = 0.25  # of each second, for counting


class Sampler:
    """Reads a cluster; `tick` blocks and is called from one thread at a time."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._census = Census(cluster.db, cluster.space)
        self._at = time.monotonic()
        self.history = History()
        self.workers: list[dict[str, Any]] = []
        self.problem: str | None = None  # why the last tick failed

    def tick(self) -> Sample:
        """Look once; the sample is kept in `history`. Raises what reading raises."""
        try:
            self._census.advance(BUDGET_SECONDS)
            self.workers = self._cluster.workers()
        except BaseException:  # no sample tells of this moment: what ended in it isn't kept for a later one
            self._census.take_ended()
            self._at = time.monotonic()
            raise
        ended = self._census.take_ended()
        now = time.monotonic()
        elapsed, self._at = max(1e-3, now - self._at), now
        sample = summarize(time.time(), elapsed, self._census.counts, ended, self.workers)
        self.history.add(sample)
        return sample

    def snapshot(self) -> dict[str, Any]:
        """The newest sample with what belongs to it, for the page."""
        last = self.history.last
        return {
            "cluster": self._cluster.name,
            "database": self._cluster.url,
            "sample": None if last is None else self.history.since(last.at - 1e-6)[-1],
            "counting": self._census.sweeps == 0,
            "counted_ago": time.monotonic() - self._census.swept_at if self._census.sweeps else None,
            "workers": self.workers,
            "problem": self.problem,
        }


def summarize(
    at: float, elapsed: float, counts: dict[str, int], ended: list[Counted], workers: list[dict[str, Any]]
) -> Sample:
    """A sample from what was seen in `elapsed` seconds."""
    done = [one for one in ended if one.state is FutureState.realized]
    latencies = sorted((one.ended_us - one.submitted_us) / 1e6 for one in done if one.ended_us >= one.submitted_us)
    slots = sum(worker["slots"] for worker in workers)
    free = sum(worker["free_slots"] if worker["free_slots"] is not None else worker["slots"] for worker in workers)
    return Sample(
        at=at,
        counts=counts,
        finished=len(done) / elapsed,
        failed=(len(ended) - len(done)) / elapsed,
        p50=quantile(latencies, 0.5),
        p99=quantile(latencies, 0.99),
        workers=len(workers),
        slots=slots,
        busy=max(0, slots - free),
    )
