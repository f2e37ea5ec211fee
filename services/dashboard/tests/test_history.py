"""Samples thin out with age and never go back in time."""

from __future__ import annotations

import itertools

import pytest

from fdb_datamodel import Counted, FutureState
from mainspring_dashboard.heap import by_start
from mainspring_dashboard.sampling.history import COARSE_SECONDS, FINE, History, Sample, quantile
from mainspring_dashboard.sampling.sampler import summarize


def test_a_day_is_kept_fine_at_its_end_and_coarse_before() -> None:
    history = History()
    for second in range(3600):
        history.add(Sample(at=float(second)))
    kept = [sample["at"] for sample in history.since(-1.0)]
    assert kept == sorted(set(kept))
    assert kept[-FINE:] == [float(second) for second in range(3600 - FINE, 3600)]
    older = kept[:-FINE]
    assert older[0] == 0.0
    assert {b - a for a, b in itertools.pairwise(older)} == {COARSE_SECONDS}
    assert [sample["at"] for sample in history.since(3597.0)] == [3598.0, 3599.0]


@pytest.mark.parametrize(
    ("values", "q", "expected"),
    [
        ([], 0.5, None),
        ([3.0], 0.99, 3.0),
        ([1.0, 2.0, 3.0, 4.0], 0.5, 2.0),
        (list(map(float, range(1, 101))), 0.99, 99.0),
    ],
)
def test_quantile_is_the_nearest_rank(values: list[float], q: float, expected: float | None) -> None:
    assert quantile(values, q) == expected


def test_rates_and_latencies_are_of_what_ended_in_the_interval() -> None:
    ended = [
        Counted(b"a", FutureState.realized, 1_000_000, 1_500_000, 2_000_000),
        Counted(b"b", FutureState.realized, 1_000_000, 1_500_000, 4_000_000),
        Counted(b"c", FutureState.failed, 1_000_000, 1_500_000, 9_000_000),
    ]
    workers = [{"slots": 4, "free_slots": 1}, {"slots": 2, "free_slots": None}]
    sample = summarize(7.0, 0.5, {"realized": 2}, ended, workers)
    assert (sample.finished, sample.failed, sample.p50, sample.p99) == (4.0, 2.0, 1.0, 3.0)
    assert (sample.workers, sample.slots, sample.busy) == (2, 6, 3)


def test_buckets_of_one_start_are_one_row() -> None:
    rows = by_start([(100, 2, 50), (70, 1, 10), (100, 3, 20)], now=90.0)
    assert [(row["start"], row["in"], row["objects"], row["items"], row["bytes"]) for row in rows] == [
        (70, -20.0, 1, 1, 10),
        (100, 10.0, 2, 5, 70),
    ]
