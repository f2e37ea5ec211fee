"""What a later attempt finds is what the first one had: events sent, refusals, what a wait told; one that lost its claim stops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import compared
import pytest
from program_sim import PATIENT, Cluster

import fdb_datamodel as dm
from futures_worker import MainspringError, step
from futures_worker.programs import waits
from idempotent_txn import run


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    compared.DONE.clear()
    cluster = Cluster(1, kills=0.0)
    yield cluster
    assert dm.validate(cluster.db, cluster.space) == []
    cluster.close()


def ran(cluster: Cluster, body: Callable[..., Any], *args: Any) -> Any:
    program = cluster.client.submit(body, *args, durable=True, **PATIENT)
    cluster.run_to_the_end([program], [])
    return program.result(timeout=10)


def test_an_event_from_a_program_is_sent_once(cluster: Cluster) -> None:
    heard, said = ran(cluster, compared.teller)
    assert heard == 2
    assert "has ended" in said


def test_who_goes_on_after_a_refusal_does_so_in_every_attempt(cluster: Cluster) -> None:
    assert ran(cluster, compared.careful) == [
        "OversizeError",
        "ResultPickleError",
        "UnknownFutureError",
        "ResultPickleError",
    ]
    assert cluster.left == 4


@pytest.mark.parametrize("how", ["ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION"])
@pytest.mark.parametrize("listed", [5, 1000])
def test_a_wait_tells_the_same_to_every_attempt(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, how: str, listed: int
) -> None:
    monkeypatch.setattr(waits, "MOST_LISTED", listed)
    told, order = ran(cluster, compared.crowd, 30, how)
    assert told == 30
    assert sorted(order) == list(range(30))
    assert [(told, order), (told, order)] == compared.DONE


def test_one_whose_claim_is_lost_compensates_nothing(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = cluster._run

    def losing(claim: dm.Claim) -> None:
        def lose() -> None:
            compared.LOSE[:] = [lambda: None]
            crash = dm.Outcome.failed(claim, dm.Failure("crash", "so it seemed"))
            run(cluster.db, dm.finish_turn, cluster.space, cluster.worker, [crash], dm.Capacity(), 0)

        compared.LOSE[:] = compared.LOSE or [lose]
        whole(claim)

    compared.LOSE.clear()
    monkeypatch.setattr(cluster, "_run", losing)
    assert ran(cluster, compared.saga) == "shipped"
    assert compared.DONE == ["charged", "shipped"]


def test_a_coroutine_function_is_a_step(cluster: Cluster) -> None:
    assert ran(cluster, compared.awaiting, cluster.space.cluster.encode()) == ("awaited", 1)
    assert step(compared.later, "outside") == "outside"


def test_only_its_own_thread_asks(cluster: Cluster) -> None:
    with pytest.raises(MainspringError, match="step is asked for by another thread"):
        ran(cluster, compared.threaded)
    assert ran(cluster, compared.threaded_in_a_step) == [0, 1, 2]
