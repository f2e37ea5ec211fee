"""Calls of actors and the one thread that reads the answers for all: it gives that up, wherever a KeyboardInterrupt comes."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import msgpack
import pytest
from support.interrupting import arrivals

from fdb_datamodel import FutureResult, actors, new_future_id
from fdb_datamodel.rows import codec
from futures_worker import Client
from futures_worker.client.actor_call import Call
from futures_worker.client.basis import turn
from futures_worker.client.basis.record import CallRecord
from futures_worker.client.session import actor_link, call_records, calls
from futures_worker.client.session import reader as mail_reader
from futures_worker.client.session.actor_link import ActorLink
from futures_worker.client.session.calls import await_call
from futures_worker.payload import dump_result
from futures_worker.ports.sealing import Half, Halves, Records
from futures_worker.ports.wire import Connection

WAIT = 20.0


class Actor:
    """The other end of connections: answers when it is told to, or at once."""

    def __init__(self, *, at_once: bool = False) -> None:
        self.at_once = at_once
        self.ends: list[tuple[socket.socket, Records]] = []

    def connection(self, *_: Any, **__: Any) -> Connection:
        ours, theirs = socket.socketpair()
        records = Records(Halves(Half(b"b" * 32, False), Half(b"a" * 32, False)))
        self.ends.append((theirs, records))
        if self.at_once:
            threading.Thread(target=self._serve, args=(theirs, records), daemon=True).start()
        return Connection(ours, Halves(Half(b"a" * 32, False), Half(b"b" * 32, False)))

    def answer(self, *ids: bytes) -> None:
        theirs, records = self.ends[-1]
        theirs.sendall(records.pack(b"".join(map(_answer, ids))))

    def _serve(self, theirs: socket.socket, records: Records) -> None:
        unpacker = msgpack.Unpacker(use_list=False)
        with contextlib.suppress(OSError):  # an interrupted client hung up
            while data := theirs.recv(1 << 16):
                for part in records.feed(data):
                    unpacker.feed(part)
                    for message in unpacker:
                        if message[0] == "call":
                            theirs.sendall(records.pack(_answer(message[1])))

    def close(self) -> None:
        for theirs, _ in self.ends:
            theirs.close()


def _answer(call: bytes) -> bytes:
    value = dump_result(1).to_bytes()
    packed: bytes = msgpack.packb(
        (call, "realized", codec.pack_latest_result(FutureResult(value, len(value)), bytes(10), 0))
    )
    return packed


class Bench:
    def __init__(self, client: Client, actor: Actor) -> None:
        self.client = client
        self.actor = actor

    def link(self) -> ActorLink:
        return ActorLink(self.client._context(), b"a" * 16, "log")

    def connected(self) -> ActorLink:
        link = self.link()
        link._begin(self.actor.connection(), 1)
        link._look_after = float("inf")  # the database knows no such actor
        return link

    def call(self, link: ActorLink) -> Call[int]:
        record = CallRecord(new_future_id(), "log.note", link, ("note", b"", ()))
        session = self.client._context()
        record.life = session.life
        session.life.hold(record.id)
        session.pending[record.id] = record
        link.submit(record)
        return Call(self.client._context, record)


@pytest.fixture
def bench() -> Iterator[Callable[..., Bench]]:
    actors_: list[Actor] = []
    with Client(f"memory:{uuid.uuid4()}", "test") as client:

        def make(**options: Any) -> Bench:
            actors_.append(Actor(**options))
            return Bench(client, actors_[-1])

        yield make
        for actor in actors_:
            actor.close()


def _of_the_client(code: CodeType) -> bool:
    """Where an interrupt may come; not where a callback is taken to be called, which such an interrupt costs."""
    if code.co_qualname in ("Callbacks.run", "Callbacks._take"):
        return False
    return "/futures_worker/client/" in code.co_filename or "sealing" in code.co_filename


def interrupted(act: Callable[[], Any], number: int) -> bool:
    """Whether an interrupt came at the `number`-th place of what the client does."""
    with arrivals(number, _of_the_client) as interruption:
        try:
            act()
        except KeyboardInterrupt:
            pass
    return interruption.came


def test_an_interrupt_anywhere_in_a_wait_loses_no_answer_and_keeps_nobody_from_reading(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What an interrupt keeps from being woken finds what came by looks of its own, here soon.
    monkeypatch.setattr(turn, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(mail_reader, "LOOK_SECONDS", 0.05)
    site = bench()
    link = site.connected()
    reader = site.client._context().calls
    reader._links[link.actor] = link
    for number in itertools.count():
        told = threading.Event()
        call, other = site.call(link), site.call(link)
        other.add_done_callback(lambda _, told=told: told.set())  # type: ignore[misc]
        site.actor.answer(call._record.id, other._record.id)
        came = interrupted(lambda call=call: await_call(call._record, time.monotonic() + WAIT), number)  # type: ignore[misc]
        for one in (call, other):
            assert await_call(one._record, time.monotonic() + WAIT), f"after an interrupt at place {number}"
            assert one.result(0) == 1
        if reader.unanswered():
            reader._look()  # as the session's thread does
        assert told.wait(WAIT), f"after an interrupt at place {number}"
        assert not link.unanswered
        if not came:
            break
    assert number > 40


def test_an_interrupt_anywhere_while_an_actor_is_looked_for_leaves_its_calls_able_to_end(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = bench(at_once=True)
    place = actors.ActorPlace(1, "127.0.0.1", 1, 1, None)

    def ask(db: Any, function: Any, space: Any, *what: Any, **_: Any) -> Any:
        return {"find_actor": lambda: place, "ended_calls": lambda: [None] * len(what[0])}[function.__name__]()

    monkeypatch.setattr(call_records, "ask", ask)
    monkeypatch.setattr(actor_link.wire, "connect", site.actor.connection)
    monkeypatch.setattr(actor_link, "ClusterSecrets", lambda *_, **__: None)
    for number in itertools.count():
        link = site.link()
        waiting = [site.call(link) for _ in range(2)]
        came = interrupted(link.connect, number)
        for call in waiting:
            assert await_call(call._record, time.monotonic() + WAIT), f"after an interrupt at place {number}"
        assert not link.unanswered
        link.close()
        if not came:
            break
    assert number > 40
    assert [call.result(0) for call in waiting] == [1, 1]


def test_who_comes_as_the_reader_leaves_reads_at_once(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TICK", "LOOK_SECONDS"):
        monkeypatch.setattr(calls, name, 10 * WAIT)
    site = bench()
    link = site.connected()
    session = link.session
    first, second = site.call(link), site.call(link)
    reading = threading.Event()

    class Poll:
        def poll(self, milliseconds: float) -> Any:
            reading.set()
            return real_poll.poll(milliseconds)

    assert link._answers is not None
    real_poll, link._answers._poll = link._answers._poll, Poll()  # type: ignore[assignment]
    reader = threading.Thread(target=await_call, args=(first._record, None), daemon=True)
    reader.start()
    assert reading.wait(WAIT)
    follow = session.follow

    def leave_before(done: Callable[[], bool], pause: float) -> None:
        if reader.is_alive():
            site.actor.answer(first._record.id)
            reader.join(WAIT)
            site.actor.answer(second._record.id)
        follow(done, pause)

    monkeypatch.setattr(session, "follow", leave_before)
    assert await_call(second._record, time.monotonic() + WAIT)
    assert not reader.is_alive()
