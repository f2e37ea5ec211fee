"""Streams: items written under a claim, read while there are more to come, and missing ones written anew."""

from __future__ import annotations

import pytest
from datamodel_lab.lab import Lab

import fdb_datamodel as dm
from fdb_datamodel import FutureResult, streams


def begin(lab: Lab, port: int = 1, session: bytes = b"w" * 16) -> tuple[dm.WorkerId, dm.Claim, streams.StreamWriter]:
    worker = lab.worker(port)
    lab.submit(lab.spec())
    (claim,) = lab.claim(worker)
    return worker, claim, lab(streams.begin_stream, claim.id, claim.attempt, session)


def values(page: streams.StreamPage) -> list[bytes | None]:
    return [item.inline for item in page.items]


def test_items_are_read_and_both_sides_are_told(memory_lab: Lab) -> None:
    lab = memory_lab
    _, claim, writer = begin(lab)
    reader = b"r" * 16
    assert lab(streams.read_items, claim.id, 0, 10, reader)[:3] == ([], 0, "claimed")
    items = [(n, FutureResult(b"%d" % n)) for n in range(3)]
    assert lab(streams.add_items, writer, items) == (0, False)
    assert lab(streams.add_items, writer, items) == (0, False), "safe to repeat"
    assert [(m.id, m.kind) for m in lab.mail(reader)] == [(claim.id, "stream")]
    assert values(lab(streams.read_items, claim.id, 0, 2, reader)) == [b"0", b"1"]
    assert values(lab(streams.read_items, claim.id, 2, 2, reader)) == [b"2"]
    assert [m.kind for m in lab.mail(b"w" * 16)] == ["stream"], "two items were taken"
    assert lab(streams.add_items, writer, []) == (2, False)
    lab.submit(lab.spec(dependencies=(claim.id,)))
    assert lab(streams.add_items, writer, []) == (2, True), "what depends on it doesn't read it"
    lab(dm.realize_future, claim, b"done")
    page = lab(streams.read_items, claim.id, 3, 2, reader)
    assert (page.items, page.made, page.state) == ([], 3, "realized")
    assert lab.validate() == []


def test_an_attempt_that_lost_its_claim_writes_nothing(memory_lab: Lab) -> None:
    lab = memory_lab
    worker, claim, writer = begin(lab)
    lab(streams.add_items, writer, [(0, FutureResult(b"0"))])
    lab.kill(worker)
    lab.reap()
    with pytest.raises(dm.ClaimLostError):
        lab(streams.add_items, writer, [(1, FutureResult(b"1"))])
    (again,) = lab.claim(lab.worker(2))
    with pytest.raises(dm.ClaimLostError):
        lab(streams.begin_stream, claim.id, claim.attempt, bytes(16))
    assert lab(streams.begin_stream, claim.id, again.attempt, bytes(16)).made == 1


def test_lost_items_are_found_and_deleted_streams_leave_nothing(memory_lab: Lab) -> None:
    lab = memory_lab
    worker, claim, writer = begin(lab)
    stored = FutureResult(None, 50_000, "item", worker)
    lab(streams.add_items, writer, [(0, FutureResult(b"0")), (1, stored)])
    assert lab(streams.lost_items, claim.id, 0, 3) == [2]
    lab(dm.realize_future, claim, b"done")
    (seen,) = lab(streams.read_items, claim.id, 1, 5, bytes(16)).items
    lab.kill(worker)
    lab.reap()
    assert lab(streams.lost_items, claim.id, 0, 2) == [1]
    assert lab(streams.lose_item, claim.id, 1, seen) == "unclaimed", "the generator runs again"
    assert lab(streams.lose_item, claim.id, 1, seen) == "unclaimed"
    other = lab.worker(2)
    (again,) = lab.claim(other)
    second = lab(streams.begin_stream, claim.id, again.attempt, bytes(16))
    lab(streams.add_items, second, [(1, FutureResult(None, 50_000, "item-2", other))])
    assert lab(streams.lose_item, claim.id, 1, seen) == "claimed", "it is there again"
    assert lab(streams.lost_items, claim.id, 0, 2) == []
    assert lab.validate() == []
    lab(dm.delete_future, claim.id)
    assert [m.result.name for m in lab.mail(other.incarnation) if m.kind == "free" and m.result] == ["item-2"]
    assert not [key for key in lab.rows() if key[0] == "streams" or "streams" in key]
    assert lab.validate() == []
