"""An invocation takes no longer than it may, and can be cancelled: its remote ends, its lock is free, whoever waits is told."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import memo_functions as functions
import pytest
from lease_processes import DEADLINE, eventually
from memo_records import attempts
from typer.testing import CliRunner

from fdb_schema import open_database
from idempotent_txn import run
from lease_locks import (
    MAINTAIN_LOCKS,
    InvocationCancelled,
    InvocationTimedOut,
    LeaseManager,
    LeaseNotFoundError,
    MemoizingPicklingRunner,
    NoResultAfterShell,
    detached_shell,
    samethread_shell,
    subprocess_shell,
)
from lease_locks.cli import app
from lease_locks.memo.calling.cancelling import cancel
from lease_locks.memo.functions import Call, bind
from lease_locks.memo.rows import change_attempt
from lease_locks.memo.shells import remote_command, remote_environment


@pytest.fixture
def locks(shared_url: str) -> Iterator[LeaseManager]:
    with LeaseManager(shared_url, cluster="demo", ttl=3.0) as manager:
        yield manager


def runner_of(locks: LeaseManager, shell: Any = subprocess_shell, **options: Any) -> MemoizingPicklingRunner:
    return MemoizingPicklingRunner(locks, shell=shell, pipeline_id="demo", **options)


def remote_pids(marks: Path) -> list[int]:
    """Of the remotes that began."""
    return sorted(int(name.split("-")[0]) for name in os.listdir(marks))


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def started(runner: MemoizingPicklingRunner) -> bool:
    return any(attempt.state == "started" and attempt.handle for attempt in attempts(runner))


@pytest.mark.parametrize("shell", [subprocess_shell, detached_shell], ids=["subprocess", "detached"])
def test_an_invocation_that_takes_longer_than_it_may_is_ended_and_can_be_made_again(
    locks: LeaseManager, marks: Path, tmp_path: Path, shell: Any
) -> None:
    gate = tmp_path / "gate"
    runner = runner_of(locks, shell)
    limited = runner.memoize(max_hold=4.0)(functions.slow_square)
    with pytest.raises(
        InvocationTimedOut, match=r"memo:demo/.* ran for its max_hold; its remote (was cancelled|had ended)"
    ):
        limited(6, str(marks), str(gate))
    assert locks.list("memo/") == []
    for pid in remote_pids(marks):
        eventually(lambda pid=pid: gone(pid), "the remote ends")  # type: ignore[misc]
    assert [attempt.state for attempt in attempts(runner)] == ["gone"]
    gate.touch()
    assert runner.call(functions.slow_square, 6, str(marks), str(gate)) == 36


class Behind(MemoizingPicklingRunner):
    """Its clock says that the time is over when its remote, by its own, has ended itself."""

    def _wait(self, keys: Any, lease: Any, future: Any) -> Any:
        lease.part.holding.hold_until += DEADLINE
        return super()._wait(keys, lease, future)


@pytest.mark.parametrize("function", [functions.slow_square, functions.tidy])
def test_a_remote_that_ends_itself_says_why(
    locks: LeaseManager, marks: Path, tmp_path: Path, function: Callable[..., Any]
) -> None:
    runner = Behind(locks, shell=detached_shell, pipeline_id="demo", max_hold=3.0)
    arguments = (6, str(marks), str(tmp_path / "gate")) if function is functions.slow_square else (str(marks),)
    with pytest.raises(InvocationTimedOut, match=r"ran for its max_hold; its remote (had ended|was cancelled)"):
        runner.call(function, *arguments)
    assert [attempt.state for attempt in attempts(runner)] == ["gone"]
    assert locks.list("memo/") == []


class Leaving(MemoizingPicklingRunner):
    """Ends its wait once the remote runs, as an orchestrator that dies."""

    def _wait(self, *args: Any) -> Any:
        eventually(lambda: started(self), "the remote runs")
        raise KeyboardInterrupt


def test_a_hung_remote_without_an_orchestrator_blocks_callers_no_longer_than_it_may_take(
    locks: LeaseManager, shared_url: str, marks: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with LeaseManager(shared_url, cluster="demo", ttl=3.0) as first:
        runner = Leaving(first, shell=detached_shell, pipeline_id="demo", max_hold=6.0)
        with pytest.raises(KeyboardInterrupt):
            runner.call(functions.slow_square, 6, str(marks), str(gate))
    again = runner_of(locks, detached_shell).submit(functions.slow_square, 6, str(marks), str(gate))
    (hung,) = [a for a in attempts(runner_of(locks)) if a.state == "started"]
    eventually(lambda: gone(int(hung.handle.split(":")[1])), "the hung remote is ended by its successor")
    gate.touch()
    assert again.result(DEADLINE) == 36


@pytest.mark.parametrize("how", ["the runner", "its future"])
def test_a_cancelled_invocation_ends_its_remote_and_tells_all_who_wait(
    locks: LeaseManager, shared_url: str, marks: Path, tmp_path: Path, how: str
) -> None:
    arguments = 6, str(marks), str(tmp_path / "gate")
    with LeaseManager(shared_url, cluster="demo") as second:
        runner = runner_of(locks)
        future = runner.submit(functions.slow_square, *arguments)
        eventually(lambda: started(runner) and remote_pids(marks), "the remote runs")
        waiting = runner_of(second).submit(functions.slow_square, *arguments)
        name = bind("demo", functions.slow_square, arguments, {}).memo.lock_name
        eventually(lambda: (info := locks.read(name)) is not None and len(info.waiters) == 1, "another waits")
        assert future.cancel() if how == "its future" else runner_of(second).cancel(functions.slow_square, *arguments)
        for each in (future, waiting):
            with pytest.raises(InvocationCancelled, match="was cancelled: by"):
                each.result(DEADLINE)
        eventually(lambda: gone(remote_pids(marks)[0]), "the remote ends")
        assert locks.list("memo/") == []
        assert not runner.cancel(functions.slow_square, *arguments)
        assert len(remote_pids(marks)) == 1


def unreachable_shell(args: Any) -> Future[int]:
    """Starts a process that it can't end, as a queue that has given it to somebody."""
    process = subprocess.Popen(remote_command(args), env=remote_environment(), stdin=subprocess.DEVNULL)
    future: Future[int] = Future()
    threading.Thread(target=lambda: future.set_result(process.wait()), daemon=True).start()
    return future


def test_a_remote_that_no_shell_can_reach_ends_itself_when_it_is_cancelled(
    locks: LeaseManager, marks: Path, tmp_path: Path
) -> None:
    runner = runner_of(locks, unreachable_shell)
    future = runner.submit(functions.slow_square, 6, str(marks), str(tmp_path / "gate"))
    eventually(lambda: remote_pids(marks), "the remote runs")
    assert future.cancel()
    with pytest.raises(InvocationCancelled):
        future.result(DEADLINE)
    eventually(lambda: gone(remote_pids(marks)[0]), "the remote ends")
    assert [attempt.state for attempt in attempts(runner)] == ["cancelled"]


def test_a_remote_that_no_shell_can_reach_ends_itself_when_its_time_is_over(
    locks: LeaseManager, marks: Path, tmp_path: Path
) -> None:
    limited = runner_of(locks, unreachable_shell).memoize(max_hold=4.0)(functions.slow_square)
    with pytest.raises(InvocationTimedOut, match="can't be cancelled by its Shell"):
        limited(6, str(marks), str(tmp_path / "gate"))
    for pid in remote_pids(marks):
        eventually(lambda pid=pid: gone(pid), "the remote ends")  # type: ignore[misc]


def test_a_lease_that_a_person_frees_ends_no_remote_whose_result_counts(
    locks: LeaseManager, marks: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    arguments = 6, str(marks), str(gate)
    runner = runner_of(locks, unreachable_shell)
    future = runner.submit(functions.slow_square, *arguments)
    eventually(lambda: remote_pids(marks), "the remote runs")
    locks.force_release(bind("demo", functions.slow_square, arguments, {}).memo.lock_name, reason="test")
    gate.touch()
    assert future.result(DEADLINE) == 36


def command(*words: str) -> Any:
    return CliRunner().invoke(app, ["cancel", *words])


@pytest.mark.parametrize("first", ["the command", "the remote"])
def test_the_command_cancels_what_is_computed_and_ends_a_process_of_this_host(
    locks: LeaseManager, shared_url: str, marks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    where = "--db", shared_url, "--cluster", "demo"
    with LeaseManager(shared_url, cluster="demo") as orchestrating:
        runner = Leaving(orchestrating, shell=detached_shell, pipeline_id="demo")
        with pytest.raises(KeyboardInterrupt):
            runner.call(functions.slow_square, 6, str(marks), str(tmp_path / "gate"))
    memo = bind("demo", functions.slow_square, (6, str(marks), str(tmp_path / "gate")), {}).memo
    (pid,) = [int(a.handle.split(":")[1]) for a in attempts(runner_of(locks)) if a.state == "started"]
    assert command(memo.uri, "--dry-run", *where).output == "would cancel 1 invocation\n"
    assert not gone(pid)
    if first == "the remote":  # it hears of it, and ends itself, before the command gets to it

        def cancelled(*meant: Any) -> Any:
            found = cancel(*meant)
            eventually(lambda: gone(pid), "the remote ends itself")
            return found

        monkeypatch.setattr("lease_locks.cli.forgetting.cancel", cancelled)
    done = json.loads(command(memo.uri.rpartition("/")[0], "--json", *where).output)
    assert (done["invocations"], done["cancelled"], len(done["ended_here"])) == (1, True, 1)
    eventually(lambda: gone(pid), "the remote ends")
    assert locks.list("memo/") == []
    assert isinstance(command(memo.uri, *where).exception, LeaseNotFoundError), "nobody computes it any more"


def test_what_another_process_cancels_is_ended_by_the_shell_of_its_orchestrator(
    locks: LeaseManager, shared_url: str, marks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lease_locks.cli.forgetting.end_process", lambda handle: False)  # as on another host
    asked: list[str] = []

    class Shell:
        def __call__(self, args: Any) -> Future[int]:
            future: Future[int] = Future()
            future.handle = "job-7"  # type: ignore[attr-defined]
            return future

        def cancel(self, handle: str) -> bool:
            asked.append(handle)
            return True

    runner = runner_of(locks, Shell())
    future = runner.submit(functions.square, 6, str(marks))
    eventually(lambda: any(attempt.handle for attempt in attempts(runner)), "the Shell was called")
    done = command(future.memo_uri, "--db", shared_url, "--cluster", "demo")
    assert done.output == "cancelled 1 invocation\n"
    with pytest.raises(InvocationCancelled, match="was cancelled: by"):
        future.result(DEADLINE)
    assert asked == ["job-7"]
    assert runner_of(locks, samethread_shell).call(functions.square, 6, str(marks)) == 36


def test_who_calls_next_ends_what_was_cancelled_and_had_no_orchestrator(locks: LeaseManager, marks: Path) -> None:
    asked: list[str] = []

    class Shell:
        def __call__(self, args: Any) -> None:
            samethread_shell(args)

        def cancel(self, handle: str) -> bool:
            asked.append(handle)
            return True

    runner = runner_of(locks, Shell())
    call = bind("demo", functions.square, (6, str(marks)), {})
    lease = locks.acquire(call.memo.lock_name)
    keys = runner.rows.keys(call.memo)
    changes = {"state": "started", "handle": "job-7", "shell": "Shell"}
    run(locks.db, lambda tr: change_attempt(tr, keys, lease.token, **changes))
    assert len(cancel(locks, call.memo)) == 1
    assert runner.call(functions.square, 6, str(marks)) == 36
    assert asked == ["job-7"]


@pytest.fixture
def at_dump(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], Any]]:
    """What is done when the lock is had and the Shell isn't called yet, by each who comes so far."""
    todo: list[Callable[[], Any]] = []
    dump = Call.dump

    def dumped(call: Call) -> bytes:
        todo.pop(0)()
        return dump(call)

    monkeypatch.setattr(Call, "dump", dumped)
    return todo


def test_what_is_cancelled_before_its_remote_is_started_never_runs(
    at_dump: list[Callable[[], Any]], marks: Path
) -> None:
    with LeaseManager(open_database("memory:"), cluster="demo") as locks:
        cancelled: list[bool] = []
        call = functions.square, 3, str(marks)
        runner = runner_of(locks, samethread_shell)
        at_dump += [lambda: cancelled.append(runner.cancel(*call)), lambda: None]
        with pytest.raises(InvocationCancelled, match="was cancelled: by"):
            runner.call(*call)
    assert cancelled == [True]
    assert remote_pids(marks) == []


def test_a_limit_that_is_over_before_its_remote_is_started_is_told(at_dump: list[Callable[[], Any]]) -> None:
    with LeaseManager(open_database("memory:"), cluster="demo") as locks:
        at_dump.append(lambda: eventually(lambda: not locks.list("memo/"), "the limit is over"))
        with pytest.raises(InvocationTimedOut):
            runner_of(locks, samethread_shell, max_hold=0.1).call(functions.length, b"abc")


def test_a_limit_is_seconds(locks: LeaseManager) -> None:
    for wrong in (0, -1, float("nan"), "1"):
        with pytest.raises(ValueError, match="max_hold"):
            runner_of(locks, max_hold=wrong)
        with pytest.raises(ValueError, match="max_hold"):
            runner_of(locks).memoize(max_hold=wrong)(functions.length)


def test_a_function_of_this_thread_is_not_ended_and_its_value_counts() -> None:
    with LeaseManager(open_database("memory:"), cluster="demo") as locks:
        runner = runner_of(locks, samethread_shell, max_hold=2.0)

        def slow(x: int) -> int:
            for lease in locks.session.ledger.parts:
                assert lease.lost.wait(DEADLINE)
            return x

        assert runner.call(slow, 5) == 5
        assert runner.call(slow, 5) == 5


def test_a_limit_too_short_to_begin_is_an_error_not_another_try() -> None:
    shells: list[Any] = []

    def shell(args: Any) -> None:
        shells.append(args)
        held = list(locks.session.ledger.parts)
        for lease in held:
            assert lease.lost.wait(DEADLINE)
            while locks.read(lease.name) is not None:  # until then a remote may still join the grant, and be in time
                time.sleep(0.01)
        if held:  # else it was over before this began, and a remote might still join the grant and be in time
            samethread_shell(args)

    with LeaseManager(open_database("memory:"), cluster="demo") as locks:
        with pytest.raises(InvocationTimedOut, match="can't be cancelled by its Shell"):
            runner_of(locks, shell, max_hold=0.2).call(functions.length, b"abc")
        assert len(shells) <= 1


# --- what ended a remote, and where a submitted call runs


def killed(marks: str) -> None:
    functions.mark(marks)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_remote_that_died_of_a_signal_is_said_to_have(locks: LeaseManager, marks: Path) -> None:
    runner = runner_of(locks)
    with pytest.raises(NoResultAfterShell, match="died of signal 9, SIGKILL"):
        runner.call(killed, str(marks))
    with pytest.raises(NoResultAfterShell, match="exit code is 3"):
        runner.call(functions.dies, str(marks))


def test_a_submitted_call_has_the_context_of_who_submitted_it(locks: LeaseManager) -> None:
    seen: list[bool] = []

    def shell(args: Any) -> None:
        seen.append(MAINTAIN_LOCKS())
        samethread_shell(args)

    with MAINTAIN_LOCKS.set_local(False):
        assert runner_of(locks, shell).submit(functions.length, b"abc").result(DEADLINE) == 3
    assert seen == [False]


class Telling(MemoizingPicklingRunner):
    """Its calls return how long they might have taken."""

    def _made(self, call: Call, max_hold: float | None) -> Any:
        return max_hold


class Napper:
    def nap(self, seconds: float) -> float:
        return seconds


def test_the_limit_of_a_function_holds_however_it_is_called(
    locks: LeaseManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = Telling(locks, shell=samethread_shell, pipeline_id="demo", max_hold=9.0)
    limited = runner.memoize(max_hold=4.0)(functions.length)
    assert limited(b"a") == limited.submit(b"a").result(DEADLINE) == runner.call(limited, b"a") == 4.0
    assert runner.submit(limited, b"a").result(DEADLINE) == runner.call(functools.partial(limited, b"a")) == 4.0
    assert runner.peek(limited, b"a").invoke() == runner.call(runner.memoize(limited), b"a") == 4.0
    assert runner.memoize(max_hold=2.0)(limited)(b"a") == 2.0
    monkeypatch.setattr(Napper, "nap", runner.memoize(max_hold=3.0)(Napper.nap))
    assert runner.call(Napper().nap, 1) == Napper().nap(1) == 3.0
    assert runner.call(functions.length, b"a") == 9.0
