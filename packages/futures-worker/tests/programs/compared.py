"""Programs whose attempts are compared: all of them run in this process."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from program_sim import count

from futures_worker import MainspringError, as_completed, current_client, publish, sleep, step, wait, wait_for_event

DONE: list[Any] = []
"""What bodies and steps did, in every attempt."""
LOSE: list[Callable[[], None]] = []
"""What takes the claim away from the attempt that runs, the first time."""


def same(value: Any) -> Any:
    return value


def done(what: str) -> str:
    DONE.append(what)
    return what


def told_before_a_wait() -> Any:
    """Is told to end between what it asked for and the wait for that."""
    made = current_client().put(7)
    step(LOSE[0], name="tell")
    return made.result()


def ears() -> int:
    heard = 0
    while wait_for_event("told") != "all":
        heard += 1
    return heard


def teller() -> tuple[int, str]:
    other = current_client().submit(ears, durable=True)
    for told in ("this", "that", "all"):
        other.send("told", told)
        sleep(5)
    heard, said = other.result(), ""
    try:
        other.send("told", 1)
    except MainspringError as error:
        said = str(error)
    sleep(5)
    return heard, said


def careful() -> list[str]:
    client = current_client()
    refused: list[Callable[[], Any]] = [
        lambda: publish("large", bytes(70_000)),
        lambda: publish("no value", (n for n in [])),
        lambda: current_client().get_future(str(uuid.UUID(int=7))).send("nobody"),
        lambda: client.put(n for n in []),
    ]
    seen = []
    for ask in refused:
        try:
            ask()
        except Exception as error:
            seen.append(type(error).__name__)
        step(same, len(seen))
        sleep(5)
    return seen


def crowd(count: int, how: str) -> tuple[int, list[int]]:
    client = current_client()
    children = client.map(same, range(count))
    client.gather(children, progress=False)
    told = len(wait(children, timeout=100.0, return_when=how).done)
    client.gather(children, timeout=100.0, progress=False)
    given = children[::-1] if DONE else children  # as a set has another order in another process
    order = [one.result() for one in as_completed(given)]
    DONE.append((told, order))
    sleep(5)
    return told, order


def saga() -> str:
    try:
        step(done, "charged")
        step(LOSE[0], name="lose")
        return step(done, "shipped")
    except Exception:
        step(done, "refunded")
        raise


async def later(value: str) -> str:
    await asyncio.sleep(0)
    return value


async def counted(tr: Any, key: bytes) -> int:
    await asyncio.sleep(0)
    return count(tr, key)


def awaiting(key: bytes) -> tuple[str, int]:
    return step(later, "awaited"), step(counted, key, tr=True)


def threaded() -> list[int]:
    with ThreadPoolExecutor(1) as threads:
        return list(threads.map(lambda number: step(same, number), range(3)))


def threaded_in_a_step() -> list[int]:
    return step(threaded)


DURING: dict[int, Callable[[], object]] = {}
"""What happens while the step of that number runs."""


def doubled(count: int) -> int:
    return sum(step(_double, number) for number in range(count))


def _double(number: int) -> int:
    DURING.get(number, int)()
    return 2 * number


def charging(key: bytes) -> list[Any]:
    """A step of its own, then one whose writes are the record's, with whatever comes in between."""
    return [step(done, "done"), step(count, key, tr=True)]


def steps_then_fails() -> str:
    """Fails behind its second step, until `LOSE` has something."""
    step(done, "a")
    step(done, "b")
    if not LOSE:
        raise RuntimeError("not yet")
    return step(done, "c")
