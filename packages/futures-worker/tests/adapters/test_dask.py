"""Graphs of Dask on a cluster: the values that Dask's own scheduler finds, with workers killed midway, and nothing left."""

from __future__ import annotations

import operator
import random
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from futures_worker import Client, LocalCluster

dask = pytest.importorskip("dask")
np = pytest.importorskip("numpy")

from futures_worker.adapters import dask_scheduler  # noqa: E402


@pytest.fixture(scope="module")
def local() -> Iterator[LocalCluster]:
    cluster = LocalCluster(workers=2, slots=1)
    try:
        cluster.client.wait_for_workers(2, timeout=60)
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def client(local: LocalCluster) -> Iterator[Client]:
    """What a test computes leaves nothing in the cluster."""
    yield local.client
    assert not local.client.futures()


def total(*parts: Any) -> Any:
    return sum(parts)


def fail(value: int) -> None:
    raise KeyError(f"number {value}")


def count_up(end: int) -> Iterator[int]:
    yield from range(end)


def await_file(path: Path, begun: Path) -> int:
    begun.touch()
    while not path.exists():
        time.sleep(0.01)
    return 1


def test_a_graph_of_either_form(client: Client) -> None:
    legacy = {"a": 1, "b": (operator.add, "a", 2), "c": (sum, ["a", "b", (operator.mul, "b", 2)]), ("d", 0): "c"}
    assert client.get(legacy, ["c", ["a", ("d", 0)]]) == (10, (1, 10))
    assert client.get(legacy, "b") == 3
    first = dask.delayed(total)(1, 2)
    nested = dask.delayed(dict)(a=[first, {"b": (first, 3)}])
    items = dask.delayed(total)(dask.delayed(list)(dask.delayed(count_up)(3)))
    with dask.config.set(scheduler=client):
        assert dask.compute(first, nested) == (3, {"a": [3, {"b": (3, 3)}]})
        assert dask.delayed(sum)(dask.delayed(count_up)(4)).compute() == 6
    with pytest.raises(TypeError):  # of the task: a list and 0 have no sum
        items.compute(scheduler=client)


def random_graph(count: int, seed: int) -> list[Any]:
    """The ends of a graph of so many nodes, all of which they need."""
    chance = random.Random(seed)
    nodes: list[Any] = []
    used: set[int] = set()
    for number in range(count):
        inputs = [chance.randrange(max(0, number - 100), number) for _ in range(chance.randrange(4))] if nodes else []
        used.update(inputs)
        nodes.append(dask.delayed(total)(number % 7, *(nodes[one] for one in inputs), pure=False))
    return [node for number, node in enumerate(nodes) if number not in used]


def test_a_thousand_random_nodes(client: Client) -> None:
    seed = 7
    ends = random_graph(1000, seed)
    assert dask.compute(*ends, scheduler=client) == dask.compute(*ends, scheduler="sync"), f"seed {seed}"


def test_arrays_bags_and_frames(client: Client) -> None:
    pd = pytest.importorskip("pandas")
    import dask.array as da
    import dask.bag as db
    import dask.dataframe as dd

    values = np.arange(90_000.0).reshape(300, 300)
    array = da.from_array(values, chunks=(150, 150))
    bag = db.from_sequence(range(300), npartitions=4)
    table = pd.DataFrame({"key": np.arange(600) % 13, "value": np.arange(600.0)})
    frame = dd.from_pandas(table, npartitions=4)
    with dask.config.set(scheduler=client):
        product, mean = dask.compute(array @ array.T, array.mean(axis=0))
        np.testing.assert_allclose(product, values @ values.T)
        np.testing.assert_allclose(mean, values.mean(axis=0))
        groups = bag.groupby(lambda one: str(one % 3)).map(lambda pair: (pair[0], sum(pair[1])))
        assert sorted(groups.compute()) == [(str(n), sum(range(n, 300, 3))) for n in range(3)]
        pd.testing.assert_series_equal(frame.groupby("key").value.mean().compute(), table.groupby("key").value.mean())
        joined = frame.merge(frame, on="key").value_x.sum().compute()
        assert joined == table.merge(table, on="key").value_x.sum()


def test_what_a_node_raises_keeps_its_type_and_ends_the_rest(client: Client) -> None:
    broken = dask.delayed(total)(dask.delayed(fail)(3), 1)
    with pytest.raises(KeyError, match="number 3") as caught:
        dask.compute(broken, dask.delayed(time.sleep)(600), scheduler=client)
    assert "fail" in str(caught.value.__cause__)
    with pytest.raises(TypeError, match="num_workers"):
        dask.compute(broken, scheduler=client, num_workers=3)


def test_large_results_go_once_they_are_used_and_are_made_again_after_a_kill(
    local: LocalCluster, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shed: list[bytes] = []
    original = dask_scheduler.shed_results

    def noted(tr: Any, space: Any, ids: list[bytes]) -> int:
        count = original(tr, space, ids)
        shed.extend(ids)
        return count

    monkeypatch.setattr(dask_scheduler, "shed_results", noted)
    monkeypatch.setattr(dask_scheduler, "SHED_AT_ONCE", 1)
    done, begun = tmp_path / "done", tmp_path / "begun"
    base = dask.delayed(np.ones)(200_000)
    both = dask.delayed(total)(dask.delayed(np.add)(base, 1), dask.delayed(np.multiply)(base, 2))
    end = dask.delayed(total)(
        dask.delayed(np.sum)(both), dask.delayed(np.max)(both), dask.delayed(await_file)(done, begun)
    )

    def kill() -> None:
        while not begun.exists() or len(set(shed)) < 3:  # the other worker has got past both
            time.sleep(0.01)
        for worker in local.workers:
            worker.kill()
        done.touch()
        local.scale(2)

    killer = Thread(target=kill)
    killer.start()
    value, again = dask.compute(end, both, scheduler=client)
    killer.join()
    assert value == 4 * 200_000 + 4 + 1
    np.testing.assert_array_equal(again, np.full(200_000, 4.0))
