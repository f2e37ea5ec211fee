"""What a client says of wrong calls, where they are written; and what handles say of themselves."""

from __future__ import annotations

import functools
import shlex
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any

import pytest

from fdb_datamodel import WorkerId, claim_future, new_incarnation, register_worker, relinquish_claim
from fdb_schema import ClusterSpace, open_database
from futures_worker import (
    Client,
    LargeArgumentWarning,
    LongWaitWarning,
    NoWorkerError,
    as_completed,
    submit_options,
    wait,
)
from futures_worker.client.basis import diagnosis
from futures_worker.client.session import waiting
from idempotent_txn import run

WAIT = 60.0


def add(a: int, b: int = 1) -> int:
    return a + b


def anything(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return kwargs


class Counter:
    def __init__(self, start: int, *, step: int = 1) -> None: ...

    def incr(self) -> None: ...

    def _hidden(self) -> None: ...


@pytest.fixture
def client() -> Iterator[Client]:
    """No worker runs."""
    with Client("memory:", "test") as client:
        yield client


def test_an_option_that_is_misspelt_is_said(client: Client) -> None:
    with pytest.raises(TypeError, match=r"'max_retry' is no option of submit.*did you mean 'max_retries'"):
        client.submit(add, 1, max_retry=0)
    with pytest.raises(TypeError, match=r"'prioritiy'.*'priority'"):
        client.map(add, [1], prioritiy=3)
    with pytest.raises(TypeError, match="'resource' is no option of submit: did you mean 'resources'"):
        client.options(resource={"cpu": 1})
    with pytest.raises(TypeError, match=r"'max_restart'.*'max_restarts'"):
        client.actor(Counter, 1, max_restart=2)
    with pytest.raises(TypeError, match=r"'max_retry'.*'max_retries'"):
        Client("memory:", max_retry=0)
    with pytest.warns(UserWarning, match=r"'max_retry'.*did you mean 'max_retries'"):
        client.submit(anything, max_retry=0)


def test_a_keyword_that_the_function_has_is_its_own(client: Client) -> None:
    def mine(max_retry: int, *, names: int, resource: int = 0) -> None: ...

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        client.submit(mine, max_retry=1, names=2, resource=3)
        client.submit(anything, colour=1)
        client.options(priority=1).submit(anything, max_retry=0)


def test_a_constructors_wrong_arguments_are_found_where_the_actor_is_made(client: Client) -> None:
    for args, kwargs in [((), {}), ((1, 2), {}), ((1,), {"stop": 2})]:
        with pytest.raises(TypeError, match=r"Counter\(start: .*can't be called"):
            client.actor(Counter, *args, **kwargs)
    assert client._context.own_actors == []
    actor = client.actor(Counter, 1, step=2)
    assert "incr" in dir(actor)
    assert "_hidden" not in dir(actor)


def test_what_is_no_future_is_named_with_its_place(client: Client) -> None:
    future = client.submit(add, 1)
    with pytest.raises(TypeError, match=r"gather takes futures, found 5 \(int\) in place 1"):
        client.gather([future, 5])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="gather takes several futures, found one"):
        client.gather(future)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="wait takes several futures, found one"):
        wait(future)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="as_completed takes futures, found 'x'"):
        as_completed(["x"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="delete takes futures, found None"):
        client.delete_all([None])  # type: ignore[list-item]
    pending = client.executor().submit(add, 1)
    with pytest.raises(TypeError, match=r"\.durable"):
        wait([pending])  # type: ignore[list-item]
    pending.cancel()


@pytest.mark.parametrize("timeout", ["5", True, [1], float("nan")])
def test_a_timeout_that_is_no_number_is_named(client: Client, timeout: Any) -> None:
    future = client.submit(add, 1)
    for call in (
        lambda: future.result(timeout=timeout),
        lambda: future.exception(timeout=timeout),
        lambda: wait([future], timeout=timeout),
        lambda: as_completed([future], timeout=timeout),
        lambda: client.gather([future], timeout=timeout),
    ):
        with pytest.raises((TypeError, ValueError), match="timeout is a number of seconds"):
            call()


def test_a_cancelled_future_says_so(client: Client) -> None:
    future = client.submit(add, 1)
    assert future.cancel()
    assert "cancelled" in repr(future)
    assert "failed" not in repr(future)
    with pytest.raises(CancelledError):
        future.result()


def test_handles_of_one_future_are_equal(any_db: Any, thread_worker: Callable[..., Any]) -> None:
    thread_worker(any_db, "test")
    with Client(any_db, "test") as one, Client(any_db, "test") as two:
        future, other = one.submit(add, 1), one.submit(add, 2)
        again, elsewhere = one.get_future(future.id), two.get_future(future.id)
        assert future == again == elsewhere != other
        assert {future: "mine"}[elsewhere] == "mine"
        assert future in {again}
        assert future != str(future.id)
        assert wait([future, again, elsewhere, other], timeout=WAIT).done == {future, other}
        assert next(iter(as_completed([elsewhere], timeout=WAIT))) is elsewhere
        late = one.submit(add, 3)
        twins = [late, one.get_future(late.id)]
        assert [next(iter(as_completed([twin], timeout=WAIT))) is twin for twin in twins] == [True, True]
        assert one.gather([late, *twins]) == [4, 4, 4]


def test_a_long_wait_is_no_error_where_warnings_are(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waiting, "WARN_SECONDS", 0.0)
    future = client.submit(add, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TimeoutError):
            future.result(timeout=0.05)
    assert "still waiting for" in caplog.text
    with pytest.warns(LongWaitWarning), pytest.raises(TimeoutError):
        future.result(timeout=0.05)


def test_a_long_wait_for_what_a_worker_has_is_not_warned_of_until_it_has_it_no_more(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "WARN_SECONDS", 0.0)
    db, space = client._context.db, client._context.space
    worker = WorkerId("10.0.0.1", 7000, new_incarnation())
    run(db, register_worker, space, worker)
    future = client.submit(add, 1)
    claim = run(db, claim_future, space, future.id, worker)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TimeoutError, match="claimed"):
            future.result(timeout=0.05)
    run(db, relinquish_claim, space, claim)
    with pytest.warns(LongWaitWarning, match="unclaimed"), pytest.raises(TimeoutError):
        future.result(timeout=0.05)


def test_a_long_wait_for_calls_of_an_actor_says_what_they_wait_for(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "WARN_SECONDS", 0.0)
    calls = [client.actor(Counter, 1).incr() for _ in range(2)]
    with (
        pytest.warns(LongWaitWarning, match="to be sent to actor Counter, .*no live worker"),
        pytest.raises(TimeoutError),
    ):
        client.gather(calls, timeout=0.05)


def test_the_hint_to_start_a_worker_names_the_database(shared_url: str) -> None:
    with Client(shared_url, "test it") as client:
        command = f"futures-worker run --db {shlex.quote(client.origin.url or '')} --cluster 'test it'"
        assert f"`{command}`" in str(client.submit(add, 1).state())
        with pytest.raises(NoWorkerError) as told:
            client.put(b"x" * 100_000)
        assert command in str(told.value)


def test_the_hint_for_a_database_in_memory_names_no_command() -> None:
    db = open_database("memory:")
    assert "only this process can open" in diagnosis.start_hint(db, ClusterSpace("test"))


def test_options_can_be_defaults_of_a_client_and_of_a_function(any_db: Any) -> None:
    @submit_options(max_retries=1, timeout=9)
    def once(n: int) -> int:
        return n

    seen: list[Any] = []

    with Client(any_db, "test", max_retries=0, priority=4) as client:
        session_ = client._context()
        submit = session_.submit

        def spy(future: Any, spec: Any, *rest: Any) -> Any:
            seen.append((spec.max_retries, spec.priority, spec.run_timeout))
            return submit(future, spec, *rest)

        session_.submit = spy  # type: ignore[method-assign]
        client.submit(add, 1)
        client.submit(add, 1, max_retries=5)
        client.submit(once, 1)
        client.submit(functools.partial(once, 1), priority=2)
        client.submit(once, 1, max_retries=7)
        client.options(max_retries=6).map(once, [1])
        client.executor().submit(once, 1).cancel()
        client.executor().submit(add, 1).cancel()
    assert seen == [(0, 4, None), (5, 4, None), (1, 4, 9), (1, 2, 9), (7, 4, 9), (6, 4, 9), (0, 4, 9), (0, 4, None)]
    with pytest.raises(TypeError, match="'key' is of one future"):
        Client(any_db, "test", key="k")
    with pytest.raises(ValueError, match="max_retries"):
        submit_options(max_retries=-1)


def test_defaults_travel_with_a_pickled_client_and_a_function() -> None:
    import pickle

    from futures_worker.client.basis.options import options_of
    from futures_worker.payload import dump_code, load_code

    with Client("memory:", "test", max_retries=0) as client:
        again = pickle.loads(pickle.dumps(client))
        assert again._context.options.max_retries == 0
        again.close()

    @submit_options(max_retries=0)
    def once() -> None: ...

    assert options_of(load_code(dump_code(once).data)) == (("max_retries", 0),)


def test_a_large_argument_that_several_tasks_get_is_told_of_once(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    np = pytest.importorskip("numpy")
    weights, scale = np.arange(400_000), np.ones(300_000)

    def told(*args: Any, **kwargs: Any) -> list[str]:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            client.submit(anything, *args, **kwargs)
        assert all(one.category is LargeArgumentWarning and one.filename == __file__ for one in seen)
        return [str(one.message) for one in seen]

    assert told(weights, 1) == []
    (text,) = told(2, weights)
    for part in ("argument number 2 of", "anything", "numpy.ndarray of 3.2 MB", "2 tasks", "client.put("):
        assert part in text
    assert told(weights, 3) == [], "once"
    weights[7] = 0
    assert told(weights, 4) == [], "it is another array now"
    assert len(told(weights, 5)) == 1
    future = client.put(1)
    assert told([future, bytearray(2 << 20)], scale=scale) == []
    assert [("number 1" in one, "scale" in one) for one in told([future, bytearray(2 << 20)], scale=scale)] == [
        (True, False),
        (False, True),
    ]
    assert told(bytes(1000), "x" * 1000) == []
    text_of_novel = "y" * (2 << 20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        client.map(anything, [text_of_novel, text_of_novel])
    assert "2 tasks" in caplog.text
