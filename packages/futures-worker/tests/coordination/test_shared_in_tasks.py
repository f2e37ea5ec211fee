"""Queues, semaphores and events in tasks and programs, on real workers."""

from __future__ import annotations

from typing import Any

from coordination_lab import WAIT

from fdb_schema import MainspringError
from futures_worker import durable, step


@durable
def put_unrecorded(jobs: Any) -> str:
    try:
        jobs.put(1)
    except MainspringError as error:
        step(jobs.put, 2)
        return str(error)
    return ""


def hand_over(jobs: Any, answers: Any) -> None:
    while (item := jobs.get()) is not None:
        answers.put(item + 1)


def test_tasks_use_it_and_one_that_waits_keeps_no_slot(shared_cluster: Any) -> None:
    demo = shared_cluster(workers=1, slots=1)
    client = demo.client()
    jobs, answers = client.queue("jobs"), client.queue("answers")
    waits = client.submit(hand_over, jobs, answers)
    client.submit(jobs.put_many, [1, 2, None]).result(timeout=WAIT)
    assert waits.result(timeout=WAIT) is None
    assert answers.get_many(2) == [2, 3]
    said = client.submit(put_unrecorded, jobs).result(timeout=WAIT)
    assert "put of queue 'jobs' inside of program" in said and "do it in a step" in said
    assert jobs.get_nowait() == 2
    demo.check()


def count_up(semaphore: Any, go: Any, path: str) -> int:
    go.wait()
    with semaphore, open(path, "r+") as file:
        found = int(file.read() or 0) + 1
        file.seek(0)
        file.write(str(found))
    return found


@durable
def use_unrecorded(semaphore: Any, event: Any) -> list[str]:
    said = []
    for use in (semaphore.acquire, event.set):
        try:
            use()
        except MainspringError as error:
            said.append(str(error))
    return said


def test_tasks_use_them_and_those_that_wait_keep_no_slot(shared_cluster: Any, tmp_path: Any) -> None:
    demo = shared_cluster(workers=1, slots=1)
    client = demo.client()
    one, go = client.semaphore("one", 1), client.event("go")
    path = tmp_path / "count"
    path.touch()
    counts = [client.submit(count_up, one, go, str(path)) for _ in range(4)]
    client.submit(go.set).result(timeout=WAIT)
    assert sorted(count.result(timeout=WAIT) for count in counts) == [1, 2, 3, 4]
    assert one.available() == 1
    said = client.submit(use_unrecorded, one, go).result(timeout=WAIT)
    assert (
        "acquire of semaphore 'one' inside of program" in said[0] and "set of event 'go' inside of program" in said[1]
    )
    demo.check()
