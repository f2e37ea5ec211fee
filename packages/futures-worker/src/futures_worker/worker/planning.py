"""What the worker does next, decided from its state alone: children to fork, tasks to send, turns to take. No I/O."""

from __future__ import annotations

from collections import deque

from fdb_datamodel import Capacity, Outcome, Requirements
from futures_worker.worker.instructions import (
    Finish,
    RetireChild,
    RunTurn,
    SendTasks,
    SpawnChild,
    TakeBack,
)
from futures_worker.worker.state import WorkerState
from futures_worker.worker.tasks import SHORT, Child, ChildState, Task

HORIZON = 0.5
"""Seconds of work claimed ahead at most, by what tasks took so far."""
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
PER_PACKET = 15
"""Tasks of one packet at most (what one byte of msgpack can count)."""
STEADY = 50
"""Short runs in a row after which a function's tasks share packets; what shares a packet can't be taken back singly."""
LINGER = 0.001
"""Seconds that outcomes wait for more while short tasks are ending."""
STUCK = 0.01
"""Seconds after which tasks queued behind a running one are taken back."""
MOST_CHILDREN = 4096
"""Children at most, those that wait for other futures included."""
TOO_DEEP = "nested too deep"
"""Why a child is killed when every one of `MOST_CHILDREN` waits for futures that no process is left to run."""


def plan(state: WorkerState) -> None:
    """Appends to `state.out` what is to be done now."""
    if state.tasks:
        _enforce_timeouts(state)
    if not state.draining:
        if state.staff_changed:
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
    if state.outcomes:
        times.append(state.first_outcome + LINGER)
    if state.hold_for is not None:
        times.append(state.hold_until)
    if state.claim_after > state.now and state.wants_claim:
        times.append(state.claim_after)
    if state.spawn_after > state.now and len(state.children) < state.slots:
        times.append(state.spawn_after)
    if state.draining and state.now < state.drain_end:
        times.append(state.drain_end)
    for child in state.children.values():
        if child.expected_until > state.now:
            times.append(child.expected_until)
        if not child.queue or child.state is ChildState.dying:
            continue
        limit = child.queue[0].claim.run_timeout
        if limit is not None:
            times.append(child.head_since + limit)
        if len(child.queue) > 1 and child.state is ChildState.running and not child.rescued:
            times.append(child.head_since + STUCK)
    if state.idle_elsewhere and len(state.ready) > state.slots:
        times.append(state.next_review)
    return min(times) if times else None


def _enforce_timeouts(state: WorkerState) -> None:
    for child in state.children.values():
        if child.queue:
            limit = child.queue[0].claim.run_timeout
            if limit is not None and state.looked - child.head_since >= limit:
                state.kill(child, "timeout")


def _staff(state: WorkerState) -> None:
    """One child per slot that takes tasks: more are forked while some wait, and end when those are back."""
    if state.now < state.spawn_after:
        return
    state.staff_changed = False
    active = [c for c in state.children.values() if c.state in (ChildState.starting, ChildState.running)]
    lacking = min(state.slots - len(active), MOST_CHILDREN - len(state.children))
    if not active and lacking <= 0 and state.slots:
        state.kill(max(state.children.values(), key=lambda child: (not child.resident, child.number)), TOO_DEEP)
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
            child.become(ChildState.dying)
            child.kill_reason = "retired"
            state.out.append(RetireChild(child.number))
            surplus -= 1
    state.staff_changed = surplus > 0  # they are busy: look again


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
        known = state.pace.of(ready[0].digest)
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
        for task in batch:
            task.seq = seq
            seq += 1
        child.next_seq = seq
        child.queue.extend(batch)
        child.rescued = False
        per_packet = PER_PACKET if state.pace.streak(batch[0].digest) >= STEADY else 1
        state.out.append(SendTasks(child.number, batch, per_packet))


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
        if child.state is ChildState.running and len(child.queue) > 1 and not child.rescued and _stuck(state, child):
            child.rescued = True
            state.out.append(TakeBack(child.number))


def _stuck(state: WorkerState, child: Child) -> bool:
    return len(child.queue) > 0 and state.looked - child.head_since >= STUCK


def _give_back_excess(state: WorkerState) -> None:
    """Work that is more than a moment's goes back to the pool, a fair share of it, where others have nothing to do.

    A busy peer would only have to claim it in its turn, so nothing is given back while all are busy.
    """
    if not state.idle_elsewhere or len(state.ready) <= state.slots or state.now < state.next_review:
        return
    state.next_review = state.now + REVIEW
    longest = [
        state.looked - c.head_since for c in state.children.values() if c.queue and c.state is ChildState.running
    ]
    # If every slot has been busy with one task for that long, those in line will take as long, as far as is known.
    floor = min(longest) if len(longest) >= state.slots else 0.0
    expected = 0.0
    for task in state.ready:
        expected += max(floor, state.pace.of(task.digest) or 0.0)
    if expected <= MOST_WORK * state.slots:
        return
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
    if state.draining:
        return 0
    in_hand = len(state.tasks) - state.waiting - state.following
    nested = state.waiting > state.residents
    if nested:
        in_hand += sum(1 for child in state.children.values() if child.expected_until > state.now)
    target = state.slots
    overall = state.pace.overall
    if overall is not None and not nested:
        affordable = int(state.slots * HORIZON / max(overall, 1e-6))
        target = max(target, min(state.ambition, affordable, MOST_IN_HAND))
    room = target - in_hand
    # A claim costs a scan: ask for many at a time or for what is lacking.
    if in_hand >= state.slots and room < target // 3:
        return 0
    return max(0, min(room, state.per_turn))


def learn_from_turn(state: WorkerState, size: int, seconds: float) -> None:
    """Adapt how much a turn carries to how long the database takes for one of `size` outcomes or claims."""
    if seconds > SLOW_TURN:
        state.per_turn = max(LEAST_PER_TURN, min(state.per_turn, size) // 2)
    elif seconds < SLOW_TURN / 4 and size > state.per_turn // 2:
        state.per_turn = min(MOST_PER_TURN, 2 * state.per_turn)


def _turn(state: WorkerState) -> None:
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
        size += len(result) if type(result) is bytes else len(failure.payload) if failure is not None else 0
        if size > TURN_BYTES and count:
            return outcomes[:count]
    return outcomes[:most]


def _ends_soon(state: WorkerState) -> bool:
    """Whether more short tasks are about to end, so that it pays to report them together."""
    for child in state.children.values():
        if child.queue and child.state is ChildState.running:
            known = state.pace.of(child.queue[0].digest)
            if known is not None and known <= SHORT and state.looked - child.head_since < LINGER:
                return True
    return False


def _ahead(state: WorkerState) -> int:
    """How many tasks to claim behind others: as many as take a moment, none where a turn costs little beside a task."""
    overall = state.pace.overall
    if overall is None or overall > AHEAD_WORK / 4:
        return 0
    return max(0, min(MOST_SENT, int(AHEAD_WORK / max(overall, 1e-6))) - state.following)


def _capacity(state: WorkerState, limit: int) -> Capacity:
    if state.hold_for is not None and not state.wanted:
        held = Requirements.from_shape(state.hold_for)
        return Capacity(state.free, state.total, hold_for=held, stripe=state.stripe)
    if state.wanted and limit:
        wanted, state.wanted = tuple(state.wanted), []
        overcommit, state.overcommit = state.overcommit, False
        return Capacity(state.free, state.total, stripe=state.stripe, wanted=wanted, overcommit=overcommit)
    look = state.wants_claim or not state.watched or bool(state.blocked_shapes)
    ahead = _ahead(state)
    if limit and state.now >= state.next_survey and look:
        state.next_survey = state.now + SURVEY
        return Capacity(state.free, state.total, stripe=state.stripe, ahead=ahead, survey=True, wary=state.passed)
    key = (*state.used, *state.stripe, look, ahead, state.passed)
    if state.capacity is None or state.capacity[0] != key:
        offered = Capacity(state.free, state.total, stripe=state.stripe, look=look, ahead=ahead, wary=state.passed)
        state.capacity = (key, offered)
    return state.capacity[1]
