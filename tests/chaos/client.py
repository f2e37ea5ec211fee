"""A client of a chaos run, as a process of its own: submits a seeded mix of futures and awaits some of them.

    python -m chaos.client URL CLUSTER SEED MARKS

Ends with 0 if every future that it awaited ended as its name says, else with 1 and what was wrong.
"""

from __future__ import annotations

import random
import sys
import time
from concurrent.futures import CancelledError
from functools import partial
from typing import Any

from chaos import tasks
from futures_worker import Client, FutureDeletedError, NoWorkerError

SURE = {"max_retries": 100, "max_worker_losses": 100, "max_oom": 100}
"""Budgets that no run uses up: such a future must be realized."""
WAIT = 180.0


def submit_some(client: Any, rng: random.Random, marks: str, known: list[tuple[Any, int]]) -> list[Any]:
    """A handful of futures; `known` collects those that are sure, with their values, for others to depend on."""
    kind = rng.choices(
        [
            "add",
            "slow",
            "large",
            "chain",
            "fan",
            "put",
            "fail",
            "once",
            "die",
            "timeout",
            "cancel",
            "nested",
            "huge",
            "items",
            "actor",
        ],
        [6, 6, 4, 3, 2, 2, 2, 3, 1, 1, 2, 1, 1, 2, 2],
    )[0]
    value = rng.randrange(1_000_000)
    submit = partial(client.submit, keep=False)  # a name alone would keep it
    made: list[Any] = []
    if kind == "add":
        made = [submit(tasks.add, value, i, name=f"sure={value + i}", **SURE) for i in range(rng.randrange(1, 9))]
        known += [(f, value + i) for i, f in enumerate(made)]
    elif kind == "slow":
        made = [submit(tasks.slow, rng.uniform(0.005, 0.3), value, name=f"sure={value}", **SURE)]
        known += [(made[0], value)]
    elif kind == "large":
        size = tasks.LARGE + value
        made = [submit(tasks.large, size, name=f"length={size}", **SURE)]
        known += [(made[0], size)]
    elif kind == "chain":
        size = tasks.LARGE + value
        link, total = submit(tasks.large, size, name=f"length={size}", **SURE), size
        made = [link]
        for step in range(rng.randrange(1, 6)):
            link, total = submit(tasks.add, link, step, name=f"sure={total + step}", **SURE), total + step
            made.append(link)
    elif kind == "fan" and known:
        chosen = [rng.choice(known) for _ in range(rng.randrange(1, 7))]
        total = sum(v for _, v in chosen)
        made = [submit(tasks.add, *[f for f, _ in chosen], name=f"sure={total}", **SURE)]
    elif kind == "put":
        size = rng.choice([100, tasks.LARGE + value])
        try:
            put = client.put(b"p" * size, name=f"put={size}", keep=False)
        except NoWorkerError:
            return []  # a large object needs a worker at that moment, and there may be none
        made = [put, submit(tasks.add, put, 1, name=f"of-put={size + 1}", **SURE)]
    elif kind == "fail":
        made = [submit(tasks.fail, str(value), name=f"error={value}", max_retries=rng.randrange(3))]
    elif kind == "once":
        name = f"once={client.cluster}-{value}-{time.time_ns()}"
        made = [
            submit(
                tasks.once, marks, name[5:], rng.uniform(0, 0.2),
                name=name, max_retries=0, max_worker_losses=0, max_oom=0, allow_reconstruction=False,
            )
        ]  # fmt: skip
    elif kind == "die":
        made = [submit(tasks.die, value, name=f"sure={value}", **SURE)]
    elif kind == "timeout":
        made = [submit(tasks.slow, 600.0, value, name="timeout=", timeout=0.4, max_retries=0)]
    elif kind == "cancel":
        made = [submit(tasks.slow, rng.choice([0.0, 600.0]), value, name=f"cancel={value}", **SURE)]
        if rng.random() < 0.5:
            time.sleep(rng.uniform(0, 0.2))
        made[0].cancel()
    elif kind == "nested":
        count = rng.randrange(1, 5)
        made = [submit(tasks.nested, count, 0.02, name=f"sure={sum(range(count))}", **SURE)]
    elif kind == "items":
        count = rng.randrange(60)  # more would wait for a reader
        made = [submit(tasks.items, count, name=f"items={list(range(count))}", **SURE)]
    elif kind == "actor":
        actor = client.actor(tasks.Tally, max_restarts=rng.choice([0, 3]))
        made = [actor.add(1) for _ in range(rng.randrange(1, 30))]
        if rng.random() < 0.3:
            made.append(actor.large())
        if rng.random() < 0.5:
            submit(tasks.add, made[0], 1, name="of-call=", **SURE)
    elif kind == "huge":
        options = {"resources": {"cpu": 10_000}, "unschedulable_timeout": 1.0}
        made = [submit(tasks.add, value, name="unschedulable=", **options)]
    return made


def check(future: Any, wrong: list[str]) -> None:
    """Awaits a future and compares with what its name says."""
    kind, _, expected = future.name.partition("=")
    try:
        value = future.result(WAIT)
    except (CancelledError, FutureDeletedError):
        error: BaseException | None = CancelledError()
    except TimeoutError as exc:
        error = exc if kind == "timeout" else None
        if error is None:
            wrong.append(f"{future!r}: {exc}")
            return
    except Exception as exc:
        error = exc
    else:
        if kind in ("Tally.add", "Tally.large"):
            return
        found = len(value) if isinstance(value, (bytes, memoryview)) else value
        if kind in ("error", "timeout", "unschedulable") or str(found) != expected:
            wrong.append(f"{future!r} gave {found!r}")
        return
    if kind in ("sure", "length", "items"):
        wrong.append(f"{future!r} raised {type(error).__name__}: {error}")


def main() -> int:
    url, cluster, seed, marks = sys.argv[1:5]
    rng = random.Random(int(seed))
    wrong: list[str] = []
    known: list[tuple[Any, int]] = []
    made: list[Any] = []
    with Client(url, cluster) as client:
        for _ in range(rng.randrange(10, 40)):
            made += submit_some(client, rng, marks, known)
            if rng.random() < 0.3:
                time.sleep(rng.uniform(0, 0.2))
            if rng.random() < 0.2 and made:
                check(rng.choice(made), wrong)
        for future in made:
            if rng.random() < 0.6:  # the others are fire and forget
                check(future, wrong)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
