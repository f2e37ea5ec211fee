"""Seeded clusters whose processes crash at every failpoint: G1 to G4 hold, and the heap drains to nothing."""

from __future__ import annotations

import sys
import uuid
from dataclasses import replace
from typing import Any

import pytest
from conftest import seed_params

import fdb_embedded
from fdb_schema import open_database
from s3heap_tender.rows import core

DATABASE_FAULTS = {
    "not_committed": 0.05,
    "too_old": 0.02,
    "unknown_before": 0.05,
    "unknown_after": 0.05,
    "unknown_late": 0.03,
    "timed_out_late": 0.02,
    "version_jump": 0.01,
}


def new_world(seed: int, faults: fdb_embedded.Faults | None = None) -> Any:
    world = sys.modules["s3heap_tender_tests_world"]
    virtual = sys.modules["s3heap_tender_tests_virtual"]
    name = f"memory:world-{uuid.uuid4().hex}"
    made = world.World(open_database(name), virtual.VirtualClock, seed)
    if faults is not None:
        made.faulty_db = fdb_embedded.open(name, faults=faults)
    return made


@pytest.mark.parametrize("seed", seed_params(240))
def test_a_seed_of_crashes_anywhere_keeps_every_guarantee(seed: int) -> None:
    world = new_world(seed)
    world.run(
        40,
        nest=(0.0, 0.05, 0.15)[seed % 3],
        store_faults=(0.0, 0.1, 0.3)[seed // 3 % 3],
        failures=(0.0, 0.3)[seed // 9 % 2],
    )


@pytest.mark.parametrize("seed", seed_params(60))
def test_a_seed_of_unknown_commits_and_crashes_keeps_every_guarantee(seed: int) -> None:
    world = new_world(seed, fdb_embedded.Faults(seed=seed, **DATABASE_FAULTS))
    world.run(25, nest=(0.0, 0.1)[seed % 2], store_faults=(0.0, 0.2)[seed // 2 % 2], failures=0.2)


def test_a_retake_that_would_cover_what_its_run_never_read_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    claimed = core.claimed
    monkeypatch.setattr(
        core, "claimed", lambda row, by, tail, now: replace(claimed(row, by, tail, now), claim_tail=tail)
    )
    seen: list[str] = []
    for seed in range(70, 240):
        world = new_world(seed)
        try:
            world.run(40, nest=0.15, store_faults=0.0, failures=0.0)
        except AssertionError as found:
            seen.append(str(found))
            break
    assert any("G2" in found for found in seen), seen
