"""No two believers, tokens monotone, results write-once, every live waiter served, whatever goes wrong.

Each seed is a schedule of stops, suspends, crashes, partitions, clock offsets, drift up to 10 %, lost, doubled and late
commits and version jumps. `MAINSPRING_SEEDS=10000` runs as many.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from conftest import seed_params
from lease_simulation import invocations
from lease_simulation.holders import simulate
from lease_simulation.invocations import simulate_invocations

from lease_locks.grants import ending, joining, observer, transitions
from lease_locks.grants.observer import Observer
from lease_locks.grants.states import News
from lease_locks.session import holding
from lease_locks.session.holding import Holding


@pytest.mark.parametrize("seed", seed_params(200))
def test_no_two_believers_and_every_live_waiter_is_served(seed: int) -> None:
    print(f"seed {seed}")
    model = simulate(seed)
    assert model.acquired > 0


@pytest.mark.parametrize("seed", seed_params(200))
def test_results_are_write_once_and_every_live_caller_gets_one(seed: int) -> None:
    print(f"seed {seed}")
    model = simulate_invocations(seed)
    assert model.computing > 0 or all(session.process.crashed for session in model.sessions)


# --- the simulation finds what is planted


def _fences_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "FENCE", 1.2)


def _observes_no_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(self: Observer, subject: Any, now: float) -> Any:
        return observer._Sighting((), self._seen.setdefault(subject.key, now), now)  # type: ignore[arg-type]

    monkeypatch.setattr(Observer, "_look", look)


def _grants_without_reading_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    original = transitions._grant

    def grant(tr: Any, *args: Any) -> Any:
        tr.reads.clear()
        return original(tr, *args)

    monkeypatch.setattr(transitions, "_grant", grant)


def _revives_by_late_acknowledgement(monkeypatch: pytest.MonkeyPatch) -> None:
    def renewed(self: Holding, started: float, now: float) -> None:
        self.learn(News.RENEWED)
        self.deadline = max(self.deadline, now + 0.8 * self.ttl)

    monkeypatch.setattr(Holding, "renewed", renewed)
    monkeypatch.setattr(ending, "add_read_conflict_keys", lambda tr, keys: None)


def _tells_a_session_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def tell(tr: Any, space: Any, sids: Any, told: Any = None) -> None:
        for sid in sids:
            if tr.get(space.revocation(sid)).present():
                tr.set_versionstamped_value(space.revocation(sid), ending.stamped_value())

    monkeypatch.setattr(ending, "_tell", tell)


def _skips_the_place_of_an_attempt_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "_leave_queue", lambda *args: None)


def _guards_without_a_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    original = joining.guard

    def guard(tr: Any, *args: Any) -> None:
        reads = list(tr.reads)
        original(tr, *args)
        tr.reads[:] = reads

    monkeypatch.setattr(joining, "guard", guard)


_HOLDERS = [
    _fences_late,
    _observes_no_heartbeats,
    _grants_without_reading_the_last,
    _revives_by_late_acknowledgement,
    _tells_a_session_twice,
    _skips_the_place_of_an_attempt_before,
    _guards_without_a_conflict,
]
_FOUND_AS = ("believers", "shared", "older token", "completes later", "behind", "still waiting")


@pytest.mark.parametrize("plant", _HOLDERS, ids=lambda plant: plant.__name__.strip("_"))
def test_a_planted_defect_is_found(plant: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in (66, 74, *range(120)):  # two that are known to find the rarest, then any
        try:
            simulate(seed)
        except AssertionError as found:
            if any(words in str(found) for words in _FOUND_AS):
                return
    pytest.fail("122 seeds found nothing")


def _a_remote_has_a_max_hold_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "hold_left", lambda grant, version: grant.record.max_hold_ms / 1000)


def _publishes_over_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def publish(tr: Any, session: Any, keys: Any, lock: Any, token: Any, attempt: Any, outcome: Any, wall: int) -> bool:
        tr.set(keys.result, outcome.encode())
        return True

    monkeypatch.setattr(invocations, "publish", publish)


def _a_remote_ends_what_its_holder_may_believe_in(monkeypatch: pytest.MonkeyPatch) -> None:
    original = ending.read_grant

    def read(*args: Any, **options: Any) -> Any:
        grant = original(*args, **options)
        return grant and replace(grant, record=replace(grant.record, left=not grant.record.maintained))

    monkeypatch.setattr(ending, "read_grant", read)


@pytest.mark.parametrize(
    "plant",
    [_a_remote_has_a_max_hold_of_its_own, _publishes_over_a_result, _a_remote_ends_what_its_holder_may_believe_in],
    ids=lambda plant: plant.__name__.strip("_"),
)
def test_a_defect_planted_in_the_runner_is_found(plant: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in (42, 700782, *range(600)):  # two that are known to find the rarest, then any
        try:
            simulate_invocations(seed)
        except AssertionError as found:
            if "believers" in str(found) or "changed" in str(found):
                return
    pytest.fail("602 seeds found nothing")
