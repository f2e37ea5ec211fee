"""What of the world the stand-ins for workers and their children know."""

from __future__ import annotations

import random
from typing import Any, Final

from futures_worker import liveness
from simulation.descriptors import Stream
from simulation.machine import current_process
from simulation.world import World

URL: Final = "memory:simulated"
"""By which workers and their children open the database."""
CRASH: Final = -11
"""The status of a child that died so."""


class Site:
    """Set for each run."""

    world: World | None = None
    chance: random.Random
    crashes: float = 0.0
    """How probably a child dies in the midst of a task, or of a call."""
    breaks: float = 0.0
    """Seconds after which a connection between clients, workers and actors is lost, in the mean; 0: it isn't."""
    slots = 0
    """Of all workers."""
    servers: dict[tuple[str, int], Any]
    """What listens where."""
    databases: dict[int, Any]
    """By the number of a process."""


def begin(world: World) -> bool:
    """Whether this is a new run, and no other scene's."""
    if Site.world is world:
        return False
    liveness.HEAD = world.chance.choice((1, 16))  # few workers are many then
    Site.world, Site.servers, Site.databases = world, {}, {}
    Site.chance = random.Random(f"{world.seed} site")
    Site.crashes = Site.chance.choice((0.0, 0.0, 0.02, 0.1))
    Site.breaks = Site.chance.choice((0.0, 0.0, 2.0, 20.0))
    return True


def database() -> Any:
    """The database as the process that asks reaches it."""
    process = current_process()
    assert process is not None and Site.world is not None
    if process.number not in Site.databases:
        Site.databases[process.number] = Site.world.database(process)
    return Site.databases[process.number]


def perhaps_break(connection: Stream, other: Stream) -> None:
    """After a while, while not all is calm, one end finds the connection lost, and the other one soon, too."""
    assert Site.world is not None
    world, chance = Site.world, Site.chance
    if Site.breaks:
        first, later = chance.choice((connection, other)), chance.choice((0.0, 0.05, 5.0))
        seconds = chance.expovariate(1 / Site.breaks)
        world.machine.after(seconds, lambda: None if world.calm else first.break_off(later))


def crash() -> None:
    """Perhaps the child process whose strand this is dies now."""
    assert Site.world is not None
    if Site.chance.random() < Site.crashes and not Site.world.calm:
        process: Any = current_process()
        Site.world.machine.block(Site.chance.choice((0.0, 0.05)))
        process.child.end(CRASH)
        Site.world.machine.block(None)


def perhaps_crash_later() -> None:
    """Perhaps it dies soon, in the midst of whatever it does then."""
    assert Site.world is not None
    if Site.chance.random() < Site.crashes and not Site.world.calm:
        process: Any = current_process()
        Site.world.machine.after(Site.chance.choice((0.02, 0.2, 2.0)), lambda: process.child.end(CRASH))
