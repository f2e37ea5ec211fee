"""What scenes whose clients hold futures share: the rows that there are, what may have become of them, and how one waits for an end."""

from __future__ import annotations

from typing import Any, Final

import fdb_datamodel as dm
from fdb_datamodel import ClusterSpace
from fdb_schema import DatabaseUnreachableError
from idempotent_txn import run
from simulation import workers
from simulation.machine import Process
from simulation.world import CLUSTER, World

SPACE: Final = ClusterSpace(CLUSTER)
LOOK_SECONDS: Final = 5.0
GONE: Final = (dm.FutureDeletedError, dm.UnknownFutureError)


def check(world: World) -> None:
    """Every row agrees with the others."""
    problems = dm.validate(world.db, SPACE)
    assert problems == [], problems


def check_often(world: World) -> None:
    """At any moment, until all is calm: a look takes no time, so nobody comes between."""

    def look() -> None:
        while not world.calm:
            world.machine.block(LOOK_SECONDS)
            check(world)

    world.machine.spawn(None, look)


def kept(world: World) -> list[Any]:
    """The first of the futures that there are."""
    return run(world.db, lambda tr: dm.list_futures(tr, SPACE, limit=10))[0]


def was_silent(process: Process) -> None:
    """A client that gives no sign of life for its ttl is taken for dead, and what it held is collected; no other is."""
    assert process.silent > workers.SESSION_TTL / 2, "deleted in the hands of its client"


def patiently(handle: Any) -> Any:
    """How it ended, however often the database can't be reached."""
    while True:
        try:
            return handle.result(timeout=600)
        except DatabaseUnreachableError:
            continue  # what was submitted is kept, and waiting goes on where it ended
