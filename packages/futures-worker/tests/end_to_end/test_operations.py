"""What a client tells of its cluster and does to futures: `futures`, `workers`, `retry`, `cancel`, `logs`, `stack`."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from support.terminal import piped

from futures_worker import Client, Future, LocalCluster, MainspringError, UnknownFutureError
from futures_worker.cli import main
from futures_worker.client import operating

WAIT = 60.0


@pytest.fixture(scope="module")
def local() -> Iterator[LocalCluster]:
    cluster = LocalCluster(workers=1, slots=3)
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def client(local: LocalCluster) -> Client:
    return local.client


def begun(path: Path) -> None:
    """Until a task has made the file."""
    end = time.monotonic() + WAIT
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.005)


def mark_and_wait(path: str) -> None:
    Path(path).touch()
    threading.Event().wait(600)


def hold_the_interpreter(path: str) -> None:
    Path(path).touch()
    re.match(r"(a+)+$", "a" * 60 + "b")  # native code that lets no other thread of this process run Python, for ages


def fail_once(path: str) -> str:
    print("trying", path)
    if not Path(path).exists():
        Path(path).touch()
        raise ValueError("not yet")
    return "done"


def test_workers_are_rows_and_can_be_waited_for(client: Client, local: LocalCluster) -> None:
    client.wait_for_workers(1, timeout=WAIT)
    (row,) = client.workers()
    (worker,) = local.workers
    assert (row.address, row.pid, row.slots) == (worker.address, worker.pid, 3)
    assert row.cpu > 0
    assert row.ram > 0
    assert row.started is not None
    assert abs(datetime.now(UTC) - row.started) < timedelta(minutes=10)
    with pytest.raises(TimeoutError, match=r"has 1 of 3 workers after 0\.05 s: start one with `futures-worker run"):
        client.wait_for_workers(3, timeout=0.05)
    with pytest.raises(TypeError, match="n is a whole number"):
        client.wait_for_workers("2")  # type: ignore[arg-type]


def test_futures_are_found_by_what_they_are_like(client: Client) -> None:
    name = f"named {uuid4().hex}"
    named = [client.submit(pow, 2, at, name=name) for at in range(3)]
    plain = client.submit(divmod, 7, 2)
    failed = client.submit(int, "x", max_retries=0, name=name)
    client.gather([*named, plain])
    failed.exception(timeout=WAIT)
    assert [row.id for row in client.futures(name=name)] == [failed.id, *(one.id for one in reversed(named))]
    assert [row.id for row in client.futures(name=name, newest=False, limit=2)] == [named[0].id, named[1].id]
    assert [row.id for row in client.futures("realized", function=divmod)] == [plain.id]
    assert [row.id for row in client.futures(["realized", "waiting"], function="divmod")] == [plain.id]
    (row,) = client.futures("failed", name=name, reason="invalid literal", since=600)
    assert row.state == "failed"
    assert "ValueError" in row.reason
    assert row.attempts == 1
    assert row.seconds is not None
    assert client.futures(name=name, since=datetime.now(UTC) + timedelta(hours=1)) == []
    assert client.futures(name=name, limit=0) == []
    assert client.get_future(row.id).exception(timeout=WAIT).args == failed.exception(timeout=WAIT).args  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="state is one of waiting, unclaimed"):
        client.futures("running")
    with pytest.raises(ValueError, match="limit is a whole number"):
        client.futures(limit=-1)
    with pytest.raises(TypeError, match="since is a moment"):
        client.futures(since="yesterday")  # type: ignore[arg-type]


def test_what_failed_is_retried_and_its_handle_waits_again(client: Client, tmp_path: Path) -> None:
    future = client.submit(fail_once, str(tmp_path / "tried"), max_retries=0)
    first = future.exception(timeout=WAIT)
    assert isinstance(first, ValueError)
    assert future.exception() is first
    assert client.retry(future)
    assert future.result(timeout=WAIT) == "done"
    assert not client.retry(future), "it is failed no more"
    assert not client.retry(str(future.id))
    with pytest.raises(UnknownFutureError):
        client.retry(uuid4())


def test_what_a_task_printed_is_text(client: Client, tmp_path: Path) -> None:
    future = client.submit(fail_once, str(tmp_path / "tried"), max_retries=1)
    assert future.result(timeout=WAIT) == "done"
    line = f"trying {tmp_path / 'tried'}\n"
    end = time.monotonic() + WAIT
    while len(told := client.logs(future)) < 2 * len(line):  # workers keep it a moment after it was printed
        assert time.monotonic() < end
        time.sleep(0.02)
    assert told == f"--- attempt 1\n{line}--- attempt 2\n{line}"
    assert client.logs(future.id, attempt=2) == line
    with pytest.raises(ValueError, match="is no id of a future"):
        client.logs("soon")
    with pytest.raises(TypeError, match="give a future or its id"):
        client.logs(7)  # type: ignore[arg-type]


def test_many_are_cancelled_at_once(client: Client, tmp_path: Path) -> None:
    done = client.submit(pow, 2, 2)
    done.result(timeout=WAIT)
    running = client.submit(mark_and_wait, str(tmp_path / "begun"))
    begun(tmp_path / "begun")
    queued = client.submit(pow, running, 2)
    assert client.cancel([done, running, queued]) == 2
    assert running.cancelled()
    assert queued.cancelled()
    assert client.cancel([]) == 0
    with pytest.raises(TypeError, match="cancel takes futures"):
        client.cancel([1])  # type: ignore[list-item]


class Held:
    def __init__(self) -> None:
        self.calls = 0

    def hold(self, begun: str, gate: str) -> int:
        Path(begun).touch()
        while not Path(gate).exists():
            time.sleep(0.005)
        return self.count()

    def count(self) -> int:
        self.calls += 1
        return self.calls


def test_calls_of_actors_are_cancelled_unless_they_began(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operating, "CANCEL_SECONDS", 0.05)
    actor = client.actor(Held)
    done, running = actor.count(), actor.hold(str(tmp_path / "begun"), str(tmp_path / "gate"))
    first, second = actor.count(), actor.count()
    begun(tmp_path / "begun")
    assert client.cancel([done, running, first]) == 0, "the actor, which knows, is busy"
    (tmp_path / "gate").touch()
    assert running.result(timeout=WAIT) == 2, "it had begun"
    assert second.result(timeout=WAIT) == 3, "the one before it didn't run"
    with pytest.raises(CancelledError):
        first.result(timeout=WAIT)
    client.kill_actor(actor)


@pytest.mark.parametrize("task", [mark_and_wait, hold_the_interpreter])
def test_a_running_task_tells_where_it_is(
    client: Client, local: LocalCluster, tmp_path: Path, task: object, capfd: pytest.CaptureFixture[str]
) -> None:
    future: Future[None] = client.submit(task, str(tmp_path / "begun"))  # type: ignore[arg-type]
    waiting = client.submit(pow, future, 2)
    begun(tmp_path / "begun")
    told = client.stack(future)
    assert told is not None
    name = task.__name__  # type: ignore[attr-defined]
    assert "The task (most recent call last):\n" in told
    (line,) = (line for line in told.splitlines() if line.endswith(f", in {name}"))
    assert line.startswith(f'  File "{__file__}", line ')
    assert "child_main" not in told.partition("Thread ")[0], "what is below the task's own function isn't shown"
    assert client.stack(waiting) is None
    said = piped(main, capfd, "stack", str(future.id), "--db", local.url, "--cluster", local.cluster)
    assert said["id"] == str(future.id)
    assert f", in {name}" in said["stack"]
    assert client.cancel([future]) == 1
    assert client.stack(future.id) is None
    said = piped(main, capfd, "stack", str(future.id), "--db", local.url, "--cluster", local.cluster, code=1)
    assert said["stack"] is None


def test_a_stopped_process_and_one_without_a_handler_say_why(client: Client, tmp_path: Path) -> None:
    def stop(path: str) -> None:
        import os

        Path(path).touch()
        os.kill(os.getpid(), signal.SIGSTOP)

    def deaf(path: str) -> None:
        from futures_worker.worker.stacks import STACK_SIGNAL

        signal.signal(STACK_SIGNAL, signal.SIG_IGN)
        Path(path).touch()
        threading.Event().wait(600)

    stopped, unheard = (client.submit(one, str(tmp_path / one.__name__)) for one in (stop, deaf))
    begun(tmp_path / "stop")
    begun(tmp_path / "deaf")
    assert "doesn't say where it is: it is stopped" in (client.stack(stopped) or "")
    assert "has taken signal" in (client.stack(unheard) or "")
    assert client.cancel([stopped, unheard]) == 2


def test_a_worker_that_is_gone_is_named_and_not_waited_for(tmp_path: Path) -> None:
    cluster = LocalCluster(workers=1, slots=1)
    with cluster as client:
        future = client.submit(mark_and_wait, str(tmp_path / "begun"))
        begun(tmp_path / "begun")
        (worker,) = cluster.workers
        worker.kill()
        with pytest.raises(TimeoutError, match="has 0 of 1 workers after 0 s"):
            client.wait_for_workers(1, timeout=0)  # its row is still there
        with pytest.raises(MainspringError, match=rf"worker {worker.address}, which has future {future.id}"):
            client.stack(future)


def test_an_actor_tells_where_it_is(client: Client, tmp_path: Path) -> None:
    class Sleeper:
        def sleep(self, path: str) -> None:
            mark_and_wait(path)

    actor = client.actor(Sleeper)
    call = actor.sleep(str(tmp_path / "begun"))
    begun(tmp_path / "begun")
    for meant in (actor, call):
        assert ", in mark_and_wait" in (client.stack(meant) or "")
    client.kill_actor(actor)
