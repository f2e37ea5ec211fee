"""The composed pipeline on real input: whatever service is killed whenever, every write causes its run."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import pytest

from mainspring.demo.pipeline import PipelineSettings, run_pipeline
from mainspring.demo.pipeline_work import Covered, chain

STDLIB = Path(sysconfig.get_paths()["stdlib"])
RUNS = int(os.environ.get("MAINSPRING_PIPELINE_RUNS", "2"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(RUNS))
def test_every_write_causes_its_run_though_every_service_is_killed(seed: int) -> None:
    settings = PipelineSettings(
        STDLIB / "email", partitions=4, records=80, cadence=0.5, seconds=6.0, kill_every=1.1, seed=seed
    )
    outcome = run_pipeline(settings)
    assert outcome.problems == []
    assert set(outcome.kills) == {"worker-1", "worker-2", "tender", "scheduler", "janitor"}
    assert outcome.records == len(list((STDLIB / "email").rglob("*.py")))
    assert 4 <= outcome.runs <= outcome.starts


def covered(begin: int, end: int, gen: int = 1, attempt: int = 0) -> Covered:
    return Covered(begin, end, gen, attempt, 1, 1, 1, 0)


@pytest.mark.parametrize(
    ("runs", "end", "found"),
    [
        ([], 0, []),
        ([(0, 3), (3, 5)], 5, [(0, 3), (3, 5)]),
        ([(0, 2), (0, 3), (3, 5)], 5, [(0, 3), (3, 5)]),  # an attempt that was given up is left out
        ([(0, 3), (4, 5)], 5, None),
        ([(0, 3), (2, 5)], 5, None),
        ([(0, 3)], 5, None),
    ],
)
def test_a_chain_has_neither_gap_nor_overlap(
    runs: list[tuple[int, int]], end: int, found: list[tuple[int, int]] | None
) -> None:
    chained = chain([covered(*one) for one in runs], end)
    assert (None if chained is None else [(one.begin, one.end) for one in chained]) == found
