"""What is memoized is kept as long, and takes as much, as one says; nothing that is being computed is forgotten."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import memo_functions as functions
import pytest
from typer.testing import CliRunner

from fdb_schema import open_database, read_version
from idempotent_txn import run
from lease_locks import LeaseManager, MemoizingPicklingRunner, OldMemos, prune, samethread_shell
from lease_locks.cli import app
from lease_locks.grants.observer import Alive, Dead, Observer
from lease_locks.grants.records import WaiterRecord
from lease_locks.memo import pruning
from lease_locks.memo.counting import MICROSECONDS


@pytest.fixture
def locks() -> Iterator[LeaseManager]:
    with LeaseManager(open_database("memory:"), cluster="demo") as manager:
        yield manager


class Later:
    """The database's versions, so many seconds on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        monkeypatch.setattr(pruning, "read_version", lambda tr: read_version(tr) + int(self.seconds * 1e6))


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    return Later(monkeypatch)


def runner_of(locks: LeaseManager, shell: Any = samethread_shell) -> MemoizingPicklingRunner:
    return MemoizingPicklingRunner(locks, shell=shell, pipeline_id="demo")


def stored_blobs(locks: LeaseManager) -> int:
    return len(list(locks.db.get_range_startswith(locks.space.cluster.blobs.key())))


def test_invocations_and_runs_go_when_nothing_happened_for_so_long(locks: LeaseManager, later: Later) -> None:
    runner = runner_of(locks)
    runner.call(functions.big, 300_000)
    with pytest.raises(AssertionError):
        runner.call(refused, 1)
    runner.flush()
    assert (prune(locks, older_than=3_600.0).invocations, stored_blobs(locks) > 0) == (0, True)
    later.seconds = 4_000.0
    found = prune(locks, older_than=3_600.0)
    assert (found.invocations, found.runs) == (2, 1)
    assert found.bytes > 300_000
    assert stored_blobs(locks) == 0
    assert list(runner.rows.scan(locks.db)) == []
    assert list(runner.rows.runs(locks.db)) == []
    assert len(runner.call(functions.big, 300_000)) == 300_000, "it is computed again"


def test_of_one_pipeline_its_invocations_go_and_the_runs_that_called_nothing_else(
    locks: LeaseManager, later: Later
) -> None:
    runner, other = runner_of(locks), MemoizingPicklingRunner(locks, shell=samethread_shell, pipeline_id="other")
    for one in (runner, other):
        one.call(functions.with_default, 1)
        one.flush()
    assert prune(locks, most_bytes=0, pipeline="demo").invocations == 1
    assert counts_of(runner) == {b"": {"executed": 1}}, "it goes on"
    runner.call(functions.with_default, 1)
    runner.flush()
    later.seconds = 4_000.0
    assert prune(locks, 3_600.0, pipeline="demo", dry_run=True).invocations == 1
    assert OldMemos(locks, 3_600.0, pipeline="demo").clear() == 2
    assert [memo.pipeline for memo, _ in runner.rows.scan(locks.db)] == ["other"]
    assert [run_id for run_id, _, _ in runner.rows.runs(locks.db)] == [other.run_id]


def counts_of(runner: MemoizingPicklingRunner) -> dict[bytes, dict[str, int]]:
    """What the runner's run has counted, by the digests of invocations."""
    runner.flush()
    ((_, _, found),) = runner.rows.runs(runner.locks.db, runner.run_id)
    counts: dict[bytes, dict[str, int]] = {}
    for (memo, kind), count in found.items():
        if kind != MICROSECONDS:
            counts.setdefault(memo.digest, {})[kind] = count
    return counts


def test_what_a_run_that_goes_on_counted_of_forgotten_invocations_is_one_row_for_each_function(
    locks: LeaseManager,
) -> None:
    runner = runner_of(locks)
    for turn in range(2):
        for x in range(3):
            assert runner.call(functions.with_default, x) == runner.call(functions.with_default, x)
        runner.flush()
        assert prune(locks, most_bytes=0).invocations == 3
        assert counts_of(runner) == {b"": {"executed": 3 * (turn + 1), "hit": 3 * (turn + 1)}}
    runner.call(functions.with_default, 9)
    assert sorted(map(len, counts_of(runner))) == [0, 32]


def test_what_somebody_waits_for_is_kept_unless_the_waiter_is_dead(
    locks: LeaseManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = runner_of(locks)
    assert runner.call(functions.length, b"abc") == 3
    (memo, _) = next(iter(runner.rows.scan(locks.db)))
    lock = locks.space.lock(memo.lock_name)
    place = WaiterRecord(b"o" * 16, b"s" * 16)
    run(locks.db, lambda tr: tr.set(lock.waiter(b"\x00" * 10), place.encode()))
    for verdict, forgotten in ((Alive(1.0), 0), (Dead("its heartbeats stood still"), 1)):
        monkeypatch.setattr(Observer, "judge", lambda *a, verdict=verdict: verdict)
        assert prune(locks, most_bytes=0).invocations == forgotten


def refused(x: int) -> int:
    raise AssertionError(x)


def test_the_oldest_go_until_the_rest_takes_no_more_than_it_may(locks: LeaseManager) -> None:
    runner = runner_of(locks)
    for size in (100_000, 100_001, 100_002, 100_003):
        runner.call(functions.big, size)
    assert prune(locks, most_bytes=10**6).invocations == 0
    assert OldMemos(locks, most_bytes=250_000).clear() == 2
    assert [bool(runner.peek(functions.big, size)) for size in (100_000, 100_001, 100_002, 100_003)] == [
        *(False, False),
        *(True, True),
    ]


def test_what_is_being_computed_or_was_just_now_is_kept(locks: LeaseManager, later: Later) -> None:
    later.seconds = 4_000.0
    seen: list[int] = []

    def shell(args: Any) -> None:
        seen.append(prune(locks, older_than=3_600.0).invocations)
        samethread_shell(args)

    assert runner_of(locks, shell).call(functions.length, b"abc") == 3
    assert seen == [0]
    rows = runner_of(locks).rows
    (memo, found) = next(iter(rows.scan(locks.db)))
    assert not pruning._forget_unchanged(locks, rows.keys(memo), b"as it was before this outcome")
    assert pruning._forget_unchanged(locks, rows.keys(memo), found["wake"])


@pytest.mark.parametrize("limits", [{"older_than": -1}, {"most_bytes": float("nan")}, {"older_than": "1"}])
def test_a_limit_that_is_no_number_is_refused(locks: LeaseManager, limits: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"older_than|most_bytes"):
        prune(locks, **limits)


def test_the_command_says_what_it_forgot_and_wants_a_limit(shared_url: str) -> None:
    with LeaseManager(shared_url) as manager:
        runner_of(manager).call(functions.length, b"abc")
        assert CliRunner().invoke(app, ["prune", "--db", shared_url]).exit_code == 2
        kept = CliRunner().invoke(app, ["prune", "--db", shared_url, "--older-than", "3600", "--json"])
        assert json.loads(kept.output) == {"invocations": 0, "bytes": 0, "runs": 0}
        gone = CliRunner().invoke(app, ["prune", "--db", shared_url, "--most-bytes", "0"])
        assert gone.output.startswith("forgot 1 invocation (")
        assert run(manager.db, read_version) > 0
