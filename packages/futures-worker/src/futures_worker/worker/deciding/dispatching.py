"""Which children there are, and which tasks each is sent, decided from the worker's state alone. No I/O."""

from __future__ import annotations

from collections import Counter, deque
from itertools import islice

from futures_worker.worker.deciding.instructions import RetireChild, SendTasks, SpawnChild, TakeBack
from futures_worker.worker.deciding.state import WorkerState
from futures_worker.worker.deciding.tasks import Child, ChildState, Task
from futures_worker.worker.messages import PACKET_SECONDS

WINDOW = 0.004
"""Seconds of work sent to a child ahead of what it runs; more where a turn takes longer, in which nothing can be sent."""
MOST_COVERED = 0.05
"""Seconds of a turn that more is claimed, and sent, for: a database that once takes longer may be quick again."""
MOST_SENT = 128
"""Tasks sent to a child ahead at most."""
PER_PACKET = 14
"""Tasks of one packet at most (what one byte of msgpack can count, with the time of sending)."""
STEADY = 50
"""Short runs in a row after which a function's tasks share packets; what shares a packet can't be taken back singly."""
STUCK = 0.01
"""Seconds after which tasks queued behind a running one are taken back."""
SKIPS = PACKET_SECONDS + 0.05
"""Seconds of a running task after which its child surely won't begin what shares the packet."""
SPARE_SECONDS = 2.0
"""Seconds that a child which ran tasks is kept though its slot is another's again, once it was seen that such children are soon
wanted: what one has loaded and opened costs as much as dozens of tasks."""
WANTED_AGAIN = 5.0
"""Seconds between the end of a child and the fork of another in which the former would have been wanted."""
KEEPING = 60.0
"""Seconds for which that is remembered."""
MOST_SPARE = 16
"""Children kept so at most."""
MOST_CHILDREN = 4096
"""Children at most, those that wait for other futures included."""
TOO_DEEP = "nested too deep"
"""Why a child is killed when every one of `MOST_CHILDREN` waits for futures that no process is left to run."""
LEAVE_SECONDS = 5.0
"""Seconds that a child has to end which is told to, or said that it will; then it is killed."""
MOST_LOOKED_AT = 256
"""Tasks in line that are looked at for one of a child's home."""
OVERTAKING = 0.2
"""Seconds for which tasks of homes that have children go before the first in line, which has none."""


def staff(state: WorkerState) -> None:
    """One child per slot that takes tasks: more are forked while some wait, and end when those are back.

    A child keeps to what its first task runs in (its home). Of what waits in another home as many more are forked as slots are free,
    and idle ones of homes that nothing waits in end for it.
    """
    if state.now < state.spawn_after:
        return
    state.staff_changed = False
    state.retire_at = 0.0
    active = [c for c in state.children.values() if c.state in (ChildState.starting, ChildState.running)]
    homeless = _homeless(state, active)
    lacking = min(max(state.slots - len(active), homeless), MOST_CHILDREN - len(state.children))
    if not active and lacking <= 0 and state.slots:
        state.kill(max(state.children.values(), key=lambda child: (not child.resident, child.number)), TOO_DEEP)
    if lacking > 0 and state.now < state.retired_at + WANTED_AGAIN:
        state.keep_until = state.now + KEEPING
    for _ in range(lacking):
        child = Child(state.next_child)
        state.next_child += 1
        state.children[child.number] = child
        state.out.append(SpawnChild(child.number))
    _retire(state, active, max(0, lacking))


def _retire(state: WorkerState, active: list[Child], forked: int) -> None:
    """End what is idle beyond the slots. While tasks wait, as many more are kept idle: the next one that waits needs no fork."""
    surplus = len(active) + forked - state.slots * (2 if state.waiting > state.residents else 1)
    wanted = {task.home for task in islice(state.ready, MOST_LOOKED_AT)} if surplus > 0 and state.ready else set()
    if len(wanted.union(child.home for child in active if child.home is not None)) < 2:
        wanted = set()  # all is of one home: any child will do
    for child in reversed(active):  # the older ones have more loaded
        if surplus <= 0:
            return
        if (
            child.state is not ChildState.running
            or child.queue
            or (wanted and (child.home is None or child.home in wanted))
        ):
            continue
        due = child.head_since + SPARE_SECONDS
        if child.ran and surplus <= MOST_SPARE and state.now < min(due, state.keep_until):
            state.retire_at = min(state.retire_at or due, due)
            continue
        child.become(ChildState.dying)
        child.kill_reason = "retired"
        state.retired_at = state.now
        state.out.append(RetireChild(child.number))
        surplus -= 1
    state.staff_changed = surplus > 0 and not state.retire_at  # they are busy: look again


def _homeless(state: WorkerState, active: list[Child]) -> int:
    """Tasks in line for which a slot is free, and no child: those that are idle, or about to be, are of other homes."""
    room = state.slots - sum(1 for child in active if child.queue)
    if not state.ready or room <= 0:
        return 0
    idle = Counter(child.home for child in active if not child.queue)
    lacking = 0
    for task in islice(state.ready, room):
        home = task.home if idle[task.home] else None
        if idle[home]:
            idle[home] -= 1
        else:
            lacking += 1
    return lacking


def dispatch(state: WorkerState) -> None:
    """Send what is in line to children that run what is of its home, or nothing yet."""
    ready = state.ready
    if not ready:
        return
    takers = [c for c in state.children.values() if c.state is ChildState.running]
    busy = sum(1 for c in takers if c.queue)
    takers.sort(key=lambda c: (len(c.queue), c.home is None))
    for position, child in enumerate(takers):
        if not ready:
            break
        if child.full or (not child.queue and busy >= state.slots) or stuck(state, child):
            continue
        if child.state is not ChildState.running:
            continue  # ended for one before
        at = _next_for(state, child, busy)
        if at is None:
            continue
        known = state.pace.of(ready[at].claim.code)
        window = 1 if known is None else max(1, min(MOST_SENT, int(_ahead_of(state, known) / max(known, 1e-6))))
        room = window - len(child.queue)
        if room <= 0:
            continue
        if ready[at].devices and not _let_go_of(state, child, ready[at]):
            continue
        if at:
            first = ready[at]
            del ready[at]
            ready.appendleft(first)
        share = -(-len(ready) // (len(takers) - position))
        batch = _like_the_first(ready, min(room, share, len(ready)))
        _with_followers(batch, room)
        if not child.queue:
            busy += 1
            child.head_since = state.now
        _send(state, child, batch)
    if ready and busy < state.slots:
        staff(state)  # children of other homes are idle


def _ahead_of(state: WorkerState, known: float) -> float:
    """Seconds of work to send to a child at a time, of tasks that take `known` each."""
    return max(WINDOW, min(state.turn_seconds, MOST_COVERED)) if known <= STUCK else WINDOW


def _let_go_of(state: WorkerState, child: Child, task: Task) -> bool:
    """Whether no other process has used a gpu of the task's and may still hold what it put there; idle ones are ended for it."""
    mine = {at for at, _ in task.devices}
    clear = True
    for other in state.children.values():
        if other is child or other.home is None or not other.home.gpus:
            continue
        if mine.isdisjoint(state.gpus.index(one) for one in other.home.gpus.split(",")):
            continue
        if other.state is ChildState.running and not other.queue and not (other.home == task.home and task.gpu < 1000):
            _end_idle(state, other)
        clear = clear and other.state is not ChildState.dying
    return clear


def _end_idle(state: WorkerState, child: Child) -> None:
    child.become(ChildState.dying)
    child.kill_reason = "retired"
    child.leave_by = state.now + LEAVE_SECONDS
    state.staff_changed = True
    state.out.append(RetireChild(child.number))


def _send(state: WorkerState, child: Child, batch: list[Task]) -> None:
    seq = child.next_seq
    per_packet = PER_PACKET if state.pace.streak(batch[0].claim.code) >= STEADY else 1
    for task in batch:
        task.seq = seq
        task.skippable = per_packet > 1 or task.behind is not None
        seq += 1
    child.home = batch[0].home
    child.next_seq = seq
    child.queue.extend(batch)
    child.rescued = False
    state.out.append(SendTasks(child.number, batch, per_packet, state.now))


def _next_for(state: WorkerState, child: Child, busy: int) -> int | None:
    """Where in line is what a child is sent next: the first, or if that is of another home the first of the child's own.

    For a moment only: then a slot is left to what is overtaken.
    """
    ready = state.ready
    head = ready[0]
    if child.home is None or child.home == head.home:
        return 0
    if state.overtaken is not head:
        state.overtaken, state.overtaken_since = head, state.now
    if state.now - state.overtaken_since >= OVERTAKING and busy >= state.slots - (0 if child.queue else 1):
        return None
    return next((at for at, task in enumerate(islice(ready, MOST_LOOKED_AT)) if task.home == child.home), None)


def _like_the_first(ready: deque[Task], most: int) -> list[Task]:
    """Takes tasks of one function off the line: what is expected of the first holds for all of them."""
    batch = [ready.popleft()]
    digest = batch[0].digest
    while len(batch) < most and ready[0].digest == digest and ready[0].home == batch[0].home:
        batch.append(ready.popleft())
    return batch


def _with_followers(batch: list[Task], room: int) -> None:
    """Adds what was claimed behind these tasks, each after the one whose result it takes, as far as there is room."""
    for task in batch:
        follower = task.follower
        if len(batch) >= room:
            return
        if (
            follower is not None
            and follower.seq < 0
            and follower.digest == batch[0].digest
            and follower.home == batch[0].home
            and not (follower.preparing or follower.large or follower.cancelled)
        ):
            batch.append(follower)


def rescue(state: WorkerState) -> None:
    """Tasks queued behind a long one come back: for another child, or for the pool if they are too many."""
    for child in state.children.values():
        if child.state is ChildState.running and len(child.queue) > 1 and stuck(state, child):
            if not child.rescued:
                child.rescued = True
                state.out.append(TakeBack(child.number))
            elif state.looked - child.head_since >= SKIPS:
                state.return_tasks(child, [task.seq for task in child.queue if task is not child.queue[0]])


def stuck(state: WorkerState, child: Child) -> bool:
    """Whether a child's first task has run for so long that nothing is sent behind it."""
    return len(child.queue) > 0 and silence(state, child) >= stuck_after(state, child)


def stuck_after(state: WorkerState, child: Child) -> float:
    """Seconds of a child's first task after which it is: twice what such a task takes, where that is short enough to be sent ahead."""
    known = state.pace.of(child.queue[0].claim.code)
    return max(STUCK, 2 * known) if known is not None and known <= STUCK else STUCK


def silence(state: WorkerState, child: Child) -> float:
    """Seconds for which a child's first task has run, at least if others came before it."""
    return state.looked - child.head_since
