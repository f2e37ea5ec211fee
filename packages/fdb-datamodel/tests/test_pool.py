"""Claims from the pool: what fits, in which order, at what cost, and by several workers at once."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from conftest import seed_params
from datamodel_lab.lab import Lab

import fdb_datamodel as dm
from fdb_datamodel import Capacity, Requirements
from fdb_datamodel.rows.requirements import format_size, parse_size, round_up
from fdb_schema import fdb_error_code


def needs(**amounts: Any) -> dict[str, Requirements]:
    return {"requirements": Requirements(**amounts)}


@pytest.mark.parametrize("seed", seed_params(200))
def test_rounding_keeps_few_shapes_and_never_promises_too_little(seed: int) -> None:
    rng = random.Random(seed)
    for unit in (1, 1000):
        amount = rng.choice((rng.randint(1, 100), rng.randint(1, 10**5), rng.randint(1, 10**13)))
        up = round_up(amount, unit)
        assert amount <= up <= amount * 9 / 8 + 1
        assert round_up(amount + 1, unit) >= up
        for power in range(20):
            exact = unit << power
            assert round_up(exact, unit) == exact, "powers of two, and so whole gpus, are exact"
    octave = {round_up(amount, 1) for amount in range(1 << 20, 1 << 21, 997)}
    assert len(octave) <= 9


def test_sizes_and_amounts_are_read_or_refused_clearly() -> None:
    assert [parse_size(text) for text in (7, "7", "2GiB", "1.5 kB", "3 MB", "1k")] == [
        7,
        7,
        2 << 30,
        1500,
        3_000_000,
        1000,
    ]
    for bad in ("", "GiB", "2 XB", -1, float("nan"), True, None):
        with pytest.raises(ValueError, match="size"):
            parse_size(bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cpu is a number of cpus"):
        Requirements(cpu=-1)
    assert Requirements(0.5, "1KiB", 2).shape == (500, 1024, 2000)
    assert Requirements.from_shape((500, 1024, 2000)) == Requirements(0.5, 1024, 2.0)


def test_claims_fit_together_in_what_is_free(lab: Lab) -> None:
    worker = lab.worker()
    lab.submit(*[lab.spec(**needs(cpu=1, ram="1GiB")) for _ in range(5)], *[lab.spec() for _ in range(2)])
    claims = lab.claim(worker, 100, Capacity(Requirements(cpu=3, ram="16GiB")))
    assert sorted(claim.shape for claim in claims) == [(0, 0, 0)] * 2 + [(1000, 1 << 30, 0)] * 3
    claims = lab.claim(worker, 100, Capacity(Requirements(cpu=8, ram="1.5GiB")))
    assert len(claims) == 1
    assert lab.claim(worker, 100, Capacity(Requirements(cpu=0, ram="16GiB"))) == []


def test_shapes_that_do_not_fit_are_reported_if_they_could(lab: Lab) -> None:
    worker = lab.worker()
    lab.submit(lab.spec(**needs(cpu=2)), lab.spec(**needs(cpu=64)), lab.spec())
    claims = lab(dm.claim_futures, worker, Capacity(Requirements(cpu=1), total=Requirements(cpu=4)), 10)
    assert len(claims) == 1
    assert claims.blocked == (Requirements(cpu=2.0),)


def test_capacity_is_held_for_a_shape_that_waited_too_long(lab: Lab) -> None:
    worker = lab.worker()
    big = lab.spec(**needs(cpu=4))
    lab.submit(big, *[lab.spec(**needs(cpu=1)) for _ in range(8)])
    hold = Requirements(cpu=4)
    assert lab.claim(worker, 10, Capacity(Requirements(cpu=2), Requirements(cpu=4), hold)) == []
    (claim,) = lab.claim(worker, 10, Capacity(Requirements(cpu=4), Requirements(cpu=4), hold))
    assert claim.id == big.id


def test_greater_priority_first_then_age(lab: Lab) -> None:
    worker = lab.worker()
    low, old, new, high = lab.spec(priority=-300), lab.spec(), lab.spec(), lab.spec(priority=70_000)
    lab.submit(low, new, high, old)
    assert [claim.id for claim in lab.claim(worker)] == [high.id, old.id, new.id, low.id]


def test_a_requeued_future_keeps_its_age(lab: Lab) -> None:
    worker = lab.worker()
    first, second = lab.spec(), lab.spec()
    lab.submit(first, second)
    (claim,) = lab.claim(worker, 1)
    lab(dm.relinquish_claim, claim)
    assert [claim.id for claim in lab.claim(worker, 1)] == [first.id]


def test_exact_needs_decide_where_rounding_does_not(lab: Lab) -> None:
    worker = lab.worker()
    total = 3_000_000_000
    specs = [lab.spec(**needs(ram=total + excess)) for excess in (5, 3, -7, 1)]
    lab.submit(*specs)
    assert [claim.id for claim in lab.claim(worker, 10, Capacity(Requirements(ram=total)))] == [specs[2].id]
    assert [claim.id for claim in lab.claim(worker, 10, Capacity(Requirements(ram=total + 1)))] == [specs[3].id]


def test_one_that_fits_is_found_behind_many_of_its_shape_that_do_not(lab: Lab) -> None:
    worker = lab.worker()
    total = 3_000_000_000
    fits = [lab.spec(**needs(ram=total)) for _ in range(300)]
    misfits = [lab.spec(**needs(ram=total + 1 + at)) for at in range(300)]
    ids = dm.new_future_ids(600)
    for spec, future_id in zip([*misfits, *fits], ids, strict=True):
        spec.id = future_id
    lab.submit(*misfits, *fits)
    found = 0
    for _ in range(60):
        found += len(lab.claim(worker, 1, Capacity(Requirements(ram=total))))
    assert found > 0


@pytest.mark.parametrize("seed", seed_params(50))
def test_random_backlogs_give_all_that_fits_and_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    lab = Lab()
    worker = lab.worker()
    shapes = [
        Requirements(
            rng.choice((0, 0, 0.5, 1, 2, 3.7)), rng.choice((0, 1, 10**6, 2**31, 3 * 10**9)), rng.choice((0, 0, 1, 0.3))
        )
        for _ in range(40)
    ]
    specs = [lab.spec(requirements=shape, priority=rng.choice((0, 0, 1, -5))) for shape in shapes]
    lab.submit(*specs)
    waiting = {spec.id: spec.requirements for spec in specs}
    while waiting:
        free = Requirements(rng.choice((0, 1, 4)), rng.choice((0, 10**6, 3 * 10**9, 10**10)), rng.choice((0, 1)))
        offered = Capacity(free, stripe=(rng.randrange(3), 3), wary=rng.random() < 0.5)
        claims = lab.claim(worker, rng.choice((1, 5, 100)), offered)
        sums = [sum(claim.shape[i] for claim in claims) for i in range(3)]
        assert all(used <= have for used, have in zip(sums, free.shape, strict=True))
        for claim in claims:
            assert waiting.pop(claim.id).shape == claim.shape
        if not claims:
            assert not any(shape.fits(free) for shape in waiting.values()), "something fits and wasn't claimed"
            everything = lab.claim(worker, 1, Capacity(Requirements(10, 10**12, 10)))
            assert len(everything) == 1
            del waiting[everything[0].id]
    assert lab.validate() == []


def _reads(lab: Lab, capacity: Capacity, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """How many range reads, and rows read, a claim takes."""
    from fdb_datamodel.lifecycle import pool
    from fdb_datamodel.rows import changes

    seen = [0, 0]
    for module in (changes, pool):
        plain = module.read_range

        def counting(*args: Any, plain: Any = plain, **options: Any) -> Any:
            rows = plain(*args, **options)
            seen[0] += 1
            seen[1] += len(rows)
            return rows

        monkeypatch.setattr(module, "read_range", counting)
    worker = lab.worker(7)
    assert lab.claim(worker, 10, dataclasses.replace(capacity, wary=True)) == []
    monkeypatch.undo()
    lab(dm.unregister_worker, worker)
    lab.reap()
    return seen[0], seen[1]


def test_a_claim_costs_the_shapes_and_not_the_backlog(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    free = Capacity(Requirements(cpu=4, ram="1GiB"), Requirements(cpu=4, ram="8GiB"))
    costs = []
    for _ in range(3):
        for _ in range(4):
            lab.submit(*[lab.spec(**needs(ram=(2 << 30) + random.randrange(2 << 30))) for _ in range(250)])
        costs.append(_reads(lab, free, monkeypatch))
    assert costs[2][0] <= costs[0][0] + 1
    assert costs[2][0] <= 20, "eight roundings of one octave"
    assert costs[2][1] <= costs[0][1] + 4, "a few rows of each"


def test_a_claim_beside_what_never_fits_is_two_short_reads(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of futures that need more than the worker has in all, however many of however different ram, four rows are seen."""
    capacity = Capacity(Requirements(cpu=1, ram="1GiB"), Requirements(cpu=4, ram="1.9GiB"))
    empty = _reads(lab, capacity, monkeypatch)
    for octave in range(1, 11):
        lab.submit(*[lab.spec(**needs(ram=(2 << 30) + random.randrange(2 << 30 << octave))) for _ in range(100)])
    reads, rows = _reads(lab, capacity, monkeypatch)
    assert reads <= empty[0] + 1, "one more: what needs more cpu may need less ram"
    assert rows <= empty[1] + 4


@pytest.mark.parametrize("wary", [False, True])
def test_what_needs_more_cpu_and_less_ram_is_found_behind_what_never_fits(lab: Lab, wary: bool) -> None:
    worker = lab.worker()
    lab.submit(*[lab.spec(**needs(ram=(2 << 30) + at * (1 << 28))) for at in range(20)])
    small = lab.spec(**needs(cpu=2, ram="1GiB"))
    lab.submit(small, *[lab.spec(**needs(cpu=1, ram=(3 << 30) + at)) for at in range(20)])
    capacity = Capacity(Requirements(cpu=2, ram="1GiB"), Requirements(cpu=2, ram="1.5GiB"))
    assert [claim.id for claim in lab.claim(worker, 10, dataclasses.replace(capacity, wary=wary))] == [small.id]


def test_two_workers_at_once_conflict_only_over_the_same_entries(lab: Lab) -> None:
    def both(first: Capacity, second: Capacity) -> tuple[set[bytes], set[bytes], bool]:
        one, two = lab.db.create_transaction(), lab.db.create_transaction()
        a = dm.claim_futures(one, lab.space, left, first, 10)
        b = dm.claim_futures(two, lab.space, right, second, 10)
        one.commit().wait()
        code = None
        try:
            two.commit().wait()
        except Exception as error:
            code = fdb_error_code(error)
        assert code in (None, 1020)
        return {claim.id for claim in a}, {claim.id for claim in b}, code == 1020

    left, right = lab.worker(1), lab.worker(2)
    lab.submit(*[lab.spec() for _ in range(200)])
    a, b, conflict = both(Capacity(), Capacity())
    assert conflict and a == b, "without stripes both want the oldest"
    a, b, conflict = both(Capacity(stripe=(0, 2)), Capacity(stripe=(1, 2)))
    assert not conflict and not a & b and len(a) == len(b) == 10


def test_a_stripe_is_a_preference_and_starves_nobody(lab: Lab) -> None:
    worker = lab.worker()
    lab.submit(*[lab.spec() for _ in range(20)])
    claimed = 0
    while claims := lab.claim(worker, 3, Capacity(stripe=(5, 8))):
        claimed += len(claims)
    assert claimed == 20


def test_submits_do_not_conflict_with_claims(lab: Lab) -> None:
    worker = lab.worker()
    lab.submit(*[lab.spec() for _ in range(10)])
    claiming = lab.db.create_transaction()
    dm.claim_futures(claiming, lab.space, worker, Capacity(), 100)
    lab.submit(*[lab.spec() for _ in range(10)])
    claiming.commit().wait()
    assert len(lab.claim(worker)) == 10


def test_ids_rise_and_keys_name_one_future() -> None:
    ids = dm.new_future_ids(10_000)
    assert ids == sorted(set(ids))
    assert dm.new_future_id() > ids[-1]
    assert {one[6] >> 4 for one in ids} == {7} and {one[8] >> 6 for one in ids} == {2}
    assert dm.id_for_key("c", "k") == dm.id_for_key("c", "k") != dm.id_for_key("d", "k")
    with pytest.raises(ValueError, match="16 bytes or a UUID"):
        dm.as_id(b"short")


def test_a_survey_names_the_shapes_that_were_not_reached(lab: Lab) -> None:
    worker = lab.worker()
    lab.submit(*[lab.spec(requirements=Requirements(cpu=1)) for _ in range(5)])
    lab.submit(lab.spec(requirements=Requirements(cpu=2)), lab.spec(requirements=Requirements(cpu=16)))
    capacity = {"free": Requirements(cpu=4), "total": Requirements(cpu=4)}
    assert lab(dm.claim_futures, worker, Capacity(**capacity), 1).blocked == ()
    claims = lab(dm.claim_futures, worker, Capacity(**capacity, survey=True), 1)
    assert claims.blocked == (Requirements(cpu=2),), "what is too big for the worker is none of its business"
    held = Capacity(**capacity, hold_for=Requirements(cpu=2))
    assert [claim.shape for claim in lab(dm.claim_futures, worker, held, 1)] == [(2000, 0, 0)]


def test_sizes_are_written_as_people_write_them() -> None:
    written = [format_size(n) for n in (0, 1, 1000, 1024, 2 << 30, 3 << 29, 1_500_000_000, 1 << 50, (1 << 30) + 1)]
    assert written == ["0", "1B", "1kB", "1KiB", "2GiB", "1.5GiB", "1.5GB", "1PiB", "1GiB"]
    assert str(dm.Requirements(1, "2GiB", 0.5)) == "cpu=1 ram=2GiB gpu=0.5"
