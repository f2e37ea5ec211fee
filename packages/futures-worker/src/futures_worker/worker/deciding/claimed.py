"""What a worker makes of its claims until they can run: taken on, chained, their inputs awaited. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fdb_datamodel import Capacity, Claim, Claims, Failure, FutureResult, Outcome, allot, index_shape, named_of
from futures_worker.worker.deciding.dispatching import MOST_COVERED
from futures_worker.worker.deciding.instructions import (
    DropObject,
    InputsBroken,
    InputsLost,
    InputsReady,
    InputsShort,
    PrepareInputs,
    Pushed,
    TurnEnded,
)
from futures_worker.worker.deciding.planning import MOST_IN_HAND, learn_from_turn
from futures_worker.worker.deciding.state import INPUT_GONE, WorkerState
from futures_worker.worker.deciding.tasks import Task
from futures_worker.worker.soft_timeout import soft_timeout_of

EMPTY_RINGS = 3
"""Rings in a row that a worker answers in vain before it lets others be first."""
FIRST_RING_DELAY = 0.001
MOST_RING_DELAY = 0.004
"""Seconds that such a worker waits after a ring, doubled from the first to the second while it finds nothing."""
LEAST_COST = 1e-4
"""Seconds that a task takes at least, with all that goes with it."""
HOLD_AFTER = 2.0
"""Seconds that a shape is passed over, for want of room, before room is made for it."""
HOLD_MOST = 60.0
"""Seconds for which nothing else is claimed; then others have their turn before it is tried again."""


def learn_ring_delay(state: WorkerState, found: bool) -> None:
    """After a ring: an idle worker that keeps finding the pool empty lets others be first, until it finds work."""
    rung, state.rung = state.rung, False
    if found:
        state.empty_rings, state.ring_delay = 0, 0.0
    elif rung and not state.tasks:
        state.empty_rings += 1
        if state.empty_rings >= EMPTY_RINGS:
            state.ring_delay = min(MOST_RING_DELAY, max(FIRST_RING_DELAY, 2 * state.ring_delay))


def turn_ended(state: WorkerState, event: TurnEnded) -> None:
    claims, limit = event.claims, event.turn.limit
    state.counters.turns += 1
    learn_from_turn(state, max(len(event.turn.outcomes), len(claims)), event.seconds)
    if claims.stale:
        forget_stale(state, event)
    if limit:
        state.wants_claim = claims.more
        learn_ring_delay(state, bool(claims))
        if event.turn.capacity.look:
            watch_blocked(state, claims, event.turn.capacity)
        heads = [claim for claim in claims if len(claim.inputs) == len(claim.dependencies)]
        state.sated = claims.cut
        if claims.cut:
            state.claim_target = max(state.slots, 2 * len(heads))
        elif len(heads) >= limit:
            twice = 2 * max(state.claim_target, state.slots, limit)
            state.claim_target = min(MOST_IN_HAND, max(twice, _while_a_turn_takes(state, heads, event.seconds)))
        elif not claims and not state.tasks:
            state.claim_target = state.slots
    take_on(state, claims)


def _while_a_turn_takes(state: WorkerState, claims: Sequence[Claim], seconds: float) -> int:
    """How many more such as these all slots can run until a turn is over that takes as long as the last one, and once more.

    Where a turn takes long, to double step by step what is in hand would let the slots stand still meanwhile.
    """
    each = sum(state.pace.cost(claim.code) for claim in claims) / len(claims)
    return int(2 * state.slots * min(seconds, MOST_COVERED) / max(each, LEAST_COST))


def watch_blocked(state: WorkerState, claims: Claims, capacity: Capacity) -> None:
    """Shapes that are passed over, as they don't fit or others come first: for one that waited long room is made."""
    state.blocked_shapes, state.passed = claims.blocked, claims.passed
    served = {index_shape(shape) for shape in {claim.shape for claim in claims}}
    for shape in served:
        state.blocked_since.pop(shape, None)
    if capacity.hold_for is not None:
        held = index_shape(capacity.hold_for.shape)
        if named_of(held) or held[2]:  # what needs other things goes on meanwhile
            over = held in served or all(index_shape(one.shape) != held for one in claims.blocked)
        else:
            over = bool(claims) or not claims.blocked
        if over or state.now >= state.hold_until:
            state.hold_for = None  # it came, or another worker took it, or something else stands in its way
            state.blocked_since.clear()
            state.wants_claim = True
    elif capacity.survey:
        seen = state.blocked_since
        passed = [shape.shape for shape in claims.blocked if shape.shape not in served]
        state.blocked_since = {shape: seen.get(shape, state.now) for shape in passed}
        if state.blocked_since:
            oldest, since = min(state.blocked_since.items(), key=lambda item: item[1])
            if state.now - since >= HOLD_AFTER * (1 + state.stripe[0]):  # one worker after the other
                state.hold_for, state.hold_until = oldest, state.now + HOLD_MOST
                state.wants_claim = True


def pushed(state: WorkerState, event: Pushed) -> None:
    """Work for an idle worker. If it is idle no more, the pool is the better place for it."""
    fresh = [claim for claim in event.claims if claim.id not in state.tasks]
    room = max(0, state.slots - len(state.tasks))
    take_on(state, fresh[:room])
    for task in accept(state, fresh[room:]):
        state.give_back(task, "not idle")


def take_on(state: WorkerState, claims: Iterable[Claim]) -> None:
    prepare = []
    for task in accept(state, claims):
        if state.draining:
            state.give_back(task, "drained")
        elif state.overfull(task):
            state.give_back(task, "what it needs isn't free")  # a claim that this worker had lost track of
        else:
            follow(state, task)
            prepare.append(task)
    if prepare:
        state.preparing += len(prepare)
        for task in prepare:
            task.preparing = True
        state.out.append(PrepareInputs(prepare))


def follow(state: WorkerState, task: Task) -> None:
    """A claim that lacks the result of another one of this worker was made ahead of it."""
    claim = task.claim
    if len(claim.inputs) < len(claim.dependencies):
        lacking = [one for one in claim.dependencies if one not in claim.inputs]
        upstream = state.tasks.get(lacking[0])
        gone = upstream is None or upstream.cancelled or upstream.orphaned or upstream.follower is not None
        if upstream is not None and len(lacking) == 1 and not gone:
            state.attach(task, upstream)


def accept(state: WorkerState, claims: Iterable[Claim]) -> list[Task]:
    tasks = []
    for claim in claims:
        before = state.tasks.get(claim.id)
        if before is not None:
            replace(state, before)
        cpu, ram, gpu = claim.shape[:3]
        task = Task(claim, cpu, ram, gpu, named_of(claim.shape), soft_timeout=soft_timeout_of(claim.call_options))
        state.used[0] += cpu
        state.used[1] += ram
        state.used[2] += gpu
        if gpu and state.gpus:
            task.devices = allot(tuple(state.devices), gpu) or ()
            for at, amount in task.devices:
                state.devices[at] -= amount
        for name, amount in task.named:
            state.used_named[name] = state.used_named.get(name, 0) + amount
        state.tasks[claim.id] = task
        state.count(task, 1)
        state.counters.claimed += 1
        tasks.append(task)
    return tasks


def replace(state: WorkerState, task: Task) -> None:
    """A future that was cancelled is to run again, and its task of before hasn't ended: now it must."""
    task.cancelled = True
    if task.preparing:
        task.preparing = False
        state.preparing -= 1
    if task in state.ready:
        state.ready.remove(task)
    for child in state.children.values():
        if child.queue and child.queue[0] is task:
            state.kill(child, "cancelled")
    state.close(task)


def forget_stale(state: WorkerState, event: TurnEnded) -> None:
    """Somebody else decided these futures: results of ours that were stored for them are of no use, nor is what took them."""
    stale = set(event.claims.stale)
    for outcome in event.turn.outcomes:
        if outcome.claim.id in stale:
            drop_result(state, outcome)
    for at, outcome in enumerate(state.outcomes):
        if outcome.event == "realize_future" and not stale.isdisjoint(outcome.claim.dependencies):
            drop_result(state, outcome)
            state.outcomes[at] = Outcome.relinquished(outcome.claim, INPUT_GONE, started=True)
            stale.add(outcome.claim.id)
    for task in list(state.tasks.values()):
        if task.behind is None and not task.orphaned and not stale.isdisjoint(task.claim.dependencies):
            task.orphaned = True
            if task in state.ready:
                state.ready.remove(task)
                state.let_go(task)


def drop_result(state: WorkerState, outcome: Outcome) -> None:
    if isinstance(outcome.result, FutureResult) and outcome.result.name:
        state.out.append(DropObject(outcome.result.name))


def prepared(state: WorkerState, task: Task) -> bool:
    """The inputs of a task are settled; False if nobody waits for them any more."""
    if not task.preparing:
        return False  # given back while they were on their way
    task.preparing = False
    state.preparing -= 1
    return True


def inputs_ready(state: WorkerState, event: InputsReady) -> None:
    awaited = state.awaited()
    first = []
    for task in event.tasks:
        if not prepared(state, task) or state.dismissed(task):
            continue
        task.home = state.home_of(task)
        if task.behind is not None:
            continue  # it is sent behind that task, or when that one has ended
        elif type(task.dependencies) is list and None in task.dependencies:
            state.line_up(task)
        elif task.claim.id in awaited:
            first.append(task)
        else:
            state.ready.append(task)
    state.ready.extendleft(reversed(first))


def inputs_lost(state: WorkerState, event: InputsLost) -> None:
    if not prepared(state, event.task):
        return
    if event.task.cancelled:
        state.close(event.task)
    else:
        state.end(event.task, Outcome.missed_inputs(event.task.claim, event.lost, event.absent))


def inputs_broken(state: WorkerState, event: InputsBroken) -> None:
    task = event.task
    if not prepared(state, task):
        return
    if task.cancelled:
        state.close(task)
        return
    state.counters.failed += 1
    state.end(task, Outcome.failed(task.claim, Failure(event.reason, event.message), permanently=True))


def inputs_short(state: WorkerState, event: InputsShort) -> None:
    if not prepared(state, event.task):
        return
    if event.task.cancelled:
        state.close(event.task)
        return
    text = f"{state.worker.ip}:{state.worker.port} was short: {event.message}"[:500]
    state.end(event.task, Outcome.short(event.task.claim, text))
    state.abstain()
