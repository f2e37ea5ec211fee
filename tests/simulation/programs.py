"""Programs under the simulation: clients that start them, tell them, cancel them, leave and come back; their processes die meanwhile."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import fdb_datamodel as dm
from fdb_schema import DatabaseUnreachableError, read_range
from futures_worker import Client
from idempotent_txn import run
from simulation import bodies, rows, workers
from simulation.bodies import UNDONE, Op
from simulation.machine import Process
from simulation.tasks import Meant
from simulation.world import CLUSTER, World


@dataclass
class Order:
    """A program that is wanted, by whichever client."""

    number: int
    ops: list[Op]
    saga: bool
    fails: bool
    grace: float | None
    """For which it may undo what it did, once it is cancelled; None: it isn't."""
    looks: int
    """How often its end is still to be seen."""
    id: str = ""
    """Once it is there for sure."""
    asked_to_cancel: bool = False
    told: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Events by their numbers: from when to when they were sent."""
    outcome: str = ""

    @property
    def key(self) -> str:
        return f"order {self.number}"

    @property
    def rows(self) -> bytes:
        """The prefix of what its transactional steps write."""
        return b"orders/%d/" % self.number

    @property
    def events(self) -> int:
        return sum(op[0] == "event" for op in self.ops)


class Programs:
    """A few orders, clients that see to them, workers, and one who clears away in the end."""

    def __init__(self, world: World) -> None:
        chance = world.chance
        self.world = world
        bodies.Seen.begin()
        workers.start(world)
        self.orders = [self._drawn(number) for number in range(chance.randint(5, 25))]
        self.busy: set[int] = set()
        """Clients that ask."""
        self.cleared = False
        for _ in range(chance.randint(1, 3)):
            world.process("asker", self.ask)
        world.process("clearer", self.clear)
        rows.check_often(world)

    def _drawn(self, number: int) -> Order:
        chance = self.world.chance
        saga = chance.random() < 0.5
        grace = chance.choice((None, None, 1e6, 1e6, 3.0, 0.0))
        return Order(number, self._ops(0), saga, saga and chance.random() < 0.3, grace, chance.choice((1, 1, 2, 3)))

    def _ops(self, depth: int) -> list[Op]:
        chance = self.world.chance
        found: list[Op] = []
        for _ in range(chance.randint(1, 8)):
            seconds = chance.choice((0.0, 0.0, 0.1, 2.0))
            kinds: list[Op] = [
                ("step", seconds), ("step", seconds, chance.choice((10, 150_000))), ("raising", seconds), ("shaky",),
                ("count",), ("count",), ("child", number := chance.randrange(100)), ("children", 1 + number % 5),
                ("first", 1 + number % 4), ("put", number), ("sleep", chance.choice((0.1, 1.0, 5.0, 30.0))),
                ("no event", chance.choice((0.1, 3.0))), ("publish", number), ("drawn",),
            ]  # fmt: skip
            kinds += [("event",)] if depth == 0 else []
            kinds += [("program", self._ops(depth + 1))] if depth < 2 and chance.random() < 0.3 else []
            found.append(chance.choice(kinds))
        return found

    # --- clients

    def ask(self, process: Process, db: Any) -> None:
        chance = self.world.chance
        process.at_death.append(lambda: self.busy.discard(process.number))
        while any(order.looks > 0 for order in self.orders):
            self.busy.add(process.number)
            with Client(db, CLUSTER) as client:
                for _ in range(chance.randint(1, 8)):
                    left = [order for order in self.orders if order.looks > 0]
                    if left:
                        self._see_to(client, chance.choice(left[:6]))
            self.busy.discard(process.number)
            time.sleep(chance.choice((0.0, 0.1, 3.0)))

    def _see_to(self, client: Client, order: Order) -> None:
        chance = self.world.chance
        if order.id and chance.random() < 0.7:
            by_id = chance.random() < 0.5
            handle = client.get_future(order.id) if by_id else client.get_future(key=order.key)
        else:
            options = {"key": order.key, "durable": True, "keep": True, **bodies.PATIENT}
            if order.saga:
                handle = client.submit(bodies.saga, order.ops, order.rows, order.fails, **options)
            else:
                handle = client.submit(bodies.body, order.ops, order.rows, **options)
            order.id = str(handle.id)
        if sum(ended > 0 for _, ended in order.told.values()) < order.events:
            self._tell(handle, order)
        if order.grace is not None and chance.random() < 0.2:
            order.asked_to_cancel = True
            with contextlib.suppress(CancelledError):
                handle.cancel(grace=order.grace)
        if chance.random() < 0.2:
            handle.published("value")
        self._await(handle, order, chance.choice((0.1, 1.0, 10.0, 100.0)))

    def _tell(self, handle: Any, order: Order) -> None:
        here, number = self.world.machine, len(order.told)
        began = here.now
        order.told[number] = began, 0.0
        with contextlib.suppress(dm.FutureStateError):  # it has ended
            handle.send("news", number)
            order.told[number] = began, here.now

    def _await(self, handle: Any, order: Order, seconds: float) -> None:
        try:
            outcome = self._outcome(handle, order, seconds)
        except (TimeoutError, DatabaseUnreachableError):
            return
        assert order.outcome in ("", outcome), f"{order.key} ended with {order.outcome}, and then with {outcome}"
        order.outcome = outcome
        order.looks -= 1

    def _outcome(self, handle: Any, order: Order, seconds: float) -> str:
        try:
            value = handle.result(timeout=seconds)
        except CancelledError:
            assert order.asked_to_cancel, f"{order.key} was cancelled, and nobody asked for it"
            return "cancelled"
        except Meant as meant:
            if not order.fails:
                raise AssertionError(f"{order.key} failed, and was not to") from meant
            return "failed"
        wanted = len(order.ops) if order.saga else bodies.expected(order.ops)
        assert value == wanted and not order.fails, f"{order.key} returned {value}, not {wanted}"
        return "returned"

    def clear(self, _process: Process, db: Any) -> None:
        """Once all have ended, and everybody has seen it."""
        while self.busy or any(order.looks > 0 for order in self.orders):
            time.sleep(1.0)
        with Client(db, CLUSTER) as client:
            for order in self.orders:
                with contextlib.suppress(*rows.GONE):
                    client.delete(client.get_future(order.id))
        self.cleared = True

    # --- laws

    def settled(self) -> bool:
        kept = rows.kept(self.world)
        wanted = [order.key for order in self.orders if order.looks > 0]
        self.world.unsettled = f"wanted: {wanted}, kept: {kept}"
        return self.cleared and not kept

    def end(self) -> None:
        rows.check(self.world)
        begin = rows.SPACE["programs"].key()
        assert not list(self.world.db.get_range(begin, begin + b"\xff")), "something of a program is left"
        for order in self.orders:
            self._check_counts(order)
            self._check_events(order)

    def _check_counts(self, order: Order) -> None:
        """Each transactional step was made once; what was undone was undone in reverse."""
        made = dict(self._counts(order))
        twice = [place for place, found in made.items() if len(found) != 1]
        assert not twice, f"steps of {order.key} were made more than once: {twice}"
        if not order.saga:
            return
        at = {int(place): found[0] for place, found in made.items() if "/" not in place}
        done = [place for place in range(len(order.ops)) if place in at]
        undone = sorted((place - UNDONE for place in at if place >= UNDONE), key=lambda place: at[UNDONE + place])
        if order.outcome == "returned":
            assert (done, undone) == (list(range(len(order.ops))), []), f"{order.key} returned: {done}, {undone}"
        elif order.outcome == "failed" or order.grace == 1e6:
            assert undone == done[::-1], f"{order.key} has {order.outcome}: it did {done}, and undid {undone}"
        else:  # it may have been killed before all was undone
            assert undone == done[::-1][: len(undone)], f"{order.key} has {order.outcome}: {done}, {undone}"

    def _counts(self, order: Order) -> Iterator[tuple[str, list[int]]]:
        found = run(self.world.db, lambda tr: read_range(tr, order.rows, order.rows + b"\xff"))
        for key, value in found:
            where, _, place = key[len(order.rows) :].decode().rpartition("place ")
            if _:
                yield where + place, [int(one) for one in value.split()]

    def _check_events(self, order: Order) -> None:
        """Each was taken once, and none that was sent after another had been before that."""
        program = UUID(order.id).bytes
        places = [place for place, op in enumerate(order.ops) if op[0] == "event"]
        found = [bodies.Seen.values.get((program, place + len(order.ops) * order.saga)) for place in places]
        taken = [one[0] for one in found if one is not None]
        assert len(set(taken)) == len(taken), f"{order.key} took an event twice: {taken}"
        for place, one in enumerate(taken):
            for later in taken[place + 1 :]:
                ended = order.told[later][1]
                assert not 0 < ended < order.told[one][0], f"{order.key} took {taken}, sent {order.told}"
