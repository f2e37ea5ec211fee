"""Actors on real workers: named, ordered, stateful, restarted with fresh state or ended for a stated reason."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
import pytest

import futures_worker
from fdb_datamodel import FutureState
from futures_worker import (
    ActorDiedError,
    Client,
    DeadlockError,
    ObjectLostError,
    UpstreamDependencyFailedException,
    WorkerLostError,
    as_completed,
    wait,
)

WAIT = 60.0


class Counter:
    def __init__(self, start: int = 0, *, step: int = 1) -> None:
        self.value = start
        self.step = step
        self.seen: list[Any] = []

    def incr(self, by: int = 1) -> int:
        self.value += by * self.step
        return self.value

    def get(self) -> int:
        return self.value

    def note(self, what: Any) -> None:
        self.seen.append(what)

    def notes(self) -> list[Any]:
        return self.seen

    def pid(self) -> int:
        return os.getpid()

    def sleep(self, seconds: float) -> str:
        time.sleep(seconds)
        return "slept"

    def ask(self, actor: Any) -> int:
        return int(actor.get().result())

    def refuse(self) -> None:
        raise ValueError("no")

    def large(self, size: int) -> Any:
        return np.full(size, self.value, dtype=np.int64)

    def total(self, array: Any) -> int:
        return int(array.sum())


def incr_by(actor: Any, times: int) -> int:
    results = futures_worker.gather([actor.incr() for _ in range(times)], progress=False)
    return int(results[-1])


def add(a: int, b: int) -> int:
    return a + b


def until_lost(call: Callable[[], Any]) -> ActorDiedError:
    """Calls until one fails for the actor's death."""
    while True:
        error = call().exception(WAIT)
        if error is not None:
            assert isinstance(error, ActorDiedError)
            return error


def until_up(call: Callable[[], Any]) -> Any:
    """Calls until one succeeds; those sent before the death was noticed are lost, and say so."""
    while True:
        future = call()
        error = future.exception(WAIT)
        if error is None:
            return future.result()
        assert isinstance(error, ActorDiedError)
        assert "may have run" in str(error)


def test_calls_change_state_in_order(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=1)
    client = demo.client()
    actor = client.actor(Counter, 10, step=2)
    assert actor.incr(2).result(WAIT) == 14
    calls = [actor.incr() for _ in range(500)]
    assert [call.result(WAIT) for call in calls] == list(range(16, 1016, 2))
    assert client.gather([actor.incr() for _ in range(100)], progress=False)[-1] == 1214
    with pytest.raises(ValueError, match="no") as caught:
        actor.refuse().result(WAIT)
    assert "in refuse" in str(caught.value.__cause__)
    assert actor.get().result(WAIT) == 1214, "it outlives what its methods raise"
    assert actor.pid().result(WAIT) not in (os.getpid(), *(w.pid for w in demo.workers))
    with pytest.raises(AttributeError, match="no public method 'nonsense'"):
        actor.nonsense
    demo.check()


def test_the_actor_holds_no_slot(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=1, slots=1)
    client = demo.client()
    actors = [client.actor(Counter, n) for n in range(3)]
    assert [a.get().result(WAIT) for a in actors] == [0, 1, 2]
    assert client.submit(add, 1, 2).result(WAIT) == 3
    assert client.submit(incr_by, actors[0], 20).result(WAIT) == 20
    demo.check()


def test_named_actors_are_got_or_created(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=1)
    client, other = demo.client(), demo.client()
    hits = client.actor(Counter, 5, name="hits")
    assert hits.incr().result(WAIT) == 6
    assert other.actor(Counter, 0, name="hits").incr().result(WAIT) == 7
    assert other.get_actor("hits") == hits
    assert other.get_actor("hits").incr().result(WAIT) == 8
    with pytest.raises(LookupError, match="no actor named 'misses'"):
        other.get_actor("misses")
    client.close()
    assert other.get_actor("hits").get().result(WAIT) == 8, "a named actor outlives its maker"
    other.kill_actor(other.get_actor("hits"))
    assert other.actor(Counter, 1, name="hits").get().result(WAIT) == 1
    demo.check()


def test_calls_are_ordinary_futures(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=1)
    client, other = demo.client(), demo.client()
    actor = client.actor(Counter)
    slow = actor.sleep(0.5)
    waiting = actor.incr(3)
    assert other.get_future(waiting.id).result(WAIT) == 3, "found by its id, though it was asked for before it ran"
    assert slow.result() == "slept"
    assert waiting.state() == FutureState.realized
    assert client.submit(add, actor.incr(), actor.incr()).result(WAIT) == 9
    assert actor.incr(client.submit(add, 1, 1)).result(WAIT) == 7, "futures as arguments are waited for, in order"
    assert actor.incr(actor.get()).result(WAIT) == 14
    array = actor.large(100_000)
    assert int(array.result(WAIT)[0]) == 14
    assert array.size_in_bytes > 800_000
    assert actor.total(array).result(WAIT) == 1_400_000
    done = [c.result() for c in as_completed([actor.incr() for _ in range(50)], timeout=WAIT)]
    assert sorted(done) == list(range(15, 65))
    mixed = wait([actor.get(), client.submit(add, 1, 1)], timeout=WAIT)
    assert len(mixed.done) == 2
    told = threading.Event()
    actor.get().add_done_callback(lambda _: told.set())
    assert told.wait(WAIT)
    assert actor.note(None).done() in (True, False)
    client.flush()
    client.delete(array)
    demo.check()


def test_async_calls(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=1)

    async def count() -> list[int]:
        async with Client(demo.url, demo.name) as client:
            actor = client.actor(Counter)
            first = await actor.incr()
            rest = await asyncio.gather(*[actor.incr() for _ in range(200)])
            with pytest.raises(ValueError, match="no"):
                await actor.refuse()
            return [first, *rest]

    assert asyncio.run(asyncio.wait_for(count(), WAIT)) == list(range(1, 202))
    demo.check()


def test_order_per_caller_and_threads(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=1)
    actor = demo.client().actor(Counter, name="log")

    def call(client: Any, who: int) -> None:
        mine = client.get_actor("log")
        for number in range(300):
            last = mine.note((who, number))
        last.result(WAIT)

    actor.get().result(WAIT)
    threads = [threading.Thread(target=call, args=(demo.client(), who)) for who in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    notes = actor.notes().result(WAIT)
    assert len(notes) == 900
    for who in range(3):
        assert [number for w, number in notes if w == who] == list(range(300))
    demo.check()


def test_a_killed_process_is_restarted_with_fresh_state(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=1)
    client = demo.client()
    actor = client.actor(Counter, 100, max_restarts=1)
    assert actor.incr().result(WAIT) == 101
    kept = actor.get()
    assert kept.result(WAIT) == 101
    os.kill(actor.pid().result(WAIT), signal.SIGKILL)
    assert until_up(actor.incr) == 101, "fresh state"
    pid = actor.pid().result(WAIT)
    running = actor.sleep(60)
    known = str(running.id)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ActorDiedError, match="may have run"):
        running.result(WAIT)
    assert "is no more" in str(until_lost(actor.incr))
    with pytest.raises(WorkerLostError):
        actor.get().result(WAIT)
    with pytest.raises(ActorDiedError):
        demo.client().get_future(known).result(WAIT)
    assert kept.result() == 101
    demo.check()


def test_a_killed_worker_ends_the_actor_or_moves_it(cluster: Callable[..., Any]) -> None:
    demo = cluster(workers=1)
    client = demo.client()
    mortal, phoenix = client.actor(Counter), client.actor(Counter, max_restarts=-1)
    assert mortal.incr().result(WAIT) == phoenix.incr().result(WAIT) == 1
    stored = phoenix.large(100_000)
    assert stored.exception(WAIT) is None
    demo.workers[0].kill()
    demo.start("--slots", "1")
    until_lost(mortal.incr)
    assert until_up(phoenix.incr) == 1
    with pytest.raises(ObjectLostError):
        stored.result(WAIT)  # never computed again by an actor that has another state
    demo.check()


def test_a_drained_worker_gives_its_actors_up(cluster: Callable[..., Any]) -> None:
    demo = cluster(workers=1)
    client = demo.client()
    actor = client.actor(Counter, 1, max_restarts=1)
    assert actor.incr().result(WAIT) == 2
    assert demo.workers[0].stop() == 0
    demo.start("--slots", "1")
    assert until_up(actor.incr) == 2
    demo.check()


class Refusing:
    def __init__(self) -> None:
        raise RuntimeError("not today")

    def get(self) -> None: ...


def test_a_constructor_that_raises_and_other_ends(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=1)
    client = demo.client()
    with pytest.raises(ActorDiedError, match="not today"):
        client.actor(Refusing, max_restarts=3).get().result(WAIT)
    actor = client.actor(Counter)
    assert actor.get().result(WAIT) == 0
    busy, queued, last = actor.sleep(0.5), actor.incr(), actor.get()
    queued.cancel()  # learns what came of it within a second, or not
    assert busy.result(WAIT) == "slept"
    assert last.result(WAIT) == 0
    assert queued.cancelled()
    slow = actor.sleep(60)
    client.kill_actor(actor)
    client.kill_actor(actor)
    for call in (slow, actor.get()):
        with pytest.raises(ActorDiedError):
            call.result(WAIT)
    with pytest.raises(TypeError, match="from a class"):
        client.actor(add)
    with pytest.raises(ValueError, match="max_restarts"):
        client.actor(Counter, max_restarts=-2)
    with pytest.raises(TimeoutError):
        client.actor(Counter, resources={"ram": "1TiB"}).get().result(0.3)
    demo.check()


def test_a_call_that_ended_without_its_actor_is_known_to_the_cluster_all_the_same(
    shared_cluster: Callable[..., Any],
) -> None:
    demo = shared_cluster(workers=1)
    client, other = demo.client(), demo.client()
    gone, never_up = client.actor(Counter), client.actor(Counter, resources={"gpu": 99})
    client.kill_actor(gone)
    lost, cancelled = gone.get(), never_up.get()
    assert isinstance(lost.exception(WAIT), ActorDiedError)
    assert cancelled.cancel()
    for call, error in ((lost, ActorDiedError), (cancelled, CancelledError)):
        with pytest.raises(UpstreamDependencyFailedException, match=r"no more|cancelled"):
            client.submit(abs, call).result(WAIT)
        assert call.state() == FutureState.failed
        with pytest.raises(error):
            other.get_future(call.id).result(WAIT)
    with pytest.raises(TimeoutError, match="gpu=99"):
        never_up.get().result(0.05)
    client.kill_actor(never_up)
    demo.check()


def test_an_actor_that_waits_for_itself_says_so(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=1)
    client = demo.client()
    one, two = client.actor(Counter, 1), client.actor(Counter, 2)
    assert one.ask(two).result(WAIT) == 2
    with pytest.raises(DeadlockError, match="waits for"):
        one.ask(one).result(WAIT)
    assert one.get().result(WAIT) == 1, "it goes on"
    demo.check()


def test_a_closed_client_ends_its_unnamed_actors(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=1)
    client, other = demo.client(), demo.client()
    actor = client.actor(Counter)
    actor_id = actor._id
    assert actor.get().result(WAIT) == 0
    client.close()
    assert other.get_future(actor_id).cancelled()
    demo.check()


def test_calls_of_a_client_that_just_closes_are_made(cluster: Callable[..., Any]) -> None:
    demo = cluster(workers=0)
    early = demo.client()
    log = early.actor(Counter, name="log")
    for number in range(50):
        log.note(("early", number))
    early.close()
    demo.start("--slots", "1")
    other = demo.client()
    actor = other.get_actor("log")
    assert actor.get().result(WAIT) == 0
    hasty = demo.client()
    mine = hasty.get_actor("log")
    mine.get().result(WAIT)
    for number in range(500):
        mine.note(("hasty", number))
    hasty.close()
    seen: list[Any] = []
    while len(seen) < 550:
        seen = actor.notes().result(WAIT)
    assert [number for who, number in seen if who == "early"] == list(range(50))
    assert [number for who, number in seen if who == "hasty"] == list(range(500))
    demo.check()


def test_futures_that_a_class_refers_to_stay_futures(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=1)
    client = demo.client()
    table = client.put([1, 2, 3])

    class Reader:
        def __init__(self, given: Any) -> None:
            self.given = given

        def read(self) -> Any:
            return table.result(), self.given

    assert client.actor(Reader, table).read().result(WAIT) == ([1, 2, 3], [1, 2, 3])
    demo.check()


def test_a_class_and_what_it_is_given_share_what_both_refer_to(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=1)
    seen: list[int] = []

    class Recorder:
        def __init__(self, note: Callable[[int], None]) -> None:
            self.note = note

        def record(self, number: int) -> list[int]:
            self.note(number)
            return seen

    assert demo.client().actor(Recorder, seen.append).record(7).result(WAIT) == [7]
    assert demo.client().actor(Recorder, lambda number: seen.append(number)).record(8).result(WAIT) == [8]
    demo.check()
