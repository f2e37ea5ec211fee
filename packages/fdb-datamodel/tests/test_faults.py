"""Whole runs on an engine that loses, doubles and delays commits: every transition is applied exactly once."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from conftest import seed_params
from datamodel_lab.lab import Lab

import fdb_datamodel as dm
import fdb_embedded
from fdb_datamodel import Capacity, Failure, Outcome

FAULTS = {
    "not_committed": 0.1,
    "too_old": 0.05,
    "unknown_before": 0.1,
    "unknown_after": 0.1,
    "unknown_late": 0.1,
    "timed_out_late": 0.05,
    "future_version": 0.05,
}


@pytest.mark.parametrize("seed", seed_params(200))
def test_every_start_and_every_end_counts_once(seed: int) -> None:
    rng = random.Random(seed)
    lab = Lab()
    healthy = lab.db
    lab.db = fdb_embedded.open("memory:datamodel-tests", faults=fdb_embedded.Faults(seed=seed, **FAULTS))
    workers = [lab.worker(1), lab.worker(2)]
    specs = []
    for _ in range(12):
        dependencies = tuple({rng.choice(specs).id for _ in range(rng.choice((0, 1, 2)))}) if specs else ()
        specs.append(lab.spec(dependencies=dependencies, max_retries=2))
    for start in range(0, 12, 3):
        lab.submit(*specs[start : start + 3])
    doomed = {spec.id: rng.choice((0, 0, 0, 1, 2)) for spec in specs}  # failures before it succeeds
    held: dict[int, list[dm.Claim]] = {0: [], 1: []}
    starts: Counter[bytes] = Counter()
    turns = 0
    while any(lab.state(spec.id) not in ("realized", "failed") for spec in specs):
        turns += 1
        assert turns < 200, [lab.info(spec.id).reason for spec in specs]
        which = rng.randrange(2)
        outcomes = []
        for claim in held[which]:
            if claim.attempt <= doomed[claim.id]:
                outcomes.append(Outcome.failed(claim, Failure("error", "as drawn")))
            else:
                outcomes.append(Outcome.realized(claim, bytes(claim.attempt)))
        stripe = (which, 2) if rng.random() < 0.5 else (0, 1)
        claims = lab(dm.finish_turn, workers[which], outcomes, Capacity(stripe=stripe), rng.choice((1, 3)))
        assert claims.stale == ()
        starts.update(claim.id for claim in claims)
        held[which] = list(claims)
    lab.db = healthy
    for spec in specs:
        info = lab.info(spec.id)
        assert info.state == "realized"
        assert info.attempts == starts[spec.id] == doomed[spec.id] + 1
    assert Counter(entry.id for entry in lab.mail()) == Counter(spec.id for spec in specs), "each is mailed once"
    assert lab.validate() == []
