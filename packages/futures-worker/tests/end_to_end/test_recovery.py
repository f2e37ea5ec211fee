"""What dies is noticed, and what it held goes on elsewhere: by items of the design's list of failure modes."""

from __future__ import annotations

import os
import resource
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fdb_schema import DatabaseUnreachableError
from futures_worker import Client, OversizeError

WAIT = 90.0
FOR_EVER = ("--ttl", "3600")


def hang_the_first_time(folder: str) -> str:
    flag = Path(folder, "first")
    if flag.exists():
        return "second"
    flag.write_text(str(os.getpid()))
    time.sleep(3600)
    return "never"


def holder_of(client: Client, future: Any) -> str:
    from fdb_datamodel import describe_future
    from idempotent_txn import run

    info = run(client._context.db, describe_future, client._context.space, future._record.id)
    return f"{info.worker.ip}:{info.worker.port}" if info.worker is not None else ""


def await_path(path: Path) -> None:
    deadline = time.monotonic() + WAIT
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.01)


def test_a_killed_worker_of_this_host_is_noticed_long_before_its_ttl(
    cluster: Callable[..., Any], tmp_path: Path
) -> None:
    demo = cluster(2, 1, *FOR_EVER)
    client = demo.client()
    future = client.submit(hang_the_first_time, str(tmp_path))
    client.flush()
    await_path(tmp_path / "first")
    address = holder_of(client, future)
    victim = next(worker for worker in demo.workers if address in worker.line)
    os.kill(victim.pid, 9)  # left a zombie until the test ends: nobody asks how it ended
    # Nobody awaits it through this client either: the other worker looks by itself.
    other = demo.client()
    assert other.get_future(future.id).result(WAIT) == "second"
    demo.check()


def too_large_for_any_file(size: int) -> bytes:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    return bytes(size)


def test_a_result_that_fits_neither_memory_nor_spill_says_so_and_is_not_retried(cluster: Callable[..., Any]) -> None:
    demo = cluster(1, 1)
    client = demo.client()
    future = client.submit(too_large_for_any_file, 5 << 20)
    with pytest.raises(OversizeError, match=r"neither.*memory.*nor.*spill"):
        future.result(WAIT)
    assert "oversize" in str(future.state())
    assert client.submit(abs, -1).result(WAIT) == 1
    demo.check()


def large(n: int) -> Any:
    return np.arange(n)


def test_a_second_sigterm_ends_a_worker_whose_fetches_hang(cluster: Callable[..., Any]) -> None:
    demo = cluster(2, 1)
    client = demo.client()
    held = client.submit(large, 100_000)
    address = ""
    held.exception(WAIT)
    address = holder_of(client, held)
    holder = next(worker for worker in demo.workers if address in worker.line)
    other = next(worker for worker in demo.workers if worker is not holder)
    holder.pause()
    try:
        client.submit(np.sum, held)
        client.flush()
        ip, _, port = address.rpartition(":")
        await_connection(ip, int(port), other.pid)
        os.kill(other.pid, signal.SIGTERM)
        begun = time.monotonic()
        while other.process.poll() is None:  # two that come at once may be one
            assert time.monotonic() - begun < 25, "a fetch, and the grace, may take 30 s"
            time.sleep(0.2)
            os.kill(other.pid, signal.SIGTERM)
        assert other.process.returncode in (0, -signal.SIGTERM), "the last one may meet an interpreter that ends"
    finally:
        holder.resume()


def await_connection(ip: str, port: int, pid: int) -> None:
    """Until a process has a connection to an address."""
    remote = f"{socket.inet_aton(ip)[::-1].hex().upper()}:{port:04X}"
    deadline = time.monotonic() + WAIT
    while not any(remote == line.split()[2] for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.embedded_only("a directory is removed")
def test_a_worker_whose_database_was_removed_ends_and_its_clients_are_told(cluster: Callable[..., Any]) -> None:
    demo = cluster(1, 1)
    client = demo.client()
    assert client.submit(abs, -1).result(WAIT) == 1
    path = Path(demo.url.removeprefix("embedded:"))
    away = path.with_name("away")
    path.rename(away)
    try:
        assert demo.workers[0].process.wait(WAIT) != 0
        with pytest.raises(DatabaseUnreachableError, match="was removed"):  # noqa: PT012
            while True:  # it is looked for once a second
                client.submit(abs, -2).result(0.2)
    finally:
        away.rename(path)
