"""Takes one sample a second: counts, rates, latencies, workers. The page's live part."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Final

from fdb_datamodel import Counted, FutureState
from mainspring_dashboard.lists.gathered import ACTOR, Datasets, Sessions
from mainspring_dashboard.lists.sorting import Sorted
from mainspring_dashboard.reading import Cluster
from mainspring_dashboard.sampling.census import Census, by_state
from mainspring_dashboard.sampling.functions import Paces, attempt_row
from mainspring_dashboard.sampling.history import FINE, History, Sample, quantile

BUDGET_SECONDS: Final = 0.25  # of each second, for counting
TIMELINE: Final = 2_000  # attempts in one answer
OF_WORKER: Final = 25  # attempts of one worker that run, and that ended
MOST_LOADS: Final = 200  # workers whose load over time is kept
FORGOTTEN_SECONDS: Final = 900.0
LOAD: Final = ("at", "cpu", "memory", "busy", "slots")


class Sampler:
    """Reads a cluster; `tick` blocks and is called from one thread at a time."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._census = Census(cluster.db, cluster.space)
        self._at = time.monotonic()
        self.kept = self._census.kept
        self.sorted = Sorted(self.kept)
        self.datasets = Datasets(self.kept)
        self.sessions = Sessions(cluster.db, cluster.space, cluster.locks, self.kept)
        self.history = History()
        self._paces = Paces()
        self.functions: list[dict[str, Any]] = []
        self._attempts: tuple[list[Counted], int] = ([], 0)  # that ended, as they were noticed, and how many ever were
        self._loads: dict[str, deque[tuple[Any, ...]]] = {}  # of workers, by address
        self._running: list[Counted] = []
        self._failed: list[bytes] = []
        self._actors = 0  # of the claimed futures: they take no slots
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
        at, counted = time.time(), self._census.functions
        self._paces.note([*self._census.take_earlier(), *ended], self._census.latest)
        self.functions = self._paces.rows(counted, self._census.latest, at)
        self._attempts = list(self._paces.attempts), self._paces.noted
        self._running = sorted(self._census.running.values(), key=lambda one: one.started_us)
        self._note_loads(at)
        self._failed = list(self._census.failed)
        self._actors = sum(
            number
            for (name, state), number in counted.items()
            if state is FutureState.claimed and name.startswith(ACTOR)
        )
        sample = summarize(at, elapsed, by_state(counted), ended, self.workers)
        self.history.add(sample)
        return sample

    @property
    def counting(self) -> bool:
        """Whether not all futures were seen yet."""
        return self._census.sweeps == 0

    @property
    def failed(self) -> list[bytes]:
        """Ids of the futures seen last to have failed."""
        return self._failed

    def timeline(self, after: int) -> dict[str, Any]:
        """What ran, for JSON: attempts noticed to have ended after number `after`, and those that run; the newest `TIMELINE` of each.

        next: what to give as `after` the next time; an end may be noticed late, so that times would not do.
        """
        attempts, noted = self._attempts
        new = min(noted - after if after <= noted else noted, len(attempts))
        return {
            "now": time.time(),
            "next": noted,
            "workers": [{"address": one["address"], "slots": one["slots"]} for one in self.workers],
            "ended": [attempt_row(one) for one in attempts[len(attempts) - min(new, TIMELINE) :]],
            "running": [attempt_row(one) for one in self._running[:TIMELINE]],
        }

    def worker(self, address: str) -> dict[str, Any]:
        """One worker, for JSON: how it is (None: it isn't there), its load over time, what it runs and ended last."""
        attempts, _ = self._attempts
        ended = [one for one in attempts if one.worker == address]
        return {
            "worker": next((one for one in self.workers if one["address"] == address), None),
            "history": [dict(zip(LOAD, load, strict=True)) for load in self._loads.get(address, ())],
            "running": [attempt_row(one) for one in self._running if one.worker == address][:OF_WORKER],
            "ended": [attempt_row(one) for one in ended[: -OF_WORKER - 1 : -1]],
        }

    def _note_loads(self, at: float) -> None:
        there = {one["address"]: one for one in self.workers[:MOST_LOADS]}
        for gone in [address for address in self._loads if address not in there]:
            if at - self._loads[gone][-1][0] > FORGOTTEN_SECONDS:
                del self._loads[gone]
        for address, one in there.items():
            busy = one["slots"] - one["free_slots"] if one["free_slots"] is not None else None
            load = (at, one["cpu_used"], one["memory_used"], busy, one["slots"])
            self._loads.setdefault(address, deque(maxlen=FINE)).append(load)

    def snapshot(self) -> dict[str, Any]:
        """The newest sample with what belongs to it, for the page."""
        last = self.history.last
        return {
            "cluster": self._cluster.name,
            "database": self._cluster.url,
            "sample": None if last is None else self.history.since(last.at - 1e-6)[-1],
            "counting": self.counting,
            "counted_ago": time.monotonic() - self._census.swept_at if self._census.sweeps else None,
            "workers": self.workers,
            "actors": self._actors,
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
