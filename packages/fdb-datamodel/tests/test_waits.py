"""Tasks that block on others: a cycle is told to whoever would close it, and only then."""

from __future__ import annotations

import pytest
from datamodel_lab.lab import Lab

import fdb_datamodel as dm
from fdb_schema import fdb_error_code


def test_a_cycle_is_told_as_its_path(lab: Lab) -> None:
    worker = lab.worker()
    a, b, c = (lab.spec() for _ in range(3))
    lab.submit(a, b, c)
    claims = {claim.id: claim for claim in lab.claim(worker)}
    assert lab(dm.begin_wait, claims[a.id], [b.id]) == ()
    assert lab(dm.begin_wait, claims[a.id], [b.id]) == (), "again"
    assert lab(dm.begin_wait, claims[b.id], [c.id]) == ()
    assert lab(dm.begin_wait, claims[c.id], [a.id]) == (c.id, a.id, b.id, c.id)
    assert lab(dm.begin_wait, claims[c.id], [c.id]) == (c.id, c.id)
    lab(dm.end_wait, claims[a.id], [b.id])
    assert lab(dm.begin_wait, claims[c.id], [a.id]) == (), "nobody waits for it now"
    lab(dm.end_wait, claims[c.id])
    lab(dm.end_wait, claims[b.id])
    assert not any(row[0] == "waits" for row in lab.rows())


def test_dependencies_are_part_of_a_cycle(lab: Lab) -> None:
    worker = lab.worker()
    a = lab.spec()
    b = lab.spec(dependencies=(a.id,))
    c = lab.spec(dependencies=(b.id,))
    lab.submit(a, b, c)
    (claim,) = lab.claim(worker)
    assert lab(dm.begin_wait, claim, [c.id]) == (a.id, c.id, b.id, a.id)


def test_waits_of_an_attempt_end_with_it(lab: Lab) -> None:
    worker = lab.worker()
    a, b = lab.spec(), lab.spec()
    lab.submit(a, b)
    claims = {claim.id: claim for claim in lab.claim(worker)}
    lab(dm.begin_wait, claims[a.id], [b.id])
    lab(dm.relinquish_claim, claims[a.id])
    assert not any(row[0] == "waits" for row in lab.rows())
    again = lab(dm.claim_future, a.id, worker)
    assert lab(dm.begin_wait, claims[b.id], [a.id]) == ()
    assert lab(dm.begin_wait, again, [b.id]) == (a.id, b.id, a.id)
    lab(dm.realize_future, claims[b.id], b"")
    assert lab(dm.begin_wait, again, [b.id]) == (), "it has ended"
    lab(dm.end_wait, claims[b.id])
    lab(dm.end_wait, again)


def test_an_attempt_that_lost_its_claim_forgets_no_wait_of_the_next(lab: Lab) -> None:
    worker = lab.worker()
    a, b = lab.spec(), lab.spec()
    lab.submit(a, b)
    claims = {claim.id: claim for claim in lab.claim(worker)}
    lab(dm.relinquish_claim, claims[a.id])
    again = lab(dm.claim_future, a.id, worker)
    lab(dm.begin_wait, again, [b.id])
    lab(dm.end_wait, claims[a.id])
    lab(dm.end_wait, claims[a.id], [b.id])
    assert lab(dm.begin_wait, claims[b.id], [a.id]) == (b.id, a.id, b.id)
    lab(dm.end_wait, again, [b.id])
    assert not any(row[0] == "waits" for row in lab.rows())


def test_the_claim_of_a_running_attempt_is_found_by_its_number(lab: Lab) -> None:
    worker = lab.worker()
    lab.submit(lab.spec())
    (claim,) = lab.claim(worker)
    found = lab(dm.claim_of, claim.id, claim.attempt)
    assert (found.token, found.worker) == (claim.token, worker)
    assert lab(dm.claim_of, claim.id, claim.attempt + 1) is None
    lab(dm.realize_future, claim, b"")
    assert lab(dm.claim_of, claim.id, claim.attempt) is None


def test_waits_for_more_than_256_are_recorded_and_followed(lab: Lab) -> None:
    worker = lab.worker()
    specs = [lab.spec() for _ in range(301)]
    lab.submit(*specs)
    claims = {claim.id: claim for claim in lab.claim(worker, limit=400)}
    first, others = specs[0], [spec.id for spec in specs[1:]]
    for start in range(0, 300, 100):
        assert lab(dm.begin_wait, claims[first.id], others[start : start + 100]) == ()
    assert lab(dm.begin_wait, claims[others[-1]], [first.id]) == (others[-1], first.id, others[-1])
    lab(dm.end_wait, claims[first.id])
    assert not any(row[0] == "waits" for row in lab.rows())


def test_what_running_tasks_wait_for_is_claimed_first(lab: Lab) -> None:
    worker = lab.worker()
    specs = [lab.spec() for _ in range(5)]
    lab.submit(*specs)
    wanted = (specs[3].id, specs[4].id)
    claims = lab(dm.claim_futures, worker, dm.Capacity(wanted=wanted), 1)
    assert [claim.id for claim in claims] == [specs[3].id]
    big = lab.spec(requirements=dm.Requirements(ram="2GiB"))
    lab.submit(big)
    free, total = dm.Requirements(), dm.Requirements(ram="4GiB")
    needs = {"free": free, "total": total, "wanted": (big.id,)}
    assert big.id not in [claim.id for claim in lab(dm.claim_futures, worker, dm.Capacity(**needs), 1)]
    assert [c.id for c in lab(dm.claim_futures, worker, dm.Capacity(**needs, overcommit=True), 1)] == [big.id]
    assert dm.validate(lab.db, lab.space.cluster) == []


def test_of_two_that_close_a_cycle_together_one_is_told(lab: Lab) -> None:
    worker = lab.worker()
    a, b = lab.spec(), lab.spec()
    lab.submit(a, b)
    claims = {claim.id: claim for claim in lab.claim(worker)}
    one, two = lab.db.create_transaction(), lab.db.create_transaction()
    assert dm.begin_wait(one, lab.space, claims[a.id], [b.id]) == ()
    assert dm.begin_wait(two, lab.space, claims[b.id], [a.id]) == ()
    one.commit().wait()
    with pytest.raises(Exception) as conflict:
        two.commit().wait()
    assert fdb_error_code(conflict.value) == 1020
    assert lab(dm.begin_wait, claims[b.id], [a.id]) == (b.id, a.id, b.id)
    lab(dm.end_wait, claims[a.id])


def test_a_cycle_through_a_claim_made_ahead_is_found(lab: Lab) -> None:
    worker = lab.worker()
    waiter, head = lab.spec(), lab.spec()
    link = lab.spec(dependencies=(head.id,))
    lab.submit(waiter, head, link)
    first, second, ahead = lab.claim(worker, 10, dm.Capacity(ahead=10))
    assert [claim.id for claim in (first, second, ahead)] == [waiter.id, head.id, link.id]
    assert lab(dm.begin_wait, first, [link.id]) == ()
    assert lab(dm.begin_wait, second, [waiter.id]) == (head.id, waiter.id, link.id, head.id)
