"""Whose trouble it is: the function's, the remote's, the database's or the Shell's; and what must not become whose."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import memo_functions as functions
import pytest
from dead_orchestrators import leave_pending

from fdb_schema import open_database
from idempotent_txn import run
from lease_locks import (
    DetachedSubprocessShell,
    LeaseManager,
    MemoizingPicklingRunner,
    MemoKeyError,
    RemoteError,
    RequiredResultNotFound,
    detached_shell,
    run_remote,
    samethread_shell,
    subprocess_shell,
)
from lease_locks.cli import memos
from lease_locks.errors import MemoUriError
from lease_locks.memo import counting, remote
from lease_locks.memo.counting import MICROSECONDS
from lease_locks.memo.functions import bind, load_failure
from lease_locks.memo.rows import invalidate
from lease_locks.memo.stored.addresses import Memo


@pytest.fixture
def locks() -> Iterator[LeaseManager]:
    with LeaseManager(open_database("memory:"), cluster="demo") as manager:
        yield manager


def runner_of(locks: LeaseManager, shell: Any = samethread_shell, **options: Any) -> MemoizingPicklingRunner:
    return MemoizingPicklingRunner(locks, shell=shell, pipeline_id="demo", **options)


def failure_row(runner: MemoizingPicklingRunner, function: Any, *args: Any) -> bytes | None:
    keys = runner.rows.keys(bind("demo", function, args, {}).memo)
    return run(runner.locks.db, lambda tr: tr.get(keys.failure).value)


def counts(runner: MemoizingPicklingRunner) -> dict[str, int]:
    runner.flush()
    found: Counter[str] = Counter()
    for _, _, page in runner.rows.runs(runner.locks.db, runner.run_id):
        for (_, kind), count in page.items():
            found[kind] += count
    del found[MICROSECONDS]
    return dict(found)


def exits(code: int) -> None:
    raise SystemExit(code)


def interrupted() -> None:
    raise KeyboardInterrupt


def in_a_thread(args: Any) -> Future[Any]:
    """A Shell in whose thread an interruption ends nothing but the remote."""
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(run_remote(args))
        except BaseException:
            future.set_result(130)

    threading.Thread(target=work).start()
    return future


def test_what_a_call_within_a_function_met_is_not_memoized_as_the_functions_failure(locks: LeaseManager) -> None:
    runner = runner_of(locks, rerun_exceptions=False)

    def inner() -> int:
        return 1

    def outer() -> int:
        with runner.require_all("computed elsewhere"):
            return runner.call(inner) + 1

    with pytest.raises(RequiredResultNotFound):
        runner.call(outer)
    assert failure_row(runner, outer) is None
    assert runner.inject(inner, (), 5)
    assert runner.call(outer) == 6


@pytest.mark.parametrize("function", [interrupted, lambda: exits(3)], ids=["KeyboardInterrupt", "SystemExit"])
def test_an_interrupted_remote_interrupts_nobody_and_is_not_memoized(
    locks: LeaseManager, function: Callable[[], None]
) -> None:
    runner = runner_of(locks, in_a_thread, rerun_exceptions=False)
    with pytest.raises(RemoteError, match=r"KeyboardInterrupt|SystemExit"):
        runner.call(function)
    assert failure_row(runner, function) is None
    assert locks.list("memo/") == [], "its lock is free at once"


@pytest.mark.parametrize("shell", [samethread_shell, subprocess_shell, detached_shell], ids=["same", "sub", "detached"])
def test_a_function_that_exits_is_told_the_same_by_every_shell(tmp_path: Path, shell: Any) -> None:
    with LeaseManager(f"embedded:{tmp_path / 'db'}", cluster="demo") as locks:
        runner = runner_of(locks, shell, rerun_exceptions=False)
        with pytest.raises(RemoteError, match="SystemExit: 3"):
            runner.call(exits, 3)
        assert failure_row(runner, exits, 3) is None
        assert locks.list("memo/") == [], "its lock is free at once"


def test_the_databases_trouble_is_not_the_functions_failure(
    locks: LeaseManager, marks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> Any:
        raise OSError("the network is down")

    runner = runner_of(locks, rerun_exceptions=False)
    monkeypatch.setattr(remote, "store", refuse)
    with pytest.raises(OSError, match="network"):
        runner.call(functions.square, 3, str(marks))
    assert failure_row(runner, functions.square, 3, str(marks)) is None
    monkeypatch.undo()
    assert runner.call(functions.square, 3, str(marks)) == 9


def test_a_function_that_fails_is_memoized_where_failures_are(locks: LeaseManager, marks: Path) -> None:
    runner = runner_of(locks, rerun_exceptions=False)
    for _ in range(3):
        with pytest.raises(functions.Refusal):
            runner.call(functions.fails, str(marks))
    assert len(list(marks.iterdir())) == 1
    assert failure_row(runner, functions.fails, str(marks)) is not None


class Bomb:
    """Unpickling it is running somebody's code."""

    went_off = 0

    def __reduce__(self) -> Any:
        return (_go_off, ())


def _go_off() -> Bomb:
    Bomb.went_off += 1
    return Bomb()


def test_a_remote_without_the_lock_unpickles_nothing(locks: LeaseManager) -> None:
    seen: list[int] = []

    def shell(args: Any) -> None:
        locks.force_release(locks.list("memo/")[0].name, reason="test")
        before = Bomb.went_off
        assert run_remote(args) == 47
        seen.append(Bomb.went_off - before)
        raise OSError("enough")

    with pytest.raises(OSError, match="enough"):
        runner_of(locks, shell).call(functions.length, Bomb())
    assert seen == [0]


def test_reading_state_unpickles_nothing(locks: LeaseManager, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = runner_of(locks)
    uri = bind("demo", functions.length, ([Bomb()],), {}).memo.uri
    assert runner.call(functions.length, [Bomb()]) == 1
    before = Bomb.went_off

    def refuse(*args: Any, **options: Any) -> Any:
        raise AssertionError("unpickled")

    monkeypatch.setattr(pickle, "loads", refuse)
    described = memos.describe(locks, Memo.from_uri(uri))
    assert described["result"]["bytes"] > 0
    assert list(runner.rows.runs(locks.db))
    assert Bomb.went_off == before


def test_a_failure_whose_pickle_is_spoiled_is_carried_as_text() -> None:
    error = load_failure(b"no pickle", "module.Error: why", "the traceback")
    assert isinstance(error, RemoteError)
    assert "module.Error: why" in str(error)
    assert "the traceback" in str(error.__cause__)


# --- adoption


class Pending:
    """A Shell whose remote never starts."""

    def __init__(self, handle: str) -> None:
        self.handle = handle

    def __call__(self, args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.handle = self.handle  # type: ignore[attr-defined]
        return future


@pytest.mark.parametrize("returned", [0, subprocess.CompletedProcess([], 0)], ids=["an exit code", "a process"])
def test_what_a_shell_must_not_return_is_named(locks: LeaseManager, returned: Any) -> None:
    def wrong(args: Any) -> Any:
        return returned

    runner = runner_of(locks, wrong)
    with pytest.raises(TypeError, match=f"the Shell wrong returned a {type(returned).__name__}: a Shell returns None"):
        runner.call(str.upper, "a")
    assert runner_of(locks).call(str.upper, "a") == "A", "the lock is free"


def test_a_handle_means_nothing_to_another_shell(locks: LeaseManager, marks: Path) -> None:
    asked: list[str] = []

    class Other:
        def __call__(self, args: Any) -> None:
            samethread_shell(args)

        def attach(self, handle: str) -> None:
            asked.append(handle)

    leave_pending(locks, Pending("memo-0001"), functions.square, 4, str(marks))
    assert runner_of(locks, Other()).call(functions.square, 4, str(marks)) == 16
    assert asked == []


@pytest.mark.parametrize("handle", ["", "memo-0001", "a:b", "::", "x:1:2:3"])
def test_a_handle_that_is_none_of_its_own_is_no_work_to_a_detached_shell(handle: str) -> None:
    assert DetachedSubprocessShell().attach(handle) is None
    assert not DetachedSubprocessShell().cancel(handle)


# --- forgetting


def test_what_is_forgotten_goes_with_its_blobs_in_one_transaction(locks: LeaseManager) -> None:
    runner = runner_of(locks)
    assert len(runner.call(functions.big, 300_000)) == 300_000
    keys = runner.rows.keys(bind("demo", functions.big, (300_000,), {}).memo)
    blobs = locks.space.cluster.blobs.key()
    assert list(locks.db.get_range_startswith(blobs)) != []
    run(locks.db, invalidate, locks.space, keys)
    assert list(locks.db.get_range_startswith(blobs)) == []


# --- bad input


@pytest.mark.parametrize("uri", ["", "x", "memo:a/b", "memo:a/b/zz", "file:a/b/00", "memo:a/b/00/c"])
def test_what_is_no_memo_uri_is_named(uri: str) -> None:
    with pytest.raises(MemoUriError, match="no memo URI"):
        Memo.from_uri(uri)


def test_an_argument_nested_too_deeply_is_named() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(MemoKeyError, match=r"'data' of .*nested too deeply"):
        bind("demo", functions.length, (deep,), {})


def test_a_builtin_that_does_not_tell_its_arguments_is_named() -> None:
    with pytest.raises(MemoKeyError, match="wrap it in a function"):
        bind("demo", min, (3, 2), {})


def test_lambdas_that_close_over_different_numbers_are_different_calls(locks: LeaseManager) -> None:
    runner = runner_of(locks)

    def adder(n: int) -> Callable[[int], int]:
        return lambda x: x + n

    assert [runner.call(adder(n), 1) for n in (1, 2, 1)] == [2, 3, 2]
    assert counts(runner) == {"executed": 2, "hit": 1}


def test_counts_that_can_not_be_written_fail_no_call_and_are_kept(
    locks: LeaseManager, marks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = runner_of(locks)
    counting = runner._counting

    def refuse(*args: Any) -> None:
        raise OSError("the network is down")

    monkeypatch.setattr(counting, "_write", refuse)
    assert runner.call(functions.square, 3, str(marks)) == 9
    monkeypatch.undo()
    runner.flush()
    assert counts(runner) == {"executed": 1}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_counts_its_own_calls_and_waits_for_no_thread_of_its_parent(
    tmp_path: Path, marks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "FLUSH_SECONDS", 600.0)
    with LeaseManager(f"embedded:{tmp_path}/db", cluster="demo") as locks:
        runner = runner_of(locks)
        assert [runner.call(functions.square, 3, str(marks)) for _ in range(2)] == [9, 9]
        with runner._counting._mutex, runner._counting._flushing:
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                code = 1
                try:
                    assert runner.call(functions.square, 3, str(marks)) == 9
                    runner.flush()
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert counts(runner) == {"executed": 1, "hit": 2}
