"""A small process that forks the worker's children: it has the modules loaded, one thread, and never runs user code.

Started by the worker as `python -m futures_worker.worker.template FD`; `FD` is a SOCK_SEQPACKET socket, one msgpack list
per packet:

    worker to template    ["setup", directory, url, cluster]
                          ["fork", child] with two descriptors (SCM_RIGHTS): the child's task socket and result pipe
                          ["kill", child]
    template to worker    ["ready"], ["forked", child, pid], ["exited", child, pid, wait status]

Each child is the leader of its own session. When a child has ended, whatever is left of its session is killed. When the
worker is gone (end of file on the socket), the template kills the children, removes the worker's directories and ends;
when the template is gone, the kernel kills the children (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import select
import shutil
import signal
import socket
import sys
from typing import Any, NoReturn

import msgpack

from futures_worker.worker.child_main import run_child

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Asks the kernel to kill this process when the thread that forked it ends; `parent` is its process id."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it ended before the request took effect
        os._exit(0)


def kill_session(pid: int) -> None:
    """Kills every process of the session that `pid` led."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def kill_child(pid: int) -> None:
    """Kills a child that nobody has reaped yet, and its session, which it may not have begun so soon after the fork."""
    os.kill(pid, signal.SIGKILL)
    kill_session(pid)


def load_engine(url: str) -> None:
    """Imports what a task needs to open the database itself, once for all children. Nothing is opened here."""
    with contextlib.suppress(Exception):  # a child that opens the database meets the same error, and tells
        if url.startswith("embedded:"):
            importlib.import_module("fdb_embedded").load()
        else:
            importlib.import_module("fdb")
        importlib.import_module("futures_worker.client.client")


class Template:
    """Serves requests to fork until the worker is gone."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._children: dict[int, int] = {}  # process id -> child number
        self._directory = self._url = self._cluster = ""
        self._signals, wake = os.pipe()
        for descriptor in (self._signals, wake):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the worker decides when its children end

    def serve(self) -> None:
        """Runs until the worker closes its end."""
        self._say("ready")
        control = self._control.fileno()
        while True:
            readable, _, _ = select.select([control, self._signals], [], [])
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
            self._directory, self._url, self._cluster = request[1:4]
            load_engine(self._url)
            gc.collect()
            gc.freeze()  # the children share what is loaded: their collector must not touch it
        elif request[0] == "fork":
            self._fork(request[1], *descriptors)
        elif request[0] == "kill":
            for pid, child in self._children.items():
                if child == request[1]:
                    kill_child(pid)
        return True

    def _fork(self, child: int, tasks: int, results: int) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_child(parent, tasks, results)
        os.close(tasks)
        os.close(results)
        self._children[pid] = child
        self._say("forked", child, pid)

    def _become_child(self, parent: int, tasks: int, results: int) -> NoReturn:
        status = 70
        try:
            os.setsid()
            die_with_parent(parent)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._control.close()
            os.close(self._signals)
            for descriptor in (tasks, results):
                os.set_inheritable(descriptor, False)
            run_child(socket.socket(fileno=tasks), results, self._directory, self._url, self._cluster)
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
                return
            child = self._children.pop(pid, None)
            if child is not None:
                kill_session(pid)
                self._say("exited", child, pid, status)

    def _say(self, *message: Any) -> None:
        with contextlib.suppress(OSError):  # the worker is gone: the next read says so
            self._control.send(msgpack.packb(message))

    def clean_up(self) -> None:
        """After the worker is gone: nothing of it stays behind."""
        for pid in self._children:
            kill_child(pid)
        for pid in list(self._children):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        if self._directory:
            with contextlib.suppress(OSError):
                shutil.rmtree(os.path.realpath(os.path.join(self._directory, "spill")), ignore_errors=True)
            shutil.rmtree(self._directory, ignore_errors=True)
            with contextlib.suppress(OSError):
                os.unlink(f"{self._directory}.lock")


def main() -> None:
    """Entry of the template process."""
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    # What tasks print goes where the worker's own messages go: its standard output is for its ready line.
    os.dup2(2, 1)
    template = Template(socket.socket(fileno=descriptor))
    try:
        template.serve()
    finally:
        template.clean_up()


if __name__ == "__main__":
    main()
