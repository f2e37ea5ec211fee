"""Many futures by their ids, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from fdb_datamodel import FutureDeletedError, FutureInfo, UnknownFutureError, describe_future
from fdb_schema import ClusterSpace

DESCRIBED: Final = 50
"""Futures that one transaction reads by their ids."""


def described(tr: Any, space: ClusterSpace, ids: Sequence[bytes]) -> list[FutureInfo]:
    """What is known of each; those that are unknown or deleted are left out."""
    found = []
    for one in ids:
        try:
            found.append(describe_future(tr, space, one))
        except (UnknownFutureError, FutureDeletedError):
            continue
    return found
