"""Queues: each item once and in order, whoever gets it, wherever it dies; nobody is woken in vain."""

from __future__ import annotations

import asyncio
import math
import pickle
import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, Full
from typing import Any

import pytest
from conftest import seed_params
from coordination_lab import WAIT, Process, until, waiting
from support.counting import Counted

from fdb_datamodel import declare_session_dead, validate
from fdb_datamodel.coordination.lines import PUTTERS
from fdb_datamodel.transitions.sessions import session_sightings
from fdb_schema import ClusterSpace, MainspringError, OversizeError, open_database
from futures_worker import ClaimLostError, Client, ResultPickleError, UnknownNameError
from idempotent_txn import run

SPACE = ClusterSpace("test")


@pytest.fixture
def client(any_db: Any) -> Iterator[Client]:
    with Client(any_db, "test") as one:
        yield one
    assert validate(any_db, "test") == []


def declare_dead(client: Client) -> None:
    """As others find a client that was stopped for long."""
    session = client._context().id
    for sighting in run(client._context.db, session_sightings, SPACE):
        if sighting.id == session:
            assert run(client._context.db, declare_session_dead, SPACE, sighting)


def test_it_is_a_queue(client: Client) -> None:
    jobs = client.queue("jobs")
    assert (jobs.empty(), jobs.full(), jobs.qsize(), jobs.maxsize) == (True, False, 0, 0)
    jobs.put({"a": 1})
    jobs.put_nowait([2])
    jobs.put_many(["x", None])
    assert client.queue("jobs") == jobs and hash(client.queue("jobs")) == hash(jobs) and jobs != client.queue("other")
    assert jobs.qsize() == 4
    assert jobs.get() == {"a": 1}
    assert jobs.get(block=False) == [2]
    assert jobs.get_many(10) == ["x", None]
    for get in (jobs.get_nowait, lambda: jobs.get(timeout=0.01), lambda: jobs.get_many(2, block=False)):
        with pytest.raises(Empty, match="jobs"):
            get()
    assert repr(jobs) == "<Queue 'jobs'>"


def test_a_bound_is_kept_and_said(client: Client) -> None:
    jobs = client.queue("jobs", maxsize=2)
    jobs.put_many([1, 2])
    assert jobs.full() and jobs.maxsize == 2
    for put in (lambda: jobs.put_nowait(3), lambda: jobs.put(3, timeout=0.01)):
        with pytest.raises(Full):
            put()
    jobs.get()
    with pytest.raises(Full, match="after 1 of 3 items were put"):
        jobs.put_many([3, 4, 5], timeout=0.01)
    assert client.queue("jobs").maxsize == 2, "as it is"
    with pytest.raises(ValueError, match=r"takes 2 items, found maxsize=3.*delete\(\)"):
        client.queue("jobs", maxsize=3)
    with pytest.raises(ValueError, match="found maxsize=0"):
        client.queue("jobs", maxsize=0)


def test_what_makes_no_sense_is_refused(client: Client) -> None:
    jobs = client.queue("jobs")
    for name in ("", "a\0b", 5):
        with pytest.raises(ValueError, match="a queue has a name"):
            client.queue(name)  # type: ignore[arg-type]
    for maxsize in (-1, True, 1.5):
        with pytest.raises(ValueError, match="maxsize"):
            client.queue("x", maxsize)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="0 or more"):
        jobs.get(timeout=-1)
    with pytest.raises(TypeError, match="seconds"):
        jobs.get(timeout="soon")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="count"):
        jobs.get_many(0)
    with pytest.raises(OversizeError, match=r"60,000 bytes each: put the object with client\.put"):
        jobs.put_many([1, bytes(70_000)])
    with pytest.raises(ResultPickleError):
        jobs.put(threading.Lock())
    assert jobs.empty(), "nothing of them was put"


def test_one_that_was_deleted_says_so_also_to_who_waits(client: Client) -> None:
    jobs, same = client.queue("jobs"), client.queue("jobs")
    jobs.put(1)
    with ThreadPoolExecutor(2) as pool:
        jobs.get()
        waits = [pool.submit(jobs.get), pool.submit(same.get, timeout=WAIT)]
        until(lambda: waiting(client._context.db, "queues", "jobs") == 2)
        assert same.delete() is True
        for wait in waits:
            with pytest.raises(UnknownNameError, match="has no queue 'jobs': it was deleted"):
                wait.result(WAIT)
    assert jobs.delete() is False
    client.queue("jobs").put(2)
    assert jobs.get() == 2, "it is known by its name"


def test_who_waits_is_served_in_the_order_they_came(client: Client) -> None:
    jobs = client.queue("jobs")
    with ThreadPoolExecutor(4) as pool:
        waits = []
        for count in range(1, 5):
            waits.append(pool.submit(jobs.get, timeout=WAIT))
            until(lambda count=count: waiting(client._context.db, "queues", "jobs") == count)
        jobs.put_many(range(4))
        assert [wait.result(WAIT) for wait in waits] == [0, 1, 2, 3]


def test_who_waits_for_room_is_served_too(client: Client) -> None:
    jobs = client.queue("jobs", maxsize=1)
    jobs.put(0)
    with ThreadPoolExecutor(3) as pool:
        puts = []
        for count in range(1, 4):
            puts.append(pool.submit(jobs.put, count))
            until(lambda count=count: waiting(client._context.db, "queues", "jobs", PUTTERS) == count)
        assert [jobs.get(timeout=WAIT) for _ in range(4)] == [0, 1, 2, 3]
        for put in puts:
            put.result(WAIT)


def test_what_each_costs_in_transactions(any_db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("idempotent_txn.ids.floor.FLOOR_SECONDS", math.inf)  # now and then a version is asked for, too
    db = Counted(any_db, but_by="mainspring-session")
    with Client(db, "test") as client:
        jobs, small = client.queue("jobs"), client.queue("small", maxsize=1)
        jobs.put(0)

        def cost(what: Any) -> int:
            before = db.count
            what()
            return db.count - before

        assert cost(lambda: jobs.put(1)) == 1
        assert cost(lambda: jobs.put_many(range(500))) == 1
        assert cost(jobs.get) == 1
        assert cost(lambda: jobs.get_many(400)) == 1
        assert cost(jobs.get_nowait) == 1
        assert cost(lambda: small.put(1)) == 1
        assert cost(jobs.qsize) == 1
        small.get()

        def empty() -> None:
            with pytest.raises(Empty):
                small.get_nowait()

        assert cost(empty) == 1
        before = db.count
        with ThreadPoolExecutor(1) as pool:
            wait = pool.submit(small.get)
            until(lambda: waiting(any_db, "queues", "small") == 1)
            small.put(1)
            assert wait.result(WAIT) == 1
        assert db.count - before <= 6, "it stands in line, watches, and gets; and the put"


@pytest.mark.parametrize("seed", seed_params(6))
def test_threads_get_each_item_once_and_in_the_order_of_each_producer(any_db: Any, seed: int) -> None:
    rng = random.Random(seed)
    producers, consumers, each = rng.randint(1, 3), rng.randint(1, 4), 40
    maxsize = rng.choice((0, 0, 1, 5))
    with Client(any_db, "test") as client:
        jobs = client.queue("jobs", maxsize)
        got: list[list[tuple[int, int]]] = [[] for _ in range(consumers)]
        chances = [random.Random(rng.random()) for _ in range(producers + consumers)]

        def produce(number: int) -> None:
            chance, at = chances[number], 0
            while at < each:
                count = chance.randint(1, min(4, each - at))
                jobs.put_many([(number, n) for n in range(at, at + count)])
                at += count

        def consume(number: int) -> None:
            chance = chances[producers + number]
            while True:
                kind = chance.randrange(3)
                if kind == 0:
                    found = jobs.get_many(chance.randint(1, 4), timeout=WAIT)
                elif kind == 1:
                    found = [jobs.get(timeout=WAIT)]
                else:
                    with jobs.take(timeout=WAIT) as item:
                        found = [item]
                for item in found:
                    if item is None:
                        jobs.put_many([None] * found.count(None))
                        return
                    got[number].append(item)

        with ThreadPoolExecutor(producers + consumers) as pool:
            made = [pool.submit(produce, n) for n in range(producers)]
            used = [pool.submit(consume, n) for n in range(consumers)]
            for one in made:
                one.result(WAIT)
            ends = pool.submit(jobs.put, None)
            for one in (*used, ends):
                one.result(WAIT)
        everything = [item for items in got for item in items]
        assert Counter(everything) == Counter((number, n) for number in range(producers) for n in range(each))
        for items in got:
            for number in range(producers):
                mine = [n for who, n in items if who == number]
                assert mine == sorted(mine)
    assert validate(any_db, "test") == []


def test_processes_share_it_and_a_handle_finds_its_way(shared_url: str) -> None:
    with Client(shared_url, "test") as client:
        jobs, done = client.queue("jobs"), client.queue("done")
        handle = pickle.dumps((jobs, done))
        code = f"""
import pickle
jobs, done = pickle.loads({handle!r})
while (item := jobs.get()) is not None:
    done.put(item * item)
"""
        with Process(shared_url, code), Process(shared_url, code):
            jobs.put_many([*range(50), None, None])
            assert sorted(done.get(timeout=WAIT) for _ in range(50)) == [n * n for n in range(50)]


def test_an_item_comes_back_if_its_taker_is_killed(shared_url: str) -> None:
    with Client(shared_url, "test") as client:
        jobs = client.queue("jobs")
        jobs.put_many(["first", "second"])
        code = "with client.queue('jobs').take() as item:\n    print(item, flush=True)\n    input()"
        with Process(shared_url, code) as other:
            assert other.line() == "first"
            assert jobs.qsize() == 1
            other.kill()
            assert jobs.get() == "second", "there is something: nobody looks for the dead"
            assert jobs.get(timeout=WAIT) == "first"
            jobs.put("third")
        with Process(shared_url, code) as other:
            assert other.line() == "third"
            other.kill()
            assert jobs.get_nowait() == "third", "its process is gone, as can be seen on this host"
    assert validate(open_database(shared_url), "test") == []


def test_who_is_killed_while_it_waits_holds_up_nobody(shared_url: str) -> None:
    db = open_database(shared_url)
    with Client(shared_url, "test") as client:
        jobs = client.queue("jobs")
        code = "print('here', flush=True)\nprint(client.queue('jobs').get(), flush=True)"
        with Process(shared_url, code) as first, Process(shared_url, code) as second:
            assert first.line() == second.line() == "here"
            until(lambda: waiting(db, "queues", "jobs") == 2)
            first.kill()
            with ThreadPoolExecutor(1) as pool:
                mine = pool.submit(jobs.get, timeout=WAIT)
                until(lambda: waiting(db, "queues", "jobs") >= 2)
                jobs.put_many([1, 2])
                assert {mine.result(WAIT), int(second.line())} == {1, 2}
    assert validate(db, "test") == []


def test_who_is_stopped_first_in_line_loses_its_place(client: Client) -> None:
    """Its process lives, and takes nothing."""
    from fdb_datamodel.coordination.lines import join_line
    from fdb_datamodel.coordination.queues import queue_line

    jobs = client.queue("jobs")
    jobs.put(1)
    run(client._context.db, join_line, SPACE, queue_line("jobs"), client._context().id)
    assert jobs.get(timeout=WAIT) == 1
    assert waiting(client._context.db, "queues", "jobs") == 0


def test_a_taker_that_was_taken_for_dead_is_told(client: Client, any_db: Any) -> None:
    jobs = client.queue("jobs")
    jobs.put("x")
    with Client(any_db, "test") as other:
        taking = other.queue("jobs").take()
        assert taking.__enter__() == "x"
        declare_dead(other)
        assert jobs.get(timeout=WAIT) == "x"
        with pytest.raises(ClaimLostError, match="another may have it"):
            taking.__exit__(None, None, None)
    jobs.put("y")
    with pytest.raises(KeyError), jobs.take() as item:
        raise KeyError(item)
    assert jobs.qsize() == 1, "it is back"
    with jobs.take(timeout=1) as item:
        assert (item, jobs.qsize()) == ("y", 0)
    with pytest.raises(Empty), jobs.take(timeout=0.01):
        pass


class Unloadable:
    """Of a module that others have."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _raise, ()


def _raise() -> None:
    raise ModuleNotFoundError("no module 'elsewhere'", name="elsewhere")


def test_an_item_that_cannot_be_loaded_here_is_still_there(client: Client) -> None:
    jobs = client.queue("jobs")
    jobs.put_many([1, Unloadable(), 2])
    with pytest.raises(ResultPickleError, match="elsewhere"):
        jobs.get_many(3)
    assert jobs.get() == 1
    for get in (jobs.get, jobs.take().__enter__):
        with pytest.raises(ResultPickleError, match="elsewhere"):
            get()
    assert jobs.qsize() == 2
    assert jobs.discard() is True
    assert jobs.get() == 2
    assert jobs.discard() is False


def test_futures_and_handles_are_items(client: Client) -> None:
    jobs, answers = client.queue("jobs"), client.queue("answers")
    jobs.put({"data": client.put([1, 2, 3]), "answer": answers})
    item = jobs.get()
    item["answer"].put(sum(item["data"].result()))
    assert answers.get() == 6
    jobs.put(client.put("inside"))
    with jobs.take() as future:
        assert future.result() == "inside"


def test_asyncio_waits_and_takes_nothing_when_it_is_cancelled(client: Client) -> None:
    jobs = client.queue("jobs", maxsize=2)

    async def main() -> None:
        wait = asyncio.create_task(jobs.aget())
        while not await asyncio.to_thread(waiting, client._context.db, "queues", "jobs"):
            pass
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait
        await jobs.aput_many([1, 2])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await jobs.aput(3)
        assert await jobs.aget_many(5) == [1, 2]
        await jobs.aput("x")
        async with jobs.take() as item:
            assert item == "x"
        with pytest.raises(Empty):
            await jobs.aget(timeout=0.01)

    asyncio.run(main())


def test_what_came_for_a_wait_that_was_cancelled_is_put_back(client: Client) -> None:
    jobs = client.queue("jobs")
    for _ in range(20):
        jobs.put_many(["a", "b"])

        async def main() -> Any:
            wait = asyncio.create_task(jobs.aget())
            await asyncio.sleep(0)
            wait.cancel()
            return await asyncio.gather(wait, return_exceptions=True)

        (answer,) = asyncio.run(main())
        assert isinstance(answer, asyncio.CancelledError)
        until(lambda: "mainspring-asyncio" not in {thread.name for thread in threading.enumerate()})
        assert jobs.get() == "a"
        assert jobs.get() == "b"


def test_a_client_that_is_closed_ends_its_waits(any_db: Any) -> None:
    other = Client(any_db, "test")
    jobs = other.queue("jobs")
    with ThreadPoolExecutor(1) as pool:
        wait = pool.submit(jobs.get)
        until(lambda: waiting(any_db, "queues", "jobs"))
        other.close()
        with pytest.raises(MainspringError, match="closed"):
            wait.result(WAIT)
    with pytest.raises(MainspringError, match="closed"):
        jobs.put(1)
