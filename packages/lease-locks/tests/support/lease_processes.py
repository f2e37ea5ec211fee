"""Child processes for tests: started with a script, spoken to by lines, always killed at the end."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

DEADLINE = 60.0


def eventually(true: Callable[[], Any], what: str) -> None:
    """Wait until `true()` is, at most for `DEADLINE` seconds."""
    until = time.monotonic() + DEADLINE
    while not true():
        assert time.monotonic() < until, f"not within {DEADLINE:.0f} s: {what}"
        time.sleep(0.005)


PROLOGUE = """
import os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell is started with it ignored
from fdb_schema import open_database
from lease_locks import *
db = open_database(sys.argv[1])
def say(*words):
    print(*words, flush=True)
def listen():
    line = sys.stdin.readline()
    if not line:
        os._exit(9)
    return line.strip()
"""


class Child:
    """A process that says lines and is told lines."""

    def __init__(self, script: str, *args: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROLOGUE + script, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self._selector = selectors.DefaultSelector()
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self._selector.register(self.process.stdout, selectors.EVENT_READ)
        self._buffer = b""

    def hear(self, timeout: float = DEADLINE) -> str:
        """The next line it says."""
        until = time.monotonic() + timeout
        assert self.process.stdout is not None
        while b"\n" not in self._buffer:
            left = until - time.monotonic()
            assert left > 0, f"nothing heard from {self.process.pid} for {timeout:g} s; so far {self._buffer!r}"
            if self._selector.select(left):
                data = os.read(self.process.stdout.fileno(), 65536)
                assert data, f"process {self.process.pid} ended ({self.process.wait(5)}) before it said a line"
                self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line.decode()

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        if number == signal.SIGSTOP:
            until = time.monotonic() + DEADLINE
            while _state(self.process.pid) != "T":
                assert time.monotonic() < until
                time.sleep(0.005)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(DEADLINE)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass
        self._selector.close()


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0]


@contextmanager
def children(*scripts: str, url: str, args: tuple[str, ...] = ()) -> Iterator[list[Child]]:
    """One process per script; SIGKILL for all that still run when the block ends."""
    started: list[Child] = []
    try:
        for script in scripts:
            started.append(Child(script, url, *args))
        yield started
    finally:
        for child in started:
            child.kill()
