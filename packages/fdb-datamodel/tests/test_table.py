"""Every event from every state: it leads where the table says, or it is refused and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from datamodel_lab.lab import Lab

import fdb_datamodel as dm
from fdb_datamodel import TRANSITIONS, Capacity, Claim, Failure, FutureResult, FutureState, Locality, Outcome
from fdb_schema import MainspringError

STATES = ("waiting", "backing off", "unclaimed", "claimed", "realized", "failed", None)


class Setting:
    """One future in a given state, and the claim it has or had."""

    def __init__(self, lab: Lab, state: str | None) -> None:
        self.lab = lab
        self.worker = lab.worker()
        self.other = lab.worker(2)
        lab.clock(1)
        up = lab.spec()
        lab.submit(up)
        self.spec = lab.spec(max_retries=1, backoff=dm.Backoff(1.0) if state == "backing off" else None)
        self.claim = Claim(self.spec.id, self.worker, bytes(10))
        if state is None:
            return
        if state == "waiting":
            self.spec.dependencies = (up.id,)
            lab.submit(self.spec)
            return
        lab.submit(self.spec)
        if state == "unclaimed":
            return
        self.claim = lab(dm.claim_future, self.spec.id, self.worker)
        if state == "realized":
            lab(dm.realize_future, self.claim, FutureResult(None, 9, "object"))
        elif state == "failed":
            lab(dm.fail_future, self.claim, "x", True)
        elif state == "backing off":
            lab(dm.fail_future, self.claim, "x")

    def state(self) -> FutureState | None:
        try:
            return FutureState(self.lab.state(self.spec.id))
        except (dm.UnknownFutureError, dm.FutureDeletedError):
            return None


def _turn(outcome: Callable[[Setting], Outcome]) -> Callable[[Setting], Any]:
    return lambda s: s.lab(dm.finish_turn, s.worker, [outcome(s)], Capacity(), 0)


def _lose(s: Setting) -> Any:
    s.lab(dm.drop_copy, s.spec.id, s.worker)
    return s.lab(dm.recover_result, s.spec.id, 0)


EVENTS: dict[str, Callable[[Setting], Any]] = {
    "submit_future": lambda s: s.lab(dm.submit_future, s.spec),
    "put_realized_future": lambda s: s.lab(dm.put_realized_future, s.spec, s.worker, b"x"),
    "claim_future": lambda s: s.lab(dm.claim_future, s.spec.id, s.worker),
    "relinquish_claim": lambda s: s.lab(dm.relinquish_claim, s.claim),
    "fail_future": lambda s: s.lab(dm.fail_future, s.claim, Failure("crash", "x")),
    "realize_future": lambda s: s.lab(dm.realize_future, s.claim, b"x"),
    "miss_inputs": _turn(lambda s: Outcome.missed_inputs(s.claim, [])),
    "leave_program": _turn(lambda s: Outcome.left(s.claim, dm.Away("sleep", due_us=10**18))),
    "release_backoff": lambda s: s.lab(dm.advance, 10**9),
    "assign_future": lambda s: s.lab(dm.assign_future, s.spec.id, Locality(s.other)),
    "reassign_future": lambda s: s.lab(dm.reassign_future, s.spec.id, None),
    "cancel_future": lambda s: s.lab(dm.cancel_future, s.spec.id),
    "expire_future": lambda s: s.lab(dm.cancel_future, s.spec.id, Failure("timeout", "x")),
    "resubmit_future": lambda s: s.lab(dm.resubmit_future, s.spec.id, 0),
    "delete_future": lambda s: s.lab(dm.delete_future, s.spec.id),
    "lose_result": _lose,
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("event", EVENTS)
def test_event_from_state(memory_lab: Lab, event: str, state: str | None) -> None:
    lab = memory_lab
    setting = Setting(lab, state)
    before = setting.state()
    refused = False
    try:
        EVENTS[event](setting)
    except MainspringError:
        refused = True
    after = setting.state()
    row = TRANSITIONS[event]
    if event == "lose_result" and state == "realized":
        assert after is FutureState.unclaimed, "reconstructable: the row is resubmit_future's"
    elif event == "release_backoff" and state == "waiting":
        assert after is before, "it waits for a future, not for the clock"
    elif before in row.sources:
        assert not refused
        assert after in row.targets
        assert after is not before or event in ("assign_future", "reassign_future")
    else:
        assert after is before


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("event", EVENTS)
def test_event_twice_from_state(memory_lab: Lab, event: str, state: str | None) -> None:
    """As after a commit whose outcome wasn't known: the second run changes nothing."""
    lab = memory_lab
    setting = Setting(lab, state)
    results = []
    for _ in range(2):
        try:
            EVENTS[event](setting)
        except MainspringError:
            pass
        info = lab.info(setting.spec.id) if setting.state() is not None else None
        results.append((setting.state(), info and (info.attempts, info.charged, info.epoch), len(lab.mail())))
    assert results[0] == results[1]
