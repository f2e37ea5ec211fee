"""No two believers, tokens monotone, every live waiter served: in seeded schedules of everything that goes wrong."""

from __future__ import annotations

import pytest
from conftest import seed_params
from lease_simulation.holders import simulate


@pytest.mark.parametrize("seed", seed_params(200))
def test_no_two_believers_and_every_live_waiter_is_served(seed: int) -> None:
    print(f"seed {seed}")
    model = simulate(seed)
    assert model.acquired > 0
