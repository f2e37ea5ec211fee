"""Network namespaces of this machine as hosts of their own, for tests; where they can't be made, the test is skipped."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


class Hosts:
    """`count` namespaces on one bridge, 10.213.x.1 and on; each process has a /dev/shm of its own."""

    def __init__(self, count: int = 3) -> None:
        mark = os.getpid() % 10_000
        self.names = [f"msp{mark}-{n}" for n in range(count)]
        self.bridge = f"mspbr{mark}"
        self.net = f"10.213.{mark % 250}"
        self.processes: list[subprocess.Popen[bytes]] = []

    def address(self, host: int) -> str:
        return f"{self.net}.{host + 1}"

    def make(self) -> None:
        # Without an address of its own what lies outside of the namespaces is no news to others on this host: where addresses come and
        # go, browsers give up whatever is under way.
        _run("ip", "link", "add", self.bridge, "type", "bridge")
        _run("ip", "link", "set", self.bridge, "addrgenmode", "none", "up")
        for number, name in enumerate(self.names):
            _run("ip", "netns", "add", name)
            inner, outer = f"{name}i", f"{name}o"
            _run("ip", "link", "add", inner, "type", "veth", "peer", "name", outer)
            _run("ip", "link", "set", outer, "addrgenmode", "none", "master", self.bridge, "up")
            _run("ip", "link", "set", inner, "netns", name)
            _run("ip", "-n", name, "addr", "add", f"{self.address(number)}/24", "dev", inner)
            _run("ip", "-n", name, "link", "set", inner, "up")
            _run("ip", "-n", name, "link", "set", "lo", "up")

    def place(self, host: int) -> list[str]:
        """What a command is put behind to run on a host, in the memory that all share."""
        return ["ip", "netns", "exec", self.names[host]]

    def cut(self, host: int, other: int) -> None:
        """From now on nothing of what `host` sends arrives at `other`: each waits for the other's answers."""
        _run("ip", "-n", self.names[host], "route", "add", "blackhole", f"{self.address(other)}/32")

    def mend(self, host: int, other: int) -> None:
        _run("ip", "-n", self.names[host], "route", "del", "blackhole", f"{self.address(other)}/32")

    def start(self, host: int, *command: str, log: Path) -> subprocess.Popen[bytes]:
        script = 'mount -t tmpfs none /dev/shm && exec "$@"'
        with log.open("wb") as errors:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.names[host], "sh", "-c", script, "sh", *command],
                stdout=subprocess.PIPE,
                stderr=errors,
                stdin=subprocess.DEVNULL,
            )
        self.processes.append(process)
        return process

    def received(self, host: int) -> int:
        """Bytes that came over the network to a host."""
        path = f"/sys/class/net/{self.names[host]}o/statistics/tx_bytes"
        return int(Path(path).read_text())

    def remove(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        for name in self.names:
            for command in (("ip", "netns", "del", name), ("ip", "link", "del", f"{name}o")):
                with contextlib.suppress(subprocess.CalledProcessError):
                    _run(*command)
        with contextlib.suppress(subprocess.CalledProcessError):
            _run("ip", "link", "del", self.bridge)


@contextlib.contextmanager
def made_hosts(count: int = 3) -> Iterator[Hosts]:
    """Hosts for as long as the block lasts."""
    if shutil.which("ip") is None:
        pytest.skip("network namespaces can't be made here: iproute2 is not installed")
    made = Hosts(count)
    try:
        try:
            made.make()
            _run("ip", "netns", "exec", made.names[0], "mount", "-t", "tmpfs", "none", "/dev/shm")
        except (subprocess.CalledProcessError, OSError) as error:
            detail = getattr(error, "stderr", "") or str(error)
            pytest.skip(f"network namespaces can't be made here (it takes root): {detail.strip()[:200]}")
        yield made
    finally:
        made.remove()
