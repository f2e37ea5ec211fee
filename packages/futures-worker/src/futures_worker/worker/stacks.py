"""Where a task is just now: its process writes the stacks of its threads when it is asked to by a signal.

The handler is C code (`faulthandler`): it needs no turn of the interpreter, so that a task is seen that is stuck in native code, or
holds the interpreter's lock for ever. As after any signal, system calls of native code that can't be restarted return early.
In the worker's directory, per child process:

    logs/<pid>.stack     what it wrote last; emptied before each request
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from fdb_schema.serving.private_files import read_own

STACK_SIGNAL: Final = signal.SIGRTMAX - 3
"""One that programs seldom use: what a task's process does at it is decided here."""
ANSWER_SECONDS: Final = 5.0
"""That a process has to answer."""
QUIET_SECONDS: Final = 1.0
"""Without another byte after which an answer whose end isn't recognized is taken to be whole."""
_LOOK: Final = 0.005
_MOST_BYTES: Final = 256 << 10
_SOURCE_BYTES: Final = 4 << 20  # of a file that is searched for a line

_THREAD: Final = re.compile(r"^(?:Current thread|Thread) (0x[0-9a-f]+)(.*) \(most recent call first\):$")
_FRAME: Final = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')
_STATES: Final = {
    "T": "stopped",
    "t": "stopped by a debugger",
    "D": "in the kernel, where no signal reaches it",
    "Z": "dead",
}
_CHILD_LOOP: Final = (f"{os.sep}child{os.sep}calling.py", "_call")


def answer_requests(directory: str) -> None:
    """The child's side: from now on this process answers the signal."""
    with contextlib.suppress(
        OSError, RuntimeError
    ):  # short of descriptors: its stack can't be asked for, tasks run all the same
        flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        out = os.open(f"{directory}/logs/{os.getpid()}.stack", flags, 0o600)
        faulthandler.register(STACK_SIGNAL, file=out, all_threads=True, chain=False)


class Stacks:
    """The worker's side. Thread-safe."""

    def __init__(self, logs: Path, process_of: Callable[[bytes], int | None]) -> None:
        """`process_of`: the process that runs a future's task now."""
        self._logs = logs
        self._process_of = process_of
        self._asking = threading.Lock()

    def of(self, future_id: bytes) -> str | None:
        """The stacks of the process that runs a future's task, as text; None where it isn't running now."""
        with self._asking:
            pid = self._process_of(future_id)
            if pid is None:
                return None
            try:
                found = self._ask(pid)
            except OSError:  # it ended meanwhile
                found = None
            return found if self._process_of(future_id) == pid else None

    def _ask(self, pid: int) -> str:
        path = self._logs / f"{pid}.stack"
        if not _answers(pid):
            return f"process {pid} can't be asked for its stack: its code has taken signal {STACK_SIGNAL}, or it has just begun"
        if _status(pid)["State"][:1] in "TtZ":
            return _silent(pid)
        read_own(path)  # raises, unless it is the child's own
        os.truncate(path, 0)
        os.kill(pid, STACK_SIGNAL)
        end = time.monotonic() + ANSWER_SECONDS
        text, since = "", 0.0
        while (now := time.monotonic()) < end:
            time.sleep(_LOOK)
            found = read_own(path)[:_MOST_BYTES].decode(errors="replace")
            if found != text:
                text, since = found, now
            elif text and (_is_whole(text) or now - since > QUIET_SECONDS):
                break
        if text:
            return f"process {pid}\n" + "\n".join(_for_people(text.splitlines()))
        return _silent(pid)


def _answers(pid: int) -> bool:
    """Whether a process has a handler for the signal, which would end it otherwise."""
    return bool(int(_status(pid).get("SigCgt", "0"), 16) >> (STACK_SIGNAL - 1) & 1)


def _silent(pid: int) -> str:
    state = _status(pid)["State"]
    return f"process {pid} doesn't say where it is: it is {_STATES.get(state[:1], f'in state {state}')}"


def _status(pid: int) -> dict[str, str]:
    lines = ["State:\t?", *Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()]
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _is_whole(text: str) -> bool:
    """Whether it ends as the main thread's stack does, which is told last."""
    return text.endswith(("in _run_module_as_main\n", "\n  ...\n"))


def _for_people(lines: Iterable[str]) -> Iterator[str]:
    """The threads as tracebacks are written, the most recent call last, with source where this host has it; the task's first."""
    threads: list[tuple[str, list[str]]] = []
    for line in lines:
        match = _THREAD.match(line)
        if match is not None:
            threads.append((match[1] + match[2], []))
        elif line and threads:
            threads[-1][1].append(line)
    for at, (name, frames) in enumerate(reversed(threads)):
        own = list(_of_the_task(frames)) if at == 0 else frames
        yield ("The task" if at == 0 else f"Thread {name}") + " (most recent call last):"
        for frame in reversed(own or frames):
            yield from _with_source(frame)


def _of_the_task(frames: Iterable[str]) -> Iterator[str]:
    """The frames above the loop that called the task's function."""
    for frame in frames:
        match = _FRAME.match(frame)
        if match is not None and match[1].endswith(_CHILD_LOOP[0]) and match[3] == _CHILD_LOOP[1]:
            return
        yield frame


def _with_source(frame: str) -> Iterator[str]:
    match = _FRAME.match(frame)
    if match is None:
        yield frame
        return
    yield f'  File "{match[1]}", line {match[2]}, in {match[3]}'
    source = _line(match[1], int(match[2])) if match[2].isdecimal() else ""
    if source:
        yield f"    {source}"


def _line(file: str, number: int) -> str:
    """A line of a source file, if it is one: its name is what a task's code says."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as source:
            found = os.fstat(descriptor)
            if not file.endswith(".py") or not stat.S_ISREG(found.st_mode) or found.st_size > _SOURCE_BYTES:
                return ""
            lines = source.read().decode(errors="replace").splitlines()
    except (OSError, ValueError):
        return ""
    return lines[number - 1].strip()[:500] if 0 < number <= len(lines) else ""
