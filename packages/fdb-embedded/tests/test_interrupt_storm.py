"""Threads of one process commit under interrupts, timeouts, cancellations and resets: every outcome told is true, and nobody hangs.

One seed of each durability here; `MAINSPRING_SEEDS=N` makes it N of each (a second or so for a seed).
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

STORM = Path(__file__).with_name("interrupt_storm.py")
SEEDS = int(os.environ.get("MAINSPRING_SEEDS") or 1)


@pytest.mark.parametrize("durability", ["memory", "process", "fsync"])
def test_what_a_storm_leaves_is_what_was_told(tmp_path: Path, durability: str) -> None:
    name = "memory:storm" if durability == "memory" else str(tmp_path / "db")
    first = secrets.randbelow(1_000_000)
    command = [sys.executable, str(STORM), name, durability, str(first), str(SEEDS)]
    played = subprocess.run(command, capture_output=True, text=True, timeout=120 + 60 * SEEDS)
    assert played.returncode == 0, f"{' '.join(command[1:])}: {played.stdout}\n{played.stderr}"
    assert played.stdout.count("interrupts") == SEEDS
