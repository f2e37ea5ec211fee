"""What goes wrong, and what the user is told: exceptions, lost workers, cancelled and impossible futures, bad input."""

from __future__ import annotations

import asyncio
import math
import operator
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from fdb_datamodel import FutureState
from fdb_schema import DatabaseUrlError, NameInvalidError, NotADatabaseError
from futures_worker import (
    Client,
    FutureDeletedError,
    FutureFailedError,
    FutureTimeoutError,
    LongWaitWarning,
    NoWorkerError,
    ResultPickleError,
    TaskUnpickleError,
    UnknownFutureError,
    UpstreamDependencyFailedException,
    WorkerLostError,
    as_completed,
    current_client,
)
from futures_worker.client.context import worker_context

WAIT = 60.0


class CustomError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class WontPickle(Exception):
    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


def fails(error: BaseException) -> None:
    raise error


def count_start(path: str) -> int:
    """Appends a line; how many there are now."""
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\n")
    return starts(path)


def starts(path: str | Path) -> int:
    return len(Path(path).read_text().splitlines()) if Path(path).exists() else 0


def fails_until(path: str, start: int) -> int:
    now = count_start(path)
    if now < start:
        raise ValueError(f"start {now}")
    return now


def test_exceptions_keep_their_type_and_the_remote_traceback(shared_cluster: Callable[..., Any]) -> None:
    client = shared_cluster(workers=1).client()
    future = client.submit(fails, CustomError(7), max_retries=0)
    with pytest.raises(CustomError) as caught:
        future.result(WAIT)
    assert caught.value.code == 7
    assert "in fails" in "".join(traceback.format_exception(caught.value))
    assert isinstance(future.exception(WAIT), CustomError)
    assert future.state() == FutureState.failed
    with pytest.raises(ZeroDivisionError):
        client.submit(operator.truediv, 1, 0, max_retries=0).result(WAIT)

    def local_failure() -> None:
        raise WontPickle("carried as text")

    with pytest.raises(FutureFailedError, match=r"WontPickle: carried as text") as told:
        client.submit(local_failure, max_retries=0).result(WAIT)
    assert "in local_failure" in told.value.remote_traceback


@pytest.mark.parametrize("error", [StopIteration(7), StopAsyncIteration(7), asyncio.CancelledError("its own")])
def test_no_loop_over_futures_ends_by_what_a_task_raises(
    shared_cluster: Callable[..., Any], error: BaseException
) -> None:
    client = shared_cluster(workers=1).client()
    failed = client.submit(fails, error, max_retries=0)
    futures = [failed, client.submit(abs, -3)]
    client.await_all(futures[1:], timeout=WAIT)

    async def in_order(errors: str) -> list[Any]:
        found, coming = [], as_completed([failed], timeout=WAIT, with_results=True, errors=errors)
        async for _, value in coming:
            found.append(value)
            coming.update([future for future in futures[1:] if len(found) == 1])
        return found

    loop = as_completed([failed], timeout=WAIT, with_results=True)
    with pytest.raises((RuntimeError, asyncio.CancelledError)) as caught:
        next(loop)
    assert type(error) in (type(caught.value), type(caught.value.__cause__))
    if isinstance(error, Exception):
        with pytest.raises(RuntimeError):
            asyncio.run(in_order("raise"))
    given = asyncio.run(in_order("return"))
    assert given[1] == 3
    assert isinstance(given[0], (type(error), RuntimeError))


def test_retries_are_counted_as_starts(shared_cluster: Callable[..., Any], tmp_path: Path) -> None:
    client = shared_cluster(workers=2).client()
    assert client.submit(fails_until, str(tmp_path / "a"), 3).result(WAIT) == 3
    with pytest.raises(ValueError, match="start 3"):
        client.submit(fails_until, str(tmp_path / "b"), 99, max_retries=2).result(WAIT)
    assert starts(tmp_path / "b") == 3
    with pytest.raises(ValueError, match="start 1"):
        client.submit(fails_until, str(tmp_path / "c"), 99, max_retries=0).result(WAIT)
    assert starts(tmp_path / "c") == 1
    with pytest.raises(ValueError, match="start 1"):
        client.submit(fails_until, str(tmp_path / "d"), 99, retry_on=(KeyError,)).result(WAIT)
    assert starts(tmp_path / "d") == 1


def test_a_failed_dependency_fails_its_dependents(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=2)
    client = demo.client()
    first = client.submit(fails, CustomError(1), max_retries=0)
    second = client.submit(abs, first)
    third = client.submit(abs, second)
    with pytest.raises(UpstreamDependencyFailedException) as caught:
        third.result(WAIT)
    assert first.id in caught.value.chain
    assert str(first.id) in str(caught.value)
    assert str(caught.value).count("which failed") == 1
    with pytest.raises(UpstreamDependencyFailedException):
        client.submit(abs, first).result(WAIT)  # it has failed before this one exists
    demo.check()


def test_kill_a_worker_midway(cluster: Callable[..., Any]) -> None:
    demo = cluster(workers=2, slots=2)
    client = demo.client()

    def slow_square(n: int) -> int:
        time.sleep(0.02)
        return n * n

    futures = client.map(slow_square, range(200))
    futures[20].result(WAIT)
    demo.workers[0].kill()
    assert client.gather(futures, timeout=WAIT, progress=False) == [n * n for n in range(200)]
    demo.check()


def test_a_task_that_kills_its_process_costs_attempts_not_the_worker(
    shared_cluster: Callable[..., Any], tmp_path: Path
) -> None:
    demo = shared_cluster(workers=1, slots=1)
    client = demo.client()

    def dies(path: str) -> None:
        count_start(path)
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(WorkerLostError):
        client.submit(dies, str(tmp_path / "starts"), max_retries=2).result(WAIT)
    assert starts(tmp_path / "starts") == 3
    assert client.submit(abs, -1).result(WAIT) == 1
    assert demo.workers[0].process.poll() is None
    demo.check()


def test_a_waiting_client_alone_declares_a_worker_dead(cluster: Callable[..., Any], tmp_path: Path) -> None:
    demo = cluster(workers=1)
    client = demo.client()

    def first_start_hangs(path: str) -> int:
        if count_start(path) == 1:
            time.sleep(600)
        return 7

    future = client.submit(first_start_hangs, str(tmp_path / "starts"))
    end = time.monotonic() + WAIT
    while not starts(tmp_path / "starts") and time.monotonic() < end:
        time.sleep(0.01)
    demo.workers[0].kill()  # no worker is left that could notice
    while future.state() != FutureState.unclaimed and time.monotonic() < end:
        with pytest.raises(TimeoutError):
            future.result(timeout=0.5)
    assert future.state() == FutureState.unclaimed
    demo.start()
    assert future.result(WAIT) == 7
    demo.check()


def test_cancel(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=1, slots=1)
    client = demo.client()
    running = client.submit(time.sleep, 600)
    end = time.monotonic() + WAIT
    while not running.running() and time.monotonic() < end:
        time.sleep(0.01)
    queued = client.submit(abs, -1)
    assert queued.cancel()
    assert queued.cancelled()
    with pytest.raises(CancelledError):
        queued.result(WAIT)
    assert running.cancel()
    with pytest.raises(CancelledError):
        running.exception(WAIT)
    done = client.submit(abs, -2)  # the slot is free again
    assert done.result(WAIT) == 2
    assert not done.cancel()
    assert done.result() == 2
    demo.check()


def test_a_run_over_its_time_fails(shared_cluster: Callable[..., Any]) -> None:
    client = shared_cluster(workers=1).client()
    with pytest.raises(FutureTimeoutError):
        client.submit(time.sleep, 600, timeout=0.5, max_retries=0).result(WAIT)
    assert client.submit(abs, -1).result(WAIT) == 1


def test_nobody_there(cluster: Callable[..., Any]) -> None:
    demo = cluster(workers=0)
    future = demo.client().submit(abs, -1)
    assert future.state() == "unclaimed"
    assert "no live worker" in str(future.state())
    assert not future.done()
    with pytest.raises(TimeoutError, match="no live worker"):
        future.result(timeout=0.3)
    with pytest.raises(NoWorkerError):
        demo.client().put(b"x" * 100_000)


def test_a_wrong_cluster_name_is_told(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=1)
    client = Client(demo.url, "wrong")
    try:
        future = client.submit(abs, -1)
        with pytest.raises(TimeoutError, match=r"cluster 'wrong' has no live worker.*'test'"):
            future.result(timeout=0.5)
        with pytest.raises(TimeoutError, match=r"waiting on 1 future,.*cluster 'wrong' has no live worker"):
            client.submit(abs, future).result(timeout=0.5)
    finally:
        client.close()


def test_what_fits_no_worker_says_so(cluster: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("futures_worker.client.session.waiting.WARN_SECONDS", 0.2)
    demo = cluster(1, 1, "--cpus", "1")
    client = demo.client()
    future = client.submit(abs, -1, resources={"gpu": 8})
    with pytest.warns(LongWaitWarning, match="gpu") as warned, pytest.raises(TimeoutError, match="gpu"):
        future.result(timeout=1.5)  # more than a look takes to come round
    assert {w.filename for w in warned if w.category is LongWaitWarning} == {__file__}, (
        "the line that waits, not the library's"
    )
    assert future.state() == FutureState.unclaimed
    assert "gpu" in future.state().reason
    assert client.submit(abs, -1, resources={"cpu": 1}).result(WAIT) == 1
    assert future.cancel()


def test_a_module_that_is_missing_on_the_worker(shared_cluster: Callable[..., Any], tmp_path: Path) -> None:
    demo = shared_cluster(workers=1)
    (tmp_path / "only_here_e2e.py").write_text("def f(): return 1\n")
    program = (
        "import sys; sys.path.insert(0, sys.argv[3])\n"
        "import only_here_e2e; from futures_worker import Client\n"
        "print(Client(sys.argv[1], sys.argv[2]).submit(only_here_e2e.f).id)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, demo.url, demo.name, str(tmp_path)], capture_output=True, text=True, check=True
    )
    with pytest.raises(TaskUnpickleError, match=r"'only_here_e2e' is missing.*Python 3.*Python 3"):
        demo.client().get_future(done.stdout.strip()).result(WAIT)


def test_what_doesnt_pickle(shared_cluster: Callable[..., Any], tmp_path: Path) -> None:
    client = shared_cluster(workers=1).client()
    lock = threading.Lock()
    with pytest.raises(TypeError, match="can't be pickled"):
        client.submit(lambda: lock)
    with pytest.raises(TypeError, match="argument number 1"):
        client.submit(abs, lock)

    def returns_a_lock(path: str) -> Any:
        count_start(path)
        return threading.Lock()

    with pytest.raises(ResultPickleError, match="lock"):
        client.submit(returns_a_lock, str(tmp_path / "starts")).result(WAIT)
    assert starts(tmp_path / "starts") == 1  # permanent at once
    assert client.submit(abs, -1).result(WAIT) == 1


def test_two_workers_on_one_address(cluster: Callable[..., Any]) -> None:
    demo = cluster(workers=0)
    first = demo.start("--port", "0")
    port = demo.client()  # the address is read from the database, as anybody would
    from fdb_datamodel import ClusterSpace, list_workers
    from fdb_schema import open_database
    from idempotent_txn import run

    (status,) = run(open_database(demo.url), list_workers, ClusterSpace(demo.name))
    second = demo.start("--port", str(status.id.port), wait=False)
    assert second.process.wait(WAIT) != 0
    assert str(status.id.port) in second.text()
    assert port.submit(abs, -1).result(WAIT) == 1
    assert first.process.poll() is None


def test_a_lost_result_is_computed_again(cluster: Callable[..., Any], tmp_path: Path) -> None:
    demo = cluster(workers=1)
    client = demo.client()

    def big(path: str) -> Any:
        count_start(path)
        return np.arange(100_000)

    future = client.submit(big, str(tmp_path / "starts"))
    wait_until_done = demo.client().get_future(future.id)
    wait_until_done.exception(WAIT)
    dependent_later = client.submit(np.sum, future)
    assert dependent_later.result(WAIT) == 4999950000
    demo.workers[0].kill()
    demo.start()
    assert future.result(WAIT)[-1] == 99_999
    assert starts(tmp_path / "starts") == 2
    demo.check()


def test_deleted_and_unknown_futures(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=1)
    client = demo.client()
    future = client.submit(abs, -1)
    assert future.result(WAIT) == 1
    client.delete(future)
    with pytest.raises(FutureDeletedError):
        demo.client().get_future(future.id).result(WAIT)
    unknown = client.get_future(uuid4())
    with pytest.raises(UnknownFutureError):
        unknown.result(timeout=5)
    with pytest.raises(UnknownFutureError):
        unknown.state()
    with pytest.raises(ValueError, match="16 bytes"):
        client.get_future(b"short")
    with pytest.raises(ValueError, match="'the park' is no id of a future"):
        client.get_future("the park")
    assert client.submit(math.sqrt, 4).result(WAIT) == 2


def test_bad_databases_and_names(tmp_path: Path) -> None:
    with pytest.raises(DatabaseUrlError, match="unknown scheme"):
        Client("redis://localhost")
    with pytest.raises(NameInvalidError):
        Client(f"embedded:{tmp_path / 'db'}", cluster="bad\nname")
    (tmp_path / "something").write_text("else")
    with pytest.raises(NotADatabaseError):
        Client(f"embedded:{tmp_path / 'something'}")


class Speaker:
    def __init__(self) -> None:
        self.calls = 0

    def fails_in_half_a_surrogate_pair(self) -> None:
        self.calls += 1
        raise ValueError("caf\udce9")

    def count(self) -> int:
        return self.calls


def test_text_that_utf8_hasnt_costs_neither_the_child_nor_an_actor(shared_cluster: Callable[..., Any]) -> None:
    client = shared_cluster(workers=2).client()
    with pytest.raises(ValueError, match="caf\udce9"):
        client.submit(fails, ValueError("caf\udce9"), max_retries=0).result(WAIT)
    speaker = client.actor(Speaker)
    for _ in range(2):
        with pytest.raises(ValueError, match="caf\udce9"):
            speaker.fails_in_half_a_surrogate_pair().result(WAIT)
    assert speaker.count().result(WAIT) == 2


class FDBError(Exception):
    code = 1510


def let_the_disk_refuse(times: int = 1) -> None:
    """The next transactions of this process can't be made, as where the database's disk is full."""
    db = worker_context().db
    create = db.create_transaction

    def refused() -> Any:
        nonlocal times
        times -= 1
        if times < 0:
            return create()
        raise FDBError("Disk i/o operation failed")

    db.create_transaction = refused


class OnFullDisk:
    def __init__(self) -> None:
        self.calls = 0

    def call(self, refused: int = 0) -> int:
        self.calls += 1
        let_the_disk_refuse(refused)
        return self.calls


def with_a_future_inside() -> list[Any]:
    inner = current_client().submit(abs, -3)
    current_client().flush()
    let_the_disk_refuse()
    return [inner]


def yield_on_full_disk() -> Iterator[int]:
    yield 0
    let_the_disk_refuse()
    yield 1


def test_a_disk_that_is_full_for_a_moment_costs_no_call_of_an_actor_and_no_task(
    shared_cluster: Callable[..., Any],
) -> None:
    client = shared_cluster().client()
    actor = client.actor(OnFullDisk)
    inside = client.submit(with_a_future_inside, max_retries=0)
    stream = client.submit(yield_on_full_disk, max_retries=0)
    assert client.gather([actor.call(2), actor.call()], timeout=WAIT) == [1, 2]
    assert inside.result(WAIT)[0].result(WAIT) == 3
    assert list(stream.result(WAIT)) == [0, 1]
