"""What futures of the simulation run. Children load it by its name."""

from __future__ import annotations

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


class Tally:
    """An actor that counts what it is told, and tells what it has told so far."""

    def __init__(self, seconds: float) -> None:
        from simulation.actors import Life
        from simulation.children import rest

        rest(seconds)
        self.life = Life()

    def add(self, caller: int, number: int, seconds: float, size: int, given: Any = 0) -> tuple[int, int, int, bytes]:
        """Which start of the actor this is, how many it has counted, and their sum; and so many bytes."""
        from simulation.children import rest
        from simulation.sites import crash

        crash()
        self.life.apply(caller, number)
        if seconds:
            rest(seconds)
        crash()
        return self.life.attempt, len(self.life.numbers), self.life.sum, b"x" * size

    def refuse(self, caller: int, number: int) -> None:
        """Raises, and changes nothing else."""
        self.life.apply(caller, number)
        raise Meant(f"{number}")
