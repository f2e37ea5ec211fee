"""Seeded runs with commits that fail, get lost, land unseen or late, on both sides, and a worker that keeps dying.

Every future ends as it must, exactly once in the eyes of its client, and the data stays valid. MAINSPRING_SEEDS=N sets
the number of seeds.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

import pytest
from conftest import seed_params

import fdb_embedded
from fdb_datamodel import FutureState, validate
from futures_worker import Client, UpstreamDependencyFailedException, WorkerLostError, as_completed

WAIT = 60.0


def add(*numbers: int) -> int:
    return sum(numbers)


def refuse(number: int) -> int:
    raise ValueError(number)


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


@pytest.mark.parametrize("seed", seed_params(200))
def test_seeded_faults(seed: int, thread_worker: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("futures_worker.client.session.reader.LOOK_SECONDS", 0.05)
    rng = random.Random(seed)
    name = f"memory:client-faults-{seed}"
    quiet = fdb_embedded.open(name)
    rate = rng.choice([0.0, 0.02, 0.08])
    for port in range(1, rng.choice([1, 1, 2]) + 1):
        db = fdb_embedded.open(name, faults=faults(seed * 10 + port, rate))
        thread_worker(db, "sim", port, seed=seed + port, crashes=rng.choice([0.0, 0.05]))
    with Client(fdb_embedded.open(name, faults=faults(seed, rate)), "sim") as client:
        futures: list[tuple[Any, int | None]] = []  # (future, its value; None: it, or something before it, fails)
        cancelled = []
        for number in range(rng.randrange(1, 25)):
            inputs = rng.sample(futures, min(len(futures), rng.choice([0, 0, 1, 2])))
            values = [value for _, value in inputs]
            if rng.random() < 0.1:
                future, value = client.submit(refuse, number, max_retries=rng.choice([0, 1])), None
            else:
                future = client.submit(add, number, *(f for f, _ in inputs), max_worker_losses=1000)
                value = None if None in values else number + sum(v for v in values if v is not None)
            if rng.random() < 0.05:
                future.cancel()
                cancelled.append(future)
                continue
            futures.append((future, value))
            if rng.random() < 0.1:
                client.get_future(future.id).exception(WAIT)
        expected = dict(futures)
        for future in as_completed([f for f, _ in futures], timeout=WAIT):
            value = expected[future]
            if value is not None:
                assert future.result(WAIT) == value
                assert future.state() == FutureState.realized
            else:
                error = future.exception(WAIT)
                assert isinstance(error, (ValueError, UpstreamDependencyFailedException)), repr(error)
        for future in cancelled:
            try:
                error = future.exception(WAIT)
            except CancelledError:
                continue
            assert error is None or isinstance(error, (ValueError, UpstreamDependencyFailedException, WorkerLostError))
    assert validate(quiet, "sim") == []
