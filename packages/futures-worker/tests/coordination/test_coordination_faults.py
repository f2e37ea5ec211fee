"""Seeded runs with commits that fail, get lost, land unseen or late, under threads that put, get, take and hold permits.

Each item is had once, in the order of each producer, no permit is had twice or lost, and the data stays valid. MAINSPRING_SEEDS=N sets
the number of seeds.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from conftest import seed_params
from coordination_lab import WAIT

import fdb_embedded
from fdb_datamodel import validate
from futures_worker import Client

EACH = 12


def faults(seed: int, rate: float) -> Any:
    return fdb_embedded.Faults(
        seed=seed,
        not_committed=rate,
        too_old=rate / 4,
        unknown_before=rate,
        unknown_after=rate,
        unknown_late=rate / 2,
        timed_out_late=rate / 4,
        future_version=rate / 4,
    )


@pytest.mark.parametrize("seed", seed_params(20))
def test_seeded_faults(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("futures_worker.client.session.reader", "futures_worker.coordination.waiting"):
        monkeypatch.setattr(f"{module}.LOOK_SECONDS", 0.05)
    rng = random.Random(seed)
    name, rate = f"memory:coordination-faults-{seed}", rng.choice([0.02, 0.08, 0.2])
    clients = [Client(fdb_embedded.open(name, faults=faults(seed * 10 + n, rate)), "sim") for n in range(2)]
    producers, consumers = rng.randint(1, 2), rng.randint(1, 3)
    maxsize, permits = rng.choice((0, 0, 2)), rng.randint(1, 2)
    got: list[list[tuple[int, int]]] = [[] for _ in range(consumers)]
    gate, within = threading.Lock(), 0
    troubles: list[str] = []

    def produce(number: int) -> None:
        jobs = clients[number % 2].queue("jobs", maxsize)
        for at in range(0, EACH, 2):
            jobs.put_many([(number, at), (number, at + 1)])

    def consume(number: int) -> None:
        nonlocal within
        chance = random.Random(seed * 100 + number)
        client = clients[number % 2]
        jobs, few = client.queue("jobs", maxsize), client.semaphore("few", permits)
        while True:
            if chance.random() < 0.5:
                item = jobs.get(timeout=WAIT)
            else:
                with jobs.take(timeout=WAIT) as item:
                    pass
            if item is None:
                return
            with few:
                with gate:
                    within += 1
                    if within > permits:
                        troubles.append(f"{within} have a permit, of {permits}")
                with gate:
                    within -= 1
            got[number].append(item)

    with ThreadPoolExecutor(producers + consumers) as pool:
        made = [pool.submit(produce, n) for n in range(producers)]
        used = [pool.submit(consume, n) for n in range(consumers)]
        for one in made:
            one.result(WAIT)
        clients[0].queue("jobs").put_many([None] * consumers)
        for one in used:
            one.result(WAIT)
    assert troubles == []
    had = [item for items in got for item in items]
    assert Counter(had) == Counter((number, n) for number in range(producers) for n in range(EACH))
    for items in got:
        for number in range(producers):
            mine = [n for who, n in items if who == number]
            assert mine == sorted(mine)
    assert clients[0].semaphore("few").available() == permits
    assert clients[0].queue("jobs").qsize() == 0
    for client in clients:
        client.close()
    assert validate(fdb_embedded.open(name), "sim") == []
