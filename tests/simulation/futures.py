"""Futures under the simulation: clients that submit, wait, cancel and leave; workers that are killed, stopped and cut off."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any, Final

from futures_worker import Client
from futures_worker.errors import FutureFailedError, WorkerLostError
from simulation import rows, workers
from simulation.machine import Process
from simulation.tasks import Meant, failing, value_of
from simulation.world import CLUSTER, World

_PATIENT: Final = {"max_retries": 10**6, "max_worker_losses": 10**6}


@dataclass
class Asked:
    """A future of a client that lives."""

    handle: Any
    number: int
    fails: bool
    inputs: Sequence[Asked] = ()
    asked_to_cancel: bool = False

    @property
    def may_be_cancelled(self) -> bool:
        """Whether it was asked to be cancelled, or what it takes was."""
        return self.asked_to_cancel or any(one.may_be_cancelled for one in self.inputs)


class Futures:
    """Clients, each with a few futures at a time, and workers."""

    def __init__(self, world: World) -> None:
        chance = world.chance
        self.world = world
        workers.start(world)
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
            known: list[Asked] = []
            while self.left > 0:
                self.left -= 1
                known.append(self._submit(client, known))
                if chance.random() < 0.1:
                    self._cancel(process, chance.choice(known))
                if chance.random() < 0.3:
                    time.sleep(chance.choice((0.001, 0.1, 2.0)))
                if chance.random() < 0.4 or len(known) > 6:
                    self._await(process, known.pop(chance.randrange(len(known))))
            for one in known:
                self._await(process, one)

    def _cancel(self, process: Process, one: Asked) -> None:
        one.asked_to_cancel = True
        try:
            one.handle.cancel()
        except rows.GONE:
            rows.was_silent(process)

    def _submit(self, client: Client, known: list[Asked]) -> Asked:
        chance = self.world.chance
        number, seconds = chance.randrange(1000), chance.choice((0.0, 0.0, 0.01, 0.3, 4.0))
        if chance.random() < 0.1:
            return Asked(client.submit(failing, number, seconds, max_retries=1), number, True)
        inputs = [one for one in known if not one.fails and not one.may_be_cancelled and chance.random() < 0.3][:3]
        size = chance.choice((0, 0, 100, 50_000))
        resources = {"cpu": 1, "ram": 1 << 30} if chance.random() < 0.2 else None
        handle = client.submit(
            value_of, number, seconds, size, [one.handle for one in inputs], resources=resources, **_PATIENT
        )
        return Asked(handle, number + sum(one.number for one in inputs), False, inputs)

    def _await(self, process: Process, one: Asked) -> None:
        try:
            number, _ = rows.patiently(one.handle)
            assert not one.fails and number == one.number, f"{number} is not {one.number}"
        except CancelledError:
            assert one.may_be_cancelled, "cancelled, and nobody asked for it"
        except Meant as meant:
            if not one.fails or str(meant) != f"{one.number}":
                raise AssertionError(f"{meant!r} is not what was drawn") from meant
        except rows.GONE:
            rows.was_silent(process)
        except FutureFailedError as error:
            if one.fails and isinstance(error, WorkerLostError):  # of its few attempts one or two died
                return
            raise AssertionError(f"a future failed that wasn't to: {error}") from error

    def settled(self) -> bool:
        """No client has anything left to ask, and what they held is forgotten."""
        kept = rows.kept(self.world)
        self.world.unsettled = f"{self.left} to be asked, clients {sorted(self.busy)} ask, kept: {kept}"
        return self.left <= 0 and not self.busy and not kept

    def end(self) -> None:
        rows.check(self.world)
