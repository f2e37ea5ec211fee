"""Everything at once, as on a real cluster: leases, heaps and futures on one database, and janitors beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from lease_locks import Duties, LeaseManager
from mainspring_janitor import cleaning
from simulation.actors import Actors
from simulation.futures import Futures
from simulation.heaps import Heaps
from simulation.leases import Leases
from simulation.machine import Process
from simulation.memos import Memos
from simulation.programs import Programs
from simulation.sharing import Sharing
from simulation.world import CLUSTER, World

SCENES: Final[dict[str, Callable[[World], Any]]] = {
    "leases": Leases,
    "heaps": Heaps,
    "futures": Futures,
    "actors": Actors,
    "programs": Programs,
    "memos": Memos,
    "sharing": Sharing,
}
_EVERY: Final = 5.0
"""Seconds between two rounds of a janitor's duties."""


class Together:
    """What a seed draws of the scenes, two at least."""

    def __init__(self, world: World) -> None:
        names = sorted(world.chance.sample(sorted(SCENES), world.chance.choice((2, 2, 3))))
        self.scenes = [SCENES[name](world) for name in names]
        world.tell(f"there are {', '.join(names)}")
        for _ in range(world.chance.choice((0, 1, 1, 2))):
            world.process("janitor", _clean)

    def settled(self) -> bool:
        return all(scene.settled() for scene in self.scenes)

    def end(self) -> None:
        for scene in self.scenes:
            scene.end()


def _clean(_process: Process, db: Any) -> None:
    with LeaseManager(db, CLUSTER) as locks:
        kept = cleaning.Kept(ids=30.0, leases=60.0, memos=None, memo_bytes=None, runs=600.0, futures=60.0)
        Duties(locks, cleaning.duties_of(db, CLUSTER, locks, kept, _EVERY, once=False)).run()
