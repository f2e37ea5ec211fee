"""Futures that are to begin later."""

from __future__ import annotations

import pytest
from datamodel_lab.lab import Lab

import fdb_datamodel as dm


def test_it_waits_by_the_cluster_clock(memory_lab: Lab) -> None:
    lab = memory_lab
    now, worker = lab.clock(1), lab.worker()
    spec = lab.spec(after=5.0, queue_timeout=2.0)
    lab.submit(spec)
    lab.submit(spec)
    assert lab.state(spec.id) == "waiting"
    assert "begin later" in lab.info(spec.id).reason
    lab(dm.advance, now + 4_999_999)
    assert lab.claim(worker) == []
    lab(dm.advance, now + 5_000_000)
    assert lab.state(spec.id) == "unclaimed"
    lab(dm.advance, now + 6_999_999)
    assert lab.state(spec.id) == "unclaimed", "its limits count from when it may begin"
    assert [claim.id for claim in lab.claim(worker)] == [spec.id]
    assert lab.validate() == []


@pytest.mark.parametrize("first", ["time", "input"])
def test_it_waits_for_its_time_and_its_inputs(memory_lab: Lab, first: str) -> None:
    lab = memory_lab
    now, worker = lab.clock(1), lab.worker()
    up = lab.spec()
    spec = lab.spec(after=5.0, dependencies=(up.id,))
    lab.submit(up, spec)
    steps = [lambda: lab(dm.advance, now + 5_000_000), lambda: lab(dm.realize_future, lab.claim(worker)[0], b"1")]
    for step in steps if first == "time" else steps[::-1]:
        assert lab.state(spec.id) == "waiting"
        step()
    assert lab.state(spec.id) == "unclaimed"
    assert lab.validate() == []


@pytest.mark.parametrize("end", [dm.cancel_future, dm.delete_future])
def test_it_can_be_ended_before(memory_lab: Lab, end: object) -> None:
    lab = memory_lab
    now = lab.clock(1)
    spec = lab.spec(after=5.0)
    lab.submit(spec)
    lab(end, spec.id)  # type: ignore[arg-type]
    lab(dm.advance, now + 5_000_000)
    assert lab.claim(lab.worker()) == []
    assert lab.validate() == []


def test_one_whose_input_has_failed_ends_at_once(memory_lab: Lab) -> None:
    lab = memory_lab
    lab.clock(1)
    up = lab.spec()
    lab.submit(up)
    lab(dm.cancel_future, up.id)
    spec = lab.spec(after=5.0, dependencies=(up.id,))
    lab.submit(spec)
    assert lab.state(spec.id) == "failed"
    assert lab.validate() == []


def test_it_is_pushed_to_nobody(memory_lab: Lab) -> None:
    lab = memory_lab
    with pytest.raises(dm.FutureStateError, match="later"):
        lab(dm.submit_claimed, [lab.spec(after=5.0)], lab.worker())
