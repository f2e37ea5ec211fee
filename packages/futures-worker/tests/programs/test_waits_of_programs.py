"""What a program gathers keeps its shape, and what it adds to a wait comes too, also where it left meanwhile."""

from __future__ import annotations

import time
from typing import Any

from futures_worker import LocalCluster, as_completed, current_client


def later(seconds: float, value: int) -> int:
    time.sleep(seconds)
    return value


def body(first: float) -> Any:
    client = current_client()
    coming = as_completed([client.submit(later, first, 1)], with_results=True)
    values = []
    for _, value in coming:
        values.append(value)
        if len(values) < 3:
            coming.add(client.submit(later, 0, value + 1))
    a, b, bad = client.submit(later, 0, 7), client.submit(later, 0, 8), client.submit(int, "x", max_retries=0)
    shape = client.gather({"a": a, "rest": (b, [bad])}, errors="skip")
    returned = client.gather([a, bad], errors="return")
    return values, shape, [type(one).__name__ for one in returned]


def test_it_waits_as_any_task_does() -> None:
    with LocalCluster(workers=1, slots=2) as client:
        futures = [
            client.submit(body, first, durable=True) for first in (0.0, 0.8)
        ]  # the second leaves, and begins again
        for future in futures:
            assert future.result(timeout=60) == ([1, 2, 3], {"a": 7, "rest": (8, [])}, ["int", "ValueError"])
