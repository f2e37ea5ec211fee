"""Generators as streaming results, on real workers: item by item, bounded, durable, and the same after a death."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fdb_datamodel import (
    Capacity,
    FutureDeletedError,
    FutureSpec,
    FutureState,
    WorkerId,
    beat_session,
    close_session,
    finish_turn,
    get_future_state,
    hold_futures,
    register_worker,
    release_futures,
    submit_futures,
)
from fdb_schema import ClusterSpace, DatabaseUnreachableError, open_database
from futures_worker import Client
from futures_worker.worker.child import streaming
from futures_worker.worker.child.streaming import _ItemWriter, stream_out
from futures_worker.worker.child.task_context import TaskContext
from idempotent_txn import run

WAIT = 60.0


def count(stop: int) -> Iterator[int]:
    yield from range(stop)


def slowly(stop: int, gate: str) -> Iterator[int]:
    for number in range(stop):
        while number and not os.path.exists(f"{gate}-{number}"):
            time.sleep(0.01)
        yield number


def noted(stop: int, path: str) -> Iterator[int]:
    for number in range(stop):
        with open(path, "a") as file:
            file.write(f"{number}\n")
        yield number


def broken(stop: int) -> Iterator[int]:
    yield from range(stop)
    raise ValueError("broken in the middle")


def with_pid(stop: int, path: str) -> Iterator[tuple[int, int]]:
    Path(path).write_text(str(os.getpid()))
    for number in range(stop):
        yield number, os.getpid()


def arrays(stop: int) -> Iterator[Any]:
    for number in range(stop):
        yield np.full(50_000, number)


def total(items: Any) -> int:
    return sum(items)


def every(seconds: float, stop: int) -> Iterator[int]:
    for number in range(stop):
        time.sleep(seconds)
        yield number


def test_the_result_of_a_stream_comes_in_time_or_not_at_all(shared_cluster: Callable[..., Any]) -> None:
    client = shared_cluster(1, 1).client()
    future = client.submit(every, 0.3, 12)
    with pytest.raises(TimeoutError):
        future.result(1.0)  # though each item comes sooner
    assert future.result(WAIT) == list(range(12))


class Unread:
    """A generator that waits for readers, of a client that lives until `leave`."""

    def __init__(self, name: str) -> None:
        self.db, self.space = open_database(f"memory:{name}"), ClusterSpace("test")
        self.session = os.urandom(16)
        worker = self.run(register_worker, WorkerId("127.0.0.1", 1, os.urandom(16)))
        self.id = os.urandom(16)
        self.run(beat_session, self.session, 1)
        self.run(submit_futures, [FutureSpec(b"code", session=self.session, id=self.id)])
        assert len(self.run(finish_turn, worker, [], Capacity(), 1)) == 1
        self.writer = object.__new__(_ItemWriter)
        self.writer._session = SimpleNamespace(db=self.db, space=self.space)  # type: ignore[assignment]
        self.writer._task = SimpleNamespace(id=self.id)  # type: ignore[assignment]

    def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return run(self.db, fn, self.space, *args, **kwargs)

    def look(self, seconds_without: float) -> FutureState:
        self.writer._look_at, self.writer._read_at = 0.0, time.monotonic() - seconds_without
        self.writer._look_for_readers()
        return self.run(get_future_state, self.id)  # type: ignore[no-any-return]


def test_a_stream_that_nobody_is_left_to_read_ends() -> None:
    """Its process would wait for ever: the worker would have one more for each client that dies."""
    unread = Unread("nobody-reads")
    assert unread.look(7200.0) == FutureState.claimed, "its client lives"
    unread.run(close_session, unread.session)
    assert unread.look(600.0) == FutureState.claimed, "not so soon: a client may come back"
    unread.run(hold_futures, [unread.id], outer=os.urandom(16))
    assert unread.look(7200.0) == FutureState.claimed, "a result refers to it"
    unread.run(release_all, unread.id)
    assert unread.look(7200.0) == FutureState.failed


def test_a_stream_that_its_reader_let_go_ends_soon() -> None:
    """`for item in f.stream(): break` leaves a handle that goes, and a client that lives on."""
    unread = Unread("let-go")
    unread.run(release_futures, unread.session, [unread.id])
    assert unread.look(30.0) == FutureState.claimed, "it may be taken up again"
    unread.run(hold_futures, [unread.id], session=unread.session)
    assert unread.look(7200.0) == FutureState.claimed, "it was"
    unread.run(release_futures, unread.session, [unread.id])
    assert unread.look(60.0) == FutureState.failed


def test_a_generator_that_may_go_on_is_not_rested_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who writes learns that items were taken before the generator does, and nobody tells him again: a stream that rests then stalls."""
    monkeypatch.setattr(streaming, "LOOK_SECONDS", WAIT / 2)
    name = f"memory:{os.urandom(8).hex()}"
    with Client(open_database(name), "test") as client, Client(open_database(name), "test") as reader:
        worker = WorkerId("127.0.0.1", 1, os.urandom(16))
        db, space = open_database(name), ClusterSpace("test")
        run(db, register_worker, space, worker)
        future = client.submit(count, 3000, max_retries=0)
        task = TaskContext(future.id.bytes, name, "test", 1)
        assert len(run(db, finish_turn, space, worker, [], Capacity(), 1)) == 1
        monkeypatch.setattr("futures_worker.client.context.worker_context", lambda: client._context)
        monkeypatch.setattr(streaming, "current_task", lambda: task)
        yielding = threading.Thread(target=stream_out, args=(count(3000),), daemon=True)
        yielding.start()
        items = reader.get_future(future.id).stream(timeout=WAIT / 6)
        assert [next(items) for _ in range(3000)] == list(range(3000))
        yielding.join(WAIT)


def release_all(tr: Any, space: ClusterSpace, future_id: bytes) -> None:
    """Nobody refers to a future any more."""
    rows = space["references"].range((future_id,))
    tr.clear_range(rows.start, rows.stop)


def test_items_arrive_while_the_generator_runs(shared_cluster: Callable[..., Any], tmp_path: Path) -> None:
    demo = shared_cluster(workers=1)
    gate = tmp_path / "gate"
    future = demo.client().submit(slowly, 4, str(gate))
    got = []
    for item in future.stream(timeout=WAIT):
        got.append(item)
        assert not future.done() or item == 3
        Path(f"{gate}-{item + 1}").touch()
    assert got == [0, 1, 2, 3]
    assert future.result(WAIT) == got, "the result is the list of all items"
    assert list(future.stream()) == got, "each stream begins with the first"
    demo.check()


def test_many_items_results_and_dependents(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=1)
    client = demo.client()
    assert client.submit(count, 0).result(WAIT) == []
    assert client.submit(count, 1000).result(WAIT) == list(range(1000))
    items = client.submit(count, 300)
    assert client.submit(total, items).result(WAIT) == 44850, "what depends on it is no reader that it waits for"
    other = demo.client().get_future(items.id)
    assert list(other.stream(WAIT)) == other.result(WAIT) == list(range(300))
    client.delete(items)
    with pytest.raises(FutureDeletedError):
        list(client.get_future(items.id).stream())
    demo.check()


def test_all_who_want_the_whole_result_read_it(shared_cluster: Callable[..., Any]) -> None:
    with shared_cluster(workers=1).client() as client:
        generators = client.map(count, [250, 0, 250])
        assert list(map(len, client.gather(generators, timeout=WAIT))) == [250, 0, 250]
        (failed,) = client.gather([client.submit(broken, 250, max_retries=0)], errors="return", timeout=WAIT)
        assert repr(failed) == "ValueError('broken in the middle')"
        with client.executor() as executor:
            assert len(executor.submit(count, 250).result(WAIT)) == 250
            assert repr(executor.submit(broken, 250).exception(WAIT)) == repr(failed)


def test_nobody_reading_holds_the_generator_up(shared_cluster: Callable[..., Any], tmp_path: Path) -> None:
    demo = shared_cluster(workers=1)
    path = tmp_path / "yielded"
    client = demo.client()
    future = client.submit(noted, 1000, str(path))

    def yielded() -> int:
        return len(path.read_text().split()) if path.exists() else 0

    stream = future.stream(timeout=WAIT)
    assert next(stream) == 0
    deadline = time.monotonic() + WAIT
    while yielded() <= 100 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert client.submit(abs, -1).result(WAIT) == 1, "meanwhile its slot is free"
    assert yielded() <= 102
    assert list(stream) == list(range(1, 1000))
    assert yielded() == 1000
    demo.check()


def test_who_does_not_know_that_it_is_a_generator_gets_its_items_all_the_same(
    shared_cluster: Callable[..., Any],
) -> None:
    """More items than a generator goes ahead of its readers: a result that only waited for the end would wait for ever."""
    demo = shared_cluster(workers=1)
    client = demo.client()
    future = client.submit(count, 250)
    assert demo.client().get_future(future.id).result(WAIT) == list(range(250))
    assert client.submit(lambda: count(251)).result(WAIT) == list(range(251))

    async def awaited() -> list[int]:
        return await client.submit(count, 252)

    assert asyncio.run(asyncio.wait_for(awaited(), WAIT)) == list(range(252))
    assert client.submit(count, 3).exception(WAIT) is None
    demo.check()


def test_a_failure_in_the_middle(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=1)
    future = demo.client().submit(broken, 3, max_retries=1)
    got = []
    with pytest.raises(ValueError, match="broken in the middle"):  # noqa: PT012
        for item in future.stream(timeout=WAIT):
            got.append(item)
    assert got == [0, 1, 2]
    assert future.state() == FutureState.failed
    demo.check()


def test_a_task_that_raises_stopiteration_is_no_empty_stream(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=1)
    future = demo.client().submit(next, iter([]), max_retries=0)

    async def read() -> list[Any]:
        return [item async for item in future.stream(timeout=WAIT)]

    with pytest.raises(RuntimeError, match="StopIteration"):
        list(future.stream(timeout=WAIT))
    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(asyncio.wait_for(read(), WAIT))
    demo.check()


def test_a_death_in_the_middle_repeats_nothing(shared_cluster: Callable[..., Any], tmp_path: Path) -> None:
    demo = shared_cluster(workers=1)
    path = tmp_path / "pid"
    future = demo.client().submit(with_pid, 400, str(path))
    stream = future.stream(timeout=WAIT)
    got = [next(stream) for _ in range(30)]
    first = int(path.read_text())
    os.kill(first, signal.SIGKILL)
    got += stream
    assert [number for number, _ in got] == list(range(400))
    pids = [pid for _, pid in got]
    assert pids[0] == first
    assert pids[-1] == int(path.read_text()) != first
    assert pids == sorted(pids, key=lambda pid: pid != first), "what was stored isn't made again"
    demo.check()


def test_large_items_and_their_loss_with_a_worker(cluster: Callable[..., Any]) -> None:
    demo = cluster(workers=1)
    client = demo.client()
    future = client.submit(arrays, 8)
    assert [int(a[0]) for a in future.stream(timeout=WAIT)] == list(range(8))
    assert future.exception(WAIT) is None
    demo.workers[0].kill()
    demo.start("--slots", "1")
    again = demo.client().get_future(future.id)
    assert [int(a[0]) for a in again.stream(timeout=WAIT)] == list(range(8))
    demo.check()


def test_an_item_whose_fetching_was_interrupted_is_the_next_one(shared_cluster: Callable[..., Any]) -> None:
    client = shared_cluster(workers=1).client()
    future = client.submit(arrays, 4)
    assert future.exception(WAIT) is None, "all items are there: they are read together"
    stream = future.stream(timeout=WAIT)
    assert next(stream)[0] == 0
    results = client._context().results
    genuine = results.fetch_object
    interrupts = [KeyboardInterrupt(), DatabaseUnreachableError("no answer")]

    def interrupted(item: Any) -> Any:
        if interrupts:
            raise interrupts.pop()
        return genuine(item)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "fetch_object", interrupted)
        with pytest.raises(DatabaseUnreachableError):
            next(stream)
        with pytest.raises(KeyboardInterrupt):
            next(stream)
        assert [int(item[0]) for item in stream] == [1, 2, 3]


def test_async_streams(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=1)

    async def main() -> list[int]:
        async with Client(demo.url, demo.name) as client:
            return [item async for item in client.submit(count, 150).stream(timeout=WAIT)]

    assert asyncio.run(asyncio.wait_for(main(), WAIT)) == list(range(150))
    demo.check()


def test_what_a_cancelled_anext_waited_for_is_the_next_item(shared_cluster: Callable[..., Any], tmp_path: Path) -> None:
    demo = shared_cluster(workers=1)
    gate = tmp_path / "gate"

    def open_gates() -> None:
        for number in range(1, 4):
            Path(f"{gate}-{number}").touch()

    async def main() -> list[int]:
        async with Client(demo.url, demo.name) as client:
            items = client.submit(slowly, 4, str(gate)).stream(timeout=WAIT)
            got = [await anext(items)]
            given_up = asyncio.create_task(anext(items))
            await asyncio.sleep(0)
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            two = [asyncio.create_task(anext(items)) for _ in range(2)]
            open_gates()
            got += sorted(await asyncio.gather(*two))
            return got + [item async for item in items]

    assert asyncio.run(asyncio.wait_for(main(), WAIT)) == [0, 1, 2, 3]
    demo.check()


def test_streams_that_wait_hold_up_nothing_else_of_the_loop(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=1)
    free = threading.Event()

    async def main() -> tuple[list[int], list[int]]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        async with Client(demo.url, demo.name) as client:
            future = client.submit(count, 150)
            await future.aid()
            taken = asyncio.create_task(asyncio.to_thread(free.wait, WAIT))  # all threads that the loop has
            try:
                return [item async for item in future.stream(timeout=WAIT)], await client.submit(count, 120)
            finally:
                free.set()
                await taken

    assert asyncio.run(asyncio.wait_for(main(), WAIT / 2)) == (list(range(150)), list(range(120)))
    demo.check()


def nothing() -> Iterator[int]:
    return iter(())
    yield 1


def test_what_is_no_generator_is_no_empty_stream(shared_cluster: Callable[..., Any]) -> None:
    client = shared_cluster(workers=1).client()
    assert list(client.submit(nothing).stream(timeout=WAIT)) == []
    for future in (client.submit(sorted, [2, 1]), client.put([1, 2])):
        with pytest.raises(TypeError, match="is no stream"):
            list(future.stream(timeout=WAIT))
