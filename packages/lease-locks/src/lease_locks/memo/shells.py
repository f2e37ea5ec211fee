"""Shells: how a remote is started. A Shell is `Callable[[Sequence[str]], None | Future]`.

It is called with the arguments of `lease_locks.memo.remote.main` and has that run somewhere: `python -m
lease_locks.memo ARGS…`. Returning None, or the Future's end, says that the remote has exited, well or not; what it
computed is in the database. A Shell that can be adopted sets `future.handle`, a text that finds the work again, and
offers `attach(handle) -> Future | None`; `cancel(handle)` is optional.
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
from typing import Any, Final, Protocol, runtime_checkable

from lease_locks.host import boot_id, process_start

Shell = Callable[[Sequence[str]], "Future[Any] | None"]
_LOOK_SECONDS: Final = 0.05


@runtime_checkable
class AdoptableShell(Protocol):
    """A Shell whose work outlives the orchestrator and can be found again."""

    def __call__(self, args: Sequence[str]) -> Future[Any] | None: ...
    def attach(self, handle: str) -> Future[Any] | None:
        """A Future that ends when the work of `handle` does; None where there is no such work any more."""


def remote_command(args: Sequence[str]) -> list[str]:
    """The command line that runs a remote in this Python environment."""
    return [sys.executable, "-m", "lease_locks.memo", *args]


def remote_environment() -> dict[str, str]:
    """This process's environment, in which the remote finds the modules this process finds."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path}


def samethread_shell(args: Sequence[str]) -> None:
    """Run the remote here, in the calling thread."""
    from lease_locks.memo.remote import main

    main(list(args))


def _when_exited(process: subprocess.Popen[bytes], future: Future[int]) -> None:
    code = process.wait()
    with contextlib.suppress(Exception):  # cancelled by its owner meanwhile
        future.set_result(code)


def subprocess_shell(args: Sequence[str]) -> Future[int]:
    """Run the remote in a process of its own."""
    process = subprocess.Popen(remote_command(args), env=remote_environment(), stdin=subprocess.DEVNULL)
    future: Future[int] = Future()
    future.set_running_or_notify_cancel()
    threading.Thread(target=_when_exited, args=(process, future), name="lease-shell", daemon=True).start()
    return future


class DetachedSubprocessShell:
    """Run the remote in a session of its own, so that it survives this process and can be adopted by another."""

    def __init__(self, *, log_file: str | None = None) -> None:
        self.log_file = log_file  # where the remote's output goes; None: nowhere

    def __call__(self, args: Sequence[str]) -> Future[int]:
        with open(self.log_file or os.devnull, "ab") as log:
            process = subprocess.Popen(
                remote_command(args),
                env=remote_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        start = process_start(process.pid)
        future: Future[int] = Future()
        future.set_running_or_notify_cancel()
        future.handle = f"{boot_id()}:{process.pid}:{start[0] if start else 0}"  # type: ignore[attr-defined]
        threading.Thread(target=_when_exited, args=(process, future), name="lease-shell", daemon=True).start()
        return future

    def attach(self, handle: str) -> Future[None] | None:
        """Follow a remote that another process of this host started."""
        if not _alive(handle):
            return None
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()

        def follow() -> None:
            while _alive(handle):
                time.sleep(_LOOK_SECONDS)
            future.set_result(None)

        threading.Thread(target=follow, name="lease-shell", daemon=True).start()
        return future

    def cancel(self, handle: str) -> bool:
        """Ask the remote to end; False where it has."""
        if not _alive(handle):
            return False
        os.kill(int(handle.split(":")[1]), signal.SIGTERM)
        return True


def _alive(handle: str) -> bool:
    boot, _, rest = handle.partition(":")
    pid, _, start = rest.partition(":")
    found = process_start(int(pid)) if boot == boot_id() and pid.isdecimal() else None
    return found is not None and not found[1] and str(found[0]) == start


detached_shell = DetachedSubprocessShell()
"""`DetachedSubprocessShell` with its defaults."""
