"""Shells: how a remote is started. A Shell is `Callable[[Sequence[str]], None | Future]`.

It is called with the arguments of `lease_locks.memo.remote.main` and has that run somewhere: `python -m
lease_locks.memo ARGS…`. Returning None, or the Future's end, says that the remote has exited, well or not; what it
computed is in the database. A Shell that can be adopted sets `future.handle`, a text that finds the work again, and
offers `attach(handle) -> Future | None`: a Future that ends when that work does, None where there is no such work any more.
One whose remotes can be ended offers `cancel(handle) -> bool`, for time limits and `runner.cancel`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final

from fdb_schema.serving.private_files import private_opener
from lease_locks.session.host import boot_id, process_start

Shell = Callable[[Sequence[str]], "Future[Any] | None"]
_LOOK_SECONDS: Final = 0.05
_TERM_SECONDS: Final = 5.0


def remote_command(args: Sequence[str]) -> list[str]:
    """The command line that runs a remote in this Python environment."""
    # -P: the working directory, whoever may write to it, isn't where `lease_locks` is looked for first.
    return [sys.executable, "-P", "-m", "lease_locks.memo", *args]


def remote_environment() -> dict[str, str]:
    """This process's environment, in which the remote finds the modules this process finds."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path}


def samethread_shell(args: Sequence[str]) -> None:
    """Run the remote here, in the calling thread."""
    from lease_locks.memo.remote import main

    main(list(args))


def _follow(process: subprocess.Popen[bytes]) -> Future[int]:
    """A Future of the exit code; its handle finds the process on this host."""
    start = process_start(process.pid)
    future: Future[int] = Future()
    future.set_running_or_notify_cancel()
    future.handle = f"{boot_id()}:{process.pid}:{start[0] if start else 0}"  # type: ignore[attr-defined]

    def work() -> None:
        code = process.wait()
        with contextlib.suppress(Exception):  # cancelled by its owner meanwhile
            future.set_result(code)

    threading.Thread(target=work, name="lease-shell", daemon=True).start()
    return future


def end_process(handle: str) -> bool:
    """TERM for the process of a handle, and KILL where that doesn't end it; False where it has ended, is another host's, or none."""
    if not is_alive(handle):
        return False
    pid = int(handle.split(":")[1])
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:  # just now
        return False

    def kill() -> None:
        until = time.monotonic() + _TERM_SECONDS
        while is_alive(handle) and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)
        if is_alive(handle):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    threading.Thread(target=kill, name="lease-shell-end", daemon=True).start()
    return True


class SubprocessShell:
    """Run the remote in a process of its own."""

    __name__ = "subprocess_shell"

    def __call__(self, args: Sequence[str]) -> Future[int]:
        return _follow(subprocess.Popen(remote_command(args), env=remote_environment(), stdin=subprocess.DEVNULL))

    def cancel(self, handle: str) -> bool:
        """End the remote (TERM, then KILL); False where it has ended."""
        return end_process(handle)


subprocess_shell = SubprocessShell()
"""`SubprocessShell`, which has no options."""


class DetachedSubprocessShell:
    """Run the remote in a session of its own, so that it survives this process and can be adopted by another."""

    def __init__(self, *, log_file: str | None = None) -> None:
        self.log_file = log_file  # where the remote's output goes; None: nowhere

    def __call__(self, args: Sequence[str]) -> Future[int]:
        with open(self.log_file or os.devnull, "ab", opener=private_opener) as log:
            process = subprocess.Popen(
                remote_command(args),
                env=remote_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return _follow(process)

    def attach(self, handle: str) -> Future[None] | None:
        """Follow a remote that another process of this host started."""
        if not is_alive(handle):
            return None
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()

        def follow() -> None:
            while is_alive(handle):
                time.sleep(_LOOK_SECONDS)
            future.set_result(None)

        threading.Thread(target=follow, name="lease-shell", daemon=True).start()
        return future

    def cancel(self, handle: str) -> bool:
        """End the remote (TERM, then KILL); False where it has ended."""
        return end_process(handle)


def is_alive(handle: str) -> bool:
    """Whether a handle's process runs, on this host."""
    boot, _, rest = handle.partition(":")
    pid, _, start = rest.partition(":")
    found = process_start(int(pid)) if boot == boot_id() and pid.isdecimal() else None
    return found is not None and not found[1] and str(found[0]) == start


detached_shell = DetachedSubprocessShell()
"""`DetachedSubprocessShell` with its defaults."""
