"""What the tasks of a chaos run do. Every future's name says what it must end as: `kind=value`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

LARGE = 40_000  # bytes: over what is kept in the database


def add(*numbers: Any) -> int:
    """The sum of numbers, and of the lengths of whatever isn't a number."""
    return sum(n if isinstance(n, int) else len(n) for n in numbers)


def slow(seconds: float, value: int) -> int:
    """Takes its time."""
    time.sleep(seconds)
    return value


def large(size: int) -> bytes:
    """A result that lives with its worker, not in the database."""
    return b"x" * size


def fail(text: str) -> None:
    """An application's error."""
    raise ValueError(text)


def die(value: int) -> int:
    """Kills its process two times of three, as a crash in native code would."""
    if os.getpid() % 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return value


def once(path: str, mark: str, seconds: float) -> str:
    """Leaves a mark at each start: there must be one at most."""
    with open(path, "a") as file:
        file.write(mark + "\n")
    time.sleep(seconds)
    return mark


def nested(count: int, seconds: float) -> int:
    """Submits tasks of its own and waits for them."""
    from futures_worker import Client

    with Client() as client:
        futures = [
            client.submit(slow, seconds, i, name=f"sure={i}", keep=False, max_retries=100, max_worker_losses=100)
            for i in range(count)
        ]
        return sum(f.result(300) for f in futures)


def items(count: int) -> Iterator[int]:
    """Yields the numbers below `count`, now and then slowly."""
    for number in range(count):
        if number % 10 == 0:
            time.sleep(0.01)
        yield number


class Tally:
    """An actor: what it was given, added up since it started."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, number: int) -> int:
        """The total with `number`."""
        self.total += number
        return self.total

    def large(self) -> bytes:
        """A result that is kept in the worker's store."""
        return b"t" * LARGE
