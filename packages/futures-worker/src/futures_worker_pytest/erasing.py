"""What a test leaves in a cluster that others go on to use: cancelled, deleted, and forgotten, keys and names of actors with it.

Schedules go first, as they would submit into the tests to come.
"""

from __future__ import annotations

from typing import Any, Final

from fdb_datamodel import ClusterSpace, collect, delete_future, list_futures
from fdb_datamodel.coordination.collecting import erase_shared
from fdb_datamodel.transitions.limits import list_limits, set_limit
from fdb_datamodel.transitions.schedules import delete_schedule, list_schedules
from fdb_schema import open_database
from idempotent_txn import run

_PAGE: Final = 50
"""Futures of one transaction."""


def erase_all(url: str, cluster: str) -> None:
    """Cancel and delete every schedule, future, limit, queue, semaphore and event of a cluster; ids, keys and names are free for others afterwards."""
    database: Any = open_database(url, create=False)
    space = ClusterSpace(cluster)
    while schedules := run(database, list_schedules, space):
        for schedule in schedules:
            run(database, delete_schedule, space, schedule.name)

    def erase_page(tr: Any) -> int:
        found, _ = list_futures(tr, space, None, _PAGE)
        for info in found:
            delete_future(tr, space, info.id)
        return len(found)

    while run(database, erase_page):  # tasks that still run may submit meanwhile
        pass
    for limit in run(database, list_limits, space):
        while run(database, set_limit, space, limit.name, None, None):
            pass
    run(database, erase_shared, space)
    collect(database, space, tombstones=-1.0)  # also those of just now
