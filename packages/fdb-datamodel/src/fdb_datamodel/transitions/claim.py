"""Claiming: one start of a future by one worker, singly by id or in batches from assignments and the pool."""

from __future__ import annotations

from uuid import UUID

from fdb_schema import ClusterSpace, Transaction

from ..records import Claim, Claims, WorkerId
from ..requirements import Capacity


def claim_future(tr: Transaction, space: ClusterSpace, future_id: UUID | bytes, worker: WorkerId) -> Claim:
    """Claim one Unclaimed future (row `claim_future`), whatever it requires.

    Raises FutureStateError if it isn't Unclaimed, UnknownFutureError, FutureDeletedError, WorkerFencedError.
    """
    raise NotImplementedError


def claim_futures(tr: Transaction, space: ClusterSpace, worker: WorkerId, capacity: Capacity, limit: int) -> Claims:
    """Claim up to `limit` futures that fit: the worker's assignments first, then the pool.

    The scan is a snapshot and costs the number of distinct shapes; only the chosen entries are read-conflict keys, so two
    workers conflict only over an entry both chose. The sum of the claims' shapes fits `capacity.free`.

    Raises WorkerFencedError.
    """
    raise NotImplementedError


def claims_of(tr: Transaction, space: ClusterSpace, worker: WorkerId, limit: int = 1000) -> list[Claim]:
    """The claims this incarnation holds: what a worker that lost track (or was pushed to) has to run."""
    raise NotImplementedError
