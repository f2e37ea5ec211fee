"""Seeded clusters whose processes crash at every failpoint: G1 to G4 hold, and the heap drains to nothing."""

from __future__ import annotations

import sys
import uuid
from typing import Any

import pytest
from conftest import seed_params

from fdb_schema import open_database


def new_world(seed: int) -> Any:
    world = sys.modules["s3heap_tender_tests_world"]
    virtual = sys.modules["s3heap_tender_tests_virtual"]
    return world.World(open_database(f"memory:world-{uuid.uuid4().hex}"), virtual.VirtualClock, seed)


@pytest.mark.parametrize("seed", seed_params(240))
def test_a_cluster_that_crashes_anywhere_keeps_every_guarantee(seed: int) -> None:
    world = new_world(seed)
    world.run(
        40,
        nest=(0.0, 0.05, 0.15)[seed % 3],
        store_faults=(0.0, 0.1, 0.3)[seed // 3 % 3],
        failures=(0.0, 0.3)[seed // 9 % 2],
    )
