"""Drawn programs, killed in the middle: each comes to its end, and everything it asked for happened once."""

from __future__ import annotations

import collections
from collections.abc import Iterator

import pytest
from conftest import seed_params
from program_sim import PATIENT, Cluster, agrees, body, careful, draw, expected, flat

import fdb_datamodel as dm
from futures_worker.programs import waits


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program leaves at once where it has to wait."""
    monkeypatch.setattr(waits, "HERE_SECONDS", 0.002)


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    seed = request.node.callspec.params["seed"]
    cluster = Cluster(seed, kills=(0.0, 0.03, 0.15)[seed % 3], declares_dead=(0.0, 0.0, 0.05, 0.0, 0.05)[seed % 5])
    yield cluster
    cluster.close()


@pytest.mark.parametrize("seed", seed_params(60))
def test_everything_happens_once(cluster: Cluster, seed: int) -> None:
    ops = draw(cluster.rng)
    world = b"world/%s/" % cluster.space.cluster.encode()
    asked = collections.Counter(op[0] for op in flat(ops))
    events = list(range(asked["event"]))
    program = cluster.client.submit(body, ops, world, durable=True, **PATIENT)
    cluster.run_to_the_end([program], events)
    seen = program.result(timeout=10)
    assert agrees(seen, expected(ops))
    assert [one[1] for one in seen if type(one) is tuple and one[0] == "event"] == list(range(asked["event"]))
    counted = collections.Counter(op[1] for op in flat(ops) if op[0] == "count")
    assert cluster.counters(world) == {b"%d" % key: number for key, number in counted.items()}, "exactly once"
    recorded = collections.Counter(one.kind for one in cluster.requests(program))
    assert recorded["sleep"] == sum(op[0] == "sleep" for op in ops)
    children = sum(
        {"child": 1, "failing child": 1, "program": 1}.get(op[0], op[-1] if op[0] in ("map", "completed", "first") else 0)
        for op in ops
    )  # fmt: skip
    assert cluster.children_of(program) == children, "none was submitted twice"
    assert dm.validate(cluster.db, cluster.space) == []


def test_it_bites(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are killed, lose their claims and leave, as the suite means them to."""
    killed = left = declared = 0
    for seed in range(30):
        cluster = Cluster(seed, kills=0.15, declares_dead=0.05)
        ops = draw(cluster.rng)
        events = list(range(sum(op[0] == "event" for op in ops)))
        program = cluster.client.submit(
            body, ops, b"world/%s/" % cluster.space.cluster.encode(), durable=True, **PATIENT
        )
        cluster.run_to_the_end([program], events)
        killed, left, declared = killed + cluster.killed, left + cluster.left, declared + cluster.declared
        cluster.close()
    assert killed > 50 and left > 50 and declared > 20


@pytest.mark.parametrize("seed", seed_params(60))
def test_one_that_is_cancelled_at_any_time_undoes_all_that_it_did(cluster: Cluster, seed: int) -> None:
    world = b"world/%s/" % cluster.space.cluster.encode()
    program = cluster.client.submit(careful, cluster.rng.randrange(1, 9), world, durable=True, **PATIENT)
    cluster.run_to_the_end([program], [], cancel_at=cluster.rng.randrange(30), cancel_within=seed % 2 == 1)
    counters = cluster.counters(world)
    done, undone = (sum(counters.get(b"%s%d" % (kind, n), 0) for n in range(9)) for kind in (b"done", b"undone"))
    assert max(counters.values(), default=0) <= 1, "exactly once"
    state = cluster.transact(dm.get_future_states, [program._record.id])[0]
    if state is dm.FutureState.realized:
        assert (done, undone) == (program.result(timeout=10), 0)
    else:
        assert cluster.transact(dm.describe_future, program._record.id).failure.reason == "cancelled"
        assert done == undone
    assert dm.validate(cluster.db, cluster.space) == []
