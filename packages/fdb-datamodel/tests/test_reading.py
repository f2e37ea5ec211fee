"""What ls and show print: states, reasons and pages, without unpickling."""

from __future__ import annotations

import pytest
from datamodel_lab.lab import Lab

import fdb_datamodel as dm
from fdb_datamodel import FutureState, Locality, Requirements
from fdb_datamodel.rows.ids import show_id
from fdb_datamodel.views.troubles import what_failed


def test_every_future_appears_once_in_pages(lab: Lab) -> None:
    worker = lab.worker()
    ids = [spec.id for spec in (lab.spec(args=b"x", name=f"task {at}") for at in range(75))]
    specs = [lab.spec(id=one, args=b"x", name="task") for one in ids]
    lab.submit(*specs)
    claims = lab.claim(worker, 30)
    lab(dm.realize_futures, [(claim, b"r") for claim in claims[:20]])
    lab(dm.delete_future, ids[-1])
    seen: list[dm.FutureInfo] = []
    after: bytes | None = None
    while True:
        page, after = lab(dm.list_futures, after, 10)
        assert len(page) <= 10
        seen += page
        if after is None:
            break
    assert [info.id for info in seen] == ids[:-1]
    assert {info.name for info in seen} == {"task"}
    states = [info.state for info in seen]
    assert [states.count(state) for state in FutureState] == [0, 44, 10, 20, 0]
    done: list[dm.FutureInfo] = []
    after = None
    while True:
        page, after = lab(dm.list_futures, after, 7, FutureState.realized)
        done += page
        if after is None:
            break
    assert len(done) == 20


def test_pages_of_the_newest_first_hold_the_same_futures_the_other_way_round(lab: Lab) -> None:
    worker = lab.worker()
    lab.submit(*(lab.spec(args=b"x", name="task") for _ in range(40)))
    lab(dm.realize_futures, [(claim, b"r") for claim in lab.claim(worker, 15)])

    def all_of(state: FutureState | None, **order: bool) -> list[bytes]:
        found: list[bytes] = []
        after: bytes | None = None
        while True:
            page, after = lab(dm.list_futures, after, 7, state, **order)
            found += [info.id for info in page]
            if after is None:
                return found

    for state in (None, FutureState.realized):
        assert all_of(state, newest_first=True) == all_of(state)[::-1]
    assert len(all_of(None)) == 40


def test_show_says_why(lab: Lab) -> None:
    assert "no live worker" in lab.info(lab.submit(lab.spec())[0]).reason
    worker = lab.worker(total=Requirements(cpu=2, ram="4GiB"))
    up = lab.spec(requirements=Requirements(cpu=1))
    down = lab.spec(dependencies=(up.id,))
    near = lab.spec(locality=Locality(worker))
    lab.submit(up, down, near)
    assert lab.info(up.id).reason == "in the pool, waiting for a free worker" or "waiting for" in lab.info(up.id).reason
    assert show_id(up.id) in lab.info(down.id).reason
    assert str(worker) in lab.info(near.id).reason
    claim = lab(dm.claim_future, up.id, worker)
    assert lab.info(up.id).reason == f"attempt 1 on worker {worker}"
    lab(dm.fail_future, claim, "out of luck")
    assert "the last attempt failed (error: out of luck)" in lab.info(up.id).reason
    lab(dm.fail_future, lab(dm.claim_future, up.id, worker), "for good", True)
    assert lab.info(up.id).reason == "error: for good"
    assert lab.info(down.id).reason.startswith("upstream: ")


def test_states_of_many(lab: Lab) -> None:
    worker = lab.worker()
    a, b = lab.submit(lab.spec(), lab.spec())
    down = lab.spec(dependencies=(a,))
    lab.submit(down)
    lab(dm.realize_future, lab(dm.claim_future, b, worker), b"")
    states = lab(dm.get_future_states, [a, b, down.id, bytes(16)])
    assert states == [FutureState.unclaimed, FutureState.realized, FutureState.waiting, None]
    assert lab(dm.get_future_states, [a, b, down.id, bytes(16)], False) == states


def test_unknown_and_deleted_are_told_apart(lab: Lab) -> None:
    with pytest.raises(dm.UnknownFutureError, match="check the id and the cluster's name"):
        lab.info(bytes(16))
    (one,) = lab.submit(lab.spec())
    lab(dm.delete_future, one)
    with pytest.raises(dm.FutureDeletedError, match="was deleted"):
        lab.info(one)


@pytest.mark.parametrize("message", ['bad:\n  File "x"\nother: no', "bad\n", "\n  File ", "bad\r  File x", ""])
def test_what_failed_is_told_from_what_its_message_says(message: str) -> None:
    frames = 'Traceback (most recent call last):\n  File "x.py", line 1, in f\n    g()\n'
    failure = dm.Failure("error", message, traceback=f"{frames}my.Error{': ' * bool(message)}{message}\n")
    assert what_failed(failure) == "my.Error"
