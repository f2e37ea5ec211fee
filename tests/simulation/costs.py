"""What calls wait for on a cluster, and what services ask that have nothing to do: counted where no clock is the machine's.

`python -m simulation.costs` prints both as JSON. Each message takes exactly a millisecond, whoever sends it: so milliseconds are messages,
one after another. A version to read at is one, as its answer comes with the next that is read; a commit is two.
"""

from __future__ import annotations

import json
import os
import random
import sys

from simulation import stand_ins

if os.environ.get("PYTHONHASHSEED") != "0":
    os.execve(sys.executable, [sys.executable, "-m", "simulation.costs"], os.environ | {"PYTHONHASHSEED": "0"})

stand_ins.install()

# ruff: noqa: E402
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from futures_worker import Client
from futures_worker.worker import service
from lease_locks import Duties, LeaseManager
from mainspring_janitor import cleaning
from s3heap_tender import Heap, HeapStore, Scheduler, SysDb, Tender
from simulation import network, runs, sites, workers
from simulation.machine import Process
from simulation.tasks import value_of
from simulation.world import CLUSTER, Plan, World

assert runs  # which puts the stand-ins in place
PAUSE: Final = 1.3
"""Seconds between two calls: each comes to a cluster that has been idle for a while."""
WARM_SECONDS: Final = 60.0
IDLE_MINUTES: Final = 2


class Still(random.Random):
    """Chance of what workers and connections do: all is quick, and nothing breaks."""

    def uniform(self, _least: float, _most: float) -> float:
        return 0.0001

    def choice(self, choices: Any) -> Any:
        return choices[0]


class Tally:
    """An actor."""

    def __init__(self) -> None:
        self.sum = 0

    def add(self, number: int) -> int:
        self.sum += number
        return self.sum


def quiet_world(seed: int, number: int) -> World:
    """A cluster with so many workers that nothing befalls."""
    world = World(seed, Plan({}, {}, 0.0, 0.0, False))
    sites.begin(world)
    sites.Site.crashes = sites.Site.breaks = 0.0
    sites.Site.chance = Still(seed)
    for _ in range(number):
        world.process("worker", workers.worker_main(service.WorkerConfig(cluster=CLUSTER, slots=2)))
    return world


# --- what calls wait for --------------------------------------------------------------------------------------------------


def waits() -> dict[str, int]:
    """Messages one after another, by call: the least of five, since who beats or looks meanwhile may hold one up."""
    network.QUICK = (0.001, 0.001)
    world = quiet_world(1, 2)
    found: dict[str, int] = {}

    def called(name: str, call: Callable[[], object]) -> None:
        call()
        took = []
        for _ in range(5):
            time.sleep(PAUSE)
            begun = world.machine.now
            call()
            took.append(world.machine.now - begun)
        found[name] = int(min(took) * 1000)

    def client(process: Process, db: Any) -> None:
        sites.Site.databases[process.number] = db
        with LeaseManager(db, CLUSTER) as locks, Client(sites.URL, CLUSTER) as mine:
            locks.acquire("kept")
            actor, jobs, permits, ready = (
                mine.actor(Tally),
                mine.queue("jobs"),
                mine.semaphore("api", 2),
                mine.event("ready"),
            )
            called("submit and result", lambda: mine.submit(value_of, 1, 0.0, 0, []).result())
            called("twenty tasks at once", lambda: [one.result() for one in _submitted(mine, 20)])
            called("a chain of five", lambda: _chain(mine, 5).result())
            called("a call of an actor", lambda: actor.add(1).result())
            called("put", lambda: mine.put(b"value"))
            called("acquire and release of a lease", lambda: locks.acquire("a").release())
            called("put and get of a queue", lambda: (jobs.put(1), jobs.get()))
            called("a permit taken and given back", lambda: permits.acquire() and permits.release())
            called("set and clear of an event", lambda: (ready.set(), ready.clear()))

    world.process("client", client, restarts=False)
    until = world.machine.now + 600.0
    world.machine.run(until, lambda: world.machine.processes[-1].dead, lambda: None)
    return found


def _submitted(client: Client, number: int) -> list[Any]:
    return [client.submit(value_of, 1, 0.0, 0, []) for _ in range(number)]


def _chain(client: Client, length: int) -> Any:
    last: list[Any] = []
    for _ in range(length):
        last = [client.submit(value_of, 1, 0.0, 0, last)]
    return last[0]


# --- what is asked where nothing is to be done ----------------------------------------------------------------------------


def idle() -> dict[str, dict[str, float]]:
    """Transactions, and commits among them, that each service begins in a minute: three workers, two tenders, two schedulers, a janitor,
    a client and a holder of a lease."""
    asked: Counter[str] = Counter()
    commits: Counter[str] = Counter()

    class Counting(network.Network):
        def before_read(self, go_on: network.GoOn) -> None:
            asked[self.process.name] += 1
            super().before_read(go_on)

        def submit(self, transaction: Any, commit: Any) -> None:
            commits[self.process.name] += 1
            super().submit(transaction, commit)

    network.Network = Counting  # type: ignore[misc]
    world = quiet_world(2, 3)

    def tend(_process: Process, db: Any) -> None:
        with SysDb(db, CLUSTER) as sysdb:
            Tender(Heap(HeapStore("memory:idle"), sysdb), sysdb).run()

    def schedule(_process: Process, db: Any) -> None:
        with SysDb(db, CLUSTER) as sysdb:
            Scheduler(Heap(HeapStore("memory:idle"), sysdb), sysdb, lambda *_: None).run()

    def clean(_process: Process, db: Any) -> None:
        with LeaseManager(db, CLUSTER) as locks:
            kept = cleaning.Kept(ids=30.0, leases=60.0, memos=None, memo_bytes=None, runs=600.0, futures=60.0)
            Duties(locks, cleaning.duties_of(db, CLUSTER, locks, kept, 60.0, once=False)).run()

    def client(process: Process, db: Any) -> None:
        sites.Site.databases[process.number] = db
        with Client(sites.URL, CLUSTER):
            time.sleep(1e6)

    def hold(_process: Process, db: Any) -> None:
        with LeaseManager(db, CLUSTER) as locks, locks.lock("kept"):
            time.sleep(1e6)

    for name, main in (("tender", tend), ("scheduler", schedule), ("tender", tend), ("scheduler", schedule)):
        world.process(name, main)
    for name, main in (("janitor", clean), ("client", client), ("holder", hold)):
        world.process(name, main)
    here = world.machine
    here.run(here.now + WARM_SECONDS, lambda: False, lambda: None)
    asked.clear()
    commits.clear()
    here.run(here.now + IDLE_MINUTES * 60.0, lambda: False, lambda: None)
    return {
        process.name: {
            "transactions": asked[process.name] / IDLE_MINUTES,
            "commits": commits[process.name] / IDLE_MINUTES,
        }
        for process in here.processes
    }


if __name__ == "__main__":
    print(json.dumps({"waits": waits(), "idle": idle()}, indent=2))
    sys.stdout.flush()
    os._exit(0)
