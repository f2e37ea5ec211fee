"""A claim is a start: what is claimed is run, and seldom given back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fdb_datamodel import list_futures
from idempotent_txn import run

WAIT = 90.0


def nap(milliseconds: float) -> float:
    time.sleep(milliseconds / 1000)
    return milliseconds


def attempts_of(client: Any) -> list[int]:
    found: list[int] = []
    after = None
    while True:
        page, after = run(client._context.db, list_futures, client._context.space, after, 500)
        found += [info.attempts for info in page]
        if after is None:
            return found


def test_claims_are_hardly_more_than_tasks(cluster: Callable[..., Any]) -> None:
    demo = cluster(2, 1)
    client = demo.client()
    client.gather([client.submit(nap, 8) for _ in range(300)], timeout=WAIT, progress=False)
    attempts = attempts_of(client)
    assert len(attempts) == 300
    assert sum(attempts) <= 375  # a worker gives some 25 to an idle peer at once, as a rule not once
    demo.check()


def test_every_noop_is_claimed_once(cluster: Callable[..., Any]) -> None:
    demo = cluster(2, 1)
    client = demo.client()
    for _ in range(3):
        client.gather([client.submit(abs, n) for n in range(1000)], timeout=WAIT, progress=False)
    assert sum(attempts_of(client)) <= 3000 * 1.02
    demo.check()


def test_a_big_task_does_not_starve_behind_a_stream_of_small_ones(cluster: Callable[..., Any]) -> None:
    demo = cluster(1, 2, "--cpus", "2")
    client = demo.client()
    small = client.options(resources={"cpu": 1})
    stream = [small.submit(nap, 40) for _ in range(20)]
    client.flush()
    big = client.submit(nap, 1, resources={"cpu": 2})
    client.flush()
    deadline = time.monotonic() + WAIT
    while not big.done():  # there is always a small one that would fit what is free
        assert time.monotonic() < deadline, "it starved"
        stream = [future for future in stream if not future.done()]
        stream += [small.submit(nap, 40) for _ in range(20 - len(stream))]
        client.flush()
        time.sleep(0.02)
    assert big.result() == 1
    client.gather(stream, progress=False, timeout=WAIT)
    demo.check()
