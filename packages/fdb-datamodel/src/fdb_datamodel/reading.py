"""Reading the state for people and programs: nothing here writes or unpickles."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from fdb_schema import ClusterSpace, Transaction

from .records import FutureInfo
from .states import FutureState


def get_future_state(tr: Transaction, space: ClusterSpace, future_id: UUID | bytes) -> FutureState:
    """The state, decided from the keys by serializable reads. Raises UnknownFutureError, FutureDeletedError."""
    raise NotImplementedError


def get_future_states(
    tr: Transaction, space: ClusterSpace, ids: Sequence[bytes], snapshot: bool = True
) -> list[FutureState | None]:
    """States of many; None for ids that are unknown or deleted."""
    raise NotImplementedError


def describe_future(tr: Transaction, space: ClusterSpace, future_id: UUID | bytes) -> FutureInfo:
    """Everything known about a future, with the reason for its state, by snapshot. Raises as `get_future_state`."""
    raise NotImplementedError


def list_futures(
    tr: Transaction,
    space: ClusterSpace,
    after: bytes | None = None,
    limit: int = 100,
    state: FutureState | None = None,
) -> tuple[list[FutureInfo], bytes | None]:
    """A page of futures in the order of their ids, and where the next page starts (None: that was the last).

    `state` filters; a page may then be short though more follow. `reason` is left brief.
    """
    raise NotImplementedError
