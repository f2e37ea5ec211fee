"""Leases under the simulation: at no moment do two believe that they hold one, and nothing is lost between them."""

from __future__ import annotations

import time
from typing import Any

from idempotent_txn import TransactionTimedOut, run
from lease_locks import LeaseManager
from lease_locks.errors import AcquireTimeout
from lease_locks.grants.errors import LeaseLost
from lease_locks.grants.states import Belief
from simulation.machine import Process
from simulation.world import CLUSTER, World


class Leases:
    """Processes that count under leases: read in one transaction, written in the next."""

    def __init__(self, world: World) -> None:
        chance = world.chance
        self.world = world
        self.names = [f"lease-{number}" for number in range(chance.randint(1, 3))]
        self.ttl = chance.choice((1.0, 3.0, 15.0))
        self.counted = dict.fromkeys(self.names, 0)
        """Increments that certainly took place."""
        self.maybe = dict.fromkeys(self.names, 0)
        self.asked = 0
        self.wanted = chance.randint(20, 60)
        self.held: dict[int, tuple[Process, Any, str]] = {}
        for _ in range(chance.randint(2, 5)):
            world.process("holder", self.main)
        world.laws.append(self.law)

    def main(self, process: Process, db: Any) -> None:
        chance = self.world.chance
        with LeaseManager(db, CLUSTER, ttl=self.ttl) as manager:
            while self.asked < self.wanted:
                self.asked += 1
                name = chance.choice(self.names)
                try:
                    lease = manager.acquire(name, timeout=chance.choice((1.0, 10.0, 60.0)))
                except (AcquireTimeout, TransactionTimedOut):
                    continue
                self.hold(process, db, lease, name)

    def hold(self, process: Process, db: Any, lease: Any, name: str) -> None:
        chance, key = self.world.chance, b"counter/" + name.encode()
        self.held[id(lease)] = process, lease, name
        sure = False
        try:
            for _ in range(chance.randint(1, 3)):
                sure = False
                value = int(run(db, lambda tr: tr.get(key).value or b"0"))
                time.sleep(chance.choice((0.0, 0.01, self.ttl / 2, self.ttl * 1.5)))
                lease.check()
                self.maybe[name] += 1

                def write(tr: Any, value: int = value) -> None:
                    lease.guard(tr)
                    tr.set(key, b"%d" % (value + 1))

                run(db, write, timeout=chance.choice((None, 5.0)))
                sure = True
                self.counted[name] += 1
            lease.release()
        except (LeaseLost, TransactionTimedOut) as error:
            self.world.tell(f"{process.name} lost {name}: {type(error).__name__}, {sure}")
        finally:
            self.held.pop(id(lease), None)

    def law(self) -> None:
        """Of all who believe to hold a lease now, each by his own clock, there is one at most."""
        if len(self.held) < 2:
            return
        believing: dict[str, Process] = {}
        for process, lease, name in self.held.values():
            if (
                not process.dead
                and process.stopped_until <= self.world.machine.now
                and _believes(self.world, process, lease)
            ):
                other = believing.setdefault(name, process)
                assert other is process, f"{other.name} and {process.name} both hold {name}: " + ", ".join(
                    f"{one.name} {held.token.hex} for {held.part.holding.remaining(self.world.machine.boottime(one)):.3f} s"
                    for one, held, of in self.held.values()
                    if of == name
                )

    def settled(self) -> bool:
        return self.asked >= self.wanted and not any(not process.dead for process, *_ in self.held.values())

    def end(self) -> None:
        for name in self.names:
            value = int(run(self.world.db, lambda tr, name=name: tr.get(b"counter/" + name.encode()).value or b"0"))
            assert self.counted[name] <= value <= self.maybe[name], (
                f"{name} was counted to {value}, by {self.counted[name]} to {self.maybe[name]} increments"
            )


def _believes(world: World, process: Process, lease: Any) -> bool:
    """Asked without taking a lock, which a strand of the process may hold just now."""
    holding = lease.part.holding
    return holding.state is Belief.HELD and holding.remaining(world.machine.boottime(process)) > 0
