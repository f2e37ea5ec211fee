"""What people may do to futures from outside: cancel them, run them again."""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import UUID

from fdb_datamodel import (
    ClusterSpace,
    FutureState,
    cancel_future,
    describe_future,
    get_future_state,
    resubmit_future,
)
from futures_worker.database import ask


class Acted(NamedTuple):
    """What became of a future: its state afterwards, whether it was done, and the epoch it is in from then on."""

    state: FutureState
    done: bool
    epoch: int = 0


def cancel_one(database: Any, space: ClusterSpace, future_id: UUID, grace: float = 0.0) -> Acted:
    """Cancel a future that hasn't ended; done where it is cancelled now, by this or before. `grace`: seconds that its task has to clean up.

    Raises UnknownFutureError, FutureDeletedError.
    """
    state: FutureState = ask(database, cancel_future, space, future_id, grace=grace)
    if state is not FutureState.failed:
        return Acted(state, False)
    failure = ask(database, describe_future, space, future_id, strategy="off").failure
    return Acted(state, failure is not None and failure.reason == "cancelled")


def retry_one(database: Any, space: ClusterSpace, future_id: UUID) -> Acted:
    """Run a failed future again, with a fresh budget of attempts; done where this did.

    Raises FutureStateError for what has no code (a call of an actor), UnknownFutureError, FutureDeletedError.
    """
    info = ask(database, describe_future, space, future_id, strategy="off")
    retried = info.state is FutureState.failed and ask(database, resubmit_future, space, future_id, info.epoch)
    return Acted(ask(database, get_future_state, space, future_id, strategy="off"), bool(retried), info.epoch + 1)
