"""Named resources at work: no more is in use than a worker offers, it is free again however an attempt ends, others go on meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from futures_worker import UnschedulableError

WAIT = 60.0
Cluster = Callable[..., Any]


def alone(folder: str, most: int) -> int:
    """How many others hold the resource at the same time, by files; never `most` or more."""
    mine = Path(folder, f"{os.getpid()}-{time.monotonic_ns()}")
    mine.touch()
    time.sleep(0.02)
    found = len(list(Path(folder).iterdir()))
    mine.unlink()
    assert found <= most, found
    return found


def hold(folder: str) -> int:
    """Holds it until `go` is there; says by which process first."""
    Path(folder, "pid.part").write_text(str(os.getpid()))
    os.rename(Path(folder, "pid.part"), Path(folder, "pid"))
    while not Path(folder, "go").exists():
        time.sleep(0.01)
    return os.getpid()


def awaited(path: Path) -> str:
    end = time.monotonic() + WAIT
    while not path.exists():
        assert time.monotonic() < end, path
        time.sleep(0.01)
    text = path.read_text()
    path.unlink()
    return text


def test_no_more_than_is_offered_is_in_use_and_others_go_on(cluster: Cluster, tmp_path: Path) -> None:
    demo = cluster(0)
    demo.start("--slots", "6", "--resource", "db=2", "--resource", "licence=1.5", wait=False)
    demo.start("--slots", "2", wait=False)
    for worker in demo.workers:
        worker.wait_ready()
    client = demo.client(max_retries=0)
    users = tmp_path / "users"
    users.mkdir()
    behind = [client.submit(alone, str(users), 2, resources={"db": 1}) for _ in range(12)]
    halves = client.map(alone, [str(tmp_path)] * 3, [10**6] * 3, resources={"licence": 0.5, "cpu": 0.1})
    assert client.gather(client.map(abs, range(50)), timeout=WAIT) == list(range(50))
    assert max(client.gather(behind, timeout=WAIT)) <= 2
    client.gather(halves, timeout=WAIT)
    rows = {dict(row.resources).get("db"): row for row in client.workers()}
    assert rows.keys() == {2.0, None} and rows[2.0].resources == {"db": 2.0, "licence": 1.5}
    demo.check()


def test_it_is_free_again_however_the_attempt_ended(cluster: Cluster, tmp_path: Path) -> None:
    demo = cluster(1, 2, "--resource", "db=1")
    client = demo.client(max_retries=1, resources={"db": 1})
    held = client.submit(hold, str(tmp_path))
    pid = int(awaited(tmp_path / "pid"))
    waits = client.submit(int)
    assert client.options(resources=None).submit(abs, -2).result(WAIT) == 2, "nothing waits behind it"
    assert str(waits.state().reason) == "in the pool, waiting for a worker with db=1 free"
    os.kill(pid, signal.SIGKILL)  # the attempt is lost, and the next one may take it, or `waits`
    (tmp_path / "go").touch()
    assert waits.result(WAIT) == 0 and held.result(WAIT) != pid
    (tmp_path / "go").unlink()
    (tmp_path / "pid").unlink(missing_ok=True)

    def fails() -> None:
        raise ValueError

    with pytest.raises(ValueError):
        client.submit(fails).result(WAIT)
    slow = client.submit(hold, str(tmp_path), timeout=0.2, max_retries=0)
    with pytest.raises(TimeoutError):
        slow.result(WAIT)
    stopped = client.submit(hold, str(tmp_path))
    awaited(tmp_path / "pid")
    stopped.cancel()
    assert client.submit(abs, -1).result(WAIT) == 1

    held = client.submit(hold, str(tmp_path))
    with contextlib.suppress(FileNotFoundError):
        (tmp_path / "pid").unlink()
    awaited(tmp_path / "pid")
    demo.workers[0].kill()
    demo.start("--slots", "1", "--resource", "db=1")
    awaited(tmp_path / "pid")  # it runs again, at another worker
    (tmp_path / "go").touch()
    held.result(WAIT)
    assert client.submit(abs, -1).result(WAIT) == 1
    demo.check()


def test_what_nobody_offers_says_so_and_is_done_once_somebody_does(cluster: Cluster) -> None:
    demo = cluster(1, 1)
    client = demo.client()
    future = client.submit(abs, -3, resources={"printer": 1})
    assert client.submit(abs, -1).result(WAIT) == 1
    assert (
        "unschedulable: needs cpu=0 ram=0 gpu=0 printer=1, and no live worker offers printer" in future.state().reason
    )
    with pytest.raises(UnschedulableError, match="printer=1"):
        client.submit(abs, -3, resources={"printer": 1}, unschedulable_timeout=0.2).result(WAIT)
    demo.start("--slots", "1", "--resource", "printer=1")
    assert future.result(WAIT) == 3
    with pytest.raises(ValueError, match="did you mean 'cpu'"):
        client.submit(abs, -3, resources={"cpus": 1})
    actor = client.actor(Path, "/no/such/file", resources={"printer": 1})
    assert actor.exists().result(WAIT) is False
    waits = client.submit(abs, -4, resources={"printer": 1})
    assert client.submit(abs, -1).result(WAIT) == 1
    assert not waits.done()
    client.kill_actor(actor)
    assert waits.result(WAIT) == 4, "an actor has it as long as it lives"
    demo.check()


def visible(folder: str = "", seconds: float = 0.0) -> str | None:
    """The gpus that the task sees; with a folder it holds them there for a while, and fails if another does."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    for one in (given or "").split(",") if folder else ():
        Path(folder, one).touch(exist_ok=False)
    time.sleep(seconds)
    for one in (given or "").split(",") if folder else ():
        Path(folder, one).unlink()
    return given


def test_gpus_are_given_out_by_id(cluster: Cluster, tmp_path: Path) -> None:
    demo = cluster(1, 4, "--gpus", "3", env={"CUDA_VISIBLE_DEVICES": "4,5,7"})
    client = demo.client(max_retries=0)
    assert client.submit(visible).result(WAIT) == ""
    several = client.map(visible, [str(tmp_path)] * 8, [0.03] * 8, resources={"gpu": 1})
    pairs = client.map(visible, [str(tmp_path)] * 3, [0.03] * 3, resources={"gpu": 2})
    assert set(client.gather(several, timeout=WAIT)) <= {"4", "5", "7"}
    assert {len(pair.split(",")) for pair in client.gather(pairs, timeout=WAIT)} == {2}
    assert client.submit(visible, resources={"gpu": 0.5}).result(WAIT) in ("4", "5", "7")

    held = client.submit(hold, str(tmp_path), resources={"gpu": 3}, max_retries=1)
    os.kill(int(awaited(tmp_path / "pid")), signal.SIGKILL)
    (tmp_path / "go").touch()
    held.result(WAIT)
    assert client.submit(visible, resources={"gpu": 3}).result(WAIT) == "4,5,7", "those of the one that was killed too"
    both = demo.client(env={"LEVEL": "3"}).submit(visible, resources={"gpu": 3})
    assert both.result(WAIT) == "4,5,7"
    demo.check()


def test_a_worker_without_gpus_leaves_the_variable_alone(cluster: Cluster) -> None:
    demo = cluster(1, 1, "--gpus", "0", env={"CUDA_VISIBLE_DEVICES": "6"})
    assert demo.client().submit(visible).result(WAIT) == "6"
