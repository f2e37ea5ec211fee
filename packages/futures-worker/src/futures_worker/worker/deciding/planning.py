"""What the worker does next, decided from its state alone: children to fork, tasks to send, turns to take. No I/O."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from fdb_datamodel import Capacity, Outcome, Requirements
from futures_worker.worker.deciding.instructions import (
    Finish,
    KillChild,
    RetireChild,
    RunTurn,
    SendTasks,
    SpawnChild,
    TakeBack,
)
from futures_worker.worker.deciding.state import WorkerState
from futures_worker.worker.deciding.tasks import HORIZON, SHORT, Child, ChildState, Task
from futures_worker.worker.messages import PACKET_SECONDS

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
WINDOW = 0.004
"""Seconds of work sent to a child ahead of what it runs."""
MOST_SENT = 128
"""Tasks sent to a child ahead at most."""
PER_PACKET = 14
"""Tasks of one packet at most (what one byte of msgpack can count, with the time of sending)."""
STEADY = 50
"""Short runs in a row after which a function's tasks share packets; what shares a packet can't be taken back singly."""
LINGER = 0.001
"""Seconds that outcomes wait for more while short tasks are ending."""
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


def plan(state: WorkerState) -> None:
    """Appends to `state.out` what is to be done now."""
    _enforce_timeouts(state)
    if not state.draining:
        if state.staff_changed or 0 < state.retire_at <= state.now:
            _staff(state)
        if state.tasks:
            _dispatch(state)
            _rescue(state)
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
    times = []
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
    for child in state.children.values():
        if child.leave_by:
            times.append(child.leave_by)
        if child.expected_until > state.now:
            times.append(child.expected_until)
        if not child.queue or child.state is ChildState.dying:
            continue
        limit = child.queue[0].claim.run_timeout
        if limit is not None:
            times.append(child.head_since + limit)
        if len(child.queue) > 1 and child.state is ChildState.running:
            times.append(child.head_since + (SKIPS if child.rescued else STUCK))
    if state.ready and not state.draining:
        times.append(state.next_review)
    return min(times) if times else None


def _enforce_timeouts(state: WorkerState) -> None:
    for child in state.children.values():
        if child.leave_by and state.now >= child.leave_by:
            child.leave_by = 0.0
            state.out.append(KillChild(child.number))
        if child.queue:
            limit = child.queue[0].claim.run_timeout
            if limit is not None and state.looked - child.head_since >= limit:
                state.kill(child, "timeout")


def _staff(state: WorkerState) -> None:
    """One child per slot that takes tasks: more are forked while some wait, and end when those are back."""
    if state.now < state.spawn_after:
        return
    state.staff_changed = False
    state.retire_at = 0.0
    active = [c for c in state.children.values() if c.state in (ChildState.starting, ChildState.running)]
    lacking = min(state.slots - len(active), MOST_CHILDREN - len(state.children))
    if not active and lacking <= 0 and state.slots:
        state.kill(max(state.children.values(), key=lambda child: (not child.resident, child.number)), TOO_DEEP)
    if lacking > 0 and state.now < state.retired_at + WANTED_AGAIN:
        state.keep_until = state.now + KEEPING
    for _ in range(lacking):
        child = Child(state.next_child)
        state.next_child += 1
        state.children[child.number] = child
        state.out.append(SpawnChild(child.number))
    # While tasks wait, as many more are kept idle: the next one that waits needs no fork.
    surplus = len(active) - state.slots * (2 if state.waiting > state.residents else 1)
    for child in reversed(active):  # the older ones have more loaded
        if surplus <= 0:
            return
        if child.state is ChildState.running and not child.queue:
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


def _dispatch(state: WorkerState) -> None:
    ready = state.ready
    if not ready:
        return
    takers = [c for c in state.children.values() if c.state is ChildState.running]
    busy = sum(1 for c in takers if c.queue)
    takers.sort(key=lambda c: len(c.queue))
    for position, child in enumerate(takers):
        if not ready:
            return
        if child.full or (not child.queue and busy >= state.slots) or _stuck(state, child):
            continue
        known = state.pace.of(ready[0].claim.code)
        window = 1 if known is None else max(1, min(MOST_SENT, int(WINDOW / max(known, 1e-6))))
        room = window - len(child.queue)
        if room <= 0:
            continue
        share = -(-len(ready) // (len(takers) - position))
        batch = _like_the_first(ready, min(room, share, len(ready)))
        _with_followers(batch, room)
        if not child.queue:
            busy += 1
            child.head_since = state.now
        seq = child.next_seq
        per_packet = PER_PACKET if state.pace.streak(batch[0].claim.code) >= STEADY else 1
        for task in batch:
            task.seq = seq
            task.skippable = per_packet > 1 or task.behind is not None
            seq += 1
        child.next_seq = seq
        child.queue.extend(batch)
        child.rescued = False
        state.out.append(SendTasks(child.number, batch, per_packet, state.now))


def _like_the_first(ready: deque[Task], most: int) -> list[Task]:
    """Takes tasks of one function off the line: what is expected of the first holds for all of them."""
    batch = [ready.popleft()]
    digest = batch[0].digest
    while len(batch) < most and ready[0].digest == digest:
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
            and not (follower.preparing or follower.large or follower.cancelled)
        ):
            batch.append(follower)


def _rescue(state: WorkerState) -> None:
    """Tasks queued behind a long one come back: for another child, or for the pool if they are too many."""
    for child in state.children.values():
        if child.state is ChildState.running and len(child.queue) > 1 and _stuck(state, child):
            if not child.rescued:
                child.rescued = True
                state.out.append(TakeBack(child.number))
            elif state.looked - child.head_since >= SKIPS:
                state.return_tasks(child, [task.seq for task in child.queue if task is not child.queue[0]])


def _stuck(state: WorkerState, child: Child) -> bool:
    return len(child.queue) > 0 and _silence(state, child) >= STUCK


def _silence(state: WorkerState, child: Child) -> float:
    """Seconds for which a child's first task has run, at least if others came before it."""
    return state.looked - child.head_since


def _give_back_excess(state: WorkerState) -> None:
    """What turns out to be more than a moment's work goes back to the pool, where priorities, time limits and others reach it.

    Where others have nothing to do a fair share of it goes earlier: a busy peer would only have to claim it in its turn.
    """
    if not state.ready or state.now < state.next_review:
        return
    state.next_review = state.now + REVIEW
    longest = [_silence(state, c) for c in state.children.values() if c.queue and c.state is ChildState.running]
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
    state.ambition = state.slots
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
    state.ambition = state.slots
    room = state.idle_room
    kept: deque[Task] = deque()
    while len(state.ready) + len(kept) > keep and state.ready:
        task = state.ready.pop()
        if task.cpu <= room[0] and task.ram <= room[1] and task.gpu <= room[2]:
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
    target = max(state.slots, min(state.ambition, MOST_IN_HAND))
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
                left -= max(0.0, min(HORIZON, _silence(state, child)) - expected)
    return max(0.0, left)


def learn_from_turn(state: WorkerState, size: int, seconds: float) -> None:
    """Adapt how much a turn carries to how long the database takes for one of `size` outcomes or claims."""
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
            if known is not None and known <= SHORT and _silence(state, child) < LINGER:
                return True
    return False


def _capacity(state: WorkerState, limit: int) -> Capacity:
    if state.hold_for is not None and not state.wanted:
        held = Requirements.from_shape(state.hold_for)
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
    key = (*state.used, *state.stripe, look, ahead, state.passed, survey, *_time(state, limit), state.pace.unknown)
    if state.capacity is None or state.capacity[0] != key:
        offered = Capacity(state.free, state.total, look=look, ahead=ahead, wary=state.passed, survey=survey)
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
        seconds=seconds,
        at_once=at_once,
        pace=state.pace.known,
        unknown=state.pace.unknown,
        ahead_seconds=AHEAD_WORK,
    )
