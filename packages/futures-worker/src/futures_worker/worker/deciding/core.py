"""The worker's decisions: events in, instructions out. No I/O, no clock, no randomness.

The shell calls `step(events, now)` whenever something happened or `deadline()` has come, and carries out what it
returns, in order. `now` is the shell's monotonic clock in seconds.

What the core guarantees:

- a task is sent to one child at a time; what a child has not begun can be given to another;
- at most `slots` tasks run at a time, those that wait for other futures not counted;
- a child's death is charged to the task it ran and to no other;
- no more than about `HORIZON` seconds of work are claimed ahead, and what turns out to be more is given back;
- finished tasks are reported at once, or within `LINGER` seconds while many short ones are ending.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fdb_datamodel import Claim
from futures_worker.worker.deciding import claimed, planning, reports
from futures_worker.worker.deciding.instructions import (
    ChildEnded,
    ChildSaid,
    ChildStarted,
    DrainAsked,
    Event,
    Fenced,
    InputsBroken,
    InputsLost,
    InputsReady,
    InputsShort,
    Instruction,
    MailArrived,
    MemoryShort,
    PeersSeen,
    Pushed,
    TakeBack,
    TasksReturned,
    TurnEnded,
    TurnRefused,
    WorkSignalled,
)
from futures_worker.worker.deciding.invariants import violations
from futures_worker.worker.deciding.reports import look_for_awaited
from futures_worker.worker.deciding.state import ACTOR, WorkerState
from futures_worker.worker.deciding.tasks import SHORT, ChildState, Task

REFUSED_PAUSE = 0.5
"""Seconds before a turn that the database refused is taken again."""


class WorkerCore(WorkerState):
    """The worker's state, moved by events."""

    __slots__ = ()

    def give_out_gpus(self, ids: tuple[str, ...]) -> None:
        """Before the first step: these gpus are given out one by one, the last may be less than a whole one."""
        self.gpus = ids
        self.devices = [min(1000, self.total.shape[2] - 1000 * at) for at in range(len(ids))]

    def step(self, events: Iterable[Event], now: float, looked: float) -> list[Instruction]:
        """Takes in what happened; returns what to do, in order.

        `looked`: all that the children had said by then is in these events or was in earlier ones. While a transaction
        runs they say more that nobody reads yet, so how long they have been silent is judged by `looked`, not by `now`.
        """
        self.now = now
        self.looked = looked
        self.out = []
        for event in events:
            _HANDLERS[type(event)](self, event)
        planning.plan(self)
        return self.out

    def validate(self) -> None:
        """Raises `AssertionError` where the state contradicts itself; for tests, after each step."""
        found = violations(self)
        if found:
            raise AssertionError("; ".join(found))

    def deadline(self) -> float | None:
        """When `step` must be called at the latest though nothing happened; None: only when something does."""
        return planning.deadline(self)

    @property
    def wants_work(self) -> bool:
        """Whether there is room for more claims: then the pool's bell matters."""
        return self.now >= self.claim_after and planning.claim_limit(self) > 0

    def lone(self) -> Claim | None:
        """The claim whose task runs, if nothing else is in hand and it ends within a moment."""
        if len(self.tasks) != 1 or self.outcomes:
            return None
        (task,) = self.tasks.values()
        known = self.pace.of(task.claim.code)
        return task.claim if task.seq >= 0 and known is not None and known <= SHORT else None

    def runs(self, future_id: bytes) -> bool:
        """Whether the task of a future has begun and not ended, as far as it is known. Callable from any thread."""
        return self.child_of(future_id) is not None

    def child_of(self, future_id: bytes) -> int | None:
        """The number of the child that runs the task of a future. Callable from any thread."""
        for number, child in list(self.children.items()):
            queue = tuple(child.queue)
            if queue and queue[0].claim.id == future_id:
                return number
        return None

    def in_hand(self) -> set[bytes]:
        """Ids whose claims this worker knows of, those that only wait to be reported included."""
        return self.tasks.keys() | {outcome.claim.id for outcome in self.outcomes}


def work_signalled(state: WorkerState, event: WorkSignalled) -> None:
    state.wants_claim = True
    state.watched = False
    if event.again:
        look_for_awaited(state)
    else:
        state.rung = True
        if state.ring_delay and not state.tasks and state.now >= state.claim_after:
            state.claim_after = state.now + state.ring_delay


def peers_seen(state: WorkerState, event: PeersSeen) -> None:
    state.stripe = (event.rank, event.count)
    # A heartbeat is old news: what counts is one that was made after there was something here to give.
    state.idle_elsewhere = event.idle_slots if state.stocked else 0
    state.stocked = len(state.ready) > state.slots
    state.idle_room = event.idle_room


def turn_refused(state: WorkerState, event: TurnRefused) -> None:
    """Nothing of it happened: its outcomes are the first of a later turn."""
    state.refused_until = state.now + REFUSED_PAUSE
    if event.turn.outcomes:
        if not state.outcomes:
            state.first_outcome = state.now
        state.outcomes[:0] = event.turn.outcomes
    state.wants_claim = state.wants_claim or event.turn.limit > 0


def mail(state: WorkerState, event: MailArrived) -> None:
    for entry in event.entries:
        task = state.tasks.get(entry.id)
        if task is None or task.cancelled or entry.epoch < task.claim.epoch:
            continue  # mail of an earlier epoch is about an attempt that is no more
        if entry.kind == "cancel":
            task.cancelled, task.grace = True, entry.grace
        elif entry.kind == "late":
            task.late = True
        else:
            continue
        if task in state.ready:
            state.ready.remove(task)
            state.dismissed(task)
        elif task.behind is not None and task.seq < 0 and not task.preparing:
            state.dismissed(task)
        elif task.seq >= 0:
            reach(state, task)


def reach(state: WorkerState, task: Task) -> None:
    """A task that was sent to a child is cancelled, or late: what it has begun is stopped, or left alone."""
    for child in state.children.values():
        if child.queue and child.queue[0] is task:
            if task.cancelled:
                state.stop(child)
            return
        if task in child.queue:
            state.out.append(TakeBack(child.number))
            return


def drain(state: WorkerState, event: DrainAsked) -> None:
    if not state.draining:
        state.draining = True
        state.drain_end = state.now + event.grace
        while state.ready:
            state.give_back(state.ready.popleft(), "drained")
        for task in held(state):
            state.give_back(task, "drained")
        for child in state.children.values():
            if child.state is ChildState.running and len(child.queue) > 1:
                state.out.append(TakeBack(child.number))
            if child.queue and child.queue[0].claim.name.startswith(ACTOR):
                state.kill(child, "drained")  # it would never end by itself
    else:
        state.drain_end = min(state.drain_end, state.now + event.grace)


def held(state: WorkerState) -> Iterator[Task]:
    """Tasks in no line that wait for another one of this worker, the last of a chain first."""
    for task in reversed(list(state.tasks.values())):
        if task.behind is not None and task.seq < 0 and not task.preparing:
            yield task


def fenced(state: WorkerState, event: Fenced) -> None:
    """Nothing held counts any more: stop all of it, and start anew under the identity the shell sets."""
    for child in list(state.children.values()):
        if child.queue:
            for task in child.queue:
                task.cancelled = True
            state.kill(child, "fenced")
    for task in list(state.tasks.values()):
        task.cancelled = True
    while state.ready:
        state.close(state.ready.popleft())
    for task in held(state):
        state.close(task)
    state.outcomes.clear()
    state.wants_claim = True
    state.claim_target = state.slots


_HANDLERS: dict[type[Event], Callable[[WorkerState, Any], None]] = {
    WorkSignalled: work_signalled,
    PeersSeen: peers_seen,
    TurnEnded: claimed.turn_ended,
    TurnRefused: turn_refused,
    InputsReady: claimed.inputs_ready,
    InputsLost: claimed.inputs_lost,
    InputsBroken: claimed.inputs_broken,
    InputsShort: claimed.inputs_short,
    ChildStarted: reports.child_started,
    ChildSaid: reports.child_said,
    TasksReturned: reports.tasks_returned,
    ChildEnded: reports.child_ended,
    MemoryShort: reports.memory_short,
    MailArrived: mail,
    Pushed: claimed.pushed,
    DrainAsked: drain,
    Fenced: fenced,
}
