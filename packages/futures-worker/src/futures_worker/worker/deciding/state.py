"""What the worker's core holds, and the few steps that keep it consistent. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from fdb_datamodel import Capacity, FutureResult, Outcome, Requirements, Shape, WorkerId, named_of, shape_of
from futures_worker.worker.deciding.instructions import (
    ForgetTask,
    Instruction,
    InterruptTask,
    KillChild,
    PrepareInputs,
)
from futures_worker.worker.deciding.tasks import Child, ChildState, Home, Pace, Task
from futures_worker.worker.messages import CANCEL, PARCEL_BYTES

ACTOR = "actor "
"""What the names of actors' own futures start with."""
INPUT_GONE = "its input came to nothing"
SHORT_PAUSE, SHORT_MOST = 0.5, 30.0
"""Seconds that a worker claims nothing after its host was short of something: the first time, and at most."""


@dataclass(slots=True)
class Counters:
    """What the worker did, for people."""

    claimed: int = 0
    realized: int = 0
    failed: int = 0
    given_back: int = 0
    children_lost: int = 0
    turns: int = 0


@dataclass(slots=True)
class WorkerState:
    """State of one worker. `total` is what the machine offers, `slots` how many tasks run at once."""

    worker: WorkerId
    slots: int
    total: Requirements
    counters: Counters = field(default_factory=Counters)
    pace: Pace = field(default_factory=Pace)
    children: dict[int, Child] = field(default_factory=dict)
    tasks: dict[bytes, Task] = field(default_factory=dict)  # by future id: everything claimed
    ready: deque[Task] = field(default_factory=deque)  # of these, what can be sent to a child
    codes: dict[bytes, int] = field(
        default_factory=dict
    )  # how many of these have which code, those that follow left out
    overtaken: Task | None = None  # the first in line, where no child is of its home, and others went before it
    overtaken_since: float = 0.0
    following: int = 0  # of these, how many wait for another one of these
    preparing: int = 0  # of these, how many wait for their inputs
    outcomes: list[Outcome] = field(default_factory=list)  # to be reported by the next turn
    first_outcome: float = 0.0  # when the first of them came
    used: list[int] = field(default_factory=lambda: [0, 0, 0])  # shape of all tasks, but the cpu of waiting ones
    gpus: tuple[str, ...] = ()  # ids of the gpus that are given out one by one
    devices: list[int] = field(default_factory=list)  # thousandths that are free of each
    used_named: dict[str, int] = field(default_factory=dict)  # the same of named resources
    wants_claim: bool = True  # the pool may hold work
    watched: bool = False  # a bell would have told of work that came to the pool since it was found empty
    rung: bool = False  # a ring is to be answered
    empty_rings: int = 0  # rings in a row after which the pool was found empty: others were faster
    ring_delay: float = 0.0  # seconds to leave a ring to those others
    sated: bool = False  # what comes next in the pool takes longer than what may be claimed ahead
    refused_until: float = 0.0  # the database refuses turns: until when none is tried
    short_until: float = 0.0  # until when nothing is claimed, as the host is short of something
    short_pause: float = 0.0  # how long that was the last time; 0 once a task ended well
    claim_after: float = 0.0  # until when the last ring is left to them
    stripe: tuple[int, int] = (0, 1)
    idle_elsewhere: int = 0  # slots of other workers that had nothing to do when they last said so
    stocked: bool = False  # whether work was in line here when they last said so
    idle_room: Shape = (0, 0, 0)  # what one of them has free
    per_turn: int = 500  # claims or outcomes of one transaction: as many as planning allows, fewer where those are slow
    turn_seconds: float = 0.0  # that the last turns took
    claim_target: int = 0  # tasks to have in hand, doubled while the pool gives as many as asked for
    passed: bool = False  # whether the last claim met entries that don't fit
    blocked_shapes: tuple[Requirements, ...] = ()  # what the pool holds that doesn't fit now
    blocked_since: dict[Shape, float] = field(default_factory=dict)  # of these, since when each has been seen
    next_survey: float = 0.0  # of the shapes that nothing is claimed of
    hold_for: Shape | None = None  # what waited too long: nothing else is claimed until it fits
    hold_until: float = 0.0  # but no longer than this
    draining: bool = False
    drain_end: float = 0.0  # when what still runs is given back
    finished: bool = False
    waiting: int = 0  # children whose task waits for another future
    residents: int = 0  # of these, actors: they hold no slot for as long as they live
    wanted: list[bytes] = field(default_factory=list)  # what they wait for and nobody may have begun: claimed first
    overcommit: bool = False  # and claimed whatever is free: nothing else can go on here
    staff_changed: bool = True  # whether children may have to be forked or retired
    capacity: tuple[tuple[object, ...], Capacity] | None = None  # what was last offered, and what it was made from
    retire_at: float = 0.0  # when a child that is idle beyond the slots ends; 0: there is none
    retired_at: float = -60.0  # when one ended so
    keep_until: float = 0.0  # as one was wanted again soon after another had ended, they are kept a while
    next_child: int = 0
    spawn_after: float = 0.0
    next_review: float = 0.0  # of how much work is in hand
    out: list[Instruction] = field(default_factory=list)  # of the step being made
    now: float = 0.0  # of the step being made
    looked: float = 0.0  # all that the children had said by then was taken in: their silence is judged by this

    @property
    def free(self) -> Requirements:
        """Resources not taken by what is in hand."""
        cpu, ram, gpu = self.total.shape[:3]
        used = self.used
        taken = self.used_named
        named = tuple((name, max(0, have - taken.get(name, 0))) for name, have in named_of(self.total.shape))
        free = max(0, cpu - used[0]), max(0, ram - used[1]), max(0, gpu - used[2])
        return Requirements.from_shape(shape_of(*free, named))

    @property
    def running(self) -> int:
        """Slots taken."""
        return sum(1 for c in self.children.values() if c.queue and c.state is ChildState.running)

    @property
    def free_slots(self) -> int:
        """Slots that nothing in hand will take, for others to know."""
        return 0 if self.draining else max(0, self.slots - (len(self.tasks) - self.waiting - self.following))

    @property
    def idle(self) -> bool:
        """Whether nothing is in hand and nothing waits to be reported."""
        return not self.tasks and not self.outcomes

    def digests_in_hand(self) -> set[bytes]:
        """The codes that tasks in hand need."""
        return {task.digest for task in self.tasks.values()}

    def folders_in_hand(self) -> set[bytes]:
        """The folders that tasks in hand run in, and children. Callable from any thread."""
        homes = [task.home for task in list(self.tasks.values())]
        homes += [child.home for child in list(self.children.values()) if child.home is not None]
        return {home.folder for home in homes}

    def home_of(self, task: Task) -> Home:
        """What a task runs in, with the gpus that it has."""
        if not self.gpus:
            return task.home
        return task.home._replace(gpus=",".join(self.gpus[at] for at, _ in task.devices))

    def count(self, task: Task, change: int) -> None:
        """One task more, or less, that takes up time of a slot."""
        code = task.claim.code
        number = self.codes.get(code, 0) + change
        if number:
            self.codes[code] = number
        else:
            del self.codes[code]

    def end(self, task: Task, outcome: Outcome) -> None:
        """The task ended here with an outcome to report."""
        if not self.outcomes:
            self.first_outcome = self.now
        self.outcomes.append(outcome)
        self.close(task)

    def give_back(self, task: Task, reason: str, *, started: bool = False) -> None:
        """The task goes back unfinished, charged nothing. `started`: it may have begun."""
        self.counters.given_back += 1
        self.end(task, Outcome.relinquished(task.claim, reason, started=started))

    def overfull(self, task: Task) -> bool:
        """Whether more of gpus or a named resource is taken than there is, since the task was taken on."""
        if task.gpu and self.gpus and not task.devices:
            return True
        have = dict(named_of(self.total.shape)) if task.named else {}
        return any(self.used_named[name] > have.get(name, 0) for name, _ in task.named)

    def abstain(self) -> None:
        """The host is short of something: leave the pool to others for a while, longer each time in a row."""
        if self.now >= self.short_until:
            self.short_pause = min(SHORT_MOST, max(SHORT_PAUSE, 2 * self.short_pause))
            self.short_until = self.now + self.short_pause
            self.wants_claim = True

    def close(self, task: Task) -> None:
        """The task ended here; what it took is free again."""
        if task.closed:
            return
        task.closed = True
        used = self.used
        used[0] -= task.cpu
        used[1] -= task.ram
        used[2] -= task.gpu
        for name, amount in task.named:
            self.used_named[name] -= amount
        for at, amount in task.devices:
            self.devices[at] += amount
        self.sated = False
        if (
            self.blocked_shapes
        ):  # for what is free now, perhaps; also where there is nothing to report, by whose turn it would be found
            self.wants_claim = True
        if task.behind is not None:
            self.detach(task)
        if self.tasks.get(task.claim.id) is task:
            del self.tasks[task.claim.id]
            self.count(task, -1)
        if task.parcels:
            self.out.append(ForgetTask(task))
        self.release_follower(task)

    # --- chains: tasks claimed ahead, behind another task of this worker

    def attach(self, task: Task, upstream: Task) -> None:
        """The task was claimed ahead: it waits for the result of `upstream`, which is in hand."""
        task.behind, upstream.follower = upstream, task
        self.following += 1
        self.count(task, -1)

    def detach(self, task: Task) -> None:
        """The task waits for nothing of this worker any more."""
        upstream, task.behind = task.behind, None
        if upstream is not None:
            upstream.follower = None
            self.following -= 1
            self.count(task, 1)

    def hand_on(self, task: Task, result: FutureResult) -> None:
        """The task has its result: what was claimed behind it can begin."""
        follower = task.follower
        if follower is None:
            return
        self.detach(follower)
        claim = follower.claim
        claim.inputs = {**claim.inputs, task.claim.id: result}
        if follower.seq < 0 and not follower.preparing:
            self.line_up(follower)

    def line_up(self, task: Task) -> None:
        """A task that waits for nothing here: to be sent first, or its inputs to be brought where they aren't."""
        found = task.dependencies
        if not isinstance(found, list) or None not in found:
            self.ready.appendleft(task)
            return
        at = found.index(None)
        value = task.claim.inputs[task.claim.dependencies[at]].inline
        size = len(task.args) + sum(len(one) for one in found if one)
        if value is not None and not task.large and len(value) + size <= PARCEL_BYTES:
            found[at] = value
            self.ready.appendleft(task)
        else:
            task.preparing, task.large = True, False
            self.preparing += 1
            self.out.append(PrepareInputs([task]))

    def release_follower(self, task: Task) -> None:
        """What was claimed behind the task goes back: nothing comes of the task, or it waits for readers of what it yields,
        and goes on if it is seen in the database that something depends on it.
        """
        if task.follower is not None:
            self._orphan(task.follower)

    def _orphan(self, task: Task) -> None:
        """What it was claimed behind ended without a result: it goes back, and with it what is behind it."""
        self.detach(task)
        task.orphaned = True
        if task.seq < 0 and not task.preparing:
            self.let_go(task)

    def let_go(self, task: Task) -> None:
        """An orphan that nobody works on any more."""
        if task.cancelled:
            self.close(task)
        else:
            self.give_back(task, INPUT_GONE)

    def return_tasks(self, child: Child, seqs: Iterable[int]) -> None:
        """Tasks a child has not begun: first in line for another one."""
        back = [task for task in map(child.take, seqs) if task is not None]
        for task in reversed(back):
            task.seq = -1
            if not self.dismissed(task) and task.behind is None:
                self.line_up(task)

    def dismissed(self, task: Task) -> bool:
        """Whether a task that hasn't begun will not run here; it is then closed, let go, or given back."""
        if task.cancelled:
            self.close(task)
        elif task.orphaned:
            self.let_go(task)
        elif self.draining:
            self.give_back(task, "drained")
        elif task.late:
            self.give_back(task, "late")
        else:
            return False
        return True

    def awaited(self) -> set[bytes]:
        """What tasks of this worker wait for."""
        return {one for child in self.children.values() for one in child.awaits} if self.waiting else set()

    def resumed(self, child: Child) -> None:
        """The child's task waits no more: it takes its cpu again, whether or not that is free."""
        if child.state is not ChildState.blocked:
            return
        child.become(ChildState.running)
        child.awaits = ()
        child.expected_until = 0.0
        self.waiting -= 1
        if child.resident:
            child.resident = False
            self.residents -= 1
        self.staff_changed = True
        if child.queue:
            self.used[0] += child.queue[0].cpu

    def stop(self, child: Child) -> None:
        """The first task of a child is cancelled: it is told so and killed later, or killed now if it has no grace."""
        task = child.queue[0]
        if child.state is ChildState.dying or child.kill_by:
            return
        if not task.grace or task.claim.name.startswith(ACTOR):
            self.kill(child, "cancelled")
            return
        child.kill_by = self.now + task.grace
        self.out.append(InterruptTask(child.number, task.seq, CANCEL))

    def kill(self, child: Child, reason: str) -> None:
        """Kills a child, once; `reason` decides what becomes of the task it runs."""
        if child.state is ChildState.dying:
            return
        if child.state is ChildState.blocked:
            self.resumed(child)
        child.become(ChildState.dying)
        self.staff_changed = True
        child.kill_reason = reason
        child.killed_for = child.queue[0] if child.queue else None
        self.out.append(KillChild(child.number))
