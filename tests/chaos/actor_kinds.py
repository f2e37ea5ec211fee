"""The kinds with actors, which keep state: what their calls answer tells whether each ran once and in order."""

from __future__ import annotations

from typing import Any

from chaos import tasks
from chaos.kinds import ACTOR_NAMES, WAIT, Scene, kind
from chaos.tasks import SURE
from futures_worker import ActorDiedError, FutureDeletedError, MainspringError


@kind(2)
def _actor(s: Scene, value: int) -> list[Any]:
    restarts = s.rng.choice([0, 3])
    actor = s.client.actor(tasks.Tally, max_restarts=restarts)
    calls = [actor.add(1) for _ in range(s.rng.randrange(1, 30))]
    made = [actor.large()] if s.rng.random() < 0.3 else []
    numbers = [future for future, _ in s.known if future.name.startswith("sure=")]
    if numbers and s.rng.random() < 0.3:
        made.append(actor.add(s.rng.choice(numbers)))
    if s.rng.random() < 0.5:
        s.submit(tasks.add, calls[0], 1, name="of-call=", **SURE)
    if s.rng.random() < 0.3:
        made.append(s.submit(tasks.visit, actor, 3, name="visit="))  # adds between the calls
    else:
        s.tallies.append((calls, restarts))
    if s.rng.random() < 0.2:
        s.client.kill_actor(actor)
    return [*calls, *made]


@kind(1)
def _roomy_actor(s: Scene, value: int) -> list[Any]:
    """One that holds a slot while it lives."""
    actor = s.client.actor(tasks.Tally, max_restarts=3, resources={"cpu": 1, "ram": "1MiB"})
    calls = [actor.add(1) for _ in range(5)]
    for call in calls:
        try:
            call.result(WAIT)
        except ActorDiedError:
            break
    s.client.kill_actor(actor)
    s.tallies.append((calls, 3))
    return calls


@kind(2)
def _shared_actor(s: Scene, value: int) -> list[Any]:
    actor = s.client.actor(tasks.Shared, name=s.rng.choice(ACTOR_NAMES), max_restarts=s.rng.choice([0, 3, -1]))
    made = [actor.add(1) for _ in range(s.rng.randrange(1, 10))]
    if s.rng.random() < 0.3:
        made.append(s.submit(tasks.visit, actor, 3, name="visit="))
    if s.rng.random() < 0.1:
        s.client.kill_actor(actor)
    return made


def check_tallies(scene: Scene) -> None:
    """An actor's calls ran in their order, each once: every total is one more than that before, or the first of a start."""
    for calls, restarts in scene.tallies:
        last, starts, lost = 0, 0, 0
        for call in calls:
            try:
                total = call.result(WAIT)
            except (ActorDiedError, FutureDeletedError):
                lost += 1  # it may have run, and what it answered got lost
                continue
            except MainspringError as error:
                scene.wrong.append(f"{call!r} raised {type(error).__name__}: {error}")
                continue
            starts += total == 1
            expected = {first + 1 + skipped for first in (0, last) for skipped in range(lost + 1)}
            if total not in expected or starts > restarts + 1:
                text = f"{call!r} gave {total} after {last} and {lost} lost ones, in start {starts} of {restarts + 1}"
                scene.wrong.append(text)
            last, lost = total, 0
