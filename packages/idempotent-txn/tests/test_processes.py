"""Processes killed at any moment: what they did is done once, whoever does the rest."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

WORKER = Path(__file__).with_name("kill_worker.py")
KILLS = int(os.environ.get("MAINSPRING_KILLS") or 12)


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize("strategy", ["native", "ids"])
def test_numbered_work_is_done_once_each_in_spite_of_sigkill(
    shared_url: str, shared_db: Any, tmp_path: Path, strategy: str
) -> None:
    seed = random.randrange(2**31)
    print(f"seed {seed}")
    rng = random.Random(seed)
    log = tmp_path / "log"
    total = 15 * KILLS  # some ten are done between two kills
    killed = 0
    worker: subprocess.Popen[bytes] | None = None
    arguments = [sys.executable, str(WORKER), shared_url, str(log), strategy, str(total)]
    try:
        for _ in range(KILLS):
            seen = lines(log)
            worker = subprocess.Popen(arguments)
            deadline = time.monotonic() + 60
            while lines(log) <= seen + rng.randrange(20) and worker.poll() is None:
                assert time.monotonic() < deadline
                time.sleep(0.0005)
            # Anywhere within an attempt, of which there are some hundreds a second.
            time.sleep(rng.random() * 0.004)
            if worker.poll() is None:
                worker.send_signal(signal.SIGKILL)
                killed += 1
            worker.wait(60)
        worker = subprocess.Popen(arguments)
        assert worker.wait(120 + total // 4) == 0
    finally:
        if worker is not None and worker.poll() is None:
            worker.kill()
            worker.wait(60)
    assert killed > 0
    effects = Counter(int(row.key.split(b"/")[1]) for row in shared_db.get_range(b"effect/", b"effect0"))
    assert effects == Counter(range(total))
