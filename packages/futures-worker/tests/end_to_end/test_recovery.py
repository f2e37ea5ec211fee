"""What dies is noticed, and what it held goes on elsewhere: by items of the design's list of failure modes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from futures_worker import Client

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

    info = run(client._db, describe_future, client._space, future._id)
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
