"""Transitions of several workers and clients in random order, under faults, against the model, with validate() each time.

Twice: by Hypothesis, which shrinks what it finds, and by seeded generators, which run longer.
"""

from __future__ import annotations

import os
import random
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from fdb_schema import open_database

sys.path.append(str(Path(__file__).parent))

from conftest import seed_params
from datamodel_lab.drawing import Drawing
from datamodel_lab.world import MODES, World

EXAMPLES = int(os.environ.get("MAINSPRING_SEEDS") or 200)
STEPS = 45
_data = st.data()
_mode = st.sampled_from(MODES)
_pause = st.sampled_from((0.3, 1.5, 10.0))


def new_world() -> World:
    world = World(open_database("memory:transitions"), f"c-{uuid.uuid4().hex}")
    world.start_worker(1)
    world.start_worker(2)
    return world


class Transitions(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.world = new_world()
        self.drawing = Drawing(self.world, lambda label, options: self.data.draw(st.sampled_from(options), label=label))

    @rule(data=_data, mode=_mode)
    def one_operation(self, data: Any, mode: str) -> None:
        self.data = data
        self.world.execute(self.drawing.operation(), mode)
        self.world.check()

    @rule(data=_data, mode=_mode)
    def another_operation(self, data: Any, mode: str) -> None:
        self.one_operation(data, mode)

    @rule(data=_data)
    def two_at_once(self, data: Any) -> None:
        self.data = data
        self.world.interleave(self.drawing.operation(), self.drawing.operation())
        self.world.check()

    @rule(port=st.sampled_from((1, 2, 3)))
    def worker_starts(self, port: int) -> None:
        self.world.start_worker(port)
        self.world.reap("plain")
        self.world.check()

    @precondition(lambda self: self.world.workers)
    @rule(data=_data, mode=_mode, reaped=_mode)
    def worker_dies(self, data: Any, mode: str, reaped: str) -> None:
        worker = data.draw(st.sampled_from(list(self.world.workers.values())))
        self.world.kill(worker, mode)
        self.world.check()
        self.world.reap(reaped)
        self.world.check()

    @rule(seconds=_pause)
    def time_passes(self, seconds: float) -> None:
        self.world.advance(seconds)
        self.world.check()


Transitions.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=25,
    deadline=None,
    print_blob=True,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
TestTransitions = Transitions.TestCase


@pytest.mark.parametrize("seed", seed_params(200))
def test_long_runs_keep_every_invariant(seed: int) -> None:
    rng = random.Random(seed)
    world = new_world()
    drawing = Drawing(world, lambda label, options: rng.choice(options))
    for _ in range(STEPS):
        chance = rng.random()
        if chance < 0.70:
            world.execute(drawing.operation(), rng.choice(MODES))
        elif chance < 0.85:
            world.interleave(drawing.operation(), drawing.operation())
        elif chance < 0.90:
            world.start_worker(rng.choice((1, 2, 3)))
            world.reap(rng.choice(MODES))
        elif chance < 0.96:
            if world.workers:
                world.kill(rng.choice(list(world.workers.values())), rng.choice(MODES))
                world.check()
                world.reap(rng.choice(MODES))
        else:
            world.advance(rng.choice((0.3, 1.5, 10.0)))
        world.check()
