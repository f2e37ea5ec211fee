"""The processes of a chaos run."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import random
import signal
import socket
import subprocess
import tempfile
from pathlib import Path


class Process:
    """A process of the run with its log."""

    def __init__(self, command: list[str], log: Path, environment: dict[str, str]) -> None:
        self.log = log
        with log.open("ab") as out:
            self.popen = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment, start_new_session=True
            )

    @property
    def alive(self) -> bool:
        return self.popen.poll() is None

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.alive:
                self.popen.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.popen.wait()

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-3000:]


def parent_of(pid: int) -> int:
    """The process that started it, or took it over; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return 0


def free_port() -> int:
    """Not one that the system gives to whoever asks for any, nor one of another run: while its worker is dead somebody
    else could take it. It is kept for this process, by a lock on a byte of a file, until it ends.
    """
    first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    chance = random.SystemRandom()
    while True:
        port = chance.randrange(10_000, max(first_given, 12_000))
        with contextlib.suppress(OSError):
            fcntl.lockf(_ports(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            with socket.socket() as sock:
                sock.bind(("127.0.0.1", port))
                return port


@functools.cache
def _ports() -> int:
    """The file whose byte N is locked by who has port N."""
    return os.open(Path(tempfile.gettempdir()) / "mainspring-chaos-ports", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
