"""What a later attempt finds is what the first one had: events sent, refusals, what a wait told; one that lost its claim stops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any

import compared
import pytest
from program_sim import PATIENT, URL, Cluster

import fdb_datamodel as dm
from fdb_datamodel import programs
from fdb_datamodel.rows.elements import encode_id
from fdb_datamodel.rows.space import NUM_ATTEMPTS, layout_of
from futures_worker import MainspringError, step
from futures_worker.client.context import worker_context
from futures_worker.programs import asking, waits
from futures_worker.worker.child import task_context
from idempotent_txn import run


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    compared.DONE.clear()
    compared.LOSE.clear()
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


def test_what_a_cancelled_program_was_about_to_wait_for_is_not_kept_by_its_process(cluster: Cluster) -> None:
    program = cluster.client.submit(compared.told_before_a_wait, durable=True, **PATIENT)
    compared.LOSE[:] = [lambda: cluster.transact(programs.cancel_program, program._record.id)]
    cluster.run_to_the_end([program], [])
    with pytest.raises(CancelledError):
        program.result(timeout=10)
    task_context.enter(task_context.TaskContext(bytes(16), URL, cluster.space.cluster))
    try:
        assert worker_context()().pending == {}
    finally:
        task_context.enter(None)


def test_a_step_that_is_interrupted_behind_its_commit_is_recorded_as_it_was(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a time limit of the program's own, say: what the commit recorded is what the step returns, and what counts."""
    whole, made = asking.run_patiently, []

    def interrupted(db: Any, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        found = whole(db, fn, *args, **kwargs)
        made.append(found)
        if len(made) == 2:
            raise TimeoutError("the program's own limit")
        return found

    monkeypatch.setattr(asking, "run_patiently", interrupted)
    key = cluster.space.cluster.encode()
    assert ran(cluster, compared.charging, key) == ["done", 1]
    assert run(cluster.db, lambda tr: int(tr[key].value)) == 1


def test_one_that_runs_anew_finds_what_it_asked_for_whatever_its_attempts_say(cluster: Cluster) -> None:
    """The row that counts them was damaged, and dropped when the program was set apart."""
    program = cluster.client.submit(compared.steps_then_fails, durable=True, max_retries=0)
    cluster.run_to_the_end([program], [])
    assert compared.DONE == ["a", "b"]
    layout = layout_of(cluster.space)
    run(cluster.db, lambda tr: tr.clear(layout.future(encode_id(program._record.id), NUM_ATTEMPTS)))
    compared.LOSE[:] = [lambda: None]
    assert cluster.transact(programs.resume_program, program._record.id)
    cluster.run_to_the_end([program], [])
    assert cluster.value(program) == "c"
    assert compared.DONE == ["a", "b", "c"]


def test_a_coroutine_function_is_a_step(cluster: Cluster) -> None:
    assert ran(cluster, compared.awaiting, cluster.space.cluster.encode()) == ("awaited", 1)
    assert step(compared.later, "outside") == "outside"


def test_only_its_own_thread_asks(cluster: Cluster) -> None:
    with pytest.raises(MainspringError, match="step is asked for by another thread"):
        ran(cluster, compared.threaded)
    assert ran(cluster, compared.threaded_in_a_step) == [0, 1, 2]
