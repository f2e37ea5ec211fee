"""What a worker makes of what it hears of its children: results, failures, waits, and ends. No I/O."""

from __future__ import annotations

from typing import Any

from fdb_datamodel import Away, Failure, FutureResult, Outcome, Requirements, shape_of
from futures_worker.failure import PROGRAM
from futures_worker.payload import Failure as CarriedFailure
from futures_worker.worker import messages
from futures_worker.worker.deciding.dispatching import LEAVE_SECONDS, TOO_DEEP
from futures_worker.worker.deciding.instructions import (
    ChildEnded,
    ChildSaid,
    ChildStarted,
    DropObject,
    MemoryShort,
    RetireChild,
    TakeBack,
    TasksReturned,
)
from futures_worker.worker.deciding.state import ACTOR, WorkerState
from futures_worker.worker.deciding.tasks import Child, ChildState, Task

SHORT_OF_MEMORY = "memory is short"
RESUME_SOON = 0.05
"""Seconds that a waiting task has to go on after what it waits for ended here, before its slot is given to another."""
REFUSED_PAUSE = 0.5
"""Seconds before a turn that the database refused is taken again."""
RESPAWN_PAUSE = 0.5
"""Seconds before a child that died without having run anything is replaced."""


def child_started(state: WorkerState, event: ChildStarted) -> None:
    child = state.children.get(event.child)
    if child is not None and child.state is ChildState.starting:
        child.become(ChildState.running)
        child.head_since = state.now


def child_said(state: WorkerState, event: ChildSaid) -> None:
    child = state.children[event.child]
    for message in event.messages:
        kind, seq = message[0], message[1]
        if kind == messages.BLOCKED:
            blocked(state, child, message[2], message[3])
        elif kind == messages.RESUMED:
            state.resumed(child)
        elif not plausible(child, message):
            state.kill(child, f"it said of task {seq} what can't be: user code wrote to the worker's pipe")
            return
        elif kind == messages.SKIPPED:
            child.head_since = state.now
            if child.queue and child.queue[0].seq == seq and not child.queue[0].skippable:
                leaves(state, child)
            state.return_tasks(child, [seq])
        else:
            if child.queue and child.queue[0].seq == seq:
                state.resumed(child)  # a result ends the wait in any case, and the cpu is taken again to be let go
            task = child.take(seq)
            if task is not None:
                result(state, child, task, message)


def leaves(state: WorkerState, child: Child) -> None:
    """It won't begin what it was sent, and is about to end: unless user code forged that, and it doesn't."""
    if child.state is ChildState.running:
        child.become(ChildState.dying)
        child.kill_reason = "left"
        child.leave_by = state.now + LEAVE_SECONDS
        state.staff_changed = True
        state.out.append(RetireChild(child.number))


def plausible(child: Child, message: list[Any]) -> bool:
    """Whether a child may say this now: user code can forge what is well formed. Of what it holds no more all may be said."""
    kind, seq = message[0], message[1]
    task = next((task for task in child.queue if task.seq == seq), None)
    if task is None or kind == messages.SKIPPED:
        return True
    return task is child.queue[0] and (kind != messages.STORED or message[4] == task.object_name)


def result(state: WorkerState, child: Child, task: Task, message: list[Any]) -> None:
    child.ran += 1
    child.head_since = state.now
    child.rescued = child.full = False
    if state.waiting:
        expect_back(state, task.claim.id)
    seconds = message[2] * 1e-6
    state.pace.observe(task.claim.code, seconds)
    kind = message[0]
    if task.cancelled or task.orphaned:
        if kind == messages.STORED:
            state.out.append(DropObject(task.object_name))
        state.let_go(task)
    elif kind == messages.RESULT:
        state.counters.realized += 1
        state.short_pause = 0.0
        if task.follower is not None:
            state.hand_on(task, FutureResult(message[3], len(message[3])))
        state.end(task, Outcome.realized(task.claim, message[3]))
    elif kind == messages.STORED:
        state.counters.realized += 1
        size: int = message[3]
        result = FutureResult(size=size, name=task.object_name, worker=state.worker)
        state.hand_on(task, result)
        state.end(task, Outcome.realized(task.claim, result))
    elif kind == messages.LEFT:
        why, name, ids, until, due = message[3:]
        state.end(task, Outcome.left(task.claim, Away(why, name, tuple(ids), until, None if due < 0 else due)))
    elif message[3] in (messages.FAIL_SHORT, messages.FAIL_NO_ROOM):
        short(state, task, message, alone=message[3] == messages.FAIL_SHORT and child.ran > 1)
    else:
        state.counters.failed += 1
        outcome = failed_outcome(task, message)
        if outcome.failure is not None and outcome.failure.reason == "oom":
            room = more_room(state, task, outcome.failure)
            outcome = Outcome.failed(task.claim, outcome.failure, requirements=room)
        state.end(task, outcome)


def short(state: WorkerState, task: Task, message: list[Any], *, alone: bool) -> None:
    """The host lacks something that the task needs. `alone`: perhaps just the process, which ends."""
    packed: bytes = message[4]
    text = f"{state.worker.ip}:{state.worker.port} was short: {CarriedFailure.from_bytes(packed).message}"[:500]
    state.end(task, Outcome.short(task.claim, text, packed, started=message[3] == messages.FAIL_NO_ROOM))
    if not alone:
        state.abstain()


def blocked(state: WorkerState, child: Child, returned: list[int], awaits: list[bytes]) -> None:
    if child.state is not ChildState.running:
        return
    if child.queue and child.queue[0].seq in returned:
        state.kill(child, "it said that the task it runs has not begun: user code wrote to the worker's pipe")
        return
    child.become(ChildState.blocked)
    child.awaits = tuple(awaits)
    state.waiting += 1
    if child.queue and child.queue[0].claim.name.startswith(ACTOR):
        child.resident = True
        state.residents += 1
    state.claim_target = state.slots  # what is claimed now should be what is waited for
    state.staff_changed = True
    state.return_tasks(child, returned)
    if len(child.queue) > 1:
        state.out.append(TakeBack(child.number))
    if child.queue:
        state.used[0] -= child.queue[0].cpu
        if not awaits:
            state.release_follower(child.queue[0])
    bring_forward(state, child.awaits)
    state.wants_claim = True


def bring_forward(state: WorkerState, awaits: tuple[bytes, ...]) -> None:
    """What is waited for goes first, whether it is in hand or to be claimed: so recursion goes deep, not broad."""
    state.wanted = [one for one in awaits if one not in state.tasks]
    if len(state.wanted) < len(awaits) and state.ready:
        first = [task for task in state.ready if task.claim.id in awaits]
        for task in first:
            state.ready.remove(task)
        state.ready.extendleft(reversed(first))


def expect_back(state: WorkerState, ended: bytes) -> None:
    """Whoever waited for nothing else is about to go on: nothing new should begin in its place."""
    for child in state.children.values():
        if child.awaits and ended in child.awaits:
            child.awaits = tuple(one for one in child.awaits if one != ended)
            if not child.awaits:
                child.expected_until = state.now + RESUME_SOON
                # What was claimed for it was looked for by name: nobody has seen the rest of the pool.
                state.wants_claim = True


def look_for_awaited(state: WorkerState) -> None:
    """Every task here waits: what they wait for may be in the pool, and fit nothing that is free."""
    if state.waiting > state.residents and not state.running and not state.ready and not state.preparing:
        blocked = [child for child in state.children.values() if child.state is ChildState.blocked]
        blocked.sort(key=lambda child: -child.number)
        state.wanted = [one for child in blocked for one in child.awaits if one not in state.tasks]
        del state.wanted[messages.MOST_AWAITED :]
        state.overcommit = True


def tasks_returned(state: WorkerState, event: TasksReturned) -> None:
    child = state.children.get(event.child)
    if child is not None:
        child.full = event.full
        state.return_tasks(child, event.seqs)


def child_ended(state: WorkerState, event: ChildEnded) -> None:
    child = state.children.pop(event.child)
    state.staff_changed = True
    state.return_tasks(child, event.unread)
    if child.state is ChildState.blocked:
        state.resumed(child)
    if child.queue:
        task = child.queue.popleft()
        state.out.append(DropObject(task.object_name))  # stored, perhaps, and not said
        charge(state, child, task, event)
    state.return_tasks(child, [task.seq for task in child.queue])
    if not child.kill_reason:
        state.counters.children_lost += 1
        if child.ran == 0:
            state.spawn_after = state.now + RESPAWN_PAUSE


def charge(state: WorkerState, child: Child, task: Task, event: ChildEnded) -> None:
    """The task a child ran when it ended."""
    if task.cancelled:
        state.close(task)
        return
    late = child.killed_for is not None and task is not child.killed_for
    if late or child.kill_reason == "drained":  # late: that one had ended, and the child had gone on to this one
        state.give_back(
            task,
            f"its process was ended for another task ({child.kill_reason})" if late else "drained",
            started=True,
        )
        return
    state.counters.failed += 1
    if child.kill_reason == TOO_DEEP:
        text = (
            f"{task.label} waits for others, as {state.waiting} tasks of this worker do: no process is left to run them"
        )
        state.end(task, Outcome.failed(task.claim, Failure("deadlock", text), permanently=True))
        return
    if child.kill_reason == "timeout":
        failure = Failure("timeout", f"{task.label} ran longer than its timeout of {task.claim.run_timeout} s")
    elif event.out_of_memory or child.kill_reason.startswith(SHORT_OF_MEMORY):
        why = child.kill_reason or event.description
        failure = Failure("oom", f"the process that ran {task.label} was killed for its memory ({why})")
    else:
        why = child.kill_reason or event.description
        failure = Failure("crash", f"the process that ran {task.label} died: {why}")
    state.end(task, Outcome.failed(task.claim, failure, requirements=more_room(state, task, failure)))


def more_room(state: WorkerState, task: Task, failure: Failure) -> Requirements | None:
    """What a retry needs after memory ran out: twice as much as was asked for, as far as this worker has it."""
    cpu, ram, gpu = task.claim.shape[:3]
    most = state.total.shape[1]
    if failure.reason != "oom" or not 0 < ram < most:
        return None
    return Requirements.from_shape(shape_of(cpu, min(2 * ram, most), gpu, task.named))


def memory_short(state: WorkerState, event: MemoryShort) -> None:
    child = state.children.get(event.child)
    if child is not None and child.queue:
        state.kill(child, f"{SHORT_OF_MEMORY}: {event.description}")


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
    if short == "CancelledError" and task.claim.call_options.endswith(PROGRAM):
        reason = "cancelled"  # its body was told, and let that be its end
    return Outcome.failed(task.claim, Failure(reason, text, packed, carried.traceback), permanently=permanent)


_REASONS = {
    "TaskUnpickleError": "unpickle",
    "ResultPickleError": "result-pickle",
    "OversizeError": "oversize",
    "DeadlockError": "deadlock",
}
