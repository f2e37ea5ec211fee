"""A worker's child processes under the simulation: strands in which the real loop runs its tasks.

What of a child is replaced is what it reads packets of tasks from, and what looks at the real process; each child is a process of
the machine, forked from its worker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgpack

from futures_worker import payload
from futures_worker.client.basis.processes import flush_all
from futures_worker.errors import ObjectLostError, SoftTimeLimitExceeded, TaskCancelled
from futures_worker.worker import messages
from futures_worker.worker.child import child_main, interrupts
from futures_worker.worker.deciding.instructions import (
    ChildEnded,
    ChildSaid,
    ChildStarted,
    Event,
    InterruptTask,
    KillChild,
    RetireChild,
    SendTasks,
    SpawnChild,
    TakeBack,
    TasksReturned,
)
from futures_worker.worker.running import child_pool
from futures_worker.worker.running.children import describe_status
from simulation.descriptors import Counter
from simulation.machine import Forked, current_process
from simulation.sites import CRASH, URL, Site, crash, perhaps_crash_later
from simulation.stand_ins import machine
from simulation.world import CLUSTER


class Anything:
    """`ChildOutput`, `CodeVersions`, `Surroundings`: of a process that shares its interpreter with all others."""

    def __init__(self, *_: Any) -> None:
        pass

    def begin(self, *_: Any) -> None:
        pass

    end = begin

    def agree(self, *_: Any) -> bool:
        return True

    hold = admits = restore = agree


class States:
    """`ClassStates`, where classes are what they were."""

    def load(self, data: bytes) -> tuple[Any, list[Any]]:
        return payload.load_code(data), []


class Gate:
    """`interrupts.Gate`, without signals: a task that rests is interrupted, and no other."""

    def __init__(self) -> None:
        self.struck = False
        self.seq = -1
        self.asked = {messages.CANCEL: -1, messages.LIMIT: -1}
        self.earliest = 0.0
        """When the task that runs may be told that it is over its soft limit."""

    def begin(self, seq: int, soft_timeout: float | None) -> None:
        self.seq = seq
        self.earliest = machine().now + interrupts.NEARLY * (soft_timeout or 0.0)

    def run(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return call(*arguments)

    def end(self) -> None:
        self.seq = -1

    @property
    def cancel_requested(self) -> bool:
        return self.asked[messages.CANCEL] == self.seq != -1

    def strike(self) -> None:
        """Raises what the task that runs is to be told now."""
        for cause, error in (
            (messages.CANCEL, TaskCancelled("the future of this task was cancelled")),
            (messages.LIMIT, SoftTimeLimitExceeded("the task ran longer than its soft_timeout")),
        ):
            if self.asked[cause] == self.seq and (cause == messages.CANCEL or machine().now >= self.earliest):
                self.asked[cause], self.struck = -1, True
                raise error

    def sooner(self, until: float) -> float:
        """Until when a task that rests until then may rest."""
        return min(until, self.earliest) if self.asked[messages.LIMIT] == self.seq else until


class Child:
    """A child process: packets of tasks, and a strand in which the real loop runs them."""

    def __init__(self, pool: Children, number: int) -> None:
        self.pool = pool
        self.number = number
        self.packets: deque[bytes] = deque()
        self.wanted = True
        self.waits = self.rests = False
        self.gate = Gate()
        self.process: Any = Forked(pool.process, number)
        self.process.child = self
        machine().forked[self.process.pid] = self.process
        self.strand = machine().spawn(self.process, self.run)

    def run(self) -> None:
        machine().block(Site.chance.choice((0.01, 0.05, 0.5)))
        interrupts.__dict__["_gate"] = self.gate
        self.pool.tell(ChildStarted(self.number))
        Loop(self, -1, str(self.pool.store.directory.path), URL, CLUSTER, self.gate).run()
        flush_all()
        self.end(0)

    def end(self, status: int) -> None:
        """It is dead; the worker learns it later, and what it sends meanwhile is unread."""
        if not self.process.dead:
            self.process.crashed = status == CRASH
            self.process.die()
            self.pool.tell(ChildEnded(self.number, describe_status(status)))

    def recv_into(self, buffer: bytearray) -> int:
        """As of the socket from which its loop reads."""
        while not self.packets:
            if not self.wanted:
                return 0
            self.waits = True
            machine().block(None)
            self.waits = False
        data = self.packets.popleft()
        buffer[: len(data)] = data
        return len(data)

    def wake(self, where: bool) -> None:
        """Nowhere else: a signal doesn't cut a sleep short."""
        if where:
            machine().wake(self.strand)

    def unread(self) -> tuple[int, ...]:
        return tuple(task[0] for data in self.packets for task in msgpack.unpackb(data)[1:])


class Loop(child_main.ChildLoop):
    """The loop of a child, which writes to its pool."""

    def __init__(self, child: Child, *arguments: Any) -> None:
        super().__init__(child, *arguments)  # type: ignore[arg-type]
        self.child = child

    def _run_task(self, task: list[Any]) -> None:
        crash()
        perhaps_crash_later()
        super()._run_task(task)

    def _write(self, data: bytes) -> None:
        message = msgpack.unpackb(data)
        assert messages.well_formed(message), message
        self.child.pool.tell(ChildSaid(self.child.number, [message]))


class Children:
    """`ChildPool`, whose children are strands."""

    def __init__(self, epoll: Any, store: Any, *_: Any) -> None:
        process = current_process()
        assert process is not None
        self.process, self.store = process, store
        self.children: dict[int, Child] = {}
        self.bell = Counter()
        self.told: deque[Event] = deque()
        epoll.register(self.bell.number)

    def tell(self, event: Event) -> None:
        self.told.append(event)
        self.bell.add(1)

    def buried(self, event: ChildEnded) -> ChildEnded:
        return replace(event, unread=self.children.pop(event.child).unread())

    def carry_out(self, instruction: Any) -> list[Event]:
        number = instruction.child
        if isinstance(instruction, SpawnChild):
            self.children[number] = Child(self, number)
            return []
        child = self.children.get(number)
        if isinstance(instruction, SendTasks):
            return self.send(child, instruction)
        if child is None:
            return []
        if isinstance(instruction, KillChild):
            child.end(-9)
        elif isinstance(instruction, InterruptTask):
            child.gate.asked[instruction.cause] = instruction.seq
            child.wake(child.rests)
        elif isinstance(instruction, RetireChild):
            child.wanted = False
            child.wake(child.waits)
        elif isinstance(instruction, TakeBack):
            seqs = child.unread()
            child.packets.clear()
            return [TasksReturned(number, seqs)] if seqs else []
        return []

    def send(self, child: Child | None, instruction: SendTasks) -> list[Event]:
        tasks = instruction.tasks
        if child is None:
            return [TasksReturned(instruction.child, tuple(task.seq for task in tasks))]
        for at in range(0, len(tasks), instruction.per_packet):
            packed = [msgpack.unpackb(child_pool._pack_task(task)) for task in tasks[at : at + instruction.per_packet]]
            child.packets.append(msgpack.packb([instruction.at, *packed]))
        child.wake(child.waits)
        return []

    def listen(self, descriptor: int, events: list[Event]) -> None:
        self.bell.take()
        while self.told:
            event = self.told.popleft()
            if isinstance(event, ChildSaid) and event.messages[0][0] == messages.STORED:
                try:
                    self.store.adopt(event.messages[0][4], event.messages[0][3])
                except (ObjectLostError, OSError):  # as the real one: nothing more is heard of that child
                    child = self.children.get(event.child)
                    if child is not None:
                        child.end(-9)
                    continue
            events.append(self.buried(event) if isinstance(event, ChildEnded) else event)

    def look(self, events: list[Event]) -> None:
        pass

    def process_of(self, number: int) -> int | None:
        return self.children[number].process.pid if number in self.children else None

    def close(self) -> None:
        for child in self.children.values():
            child.process.die()
        self.children.clear()


def rest(seconds: float) -> None:
    """What a task does for a while; it is interrupted where it was cancelled."""
    here, process = machine(), current_process()
    assert isinstance(process, Forked)
    child: Child = process.child
    gate, until = child.gate, here.now + seconds
    while here.now < until:
        gate.strike()
        child.rests = True
        here.block(gate.sooner(until) - here.now)
        child.rests = False
