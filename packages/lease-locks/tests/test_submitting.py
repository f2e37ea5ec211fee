"""Calls in the background: of the decorated function and of the runner, in threads and on an event loop, so many at once."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import memo_functions as functions
import pytest
from lease_processes import DEADLINE, eventually

from fdb_schema import open_database
from lease_locks import (
    InvocationTimedOut,
    LeaseManager,
    MemoFuture,
    MemoizingPicklingRunner,
    MemoKeyError,
    Unmemoized,
    samethread_shell,
)
from lease_locks.memo.functions import bind
from lease_locks.memo.pickling import dumps, loads


@pytest.fixture
def locks() -> Iterator[LeaseManager]:
    with LeaseManager(open_database("memory:"), cluster="demo") as manager:
        yield manager


class Gate:
    """Calls of `pass_through` wait here, counted; one runner makes them in this process."""

    def __init__(self) -> None:
        self.inside: list[int] = []
        self.most = 0
        self.order: list[int] = []
        self.open = threading.Semaphore(0)
        self.mutex = threading.Lock()

    def __memo_key__(self) -> str:
        return "gate"

    def pass_through(self, x: int) -> int:
        with self.mutex:
            self.inside.append(x)
            self.order.append(x)
            self.most = max(self.most, len(self.inside))
        assert self.open.acquire(timeout=DEADLINE)
        with self.mutex:
            self.inside.remove(x)
        return x * x


def runner_of(locks: LeaseManager, **options: Any) -> MemoizingPicklingRunner:
    return MemoizingPicklingRunner(locks, shell=samethread_shell, pipeline_id="demo", **options)


def through(gate: Gate, runner: MemoizingPicklingRunner) -> Any:
    return runner.memoize(lambda x: gate.pass_through(x))


def test_a_memoized_function_can_be_submitted_looked_up_and_awaited(locks: LeaseManager) -> None:
    runner = runner_of(locks)

    @runner.memoize(ignore=["log"])
    def double(x: int, log: str = "") -> int:
        return 2 * x

    missing = double.peek(1, log="a")
    assert isinstance(missing, Unmemoized)
    future = double.submit(1, "b")
    assert isinstance(future, MemoFuture)
    assert (future.result(DEADLINE), future.memo_uri) == (2, missing.memo_uri)
    assert double.peek(1, "c") == double(1) == runner.peek(double, 1) == 2
    assert missing.invoke() == 2
    assert asyncio.run(double.async_call(1, "d")) == asyncio.run(runner.async_call(double, x=1)) == 2
    assert asyncio.run(double.async_call(4)) == 8
    runner.flush()
    ((_, _, counts),) = runner.rows.runs(locks.db, runner.run_id)
    assert sum(count for (_, kind), count in counts.items() if kind == "executed") == 2
    copied = loads(dumps(lambda: double))()
    assert copied.peek(4) == 8
    assert "double" in repr(double.submit)


def test_each_way_has_the_time_limit_of_the_function(locks: LeaseManager) -> None:
    def shell(args: Any) -> None:
        eventually(lambda: not locks.list("memo/"), "the limit is over")

    runner = MemoizingPicklingRunner(locks, shell=shell, pipeline_id="demo")
    limited = runner.memoize(max_hold=0.3)(functions.length)
    with pytest.raises(InvocationTimedOut):
        limited.submit(b"a").result(DEADLINE)
    with pytest.raises(InvocationTimedOut):
        asyncio.run(limited.async_call(b"a"))
    with pytest.raises(InvocationTimedOut):
        limited.peek(b"a").invoke()


def test_what_a_decorator_copies_of_a_memoized_function_is_no_part_of_its_key(locks: LeaseManager) -> None:
    def key(decorated: Any) -> bytes:
        return bind("demo", decorated, (1,), {}).memo.digest

    def around(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(x: int) -> Any:
            return function(x)

        return wrapper

    def f(x: int) -> int:
        return x

    assert key(around(runner_of(locks).memoize(f))) == key(around(f))


def test_no_more_calls_are_made_at_once_than_may_be_and_they_come_in_order(locks: LeaseManager) -> None:
    gate = Gate()
    function = through(gate, runner_of(locks, concurrent=2))
    futures = [function.submit(n) for n in range(6)]
    eventually(lambda: len(gate.inside) == 2, "two are made")
    assert futures[3].cancel(), "it has not begun"
    assert [future.running() for future in futures] == [True, True, False, False, False, False]
    for _ in range(6):
        gate.open.release()
    assert [futures[n].result(DEADLINE) for n in (0, 1, 2, 4, 5)] == [0, 1, 4, 16, 25]
    assert (gate.most, sorted(gate.order), sorted(gate.order[:2])) == (2, [0, 1, 2, 4, 5], [0, 1])
    gate.open.release()
    assert function.submit(9).result(DEADLINE) == 81, "the places are free again"


def test_a_call_that_submits_another_one_and_waits_for_it_ends(locks: LeaseManager) -> None:
    runner = runner_of(locks, concurrent=1)

    @runner.memoize
    def inner(x: int) -> int:
        return x + 1

    @runner.memoize
    def outer(x: int) -> int:
        return int(inner.submit(x).result(DEADLINE)) * 10

    assert [outer.submit(n).result(DEADLINE) for n in range(3)] == [10, 20, 30]


def test_a_failing_call_frees_its_place(locks: LeaseManager) -> None:
    runner = runner_of(locks, concurrent=1)

    @runner.memoize
    def fails(x: int) -> int:
        raise StopIteration(x)

    for future in [fails.submit(n) for n in range(3)]:
        with pytest.raises(StopIteration):
            future.result(DEADLINE)
    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(asyncio.wait_for(fails.async_call(1), DEADLINE))


def test_awaiting_does_not_hold_up_the_loop_and_a_cancelled_task_leaves_the_invocation(locks: LeaseManager) -> None:
    gate = Gate()
    runner = runner_of(locks, concurrent=1)
    function = through(gate, runner)

    async def program() -> None:
        tasks = [asyncio.create_task(function.async_call(n)) for n in (2, 3)]
        await asyncio.to_thread(eventually, lambda: gate.inside, "one is made")
        for task in tasks:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert gate.inside == [2], "it goes on"
        gate.open.release()
        await asyncio.to_thread(eventually, lambda: function.peek(2), "it has ended")
        gate.open.release()
        assert await asyncio.gather(function.async_call(2), function.async_call(4)) == [4, 16]

    asyncio.run(program())
    assert gate.order == [2, 4], "what had no place yet was not begun"
    assert locks.list("memo/") == []


def test_a_call_outlives_the_loop_that_awaited_it(locks: LeaseManager) -> None:
    gate = Gate()
    function = through(gate, runner_of(locks))

    async def program() -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(function.async_call(5), 0.05)

    asyncio.run(program())
    gate.open.release()
    eventually(lambda: function.peek(5) == 25, "its result is memoized")


def test_what_has_no_key_is_refused_where_it_is_submitted_or_awaited(locks: LeaseManager) -> None:
    refused: Any = runner_of(locks).memoize(functions.length)
    with pytest.raises(MemoKeyError):
        refused.submit(threading.Lock())
    with pytest.raises(MemoKeyError):
        asyncio.run(refused.async_call(threading.Lock()))


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "2"])
def test_a_number_of_calls_is_one(locks: LeaseManager, wrong: Any) -> None:
    with pytest.raises(ValueError, match="concurrent must be None or a number of calls"):
        runner_of(locks, concurrent=wrong)
