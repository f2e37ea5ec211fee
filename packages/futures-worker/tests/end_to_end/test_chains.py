"""Chains of dependents, claimed ahead: right whatever happens to a link, on one worker and on several."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from futures_worker import UpstreamDependencyFailedException

WAIT = 90.0
Cluster = Callable[..., Any]


def plus(value: int, more: int = 1) -> int:
    return value + more


def grow(values: Any) -> Any:
    return values + 1


def fail_once(value: int, flag: str) -> int:
    if not Path(flag).exists():
        Path(flag).touch()
        raise ValueError("the first time")
    return value + 1


def fail(value: int) -> int:
    raise ValueError(f"never {value}")


def hang(value: int, flag: str) -> int:
    Path(flag).touch()
    time.sleep(3600)
    return value


def chain(client: Any, first: Any, count: int, fn: Callable[..., Any] = plus) -> list[Any]:
    links = [client.submit(fn, first)]
    for _ in range(count - 1):
        links.append(client.submit(fn, links[-1]))
    return links


@pytest.mark.parametrize("workers", [1, 2])
def test_a_long_chain_counts_its_links(shared_cluster: Cluster, workers: int) -> None:
    demo = shared_cluster(workers, 1)
    client = demo.client()
    client.gather(client.map(plus, range(100)), progress=False, timeout=WAIT)  # its tasks are known to be short
    for count in (300, 301):
        links = chain(client, 0, count)
        assert links[-1].result(WAIT) == count
        assert [link.result(WAIT) for link in links] == list(range(1, count + 1))
    demo.check()


def test_large_results_travel_along_a_chain(shared_cluster: Cluster) -> None:
    demo = shared_cluster(1, 1)
    client = demo.client()
    client.gather(client.map(plus, range(100)), progress=False, timeout=WAIT)
    links = chain(client, np.zeros(10_000), 20, grow)
    assert links[-1].result(WAIT)[0] == 20
    demo.check()


def test_a_link_that_fails_once_is_run_again_and_the_chain_goes_on(shared_cluster: Cluster, tmp_path: Path) -> None:
    demo = shared_cluster(1, 1)
    client = demo.client()
    client.gather(client.map(plus, range(100)), progress=False, timeout=WAIT)
    before = chain(client, 0, 20)
    middle = client.submit(fail_once, before[-1], str(tmp_path / "flag"))
    assert chain(client, middle, 20)[-1].result(WAIT) == 41
    demo.check()


def test_a_link_that_fails_for_good_fails_the_rest_with_its_name(shared_cluster: Cluster) -> None:
    demo = shared_cluster(1, 1)
    client = demo.client()
    client.gather(client.map(plus, range(100)), progress=False, timeout=WAIT)
    before = chain(client, 0, 5)
    middle = client.options(max_retries=0).submit(fail, before[-1])
    after = chain(client, middle, 5)
    with pytest.raises(UpstreamDependencyFailedException, match="never 5") as told:
        after[-1].result(WAIT)
    assert told.value.chain[-1] == middle.id
    assert before[-1].result(WAIT) == 5
    demo.check()


def test_a_cancelled_link_ends_the_rest(shared_cluster: Cluster, tmp_path: Path) -> None:
    demo = shared_cluster(1, 1)
    client = demo.client()
    client.gather(client.map(plus, range(100)), progress=False, timeout=WAIT)
    hanging = client.submit(hang, 1, str(tmp_path / "flag"))
    after = chain(client, hanging, 5)
    client.flush()
    deadline = time.monotonic() + WAIT
    while not (tmp_path / "flag").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert after[1].cancel()
    with pytest.raises(UpstreamDependencyFailedException):
        after[-1].result(WAIT)
    assert hanging.cancel()
    with pytest.raises((UpstreamDependencyFailedException, CancelledError)):
        after[0].result(WAIT)
    demo.check()


def test_a_chain_survives_the_death_of_the_worker_that_claimed_it(cluster: Cluster, tmp_path: Path) -> None:
    demo = cluster(1, 1)
    client = demo.client()
    client.gather(client.map(plus, range(100)), progress=False, timeout=WAIT)
    links = chain(client, 0, 600)
    links[50].result(WAIT)
    demo.workers[0].kill()
    demo.start("--slots", "1")
    assert links[-1].result(WAIT) == 600
    demo.check()
