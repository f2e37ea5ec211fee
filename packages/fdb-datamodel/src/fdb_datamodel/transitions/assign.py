"""Assignments: futures that should, or must, run on one worker because of an object it holds."""

from __future__ import annotations

from uuid import UUID

from fdb_datamodel.lifecycle.endings import enqueue_or_fail, finish
from fdb_datamodel.lifecycle.placement import dequeue
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.future_rows import FutureRows
from fdb_datamodel.rows.ids import as_id
from fdb_datamodel.rows.records import Locality
from fdb_datamodel.rows.space import REQUIREMENTS
from fdb_schema import ClusterSpace, Transaction


def assign_future(tr: Transaction, space: ClusterSpace, future_id: UUID | bytes, locality: Locality) -> bool:
    """Move an Unclaimed future from the pool to a worker's assignments (row `assign_future`).

    False if the worker isn't live or the future isn't Unclaimed. Again: nothing new. Raises UnknownFutureError,
    FutureDeletedError.
    """
    return _move(tr, space, future_id, locality)


def reassign_future(tr: Transaction, space: ClusterSpace, future_id: UUID | bytes, locality: Locality | None) -> bool:
    """Move an assigned future to another worker, or to the pool (None) (row `reassign_future`).

    False if that worker isn't live or the future is no longer Unclaimed. Raises UnknownFutureError, FutureDeletedError.
    """
    return _move(tr, space, future_id, locality)


def _move(tr: Transaction, space: ClusterSpace, future_id: UUID | bytes, locality: Locality | None) -> bool:
    ch = Changes(tr, space)
    f = ch.load_existing(as_id(future_id))
    if not is_unclaimed(ch, f) or (locality is not None and not ch.is_live(locality.worker)):
        return False
    relocate(ch, f, locality)
    finish(ch)
    return True


def is_unclaimed(ch: Changes, f: FutureRows) -> bool:
    return not f.ended and not f.claimed and not f.backing_off and not ch.has_dependencies(f.e)


def relocate(ch: Changes, f: FutureRows, locality: Locality | None) -> None:
    """Move an Unclaimed future to where it should run now: a live worker, or the pool."""
    dequeue(ch, f)
    shape, priority, _ = f.placement
    ch.put(f, REQUIREMENTS, codec.pack_requirements(shape, priority, locality))
    enqueue_or_fail(ch, f, anywhere=True)
