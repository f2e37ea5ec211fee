"""Futures that a task submits: they are known as its children, and none is born after its cancel."""

from __future__ import annotations

from datamodel_lab.lab import Lab

import fdb_datamodel as dm


def test_children_are_listed_by_pages_and_forgotten_with_either_end(memory_lab: Lab) -> None:
    lab = memory_lab
    (parent,) = lab.submit(lab.spec())
    children = lab.submit(*[lab.spec(parent=parent) for _ in range(5)])
    assert lab(dm.children_of, parent, limit=3) == children[:3]
    assert lab(dm.children_of, parent, children[2]) == children[3:]
    lab(dm.delete_future, children[0])
    assert lab(dm.children_of, parent) == children[1:]
    lab(dm.delete_future, parent)
    assert lab(dm.children_of, parent) == []
    assert lab.state(children[1]) == "unclaimed"
    assert lab.validate() == []


def test_no_child_is_born_to_a_cancelled_parent(memory_lab: Lab) -> None:
    lab = memory_lab
    worker = lab.worker()
    (parent,) = lab.submit(lab.spec())
    lab(dm.cancel_future, parent)
    late = lab.spec(parent=parent)
    lab.submit(late)
    failure = lab.info(late.id).failure
    assert failure is not None
    assert failure.reason == "cancelled"
    pushed = lab.spec(parent=parent)
    assert lab(dm.submit_claimed, [pushed], worker) == []
    assert lab.state(pushed.id) == "failed"
    assert lab.validate() == []
