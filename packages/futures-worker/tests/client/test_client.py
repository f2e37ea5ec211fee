"""The client against a worker in the same process, on every engine."""

from __future__ import annotations

import pickle
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from fdb_datamodel import (
    FutureDeletedError,
    FutureState,
    UnknownFutureError,
    WorkerId,
    new_incarnation,
    read_mailbox,
    register_worker,
    validate,
)
from fdb_datamodel.rows.table import FORMAT
from fdb_schema import ClusterSpace, MainspringError, NewerFormatError, open_database
from fdb_schema.records import pack
from futures_worker import Client, Status, UpstreamDependencyFailedException, as_completed, wait
from futures_worker.client.waiting.group import Group
from idempotent_txn import run

WAIT = 60.0


@pytest.fixture
def client(any_db: Any, thread_worker: Callable[..., Any]) -> Any:
    thread_worker(any_db, "test")
    with Client(any_db, "test") as client:
        yield client
    assert validate(any_db, "test") == []


def square(n: int) -> int:
    return n * n


def test_submit_map_gather(client: Client) -> None:
    assert client.submit(square, 3).result(WAIT) == 9
    assert client.gather(client.map(square, range(700))) == [n * n for n in range(700)]
    chain = client.submit(square, 2)
    for _ in range(3):
        chain = client.submit(square, chain)
    assert chain.result(WAIT) == 2**16


def test_gather_returns_what_ended_a_task_also_where_that_ends_a_program(client: Client) -> None:
    futures = [client.submit(sys.exit, 3, max_retries=0), client.submit(square, 3)]
    ended, nine = client.gather(futures, errors="return", timeout=WAIT)
    assert (type(ended), ended.code, nine) == (SystemExit, 3, 9)
    with pytest.raises(SystemExit):
        client.gather(futures, timeout=WAIT)


def test_submit_within_the_users_transaction(client: Client, any_db: Any) -> None:
    made: list[Any] = []

    def order(tr: Any, fails: bool) -> None:
        tr.set(b"order", b"17")
        made.append(client.submit(square, 17, tr=tr))
        if fails:
            raise RuntimeError("out of stock")

    with pytest.raises(RuntimeError, match="out of stock"):
        run(any_db, order, True)
    run(any_db, order, False)
    never, done = made[0], made[-1]
    assert done.result(WAIT) == 289
    assert done.state() == FutureState.realized
    with pytest.raises(MainspringError):
        client.get_future(never._record.id).state()


def test_a_key_within_a_transaction_is_in_the_attempt_that_commits(client: Client, any_db: Any) -> None:
    attempts: list[Any] = []

    def order(tr: Any) -> Any:
        tr[b"bell"].present()
        if not attempts:
            any_db[b"bell"] = b"rung"  # the first attempt conflicts
        attempts.append(client.submit(square, 17, key="order", tr=tr))
        return attempts[-1]

    assert run(any_db, order).result(WAIT) == 289
    assert len(attempts) == 2


def test_a_key_of_a_transaction_that_came_to_nothing_may_be_submitted(client: Client, any_db: Any) -> None:
    made: list[Any] = []

    def fail(tr: Any) -> None:
        made.extend(client.submit(square, 17, tr=tr, **options) for options in ({}, {"key": "order"}))
        raise RuntimeError("out of stock")

    with pytest.raises(RuntimeError, match="out of stock"):
        run(any_db, fail)
    for never in made:
        with pytest.raises(UnknownFutureError):
            never.result(WAIT)
    assert client.submit(square, 17, key="order").result(WAIT) == 289
    assert not client._context().pending, "nothing waits for what nobody asked for"


def test_what_was_just_submitted_is_an_argument_within_a_transaction_too(client: Client, any_db: Any) -> None:
    for n in range(20):
        made = client.submit(square, n)
        assert run(any_db, lambda tr, made=made: client.submit(square, made, tr=tr)).result(WAIT) == n**4


def test_what_was_submitted_since_a_transaction_began_to_read_is_an_argument_too(client: Client, any_db: Any) -> None:
    made: list[Any] = []

    def late(tr: Any) -> Any:
        tr[b"order"].present()
        if not made:
            made.append(client.submit(square, 3))
        return client.submit(square, made[0], tr=tr)

    def always_later(tr: Any) -> Any:
        tr[b"order"].present()
        return client.submit(square, client.submit(square, 3), tr=tr)

    for _ in range(2):
        made.clear()
        assert run(any_db, late).result(WAIT) == 81
        with pytest.raises(UnknownFutureError):
            run(any_db, always_later)


def test_what_another_client_of_the_process_has_just_made_is_an_argument_too(client: Client, any_db: Any) -> None:
    with Client(any_db, "test") as other:
        for n in range(20):
            made = other.submit(square, n)
            assert client.submit(square, made).result(WAIT) == n**4
        gone = other.submit(square, 3)
        client.delete(gone)
        with pytest.raises(FutureDeletedError):
            client.get_future(gone.id).result(WAIT)


def test_a_refused_future_says_why_and_harms_no_other(client: Client) -> None:
    unknown = client.get_future(uuid.uuid4())
    good = [client.submit(square, n) for n in range(3)]
    bad = client.submit(square, unknown)
    more = [client.submit(square, n) for n in range(3)]
    assert client.gather(good + more) == [0, 1, 4, 0, 1, 4]
    with pytest.raises(MainspringError, match="isn't there"):
        bad.result(WAIT)
    with pytest.raises(MainspringError, match="isn't there"):
        bad.state()
    assert bad.done()
    assert wait([bad, *good]).not_done == set()


def test_as_completed_yields_what_ended_before(client: Client) -> None:
    futures = client.map(abs, range(4))
    wait(futures, timeout=WAIT)
    assert {f.result() for f in as_completed(futures, timeout=0)} == {0, 1, 2, 3}
    assert list(as_completed([], timeout=0)) == []


def test_as_completed_yields_what_another_thread_is_noting(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    futures = client.map(abs, range(4))
    noting = Group.note

    class Slow(deque[Any]):
        def append(self, future: Any) -> None:
            time.sleep(0.01)  # the switch of threads that loses it where whoever looks doesn't wait
            super().append(future)

    def note(group: Any, ended: Any) -> None:
        if type(group._ended) is not Slow:
            group._ended = Slow()
        noting(group, ended)

    monkeypatch.setattr(Group, "note", note)
    futures[-1].add_done_callback(lambda _: None)  # a thread reads the mail
    assert {f.result() for f in as_completed(futures, timeout=WAIT)} == {0, 1, 2, 3}


def test_a_callback_that_ends_its_thread_takes_no_other_from_those_who_wait(client: Client, any_db: Any) -> None:
    gate = client.submit(square, 2, resources={"gpu": 1})  # nobody here runs it
    told = [threading.Event() for _ in range(5)]
    gate.add_done_callback(lambda _: sys.exit("the callback"))
    for event in told:
        gate.add_done_callback(lambda _, event=event: event.set())
    client.delete(gate)
    assert all(event.wait(WAIT) for event in told)


def test_delivered_mail_is_deleted(client: Client, any_db: Any) -> None:
    session = client._context()

    def mail(tr: Any) -> int:
        return len(read_mailbox(tr, session.space, session.id)[0])

    for n in range(20):
        assert client.submit(square, n).result(WAIT) == n * n
    assert run(any_db, mail) <= 2  # what came since the last submit


def test_two_handles_of_one_future_in_one_client(client: Client) -> None:
    future = client.submit(square, 4)
    again = client.get_future(future.id)
    third = client.get_future(future._record.id)
    assert {again.result(WAIT), third.result(WAIT), future.result(WAIT)} == {16}


def test_the_callback_of_an_ended_future_runs_at_once(client: Client) -> None:
    future = client.submit(square, 5)
    assert future.result(WAIT) == 25
    told: list[Any] = []
    future.add_done_callback(told.append)
    assert told == [future]


def test_a_callback_that_fails_doesnt_stop_the_others(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    told = threading.Event()
    future = client.submit(square, 6)
    future.add_done_callback(lambda _: 1 / 0)
    future.add_done_callback(lambda _: told.set())
    assert told.wait(WAIT)
    end = time.monotonic() + WAIT
    while "a callback of" not in caplog.text and time.monotonic() < end:  # logged by the thread that ran the first
        time.sleep(0.001)
    assert "a callback of" in caplog.text


def test_a_closed_client_says_so(any_db: Any) -> None:
    client = Client(any_db, "test")
    future = client.submit(square, 1)
    client.close()
    client.close()
    for call in (lambda: client.submit(square, 1), future.state, lambda: future.result(1), client.flush):
        with pytest.raises(MainspringError, match="closed"):
            call()


def test_closing_wakes_whoever_waits(any_db: Any) -> None:
    client = Client(any_db, "test")
    future = client.submit(square, 1)
    trouble: list[BaseException] = []
    waiting = threading.Event()

    def waits() -> None:
        waiting.set()
        try:
            future.result(WAIT)
        except BaseException as error:
            trouble.append(error)

    thread = threading.Thread(target=waits)
    thread.start()
    assert waiting.wait(WAIT)
    client.close()
    thread.join(WAIT)
    assert not thread.is_alive()
    assert isinstance(trouble[0], MainspringError)


def test_a_pickled_client_is_another_client_of_its_cluster(database_dir: Any) -> None:
    with Client(f"embedded:{database_dir}", "test") as client:
        other = pickle.loads(pickle.dumps(client))
        assert (other.cluster, other._context.url) == (client.cluster, client._context.url)
        other.close()
    with Client(open_database("memory:"), "test") as opened, pytest.raises(TypeError, match="URL"):
        pickle.dumps(opened)


def test_a_status_equals_its_state_and_tells_the_reason() -> None:
    status = Status(FutureState.unclaimed, "no worker has 8 gpus")
    assert status == FutureState.unclaimed == status
    assert status == "unclaimed"
    assert status != FutureState.claimed
    assert {status: 1}["unclaimed"] == 1
    assert status.state is FutureState.unclaimed
    assert "8 gpus" in str(status)
    again = pickle.loads(pickle.dumps(status))
    assert (again, again.reason) == (status, status.reason)


def test_a_cluster_that_a_newer_release_wrote_is_refused(any_db: Any) -> None:
    space = ClusterSpace("test")

    def newer(tr: Any) -> None:
        tr.set(space.format.pack(("futures",)), pack(FORMAT + 1))

    run(any_db, newer)
    with pytest.raises(NewerFormatError, match=f"'futures' of cluster 'test' has format {FORMAT + 1}"):
        Client(any_db, "test")
    with pytest.raises(NewerFormatError):
        run(any_db, register_worker, space, WorkerId("127.0.0.1", 1, new_incarnation()))


def test_a_call_takes_any_number_of_futures(client: Client, any_db: Any) -> None:
    many = client.map(abs, range(4_500))
    total = client.submit(
        lambda *parts: [sum(parts[0]), len(parts[0]), parts[1], parts[2]["last"]], many, 7, {"last": many[-1]}
    )
    assert total.result(WAIT) == [sum(range(4_500)), 4_500, 7, 4_499]


def test_a_failure_among_very_many_inputs_is_told(client: Client) -> None:
    many = [*client.map(abs, range(1_500)), client.submit(divmod, 1, 0, max_retries=0)]
    with pytest.raises(UpstreamDependencyFailedException, match="division"):
        client.submit(sum, many).result(WAIT)
