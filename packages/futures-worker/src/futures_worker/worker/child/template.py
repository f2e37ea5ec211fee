"""A small process that forks the worker's children: it has the modules loaded, one thread, and never runs user code.

Started by the worker as `python -P -m futures_worker.worker.child.template FD`; `FD` is a SOCK_SEQPACKET socket, one msgpack list
per packet:

    worker to template    ["setup", directory, url, cluster, files, address]: the limit of open files of tasks, 0 for this process's
                          ["fork", child] with two descriptors (SCM_RIGHTS): the child's task socket and result pipe
                          ["kill", child]
                          ["interrupt", child, task, cause]: have its task of that number interrupted (`interrupts`)
    template to worker    ["ready"], ["forked", child, pid], ["exited", child, pid, wait status]
                          ["refused", child, why]: the host has no room for another process

Each child is the leader of its own session. When a child has ended, whatever is left of its session is killed, and whatever it
had started in others (`processes`). When the worker is gone (end of file on the socket), the template kills the children, removes the worker's directories and ends;
when the template is gone, the kernel kills the children (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import os
import select
import shutil
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import msgpack

from fdb_schema.serving.processes import import_from_here
from futures_worker.code.code_modules import follows_files
from futures_worker.objects.work_directory import remove_spill
from futures_worker.worker.child.child_main import run_child
from futures_worker.worker.child.interrupts import FIRST_REPEAT, INTERRUPT_SIGNAL, LAST_REPEAT, SharedWords
from futures_worker.worker.child.task_context import set_worker_address
from futures_worker.worker.processes import (
    adopt_orphans,
    die_with_parent,
    kill_child,
    kill_orphans,
    kill_session,
    set_file_limit,
)


def load_engine(url: str) -> None:
    """Imports what a task needs to open the database itself, once for all children. Nothing is opened here."""
    with contextlib.suppress(Exception):  # a child that opens the database meets the same error, and tells
        if url.startswith("embedded:"):
            importlib.import_module("fdb_embedded").load()
            importlib.import_module("fdb_embedded.storage.readers").layout()  # found by trying
        else:
            importlib.import_module("fdb")
        importlib.import_module("futures_worker.client.client")
        follows_files()  # looks at each module once


class Template:
    """Serves requests to fork until the worker is gone."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._children: dict[int, int] = {}  # process id -> child number
        self._shared: dict[int, SharedWords] = {}  # process id -> what is shared with it
        # process id of one that is to be interrupted -> when the next signal is due, the pause before it
        self._unheard: dict[int, tuple[float, float]] = {}
        self._directory = self._url = self._cluster = ""
        self._files = 0  # that a task may have open; 0: as many as this process
        self._signals, wake = os.pipe()
        for descriptor in (self._signals, wake):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the worker decides when its children end
        signal.signal(INTERRUPT_SIGNAL, signal.SIG_IGN)  # a child that isn't up yet is told again

    def serve(self) -> None:
        """Runs until the worker closes its end."""
        self._say("ready")
        control = self._control.fileno()
        while True:
            pause = max(0.0, min(self._unheard.values())[0] - time.monotonic()) if self._unheard else None
            readable, _, _ = select.select([control, self._signals], [], [], pause)
            if self._unheard:
                self._tell_again(time.monotonic())
            if self._signals in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._signals, 4096)
                self._reap()
            if control in readable and not self._obey():
                return

    def _obey(self) -> bool:
        try:
            packet, descriptors, _, _ = socket.recv_fds(self._control, 65536, 4)
        except ConnectionError:
            return False
        if not packet:
            return False
        request: list[Any] = msgpack.unpackb(packet)
        if request[0] == "setup":
            self._directory, self._url, self._cluster, files, address = request[1:6]
            self._files = files
            set_worker_address(address)
            load_engine(self._url)
            import_from_here()  # tasks may; nothing that is loaded so far comes from there
            gc.collect()
            gc.freeze()  # the children share what is loaded: their collector must not touch it
        elif request[0] == "fork":
            self._fork(request[1], *descriptors)
        elif request[0] == "kill":
            for pid, child in self._children.items():
                if child == request[1]:
                    kill_child(pid)
        elif request[0] == "interrupt":
            self._interrupt(*request[1:4])
        return True

    def _interrupt(self, child: int, task: int, cause: int) -> None:
        for pid, number in self._children.items():
            if number == child:
                self._shared[pid].ask(cause, task)
                self._unheard[pid] = time.monotonic() + FIRST_REPEAT, FIRST_REPEAT
                os.kill(pid, INTERRUPT_SIGNAL)  # nobody else has its number before it is reaped

    def _tell_again(self, now: float) -> None:
        for pid, (due, pause) in list(self._unheard.items()):
            if now < due:
                continue
            if self._shared[pid].heard():
                del self._unheard[pid]
            else:
                pause = min(2 * pause, LAST_REPEAT)
                self._unheard[pid] = now + pause, pause
                os.kill(pid, INTERRUPT_SIGNAL)

    def _fork(self, child: int, *descriptors: int) -> None:
        shared: SharedWords | None = None
        try:
            if len(descriptors) != 2:
                raise OSError(errno.EMFILE, "the process that forks children is short of descriptors")
            parent = os.getpid()
            shared = SharedWords()
            pid = os.fork()
        except OSError as exc:
            if shared is not None:
                shared.close()
            for descriptor in descriptors:
                os.close(descriptor)
            self._say("refused", child, str(exc))
            return
        tasks, results = descriptors
        if pid == 0:
            self._become_child(parent, tasks, results, shared)
        os.close(tasks)
        os.close(results)
        self._children[pid], self._shared[pid] = child, shared
        self._say("forked", child, pid)

    def _become_child(self, parent: int, tasks: int, results: int, shared: SharedWords) -> NoReturn:
        status = 70
        try:
            os.setsid()
            die_with_parent(parent)
            adopt_orphans()
            if self._files:
                set_file_limit(self._files)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._control.close()
            os.close(self._signals)
            for descriptor in (tasks, results):
                os.set_inheritable(descriptor, False)
            run_child(socket.socket(fileno=tasks), results, self._directory, self._url, self._cluster, shared)
            status = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(status)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                kill_orphans(self._children)  # each wakes this again when it has ended, with what it left in its turn
                return
            child = self._children.pop(pid, None)
            if child is not None:
                self._shared.pop(pid).close()
                self._unheard.pop(pid, None)
                kill_session(pid)
                self._say("exited", child, pid, status)

    def _say(self, *message: Any) -> None:
        with contextlib.suppress(OSError):  # the worker is gone: the next read says so
            self._control.send(msgpack.packb(message))

    def clean_up(self) -> None:
        """After the worker is gone: nothing of it stays behind."""
        for pid in self._children:
            kill_child(pid)
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, _ = os.waitpid(-1, 0)
                if self._children.pop(pid, None) is not None:
                    kill_session(pid)
                kill_orphans(self._children)
        if self._directory:
            remove_spill(Path(self._directory))
            shutil.rmtree(self._directory, ignore_errors=True)
            with contextlib.suppress(OSError):
                os.unlink(f"{self._directory}.lock")


def main() -> None:
    """Entry of the template process."""
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    # What tasks print goes where the worker's own messages go: its standard output is for its ready line.
    os.dup2(2, 1)
    adopt_orphans()
    template = Template(socket.socket(fileno=descriptor))
    try:
        template.serve()
    finally:
        template.clean_up()


if __name__ == "__main__":
    main()
