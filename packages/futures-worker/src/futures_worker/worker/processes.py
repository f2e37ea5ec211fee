"""Processes of tasks: found and killed wherever they went, and given what a task should have and no more.

Children, and the process that forks them, are sub-reapers (PR_SET_CHILD_SUBREAPER): what a task started and whose parent has
ended belongs to its child, whatever session it began; once that child is gone, to the process that forks. So that one kills
every process below it that isn't a child of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import traceback
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36

NOT_FOR_TASKS: Final = ("MAINSPRING_DASHBOARD_TOKEN",)
"""Variables of the environment that are for services, which a worker may share its environment with."""
THREADS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_MAX_THREADS")
"""Variables by which native libraries are told how many threads to use: else as many in each slot as the machine has cores."""


def die_with_parent(parent: int) -> None:
    """Asks the kernel to kill this process when the thread that forked it ends; `parent` is its process id."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, "PR_SET_PDEATHSIG")
    if os.getppid() != parent:  # it ended before the request took effect
        os._exit(0)


def leave_if_forked(pid: int, error: BaseException | None = None) -> None:
    """Ends a copy of a process that user code has forked: only the process `pid` speaks for its task, and takes others.

    `error`: what the copy's code ended with; it ends as a program would.
    """
    if os.getpid() == pid:
        return
    status = 0 if error is None else 1
    if isinstance(error, SystemExit):
        status = 0 if error.code is None else error.code & 0xFF if isinstance(error.code, int) else 1
    elif error is not None:
        traceback.print_exception(error)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def adopt_orphans() -> None:
    """From now on processes below this one whose parent ends become its own."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, "PR_SET_CHILD_SUBREAPER")


def _prctl(what: int, value: int, name: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(what, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({name})")


def kill_session(pid: int) -> None:
    """Kills every process of the session that `pid` led."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def kill_child(pid: int) -> None:
    """Kills a child that nobody has reaped yet, and its session, which it may not have begun so soon after the fork."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    kill_session(pid)


def kill_orphans(known: Container[int]) -> int:
    """Kills the children of this process that aren't known: what tasks left behind. How many there were."""
    count = 0
    for pid in children_of(os.getpid()):
        if pid not in known:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            count += 1
    return count


def children_of(parent: int) -> Iterator[int]:
    """The process ids of a process's children, those that ended and weren't reaped included."""
    try:
        for thread in os.listdir(f"/proc/{parent}/task"):
            yield from map(int, Path(f"/proc/{parent}/task/{thread}/children").read_text().split())
    except FileNotFoundError:  # a kernel without that list
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                if (
                    name.isdigit()
                    and int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1]) == parent
                ):
                    yield int(name)


def environment_for_tasks(environment: Mapping[str, str], threads: int = 0) -> dict[str, str]:
    """The environment without what is meant for other services; `threads`: that native libraries may use, where it doesn't say."""
    told = dict.fromkeys(THREADS, str(threads)) if threads else {}
    return told | {name: value for name, value in environment.items() if name not in NOT_FOR_TASKS}


def raise_file_limit() -> int:
    """Lets this process open as many files as it may; the limit that it had, which tasks get."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft


def set_file_limit(soft: int) -> None:
    """Sets the limit of open files of this process to `soft`, or as much of it as may be."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard) if hard != resource.RLIM_INFINITY else soft, hard))
