"""A worker's child processes under the simulation: strands that run its tasks, and the actors, whose code is the real one's.

What of a child is replaced is the loop that reads packets of tasks; each child is a process of the machine, forked from its worker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack

from fdb_schema.serving import tracing
from fdb_schema.serving.private_files import read_own
from futures_worker import payload
from futures_worker.errors import ObjectLostError
from futures_worker.failure import may_retry
from futures_worker.objects.object_files import write_file
from futures_worker.objects.object_names import result_name
from futures_worker.worker import messages
from futures_worker.worker.child import task_context
from futures_worker.worker.child.kept import kept
from futures_worker.worker.child.task_logging import show_logs
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
from futures_worker.worker.soft_timeout import split_soft_timeout
from simulation.descriptors import Counter
from simulation.machine import Forked, current_process
from simulation.sites import URL, Site, crash
from simulation.stand_ins import machine
from simulation.world import CLUSTER


class Child:
    """A child process: packets of tasks, and a strand that runs them."""

    def __init__(self, pool: Children, number: int) -> None:
        self.pool = pool
        self.number = number
        self.packets: deque[list[Any]] = deque()
        self.tasks: list[list[Any]] = []
        self.wanted = True
        self.seq = -1
        self.interrupts: dict[int, BaseException] = {}
        self.kept: dict[int, bytes] = {}
        self.process: Any = Forked(pool.process, number)
        self.process.child = self
        machine().forked[self.process.pid] = self.process
        self.strand = machine().spawn(self.process, self.run)

    def run(self) -> None:
        here = machine()
        here.block(Site.chance.choice((0.01, 0.05, 0.5)))
        task_context.install(self.report_waiting, URL, CLUSTER)
        self.pool.tell(ChildStarted(self.number))
        while self.wanted or self.packets:
            if not self.packets:
                here.block(None)
                continue
            since, *self.tasks = self.packets.popleft()
            while self.tasks:
                self.run_task(self.tasks.pop(0))
                if here.monotonic() - since > messages.PACKET_SECONDS:
                    for task in self.tasks:
                        self.say([messages.SKIPPED, task[0]])
                    self.tasks = []
                since = here.monotonic()
        self.end(0)

    def end(self, status: int) -> None:
        """It is dead; the worker learns it later, and what it sends meanwhile is unread."""
        if not self.process.dead:
            self.process.die()
            self.pool.tell(ChildEnded(self.number, describe_status(status)))

    def report_waiting(self, begins: bool, ids: Sequence[bytes]) -> None:
        """The task that runs waits for others, or goes on."""
        if begins:
            returned = [task[0] for task in self.tasks]
            self.tasks = []
            self.say([messages.BLOCKED, self.seq, returned, list(ids[: messages.MOST_AWAITED])])
        else:
            self.say([messages.RESUMED, self.seq])

    def run_task(self, task: list[Any]) -> None:
        seq, digest, args, dependencies, future_id, epoch, attempt, options = task[:8]
        _, options = split_soft_timeout(options)
        _, options = tracing.split_trace(show_logs(options))
        self.seq = seq
        crash()
        try:
            function, positional, keywords = self.load(digest, args, dependencies)
            token = task[10] if len(task) > 10 else b""
            task_context.enter(task_context.TaskContext(future_id, URL, CLUSTER, attempt, token, epoch))
            value = function(*positional, **keywords)
        except Exception as error:
            kind = messages.FAIL_RAISED if may_retry(options, error) else messages.FAIL_PERMANENT
            self.say([messages.FAILED, seq, 1, kind, payload.dump_exception(error).to_bytes()])
            return
        finally:
            task_context.enter(None)
            self.seq = -1
        data = payload.dump_result(value).to_bytes()
        if len(data) <= payload.INLINE_RESULT_BYTES:
            self.kept[seq] = data
            self.say([messages.RESULT, seq, 1, data])
        else:
            name = result_name(future_id, epoch, attempt)
            write_file(self.pool.store.directory.objects / name, [data])
            self.say([messages.STORED, seq, 1, len(data), name])

    def load(self, digest: bytes, args: Any, dependencies: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        folder = self.pool.store.directory.path
        try:
            code = read_own(Path(folder, "code", digest.hex()))
        except FileNotFoundError:
            code = kept(Path(folder, "spill", messages.code_on_disk(digest)))
        if isinstance(dependencies, str):
            dependencies = msgpack.unpackb(kept(Path(dependencies)))
        values = []
        for one in dependencies or ():
            data = self.kept[one] if isinstance(one, int) else kept(Path(one)) if isinstance(one, str) else one
            values.append(payload.load_own(data))
        data = kept(Path(args)) if isinstance(args, str) else args
        positional, keywords = payload.load_args(data, values, name="task") if data else ((), {})
        return payload.load_code(code), positional, keywords

    def say(self, message: list[Any]) -> None:
        self.pool.tell(ChildSaid(self.number, [message]))


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
        child = self.children.pop(event.child)
        return replace(event, unread=tuple(task[0] for _, *tasks in child.packets for task in tasks))

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
            child.interrupts[instruction.seq] = CancelledError()
            machine().wake(child.strand)
        elif isinstance(instruction, RetireChild):
            child.wanted = False
            machine().wake(child.strand)
        elif isinstance(instruction, TakeBack):
            seqs = tuple(task[0] for _, *tasks in child.packets for task in tasks)
            child.packets.clear()
            return [TasksReturned(number, seqs)] if seqs else []
        return []

    def send(self, child: Child | None, instruction: SendTasks) -> list[Event]:
        tasks = instruction.tasks
        if child is None:
            return [TasksReturned(instruction.child, tuple(task.seq for task in tasks))]
        for at in range(0, len(tasks), instruction.per_packet):
            packed = [msgpack.unpackb(child_pool._pack_task(task)) for task in tasks[at : at + instruction.per_packet]]
            child.packets.append([instruction.at, *packed])
        machine().wake(child.strand)
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
    until = here.now + seconds
    while here.now < until:
        here.block(until - here.now)
        if child.seq in child.interrupts:
            raise child.interrupts.pop(child.seq)
