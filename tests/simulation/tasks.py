"""What futures of the simulation run. Children load it by its name."""

from __future__ import annotations

import asyncio
import time
from typing import Any


class Meant(Exception):
    """What a task raises because it was drawn so."""


def value_of(number: int, seconds: float, size: int, inputs: Any = ()) -> tuple[int, bytes]:
    """A number that tells what came in, and so many bytes."""
    from simulation.children import rest

    if seconds:
        rest(seconds)
    return number + sum(one[0] for one in inputs), b"x" * size


def failing(number: int, seconds: float) -> None:
    """Raises, each time."""
    from simulation.children import rest

    if seconds:
        rest(seconds)
    raise Meant(f"{number}")


def wished(number: int, does: dict[str, Any], inputs: Any = ()) -> tuple[int, Any, list[Any]]:
    """What was drawn for it (`wishes`): a number that tells what came in, what it has beside, and futures that it submitted."""
    from futures_worker.errors import SoftTimeLimitExceeded, TaskCancelled
    from simulation.attempts import Book, attempt
    from simulation.children import rest

    with attempt(does.get("limits", ()), does.get("size", 0)) as this:
        here: Any = b"x" * does.get("size", 0)
        children = _children_of(this.future, does.get("children", 0), does.get("child", {}))
        try:
            rest(does["seconds"])
        except TaskCancelled:
            this.be_told(does.get("cleans", 0.0))
            rest(does.get("cleans", 0.0))
            this.cleaned = True
            raise
        except SoftTimeLimitExceeded:
            here, this.how = b"soft", "limited"
            if does["fails softly"]:
                raise
        if does.get("raises", 0) > sum(one.how == "raised" for one in Book.attempts.of[this.future]):
            raise Meant(f"{number}")
        if does.get("counts"):
            here = next(Book.attempts.numbers)
        if does.get("waits"):
            assert [one.result()[0] for one in children] == list(range(len(children)))
            children = []
        return number + sum(one[0] for one in inputs), here, children


def _children_of(future: bytes, count: int, does: dict[str, Any]) -> list[Any]:
    """What a task submits, once it is there for sure."""
    from futures_worker import current_client
    from simulation.attempts import Book
    from simulation.wishes import PATIENT

    made = [current_client().submit(wished, one, does, **PATIENT) for one in range(count)]
    known = Book.attempts.children.setdefault(future, [])
    known.extend(one.id.bytes for one in made)
    return made


def visit(actor: Any, times: int) -> int:
    """A task that calls an actor: how often."""
    from futures_worker.client.actors import actor_id
    from simulation.actors import Called, Life
    from simulation.machine import current_process
    from simulation.rows import patiently

    process = current_process()
    assert process is not None
    for _ in range(times):
        made = Called(Life.book, actor_id(actor))
        made.take(patiently(actor.add(process.number, made.number, 0.0, 0)))
    return times


def computed(number: int) -> tuple[int, int, bytes]:
    """A memoized function: another value whenever it runs."""
    from simulation.memos import Book

    return Book.compute(number)


class Tally:
    """An actor that counts what it is told, and tells what it has told so far."""

    ordered = True

    def __init__(self, seconds: float) -> None:
        from simulation.actors import Life

        time.sleep(seconds)
        self.life = Life(self.ordered)

    def add(self, caller: int, number: int, seconds: float, size: int, given: Any = None) -> Any:
        """Which start of the actor this is, how many it has counted, and their sum; so many bytes; and what another call came to."""
        from simulation.sites import crash

        crash()
        told = self.life.apply(caller, number)
        if seconds:
            time.sleep(seconds)
        crash()
        return *told, b"x" * size, given and given[:3]

    def refuse(self, caller: int, number: int) -> None:
        """Raises, and changes nothing else."""
        self.life.apply(caller, number)
        raise Meant(f"{number}")


class Crowd(Tally):
    """One that has several calls under way, in threads and on its loop."""

    ordered = False

    async def post(self, caller: int, number: int, seconds: float, size: int, given: Any = None) -> Any:
        """As `add`."""
        from simulation.sites import crash

        told = self.life.apply(caller, number)
        await asyncio.sleep(seconds)
        crash()
        return *told, b"x" * size, given and given[:3]
