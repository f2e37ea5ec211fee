"""What a worker makes of its claims until they can run: taken on, chained, their inputs awaited. No I/O."""

from __future__ import annotations

from collections.abc import Iterable

from fdb_datamodel import Capacity, Claim, Claims, Failure, FutureResult, Outcome, index_shape
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

EMPTY_RINGS = 3
"""Rings in a row that a worker answers in vain before it lets others be first."""
FIRST_PATIENCE = 0.001
MOST_PATIENCE = 0.004
"""Seconds that such a worker waits after a ring, doubled from the first to the second while it finds nothing."""
HOLD_AFTER = 2.0
"""Seconds that a shape is passed over, for want of room, before room is made for it."""
HOLD_MOST = 60.0
"""Seconds for which nothing else is claimed; then others have their turn before it is tried again."""


class ClaimedTasks(WorkerState):
    """The part of the core between a claim and a task that is ready."""

    __slots__ = ()

    def _learn_patience(self, found: bool) -> None:
        """After a ring: an idle worker that keeps finding the pool empty lets others be first, until it finds work."""
        rung, self.rung = self.rung, False
        if found:
            self.empty_rings, self.patience = 0, 0.0
        elif rung and not self.tasks:
            self.empty_rings += 1
            if self.empty_rings >= EMPTY_RINGS:
                self.patience = min(MOST_PATIENCE, max(FIRST_PATIENCE, 2 * self.patience))

    def _turn_ended(self, event: TurnEnded) -> None:
        claims, limit = event.claims, event.turn.limit
        self.counters.turns += 1
        learn_from_turn(self, max(len(event.turn.outcomes), len(claims)), event.seconds)
        if claims.stale:
            self._forget_stale(event)
        if limit:
            self.wants_claim = claims.more
            self._learn_patience(bool(claims))
            if event.turn.capacity.look:
                self._watch_blocked(claims, event.turn.capacity)
            heads = [claim for claim in claims if len(claim.inputs) == len(claim.dependencies)]
            self.sated = claims.cut
            if claims.cut:
                self.ambition = max(self.slots, 2 * len(heads))
            elif len(heads) >= limit:
                self.ambition = min(MOST_IN_HAND, max(self.ambition, self.slots, limit) * 2)
            elif not claims and not self.tasks:
                self.ambition = self.slots
        self._take_on(claims)

    def _watch_blocked(self, claims: Claims, capacity: Capacity) -> None:
        """Shapes that are passed over, as they don't fit or others come first: for one that waited long room is made."""
        self.blocked_shapes, self.passed = claims.blocked, claims.passed
        served = {index_shape(shape) for shape in {claim.shape for claim in claims}}
        for shape in served:
            self.blocked_since.pop(shape, None)
        if capacity.hold_for is not None:
            if claims or not claims.blocked or self.now >= self.hold_until:
                self.hold_for = None  # it came, or another worker took it, or something else stands in its way
                self.blocked_since.clear()
                self.wants_claim = True
        elif capacity.survey:
            seen = self.blocked_since
            passed = [shape.shape for shape in claims.blocked if shape.shape not in served]
            self.blocked_since = {shape: seen.get(shape, self.now) for shape in passed}
            if self.blocked_since:
                oldest, since = min(self.blocked_since.items(), key=lambda item: item[1])
                if self.now - since >= HOLD_AFTER * (1 + self.stripe[0]):  # one worker after the other
                    self.hold_for, self.hold_until = oldest, self.now + HOLD_MOST
                    self.wants_claim = True

    def _pushed(self, event: Pushed) -> None:
        """Work for an idle worker. If it is idle no more, the pool is the better place for it."""
        fresh = [claim for claim in event.claims if claim.id not in self.tasks]
        room = max(0, self.slots - len(self.tasks))
        self._take_on(fresh[:room])
        for task in self._accept(fresh[room:]):
            self.give_back(task, "not idle")

    def _take_on(self, claims: Iterable[Claim]) -> None:
        prepare = []
        for task in self._accept(claims):
            if self.draining:
                self.give_back(task, "drained")
            else:
                self._follow(task)
                prepare.append(task)
        if prepare:
            self.preparing += len(prepare)
            for task in prepare:
                task.preparing = True
            self.out.append(PrepareInputs(prepare))

    def _follow(self, task: Task) -> None:
        """A claim that lacks the result of another one of this worker was made ahead of it."""
        claim = task.claim
        if len(claim.inputs) < len(claim.dependencies):
            lacking = [one for one in claim.dependencies if one not in claim.inputs]
            upstream = self.tasks.get(lacking[0])
            gone = upstream is None or upstream.cancelled or upstream.orphaned or upstream.follower is not None
            if upstream is not None and len(lacking) == 1 and not gone:
                self.attach(task, upstream)

    def _accept(self, claims: Iterable[Claim]) -> list[Task]:
        tasks = []
        for claim in claims:
            cpu, ram, gpu = claim.shape
            task = Task(claim, cpu, ram, gpu)
            self.used[0] += cpu
            self.used[1] += ram
            self.used[2] += gpu
            self.tasks[claim.id] = task
            self.count(task, 1)
            self.counters.claimed += 1
            tasks.append(task)
        return tasks

    def _forget_stale(self, event: TurnEnded) -> None:
        """Somebody else decided these futures: results of ours that were stored for them are of no use, nor is what took them."""
        stale = set(event.claims.stale)
        for outcome in event.turn.outcomes:
            if outcome.claim.id in stale:
                self._drop_result(outcome)
        for at, outcome in enumerate(self.outcomes):
            if outcome.event == "realize_future" and not stale.isdisjoint(outcome.claim.dependencies):
                self._drop_result(outcome)
                self.outcomes[at] = Outcome.relinquished(outcome.claim, INPUT_GONE, started=True)
                stale.add(outcome.claim.id)
        for task in list(self.tasks.values()):
            if task.behind is None and not task.orphaned and not stale.isdisjoint(task.claim.dependencies):
                task.orphaned = True
                if task in self.ready:
                    self.ready.remove(task)
                    self.let_go(task)

    def _drop_result(self, outcome: Outcome) -> None:
        if isinstance(outcome.result, FutureResult) and outcome.result.name:
            self.out.append(DropObject(outcome.result.name))

    def _prepared(self, task: Task) -> bool:
        """The inputs of a task are settled; False if nobody waits for them any more."""
        if not task.preparing:
            return False  # given back while they were on their way
        task.preparing = False
        self.preparing -= 1
        return True

    def _inputs_ready(self, event: InputsReady) -> None:
        awaited = self.awaited()
        first = []
        for task in filter(self._prepared, event.tasks):
            if self.dismissed(task):
                continue
            if task.behind is not None:
                continue  # it is sent behind that task, or when that one has ended
            elif type(task.dependencies) is list and None in task.dependencies:
                self.line_up(task)
            elif task.claim.id in awaited:
                first.append(task)
            else:
                self.ready.append(task)
        self.ready.extendleft(reversed(first))

    def _inputs_lost(self, event: InputsLost) -> None:
        if not self._prepared(event.task):
            return
        if event.task.cancelled:
            self.close(event.task)
        else:
            self.end(event.task, Outcome.missed_inputs(event.task.claim, event.lost, event.absent))

    def _inputs_broken(self, event: InputsBroken) -> None:
        task = event.task
        if not self._prepared(task):
            return
        if task.cancelled:
            self.close(task)
            return
        self.counters.failed += 1
        self.end(task, Outcome.failed(task.claim, Failure(event.reason, event.message), permanently=True))

    def _inputs_short(self, event: InputsShort) -> None:
        if not self._prepared(event.task):
            return
        if event.task.cancelled:
            self.close(event.task)
            return
        text = f"{self.worker.ip}:{self.worker.port} was short: {event.message}"[:500]
        self.end(event.task, Outcome.short(event.task.claim, text))
        self.abstain()
