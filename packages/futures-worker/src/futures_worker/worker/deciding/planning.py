"""What the worker does next, decided from its state alone: children to fork, tasks to send, turns to take. No I/O."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from fdb_datamodel import Capacity, Outcome, Requirements, named_of
from futures_worker.worker.deciding.dispatching import MOST_SENT, SKIPS, dispatch, rescue, silence, staff, stuck_after
from futures_worker.worker.deciding.instructions import Finish, InterruptTask, KillChild, RunTurn
from futures_worker.worker.deciding.state import WorkerState
from futures_worker.worker.deciding.tasks import HORIZON, SHORT, Child, ChildState, Task
from futures_worker.worker.messages import LIMIT

MOST_WORK = 0.25
"""Seconds of work per slot in hand beyond which a share is given back to the pool if other workers are idle."""
REVIEW = 0.2
"""Seconds between looks at whether too much work is in hand."""
MOST_IN_HAND = 2000
"""Tasks in hand at most, however short."""
MOST_PER_TURN = 500
"""Claims of one transaction, and outcomes, at most."""
LEAST_PER_TURN = 16
SLOW_TURN = 1.0
"""Seconds of a turn after which the next ones carry half as much: between turns the worker gives its sign of life."""
STEPS = 8
"""In so many steps of `HORIZON` what may be claimed ahead is offered, so that the offer seldom changes."""
SURVEY = 0.5
"""Seconds between looks at all shapes of the pool, those behind what is claimed included."""
TURN_BYTES = 300_000
"""Bytes of inline results and failures of one transaction, about: each is written twice, for the future and its waiter."""
AHEAD_WORK = 0.05
"""Seconds of work claimed ahead along chains at most: it can't run anywhere else, but others wait for its beginning."""
LINGER = 0.001
"""Seconds that outcomes wait for more while short tasks are ending."""


def plan(state: WorkerState) -> None:
    """Appends to `state.out` what is to be done now."""
    _enforce_timeouts(state)
    if not state.draining:
        if state.staff_changed or 0 < state.retire_at <= state.now:
            staff(state)
        if state.tasks:
            dispatch(state)
            rescue(state)
            _give_back_excess(state)
    elif state.now >= state.drain_end:
        for child in state.children.values():
            if child.queue:
                state.kill(child, "drained")
        for task in [task for task in state.tasks.values() if task.preparing]:
            task.preparing = False  # its inputs may never come
            state.preparing -= 1
            state.give_back(task, "drained")
    _turn(state)
    if state.draining and state.idle and not state.preparing and not state.finished:
        state.finished = True
        state.out.append(Finish())


def deadline(state: WorkerState) -> float | None:
    """When `step` must be called at the latest though nothing happened; None: only when something does."""
    times: list[float] = []
    if state.refused_until > state.now:
        times.append(state.refused_until)
    elif state.outcomes:
        times.append(state.first_outcome + LINGER)
    if state.hold_for is not None:
        times.append(state.hold_until)
    if state.claim_after > state.now and state.wants_claim:
        times.append(state.claim_after)
    if state.short_until > state.now and state.wants_claim:
        times.append(state.short_until)
    if state.spawn_after > state.now and len(state.children) < state.slots:
        times.append(state.spawn_after)
    if state.draining and state.now < state.drain_end:
        times.append(state.drain_end)
    if state.retire_at and not state.draining:
        times.append(state.retire_at)
    _due_of_children(state, times)
    if state.ready and not state.draining:
        times.append(state.next_review)
    return min(times) if times else None


def _due_of_children(state: WorkerState, times: list[float]) -> None:
    """Adds when something is to be done about a child, unless it is heard of before."""
    for child in state.children.values():
        if child.leave_by:
            times.append(child.leave_by)
        if child.expected_until > state.now:
            times.append(child.expected_until)
        if not child.queue or child.state is ChildState.dying:
            continue
        if child.kill_by:
            times.append(child.kill_by)
        limit, soft = child.queue[0].claim.run_timeout, _soft_limit(child)
        if limit is not None:
            times.append(child.head_since + limit)
        if soft is not None:
            times.append(child.head_since + soft)
        if len(child.queue) > 1 and child.state is ChildState.running:
            times.append(child.head_since + (SKIPS if child.rescued else stuck_after(state, child)))


def _enforce_timeouts(state: WorkerState) -> None:
    for child in state.children.values():
        if child.leave_by and state.now >= child.leave_by:
            child.leave_by = 0.0
            state.out.append(KillChild(child.number))
        if child.queue:
            if child.queue[0].cancelled:
                state.stop(child)  # it began while it was to be taken back
                if child.kill_by and state.now >= child.kill_by:
                    state.kill(child, "cancelled")
            soft = _soft_limit(child)
            if soft is not None and state.looked - child.head_since >= soft:
                child.limited = child.queue[0].seq
                state.out.append(InterruptTask(child.number, child.queue[0].seq, LIMIT))
            limit = child.queue[0].claim.run_timeout
            if limit is not None and state.looked - child.head_since >= limit:
                state.kill(child, "timeout")


def _soft_limit(child: Child) -> float | None:
    """Seconds that the first task of a child may run until it is interrupted, unless it was."""
    task = child.queue[0]
    over = child.limited == task.seq or task.cancelled or child.state is ChildState.dying
    return None if over else task.soft_timeout


def _give_back_excess(state: WorkerState) -> None:
    """What turns out to be more than a moment's work goes back to the pool, where priorities, time limits and others reach it.

    Where others have nothing to do a fair share of it goes earlier: a busy peer would only have to claim it in its turn.
    """
    if not state.ready or state.now < state.next_review:
        return
    state.next_review = state.now + REVIEW
    longest = [silence(state, c) for c in state.children.values() if c.queue and c.state is ChildState.running]
    # If every slot has been busy with one task for that long, those in line will take as long, as far as is known.
    floor = min(longest) if len(longest) >= state.slots else 0.0
    most = HORIZON * state.slots
    costs = [state.pace.cost(task.claim.code) for task in state.ready]
    if floor >= HORIZON:
        _shorten_line(state, 0.0)
    elif sum(costs) > 2 * most:
        _shorten_line(state, most)
    elif (
        state.idle_elsewhere
        and len(costs) > state.slots
        and sum(max(floor, c) for c in costs) > MOST_WORK * state.slots
    ):
        _share(state)


def _shorten_line(state: WorkerState, left: float) -> None:
    """Give back what is more than `left` seconds of work, the last of the line; but nothing that a task here waits for."""
    awaited = state.awaited()
    state.claim_target = state.slots
    kept: list[Task] = []
    while state.ready:
        task = state.ready.popleft()
        cost = state.pace.cost(task.claim.code)
        if task.claim.id in awaited or cost <= left:
            left -= cost
            kept.append(task)
        else:
            left = 0.0
            state.give_back(task, "too long a line")
    state.ready.extend(kept)


def _share(state: WorkerState) -> None:
    """Give a fair share of the line to those that are idle, as far as they have room for it."""
    idle, state.idle_elsewhere = state.idle_elsewhere, 0  # they say so again if this isn't enough
    keep = max(state.slots, -(-len(state.ready) * state.slots // (state.slots + idle)))
    state.claim_target = state.slots
    room = state.idle_room
    kept: deque[Task] = deque()
    while len(state.ready) + len(kept) > keep and state.ready:
        task = state.ready.pop()
        if not (task.named or task.devices) and task.cpu <= room[0] and task.ram <= room[1] and task.gpu <= room[2]:
            state.give_back(task, "rebalanced")
        else:
            kept.appendleft(task)
    state.ready.extend(kept)


def claim_limit(state: WorkerState) -> int:
    """How many claims to ask for now."""
    if state.draining or state.now < state.short_until:
        return 0
    in_hand = len(state.tasks) - state.waiting - state.following
    nested = state.waiting > state.residents
    if nested:
        in_hand += sum(1 for child in state.children.values() if child.expected_until > state.now)
    lacking = state.slots - in_hand
    if nested or not state.pace.any_short:
        return max(0, min(lacking, state.per_turn))
    target = max(state.slots, min(state.claim_target, MOST_IN_HAND))
    room = target - in_hand
    # A claim costs a scan: ask for many at a time or for what is lacking.
    if lacking <= 0 and (state.sated or room < target // 3 or 3 * _ahead_seconds(state) < HORIZON * state.slots):
        return 0
    return max(0, min(room, state.per_turn))


def _ahead_seconds(state: WorkerState) -> float:
    """Seconds of work that may be claimed beside what is in hand."""
    cost = state.pace.cost
    left = HORIZON * state.slots - sum(number * cost(code) for code, number in state.codes.items())
    for child in state.children.values():
        if child.queue:
            expected = cost(child.queue[0].claim.code)
            if child.state is ChildState.blocked:
                left += expected  # it takes no slot
            else:
                left -= max(0.0, min(HORIZON, silence(state, child)) - expected)
    return max(0.0, left)


def learn_from_turn(state: WorkerState, size: int, seconds: float) -> None:
    """Adapt how much a turn carries to how long the database takes for one of `size` outcomes or claims."""
    state.turn_seconds = (state.turn_seconds + seconds) / 2
    if seconds > SLOW_TURN:
        state.per_turn = max(LEAST_PER_TURN, min(state.per_turn, size) // 2)
    elif seconds < SLOW_TURN / 4 and size > state.per_turn // 2:
        state.per_turn = min(MOST_PER_TURN, 2 * state.per_turn)


def _turn(state: WorkerState) -> None:
    if state.now < state.refused_until:
        if state.draining and state.now >= state.drain_end:
            state.outcomes.clear()  # whoever finds this worker gone gives its claims to others
        return
    limit = claim_limit(state)
    if state.hold_for is not None and state.now >= state.hold_until and limit:
        state.wants_claim = True  # to find that it has been too long
    if state.outcomes:
        if state.now - state.first_outcome < LINGER and len(state.outcomes) < state.per_turn // 2 and _ends_soon(state):
            return
        capacity = _capacity(state, limit)
        if limit:
            state.wants_claim = False
        outcomes = _fitting(state.outcomes, state.per_turn)
        state.outcomes = state.outcomes[len(outcomes) :]
        state.first_outcome = state.now - LINGER
        state.out.append(RunTurn(outcomes, capacity, limit))
    elif limit and state.wants_claim and state.now >= state.claim_after:
        capacity = _capacity(state, limit)
        state.wants_claim = False
        state.out.append(RunTurn([], capacity, limit))


def _fitting(outcomes: list[Outcome], most: int) -> list[Outcome]:
    """The first outcomes, as many as one transaction should carry; at least one."""
    size = 0
    for count, outcome in enumerate(outcomes[:most]):
        result, failure = outcome.result, outcome.failure
        if type(result) is bytes:
            size += len(result)
        elif failure is not None:
            size += len(failure.payload) + len(failure.traceback)
        if size > TURN_BYTES and count:
            return outcomes[:count]
    return outcomes[:most]


def _ends_soon(state: WorkerState) -> bool:
    """Whether more short tasks are about to end, so that it pays to report them together."""
    for child in state.children.values():
        if child.queue and child.state is ChildState.running:
            known = state.pace.of(child.queue[0].claim.code)
            if known is not None and known <= SHORT and silence(state, child) < LINGER:
                return True
    return False


def _capacity(state: WorkerState, limit: int) -> Capacity:
    held = Requirements.from_shape(state.hold_for) if state.hold_for is not None else None
    if held is not None and not (named_of(held.shape) or held.shape[2]) and not state.wanted:
        return _offer(state, limit, Capacity(state.free, state.total, hold_for=held))
    if state.wanted and limit:
        wanted, state.wanted = tuple(state.wanted), []
        overcommit, state.overcommit = state.overcommit, False
        return _offer(state, limit, Capacity(state.free, state.total, wanted=wanted, overcommit=overcommit))
    look = state.wants_claim or not state.watched or bool(state.blocked_shapes)
    # Behind others as much is claimed as takes a moment.
    ahead = max(0, MOST_SENT - state.following) if state.pace.any_short else 0
    survey = limit > 0 and state.now >= state.next_survey and look
    if survey:
        state.next_survey = state.now + SURVEY
    named = tuple(state.used_named.values()) if state.used_named else ()
    key = (
        *state.used,
        *named,
        *state.devices,
        state.hold_for,
        *state.stripe,
        look,
        ahead,
        state.passed,
        survey,
        *_time(state, limit),
        state.pace.unknown,
    )
    if state.capacity is None or state.capacity[0] != key:
        offered = Capacity(state.free, state.total, held, look=look, ahead=ahead, wary=state.passed, survey=survey)
        state.capacity = (key, _offer(state, limit, offered))
    return state.capacity[1]


def _time(state: WorkerState, limit: int) -> tuple[float, int]:
    """Seconds of work that may be claimed, in steps, and how many tasks can begin at once."""
    step = HORIZON / STEPS
    in_hand = len(state.tasks) - state.waiting - state.following
    return int(_ahead_seconds(state) / step + 1e-6) * step if limit else 0.0, max(0, state.slots - in_hand)


def _offer(state: WorkerState, limit: int, capacity: Capacity) -> Capacity:
    """Complete an offer by what holds for each."""
    seconds, at_once = _time(state, limit)
    return replace(
        capacity,
        stripe=state.stripe,
        devices=tuple(state.devices),
        seconds=seconds,
        at_once=at_once,
        pace=state.pace.known,
        unknown=state.pace.unknown,
        ahead_seconds=AHEAD_WORK,
    )
