"""What a client holds stays, whatever happens to its session meanwhile; what it was refused leaves no trace."""

from __future__ import annotations

import gc
import os
import pickle
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest

import fdb_embedded
from fdb_datamodel import (
    SESSION_TTL_SECONDS,
    FutureDeletedError,
    MailEntry,
    UnknownFutureError,
    collect,
    declare_session_dead,
    get_future_state,
    session_lives,
    session_sightings,
    subscribe,
    validate,
)
from fdb_schema import BlobMissingError, ClusterSpace, DatabaseUnreachableError
from futures_worker import Client
from futures_worker.client.basis import session_life, untouched
from futures_worker.client.basis.intake import MAX_BATCH_BYTES
from futures_worker.client.inputs import MOST_INPUTS
from futures_worker.client.session import actor_link, expected, storing, subscriptions
from futures_worker.client.session import reader as client_reader
from futures_worker.client.session.session import Session
from futures_worker.database import ask
from idempotent_txn import run

WAIT = 60.0
SPACE = ClusterSpace("test")


@pytest.fixture
def db(thread_worker: Callable[..., Any]) -> Any:
    database = fdb_embedded.open(f"memory:{uuid.uuid4()}")
    thread_worker(database, "test")
    return database


def square(n: int) -> int:
    return n * n


def collect_all(db: Any) -> None:
    for _ in range(3):  # marked, judged, judged again
        collect(db, "test", grace=-1.0)  # no pause between two looks


def declare_dead(db: Any, client: Client) -> None:
    """As others find a client that was stopped."""
    session = client._context().id
    for sighting in run(db, session_sightings, SPACE):
        if sighting.id == session:
            assert run(db, declare_session_dead, SPACE, sighting)


def test_an_id_that_nobody_has_leaves_nothing_behind(db: Any) -> None:
    with Client(db, "test") as client:
        unknown = uuid.uuid4()
        one, two = client.get_future(unknown), client.get_future(unknown)
        for handle in (one, two, one):
            with pytest.raises(UnknownFutureError):
                handle.result(WAIT)
        assert client._context().pending == {}
        assert client.submit(square, 3).result(WAIT) == 9


def test_a_client_that_comes_back_holds_what_it_held(db: Any) -> None:
    maker, client = Client(db, "test"), Client(db, "test")
    with client:
        with maker:
            made = [maker.submit(square, n) for n in range(3)]
            maker.gather(made, timeout=WAIT)
            taken = client.get_future(made[1].id)
            assert taken.result(WAIT) == 1
            ids = [future.id for future in made]
        declare_dead(db, client)
        collect(db, "test", grace=3600.0)  # drops the references of sessions that are gone
        client._context().life.return_again()
        collect_all(db)
        other = Client(db, "test")
        with other:
            assert other.get_future(ids[1]).result(WAIT) == 1, "held by a handle"
            for gone in (ids[0], ids[2]):
                assert other.get_future(gone).exception(WAIT) is not None


def test_a_client_that_comes_back_is_told_of_what_is_no_more(db: Any) -> None:
    with Client(db, "test") as client:
        lost = client.submit(square, 3)
        with Client(db, "test") as other:
            assert other.get_future(lost.id).result(WAIT) == 9
        assert not lost._record.ended, "the first client hasn't read its mail"
        declare_dead(db, client)
        for _ in range(5):  # let go, marked, judged, judged again, and its tombstone too
            collect(db, "test", grace=-1.0, tombstones=-1.0)
        with pytest.raises(UnknownFutureError):
            run(db, get_future_state, SPACE, lost._record.id)
        client._context().life.return_again()
        with pytest.raises(FutureDeletedError, match="no sign of life for too long"):
            lost.result(WAIT)
        assert client._context().pending == {}


def test_a_client_learns_that_it_was_declared_dead_whatever_becomes_of_its_commits(
    db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def again(db: Any, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
        ask(db, fn, *args, **options)  # the outcome of its commit is unknown
        return ask(db, fn, *args, **options)

    with Client(db, "test") as client:
        client.submit(square, 3).id  # it begins the session
        life, returned = client._context().life, threading.Event()
        monkeypatch.setattr(life, "_on_return", returned.set)
        monkeypatch.setattr(session_life, "ask", again)
        declare_dead(db, client)
        life._called.set()  # the next beat is now
        assert returned.wait(WAIT)


class Returns:
    """That a client was declared dead, and came back."""

    def __init__(self, db: Any, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        self._db = db
        self._client = client
        self._life = client._context().life
        self._done = threading.Event()
        take_up = self._life._on_return
        monkeypatch.setattr(self._life, "_on_return", lambda: (take_up(), self._done.set()))

    def happen(self) -> None:
        declare_dead(self._db, self._client)
        self._life._called.set()  # the next beat is now
        assert self._done.wait(WAIT)


@pytest.mark.parametrize("size", [3, MAX_BATCH_BYTES + 1])
@pytest.mark.parametrize("known", [True, False])
def test_a_client_taken_for_dead_amid_a_submit_gets_its_result(
    db: Any, monkeypatch: pytest.MonkeyPatch, known: bool, size: int
) -> None:
    """It was stopped before it noted a commit, or never learned how that ended: its mail came to nobody."""
    with Client(db, "test") as client, Client(db, "test") as other:
        session = client._context()
        session.life.begin()
        returns, met, back = Returns(db, client, monkeypatch), threading.Event(), threading.Event()

        def cut(db: Any, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
            if met.is_set():
                if not back.is_set():
                    raise DatabaseUnreachableError("no answer")
                return ask(db, fn, *args, **options)
            committed = ask(db, fn, *args, **options)
            met.set()
            (future_id,) = session.pending
            assert other.get_future(future_id).result(WAIT) == size
            if not known:
                raise DatabaseUnreachableError("no answer")
            returns.happen()
            back.set()
            return committed

        monkeypatch.setattr(storing, "ask", cut)
        future = client.submit(len, bytes(size))
        assert met.wait(WAIT)
        if not known:
            returns.happen()
            back.set()
        assert future.result(WAIT) == size
        assert session.pending == {}


def test_what_ended_while_a_client_took_it_up_again_stays_as_it_ended(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client(db, "test") as client:
        session, future = client._context(), client.submit(square, 3)
        with Client(db, "test") as other:
            assert other.get_future(future.id).result(WAIT) == 9
        (entry,) = run(db, subscribe, SPACE, session.id, [future._record.id])
        declare_dead(db, client)
        for _ in range(5):
            collect(db, "test", grace=-1.0, tombstones=-1.0)

        def late(*args: Any, **options: Any) -> Any:
            """A thread goes on that had read the mail before the client was stopped."""
            session.expected.settle([entry])
            return ask(*args, **options)

        monkeypatch.setattr(subscriptions, "ask", late)
        session.life.return_again()
        assert future.result(WAIT) == 9
        assert session.pending == {}


class Noting:
    def note(self) -> None:
        """Never runs: there is no worker."""


def test_a_call_that_is_being_recorded_while_its_client_comes_back_is_not_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    db = fdb_embedded.open(f"memory:{uuid.uuid4()}")
    with Client(db, "test") as client:
        actor: Any = client.actor(Noting)
        call = actor.note()
        client._context()._intake.flush()  # the actor
        returns, met = Returns(db, client, monkeypatch), threading.Event()

        def slow(db: Any, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
            if not met.is_set():
                met.set()
                returns.happen()
            return ask(db, fn, *args, **options)

        monkeypatch.setattr(storing, "ask", slow)
        assert call.id
        assert met.is_set()
        assert not call._record.ended
        assert run(db, get_future_state, SPACE, call._record.id) is not None


def test_a_call_that_is_no_more_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    db = fdb_embedded.open(f"memory:{uuid.uuid4()}")  # without a worker: the actor isn't up
    with Client(db, "test") as client:
        actor: Any = client.actor(Noting, name="one")
        call = actor.note()
        with Client(db, "test") as other:
            assert other.get_future(call.id).cancel()
        declare_dead(db, client)
        for _ in range(5):
            collect(db, "test", grace=-1.0, tombstones=-1.0)
        session = client._context()
        session.life.return_again()
        with pytest.raises(FutureDeletedError, match="no sign of life for too long"):
            call.result(WAIT)
        assert not session.calls.unanswered()
        link = call._record.link
        sent: list[str] = []
        monkeypatch.setattr(actor_link, "Answers", lambda connection: connection)
        monkeypatch.setattr(link, "_send", lambda data: sent.append(msgpack.unpackb(data)[0]))
        link._begin(SimpleNamespace(sock=socket.socket()), 1)
        assert sent == ["hello"]


def test_large_arguments_that_went_with_the_session_are_uploaded_again(
    db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(db, "test") as client:
        met: list[bool] = []

        def cut(*args: Any, **options: Any) -> Any:
            if not met:
                met.append(True)
                declare_dead(db, client)  # the client was stopped between the upload and the commit
                collect_all(db)
            return ask(*args, **options)

        monkeypatch.setattr(storing, "ask", cut)
        assert client.submit(len, os.urandom(MAX_BATCH_BYTES + 1)).result(WAIT) == MAX_BATCH_BYTES + 1
        assert met
        assert validate(db, "test") == []


def test_a_client_beats_while_it_has_much_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be declared dead amid that, and have it all to say again."""
    db = fdb_embedded.open(f"memory:{uuid.uuid4()}")  # without a worker: nothing ends
    now, ahead, silent = session_life._now, 0.0, [0.0]
    monkeypatch.setattr(session_life, "_now", lambda: now() + ahead)
    monkeypatch.setattr(session_life, "RELEASED_AT_ONCE", 1)
    monkeypatch.setattr(subscriptions, "SUBSCRIBED_AT_ONCE", 1)

    def slow(*args: Any, **options: Any) -> Any:
        nonlocal ahead
        ahead += 10.0
        silent.append(session_life._now() - client._context().life._beaten)
        return ask(*args, **options)

    with Client(db, "test") as client, Client(db, "test") as other:
        made = [other.submit(square, n) for n in range(8)]
        taken = [client.get_future(one.id) for one in made]
        for one in taken:
            with pytest.raises(TimeoutError):
                one.result(0.0)
        session = client._context()
        monkeypatch.setattr(session_life, "run", slow)  # what it holds, and lets go
        session._take_up_again()
        assert (len(silent), max(silent) < SESSION_TTL_SECONDS) == (9, True)
        monkeypatch.setattr(subscriptions, "ask", slow)  # what it waits for
        session._subscriptions.renew()
        assert (len(silent), max(silent) < SESSION_TTL_SECONDS) == (25, True)
        session.pending.clear()
        del taken, one
        session.life.release_dropped()
        assert (len(silent), max(silent) < SESSION_TTL_SECONDS) == (33, True)


def test_what_stays_missing_is_stored_anew_once(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client(db, "test") as client:
        store: Any = client._context()._store
        tries: list[int] = []

        def lacking(batch: Any, idle: Any) -> None:
            tries.append(len(batch))
            store._stored_folders.add(b"folder")  # it was put once more
            raise BlobMissingError("it is missing")

        monkeypatch.setattr(store, "_store_together", lacking)
        with pytest.raises(BlobMissingError):
            client.submit(square, 3).result(WAIT)
        assert tries == [1, 1]


def refers_to(future: Any) -> Callable[[], str]:
    return lambda: type(future).__name__


@pytest.mark.parametrize("within", [False, True])
def test_a_future_that_a_function_refers_to_lives_as_long_as_what_the_function_is_submitted_as(
    db: Any, within: bool
) -> None:
    with Client(db, "test") as client:

        def let_go() -> None:
            gc.collect()
            client._context().life.release_dropped()
            collect_all(db)

        inner = client.submit(square, 3)
        assert inner.result(WAIT) == 9
        inner_id, function = inner.id, refers_to(inner)
        outer = run(db, lambda tr, fn=function: client.submit(fn, tr=tr)) if within else client.submit(function)
        assert outer.result(WAIT) == "Future"
        del inner, function
        let_go()
        assert client.get_future(inner_id).result(WAIT) == 9
        client.delete(outer)
        let_go()
        with pytest.raises(FutureDeletedError):
            client.get_future(inner_id).result(WAIT)


def test_a_future_that_a_function_refers_to_stays_one_whatever_calls_the_function(db: Any) -> None:
    with Client(db, "test") as client:
        future = client.submit(square, 3)

        def kind(*_: Any) -> str:
            return type(future).__name__

        with client.executor() as executor:
            for size in (1, 2):
                assert set(executor.map(kind, range(4), chunksize=size)) == {"Future"}
        data = client.dataset([[1, 2], [3, 4]])
        assert data.map(kind).collect(WAIT) == ["Future"] * 4
        assert data.reduce(kind, timeout=WAIT) == "Future"


def test_what_a_client_submits_when_it_goes_on_after_a_stop_has_its_code(
    db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(db, "test") as client:
        kept = client._context().life
        made = client.submit(refers_to, None)  # stores the code
        assert callable(made.result(WAIT))
        client.delete(made)
        declare_dead(db, client)
        collect_all(db)
        later = session_life._now() + 3600
        monkeypatch.setattr(session_life, "_now", lambda: later)  # it was stopped, and its thread hasn't beaten yet
        again = client.submit(refers_to, None)
        assert callable(again.result(WAIT))
        assert kept._beaten == later
        assert run(db, session_lives, SPACE, client._context().id)


def test_a_handle_of_a_key_outlives_the_other_one(db: Any) -> None:
    with Client(db, "test") as client:
        one = client.submit(square, 4, key="four")
        assert one.result(WAIT) == 16
        two = client.submit(square, 4, key="four")
        assert two.result(WAIT) == 16
        known = two.id
        del two
        client._context().life.release_dropped()
        collect_all(db)
        assert client.get_future(known).exception(WAIT) is None
        assert one.result(WAIT) == 16


def test_a_handle_made_from_the_id_of_one_outlives_it(db: Any) -> None:
    with Client(db, "test") as client:
        one = client.submit(square, 4)
        assert one.result(WAIT) == 16
        two = client.get_future(one.id)
        del one
        client._context().life.release_dropped()
        collect_all(db)
        assert two.result(WAIT) == 16
        known = two.id
        del two
        client._context().life.release_dropped()
        collect_all(db)
        with pytest.raises(FutureDeletedError):
            client.get_future(known).result(WAIT)


@pytest.mark.parametrize("how", ["id", "pickle"])
def test_a_handle_that_nobody_waits_with_holds_its_future(db: Any, how: str) -> None:
    with Client(db, "test") as client:
        with Client(db, "test") as maker:
            made = maker.submit(square, 4)
            assert made.result(WAIT) == 16
            known, packed = made.id, pickle.dumps(made)
        del made
        idle = client.get_future(known) if how == "id" else pickle.loads(packed)
        untouched.look()
        collect_all(db)
        assert idle.result(WAIT) == 16
        del idle
        client._context().life.release_dropped()
        collect_all(db)
        with pytest.raises(FutureDeletedError):
            client.get_future(known).result(WAIT)


def test_a_handle_is_held_a_moment_after_it_was_made(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untouched, "HOLD_AFTER", 0.01)
    told = threading.Event()
    real = session_life.ask

    def ask(db: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
        if fn is session_life.hold_futures:
            if not troubles:
                told.set()
            else:
                raise troubles.pop()
        return real(db, fn, *args, **kwargs)

    troubles = [DatabaseUnreachableError("no answer")]
    monkeypatch.setattr(session_life, "ask", ask)
    with Client(db, "test") as client:
        client._context().life._seconds = 0.05
        unknown = client.get_future(uuid.uuid4())  # an id that no future has is no harm
        assert told.wait(WAIT)
        with pytest.raises(UnknownFutureError):
            unknown.result(WAIT)
        assert validate(db, "test") == []


def test_a_handle_of_a_cluster_that_has_no_client_here_is_held_once_it_has_one(db: Any) -> None:
    with Client(db, "test") as maker:
        made = maker.submit(square, 3)
        assert made.result(WAIT) == 9
        packed = pickle.dumps(made)
    del made
    idle = pickle.loads(packed)
    untouched.look()
    with Client(db, "test"):
        untouched.look()
        collect_all(db)
        assert idle.result(WAIT) == 9


def test_a_future_taken_up_while_it_is_let_go_stays_held(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    maker, client = Client(db, "test"), Client(db, "test")
    with client:
        with maker:
            known = maker.submit(square, 5).id
            maker.get_future(known).result(WAIT)
            first = client.get_future(known)
            assert first.result(WAIT) == 25
            again: list[Any] = []
            real = session_life.run

            def late(db: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
                if fn.__name__ == "release_futures" and args[-1] == [known.bytes] and not again:
                    again.append(client.get_future(known))
                    assert again[0].result(WAIT) == 25
                return real(db, fn, *args, **kwargs)

            monkeypatch.setattr(session_life, "run", late)
            del first
            client._context().life.release_dropped()
            assert again
        collect_all(db)
        with Client(db, "test") as other:
            assert other.get_future(known).result(WAIT) == 25


def test_a_request_on_a_line_is_not_forgotten_for_trouble_with_the_database(
    db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No mail comes of it: who waits has to ask again."""
    with Client(db, "test") as client:
        session = client._context()
        future = client.submit(square, 6)
        assert future.result(WAIT) == 36
        # As it is while the worker that has the request on its line hung up and the mail isn't there.
        entry, future._record.entry = future._record.entry, None
        future._value = client.submit(square, 1)._value
        assert isinstance(entry, MailEntry)
        session.pending[future._record.id] = future._record
        session.line.awaited = future._record.id
        troubles = [DatabaseUnreachableError("no answer")]
        real = client_reader.ask

        def ask(db: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
            if fn is subscribe and troubles:
                raise troubles.pop()
            return real(db, fn, *args, **kwargs)

        monkeypatch.setattr(client_reader, "ask", ask)
        with pytest.raises(DatabaseUnreachableError):
            future.result(WAIT)
        assert future.result(WAIT) == 36


def test_signals_of_streams_are_forgotten_and_never_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expected, "SIGNALS_KEPT", 3)
    told = expected.Expected()
    seen = set()
    for number in range(20):
        stream = bytes([number % 5]) * 16
        told.settle([MailEntry(stream, "stream", None, None, 0)], deque())
        seen.add(told.signals[stream])
    assert len(told.signals) == 3
    assert len(seen) == 20


@pytest.mark.parametrize("refused", [False, True])
def test_handles_of_one_future_in_many_threads_end_alike_and_each_is_told_once(
    db: Any, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    """Each has a handle of its own, made before the future ended; with `refused` the database turns some of them away at first."""
    with Client(db, "test") as client, Client(db, "test") as maker:
        gate = maker.submit(square, 2, resources={"gpu": 1})  # nobody here runs it
        packed, known = pickle.dumps(gate), gate.id
        real, left = subscriptions.ask, [DatabaseUnreachableError("no answer") for _ in range(3 * refused)]

        def ask(db: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
            if fn is subscribe and left:
                raise left.pop()
            return real(db, fn, *args, **kwargs)

        monkeypatch.setattr(subscriptions, "ask", ask)
        told: list[Any] = []
        ended: list[Any] = []
        calls = threading.Semaphore(0)

        def tell(handle: Any) -> None:
            told.append(handle)
            calls.release()

        waiting = threading.Barrier(9)

        def wait(handle: Any) -> None:
            for _ in range(4):
                try:
                    handle.add_done_callback(tell)
                    break
                except DatabaseUnreachableError:
                    continue
            waiting.wait(WAIT)
            ended.append((handle, handle.exception(WAIT)))

        handles = [pickle.loads(packed) if number % 2 else client.get_future(known) for number in range(8)]
        threads = [threading.Thread(target=wait, args=(handle,), daemon=True) for handle in handles]
        with client:
            for thread in threads:
                thread.start()
            waiting.wait(WAIT)
            assert not told
            maker.delete(gate)
            for thread in threads:
                thread.join(WAIT)
        assert sorted(map(id, (handle for handle, _ in ended))) == sorted(map(id, handles))
        assert {type(error) for _, error in ended} == {FutureDeletedError}
        assert all(calls.acquire(timeout=WAIT) for _ in handles)
        assert sorted(map(id, told)) == sorted(map(id, handles))
        assert not left


def test_futures_in_between_are_held_until_what_depends_on_them_is_submitted(
    db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(db, "test") as client:
        inputs = client.map(square, range(MOST_INPUTS + 5))
        held: list[int] = []
        whole = Session.submit

        def counted(session: Any, record: Any, spec: Any, *rest: Any) -> Any:
            if spec.name.endswith("sum"):
                session.flush()
                deadline = time.monotonic() + WAIT
                while any(one in session.pending for one in spec.dependencies):  # they end meanwhile
                    assert time.monotonic() < deadline
                    time.sleep(0.05)  # to those who make them end, in this very process
                    session.reader.read()
                gc.collect()
                held.append(len([one for one in spec.dependencies if one in let_go]))
            return whole(session, record, spec, *rest)

        let_go: list[bytes] = []
        drop = session_life.SessionLife.drop
        monkeypatch.setattr(
            session_life.SessionLife, "drop", lambda self, one: (let_go.append(one), drop(self, one))[1]
        )
        monkeypatch.setattr(Session, "submit", counted)
        total = client.submit(sum, inputs)
        assert held == [0, 0, 0], "of the two futures in between, and of what takes them, none was let go"
        assert total.result(timeout=WAIT) == sum(n * n for n in range(MOST_INPUTS + 5))
