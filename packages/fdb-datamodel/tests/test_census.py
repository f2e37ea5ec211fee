"""Counting futures by pages and by id agrees with what describing each of them says."""

from __future__ import annotations

import pytest
from datamodel_lab.lab import Lab

import fdb_datamodel as dm
from fdb_datamodel import Backoff, FutureState


def _mixed(lab: Lab) -> list[bytes]:
    """A waiting (edge), a waiting (back-off), an unclaimed, a claimed, a realized, a failed and a deleted future."""
    worker = lab.worker()
    backing_off = lab.spec(backoff=Backoff(60.0))
    running, done, failed, gone = lab.spec(), lab.spec(), lab.spec(), lab.spec()
    lab.submit(backing_off, running, done, failed, gone)
    lab(dm.fail_future, lab(dm.claim_future, backing_off.id, worker), "later")
    lab(dm.claim_future, running.id, worker)
    lab(dm.realize_future, lab(dm.claim_future, done.id, worker), b"r")
    lab(dm.fail_future, lab(dm.claim_future, failed.id, worker), "for good", True)
    others = [lab.spec() for _ in range(40)]
    lab.submit(*others)
    queued = lab.spec()
    waiting = lab.spec(dependencies=(queued.id,), args=b"x")
    lab.submit(queued, waiting)
    lab(dm.delete_future, gone.id)
    return [spec.id for spec in (backing_off, running, done, failed, *others, queued, waiting)]


@pytest.mark.parametrize("rows", [1, 64, 5000])
def test_pages_count_each_future_once_with_the_state_that_describing_it_gives(lab: Lab, rows: int) -> None:
    expected = _mixed(lab)
    seen: list[dm.Counted] = []
    after: bytes | None = None
    for _ in range(100):
        page, after = lab(dm.census_page, after, rows)
        seen += page
        if after is None:
            break
    assert sorted(one.id for one in seen) == sorted(expected)
    assert {one.id: one.state for one in seen} == {one: lab.info(one).state for one in expected}
    assert after is None


def test_by_id_leaves_out_what_is_gone_and_gives_the_times_in_order(lab: Lab) -> None:
    expected = _mixed(lab)
    counted = lab(dm.recount, [*expected, bytes(16)])
    assert {one.id: one.state for one in counted} == {one: lab.info(one).state for one in expected}
    ended = [one for one in counted if one.state in (FutureState.realized, FutureState.failed)]
    assert len(ended) == 2
    for one in ended:
        assert 0 < one.submitted_us <= (one.started_us or one.submitted_us) <= one.ended_us
    assert all(one.ended_us == 0 for one in counted if one not in ended)


def test_a_count_tells_whose_a_future_is_and_how_often_it_began(lab: Lab) -> None:
    mark = dm.new_future_id()
    one, other = lab.spec(dataset=mark), lab.spec()
    lab.submit(one, other)
    lab(dm.fail_future, lab(dm.claim_future, one.id, lab.worker()), "again")
    kept = dm.FutureSpec(dataset=mark)
    lab(dm.put_realized_future, kept, None, b"x")
    page, _ = lab(dm.census_page)
    assert page == lab(dm.recount, [counted.id for counted in page])
    told = {counted.id: (counted.dataset, counted.session, counted.attempts) for counted in page}
    assert told[one.id] == (mark, lab.session, 1)
    assert told[kept.id][0] == mark
    assert told[other.id][::2] == (b"", 0)
