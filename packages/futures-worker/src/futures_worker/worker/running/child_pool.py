"""The shell's child processes: forked, fed and listened to as the core says, buried when they end."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any

import msgpack

from futures_worker.errors import ObjectLostError
from futures_worker.failure import PROGRAM
from futures_worker.objects.store import ObjectStore
from futures_worker.worker import messages
from futures_worker.worker.deciding.instructions import (
    ChildEnded,
    ChildSaid,
    ChildStarted,
    Event,
    Instruction,
    InterruptTask,
    KillChild,
    MemoryShort,
    RetireChild,
    SendTasks,
    SpawnChild,
    TakeBack,
    TasksReturned,
)
from futures_worker.worker.deciding.tasks import ANYWHERE, Task
from futures_worker.worker.running.children import (
    START_TIMEOUT,
    ChildProcess,
    ChildProcesses,
    Exited,
    TemplateLostError,
    describe_status,
)
from futures_worker.worker.running.memory import BLAMEABLE, SHORT_OF_MEMORY, MemoryGauge, resident_bytes

log = logging.getLogger("futures_worker")

TEMPLATE_PAUSE = 1.0
"""Seconds before a template is started again that the host had no room for."""
TEMPLATE_TRIES = 3
"""Templates started in a row, should each be killed before it is ready."""


class ChildPool:
    """The children of one worker, and their place in the shell's one wait (`epoll`)."""

    def __init__(
        self,
        epoll: select.epoll,
        store: ObjectStore,
        url: str,
        cluster: str,
        files: int = 0,
        address: str = "",
        threads: int = 0,
    ) -> None:
        """`files`: how many files a task may have open; 0: as many as this process. `address`: where the worker listens.
        `threads`: that native libraries may use in a task.
        """
        self._files = files
        self._threads = threads
        self._address = address
        self._epoll = epoll
        self._store = store
        self._url = url
        self._cluster = cluster
        self._children: dict[int, ChildProcess] = {}
        self._by_pipe: dict[int, ChildProcess] = {}
        self._memory = MemoryGauge()
        self._memory_kills = self._memory.kills()
        self._unwanted: set[int] = set()  # killed before they were forked
        self._to_fork: list[int] = []  # asked for while no template could
        self._start_at = 0.0  # when a template is to be started that the host had no room for; 0: there is one
        self._tries = 0  # templates in a row that were lost before they were ready
        self._processes = self._start_template()
        self._await_first_template()

    def carry_out(self, instruction: Instruction) -> list[Event]:
        """An instruction about children; what follows at once."""
        return _CARRY_OUT[type(instruction)](self, instruction)

    def listen(self, descriptor: int, events: list[Event]) -> None:
        """A descriptor of the wait is readable: takes in what was said there."""
        if descriptor == self._processes.control.fileno():
            self._reap(events)
            return
        child = self._by_pipe.get(descriptor)
        if child is not None:
            self._hear(child, events)

    def look(self, events: list[Event]) -> None:
        """What has to be looked at now and then: memory that runs out, and a template that doesn't come up."""
        if self._start_at:
            if time.monotonic() >= self._start_at:
                self._try_to_start()
        elif not self._processes.ready and time.monotonic() - self._processes.began > START_TIMEOUT:
            why = TemplateLostError(f"the process that forks children did not start within {START_TIMEOUT} s")
            self._replace_template(why, events)
        self._look_at_memory(events)

    def _look_at_memory(self, events: list[Event]) -> None:
        """Names the child to end if memory is about to run out."""
        used = self._memory.used_fraction()
        if used < SHORT_OF_MEMORY or not self._children:
            return
        size, number = max((resident_bytes(child.pid), child.number) for child in self._children.values())
        if size >= BLAMEABLE:
            events.append(MemoryShort(number, f"{used:.0%} used, {size >> 20} MiB of it by this process"))

    def process_of(self, number: int) -> int | None:
        """The process id of a child that was forked. Callable from any thread."""
        child = self._children.get(number)
        return None if child is None else child.pid

    def close(self) -> None:
        """Ends the children; the template removes the worker's directories."""
        for child in self._children.values():
            child.close()
        self._children.clear()
        self._processes.close()

    def _start_template(self) -> ChildProcesses:
        folder = str(self._store.directory.path)
        processes = ChildProcesses(folder, self._url, self._cluster, self._files, self._address, self._threads)
        try:
            self._epoll.register(processes.control.fileno(), select.EPOLLIN)
        except OSError:
            processes.abandon()
            raise
        return processes

    def _try_to_start(self) -> None:
        """Another template, or a later try: what is to be forked meanwhile waits for it."""
        try:
            self._processes = self._start_template()
            self._start_at = 0.0
        except OSError as exc:
            self._start_at = time.monotonic() + TEMPLATE_PAUSE
            log.warning(
                "this host is short: the process that forks children can't be started (%s); it is tried again in %.0f s",
                exc,
                TEMPLATE_PAUSE,
            )

    def _await_first_template(self) -> None:
        while True:
            try:
                self._processes.wait_ready()
                return
            except TemplateLostError as exc:
                self._replace_template(exc, [])

    def _hear(self, child: ChildProcess, events: list[Event]) -> None:
        heard = child.receive()
        for count, message in enumerate(heard):
            if message[0] == messages.STORED:
                try:
                    self._store.adopt(message[4], message[3])
                except (ObjectLostError, ValueError, OSError) as exc:
                    log.error("child %d announced a result that is not there: %s", child.pid, exc)
                    child.garbled = child.closed = True
                    del heard[count:]
                    break
        if child.closed and child.number in self._children:
            # It died, or user code closed the pipe or wrote to it: the child is of no use any more.
            with contextlib.suppress(OSError, ValueError):
                self._epoll.unregister(child.results)
            self._processes.kill(child)
        if heard:
            events.append(ChildSaid(child.number, heard))

    def _reap(self, events: list[Event]) -> None:
        try:
            exits = self._processes.exits()
            if self._processes.ready:
                waiting, self._to_fork = self._to_fork, []
                for number in waiting:
                    self._ask(number, events)
        except TemplateLostError as exc:
            self._replace_template(exc, events)
            return
        for number, why in self._processes.refused():
            self._refuse(number, why, events)
        for child in self._processes.started():
            self._children[child.number] = child
            self._by_pipe[child.results] = child
            self._epoll.register(child.results, select.EPOLLIN)
            events.append(ChildStarted(child.number))
            if child.number in self._unwanted:
                self._unwanted.discard(child.number)
                self._processes.kill(child)
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
        unread = _seqs(child.take_back())
        with contextlib.suppress(OSError, ValueError):
            self._epoll.unregister(child.results)
        del self._children[child.number], self._by_pipe[child.results]
        child.close()
        self._store.remove_partial(child.pid)
        events.append(ChildEnded(child.number, description, unread, oom))

    def _replace_template(self, why: TemplateLostError, events: list[Event]) -> None:
        """Starts another template; children that are asked for meanwhile are forked once it is ready.

        Raises `why` when several in a row were lost before they could do anything.
        """
        self._tries = 0 if self._processes.ready else self._tries + 1
        if self._tries == TEMPLATE_TRIES:
            raise why
        log.error("%s; starting another", why)
        self._epoll.unregister(self._processes.control.fileno())
        unborn = self._processes.asked()
        self._processes.abandon()
        for child in list(self._children.values()):
            self._end_child(child, f"lost with the template: {why}", False, events)
        self._to_fork = [number for number in (*unborn, *self._to_fork) if number not in self._unwanted]
        events.extend(ChildEnded(number, "it was not begun") for number in self._unwanted)
        self._unwanted.clear()
        self._try_to_start()

    def _spawn(self, instruction: SpawnChild) -> list[Event]:
        events: list[Event] = []
        if not self._processes.ready:
            self._to_fork.append(instruction.child)
            return events
        try:
            self._ask(instruction.child, events)
        except TemplateLostError as exc:
            self._to_fork.append(instruction.child)
            self._replace_template(exc, events)
        return events

    def _ask(self, number: int, events: list[Event]) -> None:
        try:
            self._processes.ask(number)
        except OSError as exc:
            self._refuse(number, str(exc), events)

    def _refuse(self, number: int, why: str, events: list[Event]) -> None:
        """The host has no room for another process: the worker goes on with those it has, and asks again later."""
        log.warning("this host is short: a child process can't be made: %s", why)
        self._unwanted.discard(number)
        events.append(ChildEnded(number, f"it could not be made: {why}"))

    def _kill(self, instruction: KillChild) -> list[Event]:
        number = instruction.child
        child = self._children.get(number)
        if child is not None:
            self._processes.kill(child)
        elif number in self._to_fork:
            self._to_fork.remove(number)
            return [ChildEnded(number, "it was not begun")]
        elif number in self._processes.asked():
            self._unwanted.add(number)
        return []

    def _interrupt(self, instruction: InterruptTask) -> list[Event]:
        child = self._children.get(instruction.child)
        if child is not None:
            self._processes.interrupt(child, instruction.seq, instruction.cause)
        return []

    def _retire(self, instruction: RetireChild) -> list[Event]:
        child = self._children.get(instruction.child)
        if child is not None:
            child.hang_up()
        return []

    def _send(self, instruction: SendTasks) -> list[Event]:
        child = self._children.get(instruction.child)
        tasks, per_packet = instruction.tasks, instruction.per_packet
        if child is None:
            return [TasksReturned(instruction.child, tuple(task.seq for task in tasks))]
        position = 0
        while position < len(tasks):
            packed: list[bytes] = [_pack(instruction.at)]
            size = 10
            while (sent := position + len(packed) - 1) < len(tasks) and len(packed) <= per_packet:
                data = _pack_task(tasks[sent])
                if len(packed) > 1 and size + len(data) > messages.MAX_PACKET:
                    break
                packed.append(data)
                size += len(data)
            if not child.send(bytes((0x90 | len(packed),)) + b"".join(packed)):
                return [TasksReturned(child.number, tuple(task.seq for task in tasks[position:]), full=True)]
            position += len(packed) - 1
        return []

    def _take_back(self, instruction: TakeBack) -> list[Event]:
        child = self._children.get(instruction.child)
        if child is None:
            return []
        seqs = _seqs(child.take_back())
        return [TasksReturned(child.number, seqs)] if seqs else []


def _pack_task(task: Task) -> bytes:
    claim, dependencies = task.claim, task.dependencies
    if task.behind is not None and isinstance(dependencies, list):
        before = task.behind.seq
        dependencies = [before if one is None else one for one in dependencies]  # type: ignore[misc]
    fields: tuple[Any, ...] = (
        task.seq, task.digest, task.args, dependencies, claim.id, claim.epoch, claim.attempt, claim.call_options
    )  # fmt: skip
    if claim.call_options.endswith(PROGRAM):
        fields = (*fields, task.home.where, task.home.gpus, claim.token)
    elif task.home is not ANYWHERE:
        fields = (*fields, task.home.where, task.home.gpus)
    packed: bytes = _pack(fields)
    return packed


_pack = msgpack.Packer(autoreset=True).pack


def _seqs(packets: list[bytes]) -> tuple[int, ...]:
    return tuple(task[0] for packet in packets for task in msgpack.unpackb(packet)[1:])


_CARRY_OUT: dict[type[Instruction], Callable[..., list[Event]]] = {
    SpawnChild: ChildPool._spawn,
    KillChild: ChildPool._kill,
    InterruptTask: ChildPool._interrupt,
    RetireChild: ChildPool._retire,
    SendTasks: ChildPool._send,
    TakeBack: ChildPool._take_back,
}
"""Which instructions are about children."""
