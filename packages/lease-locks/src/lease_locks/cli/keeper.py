"""The process between `lease-locks run` and its command: it starts the command, and kills all that came of it in time.

    keeper.py ORDERS REPORTS COMMAND...    file descriptors of two pipes

Orders are lines of JSON: {"env": …, "by": …, "until": …} starts the command with more variables, unless it is later than "by" (boot-time clock);
{"until": …} moves the moment at which it is killed. The end of the orders kills it, too: whatever becomes of the process that holds the lease, the command doesn't
outlive it. Reports: {"started": pid}, {"failed": errno}, {"exit": code}, and the end when no process of the command is left.

A program of its own, by path and with the standard library alone, so that it starts at once and hardly ever ends early.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LOOK_SECONDS = 1.0  # a suspended machine's clock isn't seen by select
_KILL_SECONDS = 0.5


def boottime() -> float:
    """Seconds on the clock that counts a suspend."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def adopt_orphans(yes: bool = True) -> None:
    """Have the kernel give this process the children of its descendants that end: none gets out of sight. Linux only."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0)


def descendants(spare: Collection[int] = ()) -> list[int]:
    """Every process that came of this one, but `spare` and what came of them; those that ended and were not waited for included."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if entry.isdecimal():
            with contextlib.suppress(OSError, IndexError), open(f"/proc/{entry}/stat", "rb") as stat:
                parent = int(stat.read().rsplit(b")", 1)[1].split()[1])
                children.setdefault(parent, []).append(int(entry))
    found = [os.getpid()]
    for pid in found:  # it grows while it is read
        found += [child for child in children.get(pid, ()) if child not in spare]
    return found[1:]


def signal_all(pids: Collection[int], number: int) -> None:
    """A signal for each that is still there."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def kill_descendants(spare: Collection[int] = ()) -> None:
    """SIGKILL for every descendant but `spare` and theirs, until none is left: one that can't be killed is waited for."""
    pause = 0.001
    while found := descendants(spare):
        signal_all(found, signal.SIGKILL)
        for pid in found:
            with contextlib.suppress(OSError):  # another's child
                os.waitpid(pid, os.WNOHANG)
        time.sleep(pause)
        pause = min(_KILL_SECONDS, 2 * pause)


def die_with(keeper: int) -> None:
    """Have the kernel kill this process when its parent, `keeper`, ends; at once where it has ended already.

    Until it has executed its command nothing tells an observer that this process is of a lease.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != keeper:
            os._exit(1)


class Lines:
    """JSON documents from a pipe, a line each."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe
        self._rest = b""

    def read(self) -> list[dict[str, Any]] | None:
        """What there is, once there is something; None at the end."""
        data = os.read(self.pipe, 65_536)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines] if data else None


def say(pipe: int, **what: Any) -> None:
    """One JSON document; lost where nobody reads any more."""
    with contextlib.suppress(OSError):
        os.write(pipe, json.dumps(what).encode() + b"\n")


def main(arguments: list[str]) -> None:
    """Keep a command; see the module."""
    orders, reports, command = int(arguments[0]), int(arguments[1]), arguments[2:]
    keeper = os.getpid()
    for pipe in (orders, reports):
        os.set_inheritable(pipe, False)
    adopt_orphans()
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    lines, until = Lines(orders), boottime() + 1e9
    child: subprocess.Popen[bytes] | None = None
    while (left := until - boottime()) > 0:
        ready, _, _ = select.select([orders, woken], [], [], min(left, _LOOK_SECONDS))
        if woken in ready:
            os.read(woken, 4_096)
        if orders in ready:
            given = lines.read()
            if given is None:
                break
            for order in given:
                until = order["until"]
                if "env" in order:
                    if boottime() >= order["by"]:
                        return  # this process, or the machine, was stopped meanwhile: the lease may be another's
                    try:
                        child = subprocess.Popen(
                            command,
                            env={**os.environ, **order["env"]},
                            start_new_session=True,
                            preexec_fn=lambda: die_with(keeper),
                        )
                    except OSError as error:
                        say(reports, failed=error.errno)
                        return
                    say(reports, started=child.pid)
        while (ended := _ended()) is not None:
            if child is not None and ended.si_pid == child.pid:
                code = ended.si_status
                say(reports, exit=code if ended.si_code == os.CLD_EXITED else 128 + code)
                child = (
                    None  # left a zombie until the orders end: its number is nobody else's while it may be signalled
                )
            elif child is None:
                break
            else:
                os.waitpid(ended.si_pid, 0)
    kill_descendants()


def _ended() -> os.waitid_result | None:
    with contextlib.suppress(ChildProcessError):
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
