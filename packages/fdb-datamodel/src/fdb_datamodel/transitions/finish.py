"""Ends of claims: realize, fail, relinquish, miss inputs; and a worker's turn, which does all at once and claims next."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from fdb_schema import ClusterSpace, Transaction

from ..records import Claim, Claims, Failure, FutureResult, Outcome, WorkerId
from ..requirements import Capacity
from ..states import FutureState


def finish_turn(
    tr: Transaction,
    space: ClusterSpace,
    worker: WorkerId,
    outcomes: Sequence[Outcome],
    capacity: Capacity,
    limit: int,
) -> Claims:
    """One turn of a worker, one transaction: write outcomes, settle edges, mail waiters, claim up to `limit` futures.

    Futures unblocked by an outcome are claimed first if they fit. `capacity` is what is free after the outcomes. Outcomes
    whose claim was lost are dropped and named in `.stale`. With `limit` 0 nothing is claimed.

    Raises WorkerFencedError: the incarnation was declared dead; none of its outcomes counts.
    """
    raise NotImplementedError


def realize_future(tr: Transaction, space: ClusterSpace, claim: Claim, result: FutureResult | bytes) -> None:
    """The claim's future has its result (row `realize_future`): bytes are stored inline.

    Again with the same claim: nothing. Raises ClaimLostError, WorkerFencedError, OversizeError (inline over 90 kB).
    """
    raise NotImplementedError


def realize_futures(
    tr: Transaction, space: ClusterSpace, results: Sequence[tuple[Claim, FutureResult | bytes]]
) -> list[bytes]:
    """Realize a batch of claims of one worker; the ids whose claim was lost (dropped, not raised)."""
    raise NotImplementedError


def fail_future(
    tr: Transaction,
    space: ClusterSpace,
    claim: Claim,
    error: Failure | BaseException | str,
    permanently: bool = False,
) -> FutureState:
    """The attempt failed (row `fail_future`); the state it leads to.

    Failed where `permanently` or the budget that `error.reason` is charged to is used up; else Waiting for its back-off,
    or Unclaimed. Again with the same claim: the state it led to. Raises ClaimLostError, WorkerFencedError.
    """
    raise NotImplementedError


def relinquish_claim(tr: Transaction, space: ClusterSpace, claim: Claim, reason: str = "drained") -> FutureState:
    """Give the claim back unfinished (row `relinquish_claim`); the state it leads to.

    Only reason "worker-lost" counts against a budget. Raises ClaimLostError.
    """
    raise NotImplementedError


def cancel_future(
    tr: Transaction, space: ClusterSpace, future_id: UUID | bytes, failure: Failure | None = None
) -> FutureState:
    """Fail an unfinished future for good (row `cancel_future`), by default with reason "cancelled"; its state now.

    A Realized or Failed future is left as it is. A running one's worker is told by its mailbox ("cancel"); its outcome,
    if it comes, is stale. Raises UnknownFutureError, FutureDeletedError.
    """
    raise NotImplementedError
