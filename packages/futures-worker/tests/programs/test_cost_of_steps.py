"""What a step costs: one transaction that reads nothing, so a cluster is asked once. A program's first attempt reads no history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any

import compared
import pytest
from program_sim import PATIENT, Cluster

from fdb_datamodel import programs
from futures_worker.programs import asking

READS = {"get", "get_many", "get_range", "read_range", "snapshot", "get_read_version", "peek_read_version"}


class Noting:
    """A transaction that notes what it is asked for."""

    def __init__(self, tr: Any) -> None:
        self.tr = tr
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        return getattr(self.tr, name)

    @property
    def reads(self) -> bool:
        return not READS.isdisjoint(self.asked)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    compared.DURING.clear()
    cluster = Cluster(1, kills=0.0)
    yield cluster
    cluster.close()


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> list[Noting]:
    """Those of programs."""
    whole, made = asking.run_patiently, list[Noting]()

    def noting(db: Any, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def inside(tr: Any, *args: Any) -> Any:
            made.append(Noting(tr))
            return fn(made[-1], *args)

        return whole(db, inside, *args, **kwargs)

    monkeypatch.setattr(asking, "run_patiently", noting)
    return made


def test_one_transaction_each_of_which_the_first_reads(cluster: Cluster, transactions: list[Noting]) -> None:
    program = cluster.client.submit(compared.doubled, 20, durable=True, **PATIENT)
    cluster.run_to_the_end([program], [])
    assert program.result(timeout=10) == 2 * sum(range(20))
    assert [tr.reads for tr in transactions] == [True, *19 * [False]]


def test_after_a_pause_it_is_read_again(
    cluster: Cluster, transactions: list[Noting], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "FRESH_SECONDS", 0.0)
    program = cluster.client.submit(compared.doubled, 3, durable=True, **PATIENT)
    cluster.run_to_the_end([program], [])
    assert [tr.reads for tr in transactions] == 3 * [True]


def test_a_conflict_is_looked_into(cluster: Cluster, transactions: list[Noting]) -> None:
    """One that is cancelled while a step runs is told when that has been recorded."""
    program = cluster.client.submit(compared.doubled, 9, durable=True, **PATIENT)
    compared.DURING[4] = lambda: cluster.transact(programs.cancel_program, program._record.id)
    cluster.run_to_the_end([program], [])
    with pytest.raises(CancelledError):
        program.result(timeout=10)
    # of 0, which reads; 1 to 3; 4, which conflicts with the cancel, and then reads
    assert [tr.reads for tr in transactions] == [True, False, False, False, False, True]
    assert [one.kind for one in cluster.requests(program)] == [*5 * ["step"], "cancel"]
