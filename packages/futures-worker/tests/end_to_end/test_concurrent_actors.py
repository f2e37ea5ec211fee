"""Actors that run several calls at a time: order, results, cancels, deaths, and what stays as it is for all others."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import msgpack
import pytest

from fdb_datamodel import WorkerId, WorkerInfo, claim_future, new_future_id, new_incarnation, register_worker
from fdb_datamodel.actors import begin_host, find_actor, place_host
from futures_worker import ActorDiedError, FutureFailedError, cancel_requested, current_client
from futures_worker.database import ask
from futures_worker.objects.store_secret import ClusterSecrets
from futures_worker.ports import wire
from futures_worker.ports.handshake import ACTOR
from futures_worker.worker.actor_host import Server
from idempotent_txn import run

WAIT = 60.0


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + WAIT
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def touch(path: str) -> None:
    Path(path).touch()


class Room:
    """Its calls meet."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.inside = self.most = 0
        self.open = asyncio.Event()
        self.gate = threading.Event()
        self.lock = threading.Lock()

    async def come(self, number: int, path: str = "") -> tuple[int, int]:
        if path:
            touch(path)
        self.begun.append(number)
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await self.open.wait()
        finally:
            self.inside -= 1
        return number, threading.get_ident()

    async def let_in(self) -> list[int]:
        self.open.set()
        return self.begun

    async def state(self) -> tuple[list[int], int, int]:
        return self.begun, self.inside, self.most

    async def raises(self, error: BaseException) -> None:
        await asyncio.sleep(0)
        raise error

    async def swallows(self, path: str) -> str:
        touch(path)
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            return f"goes on: {cancel_requested()}"
        return "let in"

    def come_in_a_thread(self, number: int) -> tuple[int, int]:
        with self.lock:
            self.begun.append(number)
            self.inside += 1
            self.most = max(self.most, self.inside)
        self.gate.wait(WAIT)
        with self.lock:
            self.inside -= 1
        return number, threading.get_ident()

    def open_gate(self) -> list[int]:
        self.gate.set()
        return self.begun

    def asks(self) -> str:
        until(cancel_requested)
        return "told"

    def makes_a_coroutine(self) -> Any:
        return self.state()

    def pid(self) -> int:
        return os.getpid()

    async def add(self, one: int, other: int = 0) -> int:
        return one + other

    async def asks_itself(self, name: str, number: int) -> int:
        actor: Any = current_client().get_actor(name)
        return 1 + await actor.add(number)

    def asks_itself_in_a_thread(self, name: str, number: int) -> int:
        actor: Any = current_client().get_actor(name)
        time.sleep(0.2)  # longer than a wait that isn't recorded
        return 1 + int(actor.asks_itself(name, number).result(timeout=WAIT))

    async def large(self) -> bytes:
        return bytes(300_000)


def test_coroutines_of_one_actor_are_interleaved_on_its_loop(shared_cluster: Any, tmp_path: Path) -> None:
    demo = shared_cluster(workers=1, slots=1)
    client = demo.client()
    room: Any = client.actor(Room, concurrency=4)
    calls = [room.come(number, str(tmp_path / str(number))) for number in range(10)]
    until((tmp_path / "3").exists)
    # Four are inside, the rest is queued: what is asked now comes behind them.
    behind = room.let_in()
    with pytest.raises(TimeoutError):
        behind.result(timeout=0.3)
    assert calls[1].cancel() and calls[7].cancel(), "one that runs, and one that is queued"
    assert not any(call.done() for at, call in enumerate(calls) if at not in (1, 7))
    other: Any = client.actor(Room, concurrency=3)
    free = other.come(0)
    assert other.let_in().result(timeout=WAIT) == [0]
    assert free.result(timeout=WAIT)[0] == 0
    for at in (0, 2, 3, 4, 5):  # the places of those that are cancelled are the next ones'
        assert calls[at].cancel()
    assert behind.result(timeout=WAIT) == [0, 1, 2, 3, 4, 5, 6, 8, 9], "in the order of the calls"
    assert [calls[at].result(timeout=WAIT)[0] for at in (6, 8, 9)] == [6, 8, 9]
    for at in (0, 1, 2, 3, 4, 5, 7):
        with pytest.raises(CancelledError):
            calls[at].result(timeout=WAIT)
    demo.check()


def test_as_many_run_at_a_time_as_it_says(shared_cluster: Any) -> None:
    demo = shared_cluster(workers=1, slots=1)
    client = demo.client()
    room: Any = client.actor(Room, concurrency=5)
    calls = [room.come(number) for number in range(4)]
    until(lambda: room.state().result(timeout=WAIT)[1] == 4)
    room.let_in().result(timeout=WAIT)
    later = [room.come(number) for number in range(4, 300)]
    results = client.gather(calls + later, progress=False, timeout=WAIT)
    assert [number for number, _ in results] == list(range(300))
    assert len({thread for _, thread in results}) == 1, "one loop"
    begun, inside, most = room.state().result(timeout=WAIT)
    assert begun == list(range(300))
    assert inside == 0 and 4 <= most <= 5
    room = client.actor(Room, concurrency=5)
    calls = [room.come_in_a_thread(number) for number in range(4)]
    until(lambda: room.state().result(timeout=WAIT)[1] == 4)
    assert sorted(room.open_gate().result(timeout=WAIT)) == [0, 1, 2, 3]
    results = client.gather(calls, progress=False, timeout=WAIT)
    assert [number for number, _ in results] == [0, 1, 2, 3]
    assert len({thread for _, thread in results}) == 4
    demo.check()


def test_what_calls_come_to(shared_cluster: Any) -> None:
    demo = shared_cluster(workers=1, slots=2)
    client = demo.client()
    room: Any = client.actor(Room, name="room", concurrency=3)
    assert client.gather([room.add(n, client.submit(pow, n, 2)) for n in range(5)], progress=False, timeout=WAIT) == [
        n + n * n for n in range(5)
    ]
    assert room.add(room.add(1, 2), room.add(3, 4)).result(timeout=WAIT) == 10
    with pytest.raises(LookupError, match="not here") as caught:
        room.raises(LookupError("not here")).result(timeout=WAIT)
    assert "in raises" in str(caught.value.__cause__) and "worker/concurrent_actor" not in str(caught.value.__cause__)
    for error in (SystemExit(3), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            room.raises(error).result(timeout=WAIT)
    with pytest.raises(asyncio.CancelledError):  # its own: nobody has cancelled it
        room.raises(asyncio.CancelledError()).result(timeout=WAIT)
    assert len(room.large().result(timeout=WAIT)) == 300_000
    assert room.makes_a_coroutine().result(timeout=WAIT)[1] == 0
    with pytest.raises(AttributeError, match="no attribute"):
        client.get_actor("room").__call__().result(timeout=WAIT)
    with pytest.raises(FutureFailedError, match="failed"):
        room.add(client.submit(int, "x", max_retries=0)).result(timeout=WAIT)
    with pytest.raises(TypeError):
        room.add().result(timeout=WAIT)
    assert room.asks_itself("room", 3).result(timeout=WAIT) == 4
    assert room.asks_itself_in_a_thread("room", 3).result(timeout=WAIT) == 5, "no deadlock: it has places left"
    client.kill_actor(room)
    demo.check()


def test_a_call_that_runs_may_ask_whether_it_is_cancelled(shared_cluster: Any, tmp_path: Path) -> None:
    client = shared_cluster(workers=1, slots=1).client()
    room: Any = client.actor(Room, concurrency=3)
    other = room.come(1)
    until(lambda: room.state().result(timeout=WAIT)[1] == 1)
    asking, swallowing = room.asks(), room.swallows(str(tmp_path / "begun"))
    until((tmp_path / "begun").exists)
    assert not swallowing.cancel(), "as with asyncio: what it returns counts"
    assert swallowing.result(timeout=WAIT) == "goes on: True"
    assert not asking.cancel(grace=WAIT), "it ended as it liked, within the grace"
    assert asking.result(timeout=WAIT) == "told"
    assert not other.done()
    room.let_in().result(timeout=WAIT)
    assert other.result(timeout=WAIT)[0] == 1


def test_its_death_loses_what_was_under_way_and_nothing_twice(shared_cluster: Any) -> None:
    demo = shared_cluster(workers=1)
    client, second = demo.client(), demo.client()
    room: Any = client.actor(Room, name="room", concurrency=8, max_restarts=3)
    done = [room.add(n) for n in range(20)]
    assert client.gather(done, progress=False, timeout=WAIT) == list(range(20))
    pid = room.pid().result(timeout=WAIT)
    lost = [room.come(n) for n in range(4)] + [room.come_in_a_thread(n) for n in range(2)]
    known = lost[0].id  # recorded: another process asks for it
    until(lambda: room.state().result(timeout=WAIT)[1] == 6)
    os.kill(pid, 9)
    for call in lost:
        with pytest.raises(ActorDiedError):
            call.result(timeout=WAIT)
    with pytest.raises(ActorDiedError):
        second.get_future(known).result(timeout=WAIT)
    begun, inside, _ = until(lambda: _state(room))
    assert (begun, inside) == ([], 0), "fresh state"
    again: Any = second.get_actor("room")
    assert second.gather([again.add(n) for n in range(50)], progress=False, timeout=WAIT) == list(range(50))
    client.kill_actor(room)
    with pytest.raises(ActorDiedError):
        again.add(1).result(timeout=WAIT)
    demo.check()


def _state(room: Any) -> Any:
    try:
        return room.state().result(timeout=WAIT)
    except ActorDiedError:
        return None


def test_calls_that_were_recorded_before_they_were_sent_run_once(cluster: Any, tmp_path: Path) -> None:
    demo = cluster(workers=0)
    client = demo.client()
    room: Any = client.actor(Room, concurrency=2)
    calls = [room.come(n, str(tmp_path / str(n))) for n in range(6)]
    assert calls[3].id, "recorded, with those before it"
    opened = room.let_in()
    demo.start("--slots", "1")
    for n in range(5):
        until((tmp_path / str(n)).exists)
        assert calls[n].cancel(grace=WAIT)
    assert opened.result(timeout=WAIT) == [0, 1, 2, 3, 4, 5]
    assert calls[5].result(timeout=WAIT)[0] == 5
    assert [client.get_future(call.id).cancelled() for call in calls] == 5 * [True] + [False]
    demo.check()


class Queue:
    """One call at a time."""

    def __init__(self) -> None:
        self.ran: list[int] = []

    def wait_for(self, begun: str, gate: str) -> None:
        touch(begun)
        until(Path(gate).exists)

    def note(self, number: int) -> list[int]:
        self.ran.append(number)
        return self.ran


def test_a_queued_call_that_another_process_cancels_does_not_run(shared_cluster: Any, tmp_path: Path) -> None:
    demo = shared_cluster(workers=1)
    client, other = demo.client(), demo.client()
    queue: Any = client.actor(Queue)
    running = queue.wait_for(str(tmp_path / "begun"), str(tmp_path / "gate"))
    calls = [queue.note(n) for n in range(4)]
    until((tmp_path / "begun").exists)
    assert other.get_future(calls[1].id).cancel()
    assert other.cancel([other.get_future(calls[2].id)]) == 1
    touch(str(tmp_path / "gate"))
    assert calls[3].result(timeout=WAIT) == [0, 3]
    assert running.result(timeout=WAIT) is None
    for call in calls[1:3]:
        with pytest.raises(CancelledError):
            call.result(timeout=WAIT)
    demo.check()


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_cancel_that_an_actor_hears_before_the_call_keeps_it_from_running(
    shared_cluster: Any, concurrency: int
) -> None:
    """Who cancels has a connection of his own, and that may be read first."""
    demo = shared_cluster(workers=1)
    client = demo.client()
    queue: Any = client.actor(Queue, concurrency=concurrency)
    assert queue.note(0).result(timeout=WAIT) == [0]
    session, cancelled = demo.client()._context(), new_future_id()
    session.life.begin()
    place = ask(session.db, find_actor, session.space, queue._id, strategy="off")
    secrets = ClusterSecrets(session.db, session.space)
    with wire.connect((place.ip, place.port), secrets, role=ACTOR, incarnation=queue._id) as connection:
        records = connection.records()
        for said in (
            ("hello", queue._id, place.start, session.id),
            ("cancel", cancelled),
            ("call", cancelled, "note", "Queue.note", b"", ()),
        ):
            connection.sock.sendall(records.pack(msgpack.packb(said)))
        unpacker, answers = msgpack.Unpacker(), []
        while not answers:
            unpacker.feed(b"".join(records.feed(connection.sock.recv(1 << 16))))
            answers += unpacker
    assert answers[0][:2] == [cancelled, "failed"]
    with pytest.raises(CancelledError):
        client.get_future(cancelled).result(timeout=WAIT)
    assert queue.note(1).result(timeout=WAIT) == [0, 1]
    demo.check()


def test_a_call_cancelled_after_its_actor_read_it_and_before_it_had_a_place_does_not_run(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = cluster(workers=0)
    client, other = demo.client(), demo.client()
    calls = [client.actor(Queue, name="queue").note(n) for n in range(3)]
    assert calls[2].id, "recorded, with those before it"
    context, actor = client._context, client.get_actor("queue")._id
    db, space, worker = context.db, context.space, WorkerId("127.0.0.1", 7000, new_incarnation())
    run(db, register_worker, space, worker, WorkerInfo(slots=1))
    claim = run(db, claim_future, space, actor, worker)
    queue = Queue()
    serving = Server(context, space, run(db, begin_host, space, actor, claim.attempt), queue, b"")

    def place(*args: Any) -> None:
        assert other.get_future(calls[1].id).cancel()
        place_host(*args)

    class DoneError(Exception):
        pass

    def look_around() -> None:
        if not serving._held():
            raise DoneError

    monkeypatch.setattr("futures_worker.worker.actor_host.actors.place_host", place)
    monkeypatch.setattr("futures_worker.worker.actor_host.LOOK_SECONDS", 0.0)
    monkeypatch.setattr(serving, "_look_around", look_around)
    try:
        with pytest.raises(DoneError):
            serving.run()
    finally:
        serving.close()
    assert queue.ran == [0, 2]
    with pytest.raises(CancelledError):
        calls[1].result(timeout=WAIT)
    demo.check()


def test_a_call_that_another_process_cancels_before_it_is_sent_is_not_sent(cluster: Any) -> None:
    demo = cluster(workers=0)
    client, other = demo.client(), demo.client()
    queue: Any = client.actor(Queue)
    calls = [queue.note(n) for n in range(3)]
    assert other.get_future(calls[1].id).cancel()
    demo.start("--slots", "1")
    assert calls[2].result(timeout=WAIT) == [0, 2]
    with pytest.raises(CancelledError):
        calls[1].result(timeout=WAIT)
    demo.check()


def test_a_coroutine_that_another_process_cancels_ends(shared_cluster: Any, tmp_path: Path) -> None:
    demo = shared_cluster(workers=1)
    client, other = demo.client(), demo.client()
    room: Any = client.actor(Room, concurrency=2)
    call, beside = room.come(1, str(tmp_path / "begun")), room.come(2)
    until((tmp_path / "begun").exists)
    assert other.get_future(call.id).cancel()
    until(lambda: room.state().result(timeout=WAIT)[1] == 1)
    with pytest.raises(CancelledError):
        call.result(timeout=WAIT)
    room.let_in().result(timeout=WAIT)
    assert beside.result(timeout=WAIT)[0] == 2
    demo.check()


def test_what_is_no_concurrency(shared_cluster: Any) -> None:
    client = shared_cluster(workers=1).client()
    for wrong in (0, -1, True, "2", 1.5, 10_001):
        with pytest.raises(ValueError, match="concurrency is a whole number"):
            client.actor(Room, concurrency=wrong)
    one: Any = client.actor(Room, concurrency=1)
    assert one.add(1, 2).result(timeout=WAIT) == 3
