"""What the tasks of a chaos run do. Every future's name says what it must end as: `kind=value`."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

LARGE = 40_000  # bytes: over what is kept in the database
SURE: dict[str, Any] = {"max_retries": 100, "max_worker_losses": 100, "max_oom": 100}
"""Budgets that no run uses up: such a future must be realized."""


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


def flaky(value: int) -> int:
    """Raises two times of three."""
    if time.time_ns() // 1000 % 3:
        raise ValueError(str(value))
    return value


def die(value: int) -> int:
    """Kills its process two times of three, as a crash in native code would."""
    if os.getpid() % 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return value


def exhaust(value: int) -> int:
    """Finds no memory."""
    raise MemoryError(str(value))


def lock(value: int) -> Any:
    """A result that doesn't pickle."""
    return threading.Lock()


def refuse(value: int) -> Any:
    """What `Unloadable` is made by, where it is loaded."""
    raise ImportError(f"no module named {value}")


class Unloadable:
    """An argument that pickles and doesn't unpickle."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return refuse, (self.value,)


def once(path: str, mark: str, seconds: float) -> str:
    """Leaves a mark at each start: there must be one at most."""
    with open(path, "a") as file:
        file.write(mark + "\n")
    time.sleep(seconds)
    return mark


def nested(count: int, seconds: float, depth: int = 1, kind: str = "sure") -> int:
    """Submits tasks of its own, `depth` levels of them, and waits for them; their names begin with `kind`."""
    from futures_worker import Client

    with Client() as client:
        submit = partial(client.submit, keep=False, **SURE)
        if depth > 1:
            total = sum(range(count))
            below = [submit(nested, count, seconds, depth - 1, kind, name=f"{kind}={total}") for _ in range(2)]
            return sum(f.result(600) for f in below) // 2
        return sum(f.result(600) for f in [submit(slow, seconds, i, name=f"{kind}={i}") for i in range(count)])


def wait_for_self() -> Any:
    """A cycle of waits, of one."""
    from futures_worker import current_client
    from futures_worker.worker.child.task_context import current_task

    task = current_task()
    assert task is not None
    return current_client().get_future(task.id).result(600)


def own(future_id: bytes, *, take: bool = True) -> int:
    """Moves a future's result to the worker that runs this; its length."""
    from futures_worker import current_client

    future = current_client().get_future(future_id)
    if take:
        current_client().take_ownership(future)
    return len(future.result(600))


def items(count: int) -> Iterator[int]:
    """Yields the numbers below `count`, now and then slowly."""
    for number in range(count):
        if number % 10 == 0:
            time.sleep(0.01)
        yield number


def mixed(count: int, fails: bool = False) -> Iterator[Any]:
    """Yields numbers and, each ninth, what is kept in a worker's store; then fails, perhaps."""
    for number in range(count):
        yield b"m" * (LARGE + number) if number % 9 == 8 else number
    if fails:
        raise ValueError(str(count))


def mixed_lengths(count: int) -> list[int]:
    """What `mixed` yields, with lengths in the place of bytes."""
    return [LARGE + number if number % 9 == 8 else number for number in range(count)]


def numbers(start: int, count: int, pad: int) -> list[tuple[int, bytes]]:
    """A partition of a dataset: numbers, each with `pad` bytes."""
    return [(number, b"p" * pad) for number in range(start, start + count)]


def double(item: tuple[int, bytes]) -> tuple[int, bytes]:
    """A step of a dataset."""
    return item[0] * 2, item[1]


def by_four(item: tuple[int, bytes]) -> bool:
    """Another one."""
    return item[0] % 4 == 0


def both(one: tuple[int, bytes], other: tuple[int, bytes]) -> tuple[int, bytes]:
    """Adds up."""
    return one[0] + other[0], b""


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


class Shared(Tally):
    """One that has a name and is everybody's."""


def visit(actor: Any, times: int) -> int:
    """Calls an actor from a task."""
    return [actor.add(1).result(600) for _ in range(times)][-1]
