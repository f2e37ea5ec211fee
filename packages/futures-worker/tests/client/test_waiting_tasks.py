"""A task that waits costs next to nothing: there may be hundreds of them on a host of two cores."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

from fdb_datamodel import ClusterSpace
from fdb_schema import open_database
from futures_worker import Client, FutureTimeoutError, UnschedulableError
from futures_worker.client.session import reader
from futures_worker.client.session.reader import rest_between_looks
from futures_worker.client.session.session import Session
from futures_worker.worker.child import task_context
from futures_worker.worker.child.task_context import TaskContext, waiting


@pytest.fixture
def in_a_task() -> Iterator[None]:
    before = task_context.current_task()
    task_context.enter(task_context.TaskContext(bytes(16), "memory:", "test", 1))
    yield
    task_context.enter(before)


def test_a_client_looks_every_second_and_a_task_ever_more_seldom(request: pytest.FixtureRequest) -> None:
    assert [rest_between_looks(waited) for waited in (0.0, 10.0, 1000.0)] == [1.0, 1.0, 1.0]
    request.getfixturevalue("in_a_task")
    assert [rest_between_looks(waited) for waited in (0.0, 10.0, 1000.0)] == [1.0, 2.5, 8.0]


@pytest.mark.usefixtures("in_a_task")
def test_the_clients_of_tasks_leave_the_looking_after_workers_to_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Any] = []
    session = Session(open_database("memory:waiting-tasks"), ClusterSpace("test"), lambda: None)
    monkeypatch.setattr(session.reader._caretaker, "look", looked.append)
    session.reader._looked = -100.0
    session.look_after_workers()
    assert looked == []
    task_context.enter(None)
    session.look_after_workers()
    assert len(looked) == 1
    session.close()


@pytest.mark.usefixtures("in_a_task")
def test_a_task_that_waits_is_woken_by_what_it_waits_for_and_hardly_ever_else(
    database_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a second of waiting may cost: looks at the database, transactions, and rounds of the engine's own thread."""
    client = Client(f"embedded:{database_dir}", "test")
    engine = client._context.db.dpointer.engine
    future = client.submit(abs, -1)
    future.id

    def wait() -> None:
        with contextlib.suppress(CancelledError):
            future.result(60)

    waits = threading.Thread(target=wait)
    waits.start()
    while client._context().reader.mailbox._watch is None or not engine.housekeeper.parked:
        time.sleep(0.005)
    counts = {"looks": 0, "reads": 0, "rounds": 0}

    def count(name: str, owner: Any, method: str) -> None:
        inner = getattr(owner, method)

        def counted(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return inner(*args, **kwargs)

        monkeypatch.setattr(owner, method, counted)

    count("looks", engine.watches, "_look")
    count("reads", client._context().reader.mailbox, "_read")
    count("rounds", engine.housekeeper, "_tick")
    time.sleep(1.5)
    found = dict(counts)
    assert waits.is_alive()
    future.cancel()
    waits.join(60)
    assert not waits.is_alive()
    assert found["looks"] <= 6
    assert found["reads"] <= 2
    assert found["rounds"] <= 20
    client.close()


def test_a_thread_that_a_task_left_waiting_hides_no_wait_of_the_next_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next task of the process gives its slot back when it waits, or what it waits for may never run."""
    said: list[tuple[bool, list[bytes]]] = []
    monkeypatch.setattr(task_context, "_report", lambda begins, ids: said.append((begins, list(ids))))
    monkeypatch.setattr(task_context, "_current", None)
    with contextlib.ExitStack() as left_behind:
        task_context.enter(TaskContext(b"1" * 16, "memory:", "test", 1))
        left_behind.enter_context(waiting([b"never"]))
        with waiting([b"another thread"]):
            pass
        task_context.enter(None)
        task_context.enter(TaskContext(b"2" * 16, "memory:", "test", 1))
        with waiting([b"child"]):
            assert said == [(True, [b"never"]), (True, [b"child"])]
        assert said[2:] == [(False, [])]
    assert len(said) == 3, "of a task that has ended nobody is told"


def test_what_a_task_awaits_frees_its_slot_though_callbacks_of_the_task_before_are_still_to_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread that reads for callbacks waits as the first of the two tasks, until it looks around."""
    said: list[tuple[bool, list[bytes]]] = []
    names_all = threading.Event()
    monkeypatch.setattr(task_context, "_current", None)
    with Client("memory:callbacks-of-two-tasks") as client:
        first, second = client.submit(abs, -1), client.submit(abs, -2)
        both = {first.id.bytes, second.id.bytes}

        def report(begins: bool, ids: Sequence[bytes]) -> None:
            said.append((begins, list(ids)))
            if begins and set(ids) & both == both:
                names_all.set()
            if begins:
                reads.set()

        reads = threading.Event()
        monkeypatch.setattr(task_context, "_report", report)
        task_context.enter(TaskContext(b"1" * 16, "memory:", "test", 1))
        first.add_done_callback(lambda _: None)
        assert reads.wait(30)
        task_context.enter(None)
        task_context.enter(TaskContext(b"2" * 16, "memory:", "test", 1))
        said.clear()
        second.add_done_callback(lambda _: None)
        assert said[0][0], "its slot is free at once"
        assert names_all.wait(30), "and soon its worker knows for what"
        task_context.enter(None)


@pytest.mark.parametrize(
    "limit", [{"timeout": {"queue": 0.1}}, {"timeout": {"total": 0.1}}, {"unschedulable_timeout": 0.1}]
)
def test_time_limits_are_kept_by_who_waits_where_no_worker_lives(
    limit: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "LOOK_SECONDS", 0.02)
    with (
        Client("memory:no-worker-keeps-time") as client,
        pytest.raises((FutureTimeoutError, UnschedulableError), match=r"0\.1 s"),
    ):
        client.submit(abs, -1, **limit).result(timeout=30)


def test_a_client_that_does_not_wait_keeps_time_limits_with_its_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "LOOK_SECONDS", 0.02)
    with Client("memory:nobody-waits") as client:
        future = client.submit(abs, -1, timeout={"total": 0.1})
        client.flush()
        until = time.monotonic() + 30
        while not future.done():
            assert time.monotonic() < until
            client._context().life._on_beat()
