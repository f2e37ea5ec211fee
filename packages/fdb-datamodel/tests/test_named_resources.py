"""Named resources: claimed only where they fit, in lanes of their own that hold up nothing else, and said where nobody offers them."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from datamodel_lab.lab import Lab

import fdb_datamodel as dm
from fdb_datamodel import Capacity, Locality, Requirements
from fdb_datamodel.errors import StrayKeyError
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.elements import encode_id
from fdb_datamodel.rows.space import layout_of, named_in

OLD_REQUIREMENTS = codec.pack((1000, 5, 0, 2))
"""As a release without named resources wrote them."""


def needs(cpu: float = 0, ram: int = 0, **named: float) -> dict[str, Any]:
    return {"requirements": Requirements(cpu, ram, 0, named)}


def offer(cpu: float = 8, **named: float) -> Requirements:
    return Requirements(cpu, 1 << 30, 0, named)


def test_only_what_fits_is_claimed_and_nothing_waits_behind_what_doesnt(lab: Lab) -> None:
    worker = lab.worker()
    lab.submit(*[lab.spec(**needs(db=1)) for _ in range(5)])
    lab.submit(lab.spec(**needs(db=1, licence=2)), lab.spec(**needs(elsewhere=1)), lab.spec(**needs(cpu=1)), lab.spec())
    claims = lab(dm.claim_futures, worker, Capacity(offer(db=2, licence=1), offer(db=3, licence=2)), 100)
    assert [claim.shape for claim in claims] == [(0, 0, 0, (("db", 1000),))] * 2 + [(0, 0, 0), (1000, 0, 0)]
    assert set(map(str, claims.blocked)) == {"cpu=0 ram=0 gpu=0 db=1", "cpu=0 ram=0 gpu=0 db=1 licence=2"}
    assert lab(dm.claim_futures, worker, Capacity(offer()), 100).blocked == (), "none of its business"
    claims = lab.claim(worker, 100, Capacity(offer(db=9, licence=9)))
    assert len(claims) == 4
    assert lab.validate() == []


def test_amounts_are_kept_in_thousandths_and_are_never_overdrawn(lab: Lab) -> None:
    worker = lab.worker()
    chance = random.Random(7)
    amounts = [chance.choice((0.001, 0.1, 0.3, 1, 1.5, 2.25, 17, 17.001)) for _ in range(200)]
    lab.submit(*[lab.spec(**needs(cpu=chance.choice((0, 1)), db=amount)) for amount in amounts])
    left = sum(round(1000 * amount) for amount in amounts)
    while left:
        have = chance.choice((0.5, 3, 17.001, 40))
        claims = lab.claim(worker, chance.choice((1, 7, 100)), Capacity(offer(1000, db=have), offer(1000, db=40)))
        taken = sum(dict(claim.shape[3])["db"] for claim in claims)
        assert taken <= have * 1000
        left -= taken
    assert lab.validate() == []


def test_however_many_others_wait_for_what_it_hasnt_a_worker_finds_its_own(lab: Lab) -> None:
    others = [f"host-{number}" for number in range(150)]
    lab.submit(*[lab.spec(**needs(**{name: 1})) for name in others])
    lab.submit(*[lab.spec(**needs(db=1, **{name: 1})) for name in others])
    lab.submit(*[lab.spec(**needs(db=1 + number)) for number in range(150)])
    lab.submit(
        *[lab.spec(**needs(**named)) for named in ({"zone": 1}, {"db": 1, "zone": 2}, {"zone-b": 1}, {"host-149": 1})]
    )
    worker = lab.worker()
    mine = {"zone": 9, "zone-b": 1, "host-149": 9}
    found = lab(dm.claim_futures, worker, Capacity(offer(), offer(db=2)), 9)
    assert len(found) == 0
    found = lab.claim(worker, 9, Capacity(offer(**mine)))
    assert sorted(claim.shape[3][0][0] for claim in found) == ["host-149", "host-149", "zone", "zone-b"]
    found = lab.claim(worker, 9, Capacity(offer(db=2, zone=9)))
    assert [claim.shape[3] for claim in found] == [(("db", 1000),), (("db", 1000), ("zone", 2000))]
    lab.submit(lab.spec(**needs(zone=1)))
    found = lab.claim(worker, 9, Capacity(offer(zone=1), offer(db=1000, zone=1)))
    assert [claim.shape[3] for claim in found] == [(("zone", 1000),)], "what waits for a db is passed over"
    lab.submit(lab.spec(**needs(gate=1, host=1)), lab.spec(**needs(gate=10)))
    found = lab.claim(worker, 9, Capacity(offer(gate=10)))
    assert [claim.shape[3] for claim in found] == [(("gate", 10_000),)], "though its key begins as one that doesn't fit"
    assert lab.validate() == []


def test_room_is_made_by_leaving_the_resource_alone_and_nothing_else(lab: Lab) -> None:
    worker = lab.worker()
    big, small, other, plain = (lab.spec(**one) for one in (needs(db=3), needs(db=1), needs(licence=1), needs(cpu=1)))
    lab.submit(big, small, other, plain)
    hold = big.requirements
    capacity = Capacity(offer(db=2, licence=1), offer(db=3, licence=1), hold)
    claims = lab(dm.claim_futures, worker, capacity, 100)
    assert {claim.id for claim in claims} == {other.id, plain.id}
    assert hold in claims.blocked
    (claim,) = lab.claim(worker, 100, dataclasses.replace(capacity, free=offer(db=3, licence=0)))
    assert claim.id == big.id


def test_what_waits_for_a_task_is_claimed_without_cpu_but_not_without_what_is_named(lab: Lab) -> None:
    worker = lab.worker()
    one, other = lab.spec(**needs(cpu=1, db=1)), lab.spec(**needs(cpu=1))
    lab.submit(one, other)
    capacity = Capacity(offer(0, db=0), offer(4, db=1), wanted=(one.id, other.id), overcommit=True)
    assert [claim.id for claim in lab.claim(worker, 2, capacity)] == [other.id]
    assert [claim.id for claim in lab.claim(worker, 2, dataclasses.replace(capacity, free=offer(0, db=1)))] == [one.id]


def test_it_says_why_it_waits(lab: Lab) -> None:
    spec = lab.spec(**needs(db=1))
    lab.submit(spec)
    assert lab.info(spec.id).reason == "no live worker"
    first = lab.worker(total=offer())
    assert lab.info(spec.id).reason == "unschedulable: needs cpu=0 ram=0 gpu=0 db=1, and no live worker offers db"
    lab.worker(2, total=offer(db=0.5))
    assert lab.info(spec.id).reason.startswith(
        "unschedulable: needs cpu=0 ram=0 gpu=0 db=1, the largest live worker has"
    )
    lab.worker(3, total=offer(db=1))
    assert lab.info(spec.id).reason == "in the pool, waiting for a worker with db=1 free"
    assert lab.claim(first, 10, Capacity(offer())) == []
    assert lab.info(spec.id).requirements == spec.requirements


def test_it_keeps_what_it_needs_wherever_it_goes(lab: Lab) -> None:
    worker, other = lab.worker(total=offer(db=1)), lab.worker(2, total=offer(db=1))
    near = lab.spec(**needs(cpu=1, db=1), locality=Locality(other))
    lab.submit(near)
    assert lab.claim(other, 9, Capacity(offer(db=0))) == []
    (claim,) = lab.claim(other, 9, Capacity(offer(db=1)))
    lab.kill(other)
    lab.reap()
    assert lab.claim(worker, 9, Capacity(offer(db=0), offer(db=1))) == []
    (claim,) = lab.claim(worker, 9, Capacity(offer(db=1)))
    assert claim.shape == (1000, 0, 0, (("db", 1000),))
    lab(dm.fail_future, claim, dm.Failure("error"))
    assert len(lab.claim(worker, 9, Capacity(offer(db=1)))) == 1
    assert lab.validate() == []


def test_what_earlier_releases_wrote_is_read_and_what_needs_nothing_is_written_as_before(lab: Lab) -> None:
    assert codec.unpack_requirements(OLD_REQUIREMENTS) == ((1000, 5, 0), 2, None)
    assert codec.pack_requirements((1000, 5, 0), 2, None) == OLD_REQUIREMENTS
    lab.worker(total=offer())
    row = lab.db[layout_of(lab.space).incarnation("127.0.0.1", 1)]
    assert codec.unpack(bytes(row))[2] == (8000, 1 << 30, 0)


def test_names_and_amounts_that_make_no_sense_are_refused() -> None:
    for named, text in (
        ({"cpus": 1}, r"can't be named 'cpus': did you mean 'cpu'\?"),
        ({"GPU": 1}, r"did you mean 'gpu'\?"),
        ({"a b": 1}, "a resource has a name of letters"),
        ({"a=b": 1}, "a resource has a name of letters"),
        ({"a,b": 1}, "a resource has a name of letters"),
        ({"x" * 101: 1}, "a resource has a name of letters"),
        ({3: 1}, "a resource has a name of letters"),
        ({"db": -1}, "of the resource 'db' is a number, 0 or more, not -1"),
        ({"db": True}, "is a number"),
        ({"db": "1"}, "is a number"),
        ({"db": float("nan")}, "is a number"),
    ):
        with pytest.raises(ValueError, match=text):
            Requirements(named=named)  # type: ignore[arg-type]
    assert str(Requirements(named={"licence": 0.5, "db": 2})) == "cpu=0 ram=0 gpu=0 db=2 licence=0.5"
    assert Requirements(named={"db": 0.0001}).shape == (0, 0, 0, (("db", 1),)), "never nothing"


def test_strays_in_the_lanes_are_stepped_over(lab: Lab) -> None:
    worker = lab.worker()
    keys = layout_of(lab.space)
    lab.submit(lab.spec(**needs(db=1)))
    tail = b"\x14\x14\x14\x14" + encode_id(bytes(16))
    strays = [b"db\x00", b"db=01\x00" + tail, b"=1\x00", b"\xff=1\x00", b"a=1", b"a=-1\x00" + tail]
    for stray in strays:
        lab.set_row(keys.cpu + b"\x02" + stray, b"")
        with pytest.raises(StrayKeyError):
            named_in(keys.cpu + b"\x02" + stray, len(keys.cpu))
    assert len(lab.claim(worker, 9, Capacity(offer(db=1)))) == 1
    assert len(lab.validate()) >= len(strays)
    for stray in strays:
        lab.set_row(keys.cpu + b"\x02" + stray, None)
