"""Tasks that wait for other futures: any depth and breadth on one slot, and cycles of waits are found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fdb_schema import ClusterSpace, open_database
from futures_worker import DeadlockError, UpstreamDependencyFailedException, current_client, wait
from futures_worker.worker.child.task_context import current_task

WAIT = 90.0
Cluster = Callable[..., Any]


def fib(n: int, **resources: Any) -> int:
    if n < 2:
        return n
    client = current_client().options(resources=resources or None)
    return sum(f.result() for f in [client.submit(fib, n - 1, **resources), client.submit(fib, n - 2, **resources)])


def descend(levels: int) -> int:
    return 1 + current_client().submit(descend, levels - 1).result() if levels else 0


def total_of_many(count: int) -> int:
    client = current_client()
    return sum(client.gather(client.map(abs, range(count)), progress=False))


def my_id() -> str:
    task = current_task()
    assert task is not None
    return str(task.future_id)


def wait_for(future_id: str) -> Any:
    return current_client().get_future(future_id).result()


def wait_for_one_that_waits_for_me(starts: str) -> Any:
    with open(starts, "a") as file:
        file.write("start\n")
    return current_client().submit(wait_for, my_id()).result()


def wait_for_myself() -> Any:
    return wait_for(my_id())


def wait_through_a_dependency() -> Any:
    client = current_client()
    return client.submit(abs, client.submit(wait_for, my_id())).result()


def rows_of_waits(demo: Any) -> int:
    prefix = ClusterSpace(demo.name)["waits"].key()
    tr = open_database(demo.url).create_transaction()
    return len(list(tr.get_range(prefix, prefix + b"\xff")))


def test_one_slot_of_one_cpu_runs_recursion_that_needs_a_cpu_per_task(cluster: Cluster) -> None:
    demo = cluster(1, 1, "--cpus", "1")
    client = demo.client()
    assert client.options(resources={"cpu": 1}).submit(fib, 7, cpu=1).result(WAIT) == 13
    assert client.submit(abs, -1, resources={"cpu": 1}).result(WAIT) == 1  # the cpu is free again
    demo.check()


def processes_of(demo: Any) -> int:
    """Processes of the first worker's template that are left, those that wait to be retired included."""
    children = Path(f"/proc/{demo.workers[0].pid}/task/{demo.workers[0].pid}/children").read_text().split()
    return sum(len(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()) for pid in children)


def test_recursion_goes_deep_not_broad(cluster: Cluster) -> None:
    demo = cluster(1, 1)
    assert demo.client().submit(fib, 9).result(WAIT) == 34
    assert processes_of(demo) <= 2 * 9, "a process per level, not per task"
    demo.check()


def test_a_task_that_submits_and_waits_costs_a_handful_of_commits(cluster: Cluster) -> None:
    demo = cluster(1, 1)
    client = demo.client()
    client.submit(fib, 5).result(WAIT)
    page = client._context.db.dpointer.engine.store.page
    before, tasks = page.commits(), 25  # calls of fib(6)
    assert client.submit(fib, 6).result(WAIT) == 8
    # A turn or two of the worker, half a submit, what a wait that lasts records and takes back; the rest are signs of life.
    assert page.commits() - before <= 6 * tasks
    demo.check()


def test_a_chain_of_waits_forty_deep(shared_cluster: Cluster) -> None:
    demo = shared_cluster(1, 1)
    assert demo.client().submit(descend, 40).result(WAIT) == 40
    demo.check()


def test_a_task_waits_for_more_than_256_children(shared_cluster: Cluster) -> None:
    demo = shared_cluster(1, 1)
    assert demo.client().submit(total_of_many, 300).result(WAIT) == sum(range(300))
    assert rows_of_waits(demo) == 0
    demo.check()


def test_nested_tasks_that_need_more_memory_than_is_left_go_on(cluster: Cluster) -> None:
    demo = cluster(1, 1, "--cpus", "1", "--ram", "1GiB")
    resources = {"cpu": 1, "ram": 700 << 20}
    client = demo.client().options(resources=resources)
    assert client.submit(fib, 2, **resources).result(WAIT) == 1
    demo.check()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_cycle_of_waits_is_told_to_all_in_it(shared_cluster: Cluster, tmp_path: Path, workers: int) -> None:
    demo = shared_cluster(workers, 1)
    client = demo.client()
    future = client.submit(wait_for_one_that_waits_for_me, str(tmp_path / "starts"))
    with pytest.raises(DeadlockError, match=str(future.id)):
        future.result(WAIT)
    assert (tmp_path / "starts").read_text().count("start") == 1, "another attempt would do the same"
    assert client.submit(abs, -1).result(WAIT) == 1
    assert rows_of_waits(demo) == 0
    demo.check()


def test_a_task_that_waits_for_itself_is_told(shared_cluster: Cluster) -> None:
    demo = shared_cluster(1, 1)
    with pytest.raises(DeadlockError, match="none of them can go on"):
        demo.client().submit(wait_for_myself).result(WAIT)
    demo.check()


def test_a_cycle_through_a_dependency_is_told(shared_cluster: Cluster) -> None:
    demo = shared_cluster(1, 1)
    future = demo.client().submit(wait_through_a_dependency)
    error = future.exception(WAIT)
    assert isinstance(error, (DeadlockError, UpstreamDependencyFailedException))
    assert "none of them can go on" in str(error)
    demo.check()


def first_of_two() -> Any:
    client = current_client()
    slow, quick = client.submit(wait_for, my_id()), client.submit(abs, -3)
    ended = wait([slow, quick], return_when="FIRST_COMPLETED")
    return next(iter(ended.done)).result()


def test_a_wait_for_the_first_of_several_is_no_cycle(cluster: Cluster) -> None:
    demo = cluster(2, 2)
    assert demo.client().submit(first_of_two).result(WAIT) == 3
    demo.check()
