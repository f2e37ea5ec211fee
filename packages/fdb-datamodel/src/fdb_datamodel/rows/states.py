"""The states of a future and every transition between them, as one table that code and tests read."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class FutureState(StrEnum):
    """Exactly one holds for a future at any version; decided from its keys (see `decide`)."""

    waiting = "waiting"  # on dependencies or on a back-off
    unclaimed = "unclaimed"  # in the resource indices xor assigned to a worker
    claimed = "claimed"  # `claim` is set
    realized = "realized"  # `claim` is set and `latest_result` carries that claim's token
    failed = "failed"  # the terminal `failure` is set


class Transition(NamedTuple):
    """One row of the table: `event` may take a future from any of `sources` to any of `targets`."""

    event: str
    sources: frozenset[FutureState | None]  # None: the future doesn't exist
    targets: frozenset[FutureState | None]


_W, _U, _C, _R, _F = FutureState
_UNFINISHED = (_W, _U, _C)


def _row(event: str, sources: tuple[FutureState | None, ...], targets: tuple[FutureState | None, ...]) -> Transition:
    return Transition(event, frozenset(sources), frozenset(targets))


#: event → row. Functions of `transitions` name their row; a test drives every event from every state and compares.
TRANSITIONS: dict[str, Transition] = {
    row.event: row
    for row in (
        _row("submit_future", (None,), (_W, _U, _C, _F)),  # claimed: pushed; failed: an upstream already is
        _row("put_realized_future", (None,), (_R,)),
        _row("claim_future", (_U,), (_C, _W)),  # waiting: an input was lost since it was enqueued
        _row("relinquish_claim", (_C,), (_U, _W, _F)),  # failed: too many losses
        _row("fail_future", (_C,), (_U, _W, _C, _F)),  # unclaimed or waiting: retries remain; claimed again in one turn
        _row("realize_future", (_C,), (_R,)),
        _row("finish_call", (None, _W), (_R, _F)),  # a call of an actor, which waits on it if it was recorded before
        _row("miss_inputs", (_C,), (_W, _U, _F)),  # a dependency's object is gone
        _row("settle_edge", (_W,), (_W, _U, _C, _F)),  # an upstream ended
        _row("release_backoff", (_W,), (_U, _W)),
        _row("leave_program", (_C,), (_W, _U, _F)),  # unclaimed: what it waits for is there; failed: the wait can't end
        _row("return_program", (_W,), (_U,)),  # what it waits for ended, came, or is due
        _row("assign_future", (_U,), (_U,)),
        _row("reassign_future", (_U,), (_U,)),
        _row("cancel_future", _UNFINISHED, (_F,)),
        _row(
            "cancel_program", _UNFINISHED, (_U, _C, _F)
        ),  # it is told; failed: it never began, or has no time for that
        _row("expire_future", _UNFINISHED, (_F,)),  # a timeout, unschedulable, a pinned worker's death
        _row("resubmit_future", (_R, _F), (_U, _W, _F)),
        _row("lose_result", (_R,), (_F,)),  # may not be reconstructed
        _row("delete_future", (_W, _U, _C, _R, _F), (None,)),
    )
}

TERMINAL = frozenset((FutureState.realized, FutureState.failed))
