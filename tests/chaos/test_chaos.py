"""The short form of the chaos runs: a few seeds, fixed and fresh ones; `nox -s chaos` runs a thousand."""

from __future__ import annotations

import pytest
from conftest import seed_params

from chaos.harness import run_seed
from chaos.plan import Blow, plan


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", seed_params(10, fresh=2, most=1000))
def test_seeded_chaos_leaves_nothing_undecided_and_nothing_behind(shared_url: str, seed: int) -> None:
    report = run_seed(seed, url=shared_url)
    assert report.wrong == [], f"{plan(seed).describe()}\n" + "\n".join(report.wrong)
    assert report.futures > 0


def test_a_plan_depends_on_its_seed_alone_and_all_blows_occur() -> None:
    assert plan(7) == plan(7)
    assert len({plan(seed) for seed in range(50)}) == 50
    assert {strike.blow for seed in range(200) for strike in plan(seed).strikes} == set(Blow)
