"""The short form of the simulation: a few seeds, fixed and fresh ones; `nox -s simulate -- --seeds 0:10000` plays thousands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import seed_params

TESTS = Path(__file__).parents[1]


def simulate(*arguments: str) -> str:
    """What the command prints. In a process of its own: the machine takes the place of the interpreter's threads and clocks."""
    done = subprocess.run(
        [sys.executable, "-m", "simulation", *arguments],
        env=os.environ | {"PYTHONPATH": f"{TESTS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    why = re.findall(r"^[\w.]+(?:Error|Exception): (.*)$", done.stdout, re.MULTILINE)
    assert done.returncode == 0, f"{why[-1] if why else ''}\n{done.stdout}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", seed_params(6, fresh=2))
def test_a_seed_of_the_whole_system_keeps_every_law_and_comes_to_its_end(seed: int) -> None:
    assert "1 seeds, 0 failed" in simulate("--seeds", f"{seed}:{seed + 1}")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", seed_params(1, fresh=1))
def test_a_seed_of_futures_keeps_every_law_and_comes_to_its_end(seed: int) -> None:
    assert "1 seeds, 0 failed" in simulate("--scene", "futures", "--seeds", f"{seed}:{seed + 1}")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("scene", ["leases", "heaps", "futures", "actors", "programs", "memos", "sharing"])
def test_a_seed_is_one_history_also_in_another_process(scene: str) -> None:
    assert simulate("--scene", scene, "--seeds", "1:2") == simulate("--scene", scene, "--seeds", "1:2", "--twice")
