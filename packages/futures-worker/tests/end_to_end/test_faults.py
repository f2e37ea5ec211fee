"""Real processes, each with faults of its own in every commit, and a kill midway: the answers are right all the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from conftest import seed_params

import fdb_embedded
from fdb_datamodel import validate
from fdb_schema import open_database
from futures_worker import Client

WAIT = 120.0
RATES = {"not_committed": 0.05, "unknown_before": 0.05, "unknown_after": 0.05, "unknown_late": 0.03, "too_old": 0.02}


@pytest.mark.embedded_only("it injects faults into the engine")
@pytest.mark.parametrize("seed", seed_params(3, fresh=1))
def test_seeded_faults_in_every_process(cluster: Callable[..., Any], seed: int) -> None:
    rng = random.Random(seed)
    demo = cluster(workers=0)
    for number in range(2):
        text = ",".join(f"{name}={rate}" for name, rate in {"seed": seed * 10 + number, **RATES}.items())
        demo.start("--slots", "2", env={"MAINSPRING_FAULTS": text})
    path = demo.url.removeprefix("embedded:")
    db = fdb_embedded.open(path, faults=fdb_embedded.Faults(seed=seed, **RATES))
    with Client(db, demo.name) as client:
        leaves = client.map(abs, range(-60, 0), max_worker_losses=10)
        layer = leaves
        while len(layer) > 1:
            pairs = [layer[i : i + 2] for i in range(0, len(layer), 2)]
            layer = [client.submit(sum, pair, max_worker_losses=10) for pair in pairs]
        leaves[rng.randrange(60)].result(WAIT)
        demo.workers[rng.randrange(2)].kill()
        assert layer[0].result(WAIT) == sum(range(1, 61))
        assert client.gather(leaves, timeout=WAIT, progress=False) == list(range(60, 0, -1))
    assert validate(open_database(demo.url), demo.name) == []
