"""What every command that looks begins with: a database that is there, an id, and how figures are written."""

from __future__ import annotations

from typing import Any, NoReturn
from uuid import UUID

from fdb_datamodel import ClusterSpace, FutureInfo, describe_future
from fdb_schema import open_database, url_of
from fdb_schema.cli import fail
from fdb_schema.errors import EXIT_NOT_FOUND
from fdb_schema.serving.figures import size
from fdb_schema.serving.figures import timestamp_us as wall
from futures_worker.errors import FutureDeletedError, UnknownFutureError
from idempotent_txn import run


def look_into(db: str | None, cluster: str) -> tuple[Any, ClusterSpace]:
    """The database, which must be there already, and the cluster."""
    return open_database(db, create=False), ClusterSpace(cluster)


def find_future(database: Any, space: ClusterSpace, future_id: UUID) -> FutureInfo:
    """Everything known about a future, or the end of the command."""
    try:
        found: FutureInfo = run(database, describe_future, space, future_id, strategy="off")
    except (UnknownFutureError, FutureDeletedError) as exc:
        not_found(exc)
    return found


def not_found(error: BaseException) -> NoReturn:
    """The end of the command: what it was asked about isn't there."""
    fail(str(error), EXIT_NOT_FOUND)


def nothing(what: str, database: Any, cluster: str) -> str:
    """Why a listing may be empty: the database, made absolute, and the clusters that it has instead."""
    from futures_worker.client.basis.diagnosis import clusters

    others = [name for name in clusters(database) if name != cluster]
    place = url_of(database) or "this database"
    has = f"it has the clusters {', '.join(map(repr, others))}" if others else "it has no other cluster"
    return f"no {what} in cluster {cluster!r} of {place}; {has}"


__all__ = ["find_future", "look_into", "not_found", "nothing", "size", "wall"]
