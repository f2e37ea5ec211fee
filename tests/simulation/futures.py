"""Futures under the simulation: clients that submit, wait, cancel and leave; workers that are killed, stopped and cut off."""

from __future__ import annotations

import time
from typing import Any

from fdb_datamodel.transitions.limits import list_limits
from futures_worker import Client
from idempotent_txn import run
from simulation import rows, workers
from simulation.attempts import LIMITS, Attempts, Book
from simulation.machine import Process
from simulation.sites import Site
from simulation.wishes import Wish, Wishes
from simulation.world import CLUSTER, World


class Futures:
    """Clients, each with a few futures at a time, and workers."""

    def __init__(self, world: World) -> None:
        chance = world.chance
        self.world = world
        Book.attempts = Attempts(world)
        workers.start(world)
        self.wishes = Wishes(world)
        self.left = chance.randint(30, 120)
        self.busy: set[int] = set()
        for _ in range(chance.randint(1, 2)):
            world.process("client", self.ask)
        rows.check_often(world)

    def ask(self, process: Process, db: Any) -> None:
        chance = self.world.chance
        self.busy.add(process.number)
        process.at_death.append(lambda: self.busy.discard(process.number))
        with Client(db, CLUSTER) as client:
            for name, limit in LIMITS.items():
                client.limit(name, **limit)  # type: ignore[arg-type]
            known: list[Wish] = []
            while self.left > 0:
                self.left -= 1
                known.append(self.wishes.submit(process, client, known))
                if known[-1].kind in ("parent", "cleaning") and chance.random() < 0.3:
                    time.sleep(1.0)  # it has begun by then, perhaps
                    self.wishes.cancel(process, known[-1])
                elif chance.random() < 0.1:
                    self.wishes.cancel(process, chance.choice(known))
                if chance.random() < 0.1:
                    self.wishes.copy(client, chance.choice(known))
                if chance.random() < 0.3:
                    time.sleep(chance.choice((0.001, 0.1, 2.0)))
                if chance.random() < 0.4 or len(known) > 6:
                    self._await(process, known.pop(chance.randrange(len(known))))
            for one in known:
                self._await(process, one)

    def _await(self, process: Process, one: Wish) -> None:
        try:
            for child in one.returned(rows.patiently(one.handle)):
                self._await(process, child)
        except rows.GONE:
            if one.shared is None or not (one.shared.again or one.shared.was_forsaken()):
                rows.was_silent(process)
        except AssertionError:
            raise
        except Exception as error:
            one.failed(self.world, error)
        if one.shared is not None:
            one.shared.holders.remove(process)

    def settled(self) -> bool:
        """No client has anything left to ask, and what they held is forgotten."""
        kept = rows.kept(self.world)
        self.world.unsettled = f"{self.left} to be asked, clients {sorted(self.busy)} ask, kept: {kept}"
        return self.left <= 0 and not self.busy and not kept

    def end(self) -> None:
        rows.check(self.world)
        Book.attempts.check(may_crash=Site.crashes > 0)
        held = [one for one in run(self.world.db, lambda tr: list_limits(tr, rows.SPACE)) if one.held or one.queued]
        assert not held, f"all have ended, and limits have {held}"
