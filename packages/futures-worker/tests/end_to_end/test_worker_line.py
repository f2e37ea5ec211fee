"""What a worker has claimed and not begun is still queued, for priorities, time limits, cancels and `running()`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

from futures_worker import FutureTimeoutError

WAIT = 60.0


def step(log: str = "", name: str = "", gate: str = "") -> str:
    """Quick, unless it is given a gate to wait at."""
    if log:
        with open(log, "a") as file:
            file.write(name + "\n")
    while gate and not os.path.exists(gate):
        time.sleep(0.01)
    return name


def until(condition: Callable[[], Any]) -> Any:
    """What a task writes to a file is an event that this process can only look for."""
    deadline = time.monotonic() + WAIT
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def begun(log: Path) -> list[str]:
    return log.read_text().split() if log.exists() else []


@pytest.mark.parametrize("fresh", [False, True], ids=["of a function known to be quick", "of a function never run"])
def test_a_line_behind_a_long_task_is_a_queue(cluster: Callable[..., Any], tmp_path: Path, fresh: bool) -> None:
    demo = cluster(1, 1)
    client = demo.client()
    client.gather(client.map(abs if fresh else step, [""] * 1500 if not fresh else range(1500)), progress=False)
    log, gate = tmp_path / "log", tmp_path / "gate"
    executor = client.executor()
    held = client.submit(step, str(log), "held", str(gate))
    line = [client.submit(step, str(log), f"line-{n}") for n in range(40)]
    late = client.submit(step, str(log), "late", timeout={"queue": 0.3})
    withdrawn = executor.submit(step, str(log), "withdrawn")
    cancelled = client.submit(step, str(log), "cancelled")
    client.flush()
    until(lambda: begun(log))
    assert held.running()
    assert not any(future.running() for future in [*line, cancelled])
    assert not withdrawn.running()
    assert withdrawn.cancel()
    assert cancelled.cancel()
    with pytest.raises(FutureTimeoutError):
        late.result(WAIT)
    urgent = client.submit(step, str(log), "urgent", priority=10)
    client.flush()
    until(lambda: sum(future.state() == "claimed" for future in line) == 0)
    gate.touch()
    client.gather([held, urgent, *line], progress=False, timeout=WAIT)
    order = begun(log)
    assert order[0] == "held"
    assert "urgent" in order[1:3], "at most one was claimed before it came"
    assert not {"late", "withdrawn", "cancelled"} & set(order)
    with pytest.raises(CancelledError):
        cancelled.result(WAIT)
    demo.check()
