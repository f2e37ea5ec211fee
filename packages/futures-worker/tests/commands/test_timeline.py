"""The trace keeps to the Trace Event Format, and shows one attempt at a time in each slot."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
from conftest import seed_params
from support.trace_format import check_schema

from fdb_datamodel import Failure, FutureInfo, FutureResult, FutureState, WorkerId, new_future_id
from futures_worker.commands.timeline import chrome_trace


def info(worker: WorkerId, submitted: int, claimed: int, ended: int, *upstreams: bytes, **more: Any) -> FutureInfo:
    result = FutureResult(b"x", wall_us=ended)
    fields: dict[str, Any] = {"state": FutureState.realized, "worker": worker, "result": result, "attempts": 1, **more}
    return FutureInfo(
        new_future_id(), reason="", wall_us=submitted, claimed_us=claimed, dependencies=upstreams, name="f", **fields
    )


@pytest.mark.parametrize("seed", seed_params(50))
def test_seeded_traces_keep_to_the_format_and_to_the_slots(seed: int) -> None:
    rng = random.Random(seed)
    workers = [WorkerId("10.0.0.1", port, bytes(16)) for port in range(1, 4)]
    slots = {(w.ip, w.port): rng.randrange(1, 4) for w in workers[: rng.randrange(4)]}
    infos: list[FutureInfo] = []
    for _ in range(rng.randrange(60)):
        submitted = rng.randrange(1, 10**6)
        claimed = submitted + rng.randrange(1000)
        ended = claimed + rng.randrange(5000)
        upstreams = [one.id for one in rng.sample(infos, min(len(infos), rng.randrange(3)))]
        kind = rng.random()
        if kind < 0.8:
            infos.append(info(rng.choice(workers), submitted, claimed, ended, *upstreams))
        elif kind < 0.9:
            failure = Failure("error", "x", wall_us=ended)
            infos.append(info(workers[0], submitted, 0, 0, state=FutureState.failed, result=None, failure=failure))
        else:
            infos.append(info(workers[0], submitted, 0, 0, state=FutureState.unclaimed, result=None))
    trace = json.loads(json.dumps(chrome_trace(infos, slots)))
    check_schema(trace)
    attempts = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(attempts) == sum(one.state is FutureState.realized for one in infos)
    lanes: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in attempts:
        lanes[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in lanes.values():
        spans.sort()
        assert all(before[1] <= after[0] or before[0] == before[1] for before, after in pairwise(spans))


def test_a_slot_shows_one_attempt_after_another_though_they_were_claimed_together() -> None:
    worker = WorkerId("10.0.0.1", 1, bytes(16))
    infos = [info(worker, 1, 10, 10 + 100 * n) for n in (1, 2, 3)]
    events = [e for e in chrome_trace(infos, {("10.0.0.1", 1): 1})["traceEvents"] if e["ph"] == "X"]
    assert [(event["ts"], event["dur"], event["tid"]) for event in events] == [
        (10, 100, 1),
        (110, 100, 1),
        (210, 100, 1),
    ]


def test_an_empty_cluster_has_an_empty_trace() -> None:
    trace = chrome_trace([], {})
    check_schema(trace)
    assert trace["traceEvents"] == []
