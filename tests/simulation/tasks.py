"""What futures of the simulation run. Children load it by its name."""

from __future__ import annotations

from typing import Any


class Meant(Exception):
    """What a task raises because it was drawn so."""


def value_of(number: int, seconds: float, size: int, inputs: Any) -> tuple[int, bytes]:
    """A number that tells what came in, and so many bytes."""
    from simulation.workers import rest

    if seconds:
        rest(seconds)
    return number + sum(one[0] for one in inputs), b"x" * size


def failing(number: int, seconds: float) -> None:
    """Raises, each time."""
    from simulation.workers import rest

    if seconds:
        rest(seconds)
    raise Meant(f"{number}")
