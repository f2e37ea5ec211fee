"""Queues, semaphores and events under the simulation: processes that put, take, hold and wait; they die and stop meanwhile."""

from __future__ import annotations

import itertools
import queue
import time
from dataclasses import dataclass, field
from typing import Any, Final

from fdb_datamodel import ClaimLostError
from futures_worker import Client
from simulation import rows, workers
from simulation.attempts import AFTER_TROUBLE
from simulation.machine import Process
from simulation.stand_ins import machine
from simulation.tasks import Meant
from simulation.world import CLUSTER, World

_QUEUES: Final = {"narrow": 2, "wide": 0}
_GATES: Final = {"one": 1, "three": 3}
_EVENTS: Final = 5


@dataclass(eq=False, repr=False)
class Call:
    """Something that a process asked of a queue."""

    process: Process
    kind: str
    queue: str
    begun: float
    ended: float = 0.0
    """0: nobody was told what came of it."""
    items: list[int] = field(default_factory=list)
    gives_back: bool = False
    silent: float = 0.0
    """For how long its process had been silent before."""

    def __repr__(self) -> str:
        ended = f"{self.ended:.3f}" if self.ended else "?"
        return f"{self.process.name} {self.kind} {self.items} of {self.queue}, {self.begun:.3f} to {ended} s"

    @property
    def trusted(self) -> bool:
        """Whether its process can't have been taken for dead since it began."""
        last = max(self.process.stopped_until, self.process.cut_off_until)
        quiet = last + AFTER_TROUBLE < self.begun or not last
        return not self.process.dead and (quiet or self.process.silent - self.silent < workers.SESSION_TTL / 4)


class Sharing:
    """Processes that share what has a name."""

    def __init__(self, world: World) -> None:
        chance = world.chance
        self.world = world
        workers.start(world)
        self.numbers = itertools.count(1)
        self.left = chance.randint(50, 250)
        self.calls: list[Call] = []
        self.done: dict[int, Call] = {}
        """Items that are out of their queue for good, by whom."""
        self.holders: dict[str, list[Call]] = {name: [] for name in _GATES}
        self.set: dict[int, tuple[float, float]] = {}
        """Events: when they were begun to be set, and when that was done."""
        self.busy: set[int] = set()
        for _ in range(chance.randint(2, 5)):
            world.process("sharer", self.share)
        rows.check_often(world)

    def share(self, process: Process, db: Any) -> None:
        chance = self.world.chance
        self.busy.add(process.number)
        process.at_death.append(lambda: self.busy.discard(process.number))
        with Client(db, CLUSTER) as client:
            while self.left > 0 or not self._empty(client):
                self.left -= 1
                ways = (self._put, self._get, self._take, self._hold, self._await_event)
                weights = (4, 2, 2, 3, 1) if self.left > 0 else (0, 2, 1, 0, 0)
                chance.choices(ways, weights)[0](process, client)
                if chance.random() < 0.3:
                    time.sleep(chance.choice((0.001, 0.1, 2.0)))

    def _empty(self, client: Client) -> bool:
        """Whether nothing is left in any queue, and nothing may come back."""
        taken = [one for one in self.calls if one.kind == "take" and not one.ended and not one.process.dead]
        return not taken and all(client.queue(name).empty() for name in _QUEUES)

    # --- queues

    def _call(self, process: Process, client: Client, kind: str) -> tuple[Any, Call]:
        name = self.world.chance.choice(list(_QUEUES))
        made = Call(process, kind, name, machine().now, silent=process.silent)
        self.calls.append(made)
        return client.queue(name, _QUEUES[name]), made

    def _put(self, process: Process, client: Client) -> None:
        chance = self.world.chance
        of, call = self._call(process, client, "put")
        call.items = [next(self.numbers) for _ in range(chance.choice((1, 1, 1, 3)))]
        try:
            of.put_many(call.items, timeout=chance.choice((0.0, 1.0, 20.0)))
            call.ended = machine().now
        except queue.Full:
            pass  # some of them may be there

    def _get(self, process: Process, client: Client) -> None:
        chance = self.world.chance
        of, call = self._call(process, client, "get")
        try:
            call.items = of.get_many(chance.choice((1, 1, 1, 4)), timeout=chance.choice((0.0, 1.0, 20.0)))
            self._out(call)
        except queue.Empty:
            pass
        call.ended = machine().now

    def _take(self, process: Process, client: Client) -> None:
        chance = self.world.chance
        of, call = self._call(process, client, "take")
        fails = chance.random() < 0.2
        try:
            with of.take(timeout=chance.choice((0.0, 1.0, 20.0))) as item:
                call.items = [item]
                self._may_have(call)
                time.sleep(chance.choice((0.0, 0.1, 3.0)))
                if fails:
                    call.gives_back = True
                    raise Meant("the block")
            self._out(call)
        except (queue.Empty, Meant):
            pass
        except ClaimLostError:
            rows.was_silent(process)
        call.ended = machine().now

    def _may_have(self, call: Call) -> None:
        """What is given out is nobody else's, and hadn't been had before."""
        for item in call.items:
            assert item not in self.done, f"item {item} is given out, and was had by {self.done[item]}"
            for other in self.calls:
                if other is not call and item in other.items and other.kind == "take":
                    free = other.ended or other.gives_back or not other.trusted
                    assert free, f"item {item} is given out, and is taken: {other}"

    def _out(self, call: Call) -> None:
        self._may_have(call)
        for item in call.items:
            self.done[item] = call

    # --- semaphores and events

    def _hold(self, process: Process, client: Client) -> None:
        chance = self.world.chance
        name = chance.choice(list(_GATES))
        holders = self.holders[name]
        call = Call(process, "hold", name, machine().now, silent=process.silent)
        gate = client.semaphore(name, _GATES[name])
        if not gate.acquire(timeout=chance.choice((0.0, 1.0, 20.0))):
            return
        holders.append(call)
        others = [one for one in holders if one.trusted]
        assert len(others) <= _GATES[name], f"{len(others)} have a permit of {name!r}: {others}"
        time.sleep(chance.choice((0.0, 0.1, 3.0)))
        holders.remove(call)
        try:
            gate.release()
        except ClaimLostError:
            rows.was_silent(process)

    def _await_event(self, _process: Process, client: Client) -> None:
        chance, here = self.world.chance, machine()
        which = chance.randrange(_EVENTS)
        event = client.event(f"event {which}")
        if chance.random() < 0.1:
            began = here.now
            self.set.setdefault(which, (began, 0.0))
            event.set()
            self.set[which] = (self.set[which][0], self.set[which][1] or here.now)
            return
        _, was_set = self.set.get(which, (0.0, 0.0))
        seen = event.wait(timeout=chance.choice((0.0, 1.0, 20.0)))
        assert seen or not was_set, f"event {which} was set, and whoever waited for it wasn't told"
        assert not seen or which in self.set, f"event {which} is set, and nobody did so"

    # --- laws

    def settled(self) -> bool:
        kept = rows.kept(self.world)
        self.world.unsettled = f"{self.left} to be asked, {sorted(self.busy)} ask, {kept}"
        return self.left <= 0 and not self.busy and not kept

    def end(self) -> None:
        rows.check(self.world)
        put = sum(len(one.items) for one in self.calls if one.kind == "put")
        self.world.tell(f"{put} items were put, {len(self.done)} had, in {len(self.calls)} calls")
        self._check_all_out()
        for name in _QUEUES:
            self._check_order(name)

    def _check_all_out(self) -> None:
        """What was put was had; or whoever had it died before he knew."""
        put = [item for one in self.calls if one.kind == "put" and one.ended for item in one.items]
        lost = [item for item in put if item not in self.done]
        untold = [one for one in self.calls if one.kind != "put" and not one.ended]
        assert len(lost) <= 4 * len(untold), f"{lost} were put, and nobody had them"

    def _check_order(self, name: str) -> None:
        """What was put before something else is out before it, unless it was taken and came back."""
        put = [one for one in self.calls if one.kind == "put" and one.queue == name and one.ended]
        out = [
            (one, item)
            for one in self.calls
            if one.kind != "put" and one.queue == name
            for item in one.items
            if self.done.get(item) is one
        ]
        at = {item: (call, place) for call in put for place, item in enumerate(call.items)}
        for late, item in out:
            if item not in at or late.kind != "get":
                continue
            for early, other in out:
                if other in at and self._is_before(at[other], at[item]) and early.begun > late.ended:
                    was_taken = any(
                        one.kind == "take" and one.begun < late.ended and (other in one.items or not one.ended)
                        for one in self.calls
                    )
                    assert was_taken, (
                        f"{item} was had by {late}, before {other} by {early}: they were put {at[other]}, {at[item]}"
                    )

    @staticmethod
    def _is_before(one: tuple[Call, int], other: tuple[Call, int]) -> bool:
        if one[0] is other[0]:
            return one[1] < other[1]
        return one[0].ended < other[0].begun
