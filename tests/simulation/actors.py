"""Actors under the simulation: clients that make them, share them, call them, cancel calls, leave and kill; workers that die under them."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any, Final

import fdb_datamodel as dm
from fdb_datamodel import actors
from futures_worker import Client
from futures_worker.client.actors import actor_id
from futures_worker.errors import ActorDiedError, ObjectLostError, UpstreamDependencyFailedException
from futures_worker.worker.child.task_context import current_task
from idempotent_txn import run
from simulation import rows, workers
from simulation.machine import Process
from simulation.sites import Site
from simulation.stand_ins import machine
from simulation.tasks import Crowd, Meant, Tally, visit
from simulation.world import CLUSTER, World

_NAMES: Final = {"first": -1, "second": 1}
"""Of shared actors, and how often each may start again."""
_CALM_SECONDS: Final = 60.0


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
    calls: int = 0


class Called:
    """A call: by its number, which rises, it is known."""

    handle: Any
    fails = recorded = asked_to_cancel = may_run_and_be_cancelled = False
    given: Called | None = None
    """What it takes as an argument."""

    def __init__(self, book: Book, actor: bytes, size: int = 0) -> None:
        self.book, self.actor, self.size = book, actor, size
        book.calls += 1
        self.number = book.calls
        self.after = book.told.get(actor, (0, 0))
        """Which start of the actor, and how many calls, were told to anybody before this one was made."""

    def take(self, value: Any) -> None:
        """What it was answered is what it did; nothing that was told before it was made is undone by it."""
        attempt, count, total, data, given = value
        _must(not self.fails and len(data) == self.size, f"call {self.number} has another's answer")
        found = self.book.applied.get(self.number)
        _must(
            found == (self.actor, attempt, count, total), f"call {self.number}: {value[:3]} is told, {found} was done"
        )
        _must((attempt, count) > self.after, f"call {self.number} ran as {attempt, count}, before {self.after}")
        self.book.told[self.actor] = max((attempt, count), self.book.told.get(self.actor, (0, 0)))
        if self.given is not None:
            _must(given == self.book.applied[self.given.number][1:], f"call {self.number} was given {given}")


@dataclass
class Visiting:
    """A task that calls an actor."""

    handle: Any
    actor: bytes
    times: int


class Life:
    """One start of an actor: what it has been told."""

    book: Book

    def __init__(self, ordered: bool) -> None:
        self.ordered = ordered
        task = current_task()
        assert task is not None
        self.actor, self.attempt = task.id, task.attempt
        self.numbers: list[int] = []
        self.sum = 0
        self.last: dict[int, int] = {}
        _must((self.actor, self.attempt) not in self.book.lives, f"start {self.attempt} of an actor began twice")
        self.book.lives[self.actor, self.attempt] = self

    def apply(self, caller: int, number: int) -> tuple[int, int, int]:
        """A call runs: no other start has run it, and of its client none that was made later has."""
        last = self.last.get(caller, 0)
        _must(number not in self.book.applied, f"call {number} ran twice")
        _must(last < number or not self.ordered, f"call {number} ran after {last} of the same client")
        self.last[caller] = number
        self.numbers.append(number)
        self.sum += number
        told = self.attempt, len(self.numbers), self.sum
        self.book.applied[number] = self.actor, *told
        return told


def _must(holds: bool, what: str) -> None:
    """A law that is looked at inside a task, whose exceptions end with their callers."""
    if not holds:
        machine().failures.append(what)


class Actors:
    """Clients, each with actors of its own and shared ones, and workers."""

    def __init__(self, world: World) -> None:
        chance = world.chance
        self.world = world
        self.book = Life.book = Book()
        workers.start(world)
        self.left = chance.randint(30, 150)
        self.may_hold_slot = Site.slots > 2
        self.ends: Counter[str] = Counter()
        self.kills = chance.choice((0.0, 0.02))
        self.busy: set[int] = set()
        self.crowds: set[bytes] = set()
        for _ in range(chance.randint(1, 3)):
            world.process("caller", self.call)
        rows.check_often(world)

    # --- a client

    def call(self, process: Process, db: Any) -> None:
        chance = self.world.chance
        self.busy.add(process.number)
        process.at_death.append(lambda: self.busy.discard(process.number))
        with Client(db, CLUSTER) as client:
            mine: list[Any] = []
            known: list[Called | Visiting] = []
            while self.left > 0:
                self.left -= 1
                if not mine or (len(mine) < 3 and chance.random() < 0.1):
                    mine.append(self._actor(client))
                actor = chance.choice(mine)
                if chance.random() < 0.05:
                    known.append(self._visit(client, actor))
                    continue
                try:
                    for _ in range(chance.choice((1, 1, 1, 1, 10))):
                        known.append(self._call(process, actor, known))
                except rows.GONE:  # its actor, or that of an argument
                    rows.was_silent(process)
                    continue
                last = known[-1]
                if chance.random() < 0.15 and isinstance(last, Called):
                    self._cancel(client, last)
                if chance.random() < self.kills:
                    self._kill(client, actor)
                    mine.remove(actor)
                if chance.random() < 0.3:
                    time.sleep(chance.choice((0.001, 0.1, 2.0)))
                while known and (chance.random() < 0.3 or len(known) > 20):
                    self._await(process, known.pop(chance.randrange(len(known))))
            if chance.random() < 0.3:
                return  # it leaves; what was sent runs all the same
            for one in known:
                self._await(process, one)
            self._call_in_calm(process, mine)

    def _call_in_calm(self, process: Process, mine: list[Any]) -> None:
        """Whatever befell it: when all has been calm for a while, an actor that starts again however often it must takes calls."""
        while not self.world.calm:
            time.sleep(rows.LOOK_SECONDS)
        time.sleep(_CALM_SECONDS)
        for actor in mine:
            try:
                ran = self._end_of(process, self._call(process, actor, []))
            except rows.GONE:
                rows.was_silent(process)
                continue
            key = actor_id(actor)
            dies = self.book.restarts[key] >= 0 or key in self.book.killed or process.silent > workers.SESSION_TTL / 2
            assert ran in ("answered", "raised") or dies, f"an actor was called in calm, and the call was {ran}"

    def _actor(self, client: Client) -> Any:
        chance = self.world.chance
        restarts = chance.choice((0, 1, -1, -1))
        options: dict[str, Any] = {}
        if chance.random() < 0.5:
            options["name"] = name = chance.choice(list(_NAMES))
            restarts = _NAMES[name]
        elif self.may_hold_slot and chance.random() < 0.5:
            self.may_hold_slot = False  # others need slots, too, to begin
            options["resources"] = {"cpu": 1}
        kind = Tally
        if "name" not in options and chance.random() < 0.3:
            kind, options["concurrency"] = Crowd, chance.choice((2, 4))
        actor = client.actor(kind, chance.choice((0.0, 0.0, 1.0)), max_restarts=restarts, **options)
        self.book.restarts[actor_id(actor)] = restarts
        if kind is Crowd:
            self.crowds.add(actor_id(actor))
        return actor

    def _call(self, process: Process, actor: Any, known: list[Called | Visiting]) -> Called:
        chance = self.world.chance
        made = Called(self.book, actor_id(actor), chance.choice((0, 0, 0, 100, 50_000)))
        kind = chance.random()
        if kind < 0.1:
            made.fails = True
            made.handle = actor.refuse(process.number, made.number)
            return made
        seconds = chance.choice((0.0, 0.0, 0.0, 0.01, 0.3, 4.0))
        others = [one for one in known if isinstance(one, Called) and not one.fails and not one.asked_to_cancel]
        if kind < 0.2 and others:
            made.given = chance.choice(others)
        given = made.given and made.given.handle
        made.may_run_and_be_cancelled = made.actor in self.crowds and chance.random() < 0.7
        method = actor.post if made.may_run_and_be_cancelled else actor.add
        made.handle = method(process.number, made.number, seconds, made.size, given)
        if chance.random() < 0.1:
            made.recorded = made.may_run_and_be_cancelled = True
            made.handle.id
        return made

    def _visit(self, client: Client, actor: Any) -> Visiting:
        times = self.world.chance.choice((1, 2, 10))
        handle = client.submit(visit, actor, times, retry_on=(), max_retries=10**6, max_worker_losses=10**6)
        return Visiting(handle, actor_id(actor), times)

    def _cancel(self, client: Client, one: Called) -> None:
        one.asked_to_cancel = True
        try:
            if one.recorded and self.world.chance.random() < 0.5:
                client.get_future(one.handle.id).cancel()
            else:
                one.handle.cancel()
        except rows.GONE:
            pass

    def _kill(self, client: Client, actor: Any) -> None:
        self.book.killed.add(actor_id(actor))
        try:
            client.kill_actor(actor)
        except rows.GONE:
            pass

    def _await(self, process: Process, one: Called | Visiting) -> None:
        ran = self._end_of(process, one)
        self.ends[ran] += 1
        self.world.machine.note(ran.encode())

    def _end_of(self, process: Process, one: Called | Visiting) -> str:
        """How it ended; only as it may."""
        try:
            return self._told_end_of(process, one)
        except rows.GONE:
            rows.was_silent(process)
            return "deleted"
        except ActorDiedError as error:
            self._may_be_lost(one, error)
            return "lost"

    def _told_end_of(self, process: Process, one: Called | Visiting) -> str:
        if isinstance(one, Visiting):
            assert rows.patiently(one.handle) == one.times
            return "visited"
        try:
            one.take(rows.patiently(one.handle))
            return "answered"
        except UpstreamDependencyFailedException as error:
            if "none of them can go on" in str(
                error
            ):  # two actors, each with a call that waits for one behind the other's
                return "deadlocked"
            if one.given is None or self._end_of(process, one.given) == "answered":
                rows.was_silent(process)
            return "not begun"
        except CancelledError:
            assert one.asked_to_cancel, "cancelled, and nobody asked for it"
            assert one.number not in self.book.applied or one.may_run_and_be_cancelled, (
                f"call {one.number} was cancelled, and ran"
            )
            return "cancelled"
        except Meant as meant:
            if not one.fails or str(meant) != f"{one.number}":
                raise AssertionError(f"{meant!r} is not what was drawn") from meant
            return "raised"
        except ObjectLostError:
            assert one.size > 1000, "a small answer was lost"
            return "lost its answer"

    def _may_be_lost(self, one: Called | Visiting, error: ActorDiedError) -> None:
        """An actor dies where something befell it, and nowhere else."""
        if self.world.befallen or Site.crashes or Site.breaks or one.actor in self.book.killed:
            return
        raise AssertionError(f"a call was lost, and nothing befell its actor: {error}") from error

    # --- the end

    def settled(self) -> bool:
        """No client has anything left to ask, shared actors are ended, and what there was is forgotten."""
        if self.left > 0 or self.busy:
            self.world.unsettled = f"{self.left} to be asked, clients {sorted(self.busy)} call actors"
            return False
        for name in _NAMES:
            run(self.world.db, self._end_named, name)
        kept = rows.kept(self.world)
        self.world.unsettled = f"all clients have left, and there are still {kept}"
        return not kept

    def _end_named(self, tr: Any, name: str) -> None:
        found = actors.named_actor(tr, rows.SPACE, name)
        if found is not None:
            dm.cancel_future(tr, rows.SPACE, found, dm.Failure("cancelled", "the simulation ends"))

    def end(self) -> None:
        rows.check(self.world)
        if self.world.calm:
            ran, starts = len(self.book.applied), len(self.book.lives)
            self.world.tell(
                f"{self.book.calls} calls, {ran} ran, in {starts} starts of actors; of those awaited {dict(self.ends)}"
            )
        for key, most in self.book.restarts.items():
            starts = sum(actor == key for actor, _ in self.book.lives)
            assert most < 0 or starts <= most + 1, f"an actor started {starts} times, which may restart {most} times"
