"""Actors under the simulation: clients that make them, share them, call them, cancel calls, leave and kill; workers that die under them."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any, Final

import fdb_datamodel as dm
from fdb_datamodel import ClusterSpace, actors
from fdb_schema import DatabaseUnreachableError
from futures_worker import Client
from futures_worker.client.actors import actor_id
from futures_worker.errors import ActorDiedError, ObjectLostError
from futures_worker.worker.child.task_context import current_task
from idempotent_txn import run
from simulation import workers
from simulation.machine import Process
from simulation.sites import Site
from simulation.stand_ins import machine
from simulation.tasks import Meant, Tally
from simulation.world import CLUSTER, World

_LOOK_SECONDS: Final = 5.0
_GONE: Final = (dm.FutureDeletedError, dm.UnknownFutureError)
_NAMES: Final = ("first", "second")


@dataclass(eq=False)
class Called:
    """A call of a client that lives."""

    handle: Any
    actor: bytes
    number: int
    fails: bool
    size: int
    after: tuple[int, int]
    """Which start of the actor, and how many calls, were told to anybody before this one was made."""
    recorded: bool = False
    asked_to_cancel: bool = False


@dataclass
class Book:
    """What befell all actors of a run."""

    lives: dict[tuple[bytes, int], Life] = field(default_factory=dict)
    applied: dict[int, tuple[bytes, int, int, int]] = field(default_factory=dict)
    """By the number of a call: of which actor, by which start of it, as the how manieth, with which sum."""
    told: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """Of an actor: the latest start and count that were told to anybody."""
    restarts: dict[bytes, int] = field(default_factory=dict)
    """Of an actor whose maker has learnt its id: how often it may start again; -1: always."""
    killed: set[bytes] = field(default_factory=set)


class Life:
    """One start of an actor: what it has been told."""

    book: Book

    def __init__(self) -> None:
        task = current_task()
        assert task is not None
        self.actor, self.attempt = task.id, task.attempt
        self.numbers: list[int] = []
        self.sum = 0
        self.last: dict[int, int] = {}
        _must((self.actor, self.attempt) not in self.book.lives, f"start {self.attempt} of an actor began twice")
        self.book.lives[self.actor, self.attempt] = self

    def apply(self, caller: int, number: int) -> None:
        """A call runs: no other start has run it, and of its client none that was made later has."""
        last = self.last.get(caller, 0)
        _must(number not in self.book.applied, f"call {number} ran twice")
        _must(last < number, f"call {number} ran after {last} of the same client")
        self.last[caller] = number
        self.numbers.append(number)
        self.sum += number
        self.book.applied[number] = self.actor, self.attempt, len(self.numbers), self.sum


def _must(holds: bool, what: str) -> None:
    """A law that is looked at inside a task, whose exceptions end with their callers."""
    if not holds:
        machine().failures.append(what)


class Actors:
    """Clients, each with actors of its own and shared ones, and workers."""

    def __init__(self, world: World) -> None:
        chance = world.chance
        self.world = world
        self.space = ClusterSpace(CLUSTER)
        self.book = Life.book = Book()
        workers.start(world)
        self.left = chance.randint(30, 150)
        self.may_hold_slot = Site.slots > 2
        self.calls = 0
        self.ends: Counter[str] = Counter()
        self.kills = chance.choice((0.0, 0.02))
        self.busy: set[int] = set()
        for _ in range(chance.randint(1, 3)):
            world.process("caller", self.call)
        world.machine.spawn(None, self._look)

    def _look(self) -> None:
        """Every row agrees with the others at any moment: the look takes no time, so nobody comes between."""
        while not self.world.calm:
            self.world.machine.block(_LOOK_SECONDS)
            self.end()

    # --- a client

    def call(self, process: Process, db: Any) -> None:
        chance = self.world.chance
        self.busy.add(process.number)
        process.at_death.append(lambda: self.busy.discard(process.number))
        with Client(db, CLUSTER) as client:
            mine: list[Any] = []
            known: list[Called] = []
            while self.left > 0:
                self.left -= 1
                if not mine or (len(mine) < 3 and chance.random() < 0.1):
                    mine.append(self._actor(client))
                actor = chance.choice(mine)
                known.append(self._call(process, actor))
                if chance.random() < 0.15:
                    self._cancel(chance.choice(known))
                if chance.random() < self.kills:
                    self._kill(client, actor)
                    mine.remove(actor)
                if chance.random() < 0.3:
                    time.sleep(chance.choice((0.001, 0.1, 2.0)))
                if chance.random() < 0.3 or len(known) > 12:
                    self._await(process, known.pop(chance.randrange(len(known))))
            if chance.random() < 0.3:
                return  # it leaves; what was sent runs all the same
            for one in known:
                self._await(process, one)

    def _actor(self, client: Client) -> Any:
        chance = self.world.chance
        restarts = chance.choice((0, 1, -1, -1))
        options: dict[str, Any] = {"max_restarts": restarts}
        if chance.random() < 0.5:
            options["name"] = chance.choice(_NAMES)
        elif self.may_hold_slot and chance.random() < 0.5:
            self.may_hold_slot = False  # others need slots, too, to begin
            options["resources"] = {"cpu": 1}
        actor = client.actor(Tally, chance.choice((0.0, 0.0, 1.0)), **options)
        if "name" not in options:
            self.book.restarts[actor_id(actor)] = restarts
        return actor

    def _call(self, process: Process, actor: Any) -> Called:
        chance, key = self.world.chance, actor_id(actor)
        self.calls += 1
        number, size = self.calls, chance.choice((0, 0, 0, 100, 50_000))
        after = self.book.told.get(key, (0, 0))
        if chance.random() < 0.1:
            return Called(actor.refuse(process.number, number), key, number, True, 0, after)
        seconds = chance.choice((0.0, 0.0, 0.0, 0.01, 0.3, 4.0))
        made = Called(actor.add(process.number, number, seconds, size), key, number, False, size, after)
        if chance.random() < 0.1:
            made.recorded = True
            made.handle.id
        return made

    def _cancel(self, one: Called) -> None:
        one.asked_to_cancel = True
        try:
            one.handle.cancel()
        except _GONE:
            pass

    def _kill(self, client: Client, actor: Any) -> None:
        self.book.killed.add(actor_id(actor))
        try:
            client.kill_actor(actor)
        except _GONE:
            pass

    def _await(self, process: Process, one: Called) -> None:
        try:
            value = self._patiently(one.handle)
            self._check(one, value)
            ran = "answered"
        except CancelledError:
            ran = "cancelled"
            assert one.asked_to_cancel, "cancelled, and nobody asked for it"
            assert one.number not in self.book.applied or one.recorded, f"call {one.number} was cancelled, and ran"
        except Meant as meant:
            ran = "raised"
            if not one.fails or str(meant) != f"{one.number}":
                raise AssertionError(f"{meant!r} is not what was drawn") from meant
        except ObjectLostError:
            ran = "lost its answer"
            assert one.size > 1000, "a small answer was lost"
        except ActorDiedError as error:
            ran = "lost"
            self._may_be_lost(one, error)
        except _GONE:
            ran = "deleted"
            assert process.silent > workers.SESSION_TTL / 2, "deleted in the hands of its client"
        self.ends[ran] += 1
        self.world.machine.note(f"{one.number} {ran}".encode())

    def _may_be_lost(self, one: Called, error: ActorDiedError) -> None:
        """An actor dies where something befell it, and nowhere else."""
        if self.world.befallen or Site.crashes or one.actor in self.book.killed:
            return
        raise AssertionError(f"call {one.number} was lost, and nothing befell its actor: {error}") from error

    def _check(self, one: Called, value: Any) -> None:
        """What a call was answered is what it did; nothing that was told before it was made is undone by it."""
        attempt, count, total, data = value
        assert not one.fails and len(data) == one.size, f"call {one.number} has another's answer"
        found = self.book.applied[one.number]
        assert found == (one.actor, attempt, count, total), f"call {one.number}: {value[:3]} is told, {found} was done"
        assert (attempt, count) > one.after, f"call {one.number} ran as {attempt, count}, before {one.after}"
        self.book.told[one.actor] = max((attempt, count), self.book.told.get(one.actor, (0, 0)))

    def _patiently(self, handle: Any) -> Any:
        while True:
            try:
                return handle.result(timeout=600)
            except DatabaseUnreachableError:
                continue  # what was submitted is kept, and waiting goes on where it ended

    # --- the end

    def settled(self) -> bool:
        """No client has anything left to ask, shared actors are ended, and what there was is forgotten."""
        if self.left > 0 or self.busy:
            self.world.unsettled = f"{self.left} to be asked, clients {sorted(self.busy)} call actors"
            return False
        for name in _NAMES:
            run(self.world.db, self._end_named, name)
        rows, _ = run(self.world.db, lambda tr: dm.list_futures(tr, self.space, limit=10))
        self.world.unsettled = f"all clients have left, and there are still {rows}"
        return not rows

    def _end_named(self, tr: Any, name: str) -> None:
        found = actors.named_actor(tr, self.space, name)
        if found is not None:
            dm.cancel_future(tr, self.space, found, dm.Failure("cancelled", "the simulation ends"))

    def end(self) -> None:
        problems = dm.validate(self.world.db, self.space)
        assert problems == [], problems
        if self.world.calm:
            ran, starts = len(self.book.applied), len(self.book.lives)
            self.world.tell(
                f"{self.calls} calls, {ran} ran, in {starts} starts of actors; of those awaited {dict(self.ends)}"
            )
        for key, most in self.book.restarts.items():
            starts = sum(actor == key for actor, _ in self.book.lives)
            assert most < 0 or starts <= most + 1, f"an actor started {starts} times, which may restart {most} times"
