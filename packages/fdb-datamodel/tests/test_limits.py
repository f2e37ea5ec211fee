"""Limits: permits are taken before a future may begin, given back however it ends, in order, and never more than there are."""

from __future__ import annotations

import random

import pytest
from conftest import seed_params
from datamodel_lab.lab import Lab

import fdb_datamodel as dm
from fdb_datamodel import Capacity, Failure, FutureSpec, Outcome
from fdb_datamodel.rows.space import layout_of
from fdb_datamodel.transitions.limits import LimitStatus, list_limits, missing_limits, set_limit
from idempotent_txn import run


def submit(lab: Lab, count: int, *limits: str, **options: object) -> list[FutureSpec]:
    specs = [lab.spec(limits=limits or ("api",), **options) for _ in range(count)]
    lab.submit(*specs)
    return specs


def states(lab: Lab, specs: list[FutureSpec]) -> list[str]:
    return [lab.state(spec.id) for spec in specs]


def status(lab: Lab, name: str = "api") -> LimitStatus:
    return next(one for one in lab(list_limits) if one.name == name)


@pytest.mark.parametrize("end", ["realized", "turn", "failed", "retried", "cancelled", "deleted", "lost", "given back"])
def test_a_permit_goes_to_the_next_however_its_holder_ends(memory_lab: Lab, end: str) -> None:
    lab = memory_lab
    lab.clock(1)
    worker = lab.worker()
    lab(set_limit, "api", 1, None)
    first, second = submit(lab, 2, max_retries=1 if end == "retried" else 0)
    assert states(lab, [first, second]) == ["unclaimed", "waiting"]
    assert "permit of limit 'api'" in lab.info(second.id).reason
    (claim,) = lab.claim(worker)
    if end == "realized":
        lab(dm.realize_future, claim, b"1")
    elif end == "turn":
        claims = lab(dm.finish_turn, worker, [Outcome.realized(claim, b"1")], Capacity(), 5)
        assert [one.id for one in claims] == [second.id], "in the very turn"
    elif end in ("failed", "retried"):
        lab(dm.fail_future, claim, Failure("error", "x"))
    elif end == "cancelled":
        lab(dm.cancel_future, first.id)
    elif end == "deleted":
        lab(dm.delete_future, first.id)
    elif end == "given back":
        lab(dm.relinquish_claim, claim)
    else:
        lab.kill(worker)
        lab.reap()
    assert lab.state(second.id) == ("claimed" if end == "turn" else "unclaimed")
    if end in ("retried", "lost", "given back"):
        assert lab.state(first.id) == "waiting", "it is behind the other now"
    assert status(lab)[3] == 1
    assert lab.validate() == []


def test_who_waits_may_end(memory_lab: Lab) -> None:
    lab = memory_lab
    lab.clock(1)
    lab(set_limit, "api", 1, None)
    specs = submit(lab, 3)
    lab(dm.cancel_future, specs[1].id)
    assert (status(lab).held, status(lab).queued) == (1, 1)
    lab(dm.cancel_future, specs[0].id)
    assert states(lab, specs) == ["failed", "failed", "unclaimed"]
    lab(dm.delete_future, specs[2].id)
    assert (status(lab).held, status(lab).queued) == (0, 0)
    assert lab.validate() == []


def test_priorities_go_first_and_else_the_oldest(memory_lab: Lab) -> None:
    lab = memory_lab
    lab.clock(1)
    worker = lab.worker()
    lab(set_limit, "api", 1, None)
    (holder,) = submit(lab, 1)
    low = submit(lab, 2)
    high = submit(lab, 2, priority=5)
    order = []
    for _ in range(5):
        (claim,) = lab.claim(worker)
        order.append(claim.id)
        lab(dm.realize_future, claim, b"1")
    assert order == [spec.id for spec in (holder, *high, *low)]
    assert lab.validate() == []


def test_starts_are_spread_over_time(memory_lab: Lab) -> None:
    lab = memory_lab
    now = lab.clock(10)
    worker = lab.worker()
    lab(set_limit, "api", None, 2.0)
    specs = submit(lab, 4)
    assert states(lab, specs) == ["unclaimed", "waiting", "waiting", "waiting"]
    for number in range(1, 4):
        moment = now + number * 500_000
        lab(dm.advance, moment - 1)
        assert states(lab, specs)[number] == "waiting"
        lab(dm.advance, moment)
        assert states(lab, specs)[number] == "unclaimed"
    assert len(lab.claim(worker)) == 4
    assert lab.validate() == []


def test_a_start_is_kept_for_nobody(memory_lab: Lab) -> None:
    lab = memory_lab
    now = lab.clock(10)
    lab(set_limit, "api", None, 1.0)
    (first, *rest) = submit(lab, 100)
    assert (lab.state(first.id), status(lab).queued) == ("unclaimed", 99)
    (high,) = submit(lab, 1, priority=1)
    assert "permit of limit 'api'" in lab.info(high.id).reason
    lab(dm.advance, now + 1_000_000)
    assert states(lab, [high, rest[0]]) == ["unclaimed", "waiting"], "priorities go first"
    for spec in rest[:98]:
        lab(dm.cancel_future, spec.id)
    lab(dm.advance, now + 2_000_000)
    assert lab.state(rest[98].id) == "unclaimed", "who was cancelled takes no start along"
    (late,) = submit(lab, 1)
    assert lab.state(late.id) == "waiting"
    lab(dm.advance, now + 3_000_000)
    assert lab.state(late.id) == "unclaimed"
    assert lab.validate() == []


@pytest.mark.parametrize(("per_second", "at_once"), [(1000.0, None), (None, None), (None, 500)])
def test_who_waits_for_a_start_takes_to_a_changed_limit(
    memory_lab: Lab, per_second: float | None, at_once: int | None
) -> None:
    lab = memory_lab
    now = lab.clock(10)
    lab(set_limit, "api", None, 0.001)
    specs = submit(lab, 250)
    assert states(lab, specs).count("waiting") == 249
    for step in range(4):
        while lab(set_limit, "api", at_once, per_second):
            pass
        while lab(dm.advance, now + step * 250_000).more:
            pass
        lab.clock((now + step * 250_000) / 1e6)
    assert set(states(lab, specs)) == {"unclaimed"}
    assert lab.validate() == []


def test_starts_that_come_due_together_are_made_together_and_no_more(memory_lab: Lab) -> None:
    lab = memory_lab
    now = lab.clock(10)
    lab(set_limit, "api", None, 200.0)
    specs = submit(lab, 1000)
    begun = []
    for moment in (250_000, 500_000, 3_600_000_000):
        while lab(dm.advance, now + moment).more:
            pass
        begun.append(states(lab, specs).count("unclaimed"))
    assert begun == [51, 101, 302], "after a silence a second's worth"
    assert lab.validate() == []


def test_several_limits_are_taken_together(memory_lab: Lab) -> None:
    lab = memory_lab
    lab.clock(1)
    worker = lab.worker()
    lab(set_limit, "a", 1, None)
    lab(set_limit, "b", 1, None)
    (only_b,) = submit(lab, 1, "b")
    (both,) = submit(lab, 1, "b", "a")
    (only_a,) = submit(lab, 1, "a")
    assert states(lab, [only_b, both, only_a]) == ["unclaimed", "waiting", "waiting"]
    assert (status(lab, "a").held, status(lab, "b").queued) == (1, 1), "it holds the one while it waits for the other"
    lab(dm.realize_future, lab.claim(worker)[0], b"1")
    assert states(lab, [both, only_a]) == ["unclaimed", "waiting"]
    lab(dm.realize_future, lab.claim(worker)[0], b"1")
    assert lab.state(only_a.id) == "unclaimed"
    assert lab.validate() == []


def test_dependents_and_those_that_begin_later_take_theirs_when_they_may_begin(memory_lab: Lab) -> None:
    lab = memory_lab
    now, worker = lab.clock(1), lab.worker()
    lab(set_limit, "api", 1, None)
    up = lab.spec()
    lab.submit(up)
    down, later = lab.spec(limits=("api",), dependencies=(up.id,)), lab.spec(limits=("api",), after=5.0)
    lab.submit(down, later)
    assert status(lab).held == 0
    (claim,) = lab.claim(worker)
    lab(dm.finish_turn, worker, [Outcome.realized(claim, b"1")], Capacity(), 0)
    assert states(lab, [down, later]) == ["unclaimed", "waiting"], "unblocked, it takes its permit first"
    lab(dm.advance, now + 5_000_000)
    assert "permit" in lab.info(later.id).reason
    lab(dm.realize_future, lab.claim(worker)[0], b"1")
    assert lab.state(later.id) == "unclaimed"
    assert lab.validate() == []


def test_a_program_that_is_away_holds_none(memory_lab: Lab) -> None:
    lab = memory_lab
    now, worker = lab.clock(1), lab.worker()
    lab(set_limit, "api", 1, None)
    (program,) = submit(lab, 1, durable=True)
    (other,) = submit(lab, 1)
    (claim,) = lab.claim(worker)
    away = dm.Away("sleep", due_us=now + 5_000_000)
    lab(dm.finish_turn, worker, [Outcome.left(claim, away)], Capacity(), 0)
    assert states(lab, [program, other]) == ["waiting", "unclaimed"]
    lab(dm.advance, now + 5_000_000)
    assert "permit" in lab.info(program.id).reason
    lab(dm.realize_future, lab.claim(worker)[0], b"1")
    assert [one.id for one in lab.claim(worker)] == [program.id]
    assert lab.validate() == []


def test_a_limit_is_changed_and_removed(memory_lab: Lab) -> None:
    lab = memory_lab
    lab.clock(1)
    assert lab(missing_limits, ("api", "none")) == ["api", "none"]
    lab(set_limit, "api", 1, None)
    specs = submit(lab, 250)
    assert lab(set_limit, "api", 3, None) is False
    assert states(lab, specs[:4]) == ["unclaimed"] * 3 + ["waiting"]
    assert lab(set_limit, "api", 1, None) is False
    assert status(lab)[:4] == ("api", 1, None, 3), "who has a permit keeps it"
    assert [lab(set_limit, "api", None, None) for _ in range(3)] == [True, True, False]
    assert set(states(lab, specs)) == {"unclaimed"}
    assert lab(list_limits) == []
    worker = lab.worker()
    for spec in specs[:5]:
        lab(dm.realize_future, lab(dm.claim_future, spec.id, worker), b"1")
    assert lab.validate() == []


def test_one_that_can_not_be_read_holds_up_no_end_and_is_set_anew(memory_lab: Lab) -> None:
    lab = memory_lab
    lab.clock(1)
    worker = lab.worker()
    lab(set_limit, "api", 2, None)
    specs = submit(lab, 4)
    first, _ = lab.claim(worker)
    key = layout_of(lab.space).limit("api")
    run(lab.db, lambda tr: tr.set(key, b"\xc1bad"))
    lab(dm.realize_future, first, b"1")
    (later,) = submit(lab, 1)
    assert states(lab, [*specs, later]) == ["realized", "claimed", "waiting", "waiting", "waiting"]
    assert status(lab).concurrent == 0
    lab(set_limit, "api", 2, None)
    assert (status(lab).held, status(lab).queued) == (2, 2)
    assert states(lab, specs[2:]) == ["unclaimed", "waiting"]
    assert lab.validate() == []


def test_one_that_is_removed_and_made_again_knows_who_has_a_permit(memory_lab: Lab) -> None:
    lab = memory_lab
    lab.clock(1)
    lab(set_limit, "api", 2, None)
    submit(lab, 2)
    lab(set_limit, "api", None, None)
    lab(set_limit, "api", 2, None)
    (late,) = submit(lab, 1)
    assert (lab.state(late.id), status(lab).held) == ("waiting", 2)
    assert lab.validate() == []


@pytest.mark.parametrize("gone", ["lost", "deleted"])
def test_one_whose_input_is_gone_when_it_is_claimed_gives_its_permit_back(memory_lab: Lab, gone: str) -> None:
    lab = memory_lab
    lab.clock(1)
    holder, worker = lab.worker(1), lab.worker(2)
    lab(set_limit, "api", 1, None)
    up = lab.spec(allow_reconstruction=False)
    lab.submit(up)
    lab(dm.realize_future, lab.claim(holder)[0], dm.FutureResult(size=100_000, worker=holder))
    downs = submit(lab, 3, dependencies=(up.id,))
    if gone == "deleted":
        lab(dm.delete_future, up.id)
    else:
        lab.kill(holder)
        lab.reap()
        lab(dm.resubmit_future, up.id, 0)  # whoever asks for it finds that it is lost
    (other,) = submit(lab, 1)
    for _ in range(4):
        for claim in lab.claim(worker):
            lab(dm.realize_future, claim, b"1")
    assert states(lab, [*downs, other]) == ["failed", "failed", "failed", "realized"]
    assert (status(lab).held, status(lab).queued) == (0, 0)
    assert lab.validate() == []


def test_one_that_waits_for_its_input_again_leaves_its_permit_to_what_makes_it(memory_lab: Lab) -> None:
    lab = memory_lab
    lab.clock(1)
    holder, worker = lab.worker(1), lab.worker(2)
    lab(set_limit, "api", 1, None)
    (up,) = submit(lab, 1)
    lab(dm.realize_future, lab.claim(holder)[0], dm.FutureResult(size=100_000, worker=holder))
    (down,) = submit(lab, 1, dependencies=(up.id,))
    lab.kill(holder)
    lab.reap()
    lab(dm.resubmit_future, up.id, 0)
    assert states(lab, [up, down]) == ["waiting", "unclaimed"]
    for _ in range(4):
        for claim in lab.claim(worker):
            lab(dm.realize_future, claim, b"1")
    assert states(lab, [up, down]) == ["realized", "realized"]
    assert status(lab).held == 0
    assert lab.validate() == []


def test_one_that_is_made_again_while_others_wait_further_on_has_nobody_wait_in_a_circle(memory_lab: Lab) -> None:
    lab = memory_lab
    lab.clock(1)
    worker = lab.worker()
    lab(set_limit, "b", 1, None)
    lab(set_limit, "a", 2, None)
    (holder,) = submit(lab, 1, "b")
    lab(set_limit, "a", None, None)
    (passed,) = submit(lab, 1, "a", "b")
    lab(set_limit, "a", 1, None)
    (late,) = submit(lab, 1, "a", "b")
    assert "'b'" in lab.info(passed.id).reason
    assert "'b'" in lab.info(late.id).reason, "which has a permit of the other one"
    for spec in (holder, passed, late):
        (claim,) = lab.claim(worker)
        assert claim.id == spec.id
        lab(dm.realize_future, claim, b"1")
    assert [one.held for one in lab(list_limits)] == [0, 0]
    assert lab.validate() == []


@pytest.mark.parametrize("seed", seed_params(40))
def test_there_are_never_more_than_the_limit_says(memory_lab: Lab, seed: int) -> None:
    lab, rng = memory_lab, random.Random(seed)
    now = lab.clock(1)
    most = {"a": rng.randrange(1, 4), "b": rng.randrange(1, 4)}
    for name, count in most.items():
        lab(set_limit, name, count, rng.choice((None, 50.0)))
    workers = [lab.worker(1), lab.worker(2)]
    specs: list[FutureSpec] = []
    claims: list[dm.Claim] = []
    for _ in range(60):
        act = rng.randrange(10)
        if act < 3:
            names = rng.choice((("a",), ("b",), ("a", "b"), ()))
            extra = {"dependencies": (rng.choice(specs).id,)} if specs and rng.random() < 0.3 else {}
            spec = lab.spec(limits=names, priority=rng.randrange(2), max_retries=1, **extra)
            lab.submit(spec)
            specs.append(spec)
        elif act < 5:
            claims += lab.claim(rng.choice(workers), limit=rng.randrange(1, 4))
        elif act == 5 and claims:
            claim = claims.pop(rng.randrange(len(claims)))
            ends = [
                Outcome.realized(claim, rng.choice((b"1", dm.FutureResult(size=50_000, worker=claim.worker)))),
                Outcome.failed(claim, Failure("error", "x")),
                Outcome.relinquished(claim),
            ]
            if lab(dm.find_worker, claim.worker.ip, claim.worker.port).id == claim.worker:
                claims += lab(dm.finish_turn, claim.worker, [rng.choice(ends)], Capacity(ahead=2), rng.randrange(3))
        elif act == 8:
            name = rng.choice("ab")
            given = rng.choice((None, rng.randrange(1, 4)))
            most[name] = max(most[name], given or 100)  # who has a permit keeps it
            while lab(set_limit, name, given, rng.choice((None, 1.0, 50.0))):
                pass
        elif act == 9 and specs:
            again = rng.choice(specs)
            lab(dm.resubmit_future, again.id, lab.info(again.id).epoch)
        elif act == 6:
            now += rng.choice((10_000, 100_000))
            lab.clock(now / 1e6)
            lab(dm.advance, now)
        elif act == 7 and specs:
            doomed = rng.choice(specs)
            lab(
                rng.choice((dm.cancel_future, dm.cancel_future, dm.delete_future)), doomed.id
            ) if rng.random() < 0.3 else None
            specs = [spec for spec in specs if lab.rows().get(("futures", spec.id, "deleted")) is None]
        if rng.random() < 0.05:
            victim = rng.randrange(2)
            lab.kill(workers[victim])
            lab.reap()
            claims = [claim for claim in claims if claim.worker != workers[victim]]
            workers[victim] = lab.worker(victim + 1)
        running = [spec for spec in specs if lab.state(spec.id) in ("claimed", "unclaimed")]
        for name, count in most.items():
            assert sum(name in spec.limits for spec in running) <= count
    assert lab.validate() == []
    for _ in range(2_000):
        now += 1_000_000
        lab(dm.advance, now)
        for worker in workers:
            for claim in [*claims, *lab.claim(worker)]:
                if claim.worker == worker:
                    lab(dm.finish_turn, worker, [Outcome.realized(claim, b"1")], Capacity(), 0)
        claims = []
        if all(state in ("realized", "failed") for state in states(lab, specs)):
            break
    assert set(states(lab, specs)) <= {"realized", "failed"}, "nobody waits for ever"
    assert {(one.held, one.queued) for one in lab(list_limits)} <= {(0, 0)}, "nothing is held"
    assert lab.validate() == []
