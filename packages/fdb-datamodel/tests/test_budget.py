"""What a no-op future costs in rows and commits, against a budget: on a real cluster this is what limits throughput."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import calls_of
from datamodel_lab.lab import Lab
from support import counting
from support.counting import Tally

import fdb_datamodel as dm
from fdb_datamodel import Outcome
from fdb_datamodel.transitions.sweep import sweep_page

BATCH = 100


@pytest.fixture
def counted(memory_lab: Lab) -> Any:
    costs: dict[str, Tally] = {}

    def run(stage: str, fn: Any, *args: Any) -> Any:
        with counting.counted(memory_lab.db) as costs[stage]:
            tr = memory_lab.db.create_transaction()
            value = fn(tr, memory_lab.space, *args)
            tr.commit().wait()
        return value

    run.costs = costs  # type: ignore[attr-defined]
    return run


def test_rows_and_commits_of_a_noop_future(memory_lab: Lab, counted: Any) -> None:
    worker = memory_lab.worker()
    specs = [memory_lab.spec(args=b"a", name="task") for _ in range(BATCH)]
    counted("submit", dm.submit_futures, specs)
    claims = counted("claim", dm.claim_futures, worker, dm.Capacity(), BATCH)
    later = [memory_lab.spec(args=b"a", name="task") for _ in range(BATCH)]
    memory_lab.submit(*later)
    outcomes = [Outcome.realized(claim, b"r") for claim in claims]
    again = counted("turn", dm.finish_turn, worker, outcomes, dm.Capacity(), BATCH)
    assert len(again) == BATCH
    counted("forget", dm.release_futures, memory_lab.session, [claim.id for claim in claims])
    costs = counted.costs
    # code and name, args, an index entry; a bell
    assert costs["submit"].written == 3 * BATCH + 1
    assert costs["submit"].read == BATCH
    # the index entry cleared; claim; 64 in a row of the worker
    assert costs["claim"].written == 2 * BATCH + 2
    # and latest_result, the worker's rows cleared; one mailbox row and its bell
    assert costs["turn"].written == 2 * BATCH + 2 + BATCH + 2 + 2
    assert costs["forget"].written == BATCH, "the mark that its submitter let it go"
    assert costs["forget"].calls == 1
    whole = sum(costs[stage].written for stage in ("submit", "turn", "forget"))  # the turn ends as many as it claims
    assert whole <= 7.1 * BATCH, "and 6 of one without arguments"
    assert costs["turn"].calls <= 5, "reads are in bulk"
    assert costs["claim"].calls <= 4


def test_rows_and_commits_of_what_is_collected(memory_lab: Lab, counted: Any) -> None:
    worker = memory_lab.worker()
    ids = memory_lab.submit(*(memory_lab.spec(args=b"a", name="task") for _ in range(BATCH)))
    memory_lab(dm.realize_futures, [(claim, b"r") for claim in memory_lab.claim(worker)])
    memory_lab(dm.release_futures, memory_lab.session, ids)
    counted("mark", sweep_page, b"", 1.0, BATCH)
    memory_lab.clock(1000.0)
    assert counted("delete", sweep_page, b"", 1.0, BATCH).deleted == BATCH
    costs = counted.costs
    assert costs["mark"].written == BATCH, "since when nobody needs it"
    # code and name, args, claim, latest_result and the mark cleared; a tombstone
    assert costs["delete"].written == 6 * BATCH
    assert costs["delete"].read <= 7 * BATCH
    assert costs["delete"].calls <= BATCH + 15, "one for each, the rest for all of them"


def test_what_a_future_costs_in_calls(memory_lab: Lab) -> None:
    """Of functions of Python: on one machine this is what limits throughput."""
    worker = memory_lab.worker()
    specs = [memory_lab.spec(args=b"a", name="task", parent=b"") for _ in range(2 * BATCH)]
    assert calls_of(lambda: memory_lab.submit(*specs)) / (2 * BATCH) <= 45
    claims = memory_lab(dm.claim_futures, worker, dm.Capacity(), BATCH)
    outcomes = [Outcome.realized(claim, b"r") for claim in claims]
    assert calls_of(lambda: memory_lab(dm.finish_turn, worker, outcomes, dm.Capacity(), BATCH)) / BATCH <= 30


def test_a_pushed_future_costs_less(memory_lab: Lab, counted: Any) -> None:
    worker = memory_lab.worker()
    claims = counted("push", dm.submit_claimed, [memory_lab.spec(args=b"a", name="task") for _ in range(BATCH)], worker)
    assert len(claims) == BATCH
    assert counted.costs["push"].written == 4 * BATCH + 1, "code and name, args, claim, the worker's row; its bell"


def test_an_edge_costs_five_rows_and_a_hint(memory_lab: Lab, counted: Any) -> None:
    worker = memory_lab.worker()
    up = memory_lab.spec()
    memory_lab.submit(up)
    counted("submit", dm.submit_futures, [memory_lab.spec(dependencies=(up.id,))])
    assert counted.costs["submit"].written == 2 + 3 + 1, "code, args; both ends of the edge, the hint; lineage"
    (claim,) = memory_lab.claim(worker)
    counted("turn", dm.finish_turn, worker, [Outcome.realized(claim, b"r")], dm.Capacity(), 1)
    # result, worker's row; edge ends, hint, unsettled cleared; the dependent's claim; mail row and bell
    assert counted.costs["turn"].written <= 2 + 4 + 3 + 2


def test_the_states_of_many_inputs_are_asked_for_together(memory_lab: Lab, counted: Any) -> None:
    inputs = memory_lab.submit(*(memory_lab.spec() for _ in range(3 * BATCH)))
    counted("submit", dm.submit_futures, [memory_lab.spec(dependencies=tuple(inputs))])
    assert counted.costs["submit"].calls <= 6
    worker = memory_lab.worker()
    memory_lab(dm.realize_futures, [(claim, b"r") for claim in memory_lab.claim(worker, BATCH)])
    counted("again", dm.submit_futures, [memory_lab.spec(dependencies=tuple(inputs))])
    assert counted.costs["again"].calls <= 6
    assert counted.costs["again"].written == counted.costs["submit"].written - 3 * BATCH, "some have ended"


def test_nothing_is_left_of_a_deleted_future_but_its_tombstone(memory_lab: Lab) -> None:
    worker = memory_lab.worker()
    before = len(memory_lab.rows())
    specs = [memory_lab.spec(args=b"a") for _ in range(10)]
    memory_lab.submit(*specs)
    memory_lab(dm.realize_futures, [(claim, b"r") for claim in memory_lab.claim(worker)])
    _, cursor = memory_lab(dm.read_mailbox, memory_lab.session)
    memory_lab(dm.clear_mailbox, memory_lab.session, cursor)
    for spec in specs:
        memory_lab(dm.delete_future, spec.id)
    assert len(memory_lab.rows()) - before <= 10 + 2, "tombstones, and two bells"
