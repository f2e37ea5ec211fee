"""Streams from FoundationDB's documentation: the engine answers each call as FoundationDB 7.3.79 did, or does beside it."""

from __future__ import annotations

import pytest
from conftest import ENGINES, seed_params
from tests.differential.api_replay import Replay, answers, digest
from tests.differential.api_stream import Call
from tests.differential.record import recorded, stream

import fdb_embedded
from fdb_schema import open_database

BINDING = fdb_embedded.load(private=True)
"""At API version 730, as the cluster's answers were recorded."""
NAME = "memory:streams"
"""One database for all: a stream begins with clearing it."""
TAKES_ITS_TIME = ("error", 1007)
"""A machine that stands still for five seconds in the midst of a stream."""
GROUPS = [
    pytest.param(kind, at, at + size, id=f"{kind}-{at}")
    for kind, size in (("api", 10), ("stamped", 200))
    for at in range(0, len(recorded(kind)), size)
]
KINDS = ("api", "stamped")


@pytest.mark.skipif("embedded" not in ENGINES, reason="this process runs on a cluster")
@pytest.mark.parametrize(("kind", "first", "end"), GROUPS)
def test_the_engine_answers_as_a_cluster_did(kind: str, first: int, end: int) -> None:
    for seed, expected in sorted(recorded(kind).items())[first:end]:
        found = answers(BINDING.open(NAME), BINDING, stream(kind, seed))
        assert len(expected) == 2 * len(found)
        for at, (call, answer) in enumerate(found):
            assert digest(answer) == expected[2 * at : 2 * at + 2], show(
                seed, [c for c, _ in found[: at + 1]], call, answer
            )


@pytest.mark.skipif("embedded" not in ENGINES, reason="this process runs on a cluster")
def test_what_a_call_gave_is_taken_for_no_version() -> None:
    replay = Replay(BINDING.open(NAME), BINDING)
    like_one = b"k" + (replay.versions[-1] + 1_000_000).to_bytes(8, "big") + b"/tail"
    replay.run(("set", 0, like_one, b"v"))
    replay.run(("commit", 0))
    rows = ("get_range", 1, (b"", False, 1), (b"\xff", False, 1), 0, False, -2, True)
    assert replay.run(rows) == ("ok", [(like_one, b"v")])


@pytest.mark.skipif("fdb" not in ENGINES, reason="no disposable cluster is offered")
@pytest.mark.parametrize("seed", seed_params(100 if "fdb" in ENGINES else 1, most=None if "fdb" in ENGINES else 1))
@pytest.mark.parametrize("kind", KINDS)
def test_a_cluster_and_the_engine_give_the_same(shared_url: str, kind: str, seed: int) -> None:
    import fdb

    cluster = Replay(open_database(shared_url), fdb)
    engine = Replay(BINDING.open(NAME), BINDING)
    done: list[Call] = []
    for call in stream(kind, seed):
        done.append(call)
        there, here = cluster.run(call), engine.run(call)
        if TAKES_ITS_TIME in (there, here):
            return
        assert there == here, show(seed, done, call, here) + f"\ncluster: {there!r}"


def show(seed: int, done: list[Call], call: Call, answer: object) -> str:
    mine = [c for c in done if c[1] == call[1]][-30:]
    return "\n".join(
        [f"stream {seed} differs at the last of these calls:", *(f"  {c!r:.200}" for c in mine), f"engine: {answer!r}"]
    )
