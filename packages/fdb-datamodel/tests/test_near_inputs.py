"""A future runs where most bytes of its inputs are, if it can soon; what many take doesn't queue up at its holder."""

from __future__ import annotations

from datamodel_lab.lab import Lab

import fdb_datamodel as dm

MIB = 1 << 20


def stored(lab: Lab, worker: dm.WorkerId, size: int) -> bytes:
    """A future whose result of that size is in the worker's store."""
    spec = lab.spec()
    lab.submit(spec)
    claim = lab(dm.claim_future, spec.id, worker)
    lab(dm.realize_future, claim, dm.FutureResult(size=size, name=spec.id.hex(), worker=worker))
    return spec.id


def place_of(lab: Lab, future_id: bytes) -> dm.WorkerId | None:
    return lab.info(future_id).worker


def test_the_holder_of_most_bytes_is_given_the_future(lab: Lab) -> None:
    one, two = lab.worker(1), lab.worker(2)
    a, b, c = stored(lab, one, 3 * MIB), stored(lab, two, 2 * MIB), stored(lab, two, 2 * MIB)
    spec = lab.spec(dependencies=(a, b, c))
    lab.submit(spec)
    assert place_of(lab, spec.id) == two
    assert lab.claim(one) == []
    (claim,) = lab.claim(two)
    assert claim.reason in (b, c)
    assert dm.validate(lab.db, lab.space.cluster) == []


def test_small_and_inline_inputs_bind_nobody(lab: Lab) -> None:
    one = lab.worker(1)
    spec = lab.spec(dependencies=(stored(lab, one, MIB - 1),))
    lab.submit(spec)
    assert place_of(lab, spec.id) is None
    assert len(lab.claim(lab.worker(2))) == 1


def test_when_the_holder_is_busy_anyone_takes_it_after_a_moment(lab: Lab) -> None:
    one, two = lab.worker(1), lab.worker(2)
    spec = lab.spec(dependencies=(stored(lab, one, 5 * MIB),))
    lab.submit(spec)
    assert lab.claim(two) == []
    lab(dm.advance, lab.clock(1.0))
    assert [claim.id for claim in lab.claim(two)] == [spec.id]
    assert dm.validate(lab.db, lab.space.cluster) == []


def test_what_many_take_as_input_is_for_everyone(lab: Lab) -> None:
    one, two = lab.worker(1, slots=2), lab.worker(2)
    up = stored(lab, one, 100 * MIB)
    lab.submit(*[lab.spec(dependencies=(up,)) for _ in range(20)])
    assert len(lab.claim(two)) == 18, "two are kept for the holder's two slots"
    assert len(lab.claim(one)) == 2
    assert dm.validate(lab.db, lab.space.cluster) == []


def test_a_worker_that_unblocks_a_future_leaves_it_to_the_holder_of_its_inputs(lab: Lab) -> None:
    one, two = lab.worker(1), lab.worker(2)
    large, small = stored(lab, one, 9 * MIB), lab.spec()
    lab.submit(small)
    (claim,) = lab.claim(two)
    spec = lab.spec(dependencies=(large, small.id))
    lab.submit(spec)
    assert lab(dm.finish_turn, two, [dm.Outcome.realized(claim, b"v")], dm.Capacity(), 10) == []
    assert [claim.id for claim in lab.claim(one)] == [spec.id]


def test_the_death_of_the_holder_frees_what_waits_for_it(lab: Lab) -> None:
    one, two = lab.worker(1), lab.worker(2)
    up = stored(lab, one, 5 * MIB)
    spec = lab.spec(dependencies=(up,))
    lab.submit(spec)
    lab.kill(one)
    lab.reap()
    assert place_of(lab, spec.id) is None
    assert dm.validate(lab.db, lab.space.cluster) == []
    assert {claim.id for claim in lab.claim(two)} <= {spec.id, up}
