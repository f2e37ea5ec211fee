"""Carries out what the core decides: one loop that waits in one place for bells, children, threads and timers."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import select
import signal
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgpack

from fdb_datamodel import Claim, Heartbeat, MailEntry, WorkerFencedError, WorkerId
from fdb_schema import ClusterSpace, fdb_error_code
from fdb_schema.errors import TRANSACTION_TOO_LARGE, VALUE_TOO_LARGE
from futures_worker.errors import ObjectLostError
from futures_worker.store import ObjectStore
from futures_worker.worker import messages
from futures_worker.worker.children import ChildProcess, ChildProcesses, Exited, TemplateLostError, describe_status
from futures_worker.worker.core import WorkerCore
from futures_worker.worker.inputs import Inputs
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
    Instruction,
    KillChild,
    MailArrived,
    MemoryShort,
    PrepareInputs,
    Pushed,
    Rang,
    RetireChild,
    RunTurn,
    SendTasks,
    SpawnChild,
    TakeBack,
    TasksReturned,
    TurnEnded,
)
from futures_worker.worker.ledger import Ledger
from futures_worker.worker.memory import BLAMEABLE, SHORT_OF_MEMORY, MemoryGauge, resident_bytes
from futures_worker.worker.tasks import Task

log = logging.getLogger("futures_worker")

HEARTBEAT_SECONDS = 0.5
REREAD_SECONDS = 2.0
"""A bell that was missed costs at most this long (a jittered re-read backs every watch)."""
AT_MOST = 0.001
"""Seconds that the bells stay unarmed after tasks were sent."""
DEFAULT_GRACE = 30.0
"""Seconds that running tasks have to finish after SIGTERM."""


class Shell:
    """The worker's loop. Everything happens in the thread that calls `run`, but for `post` and `wake`."""

    def __init__(
        self,
        db: Any,
        space: ClusterSpace,
        core: WorkerCore,
        store: ObjectStore,
        url: str,
        *,
        grace: float = DEFAULT_GRACE,
        object_store: int = 0,
    ) -> None:
        self.core = core
        self.on_unsettled: Callable[[], None] = lambda: None  # called when edges or timers are left to be advanced
        self.fenced = False  # set when this incarnation was declared dead and everything it held was dropped
        self._joined: Ledger | None = None
        self._db = db
        self._space = space
        self._store = store
        self._url = url
        self._grace = grace
        self._object_store = object_store
        self._epoll = select.epoll()
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._eventfd, select.EPOLLIN)
        self._posted: deque[Event] = deque()
        self._children: dict[int, ChildProcess] = {}
        self._by_pipe: dict[int, ChildProcess] = {}
        self._processes = self._start_template()
        self.inputs: Inputs | None = None
        self._next_beat = 0.0
        self._next_reread = 0.0
        self._finished = False
        self._sent = False  # whether tasks were sent since bells were armed
        self._looked = 0.0  # when the children were last listened to
        self._started_us = int(time.time() * 1e6)
        self._memory = MemoryGauge()
        self._memory_kills = self._memory.kills()

    @property
    def _ledger(self) -> Ledger:
        assert self._joined is not None, "the worker has not joined its cluster"
        return self._joined

    def join(self, worker: WorkerId) -> None:
        """Sets the incarnation that everything is done as."""
        if self._joined is not None:
            self._joined.close()
        self._joined = Ledger(self._db, self._space, worker, self.wake)
        self.core.worker = worker

    # --- from other threads and signal handlers -----------------------------------------------------------------------

    def wake(self) -> None:
        """Makes the loop look; callable from any thread and from signal handlers."""
        with contextlib.suppress(BlockingIOError, OSError):
            os.eventfd_write(self._eventfd, 1)

    def post(self, event: Event) -> None:
        """Hands an event to the loop; callable from any thread."""
        self._posted.append(event)
        self.wake()

    def drain(self, grace: float | None = None) -> None:
        """Asks to finish what runs, give back the rest and end; callable from any thread and from signal handlers."""
        self.post(DrainAsked(self._grace if grace is None else grace))

    # --- the loop -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Works until drained (`fenced` is False) or until this incarnation was fenced (`fenced` is True).

        After that it may be called again under another incarnation, set by `rejoin`.
        """
        self._handle([Rang()], time.monotonic())
        while not self._finished and not self.fenced:
            now = time.monotonic()
            events = self._keep_time(now)
            if self.fenced:
                break
            if not events and self._sent:
                # A short task ends sooner than bells are armed: they are armed if nothing comes within a moment.
                self._sent = False
                events = self._wait(now, AT_MOST)
            events = events or self._arm() or self._wait(now)
            self._handle(events, time.monotonic())

    def _handle(self, events: list[Event], now: float) -> None:
        """Events to the core, its instructions carried out, and so on until nothing more follows at once."""
        pending = events
        turns: deque[RunTurn] = deque()
        while True:
            instructions = self.core.step(pending, now, self._looked)
            pending = []
            for instruction in instructions:
                if type(instruction) is RunTurn:
                    turns.append(instruction)  # what is claimed already is sent to children first
                else:
                    pending.extend(_CARRY_OUT[type(instruction)](self, instruction))
            if not pending:
                if not turns:
                    return
                pending = self._run_turn(turns.popleft())
            now = time.monotonic()

    def _keep_time(self, now: float) -> list[Event]:
        events: list[Event] = []
        try:
            if now >= self._next_beat:
                self._next_beat = now + HEARTBEAT_SECONDS
                self._ledger.beat(self._load)
                self._look_at_memory(events)
            if now >= self._next_reread:
                self._next_reread = now + REREAD_SECONDS * random.uniform(0.75, 1.25)
                events.append(Rang(again=True))
                self._deliver(*self._ledger.read_own(self.core.in_hand()), events)
        except WorkerFencedError as exc:
            self._be_fenced(exc)
        return events

    def _look_at_memory(self, events: list[Event]) -> None:
        used = self._memory.used_fraction()
        if used < SHORT_OF_MEMORY or not self._children:
            return
        size, number = max((resident_bytes(child.pid), child.number) for child in self._children.values())
        if size >= BLAMEABLE:
            events.append(MemoryShort(number, f"{used:.0%} used, {size >> 20} MiB of it by this process"))

    def _wait(self, now: float, at_most: float = 60.0) -> list[Event]:
        if self._posted:
            timeout = 0.0
        else:
            deadline = min(self._next_beat, self._next_reread)
            core_deadline = self.core.deadline()
            if core_deadline is not None and core_deadline < deadline:
                deadline = core_deadline
            timeout = min(at_most, max(0.0, deadline - now))
        events: list[Event] = []
        exits = False
        self._looked = time.monotonic() if timeout else now
        for descriptor, _ in self._epoll.poll(timeout):
            if descriptor == self._eventfd:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._eventfd)
            elif descriptor == self._processes.control.fileno():
                exits = True
            else:
                child = self._by_pipe.get(descriptor)
                if child is not None:
                    self._hear(child, events)
        if exits:
            self._reap_children(events)
        rung, mail, pushed = self._ledger.rung(self.core.in_hand)
        if rung:
            events.append(Rang())
        self._deliver(mail, pushed, events)
        while self._posted:
            events.append(self._posted.popleft())
        return events

    def rejoin(self, worker: WorkerId) -> None:
        """After `run` ended because this incarnation was fenced: drops all it held and goes on as `worker`."""
        self._handle([Fenced()], time.monotonic())
        self._store.clear()
        self.join(worker)
        self.fenced = False
        self._next_beat = self._next_reread = 0.0

    # --- the database -------------------------------------------------------------------------------------------------

    def _arm(self) -> list[Event]:
        """Bells that have to wake us are armed before we wait; what changed since the last look counts as a ring."""
        hungry = self.core.hungry
        changed, mail, pushed = self._ledger.arm(hungry, self.core.in_hand)
        self.core.watched = hungry and not changed
        events: list[Event] = [Rang()] if changed else []
        self._deliver(mail, pushed, events)
        return events

    def _deliver(self, mail: list[MailEntry], pushed: list[Claim], events: list[Event]) -> None:
        for entry in mail:
            if entry.kind == "free" and entry.result is not None and entry.result.name:
                self._store.delete(entry.result.name)
        if mail:
            events.append(MailArrived(tuple(mail)))
        if pushed:
            events.append(Pushed(tuple(pushed)))

    def _run_turn(self, turn: RunTurn) -> list[Event]:
        try:
            try:
                claims = self._ledger.take_turn(turn)
            except WorkerFencedError:
                raise
            except Exception as exc:
                if not turn.outcomes or fdb_error_code(exc) not in (None, TRANSACTION_TOO_LARGE, VALUE_TOO_LARGE):
                    raise
                log.error("a turn of %d outcomes failed, taking it apart: %s", len(turn.outcomes), exc)
                claims = self._ledger.take_turn_apart(turn, exc)
        except WorkerFencedError as exc:
            self._be_fenced(exc)
            return []
        if claims.unsettled:
            self.on_unsettled()
        return [TurnEnded(claims, turn)]

    def _be_fenced(self, why: WorkerFencedError) -> None:
        log.warning("worker %s was declared dead by others: %s", self._ledger.worker, why)
        self.fenced = True

    def _load(self, counter: int) -> Heartbeat:
        core = self.core
        in_memory, _ = self._store.used()
        return Heartbeat(
            counter=counter,
            started_at_us=self._started_us,
            slots=core.slots,
            total=core.total,
            free_slots=max(0, core.slots - core.running),
            free=core.free,
            object_store=self._object_store,
            object_store_free=max(0, self._object_store - in_memory),
            wall_us=int(time.time() * 1e6),
        )

    # --- children -----------------------------------------------------------------------------------------------------

    def _start_template(self) -> ChildProcesses:
        processes = ChildProcesses(str(self._store.directory.path), self._url, self._space.cluster)
        processes.wait_ready()
        self._epoll.register(processes.control.fileno(), select.EPOLLIN)
        return processes

    def _hear(self, child: ChildProcess, events: list[Event]) -> None:
        heard = child.receive()
        if child.closed and child.number in self._children:
            # It died, or user code closed the pipe: without it the child is of no use.
            with contextlib.suppress(OSError, ValueError):
                self._epoll.unregister(child.results)
            self._processes.kill(child)
        if not heard:
            return
        for message in heard:
            if message[0] == messages.STORED:
                try:
                    self._store.adopt(message[4], message[3])
                except ObjectLostError as exc:
                    log.error("a result was announced but is not there: %s", exc)
        events.append(ChildSaid(child.number, heard))

    def _reap_children(self, events: list[Event]) -> None:
        try:
            exits = self._processes.exits()
        except TemplateLostError as exc:
            log.error("%s; starting another", exc)
            self._replace_template(str(exc), events)
            return
        for exit_ in exits:
            self._bury(exit_, events)

    def _bury(self, exit_: Exited, events: list[Event]) -> None:
        child = self._children.get(exit_.child)
        if child is None:
            return
        code = os.waitstatus_to_exitcode(exit_.status)
        oom = False
        if code == -signal.SIGKILL:
            kills = self._memory.kills()
            oom, self._memory_kills = kills > self._memory_kills, kills
        self._end_child(child, f"{describe_status(code)} (pid {exit_.pid})", oom, events)

    def _end_child(self, child: ChildProcess, description: str, oom: bool, events: list[Event]) -> None:
        self._hear(child, events)  # what it wrote before it died counts
        unread = tuple(task[0] for packet in child.take_back() for task in msgpack.unpackb(packet))
        with contextlib.suppress(OSError, ValueError):
            self._epoll.unregister(child.results)
        del self._children[child.number], self._by_pipe[child.results]
        child.close()
        events.append(ChildEnded(child.number, description, unread, oom))

    def _replace_template(self, why: str, events: list[Event]) -> None:
        self._epoll.unregister(self._processes.control.fileno())
        self._processes.abandon()
        for child in list(self._children.values()):
            self._end_child(child, f"lost with the template: {why}", False, events)
        self._processes = self._start_template()

    def _spawn_child(self, instruction: SpawnChild) -> list[Event]:
        events: list[Event] = []
        try:
            child = self._processes.spawn(instruction.child)
        except TemplateLostError as exc:
            log.error("%s; starting another", exc)
            self._replace_template(str(exc), events)
            child = self._processes.spawn(instruction.child)
        self._children[child.number] = child
        self._by_pipe[child.results] = child
        self._epoll.register(child.results, select.EPOLLIN)
        events.append(ChildStarted(child.number))
        self._reap_children(events)  # ends that the template told of while it was asked to fork are not told again
        return events

    def _kill_child(self, instruction: KillChild) -> list[Event]:
        child = self._children.get(instruction.child)
        if child is not None:
            self._processes.kill(child)
        return []

    def _retire_child(self, instruction: RetireChild) -> list[Event]:
        child = self._children.get(instruction.child)
        if child is not None:
            child.hang_up()
        return []

    def _send_tasks(self, instruction: SendTasks) -> list[Event]:
        child = self._children.get(instruction.child)
        tasks, per_packet = instruction.tasks, instruction.per_packet
        self._sent = True
        if child is None:
            return [TasksReturned(instruction.child, tuple(task.seq for task in tasks))]
        position = 0
        while position < len(tasks):
            packed: list[bytes] = []
            size = 1
            while position + len(packed) < len(tasks) and len(packed) < per_packet:
                data = _pack_task(tasks[position + len(packed)])
                if packed and size + len(data) > messages.MAX_PACKET:
                    break
                packed.append(data)
                size += len(data)
            if not child.send(bytes((0x90 | len(packed),)) + b"".join(packed)):
                return [TasksReturned(child.number, tuple(task.seq for task in tasks[position:]), full=True)]
            position += len(packed)
        return []

    def _take_back(self, instruction: TakeBack) -> list[Event]:
        child = self._children.get(instruction.child)
        if child is None:
            return []
        seqs = tuple(task[0] for packet in child.take_back() for task in msgpack.unpackb(packet))
        return [TasksReturned(child.number, seqs)] if seqs else []

    # --- inputs, turns, ends ------------------------------------------------------------------------------------------

    def _prepare_inputs(self, instruction: PrepareInputs) -> list[Event]:
        assert self.inputs is not None
        return self.inputs.prepare(instruction.tasks, self.core.worker)

    def _forget_task(self, instruction: ForgetTask) -> list[Event]:
        task: Task = instruction.task
        if self.inputs is not None:
            self.inputs.forget(task)
        return []

    def _drop_object(self, instruction: DropObject) -> list[Event]:
        self._store.delete(instruction.name)
        return []

    def _finish(self, instruction: Finish) -> list[Event]:
        self._finished = True
        return []

    def close(self) -> None:
        """Ends the children and lets everything go. The worker's directories are removed by the template."""
        if self._joined is not None:
            self._joined.close()
        if self.inputs is not None:
            self.inputs.close()
        for child in self._children.values():
            child.close()
        self._children.clear()
        self._processes.close()
        self._epoll.close()


def _pack_task(task: Task) -> bytes:
    claim = task.claim
    packed: bytes = _pack(
        (task.seq, task.digest, task.args, task.dependencies, claim.id, claim.epoch, claim.attempt, claim.call_options)
    )
    return packed


_pack = msgpack.Packer(autoreset=True).pack


_CARRY_OUT: dict[type[Instruction], Any] = {
    SpawnChild: Shell._spawn_child,
    KillChild: Shell._kill_child,
    RetireChild: Shell._retire_child,
    SendTasks: Shell._send_tasks,
    TakeBack: Shell._take_back,
    PrepareInputs: Shell._prepare_inputs,
    ForgetTask: Shell._forget_task,
    DropObject: Shell._drop_object,
    Finish: Shell._finish,
}
