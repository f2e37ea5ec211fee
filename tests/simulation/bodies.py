"""What programs of the simulation run, and what all their attempts did. Children load it by its name."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from concurrent.futures import CancelledError
from functools import partial
from typing import Any, Final

from futures_worker import current_client, now, publish, sleep, step, wait, wait_for_event
from futures_worker import random as drawn
from futures_worker.worker.child.task_context import current_task
from simulation.machine import current_process
from simulation.stand_ins import machine
from simulation.tasks import Meant, value_of

Op = tuple[Any, ...]
PATIENT: Final = {"max_retries": 10**6, "max_worker_losses": 10**6}
Place = tuple[bytes, int]
"""Of a program's future, the number of one of its requests."""


class Seen:
    """What attempts were told, by whichever process."""

    values: dict[Place, tuple[Any, tuple[int, int]]]
    """What a request got, and the first attempt that was told so."""
    runs: dict[Place, list[tuple[int, int]]]
    """Attempts that ran a step."""
    children: dict[tuple[bytes, int, int], bytes]
    """By a program's prefix of rows, the number of a request and their own: what was submitted by it."""
    numbers: Iterator[int]

    @classmethod
    def begin(cls) -> None:
        """A new run."""
        cls.values, cls.runs, cls.children, cls.numbers = {}, {}, {}, itertools.count(1)


def _attempt() -> tuple[bytes, tuple[int, int]]:
    task = current_task()
    assert task is not None
    return task.id, (task.epoch, task.attempt)


def seen(place: int, value: Any) -> Any:
    """Every attempt is told the same of a request."""
    program, attempt = _attempt()
    known, first = Seen.values.setdefault((program, place), (value, attempt))
    if known != value:
        break_law(f"request {place} got {known!r} in attempt {first}, and {value!r} in {attempt}")
    return value


def break_law(what: str) -> None:
    """Where an exception would be the task's."""
    process = current_process()
    machine().failures.append(f"{'' if process is None else process.name}: {what}")


def effect(place: int, seconds: float, size: int = 0) -> tuple[int, bytes]:
    """A step: another value whenever it runs."""
    from simulation.children import rest
    from simulation.sites import crash

    program, attempt = _attempt()
    runs = Seen.runs.setdefault((program, place), [])
    known = Seen.values.get((program, place))
    if known is not None and known[1] < attempt:
        break_law(f"step {place} runs in attempt {attempt}, and its result was known to attempt {known[1]}")
    if attempt in runs:
        break_law(f"step {place} runs twice in attempt {attempt}")
    runs.append(attempt)
    crash()
    rest(seconds)
    crash()
    return next(Seen.numbers), b"x" * size


def raising(place: int, seconds: float) -> None:
    """A step that raises another exception whenever it runs."""
    raise Meant(f"{place} {effect(place, seconds)}")


def shaky(place: int) -> int:
    """A step that raises at times, and is tried again."""
    number = next(Seen.numbers)
    if number % 3:
        raise Meant(f"{place} {number}")
    return number


def child(key: bytes, place: int, number: int, seconds: float) -> int:
    """A task that a program submits: one future for each request, whatever becomes of its attempts."""
    me, _ = _attempt()
    known = Seen.children.setdefault((key, place, number), me)
    if known != me:
        break_law(f"request {place} of {key!r} submitted child {number} twice: {known.hex()}, {me.hex()}")
    return value_of(number, seconds, 0)[0]


def count(tr: Any, key: bytes, place: int) -> int:
    """A transactional step: where it was made, in the order of all of one program's."""
    so_far = int(tr.get(key + b"count").value or b"0") + 1
    tr.set(key + b"count", b"%d" % so_far)
    there = key + b"place %d" % place
    tr.set(there, (tr.get(there).value or b"") + b"%d " % so_far)
    return so_far


def ask(op: Op, place: int, key: bytes) -> Any:
    """One request of a drawn program."""
    kind, value = op[0], op[-1]
    client = current_client()
    if kind == "step":
        return seen(place, step(effect, place, *op[1:])) and None
    if kind == "raising":
        try:
            step(raising, place, value)
        except Meant as meant:
            return seen(place, str(meant)) and None
        raise AssertionError("a step that raises returned")
    if kind == "shaky":
        return seen(place, step(shaky, place, retries=100, backoff=0.01)) and None
    if kind == "count":
        return seen(place, step(count, key, place, tr=True)) and None
    if kind == "child":
        return client.submit(child, key, place, value, 0.1, **PATIENT).result()
    if kind == "children":
        return client.gather(client.map(partial(child, key, place), range(value), [0.05] * value, **PATIENT))
    if kind == "first":
        some = client.map(partial(child, key, place), range(value), [0.3] * value, **PATIENT)
        seen(place, [str(one.id) for one in some if one in wait(some, return_when="FIRST_COMPLETED").done])
    elif kind == "put":
        return client.put(value).result()
    elif kind == "sleep":
        sleep(value)
    elif kind == "event":
        seen(place, wait_for_event("news"))
    elif kind == "no event":
        try:
            wait_for_event("never", timeout=value)
        except TimeoutError:
            return "none"
        raise AssertionError("there was an event that nobody sent")
    elif kind == "publish":
        publish("value", value)
    elif kind == "drawn":
        seen(place, (now(), drawn()))
    elif kind == "program":
        inner = client.submit(body, value, key + b"%d/" % place, durable=True, **PATIENT)
        return inner.result()
    return None


def body(ops: list[Op], key: bytes) -> list[Any]:
    """The program that a list of requests says."""
    return [ask(op, place, key) for place, op in enumerate(ops)]


def expected(ops: list[Op]) -> list[Any]:
    """What it returns."""
    return [
        {
            "child": lambda value: value,
            "children": lambda value: list(range(value)),
            "put": lambda value: value,
            "no event": lambda _: "none",
            "program": expected,
        }.get(op[0], lambda _: None)(op[-1])
        for op in ops
    ]


UNDONE: Final = 1000
"""The place of what undoes what was done at place 0, and so on."""


def saga(ops: list[Op], key: bytes, fails: bool) -> int:
    """Does something before each of its requests, and undoes all of it where it fails or is cancelled."""
    done = 0
    try:
        for place, op in enumerate(ops):
            seen(place, step(count, key, place, tr=True))
            done += 1
            ask(op, len(ops) + place, key)
        if fails:
            raise Meant("as it was drawn")
    except Exception:
        while done:
            with contextlib.suppress(CancelledError):  # told only now, and once: what is left is undone all the same
                seen(UNDONE + done - 1, step(count, key, UNDONE + done - 1, tr=True))
                done -= 1
                sleep(0.2 * (done % 2))
        raise
    return done
