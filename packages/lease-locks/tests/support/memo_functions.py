"""Functions that tests have remotes run: importable by a process of their own, and they leave marks in files."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path


def mark(folder: str) -> int:
    """One file per execution; how many there are now."""
    Path(folder, f"{os.getpid()}-{time.monotonic_ns()}").touch()
    return len(os.listdir(folder))


def square(x: int, folder: str) -> int:
    mark(folder)
    return x * x


def slow_square(x: int, folder: str, gate: str) -> int:
    """Waits until the file `gate` is there."""
    mark(folder)
    until = time.monotonic() + 120
    while not Path(gate).exists():
        if time.monotonic() > until:
            raise TimeoutError(gate)
        time.sleep(0.01)
    return x * x


class Refusal(Exception):
    """An exception with a state of its own."""

    def __init__(self, what: str, code: int) -> None:
        super().__init__(what, code)
        self.code = code


def fails(folder: str, gate: str = "") -> None:
    if gate:
        slow_square(0, folder, gate)
    else:
        mark(folder)
    raise Refusal("it always fails", 17)


def dies(folder: str) -> None:
    mark(folder)
    os._exit(3)


def tidy(folder: str) -> None:
    """Ends in its own way when it is told to."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    mark(folder)
    while True:
        signal.pause()


def big(size: int) -> bytes:
    return os.urandom(1) * size


def length(data: bytes) -> int:
    return len(data)


def with_default(x: int, lr: float = 0.1) -> float:
    return x * lr


def keyed(x: int) -> int:
    """Has a key of its own.

    function-logic-key: v2
    """
    return x


def identity_of_process(x: int) -> int:
    return os.getpid()
