"""Results: copies, moves and deletion of stored objects, puts, and reconstruction of what was lost."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from fdb_schema import ClusterSpace, Transaction

from ..records import FutureResult, FutureSpec, WorkerId


def read_results(tr: Transaction, space: ClusterSpace, ids: Sequence[bytes]) -> list[FutureResult | None]:
    """The latest result of each future, by snapshot; None for one that isn't Realized."""
    raise NotImplementedError


def live_copies(tr: Transaction, space: ClusterSpace, future_id: UUID | bytes) -> list[FutureResult]:
    """The stored copies that can be fetched: inline, or held by a live incarnation (serializable reads).

    Rows of dead incarnations are deleted on the way.
    """
    raise NotImplementedError


def clone_result(tr: Transaction, space: ClusterSpace, future_id: UUID | bytes, copy: FutureResult) -> bool:
    """Register a further copy, held by `copy.worker`, under the original token; False if the result changed since.

    `copy.token` must be the token of the result that was copied. Raises WorkerFencedError, UnknownFutureError.
    """
    raise NotImplementedError


def transfer_result(
    tr: Transaction, space: ClusterSpace, future_id: UUID | bytes, source: WorkerId, copy: FutureResult
) -> bool:
    """Move a copy: register `copy` and forget `source`'s, which is mailed to free it; False if it changed since."""
    raise NotImplementedError


def drop_copy(tr: Transaction, space: ClusterSpace, future_id: UUID | bytes, worker: WorkerId) -> None:
    """Forget the copy that `worker` no longer has."""
    raise NotImplementedError


def put_realized_future(
    tr: Transaction, space: ClusterSpace, spec: FutureSpec, worker: WorkerId | None, result: FutureResult | bytes
) -> UUID:
    """Register an object as a realized future without code (row `put_realized_future`), with a synthetic claim.

    `worker` None: inline results of a client. Never reconstructed. Raises WorkerFencedError.
    """
    raise NotImplementedError


def resubmit_future(tr: Transaction, space: ClusterSpace, future_id: UUID | bytes, epoch: int) -> bool:
    """Run a Realized or Failed future anew, in epoch + 1 (row `resubmit_future`); False unless `epoch` is the current one
    and the future has ended.

    `epoch` is the one the caller saw the loss or failure in. A future whose result may not be reconstructed fails
    ("object-lost") if it was Realized, so do those over `max_reconstructions`.
    """
    raise NotImplementedError


def recover_result(tr: Transaction, space: ClusterSpace, future_id: UUID | bytes, epoch: int) -> FutureResult | None:
    """A copy of the result that can be fetched; None after resubmitting the future because there is none (or unfinished).

    `epoch` as in `resubmit_future`. Raises UnknownFutureError, FutureDeletedError.
    """
    raise NotImplementedError


def delete_future(tr: Transaction, space: ClusterSpace, future_id: UUID | bytes) -> list[FutureResult]:
    """Delete a future and its results (row `delete_future`); a tombstone stays. The copies, whose holders were mailed.

    Unfinished ones are cancelled first. Again: nothing. Raises UnknownFutureError.
    """
    raise NotImplementedError
