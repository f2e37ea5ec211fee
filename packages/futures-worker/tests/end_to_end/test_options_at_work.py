"""What the options of `submit` promise, with real workers: time limits, order, retries, keys, cancelling with children."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fdb_datamodel import FutureState
from futures_worker import FutureTimeoutError, current_client

WAIT = 60.0


def until(condition: Callable[[], Any]) -> Any:
    """What a task writes to a file is an event that this process can only look for."""
    deadline = time.monotonic() + WAIT
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def touch_and_wait(path: str) -> None:
    Path(path).touch()
    while not os.path.exists(path + ".go"):
        time.sleep(0.01)


def note(path: str, what: str) -> None:
    with open(path, "a") as file:
        file.write(what + "\n")


def fail_until(path: str, times: int, error: type[Exception]) -> float:
    """Fails `times` times; then the seconds between the first start and this one."""
    now = time.time()
    note(path, repr(now))
    starts = [float(line) for line in Path(path).read_text().split()]
    if len(starts) <= times:
        raise error("not yet")
    return now - starts[0]


def parent(path: str, depth: int) -> None:
    client = current_client()
    children = [client.submit(parent, f"{path}-{n}", depth - 1) for n in range(2)] if depth else []
    client.flush()
    Path(path).write_text(" ".join(str(child.id) for child in children))
    time.sleep(600)


def test_the_time_in_the_queue_and_in_all_is_limited(shared_cluster: Callable[..., Any], tmp_path: Path) -> None:
    demo = shared_cluster(workers=1)
    client = demo.client()
    gate = tmp_path / "gate"
    holder = client.submit(touch_and_wait, str(gate))
    until(gate.exists)
    queued = client.submit(abs, -1, timeout={"queue": 0.2})
    total = client.submit(abs, -2, timeout={"total": 0.2})
    patient = client.submit(abs, -3, timeout={"queue": 600, "total": 600, "run": 600})
    for future in (queued, total):
        with pytest.raises(FutureTimeoutError):
            future.result(WAIT)
        assert future.state() == FutureState.failed
    running = client.submit(time.sleep, 600, timeout={"total": 1.0})
    Path(f"{gate}.go").touch()
    assert holder.result(WAIT) is None
    with pytest.raises(FutureTimeoutError):
        running.result(WAIT)
    assert patient.result(WAIT) == 3
    demo.check()


def test_greater_priority_runs_first(shared_cluster: Callable[..., Any], tmp_path: Path) -> None:
    demo = shared_cluster(workers=1)
    client = demo.client()
    gate, order = tmp_path / "gate", tmp_path / "order"
    holder = client.submit(touch_and_wait, str(gate))
    until(gate.exists)
    futures = [
        client.submit(note, str(order), f"{priority}", priority=priority, resources={"cpu": 1})
        for priority in (0, -5, 7, 3)
    ]
    client.flush()
    Path(f"{gate}.go").touch()
    client.await_all([holder, *futures], timeout=WAIT)
    assert order.read_text().split() == ["7", "3", "0", "-5"]
    demo.check()


def test_retries_pause_and_choose(shared_cluster: Callable[..., Any], tmp_path: Path) -> None:
    demo = shared_cluster(workers=1)
    client = demo.client()
    pauses = {"initial": 0.3, "factor": 2.0, "maximum": 60.0}
    waited = client.submit(fail_until, str(tmp_path / "a"), 2, ValueError, backoff=pauses)
    assert waited.result(WAIT) >= 0.8, "0.3 s, then 0.6 s, on a clock that never runs ahead"
    at_once = client.submit(fail_until, str(tmp_path / "b"), 1, KeyError, retry_on=(OSError, ValueError))
    with pytest.raises(KeyError, match="not yet"):
        at_once.result(WAIT)
    retried = client.submit(fail_until, str(tmp_path / "c"), 1, FileNotFoundError, retry_on=OSError)
    assert retried.result(WAIT) >= 0
    demo.check()


def test_a_key_is_one_future_whoever_submits_it(cluster: Callable[..., Any], tmp_path: Path) -> None:
    demo = cluster(workers=2)
    path = tmp_path / "runs"
    clients = [demo.client() for _ in range(3)]
    futures = [client.submit(note, str(path), f"{n}", key="the report") for n, client in enumerate(clients * 2)]
    for future in futures:
        assert future.result(WAIT) is None
    assert len({future.id for future in futures}) == 1
    assert len(path.read_text().split()) == 1
    demo.check()


def test_a_cancel_takes_the_children_with_it(cluster: Callable[..., Any], tmp_path: Path) -> None:
    demo = cluster(workers=2, slots=8)
    client = demo.client()
    path = tmp_path / "family"
    top = client.submit(parent, str(path), 2)
    names = [f"{path}", f"{path}-0", f"{path}-1"]
    parents = [Path(name) for name in names]
    until(lambda: all(path.exists() and len(path.read_text().split()) == 2 for path in parents))
    family = [client.get_future(one) for path in parents for one in path.read_text().split()]
    assert len(set(family)) == 6
    until(lambda: all(future.running() for future in family))
    alone = client.submit(parent, str(tmp_path / "other"), 1)
    left = [
        client.get_future(one)
        for one in until((tmp_path / "other").exists) and until((tmp_path / "other").read_text).split()
    ]
    assert top.cancel()
    for future in family:
        with pytest.raises(CancelledError):
            future.result(WAIT)
    assert alone.cancel(children=False)
    assert not any(future.done() for future in left)
    for future in left:
        assert future.cancel()
    demo.check()


def test_what_is_to_begin_later_does(shared_cluster: Any) -> None:
    client = shared_cluster(workers=1, slots=1).client()
    began = time.monotonic()
    later = [
        client.submit(time.monotonic, after=0.6),
        client.submit(time.monotonic, after=timedelta(seconds=0.6)),
        client.submit(time.monotonic, at=datetime.now() + timedelta(seconds=0.6)),
        client.submit(time.monotonic, at=time.time() + 0.6),
    ]
    assert client.submit(pow, 2, 3).result(timeout=WAIT) == 8
    assert later[0].state() == "waiting"
    assert min(future.result(timeout=WAIT) for future in later) >= began + 0.5, "the clock's row may be a little behind"
    assert client.submit(pow, 2, 3, at=datetime(2000, 1, 1)).result(timeout=WAIT) == 8
    with pytest.raises(ValueError, match="after is a number of seconds"):
        client.submit(pow, 2, 3, after=-1)
    with pytest.raises(ValueError, match="at is a datetime"):
        client.submit(pow, 2, 3, at="tomorrow")


def test_a_limit_holds_on_all_workers_together(cluster: Any, tmp_path: Path) -> None:
    demo = cluster(workers=2, slots=2)
    client = demo.client()
    with pytest.raises(ValueError, match="no limit 'api'"):
        client.submit(pow, 2, 3, limits="api")
    client.limit("api", concurrent=2)
    futures = client.map(in_and_out, [str(tmp_path / "log")] * 12, limits=["api"], max_worker_losses=9)
    until(lambda: client.limits()[0].held == 2 and client.limits()[0].queued > 0)
    demo.workers[0].kill()
    client.gather(futures, progress=False, timeout=WAIT)
    inside = most = 0
    for line in (tmp_path / "log").read_text().split():
        inside = max(0, inside + (1 if line == "in" else -1))
        most = max(most, inside)
    assert most <= 2 + 2, "what a killed worker had never went out"
    assert (client.limits()[0].held, client.limits()[0].queued) == (0, 0)
    client.limit("pace", per_second=10)
    began = time.monotonic()
    client.gather(client.map(pow, range(11), [2] * 11, limits="pace"), progress=False, timeout=WAIT)
    assert time.monotonic() - began > 0.6, "10 pauses of 0.1 s, by a clock that moves four times a second"
    client.limit("pace")
    assert [one.name for one in client.limits()] == ["api"]
    for wrong in ({"concurrent": 0}, {"concurrent": True}, {"per_second": 0}, {"per_second": float("nan")}):
        with pytest.raises(ValueError, match=r"concurrent is a whole|per_second is a number"):
            client.limit("api", **wrong)
    demo.check()


def in_and_out(path: str) -> None:
    note(path, "in")
    time.sleep(0.1)
    note(path, "out")


def test_native_libraries_share_the_cores_among_the_slots(cluster: Any) -> None:
    demo = cluster(1, 2, "--cpus", "8", env={"MKL_NUM_THREADS": "3"})
    client = demo.client()
    said = client.submit(lambda: [os.environ.get(f"{one}_NUM_THREADS") for one in ("OMP", "OPENBLAS", "MKL")])
    assert said.result(timeout=WAIT) == ["4", "4", "3"], "what the environment says goes first"


def test_what_is_to_begin_later_under_a_limit_outlives_its_client_and_every_worker(
    cluster: Any, tmp_path: Path
) -> None:
    """From the page on schedules alone: no process is needed for it to begin, and none that died keeps a permit."""
    demo = cluster(workers=1, slots=2)
    path = tmp_path / "log"
    first = demo.client()
    first.limit("one", concurrent=1)
    holder = first.submit(touch_and_wait, str(tmp_path / "held"), limits=["one"])
    ids = [first.submit(note, str(path), str(n), limits=["one"], after=0.3).id for n in range(3)]
    until(lambda: (tmp_path / "held").exists())
    first.close()
    demo.workers[0].kill()
    (tmp_path / "held.go").touch()
    demo.start("--slots", "2")
    second = demo.client()
    for one in ids:
        second.get_future(one).result(timeout=WAIT)
    assert second.get_future(holder.id).result(timeout=WAIT) is None
    assert sorted(path.read_text().split()) == ["0", "1", "2"], "once each"
    assert [(one.held, one.queued) for one in second.limits()] == [(0, 0)]
    demo.check()
