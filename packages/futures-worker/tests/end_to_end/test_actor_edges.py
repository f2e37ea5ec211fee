"""Calls of actors at the moments between two effects: recorded and not sent, cut off, cancelled, answered by nobody."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
from support.upping import wait_until

from fdb_datamodel import WorkerId, new_future_id, new_incarnation
from fdb_datamodel.actors import find_actor
from fdb_schema import DatabaseUnreachableError
from futures_worker import ActorDiedError, ObjectLostError
from futures_worker.client.basis.record import CallRecord
from futures_worker.client.session import call_records
from futures_worker.client.session.actor_link import ActorLink
from futures_worker.database import ask
from futures_worker.objects.store_secret import ClusterSecrets
from futures_worker.ports import wire
from futures_worker.ports.handshake import ACTOR, NoPlaceError
from futures_worker.ports.sealing import Half, Halves, Records
from futures_worker.ports.wire import Connection
from futures_worker.worker import actor_host
from futures_worker.worker.actor_callers import Call, Caller
from futures_worker.worker.actor_calls import Calls
from futures_worker.worker.child.coroutines import finished

WAIT = 60.0


class Log:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def note(self, what: Any) -> int:
        self.seen.append(what)
        return len(self.seen)

    def notes(self) -> list[Any]:
        return self.seen

    def pid(self) -> int:
        return os.getpid()

    def hang(self) -> None:
        signal.pause()


def test_a_recorded_call_that_was_cancelled_before_it_was_sent_never_runs(cluster: Callable[..., Any]) -> None:
    demo = cluster(workers=0)
    client, other = demo.client(), demo.client()
    log = client.actor(Log)
    calls = [log.note(number) for number in range(3)]
    known = calls[1].id  # recorded, and so is the one before it
    told = threading.Event()
    calls[1].add_done_callback(lambda _: told.set())
    assert calls[1].cancel()
    assert told.wait(WAIT)
    demo.start("--slots", "1")
    assert log.notes().result(WAIT) == [0, 2]
    assert other.get_future(known).cancelled()
    demo.check()


def test_a_call_recorded_by_a_client_that_died_before_it_sent_it_is_made(cluster: Callable[..., Any]) -> None:
    demo = cluster(workers=1)
    client, dying = demo.client(), demo.client()
    log = client.actor(Log, name="log")
    assert log.note("first").result(WAIT) == 1
    session = dying._context()
    assert dying.get_actor("log").notes().result(WAIT) == ["first"]
    link = session.calls.link(log._id, "log")
    data = actor_link_args("orphan")
    call = CallRecord(new_future_id(), "log.note", link, ("note", data, ()))
    session.life.hold(call.id)
    link.record(call)
    link.close()
    session.life.close()  # what others see of a client that was killed, once its time to live is over
    assert client.get_future(call.id).result(WAIT) == 2
    assert log.notes().result(WAIT) == ["first", "orphan"]
    demo.check()


def actor_link_args(value: Any) -> bytes:
    from futures_worker.payload import dump_args

    return dump_args((value,), {})[0]


def test_a_call_cut_off_while_the_database_is_in_trouble_still_ends(
    shared_cluster: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = shared_cluster(workers=1)
    client = demo.client()
    log = client.actor(Log)
    pid = log.pid().result(WAIT)
    hanging = log.hang()
    real, troubles = call_records.ask, [DatabaseUnreachableError("no answer")]

    def ask(db: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
        if fn.__name__ == "ended_calls" and troubles:
            raise troubles.pop()
        return real(db, fn, *args, **kwargs)

    monkeypatch.setattr(call_records, "ask", ask)
    os.kill(pid, signal.SIGKILL)
    for _ in range(2):
        try:
            error = hanging.exception(WAIT)
            break
        except DatabaseUnreachableError:
            continue
    assert isinstance(error, ActorDiedError)
    assert not troubles
    assert not client._context().calls.unanswered()
    demo.check()


def test_connections_to_actors_that_are_no_more_are_closed(
    shared_cluster: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("futures_worker.client.session.calls.MOST_RESTING", 3)
    demo = shared_cluster(workers=1)
    client = demo.client()
    reader = client._context().calls
    reader._sweep_at = 3
    living = client.actor(Log)
    assert living.note(0).result(WAIT) == 1
    for _ in range(10):
        log = client.actor(Log)
        assert log.note(1).result(WAIT) == 1
        client.kill_actor(log)
        assert isinstance(log.note(2).exception(WAIT), ActorDiedError)
    assert sum(link.fileno() >= 0 for link in reader._links.values()) <= 4
    assert living.note(0).result(WAIT) == 2
    monkeypatch.setattr("futures_worker.client.session.calls.REST_SECONDS", 0.0)
    reader._sweep(float("inf"))
    assert reader._links == {}
    assert living.note(0).result(WAIT) == 3, "connected anew"
    demo.check()


FORKS = """
import os, sys
from futures_worker import Client

class Log:
    def pid(self):
        return os.getpid()

    def wait_for(self, path):
        import time
        while not os.path.exists(path):
            time.sleep(0.01)

client = Client(sys.argv[1], sys.argv[2])
mine, named = client.actor(Log), client.actor(Log, name="named")
first = mine.pid().result(60)
named.pid().result(60)
child = os.fork()
if not child:
    client.get_actor("named").pid().result(60)
    sys.exit(0)  # as a program ends, with its exit handlers
assert os.waitpid(child, 0)[1] == 0
child = os.fork()
if not child:
    sys.exit(0)  # without having used the client
assert os.waitpid(child, 0)[1] == 0
calls = [mine.wait_for(sys.argv[3]), *(mine.pid() for _ in range(5))]
child = os.fork()
if not child:
    assert not calls[0].cancel() and not calls[-1].cancel()  # its parent's connection isn't its own
    assert calls[-1].id
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
open(sys.argv[3], "w").close()
calls += [mine.pid() for _ in range(5)]
assert [call.result(60) for call in calls] == [None] + 10 * [first]
print("alive", flush=True)
"""


@pytest.mark.embedded_only("the official client doesn't survive a fork")
def test_a_forked_child_leaves_its_parents_actors_and_calls(shared_cluster: Callable[..., Any], tmp_path: Path) -> None:
    demo = shared_cluster(workers=1)
    script = tmp_path / "forks.py"
    script.write_text(FORKS)
    command = [sys.executable, str(script), demo.url, demo.name, str(tmp_path / "go on")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT, check=False)
    assert done.stdout == "alive\n", done.stderr


class _Spy:
    """A lock that tells when it was released first."""

    def __init__(self, lock: Any, released: Callable[[], None]) -> None:
        self._lock = lock
        self._released: Callable[[], None] | None = released

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self._lock.release()
        told, self._released = self._released, None
        if told is not None:
            told()


def test_no_call_is_sent_before_the_hello() -> None:
    class Session:
        id = bytes(16)

    ours, theirs = socket.socketpair()
    link = ActorLink(Session(), b"a" * 16, "log")  # type: ignore[arg-type]

    def call(number: int) -> Any:
        return CallRecord(bytes([number]) * 16, "note", link, ("note", b"", ()))

    link.submit(call(1))
    submitted: list[threading.Thread] = []

    def in_between() -> None:
        thread = threading.Thread(target=link.submit, args=(call(2),))
        submitted.append(thread)
        thread.start()
        thread.join(WAIT)

    link._sending = _Spy(link._sending, in_between)  # type: ignore[assignment]
    with ours, theirs:
        link._begin(Connection(ours, Halves(Half(b"a" * 32, False), Half(b"b" * 32, False))), 1)
        assert submitted
        unpacker = msgpack.Unpacker()
        records = Records(Halves(Half(b"b" * 32, False), Half(b"a" * 32, False)))
        unpacker.feed(b"".join(records.feed(theirs.recv(1 << 16))))
        said = [(message[0], message[1]) for message in unpacker]
    assert said == [("hello", b"a" * 16), ("call", bytes([1]) * 16), ("call", bytes([2]) * 16)]


def test_a_large_answer_whose_worker_is_gone_ends_with_the_actor() -> None:
    class Gone:
        def put(self, address: tuple[str, int], name: str, data: bytes) -> None:
            raise ObjectLostError(f"worker {address[0]}:{address[1]} can't be reached for object {name}: reset by peer")

    class Large:
        def large(self) -> bytes:
            return bytes(1_000_000)

    here = WorkerId("127.0.0.1", 4000, new_incarnation())
    calls: Any = Calls(SimpleNamespace(object_fetcher=Gone), SimpleNamespace(worker=here), Large())  # type: ignore[arg-type]
    outcome = calls.run(Call(None, new_future_id(), b"", "large", "Large.large", b"", ()), finished)
    assert outcome.failure is not None
    assert outcome.failure.reason == "actor-died"
    assert "it ran, and its result of 1,000,0" in outcome.failure.message


_CALL: Any = ("call", b"c" * 16, "note", "Log.note", b"", ())
_ODD: Any = [None, 1, True, 1.5, {}, [b"x"], msgpack.Timestamp(1)]
_NO_CALLS = [
    (*_CALL[:at], odd, *_CALL[at + 1 :])
    for at, more in ((1, [b"", b"x" * 17, "x"]), (2, [b"x"]), (3, [b"x"]), (4, ["x"]), (5, [b"x", "x"]))
    for odd in _ODD + more
]


@pytest.mark.parametrize("said", _NO_CALLS, ids=lambda said: repr(said[1:])[:60])
def test_a_call_that_no_client_makes_ends_its_connection_and_not_the_actor(said: Any) -> None:
    server = object.__new__(actor_host.Server)
    server._recorded, server._queue, server._callers = set(), deque(), {}
    server._host = SimpleNamespace(id=b"a" * 16, start=1)  # type: ignore[assignment]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        caller = Caller(Connection(ours, Halves(Half(b"b" * 32, False), Half(b"a" * 32, False))))
        records = Records(Halves(Half(b"a" * 32, False), Half(b"b" * 32, False)))
        for message in (("hello", b"a" * 16, 1, b"s" * 16), _CALL, said):
            theirs.sendall(records.pack(msgpack.packb(message)))
        server._read(caller)
    assert caller.closed
    assert [call.id for call in server._queue] == [b"c" * 16]


@pytest.mark.parametrize("greeted", [True, False])
def test_what_a_client_counts_as_lost_does_not_run_after_what_it_sent_since(greeted: bool) -> None:
    """Its connection broke while the actor ran a long call; what is still to be read of it comes after a new connection's calls."""
    server = object.__new__(actor_host.Server)
    server._recorded, server._queue, server._callers, server._cancelled = set(), deque(), {}, {}
    server._host = SimpleNamespace(id=b"a" * 16, start=1)  # type: ignore[assignment]
    hello = ("hello", b"a" * 16, 1, b"s" * 16)

    with contextlib.ExitStack() as stack:
        callers = []
        for number in range(2):
            ours, theirs = (stack.enter_context(one) for one in socket.socketpair())
            caller = Caller(Connection(ours, Halves(Half(b"b" * 32, False), Half(b"a" * 32, False))))
            callers.append((caller, theirs, Records(Halves(Half(b"a" * 32, False), Half(b"b" * 32, False)))))
            server._callers[number] = caller

        def says(number: int, *messages: Any) -> None:
            caller, peer, records = callers[number]
            peer.sendall(records.pack(b"".join(map(msgpack.packb, messages))))
            server._read(caller)

        def call(name: bytes) -> Any:
            return ("call", name * 16, "note", "Log.note", b"", ())

        lost: tuple[Any, ...] = (("cancel", b"x" * 16), call(b"2"))
        if greeted:
            says(0, hello, call(b"1"))
        else:
            lost = hello, *lost
        says(1, hello, call(b"3"))
        says(0, *lost)
        says(1, call(b"4"))
    assert [call.id[:1] for call in server._queue] == ([b"1"] if greeted else []) + [b"3", b"4"]
    assert list(server._cancelled) == [
        b"x" * 16
    ]  # who cancels another's call hangs up at once, and may have called since
    assert [caller.closed for caller, *_ in callers] == [True, False]


def test_a_name_that_no_row_has_room_for_costs_nobody_an_actor(shared_cluster: Callable[..., Any]) -> None:
    client = shared_cluster().client()
    log = client.actor(Log, name="a name without end")
    missing = getattr(client.get_actor("a name without end"), "m" * 120_000)
    assert isinstance(missing().exception(WAIT), AttributeError)
    assert log.note("still there").result(WAIT) == 1


class Popular:
    """An actor that may have few descriptors."""

    def __init__(self, descriptors: int) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
        self.calls = 0

    def call(self) -> int:
        self.calls += 1
        return self.calls


def test_a_caller_for_whom_an_actor_has_no_place_waits_and_loses_no_call(cluster: Callable[..., Any]) -> None:
    demo = cluster(workers=1)
    client, late = demo.client(), demo.client()
    popular = client.actor(Popular, 80, name="popular")
    assert popular.call().result(WAIT) == 1
    session = client._context()
    place = ask(session.db, find_actor, session.space, popular._id, strategy="off")
    secrets = ClusterSecrets(session.db, session.space)
    others = []

    def come() -> None:
        while len(others) < 80:
            others.append(wire.connect((place.ip, place.port), secrets, role=ACTOR, incarnation=popular._id))

    with pytest.raises(NoPlaceError, match="as many callers as it takes"):
        come()
    assert 30 < len(others) < 40, "half of the descriptors"
    calls = [late.get_actor("popular").call() for _ in range(3)]
    assert popular.call().result(WAIT) == 2, "who has a place keeps it"
    with pytest.raises(TimeoutError, match="as many callers as it takes"):
        calls[0].result(1.0)
    others.pop().close()
    assert [call.result(WAIT) for call in calls] == [3, 4, 5]
    for other in others:
        other.close()
    demo.check()


def test_a_client_that_asks_an_actor_nothing_gives_its_place_up(
    shared_cluster: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("futures_worker.client.session.calls.REST_SECONDS", 0.1)
    client = shared_cluster(workers=1).client()
    log = client.actor(Log)
    assert log.note(1).result(WAIT) == 1
    (link,) = client._context().calls._links.values()
    wait_until(lambda: not link.connected, "hung up")
    assert [call.result(WAIT) for call in [log.note(2), log.note(3)]] == [2, 3], "and is back when it asks"
