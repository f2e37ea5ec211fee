"""Claims made ahead along a chain: all at once, realized in one turn, and given back by their upstream's state."""

from __future__ import annotations

import pytest
from datamodel_lab.lab import Lab

import fdb_datamodel as dm
from fdb_schema import fdb_error_code

AHEAD = dm.Capacity(ahead=10)


def submit_chain(lab: Lab, count: int, **options: object) -> list[dm.FutureSpec]:
    specs = [lab.spec()]
    for _ in range(count - 1):
        specs.append(lab.spec(dependencies=(specs[-1].id,), **options))
    lab.submit(*specs)
    return specs


def states(lab: Lab, specs: list[dm.FutureSpec]) -> list[str]:
    return [lab.state(spec.id) for spec in specs]


def valid(lab: Lab) -> None:
    assert dm.validate(lab.db, lab.space.cluster) == []


def test_a_chain_is_claimed_with_its_head_and_realized_in_one_turn(lab: Lab) -> None:
    worker = lab.worker()
    specs = submit_chain(lab, 5)
    claims = lab(dm.claim_futures, worker, AHEAD, 1)
    assert [claim.id for claim in claims] == [spec.id for spec in specs]
    assert [dict(claim.inputs) for claim in claims] == [{}] * 5
    assert states(lab, specs) == ["claimed"] * 5
    valid(lab)
    outcomes = [dm.Outcome.realized(claim, b"%d" % n) for n, claim in enumerate(claims)]
    assert lab(dm.finish_turn, worker, outcomes, AHEAD, 1) == []
    assert states(lab, specs) == ["realized"] * 5
    assert [entry.kind for entry in lab.mail()] == ["realized"] * 5
    valid(lab)


def test_no_more_than_asked_for_is_claimed_and_the_rest_follows_the_last(lab: Lab) -> None:
    worker = lab.worker()
    specs = submit_chain(lab, 7)
    claims = lab(dm.claim_futures, worker, dm.Capacity(ahead=2), 1)
    assert len(claims) == 3
    outcomes = [dm.Outcome.realized(claim, b"v") for claim in claims]
    more = lab(dm.finish_turn, worker, outcomes, dm.Capacity(ahead=2), 1)
    assert [claim.id for claim in more] == [spec.id for spec in specs[3:6]]
    assert more[0].inputs[specs[2].id].inline == b"v"
    valid(lab)


def test_a_fork_or_a_join_ends_what_is_claimed_ahead(lab: Lab) -> None:
    worker = lab.worker()
    head, other = lab.spec(), lab.spec(requirements=dm.Requirements(gpu=1))
    join = lab.spec(dependencies=(head.id, other.id))
    lab.submit(head, other, join)
    assert [claim.id for claim in lab(dm.claim_futures, worker, AHEAD, 1)] == [head.id]
    forked = lab.spec()
    lab.submit(forked, lab.spec(dependencies=(forked.id,)), lab.spec(dependencies=(forked.id,)))
    assert [claim.id for claim in lab(dm.claim_futures, worker, AHEAD, 1)] == [forked.id]
    valid(lab)


def test_what_does_not_fit_beside_its_upstream_or_may_start_only_once_is_left(lab: Lab) -> None:
    worker = lab.worker()
    submit_chain(lab, 2, requirements=dm.Requirements(cpu=1))
    assert len(lab(dm.claim_futures, worker, AHEAD, 1)) == 1
    submit_chain(lab, 2, max_retries=0, max_worker_losses=0, max_oom=0, allow_reconstruction=False)
    assert len(lab(dm.claim_futures, worker, AHEAD, 1)) == 1
    valid(lab)


def test_given_back_before_its_upstream_ended_it_waits_on_its_edge_again(lab: Lab) -> None:
    worker = lab.worker()
    specs = submit_chain(lab, 3)
    first, second, third = lab(dm.claim_futures, worker, AHEAD, 1)
    back = [dm.Outcome.relinquished(second), dm.Outcome.relinquished(third)]
    lab(dm.finish_turn, worker, back, AHEAD, 0)
    assert states(lab, specs) == ["claimed", "waiting", "waiting"]
    valid(lab)
    again = lab(dm.finish_turn, worker, [dm.Outcome.realized(first, b"v")], AHEAD, 1)
    assert [claim.id for claim in again] == [second.id, third.id]
    assert lab.info(second.id).charged == 1
    valid(lab)


@pytest.mark.parametrize("permanently", [True, False])
def test_given_back_after_its_upstream_failed_it_fails_or_waits_for_the_retry(lab: Lab, permanently: bool) -> None:
    worker = lab.worker()
    specs = submit_chain(lab, 3)
    first, second, third = lab(dm.claim_futures, worker, AHEAD, 1)
    failed = dm.Outcome.failed(first, dm.Failure("error", "no"), permanently)
    lab(dm.finish_turn, worker, [failed, dm.Outcome.relinquished(second), dm.Outcome.relinquished(third)], AHEAD, 0)
    expected = ["failed"] * 3 if permanently else ["unclaimed", "waiting", "waiting"]
    assert states(lab, specs) == expected
    valid(lab)


def test_what_took_the_result_of_one_that_was_cancelled_meanwhile_comes_to_nothing(lab: Lab) -> None:
    worker = lab.worker()
    specs = submit_chain(lab, 4)
    claims = lab(dm.claim_futures, worker, AHEAD, 1)
    lab(dm.cancel_future, specs[1].id)
    outcomes = [dm.Outcome.realized(claim, b"v") for claim in claims]
    for _ in range(2):  # also where a commit's outcome isn't known
        assert set(lab(dm.finish_turn, worker, outcomes, AHEAD, 0).stale) == {spec.id for spec in specs[1:]}
        assert states(lab, specs) == ["realized", "failed", "failed", "failed"]
    valid(lab)


def test_a_dead_workers_chain_is_placed_link_by_link(lab: Lab) -> None:
    worker = lab.worker()
    specs = submit_chain(lab, 4)
    assert len(lab(dm.claim_futures, worker, AHEAD, 1)) == 4
    lab.kill(worker)
    lab.reap()
    assert states(lab, specs) == ["unclaimed", "waiting", "waiting", "waiting"]
    valid(lab)
    assert len(lab(dm.claim_futures, lab.worker(2), AHEAD, 1)) == 4


def test_one_that_comes_to_nothing_and_one_that_ends_were_claimed_together(lab: Lab) -> None:
    worker = lab.worker()
    ends, nothing = submit_chain(lab, 2), submit_chain(lab, 2)
    claims = {claim.id: claim for claim in lab(dm.claim_futures, worker, AHEAD, 2)}
    together = claims[ends[1].id].claimed_with
    assert together and together == claims[nothing[1].id].claimed_with, "both were claimed ahead"
    lab(dm.cancel_future, nothing[0].id)
    outcomes = [dm.Outcome.realized(claims[spec.id], b"v") for spec in [*ends, *nothing]]
    turned = lab(dm.finish_turn, worker, outcomes, AHEAD, 0)
    assert turned.stale == (nothing[0].id, nothing[1].id)
    assert states(lab, [*ends, *nothing]) == ["realized", "realized", "failed", "failed"]
    assert lab(dm.claims_of, worker) == []


def test_of_a_cancel_and_a_claim_ahead_at_the_same_time_one_sees_the_other(lab: Lab) -> None:
    worker = lab.worker()
    specs = submit_chain(lab, 3)
    one, two = lab.db.create_transaction(), lab.db.create_transaction()
    assert len(dm.claim_futures(one, lab.space, worker, AHEAD, 1)) == 3
    dm.cancel_future(two, lab.space, specs[1].id)
    two.commit().wait()
    with pytest.raises(Exception) as conflict:
        one.commit().wait()
    assert fdb_error_code(conflict.value) == 1020
    assert len(lab(dm.claim_futures, worker, AHEAD, 1)) == 1
    assert states(lab, specs) == ["claimed", "failed", "failed"]
    valid(lab)


def test_a_dependent_submitted_meanwhile_is_not_forgotten(lab: Lab) -> None:
    worker = lab.worker()
    first, second = submit_chain(lab, 2)
    one = lab.db.create_transaction()
    claims = dm.claim_futures(one, lab.space, worker, AHEAD, 1)
    late = lab.spec(dependencies=(first.id,))
    lab.submit(late)
    one.commit().wait()
    lab(dm.finish_turn, worker, [dm.Outcome.realized(claim, b"v") for claim in claims], dm.Capacity(), 0)
    assert lab.state(late.id) == "unclaimed"
    assert lab.state(second.id) in ("realized", "unclaimed")
    valid(lab)
