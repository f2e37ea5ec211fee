"""The census agrees with the cluster at every moment, and reports each end exactly once."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

import fdb_datamodel as dm
from fdb_datamodel import FutureState
from mainspring_dashboard.sampling.census import Census
from mainspring_dashboard.sampling.sampler import Sampler


def _counts(census: Census) -> dict[str, int]:
    return {state: count for state, count in census.counts.items() if count}


def test_what_had_ended_before_is_counted_and_is_no_news(lab: Any) -> None:
    lab.realize(lab.submit())
    lab.fail(lab.submit(), "no")
    lab.submit()
    census = Census(lab.db, lab.space)
    census.advance(1)
    assert _counts(census) == {"realized": 1, "failed": 1, "unclaimed": 1}
    assert census.take_ended() == []


def test_what_ends_while_the_workers_cannot_be_read_is_not_gathered(lab: Any) -> None:
    class Refusing:
        db, space, locks = lab.db, lab.space, None
        refuses = False

        def workers(self) -> list[dict[str, Any]]:
            if self.refuses:
                raise OSError("no answer")
            return []

    cluster = Refusing()
    sampler = Sampler(cluster)  # type: ignore[arg-type]
    sampler.tick()
    cluster.refuses = True
    for _ in range(3):
        lab.realize(lab.submit())
        with pytest.raises(OSError, match="no answer"):
            sampler.tick()
    cluster.refuses = False
    lab.realize(lab.submit())
    sample = sampler.tick()
    assert sample.counts["realized"] == 4
    assert len(sampler._census._news) == 0
    assert sample.finished > 0
    lab.realize(lab.submit())
    cluster.refuses = True
    with pytest.raises(OSError, match="no answer"):
        sampler.tick()
    assert sampler._census.take_ended() == []


@pytest.mark.parametrize("seed", range(20))
def test_seeded_life_of_a_cluster(lab: Any, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Submits, ends and deletions between looks of any length; pages of 64 rows, so that sweeps take many looks."""
    monkeypatch.setattr("mainspring_dashboard.sampling.census.PAGE_ROWS", 64)
    monkeypatch.setattr("mainspring_dashboard.sampling.census.RECHECK", 7)
    rng = random.Random(seed)
    census = Census(lab.db, lab.space)
    census.advance(0)
    unfinished: list[bytes] = []
    ended: list[bytes] = []
    reported: Counter[bytes] = Counter()
    expected: set[bytes] = set()
    for _ in range(60):
        action = rng.random()
        if action < 0.55:
            unfinished += [lab.submit() for _ in range(rng.randrange(1, 12))]
        elif action < 0.85:
            for one in rng.sample(unfinished, min(len(unfinished), rng.randrange(1, 8))):
                unfinished.remove(one)
                lab.realize(one) if rng.random() < 0.7 else lab.fail(one, "seeded")
                ended.append(one)
                expected.add(one)
        elif ended:
            gone = ended.pop(rng.randrange(len(ended)))
            lab(dm.delete_future, gone)
            expected.discard(gone)  # whether its end was seen before it went is a matter of time
        if rng.random() < 0.5:
            census.advance(0)
            reported.update(one.id for one in census.take_ended())
    for _ in range(400):  # looks of one page each: at most two whole sweeps
        census.advance(0)
        reported.update(one.id for one in census.take_ended())
    assert _counts(census) == _truth(lab)
    assert set(reported.values()) <= {1}
    assert census.sweeps > 2
    newly = [one for one in expected if one not in reported]
    assert not newly, f"seed {seed}: {len(newly)} ends were never reported"


def _truth(lab: Any) -> dict[str, int]:
    found: Counter[FutureState] = Counter()
    after: bytes | None = None
    while True:
        page, after = lab(dm.list_futures, after, 200)
        found.update(info.state for info in page)
        if after is None:
            return {state.value: count for state, count in found.items()}
