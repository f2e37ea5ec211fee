"""What holds of a worker's state between any two steps. Tests ask after each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from futures_worker.worker.deciding.state import WorkerState
from futures_worker.worker.deciding.tasks import ChildState, Task


def violations(state: WorkerState) -> list[str]:
    """Every invariant that doesn't hold, as a sentence."""
    return [*_of_tasks(state), *_of_chains(state), *_of_children(state), *_of_sums(state), *_of_named_and_gpus(state)]


def _of_tasks(state: WorkerState) -> Iterator[str]:
    sent = {id(task) for child in state.children.values() for task in child.queue}
    for key, task in state.tasks.items():
        if key != task.claim.id:
            yield f"{task.label} is kept as {key.hex()}"
        if (task.seq >= 0) != (id(task) in sent):
            yield f"{task.label} has the number {task.seq} and is {'' if id(task) in sent else 'not '}in a child's queue"
    line = Counter(id(task) for task in state.ready)
    for task in state.ready:
        if line[id(task)] > 1 or task.seq >= 0 or task.preparing or task.behind is not None:
            yield f"{task.label} is ready, and is elsewhere, too"
        if state.tasks.get(task.claim.id) is not task:
            yield f"{task.label} is ready, and not in hand"


def _of_chains(state: WorkerState) -> Iterator[str]:
    behind = [task for task in state.tasks.values() if task.behind is not None]
    for task in behind:
        if task.behind is not None and task.behind.follower is not task:
            yield f"{task.label} waits for {task.behind.label}, which doesn't know of it"
    if state.following != len(behind):
        yield f"{state.following} tasks are counted as behind others, and {len(behind)} are"


def _of_children(state: WorkerState) -> Iterator[str]:
    blocked = [child for child in state.children.values() if child.state is ChildState.blocked]
    if state.waiting != len(blocked):
        yield f"{state.waiting} children are counted as waiting, and {len(blocked)} are"
    if state.residents != sum(child.resident for child in blocked):
        yield f"{state.residents} residents are counted, and {sum(child.resident for child in blocked)} are there"
    for child in state.children.values():
        numbers = [task.seq for task in child.queue]
        if numbers != sorted(set(numbers)):
            yield f"child {child.number} has tasks {numbers} in line"
        if child.state is ChildState.starting and child.queue:
            yield f"child {child.number} has tasks before it was forked"
        if child.state is ChildState.dying and not child.kill_reason:
            yield f"child {child.number} is dying for no reason"


def _of_sums(state: WorkerState) -> Iterator[str]:
    tasks = list(state.tasks.values())
    waiting: list[Task] = [c.queue[0] for c in state.children.values() if c.state is ChildState.blocked and c.queue]
    used = [
        sum(t.cpu for t in tasks) - sum(t.cpu for t in waiting),
        sum(t.ram for t in tasks),
        sum(t.gpu for t in tasks),
    ]
    if state.used != used:
        yield f"{state.used} is counted as taken, and {used} is"
    preparing = sum(task.preparing for task in tasks)
    if state.preparing != preparing:
        yield f"{state.preparing} tasks are counted as waiting for inputs, and {preparing} are"
    codes = Counter(task.claim.code for task in tasks if task.behind is None)
    if state.codes != codes:
        yield f"{state.codes} are counted by code, and {dict(codes)} are in hand"


def _of_named_and_gpus(state: WorkerState) -> Iterator[str]:
    tasks = list(state.tasks.values())
    named: Counter[str] = Counter()
    for task in tasks:
        named.update(dict(task.named))
    if {name: amount for name, amount in state.used_named.items() if amount} != dict(named):
        yield f"{state.used_named} is counted as taken of what is named, and {dict(named)} is"
    taken: Counter[int] = Counter()
    for task in tasks:
        taken.update(dict(task.devices))
    for at, free in enumerate(state.devices):
        if free < 0 or free + taken[at] != min(1000, state.total.shape[2] - 1000 * at):
            yield f"{free} of gpu {state.gpus[at]} is counted as free, and {taken[at]} is taken"
