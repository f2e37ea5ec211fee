"""What a test leaves in a cluster that others go on to use: cancelled, deleted, and forgotten, keys and names of actors with it."""

from __future__ import annotations

from typing import Any, Final

from fdb_datamodel import ClusterSpace, collect, delete_future, list_futures
from fdb_schema import open_database
from idempotent_txn import run

_PAGE: Final = 50
"""Futures of one transaction."""


def erase_futures(url: str, cluster: str) -> None:
    """Cancel and delete every future of a cluster; their ids, and keys, are free for others afterwards."""
    database: Any = open_database(url, create=False)
    space = ClusterSpace(cluster)

    def erase_page(tr: Any) -> int:
        found, _ = list_futures(tr, space, None, _PAGE)
        for info in found:
            delete_future(tr, space, info.id)
        return len(found)

    while run(database, erase_page):  # tasks that still run may submit meanwhile
        pass
    collect(database, space, tombstones=-1.0)  # also those of just now
