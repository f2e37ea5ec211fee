"""What a sample says beside the counts."""

from __future__ import annotations

from typing import Any

import fdb_datamodel as dm
from fdb_datamodel import FutureSpec, actors
from mainspring_dashboard import Cluster
from mainspring_dashboard.sampling.sampler import Sampler


def test_actors_among_the_claimed_are_told_apart_for_they_take_no_slots(cluster: Cluster, lab: Any) -> None:
    up = lab(actors.create_actor, FutureSpec(code=b"x", name="actor Tally"), "")
    lab(actors.create_actor, FutureSpec(code=b"x", name="actor Cache"), "")
    for one in (up, lab.submit(name="resize")):
        lab(dm.claim_future, one, lab.worker)
    sampler = Sampler(cluster)
    assert sampler.tick().counts["claimed"] == 2
    assert sampler.snapshot()["actors"] == 1
