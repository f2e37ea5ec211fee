"""The worker's side of its child processes: the template that forks them, and the sockets to each."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgpack

from fdb_schema.serving.processes import signal_name
from futures_worker.errors import MainspringError
from futures_worker.worker.messages import MAX_PACKET, well_formed
from futures_worker.worker.processes import environment_for_tasks

PIPE_BYTES = 1 << 20
READ_BYTES = 1 << 16
"""Of a pipe at a time: larger buffers cost a system call to allocate, for every message."""
START_TIMEOUT = 60.0
"""Seconds that the template has to load its modules."""

_F_SETPIPE_SZ = 1031


class TemplateLostError(MainspringError):
    """The process that forks children is gone, and all children with it."""


class Exited(NamedTuple):
    """A child process ended: wait status as `os.waitpid` gives it."""

    child: int
    pid: int
    status: int


@dataclass(slots=True)
class ChildProcess:
    """The descriptors of one child. `taken_back` is a duplicate of the end the child reads from."""

    number: int
    pid: int
    tasks: socket.socket
    taken_back: socket.socket
    results: int
    closed: bool = False  # its end of the result pipe, or what came through it was no message
    garbled: bool = False  # it wrote what is no message: nothing more is heard of it
    unpacker: Any = field(default_factory=lambda: msgpack.Unpacker(max_buffer_size=1 << 28))

    def send(self, packet: bytes) -> bool:
        """Sends one packet if there is room; whether it went. A dead child's packets are kept for `take_back`."""
        try:
            self.tasks.send(packet)
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            return False  # its end is reported by the template
        return True

    def receive(self) -> list[Any]:
        """All whole messages the child has written since; `closed` is set where something else follows them."""
        messages: list[Any] = []
        while not self.garbled:
            try:
                data = os.read(self.results, READ_BYTES)
            except BlockingIOError:
                break
            if not data:
                self.closed = True
                break
            if not self._understand(data, messages):
                self.garbled = self.closed = True
            elif len(data) < READ_BYTES:
                break
        return messages

    def _understand(self, data: bytes, messages: list[Any]) -> bool:
        """Adds the messages that `data` completes; False if there is anything else in it."""
        try:
            self.unpacker.feed(data)
            for message in self.unpacker:
                if not well_formed(message):
                    return False
                messages.append(message)
        except (ValueError, msgpack.UnpackException):
            return False
        return True

    def take_back(self) -> list[bytes]:
        """Packets the child has not read, in order; it will never see them."""
        packets: list[bytes] = []
        while True:
            try:
                packet = self.taken_back.recv(MAX_PACKET + 4096, socket.MSG_DONTWAIT)
            except OSError:
                return packets
            if not packet:
                return packets
            packets.append(packet)

    def hang_up(self) -> None:
        """Lets the child end once it has read what was sent."""
        self.tasks.close()

    def close(self) -> None:
        """Closes the descriptors."""
        self.tasks.close()
        self.taken_back.close()
        with contextlib.suppress(OSError):
            os.close(self.results)


class ChildProcesses:
    """Starts the template, and forks, kills and reaps children through it."""

    def __init__(
        self, directory: str, url: str, cluster: str, files: int = 0, address: str = "", threads: int = 0
    ) -> None:
        """`files`: how many files a task may have open; 0: as many as this process. `address`: where the worker listens.
        `threads`: that native libraries may use in a task, unless the environment says; 0: they are told nothing.

        Raises OSError where the host is short.
        """
        self._setup = ("setup", directory, url, cluster, files, address)
        self._exits: list[Exited] = []
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                self._template = subprocess.Popen(
                    # -P: what lies in the working directory, whoever put it there, isn't what is imported first.
                    [sys.executable, "-P", "-m", "futures_worker.worker.child.template", str(theirs.fileno())],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    env=environment_for_tasks(os.environ, threads),
                )
        except OSError:
            self.control.close()
            raise
        self.ready = False  # whether it can fork
        self.began = time.monotonic()
        self._asked: dict[int, ChildProcess] = {}
        self._started: list[ChildProcess] = []
        self._refused: list[tuple[int, str]] = []
        self._send(self._setup)

    def wait_ready(self) -> None:
        """Waits until the template can fork. Raises `TemplateLostError` if it can't start."""
        self.control.settimeout(START_TIMEOUT)
        while not self.ready:
            self._hear(self._receive())
        self.control.settimeout(None)

    def ask(self, number: int) -> None:
        """Asks for a child; `started` tells of it once it is forked, or `refused` that it can't be.

        Raises `TemplateLostError`, and OSError where this process is short of descriptors.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            read_end, write_end = os.pipe2(os.O_CLOEXEC)
        except OSError:
            ours.close()
            theirs.close()
            raise
        with contextlib.suppress(OSError):
            fcntl.fcntl(read_end, _F_SETPIPE_SZ, PIPE_BYTES)
        os.set_blocking(read_end, False)
        ours.setblocking(False)
        child = ChildProcess(number, 0, ours, theirs, read_end)
        try:
            self._send(("fork", number), (theirs.fileno(), write_end))
        except BaseException:
            child.close()
            raise
        finally:
            os.close(write_end)
        self._asked[number] = child

    def spawn(self, number: int) -> ChildProcess:
        """Forks a child and waits for it. Raises `TemplateLostError`."""
        self.ask(number)
        while number in self._asked:
            self._hear(self._receive())
        for refused, why in self.refused():
            raise TemplateLostError(f"child {refused} can't be forked: {why}")
        child = next(child for child in self._started if child.number == number)
        self._started.remove(child)
        return child

    def asked(self) -> list[int]:
        """Children that were asked for and are not forked yet."""
        return list(self._asked)

    def started(self) -> list[ChildProcess]:
        """Children that were forked since the last call, as far as `exits` has heard."""
        started, self._started = self._started, []
        return started

    def refused(self) -> list[tuple[int, str]]:
        """Children that the host couldn't fork since the last call, and why."""
        refused, self._refused = self._refused, []
        return refused

    def exits(self) -> list[Exited]:
        """Children that ended since the last call; hears all that the template said, and does not block.

        Raises `TemplateLostError`.
        """
        while True:
            try:
                packet = self.control.recv(65536, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except ConnectionError as exc:
                raise self._lost() from exc
            if not packet:
                raise self._lost()
            self._hear(msgpack.unpackb(packet))
        exits, self._exits = self._exits, []
        return exits

    def kill(self, child: ChildProcess) -> None:
        """Kills a child and every process of its session; its end is reported by `exits`."""
        with contextlib.suppress(TemplateLostError):
            self._send(("kill", child.number))

    def interrupt(self, child: ChildProcess, task: int, cause: int) -> None:
        """Has an exception raised in a task of a child, unless that has ended (`interrupts`)."""
        with contextlib.suppress(TemplateLostError):
            self._send(("interrupt", child.number, task, cause))

    def close(self) -> None:
        """Kills all children and ends the template, which removes the worker's directories."""
        self.control.close()
        for child in (*self._asked.values(), *self._started):
            child.close()
        try:
            self._template.wait(10)
        except subprocess.TimeoutExpired:
            self._template.kill()
            self._template.wait()

    def abandon(self) -> None:
        """Kills the template and with it the children, without its removing the worker's directories."""
        self._template.kill()
        self._template.wait()
        self.control.close()
        self.ready = False
        for child in (*self._asked.values(), *self._started):
            child.close()
        self._asked.clear()
        self._started.clear()

    def _hear(self, message: Sequence[Any]) -> None:
        if message[0] == "ready":
            self.ready = True
        elif message[0] == "forked":
            child = self._asked.pop(message[1])
            child.pid = message[2]
            self._started.append(child)
        elif message[0] == "refused":
            self._asked.pop(message[1]).close()
            self._refused.append((message[1], message[2]))
        elif message[0] == "exited":
            self._exits.append(Exited(*message[1:4]))

    def _receive(self) -> list[Any]:
        try:
            packet = self.control.recv(65536)
        except (TimeoutError, ConnectionError) as exc:
            raise self._lost() from exc
        if not packet:
            raise self._lost()
        message: list[Any] = msgpack.unpackb(packet)
        return message

    def _send(self, message: Sequence[Any], descriptors: Sequence[int] = ()) -> None:
        try:
            socket.send_fds(self.control, [msgpack.packb(message)], list(descriptors))
        except OSError as exc:  # it is gone, or `abandon` closed this end already
            raise self._lost() from exc

    def _lost(self) -> TemplateLostError:
        status = self._template.poll()
        why = "does not answer" if status is None else f"ended with {describe_status(status)}"
        return TemplateLostError(f"the process that forks this worker's children (pid {self._template.pid}) {why}")


def describe_status(code: int) -> str:
    """`exit code 3` or `signal SIGKILL` for an exit code as `subprocess` gives it (negative: signal)."""
    return f"exit code {code}" if code >= 0 else f"signal {signal_name(-code)}"
