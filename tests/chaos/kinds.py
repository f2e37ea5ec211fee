"""The kinds of futures that a client of a chaos run submits. Their names say what they must end as: `kind=value`."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from chaos import tasks
from chaos.tasks import LARGE, SURE
from futures_worker import (
    FutureFailedError,
    NoWorkerError,
    ObjectLostError,
    as_completed,
    wait,
)
from idempotent_txn import run

WAIT = 300.0


def own_rows(cluster: str) -> bytes:
    """The prefix of rows of the user's own, each written in the transaction that submits the future of its id."""
    return f"chaos-rows/{cluster}/".encode()


ACTOR_NAMES = ("shared 0", "shared 1")


@dataclass
class Scene:
    """What a client has at hand. known: futures that are sure to be realized, with their values."""

    client: Any
    db: Any
    rng: random.Random
    marks: str
    ports: list[int]
    wrong: list[str]
    known: list[tuple[Any, int]] = field(default_factory=list)
    tallies: list[tuple[list[Any], int]] = field(default_factory=list)  # calls of one actor, and its max_restarts

    @property
    def submit(self) -> Callable[..., Any]:
        return partial(self.client.submit, keep=False)  # a name alone would keep it

    def sure(self, value: int, *args: Any, **options: Any) -> Any:
        """One that must be realized."""
        made = self.submit(*args, name=f"sure={value}", **{**SURE, **options})
        self.known.append((made, value))
        return made

    def sized(self) -> tuple[Any, int]:
        """One whose result is kept by its worker, and can be computed again."""
        size = LARGE + self.rng.randrange(1_000_000)
        made = self.submit(tasks.large, size, name=f"length={size}", **SURE)
        self.known.append((made, size))
        return made, size

    def address(self) -> str:
        return f"127.0.0.1:{self.rng.choice(self.ports)}"


Kind = Callable[[Scene, int], list[Any]]
KINDS: dict[Kind, int] = {}


def kind(weight: int) -> Callable[[Kind], Kind]:
    """A kind of futures, and how often it is chosen."""

    def add(made: Kind) -> Kind:
        KINDS[made] = weight
        return made

    return add


def submit_some(scene: Scene) -> list[Any]:
    """A handful of futures of one kind."""
    chosen = scene.rng.choices(list(KINDS), list(KINDS.values()))[0]
    return chosen(scene, scene.rng.randrange(1_000_000))


@kind(6)
def _add(s: Scene, value: int) -> list[Any]:
    options: dict[str, Any] = s.rng.choice(
        [
            {},
            {},
            {"priority": s.rng.randrange(-2, 3)},
            {"resources": {"cpu": s.rng.choice([1, 2, 4])}},
            {"resources": {"ram": "1MiB"}},
            {"locality": s.address()},
        ]
    )
    count = s.rng.randrange(1, 9)
    try:
        return [s.sure(value + i, tasks.add, value, i, **options) for i in range(count)]
    except NoWorkerError:
        return []  # none lives at that address at this moment


@kind(5)
def _slow(s: Scene, value: int) -> list[Any]:
    return [s.sure(value, tasks.slow, s.rng.uniform(0.005, 0.3), value)]


@kind(4)
def _large(s: Scene, value: int) -> list[Any]:
    return [s.sized()[0]]


@kind(3)
def _chain(s: Scene, value: int) -> list[Any]:
    link, total = s.sized()
    made = [link]
    for step in range(s.rng.randrange(1, 6)):
        total += step
        made.append(s.sure(total, tasks.add, made[-1], step))
    return made


@kind(3)
def _fan(s: Scene, value: int) -> list[Any]:
    if not s.known:
        return []
    chosen = [s.rng.choice(s.known) for _ in range(s.rng.randrange(1, 7))]
    options = {"locality": chosen[0][0]} if s.rng.random() < 0.3 else {}
    return [s.sure(sum(v for _, v in chosen), tasks.add, *[f for f, _ in chosen], **options)]


@kind(1)
def _lone(s: Scene, value: int) -> list[Any]:
    """One request at a time: after a few they go straight to the worker that was idle."""
    for number in range(s.rng.randrange(3, 40)):
        one = s.submit(tasks.add, value, number, name=f"sure={value + number}", **SURE)
        if one.result(WAIT) != value + number:
            s.wrong.append(f"{one!r} gave {one.result()!r}")
    return []


@kind(1)
def _bulk(s: Scene, value: int) -> list[Any]:
    size = s.rng.choice([100_000, 600_000, 1_500_000])
    return [s.sure(size + value, tasks.add, b"b" * size, value)]


@kind(2)
def _put(s: Scene, value: int) -> list[Any]:
    size = s.rng.choice([100, LARGE + value])
    try:
        put = s.client.put(b"p" * size, name=f"stored={size}", keep=False)
    except NoWorkerError:
        return []  # a large object needs a worker at that moment, and there may be none
    return [put, s.submit(tasks.add, put, 1, name=f"of-put={size + 1}", **SURE)]


@kind(2)
def _copy(s: Scene, value: int) -> list[Any]:
    """Copies and moves of results, and of a put, between the workers."""
    made, _ = s.sized()
    if s.rng.random() < 0.3:
        size = LARGE + value
        try:
            made = s.client.put(b"p" * size, name=f"stored={size}", keep=False)
        except NoWorkerError:
            return []
    for _ in range(s.rng.randrange(1, 4)):
        try:
            s.rng.choice([s.client.clone, s.client.transfer])(made, s.address())
        except (NoWorkerError, ObjectLostError):
            pass  # none lives there at this moment, or it died while it took the copy
    return [made]


@kind(2)
def _own(s: Scene, value: int) -> list[Any]:
    parts = [s.sized() for _ in range(s.rng.randrange(1, 3))]
    made = [f for f, _ in parts]
    return made + [s.sure(size, tasks.own, f.id.bytes, take=s.rng.random() < 0.8) for f, size in parts]


@kind(2)
def _delete(s: Scene, value: int) -> list[Any]:
    name = f"deleted={value}"
    task = s.rng.choice([(tasks.add, value), (tasks.slow, 0.3, value), (tasks.large, LARGE), (tasks.mixed, 20)])
    gone = s.submit(*task, name=name, **SURE)
    after = [s.submit(tasks.add, gone, name="of-deleted=", **SURE)] if task[0] is not tasks.mixed else []
    if s.rng.random() < 0.5:
        time.sleep(s.rng.uniform(0, 0.3))
    s.client.delete_all([gone])
    if s.rng.random() < 0.3:
        after.append(s.submit(tasks.add, gone, name="of-deleted=", **SURE))
    return after


@kind(2)
def _keyed(s: Scene, value: int) -> list[Any]:
    number = s.rng.randrange(8)
    return [s.submit(tasks.slow, 0.05, number, key=f"key {number}", name=f"keyed={number}", **SURE) for _ in range(2)]


@kind(2)
def _within(s: Scene, value: int) -> list[Any]:
    def body(tr: Any) -> Any:
        made = s.submit(tasks.add, value, 1, name=f"sure={value + 1}", tr=tr, **SURE)
        tr.set(own_rows(s.client.cluster) + made.id.bytes, b"")
        return made

    made = run(s.db, body)
    s.known.append((made, value + 1))
    return [made]


@kind(2)
def _fail(s: Scene, value: int) -> list[Any]:
    retries = s.rng.randrange(3)
    backoff = s.rng.choice([None, 0.05])
    failing = s.submit(tasks.fail, str(value), name=f"error={value}", max_retries=retries, backoff=backoff)
    return [failing, s.submit(tasks.add, failing, name="of-error=", **SURE)]


@kind(1)
def _flaky(s: Scene, value: int) -> list[Any]:
    return [s.sure(value, tasks.flaky, value, backoff=s.rng.choice([None, 0.02]))]


@kind(3)
def _once(s: Scene, value: int) -> list[Any]:
    name = f"once={s.client.cluster}-{value}-{time.time_ns()}"
    budget = {"max_retries": 0, "max_worker_losses": 0, "max_oom": 0, "allow_reconstruction": False}
    return [s.submit(tasks.once, s.marks, name[5:], s.rng.uniform(0, 0.2), name=name, **budget)]


@kind(1)
def _die(s: Scene, value: int) -> list[Any]:
    return [s.sure(value, tasks.die, value)]


@kind(1)
def _timeout(s: Scene, value: int) -> list[Any]:
    if s.rng.random() < 0.5:
        return [s.submit(tasks.slow, 600.0, value, name="timeout=", timeout=0.4, max_retries=0)]
    limits = {"queue": 0.3, "total": 2.0}
    return [s.submit(tasks.slow, 0.2, value, name=f"late={value}", timeout=limits, max_retries=0) for _ in range(4)]


@kind(2)
def _cancel(s: Scene, value: int) -> list[Any]:
    if s.rng.random() < 0.3:
        made = [s.submit(tasks.nested, 2, 600.0, 2, "cancel", name="cancel=", **SURE)]
    else:
        made = [s.submit(tasks.slow, s.rng.choice([0.0, 600.0]), value, name=f"cancel={value}", **SURE)]
    if s.rng.random() < 0.5:
        time.sleep(s.rng.uniform(0, 0.4))
    made[0].cancel()
    return made


@kind(2)
def _nested(s: Scene, value: int) -> list[Any]:
    count = s.rng.randrange(1, 5)
    return [s.sure(sum(range(count)), tasks.nested, count, 0.02, s.rng.choice([1, 1, 2]))]


@kind(1)
def _cycle(s: Scene, value: int) -> list[Any]:
    return [s.submit(tasks.wait_for_self, name="cycle=", max_retries=0)]


@kind(1)
def _broken(s: Scene, value: int) -> list[Any]:
    """What can't be run anywhere, each for a reason of its own."""
    huge = {"resources": {"cpu": 10_000}, "unschedulable_timeout": 1.0}
    return [
        s.submit(tasks.add, value, name="unschedulable=", **huge),
        s.submit(tasks.add, tasks.Unloadable(value), name="unpickle="),
        s.submit(tasks.lock, value, name="result-pickle="),
        s.submit(tasks.exhaust, value, name="oom=", max_oom=s.rng.randrange(2)),
    ]


@kind(2)
def _items(s: Scene, value: int) -> list[Any]:
    count = s.rng.randrange(60)  # more would wait for a reader
    return [s.submit(tasks.items, count, name=f"items={list(range(count))}", **SURE)]


@kind(1)
def _stream(s: Scene, value: int) -> list[Any]:
    """One that is longer than a generator goes ahead of its readers; if nobody reads it here, the harness does."""
    count = s.rng.randrange(90, 220)
    made = s.submit(tasks.mixed, count, name=f"stream={count}", **SURE)
    broken = s.submit(tasks.mixed, 30, True, name="broken=", max_retries=0)
    if s.rng.random() < 0.6:
        found = [len(item) if not isinstance(item, int) else item for item in made.stream(WAIT)]
        if found != tasks.mixed_lengths(count):
            s.wrong.append(f"{made!r} streamed {found}")
    return [made, broken]


@kind(2)
def _dataset(s: Scene, value: int) -> list[Any]:
    pad, each, parts = s.rng.choice([0, 0, 2000]), s.rng.randrange(1, 30), s.rng.randrange(1, 5)
    made = [
        tasks.numbers(at * each, each, pad)
        if pad == 0
        else s.submit(tasks.numbers, at * each, each, pad, name="part=", **SURE)
        for at in range(parts)
    ]
    expected = [n * 2 for n in range(each * parts) if n % 2 == 0]
    numbers = s.client.dataset(made, name="part=", keep=False, **SURE).map(tasks.double).filter(tasks.by_four)
    again = numbers.repartition(s.rng.randrange(1, 4), timeout=WAIT)
    found = [number for number, _ in again.collect(timeout=WAIT)]
    if found != expected:
        s.wrong.append(f"a dataset of {parts} times {each} gave {found}")
    if numbers.reduce(tasks.both, (0, b""), timeout=WAIT)[0] != sum(expected):
        s.wrong.append(f"the sum of a dataset of {parts} times {each} is wrong")
    return []


@kind(1)
def _executor(s: Scene, value: int) -> list[Any]:
    try:
        with s.client.executor(name="exec=", keep=False) as executor:
            found = list(executor.map(tasks.add, range(10), range(10), timeout=WAIT))
    except FutureFailedError:
        return []  # its budget for crashes is none
    if found != [2 * n for n in range(10)]:
        s.wrong.append(f"an executor gave {found}")
    return []


@kind(1)
def _await(s: Scene, value: int) -> list[Any]:
    made = [s.sure(value + i, tasks.slow, 0.05, value + i) for i in range(4)]

    async def all_of_them() -> list[int]:
        return [await future for future in made]

    if s.rng.random() < 0.5:
        found = asyncio.run(all_of_them())
    else:
        done = wait(made[:2], timeout=WAIT).done | set(as_completed(made[2:], timeout=WAIT))
        found = sorted(future.result(WAIT) for future in done)
    if found != [value + i for i in range(4)]:
        s.wrong.append(f"awaited {found}")
    return made
