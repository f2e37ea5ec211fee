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

from fdb_datamodel import Claim, Failure, FutureResult, Outcome, Requirements
from futures_worker.payload import Failure as CarriedFailure
from futures_worker.worker import messages
from futures_worker.worker.deciding import planning
from futures_worker.worker.deciding.claimed import ClaimedTasks
from futures_worker.worker.deciding.instructions import (
    ChildEnded,
    ChildSaid,
    ChildStarted,
    DrainAsked,
    DropObject,
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
    Rang,
    RetireChild,
    TakeBack,
    TasksReturned,
    TurnEnded,
    TurnRefused,
)
from futures_worker.worker.deciding.tasks import SHORT, Child, ChildState, Task

SHORT_OF_MEMORY = "memory is short"
RESUME_SOON = 0.05
"""Seconds that a waiting task has to go on after what it waits for ended here, before its slot is given to another."""
ACTOR = "actor "
"""What the names of actors' own futures start with."""
LEAVE_SECONDS = 5.0
"""Seconds that a child has to end which said that it won't begin what it was sent."""
REFUSED_PAUSE = 0.5
"""Seconds before a turn that the database refused is taken again."""
RESPAWN_PAUSE = 0.5
"""Seconds before a child that died without having run anything is replaced."""


class WorkerCore(ClaimedTasks):
    """The worker's state, moved by events."""

    __slots__ = ()

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

    def deadline(self) -> float | None:
        """When `step` must be called at the latest though nothing happened; None: only when something does."""
        return planning.deadline(self)

    @property
    def hungry(self) -> bool:
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
        for child in list(self.children.values()):
            queue = tuple(child.queue)
            if queue and queue[0].claim.id == future_id:
                return True
        return False

    def in_hand(self) -> set[bytes]:
        """Ids whose claims this worker knows of, those that only wait to be reported included."""
        return self.tasks.keys() | {outcome.claim.id for outcome in self.outcomes}

    # --- events -------------------------------------------------------------------------------------------------------

    def _rang(self, event: Rang) -> None:
        self.wants_claim = True
        self.watched = False
        if event.again:
            self._look_for_awaited()
        else:
            self.rung = True
            if self.patience and not self.tasks and self.now >= self.claim_after:
                self.claim_after = self.now + self.patience

    def _peers_seen(self, event: PeersSeen) -> None:
        self.stripe = (event.rank, event.count)
        # A heartbeat is old news: what counts is one that was made after there was something here to give.
        self.idle_elsewhere = event.idle_slots if self.stocked else 0
        self.stocked = len(self.ready) > self.slots
        self.idle_room = event.idle_room

    def _turn_refused(self, event: TurnRefused) -> None:
        """Nothing of it happened: its outcomes are the first of a later turn."""
        self.refused_until = self.now + REFUSED_PAUSE
        if event.turn.outcomes:
            if not self.outcomes:
                self.first_outcome = self.now
            self.outcomes[:0] = event.turn.outcomes
        self.wants_claim = self.wants_claim or event.turn.limit > 0

    def _child_started(self, event: ChildStarted) -> None:
        child = self.children.get(event.child)
        if child is not None and child.state is ChildState.starting:
            child.become(ChildState.running)
            child.head_since = self.now

    def _child_said(self, event: ChildSaid) -> None:
        child = self.children[event.child]
        for message in event.messages:
            kind, seq = message[0], message[1]
            if kind == messages.BLOCKED:
                self._blocked(child, message[2], message[3])
            elif kind == messages.RESUMED:
                self.resumed(child)
            elif not self._plausible(child, message):
                self.kill(child, f"it said of task {seq} what can't be: user code wrote to the worker's pipe")
                return
            elif kind == messages.SKIPPED:
                child.head_since = self.now
                if child.queue and child.queue[0].seq == seq and not child.queue[0].skippable:
                    self._leaves(child)
                self.return_tasks(child, [seq])
            else:
                if child.queue and child.queue[0].seq == seq:
                    self.resumed(child)  # a result ends the wait in any case, and the cpu is taken again to be let go
                task = child.take(seq)
                if task is not None:
                    self._result(child, task, message)

    def _leaves(self, child: Child) -> None:
        """It won't begin what it was sent, and is about to end: unless user code forged that, and it doesn't."""
        if child.state is ChildState.running:
            child.become(ChildState.dying)
            child.kill_reason = "left"
            child.leave_by = self.now + LEAVE_SECONDS
            self.staff_changed = True
            self.out.append(RetireChild(child.number))

    @staticmethod
    def _plausible(child: Child, message: list[Any]) -> bool:
        """Whether a child may say this now: user code can forge what is well formed. Of what it holds no more all may be said."""
        kind, seq = message[0], message[1]
        task = next((task for task in child.queue if task.seq == seq), None)
        if task is None or kind == messages.SKIPPED:
            return True
        return task is child.queue[0] and (kind != messages.STORED or message[4] == task.object_name)

    def _result(self, child: Child, task: Task, message: list[Any]) -> None:
        child.ran += 1
        child.head_since = self.now
        child.rescued = child.full = False
        if self.waiting:
            self._expect_back(task.claim.id)
        seconds = message[2] * 1e-6
        self.pace.observe(task.claim.code, seconds)
        kind = message[0]
        if task.cancelled or task.orphaned:
            if kind == messages.STORED:
                self.out.append(DropObject(task.object_name))
            self.let_go(task)
        elif kind == messages.RESULT:
            self.counters.realized += 1
            self.short_pause = 0.0
            if task.follower is not None:
                self.hand_on(task, FutureResult(message[3], len(message[3])))
            self.end(task, Outcome.realized(task.claim, message[3]))
        elif kind == messages.STORED:
            self.counters.realized += 1
            size: int = message[3]
            result = FutureResult(size=size, name=task.object_name, worker=self.worker)
            self.hand_on(task, result)
            self.end(task, Outcome.realized(task.claim, result))
        elif message[3] in (messages.FAIL_SHORT, messages.FAIL_NO_ROOM):
            self._short(task, message, alone=message[3] == messages.FAIL_SHORT and child.ran > 1)
        else:
            self.counters.failed += 1
            outcome = failed_outcome(task, message)
            if outcome.failure is not None and outcome.failure.reason == "oom":
                room = self._more_room(task, outcome.failure)
                outcome = Outcome.failed(task.claim, outcome.failure, requirements=room)
            self.end(task, outcome)

    def _short(self, task: Task, message: list[Any], *, alone: bool) -> None:
        """The host lacks something that the task needs. `alone`: perhaps just the process, which ends."""
        packed: bytes = message[4]
        text = f"{self.worker.ip}:{self.worker.port} was short: {CarriedFailure.from_bytes(packed).message}"[:500]
        self.end(task, Outcome.short(task.claim, text, packed, started=message[3] == messages.FAIL_NO_ROOM))
        if not alone:
            self.abstain()

    def _blocked(self, child: Child, returned: list[int], awaits: list[bytes]) -> None:
        if child.state is not ChildState.running:
            return
        if child.queue and child.queue[0].seq in returned:
            self.kill(child, "it said that the task it runs has not begun: user code wrote to the worker's pipe")
            return
        child.become(ChildState.blocked)
        child.awaits = tuple(awaits)
        self.waiting += 1
        if child.queue and child.queue[0].claim.name.startswith(ACTOR):
            child.resident = True
            self.residents += 1
        self.ambition = self.slots  # what is claimed now should be what is waited for
        self.staff_changed = True
        self.return_tasks(child, returned)
        if len(child.queue) > 1:
            self.out.append(TakeBack(child.number))
        if child.queue:
            self.used[0] -= child.queue[0].cpu
            if not awaits:
                self.release_follower(child.queue[0])
        self._bring_forward(child.awaits)
        self.wants_claim = True

    def _bring_forward(self, awaits: tuple[bytes, ...]) -> None:
        """What is waited for goes first, whether it is in hand or to be claimed: so recursion goes deep, not broad."""
        self.wanted = [one for one in awaits if one not in self.tasks]
        if len(self.wanted) < len(awaits) and self.ready:
            first = [task for task in self.ready if task.claim.id in awaits]
            for task in first:
                self.ready.remove(task)
            self.ready.extendleft(reversed(first))

    def _expect_back(self, ended: bytes) -> None:
        """Whoever waited for nothing else is about to go on: nothing new should begin in its place."""
        for child in self.children.values():
            if child.awaits and ended in child.awaits:
                child.awaits = tuple(one for one in child.awaits if one != ended)
                if not child.awaits:
                    child.expected_until = self.now + RESUME_SOON

    def _look_for_awaited(self) -> None:
        """Every task here waits: what they wait for may be in the pool, and fit nothing that is free."""
        if self.waiting > self.residents and not self.running and not self.ready and not self.preparing:
            blocked = [child for child in self.children.values() if child.state is ChildState.blocked]
            blocked.sort(key=lambda child: -child.number)
            self.wanted = [one for child in blocked for one in child.awaits if one not in self.tasks]
            del self.wanted[messages.MOST_AWAITED :]
            self.overcommit = True

    def _tasks_returned(self, event: TasksReturned) -> None:
        child = self.children.get(event.child)
        if child is not None:
            child.full = event.full
            self.return_tasks(child, event.seqs)

    def _child_ended(self, event: ChildEnded) -> None:
        child = self.children.pop(event.child)
        self.staff_changed = True
        self.return_tasks(child, event.unread)
        if child.state is ChildState.blocked:
            self.resumed(child)
        if child.queue:
            task = child.queue.popleft()
            self.out.append(DropObject(task.object_name))  # stored, perhaps, and not said
            self._charge(child, task, event)
        self.return_tasks(child, [task.seq for task in child.queue])
        if not child.kill_reason:
            self.counters.children_lost += 1
            if child.ran == 0:
                self.spawn_after = self.now + RESPAWN_PAUSE

    def _charge(self, child: Child, task: Task, event: ChildEnded) -> None:
        """The task a child ran when it ended."""
        if task.cancelled:
            self.close(task)
            return
        late = child.killed_for is not None and task is not child.killed_for
        if late or child.kill_reason == "drained":  # late: that one had ended, and the child had gone on to this one
            self.give_back(
                task,
                f"its process was ended for another task ({child.kill_reason})" if late else "drained",
                started=True,
            )
            return
        self.counters.failed += 1
        if child.kill_reason == planning.TOO_DEEP:
            text = f"{task.label} waits for others, as {self.waiting} tasks of this worker do: no process is left to run them"
            self.end(task, Outcome.failed(task.claim, Failure("deadlock", text), permanently=True))
            return
        if child.kill_reason == "timeout":
            failure = Failure("timeout", f"{task.label} ran longer than its timeout of {task.claim.run_timeout} s")
        elif event.out_of_memory or child.kill_reason.startswith(SHORT_OF_MEMORY):
            why = child.kill_reason or event.description
            failure = Failure("oom", f"the process that ran {task.label} was killed for its memory ({why})")
        else:
            why = child.kill_reason or event.description
            failure = Failure("crash", f"the process that ran {task.label} died: {why}")
        self.end(task, Outcome.failed(task.claim, failure, requirements=self._more_room(task, failure)))

    def _more_room(self, task: Task, failure: Failure) -> Requirements | None:
        """What a retry needs after memory ran out: twice as much as was asked for, as far as this worker has it."""
        cpu, ram, gpu = task.claim.shape
        most = self.total.shape[1]
        if failure.reason != "oom" or not 0 < ram < most:
            return None
        return Requirements.from_shape((cpu, min(2 * ram, most), gpu))

    def _memory_short(self, event: MemoryShort) -> None:
        child = self.children.get(event.child)
        if child is not None and child.queue:
            self.kill(child, f"{SHORT_OF_MEMORY}: {event.description}")

    def _mail(self, event: MailArrived) -> None:
        for entry in event.entries:
            task = self.tasks.get(entry.id)
            if task is None or task.cancelled or entry.epoch < task.claim.epoch:
                continue  # mail of an earlier epoch is about an attempt that is no more
            if entry.kind == "cancel":
                task.cancelled = True
            elif entry.kind == "late":
                task.late = True
            else:
                continue
            if task in self.ready:
                self.ready.remove(task)
                self.dismissed(task)
            elif task.behind is not None and task.seq < 0 and not task.preparing:
                self.dismissed(task)
            elif task.seq >= 0:
                self._reach(task)

    def _reach(self, task: Task) -> None:
        """A task that was sent to a child is cancelled, or late: what it has begun is killed, or left alone."""
        for child in self.children.values():
            if child.queue and child.queue[0] is task:
                if task.cancelled:
                    self.kill(child, "cancelled")
                return
            if task in child.queue:
                self.out.append(TakeBack(child.number))
                return

    def _drain(self, event: DrainAsked) -> None:
        if not self.draining:
            self.draining = True
            self.drain_end = self.now + event.grace
            while self.ready:
                self.give_back(self.ready.popleft(), "drained")
            for task in self._held():
                self.give_back(task, "drained")
            for child in self.children.values():
                if child.state is ChildState.running and len(child.queue) > 1:
                    self.out.append(TakeBack(child.number))
                if child.queue and child.queue[0].claim.name.startswith(ACTOR):
                    self.kill(child, "drained")  # it would never end by itself
        else:
            self.drain_end = min(self.drain_end, self.now + event.grace)

    def _held(self) -> Iterator[Task]:
        """Tasks in no line that wait for another one of this worker, the last of a chain first."""
        for task in reversed(list(self.tasks.values())):
            if task.behind is not None and task.seq < 0 and not task.preparing:
                yield task

    def _fenced(self, event: Fenced) -> None:
        """Nothing held counts any more: stop all of it, and start anew under the identity the shell sets."""
        for child in list(self.children.values()):
            if child.queue:
                for task in child.queue:
                    task.cancelled = True
                self.kill(child, "fenced")
        for task in list(self.tasks.values()):
            task.cancelled = True
        while self.ready:
            self.close(self.ready.popleft())
        for task in self._held():
            self.close(task)
        self.outcomes.clear()
        self.wants_claim = True
        self.ambition = self.slots


def failed_outcome(task: Task, message: list[Any]) -> Outcome:
    """The outcome of a FAILED message."""
    kind = message[3]
    carried = CarriedFailure.from_bytes(message[4])
    packed = carried.untraced().to_bytes()
    short = carried.error_type.rpartition(".")[2]
    text = f"{short}: {carried.message}"[:500]
    if kind == messages.FAIL_MEMORY:
        return Outcome.failed(task.claim, Failure("oom", text, packed, carried.traceback))
    permanent = kind == messages.FAIL_PERMANENT
    reason = _REASONS.get(short, "error") if permanent else "error"
    return Outcome.failed(task.claim, Failure(reason, text, packed, carried.traceback), permanently=permanent)


_REASONS = {
    "TaskUnpickleError": "unpickle",
    "ResultPickleError": "result-pickle",
    "OversizeError": "oversize",
    "DeadlockError": "deadlock",
}

_HANDLERS: dict[type[Event], Callable[[WorkerCore, Any], None]] = {
    Rang: WorkerCore._rang,
    PeersSeen: WorkerCore._peers_seen,
    TurnEnded: WorkerCore._turn_ended,
    TurnRefused: WorkerCore._turn_refused,
    InputsReady: WorkerCore._inputs_ready,
    InputsLost: WorkerCore._inputs_lost,
    InputsBroken: WorkerCore._inputs_broken,
    InputsShort: WorkerCore._inputs_short,
    ChildStarted: WorkerCore._child_started,
    ChildSaid: WorkerCore._child_said,
    TasksReturned: WorkerCore._tasks_returned,
    ChildEnded: WorkerCore._child_ended,
    MemoryShort: WorkerCore._memory_short,
    MailArrived: WorkerCore._mail,
    Pushed: WorkerCore._pushed,
    DrainAsked: WorkerCore._drain,
    Fenced: WorkerCore._fenced,
}
