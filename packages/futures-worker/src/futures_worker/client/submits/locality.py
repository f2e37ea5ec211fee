"""Where a future is to run: near another one's result, or on a worker."""

from __future__ import annotations

from typing import Any

from fdb_datamodel import Locality, WorkerId, find_worker, read_results
from futures_worker.client.basis.options import address_of, split_address
from futures_worker.client.context import ClientContext
from futures_worker.client.future import record_of
from futures_worker.database import ask
from futures_worker.errors import NoWorkerError


def locality_of(context: ClientContext, wanted: Any) -> Locality | None:
    """What the option `locality` means now: a future, a worker, its address, or nothing."""
    if wanted is None or isinstance(wanted, Locality):
        return wanted
    if isinstance(wanted, WorkerId):
        return Locality(wanted)
    if isinstance(wanted, str):
        return Locality(worker_at(context, wanted))
    future_id = record_of(wanted).id
    (result,) = ask(context.db, read_results, context.space, [future_id], strategy="off")
    return Locality(result.worker, reason=future_id) if result is not None and result.worker is not None else None


def worker_at(context: ClientContext, worker: Any) -> WorkerId:
    """The live worker at "ip:port", or of a row of `Client.workers`. Raises NoWorkerError, TypeError."""
    address = address_of(worker)
    if not isinstance(address, str):
        raise TypeError(
            f'a worker is one of `client.workers()`, its address "ip:port" or a WorkerId, found {worker!r:.200}'
        )
    status = ask(context.db, find_worker, context.space, *split_address(address), strategy="off")
    if status is None:
        raise NoWorkerError(
            f"cluster {context.cluster!r} has no live worker at {address}: see `futures-worker workers`"
        )
    return status.id
