"""Copies and moves of large results between workers, and the seed's repartitioning loop over them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fdb_datamodel import ClusterSpace, list_workers
from fdb_schema import MainspringError, open_database
from futures_worker import NoWorkerError, current_client
from idempotent_txn import run

WAIT = 60.0


def addresses(demo: Any) -> dict[str, int]:
    """Address of each live worker -> its process id."""
    found = run(open_database(demo.url), list_workers, ClusterSpace(demo.name))
    return {f"{status.id.ip}:{status.id.port}": status.info.pid for status in found}


def big(path: str) -> Any:
    with open(path, "a") as file:
        file.write("started\n")
    return np.arange(100_000)


def holder(future: Any) -> str:
    stored = future._record.entry.result
    return f"{stored.worker.ip}:{stored.worker.port}"


@pytest.mark.parametrize("move", [False, True])
def test_a_copy_survives_the_first_holder(cluster: Callable[..., Any], tmp_path: Path, move: bool) -> None:
    demo = cluster(workers=2)
    client = demo.client()
    future = client.submit(big, str(tmp_path / "starts"))
    client.await_all([future], timeout=WAIT)
    source = holder(future)
    (target,) = addresses(demo).keys() - {source}
    (client.transfer if move else client.clone)(future, target)
    if move:
        assert holder(future) == target
    pid = addresses(demo)[source]
    next(worker for worker in demo.workers if worker.pid == pid).kill()
    again = demo.client().get_future(future.id)
    assert again.result(WAIT)[-1] == 99_999
    assert client.submit(np.sum, again).result(WAIT) == 4999950000
    assert len((tmp_path / "starts").read_text().splitlines()) == 1  # never computed again
    demo.check()


def test_small_results_need_no_copies(cluster: Callable[..., Any]) -> None:
    demo = cluster(workers=1)
    client = demo.client()
    future = client.submit(abs, -1)
    (address,) = addresses(demo)
    client.clone(future, address)
    client.transfer(future, address)
    assert future.result(WAIT) == 1
    (row,) = client.workers()
    client.clone(future, row)
    assert client.submit(abs, -2, locality=row).result(WAIT) == 2
    with pytest.raises(TypeError, match=r"one of `client\.workers"):
        client.clone(future, 7)
    with pytest.raises(NoWorkerError, match=r"127\.0\.0\.1:1"):
        client.clone(future, "127.0.0.1:1")
    with pytest.raises(MainspringError, match="inside a task"):
        client.take_ownership(future)


def test_the_seeds_repartitioning_loop(cluster: Callable[..., Any]) -> None:
    demo = cluster(workers=2)
    client = demo.client()
    before = client.map(lambda n: np.arange(n * 10_000, (n + 1) * 10_000), range(4))

    def take(parts: list[Any], index: int) -> None:
        current_client().take_ownership(parts[index])

    after = []
    for partition in before:
        parts = [client.put(part) for part in np.array_split(partition.result(WAIT), 3)]
        sizes = [part.size_in_bytes for part in parts]
        moves = []
        for index, size in enumerate(sizes):

            def move(index: int = index, parts: list[Any] = parts) -> None:
                take(parts, index)

            moves.append(client.submit(move, resources={"ram": size}))
        client.await_all(moves, timeout=WAIT)
        client.delete_all(moves)
        client.delete(partition)
        after += parts
    fresh = demo.client()
    whole = np.concatenate([fresh.get_future(part.id).result(WAIT) for part in after])
    np.testing.assert_array_equal(whole, np.arange(40_000))
    demo.check()
