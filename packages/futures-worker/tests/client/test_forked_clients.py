"""Children of a process that has a client: what they submit is stored, and they wait for no thread of their parent."""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import multiprocessing.util
from typing import Any

import pytest
from support.forks import in_child

from futures_worker import Client
from futures_worker.client.basis import processes
from futures_worker.client.basis.intake import Intake
from futures_worker.client.session.session import Session

pytestmark = [
    pytest.mark.embedded_only("the official client doesn't survive a fork"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.mark.parametrize("own", [False, True])
def test_what_a_process_of_multiprocessing_submits_is_stored_when_it_ends(shared_url: str, own: bool) -> None:
    """It ends without exit handlers."""
    with Client(shared_url, "test") as client:
        client.flush()

        def work() -> None:
            (Client(shared_url, "test") if own else client).submit(pow, 2, 5, key="of the child")

        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
        process.join(60)
        assert process.exitcode == 0
        assert client.get_future(key="of the child").state() == "unclaimed"


def test_what_is_submitted_by_a_client_that_nobody_has_any_more_is_stored_at_the_end(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no exit handler is called: of a forkserver's process, and of a worker's."""
    monkeypatch.setattr(Session, "abandon", lambda *_: None)  # as where its thread hasn't come to it yet
    monkeypatch.setattr(Intake, "_wake_ticker", lambda *_: None)

    def work() -> None:
        Client(shared_url, "test").submit(pow, 2, 5, key="the last")

    work()
    processes.store_all()
    with Client(shared_url, "test") as client:
        assert client.get_future(key="the last").state() == "unclaimed"


def test_a_process_of_multiprocessing_is_told_of_when_it_first_submits(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It isn't known as such while its arguments are loaded, a client among them."""
    told: list[Any] = []
    monkeypatch.setattr(multiprocessing.util, "Finalize", lambda _, what, **options: told.append(what))
    monkeypatch.setattr(processes, "_ends_for", 0)
    with Client(shared_url, "test") as client:
        assert not told
        monkeypatch.setattr(multiprocessing.process, "parent_process", lambda: "its parent")
        for _ in range(2):
            client.submit(pow, 2, 5)
            client.flush()
        assert told == [processes.store_all]
    monkeypatch.setattr(processes, "_ends_for", 0)


def test_a_forked_child_goes_on_with_an_executor(shared_url: str) -> None:
    with Client(shared_url, "test") as client, client.executor() as executor:
        before = executor.submit(pow, 2, 5)

        def child() -> None:
            executor.submit(pow, 2, 6).cancel()
            executor.shutdown()

        try:
            with executor._lock:  # as another thread may have it, which isn't in the child
                assert in_child(child) == 0
        finally:
            assert before.cancel()


def test_a_forked_child_goes_on_with_a_backend_of_joblib(shared_url: str) -> None:
    pytest.importorskip("joblib")
    from futures_worker.adapters.joblib_backend import MainspringBackend

    with Client(shared_url, "test") as client:
        backend = MainspringBackend(client=client)
        large: Any = bytearray(10)
        backend.start_call()

        def child() -> None:
            backend.start_call()
            backend._shared._put(large)
            assert backend._calls == 1
            backend.stop_call()

        with backend._lock, backend._shared._lock:
            assert in_child(child) == 0
        backend.stop_call()
