"""Objects go from host to host: workers in network namespaces with addresses and memory of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fdb_datamodel import validate
from fdb_schema import open_database

WAIT = 120.0
SIZE = 3_000_000

CLIENT = """
import sys
from futures_worker import Client, NoWorkerError, ObjectLostError

def make(size):
    return bytes(range(256)) * (size // 256 + 1)

def measure(data, more=b""):
    return len(data) + len(more), sum(data[:1000])

url, first, second = sys.argv[1:4]
size = int(sys.argv[4])
with Client(url, "net") as client:
    workers = {}
    made = client.submit(make, size, locality=first)
    there = client.submit(measure, made, locality=second)
    expected = (len(make(size)), sum(make(size)[:1000]))
    assert there.result(100) == expected, there.result(100)
    assert made.result(100) == make(size), "streamed to the client"
    put = client.put(make(size))
    assert client.submit(measure, put, made, locality=first).result(100)[0] == 2 * expected[0]
    client.clone(made, second)
    client.transfer(put, first)
    assert put.result(100) == make(size)
    print("ok", flush=True)
"""


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


class Hosts:
    """Three namespaces on one bridge, 10.213.x.1 to .3; each process has a /dev/shm of its own."""

    def __init__(self) -> None:
        mark = os.getpid() % 10_000
        self.names = [f"msp{mark}-{n}" for n in range(3)]
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


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if shutil.which("ip") is None:
        pytest.skip("network namespaces can't be made here: iproute2 is not installed")
    made = Hosts()
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


def test_results_are_streamed_between_hosts_with_addresses_of_their_own(hosts: Hosts, tmp_path: Path) -> None:
    url = f"embedded:{tmp_path / 'db'}"
    addresses = []
    for host in (0, 1):
        worker = hosts.start(
            host, sys.executable, "-m", "futures_worker", "run", "--db", url, "--cluster", "net", "--slots", "1",
            "--address", hosts.address(host), "--port", "4100", "--spill", str(tmp_path / f"spill-{host}"),
            log=tmp_path / f"worker-{host}.log",
        )  # fmt: skip
        assert worker.stdout is not None
        line = worker.stdout.readline().decode()
        assert f"worker {hosts.address(host)}:4100" in line, (tmp_path / f"worker-{host}.log").read_text()
        addresses.append(f"{hosts.address(host)}:4100")
    script = tmp_path / "client.py"
    script.write_text(CLIENT)
    before = [hosts.received(host) for host in range(3)]
    client = hosts.start(2, sys.executable, str(script), url, *addresses, str(SIZE), log=tmp_path / "client.log")
    assert client.wait(WAIT) == 0, (tmp_path / "client.log").read_text()
    came = [hosts.received(host) - before[host] for host in range(3)]
    assert all(count > SIZE for count in came), f"every host got an object over the network: {came}"
    assert validate(open_database(url), "net") == []
