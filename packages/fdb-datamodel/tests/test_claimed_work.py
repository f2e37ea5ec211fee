"""What is claimed ahead is bounded by what it takes, and stays in line as if it were in the queue."""

from __future__ import annotations

import pytest
from datamodel_lab.lab import Lab

import fdb_datamodel as dm
from fdb_datamodel import Capacity, FutureSpec, Outcome

QUICK, SLOW, NEW = b"quick", b"slow", b"new"
PACE = {QUICK: 0.001, SLOW: 0.2}


def queued(lab: Lab, *codes: bytes) -> list[bytes]:
    ids = []
    for code in codes:
        spec = FutureSpec(code, session=lab.session)
        lab.submit(spec)
        ids.append(spec.id)
    return ids


def offer(seconds: float, at_once: int = 1, **more: object) -> Capacity:
    return Capacity(seconds=seconds, at_once=at_once, pace=PACE, unknown=0.5, **more)  # type: ignore[arg-type]


def test_claims_end_where_the_work_of_those_very_codes_is_enough(lab: Lab) -> None:
    worker = lab.worker()
    ids = queued(lab, *[QUICK] * 10, *[SLOW] * 5)
    claims = lab.claim(worker, 100, offer(0.5))
    assert [claim.id for claim in claims] == ids[:12], "0.01 s and twice 0.2 s"
    assert (claims.cut, claims.more) == (True, True)  # type: ignore[attr-defined]
    assert [lab.state(one) for one in ids[12:]] == ["unclaimed"] * 3
    assert lab.validate() == []


def test_of_what_never_ran_no_more_is_claimed_than_begins_at_once(lab: Lab) -> None:
    worker = lab.worker()
    ids = queued(lab, *[NEW] * 10)
    assert [claim.id for claim in lab.claim(worker, 100, offer(0.3, at_once=2))] == ids[:2]
    assert lab.claim(worker, 100, offer(0.3, at_once=0)) == []


def test_nothing_quick_overtakes_what_would_take_too_long(lab: Lab) -> None:
    worker = lab.worker()
    ids = queued(lab, NEW, NEW, QUICK, QUICK)
    assert [claim.id for claim in lab.claim(worker, 100, offer(0.5))] == ids[:1]


def test_dependents_that_would_be_too_much_go_to_the_pool(lab: Lab) -> None:
    worker = lab.worker()
    (first,) = queued(lab, QUICK)
    downs = [FutureSpec(SLOW, session=lab.session, dependencies=(first,)) for _ in range(5)]
    lab.submit(*downs)
    (claim,) = lab.claim(worker, 1)
    claims = lab(dm.finish_turn, worker, [Outcome.realized(claim, b"r")], offer(0.5), 100)
    assert len(claims) == 2
    assert sorted(lab.state(down.id) for down in downs) == ["claimed"] * 2 + ["unclaimed"] * 3
    assert lab.validate() == []


def test_assignments_that_would_be_too_much_stay_assigned(lab: Lab) -> None:
    worker = lab.worker()
    specs = [FutureSpec(SLOW, session=lab.session, locality=dm.Locality(worker, pinned=True)) for _ in range(5)]
    lab.submit(*specs)
    assert len(lab.claim(worker, 100, offer(0.5))) == 2
    assert lab.validate() == []
    assert len(lab.claim(worker, 100)) == 3


def test_what_running_tasks_wait_for_is_claimed_whatever_it_takes(lab: Lab) -> None:
    worker = lab.worker()
    ids = queued(lab, *[SLOW] * 5)
    claims = lab.claim(worker, 100, offer(0.0, at_once=0, wanted=(ids[3],)))
    assert [claim.id for claim in claims] == [ids[3]]
    assert lab.validate() == []


@pytest.mark.parametrize(("code", "claimed"), [(QUICK, 6), (SLOW, 1), (NEW, 1)])
def test_chains_are_claimed_ahead_only_where_their_links_are_short(lab: Lab, code: bytes, claimed: int) -> None:
    worker = lab.worker()
    (at,) = queued(lab, code)
    for _ in range(9):
        spec = FutureSpec(code, session=lab.session, dependencies=(at,))
        lab.submit(spec)
        at = spec.id
    assert len(lab.claim(worker, 1, offer(0.0, ahead=100, ahead_seconds=0.0055))) == claimed
    assert lab.validate() == []


def late(lab: Lab, worker: dm.WorkerId) -> list[bytes]:
    return [entry.id for entry in lab.mail(worker.incarnation) if entry.kind == "late"]


def test_a_queue_timeout_asks_the_worker_that_may_not_have_begun(lab: Lab) -> None:
    worker = lab.worker()
    lab.clock(0)
    spec = lab.spec(queue_timeout=2.0)
    lab.submit(spec)
    (claim,) = lab.claim(worker)
    lab(dm.advance, lab.clock(1))
    assert late(lab, worker) == []
    lab(dm.advance, lab.clock(3))
    assert late(lab, worker) == [spec.id]
    assert lab.state(spec.id) == "claimed", "it may be running"
    lab(dm.relinquish_claim, claim, "late")
    failure = lab.info(spec.id).failure
    assert failure is not None
    assert (failure.reason, "queue_timeout=2.0" in failure.message) == ("timeout", True)
    assert lab.validate() == []


def test_a_claim_given_back_before_it_began_leaves_the_queue_timeout_in_force(lab: Lab) -> None:
    worker = lab.worker()
    lab.clock(0)
    spec = lab.spec(queue_timeout=2.0)
    lab.submit(spec)
    for _ in range(3):
        (claim,) = lab.claim(worker)
        lab(dm.relinquish_claim, claim, "rebalanced")
    lab(dm.advance, lab.clock(3))
    assert lab.state(spec.id) == "failed"


def test_a_queue_timeout_is_over_once_the_future_began(lab: Lab) -> None:
    worker = lab.worker()
    lab.clock(0)
    ran, drained = lab.spec(queue_timeout=2.0), lab.spec(queue_timeout=2.0)
    lab.submit(ran, drained)
    first, second = lab.claim(worker)
    lab(dm.fail_future, first, "an error")
    lab(dm.finish_turn, worker, [Outcome.relinquished(second, started=True)], Capacity(), 0)
    lab(dm.advance, lab.clock(3))
    assert [lab.state(one.id) for one in (ran, drained)] == ["unclaimed"] * 2
    lab.claim(worker)
    lab(dm.advance, lab.clock(4))
    assert late(lab, worker) == []


def test_one_that_is_late_fails_also_if_its_worker_misses_its_inputs(lab: Lab) -> None:
    worker = lab.worker()
    lab.clock(0)
    (up,) = queued(lab, QUICK)
    spec = lab.spec(queue_timeout=2.0, dependencies=(up,))
    lab.submit(spec)
    (first,) = lab.claim(worker)
    stored = dm.FutureResult(None, 100_000, "object", worker)
    (claim,) = lab(dm.finish_turn, worker, [Outcome.realized(first, stored)], Capacity(), 1)
    lab(dm.advance, lab.clock(3))
    lab(dm.finish_turn, worker, [Outcome.missed_inputs(claim, [up], [(up, worker)])], Capacity(), 0)
    failure = lab.info(spec.id).failure
    assert failure is not None and failure.reason == "timeout"
    assert lab.validate() == []


def test_a_shortage_of_the_host_is_charged_to_nobody_and_tried_again_ever_later(lab: Lab) -> None:
    worker = lab.worker()
    lab.clock(100)
    spec = lab.spec(max_retries=0, max_worker_losses=0, max_oom=0)
    lab.submit(spec)
    pauses, now = [], 100.0
    for _ in range(8):
        (claim,) = lab.claim(worker)
        lab(dm.finish_turn, worker, [Outcome.short(claim, "no space on this host")], Capacity(), 0)
        info = lab.info(spec.id)
        assert (info.state, info.charged) == ("waiting", 0)
        assert info.last_failure is not None and info.last_failure.message == "no space on this host"
        due = lab(dm.advance, int(now * 1e6)).next_due_us
        pauses.append(due / 1e6 - now)
        now = due / 1e6
        lab(dm.advance, lab.clock(now))
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30]
    (claim,) = lab.claim(worker)
    lab(dm.finish_turn, worker, [Outcome.short(claim, "no room for its result", started=True)], Capacity(), 0)
    failure = lab.info(spec.id).failure
    assert failure is not None and failure.reason == "shortage", "it may start only once, and has"
    assert lab.validate() == []


@pytest.mark.parametrize(
    "only_once", [{"max_retries": 0, "max_worker_losses": 0, "max_oom": 0}, {"max_restarts": 0}], ids=["task", "actor"]
)
def test_one_that_may_not_begin_again_says_who_gave_it_back(lab: Lab, only_once: dict[str, int]) -> None:
    worker = lab.worker()
    spec = lab.spec(**only_once)
    lab.submit(spec)
    (claim,) = lab.claim(worker)
    lab(dm.finish_turn, worker, [Outcome.relinquished(claim, started=True)], Capacity(), 0)
    failure = lab.info(spec.id).failure
    assert failure is not None and (failure.reason, failure.message) == (
        "drained",
        f"worker {worker} gave it back: drained",
    )
    assert lab.validate() == []
