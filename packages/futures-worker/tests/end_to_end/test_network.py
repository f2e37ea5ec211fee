"""Objects go from host to host: workers in network namespaces with addresses and memory of their own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.hosts import Hosts, made_hosts

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


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with made_hosts() as made:
        yield made


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
