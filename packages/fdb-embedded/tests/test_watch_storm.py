"""Every change of a watched key is seen in bounded time, whoever is killed or stopped; and the test of that finds defects that were planted.

One seed of each durability and two defects here; `MAINSPRING_SEEDS=N` makes it N seeds of each (some seconds for a seed), and all defects.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

STORM = Path(__file__).with_name("watch_storm.py")
SEEDS = int(os.environ.get("MAINSPRING_SEEDS") or 1)


def storm(
    path: Path, durability: str, seed: int, rounds: int, defect: str, seconds: float
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(STORM), str(path), durability, str(seed), str(rounds), defect]
    environment = os.environ | {"WATCH_STORM_SECONDS": str(seconds)}
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, check=False)


@pytest.mark.parametrize("number", range(SEEDS))
@pytest.mark.parametrize("durability", ["process", "fsync"])
def test_every_change_is_seen(tmp_path: Path, durability: str, number: int) -> None:
    played = storm(tmp_path / "db", durability, secrets.randbelow(1_000_000), 3, "", 60)
    assert played.returncode == 0, played.stdout + played.stderr


@pytest.mark.parametrize("defect", ["unpaid", "late", "uncounted", "forgetful"][: 1 + SEEDS])
def test_a_planted_defect_is_found(tmp_path: Path, defect: str) -> None:
    played = storm(tmp_path / "db", "process", 5, 40, defect, 3)
    assert played.returncode == 1, played.stdout + played.stderr
    assert "never seen to change" in played.stdout
