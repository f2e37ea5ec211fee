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

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from fdb_datamodel import Capacity, Failure, FutureResult, Outcome, Requirements, WorkerId
from futures_worker.worker import messages
from futures_worker.worker.instructions import (
    ChildEnded,
    ChildSaid,
    ChildStarted,
    DrainAsked,
    DropObject,
    Event,
    Fenced,
    Finish,
    ForgetTask,
    InputsBroken,
    InputsLost,
    InputsReady,
    Instruction,
    KillChild,
    MailArrived,
    PrepareInputs,
    Rang,
    RetireChild,
    RunTurn,
    SendTasks,
    SpawnChild,
    TakeBack,
    TasksReturned,
    TurnEnded,
)
from futures_worker.worker.tasks import Child, ChildState, Pace, Task

HORIZON = 0.5
"""Seconds of work claimed ahead at most, by what tasks took so far."""
MOST_WORK = 1.0
"""Seconds of work in hand beyond which the excess is given back to the pool."""
REVIEW = 0.2
"""Seconds between looks at whether too much work is in hand."""
MOST_IN_HAND = 2000
"""Tasks in hand at most, however short."""
MOST_PER_TURN = 500
"""Claims of one transaction, and outcomes, at most."""
WINDOW = 0.004
"""Seconds of work sent to a child ahead of what it runs."""
MOST_SENT = 128
"""Tasks sent to a child ahead at most."""
SHORT = 0.0002
"""Seconds up to which tasks share a packet."""
PER_PACKET = 15
"""Tasks of one packet at most (what one byte of msgpack can count)."""
LINGER = 0.001
"""Seconds that outcomes wait for more while short tasks are ending."""
STUCK = 0.01
"""Seconds after which tasks queued behind a running one are taken to an idle child."""
MOST_CHILDREN = 512
"""Children at most, those that wait for other futures included."""
RESPAWN_PAUSE = 0.5
"""Seconds before a child that died without having run anything is replaced."""


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
class WorkerCore:
    """State of one worker. `total` is what the machine offers, `slots` how many tasks run at once."""

    worker: WorkerId
    slots: int
    total: Requirements
    counters: Counters = field(default_factory=Counters)
    pace: Pace = field(default_factory=Pace)
    children: dict[int, Child] = field(default_factory=dict)
    ready: deque[Task] = field(default_factory=deque)
    tasks: dict[bytes, Task] = field(default_factory=dict)  # by future id: everything claimed
    blocked_shapes: tuple[Requirements, ...] = ()
    draining: bool = False
    _preparing: int = 0
    _outcomes: list[Outcome] = field(default_factory=list)
    _first_outcome: float = 0.0
    _ambition: int = 0
    _wants_claim: bool = True
    _used: list[int] = field(default_factory=lambda: [0, 0, 0])
    _next_child: int = 0
    _spawn_after: float = 0.0
    _next_review: float = 0.0
    _drain_end: float = 0.0
    _finished: bool = False
    _out: list[Instruction] = field(default_factory=list)
    _now: float = 0.0

    # --- what the shell asks ------------------------------------------------------------------------------------------

    def step(self, events: Iterable[Event], now: float) -> list[Instruction]:
        """Takes in what happened; returns what to do, in order."""
        self._now = now
        self._out = []
        for event in events:
            _HANDLERS[type(event)](self, event)
        self._plan()
        return self._out

    def deadline(self) -> float | None:
        """When `step` must be called at the latest though nothing happened; None: only when something does."""
        times = []
        if self._outcomes:
            times.append(self._first_outcome + LINGER)
        if self._spawn_after > self._now and len(self.children) < self.slots:
            times.append(self._spawn_after)
        if self.draining:
            times.append(self._drain_end)
        idle = self._has_idle_child()
        for child in self.children.values():
            if not child.queue or child.state is ChildState.dying:
                continue
            limit = child.queue[0].claim.run_timeout
            if limit is not None:
                times.append(child.head_since + limit)
            if len(child.queue) > 1 and child.state is ChildState.running and not child.rescued and idle:
                times.append(child.head_since + STUCK)
        if len(self.ready) > self.slots:
            times.append(self._next_review)
        return min(times) if times else None

    @property
    def free(self) -> Requirements:
        """Resources not taken by what is in hand."""
        cpu, ram, gpu = self.total.shape
        used = self._used
        return Requirements.from_shape((max(0, cpu - used[0]), max(0, ram - used[1]), max(0, gpu - used[2])))

    @property
    def running(self) -> int:
        """Slots taken."""
        return sum(1 for c in self.children.values() if c.queue and c.state is ChildState.running)

    @property
    def hungry(self) -> bool:
        """Whether there is room for more claims: then the pool's bell matters."""
        return self.claim_limit() > 0

    @property
    def idle(self) -> bool:
        """Whether nothing is in hand and nothing waits to be reported."""
        return not self.tasks and not self._outcomes

    # --- events -------------------------------------------------------------------------------------------------------

    def _rang(self, event: Rang) -> None:
        self._wants_claim = True

    def _turn_ended(self, event: TurnEnded) -> None:
        claims, limit = event.claims, event.turn.limit
        self.counters.turns += 1
        self.blocked_shapes = claims.blocked
        if claims.stale:
            self._forget_stale(event)
        if limit:
            full = len(claims) >= limit
            self._wants_claim = claims.more or full
            if full:
                self._ambition = min(MOST_IN_HAND, max(self._ambition, self.slots, limit) * 2)
            elif not claims and not self.tasks:
                self._ambition = self.slots
        prepare = []
        for claim in claims:
            cpu, ram, gpu = claim.shape
            task = Task(claim, cpu, ram, gpu)
            self._used[0] += cpu
            self._used[1] += ram
            self._used[2] += gpu
            self.tasks[claim.id] = task
            self.counters.claimed += 1
            if self.draining:
                self._give_back(task, "drained")
            else:
                prepare.append(task)
        if prepare:
            self._preparing += len(prepare)
            self._out.append(PrepareInputs(prepare))

    def _forget_stale(self, event: TurnEnded) -> None:
        """Somebody else decided these futures: results of ours that were stored for them are of no use."""
        stale = set(event.claims.stale)
        for outcome in event.turn.outcomes:
            if outcome.claim.id in stale and isinstance(outcome.result, FutureResult) and outcome.result.name:
                self._out.append(DropObject(outcome.result.name))

    def _inputs_ready(self, event: InputsReady) -> None:
        self._preparing -= len(event.tasks)
        for task in event.tasks:
            if task.cancelled:
                self._close(task)
            elif self.draining:
                self._give_back(task, "drained")
            else:
                self.ready.append(task)

    def _inputs_lost(self, event: InputsLost) -> None:
        self._preparing -= 1
        if event.task.cancelled:
            self._close(event.task)
        else:
            self._end(event.task, Outcome.missed_inputs(event.task.claim, event.lost))

    def _inputs_broken(self, event: InputsBroken) -> None:
        self._preparing -= 1
        task = event.task
        if task.cancelled:
            self._close(task)
            return
        self.counters.failed += 1
        self._end(task, Outcome.failed(task.claim, Failure(event.reason, event.message), permanently=True))

    def _child_started(self, event: ChildStarted) -> None:
        child = self.children.get(event.child)
        if child is not None and child.state is ChildState.starting:
            child.become(ChildState.running)
            child.head_since = self._now

    def _child_said(self, event: ChildSaid) -> None:
        child = self.children[event.child]
        for message in event.messages:
            kind, seq = message[0], message[1]
            if kind == messages.BLOCKED:
                self._blocked(child, message[2])
            elif kind == messages.RESUMED:
                self._resumed(child)
            else:
                task = child.take(seq)
                if task is not None:
                    self._result(child, task, message)

    def _result(self, child: Child, task: Task, message: list[Any]) -> None:
        child.ran += 1
        child.head_since = self._now
        child.rescued = child.full = False
        if child.state is ChildState.blocked:  # a result ends the wait in any case
            self._resumed(child)
        seconds = message[2] * 1e-6
        self.pace.observe(task.digest, seconds)
        kind = message[0]
        if task.cancelled:
            if kind == messages.STORED:
                self._out.append(DropObject(task.object_name))
            self._close(task)
        elif kind == messages.RESULT:
            self.counters.realized += 1
            self._end(task, Outcome.realized(task.claim, message[3]))
        elif kind == messages.STORED:
            self.counters.realized += 1
            size: int = message[3]
            result = FutureResult(size=size, name=task.object_name, worker=self.worker)
            self._end(task, Outcome.realized(task.claim, result))
        else:
            self.counters.failed += 1
            self._end(task, failed_outcome(task, message))

    def _blocked(self, child: Child, returned: list[int]) -> None:
        if child.state is not ChildState.running:
            return
        child.become(ChildState.blocked)
        self._return(child, returned)
        if len(child.queue) > 1:
            self._out.append(TakeBack(child.number))
        if child.queue:
            self._used[0] -= child.queue[0].cpu
        self._wants_claim = True

    def _resumed(self, child: Child) -> None:
        if child.state is not ChildState.blocked:
            return
        child.become(ChildState.running)
        if child.queue:
            self._used[0] += child.queue[0].cpu

    def _tasks_returned(self, event: TasksReturned) -> None:
        child = self.children.get(event.child)
        if child is not None:
            child.full = event.full
            self._return(child, event.seqs)

    def _return(self, child: Child, seqs: Iterable[int]) -> None:
        """Tasks a child has not begun: first in line for another one."""
        back = [task for task in map(child.take, seqs) if task is not None]
        for task in reversed(back):
            task.seq = -1
            if task.cancelled:
                self._close(task)
            elif self.draining:
                self._give_back(task, "drained")
            else:
                self.ready.appendleft(task)

    def _child_ended(self, event: ChildEnded) -> None:
        child = self.children.pop(event.child)
        self._return(child, event.unread)
        if child.state is ChildState.blocked:
            self._resumed(child)
        if child.queue:
            task = child.queue.popleft()
            self._charge(child, task, event)
        self._return(child, [task.seq for task in child.queue])
        if not child.kill_reason:
            self.counters.children_lost += 1
            if child.ran == 0:
                self._spawn_after = self._now + RESPAWN_PAUSE

    def _charge(self, child: Child, task: Task, event: ChildEnded) -> None:
        """The task a child ran when it ended."""
        if task.cancelled:
            self._close(task)
            return
        if child.kill_reason == "drained":
            self._give_back(task, "drained")
            return
        self.counters.failed += 1
        if child.kill_reason == "timeout":
            failure = Failure("timeout", f"{task.label} ran longer than its timeout of {task.claim.run_timeout} s")
        elif event.out_of_memory:
            failure = Failure(
                "oom", f"the process that ran {task.label} was killed for its memory ({event.description})"
            )
        else:
            failure = Failure("crash", f"the process that ran {task.label} died: {event.description}")
        self._end(task, Outcome.failed(task.claim, failure))

    def _mail(self, event: MailArrived) -> None:
        for entry in event.entries:
            task = self.tasks.get(entry.id)
            if entry.kind != "cancel" or task is None or task.cancelled:
                continue
            task.cancelled = True
            if task in self.ready:
                self.ready.remove(task)
                self._close(task)
                continue
            for child in self.children.values():
                if child.queue and child.queue[0] is task:
                    self._kill(child, "cancelled")

    def _drain(self, event: DrainAsked) -> None:
        if not self.draining:
            self.draining = True
            self._drain_end = self._now + event.grace
            while self.ready:
                self._give_back(self.ready.popleft(), "drained")
            for child in self.children.values():
                if child.state is ChildState.running and len(child.queue) > 1:
                    self._out.append(TakeBack(child.number))
        else:
            self._drain_end = min(self._drain_end, self._now + event.grace)

    def _fenced(self, event: Fenced) -> None:
        """Nothing held counts any more: stop all of it, and start anew under the identity the shell sets."""
        for child in list(self.children.values()):
            if child.queue:
                for task in child.queue:
                    task.cancelled = True
                self._kill(child, "fenced")
        for task in list(self.tasks.values()):
            task.cancelled = True
        while self.ready:
            self._close(self.ready.popleft())
        self._outcomes.clear()
        self._wants_claim = True
        self._ambition = self.slots

    # --- ends of tasks ------------------------------------------------------------------------------------------------

    def _end(self, task: Task, outcome: Outcome) -> None:
        if not self._outcomes:
            self._first_outcome = self._now
        self._outcomes.append(outcome)
        self._close(task)

    def _give_back(self, task: Task, reason: str) -> None:
        self.counters.given_back += 1
        self._end(task, Outcome.relinquished(task.claim, reason))

    def _close(self, task: Task) -> None:
        used = self._used
        used[0] -= task.cpu
        used[1] -= task.ram
        used[2] -= task.gpu
        if self.tasks.get(task.claim.id) is task:
            del self.tasks[task.claim.id]
        if task.parcels:
            self._out.append(ForgetTask(task))

    # --- plans --------------------------------------------------------------------------------------------------------

    def _plan(self) -> None:
        self._enforce_timeouts()
        if not self.draining:
            self._spawn()
            self._dispatch()
            self._rescue()
            self._give_back_excess()
        elif self._now >= self._drain_end:
            for child in self.children.values():
                if child.queue:
                    self._kill(child, "drained")
        self._retire()
        self._turn()
        if self.draining and self.idle and not self._preparing and not self._finished:
            self._finished = True
            self._out.append(Finish())

    def _kill(self, child: Child, reason: str) -> None:
        if child.state is ChildState.dying:
            return
        if child.state is ChildState.blocked:
            self._resumed(child)
        child.become(ChildState.dying)
        child.kill_reason = reason
        self._out.append(KillChild(child.number))

    def _enforce_timeouts(self) -> None:
        for child in self.children.values():
            if child.queue:
                limit = child.queue[0].claim.run_timeout
                if limit is not None and self._now - child.head_since >= limit:
                    self._kill(child, "timeout")

    def _spawn(self) -> None:
        if self._now < self._spawn_after:
            return
        active = sum(1 for c in self.children.values() if c.state in (ChildState.starting, ChildState.running))
        while active < self.slots and len(self.children) < MOST_CHILDREN:
            child = Child(self._next_child)
            self._next_child += 1
            self.children[child.number] = child
            self._out.append(SpawnChild(child.number))
            active += 1

    def _dispatch(self) -> None:
        ready = self.ready
        if not ready:
            return
        takers = [c for c in self.children.values() if c.state is ChildState.running]
        busy = sum(1 for c in takers if c.queue)
        takers.sort(key=lambda c: len(c.queue))
        for position, child in enumerate(takers):
            if not ready:
                return
            if child.full or (not child.queue and busy >= self.slots):
                continue
            known = self.pace.of(ready[0].digest)
            window = 1 if known is None else max(1, min(MOST_SENT, int(WINDOW / max(known, 1e-6))))
            room = window - len(child.queue)
            if room <= 0:
                continue
            share = -(-len(ready) // (len(takers) - position))
            batch = [ready.popleft() for _ in range(min(room, share, len(ready)))]
            if not child.queue:
                busy += 1
                child.head_since = self._now
            seq = child.next_seq
            for task in batch:
                task.seq = seq
                seq += 1
            child.next_seq = seq
            child.queue.extend(batch)
            child.rescued = False
            per_packet = PER_PACKET if known is not None and known <= SHORT else 1
            self._out.append(SendTasks(child.number, batch, per_packet))

    def _has_idle_child(self) -> bool:
        return any(c.state is ChildState.running and not c.queue for c in self.children.values())

    def _rescue(self) -> None:
        """Tasks queued behind a long one go to a child that has nothing to do."""
        if self.ready or self.running >= self.slots or not self._has_idle_child():
            return
        for child in self.children.values():
            stuck = self._now - child.head_since >= STUCK and not child.rescued
            if child.state is ChildState.running and len(child.queue) > 1 and stuck:
                child.rescued = True
                self._out.append(TakeBack(child.number))

    def _give_back_excess(self) -> None:
        """Work beyond `MOST_WORK` seconds goes back to the pool, where another worker may be free."""
        if len(self.ready) <= self.slots or self._now < self._next_review:
            return
        self._next_review = self._now + REVIEW
        expected = 0.0
        longest = [
            self._now - c.head_since for c in self.children.values() if c.queue and c.state is ChildState.running
        ]
        # If every slot has been busy with one task for that long, those in line will take as long, as far as is known.
        floor = min(longest) if len(longest) >= self.slots else 0.0
        keep = 0
        for task in self.ready:
            known = self.pace.of(task.digest)
            expected += max(floor, known if known is not None else self.pace.overall or 0.0)
            if expected > MOST_WORK * self.slots and keep >= self.slots:
                break
            keep += 1
        while len(self.ready) > keep:
            self._ambition = self.slots
            self._give_back(self.ready.pop(), "rebalanced")

    def _retire(self) -> None:
        """Children that replaced waiting ones end when those are back."""
        surplus = sum(1 for c in self.children.values() if c.state is ChildState.running) - self.slots
        for child in list(self.children.values()):
            if surplus <= 0:
                return
            if child.state is ChildState.running and not child.queue:
                child.become(ChildState.dying)
                child.kill_reason = "retired"
                self._out.append(RetireChild(child.number))
                surplus -= 1

    def claim_limit(self) -> int:
        """How many claims to ask for now."""
        if self.draining:
            return 0
        blocked = sum(1 for c in self.children.values() if c.state is ChildState.blocked)
        in_hand = len(self.tasks) - blocked
        target = self.slots
        overall = self.pace.overall
        if overall is not None:
            affordable = int(self.slots * HORIZON / max(overall, 1e-6))
            target = max(target, min(self._ambition, affordable, MOST_IN_HAND))
        room = target - in_hand
        # A claim costs a scan: ask for many at a time or for what is lacking.
        if in_hand >= self.slots and room < target // 3:
            return 0
        return max(0, min(room, MOST_PER_TURN))

    def _turn(self) -> None:
        limit = self.claim_limit()
        outcomes = self._outcomes
        if outcomes:
            if len(outcomes) < MOST_PER_TURN // 2 and self._now - self._first_outcome < LINGER and self._ends_soon():
                return
            if limit:
                self._wants_claim = False
            self._outcomes = outcomes[MOST_PER_TURN:]
            self._first_outcome = self._now - LINGER
            self._out.append(RunTurn(outcomes[:MOST_PER_TURN], self._capacity(), limit))
        elif limit and self._wants_claim:
            self._wants_claim = False
            self._out.append(RunTurn([], self._capacity(), limit))

    def _ends_soon(self) -> bool:
        """Whether more short tasks are about to end, so that it pays to report them together."""
        for child in self.children.values():
            if child.queue and child.state is ChildState.running:
                known = self.pace.of(child.queue[0].digest)
                if known is not None and known <= SHORT and self._now - child.head_since < LINGER:
                    return True
        return False

    def _capacity(self) -> Capacity:
        return Capacity(self.free, self.total)


def failed_outcome(task: Task, message: list[Any]) -> Outcome:
    """The outcome of a FAILED message."""
    from futures_worker.payload import Failure as Carried

    kind = message[3]
    packed: bytes = message[4]
    carried = Carried.from_bytes(packed)
    short = carried.error_type.rpartition(".")[2]
    text = f"{short}: {carried.message}"[:500]
    if kind == messages.FAIL_MEMORY:
        return Outcome.failed(task.claim, Failure("oom", text, packed))
    permanent = kind == messages.FAIL_PERMANENT
    reason = _REASONS.get(short, "error") if permanent else "error"
    return Outcome.failed(task.claim, Failure(reason, text, packed), permanently=permanent)


_REASONS = {"TaskUnpickleError": "unpickle", "ResultPickleError": "result-pickle", "OversizeError": "oversize"}

_HANDLERS: dict[type[Event], Callable[[WorkerCore, Any], None]] = {
    Rang: WorkerCore._rang,
    TurnEnded: WorkerCore._turn_ended,
    InputsReady: WorkerCore._inputs_ready,
    InputsLost: WorkerCore._inputs_lost,
    InputsBroken: WorkerCore._inputs_broken,
    ChildStarted: WorkerCore._child_started,
    ChildSaid: WorkerCore._child_said,
    TasksReturned: WorkerCore._tasks_returned,
    ChildEnded: WorkerCore._child_ended,
    MailArrived: WorkerCore._mail,
    DrainAsked: WorkerCore._drain,
    Fenced: WorkerCore._fenced,
}
