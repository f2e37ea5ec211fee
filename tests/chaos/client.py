"""A client of a chaos run, as a process of its own: submits a seeded mix of futures and awaits some of them.

    python -m chaos.client URL CLUSTER SEED MARKS PORT,PORT...

Ends with 0 if every future that it awaited ended as its name says, else with 1 and what was wrong.
"""

from __future__ import annotations

import random
import sys
import time
from concurrent.futures import CancelledError
from typing import Any

from chaos import tasks
from chaos.actor_kinds import check_tallies
from chaos.kinds import WAIT, Scene, submit_some
from fdb_schema import open_database
from futures_worker import Client, FutureDeletedError

ANY_VALUE = ("Tally.add", "Tally.large", "Shared.add", "visit", "of-deleted")
NO_VALUE = ("error", "timeout", "unschedulable", "unpickle", "result-pickle", "oom", "cycle", "broken", "of-error")
SURE = ("sure", "length", "items", "stream", "keyed")


def check(future: Any, wrong: list[str]) -> None:
    """Awaits a future and compares with what its name says."""
    kind, _, expected = future.name.partition("=")
    try:
        value = future.result(WAIT)
    except (CancelledError, FutureDeletedError) as exc:
        error: BaseException = exc
    except TimeoutError as exc:
        if kind not in ("timeout", "late"):
            wrong.append(f"{future!r}: {exc}")
            return
        error = exc
    except Exception as exc:
        error = exc
    else:
        if kind in ANY_VALUE:
            return
        if kind == "stream":
            found: Any = len(value) if lengths(value) == tasks.mixed_lengths(len(value)) else lengths(value)
        else:
            found = len(value) if isinstance(value, (bytes, memoryview)) else value
        if kind in NO_VALUE or str(found) != expected:
            wrong.append(f"{future!r} gave {found!r}")
        return
    if kind in SURE and not (
        kind == "keyed" and isinstance(error, FutureDeletedError)
    ):  # collected, then asked for again
        wrong.append(f"{future!r} raised {type(error).__name__}: {error}")


def lengths(values: list[Any]) -> list[int]:
    """Items of `tasks.mixed`, with lengths in the place of bytes."""
    return [item if isinstance(item, int) else len(item) for item in values]


def main() -> int:
    url, cluster, seed, marks, ports = sys.argv[1:6]
    rng = random.Random(int(seed))
    wrong: list[str] = []
    made: list[Any] = []
    with Client(url, cluster) as client:
        scene = Scene(client, open_database(url), rng, marks, [int(port) for port in ports.split(",")], wrong)
        if rng.random() < 0.25:  # nothing else is pending: lone requests are pushed
            for number in range(rng.randrange(20, 300)):
                check(scene.submit(tasks.add, number, name=f"sure={number}", **tasks.SURE), wrong)
        for _ in range(rng.randrange(10, 40)):
            made += submit_some(scene)
            if rng.random() < 0.3:
                time.sleep(rng.uniform(0, 0.2))
            if rng.random() < 0.2 and made:
                check(rng.choice(made), wrong)
            if rng.random() < 0.2 and made:
                made.pop(rng.randrange(len(made)))  # a handle goes while others wait for the future
        check_tallies(scene)
        for future in made:
            if rng.random() < 0.6:  # the others are fire and forget
                check(future, wrong)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
