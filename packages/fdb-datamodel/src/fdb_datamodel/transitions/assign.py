"""Assignments: futures that should, or must, run on one worker because of an object it holds."""

from __future__ import annotations

from uuid import UUID

from fdb_schema import ClusterSpace, Transaction

from ..records import Locality


def assign_future(tr: Transaction, space: ClusterSpace, future_id: UUID | bytes, locality: Locality) -> bool:
    """Move an Unclaimed future from the pool to a worker's assignments; False if the worker isn't live or it isn't there."""
    raise NotImplementedError


def reassign_future(tr: Transaction, space: ClusterSpace, future_id: UUID | bytes, locality: Locality | None) -> bool:
    """Move an assigned future to another worker, or to the pool (None); False if it is no longer Unclaimed."""
    raise NotImplementedError
