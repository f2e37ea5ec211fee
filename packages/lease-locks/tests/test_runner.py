"""The runner, statement by statement of the document that started it; each test is named after its statement."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import memo_functions as functions
import pytest
from lease_processes import DEADLINE, children, eventually
from memo_records import attempts

from fdb_schema import open_database
from idempotent_txn import run
from lease_locks import (
    MAINTAIN_LOCKS,
    DetachedSubprocessShell,
    LeaseManager,
    MemoizingPicklingRunner,
    NoResultAfterShell,
    RemoteError,
    RequiredResultNotFound,
    Unmemoized,
    run_remote,
    samethread_shell,
    subprocess_shell,
)
from lease_locks.grants.tokens import FencingToken
from lease_locks.memo.counting import MICROSECONDS
from lease_locks.memo.functions import bind
from lease_locks.waiting import threads


@pytest.fixture
def shared_locks(shared_url: str) -> Iterator[LeaseManager]:
    with LeaseManager(shared_url, cluster="demo") as manager:
        yield manager


def runner_of(locks: LeaseManager, shell: Any = samethread_shell, **options: Any) -> MemoizingPicklingRunner:
    return MemoizingPicklingRunner(locks, shell=shell, pipeline_id="demo", **options)


def executions(folder: Path) -> int:
    return len(os.listdir(folder))


def counts(runner: MemoizingPicklingRunner) -> dict[str, int]:
    runner.flush()
    found: dict[str, int] = {}
    for _, _, page in runner.rows.runs(runner.locks.db, runner.run_id):
        for (_, kind), count in page.items():
            if kind != MICROSECONDS:
                found[kind] = found.get(kind, 0) + count
    return found


# --- "No configuration or code changes are necessary"; "baked directly into the MemoizingPicklingRunner"


def test_a_result_is_computed_once_and_then_found(locks: LeaseManager, marks: Path) -> None:
    runner = runner_of(locks)
    assert runner.call(functions.square, 7, str(marks)) == 49
    assert runner.call(functions.square, 7, str(marks)) == 49
    assert runner.call(functions.square, 8, str(marks)) == 64
    assert executions(marks) == 2
    assert locks.list("memo/") == []


def test_memoize_wraps_a_function_and_keeps_its_face(locks: LeaseManager) -> None:
    runner = runner_of(locks)
    calls: list[int] = []

    @runner.memoize
    def train(x: int, lr: float = 0.1) -> float:
        """Trains."""
        calls.append(x)
        return x * lr

    assert train.__name__ == "train"
    assert train.__doc__ == "Trains."
    assert train(10) == train(10, lr=0.1) == train(x=10, lr=0.1) == 1.0
    assert train(10, 0.2) == 2.0
    assert calls == [10, 10]


# --- "prevent separate orchestrators from starting remote invocations if one already has started"


def test_separate_orchestrators_start_one_invocation(any_db: Any, marks: Path) -> None:
    results: list[int] = []
    shells: list[str] = []

    def shell(args: Any) -> None:
        shells.append(args[0])
        time.sleep(0.2)
        samethread_shell(args)

    def orchestrate() -> None:
        with LeaseManager(any_db, cluster="demo") as locks:
            results.append(runner_of(locks, shell).call(functions.square, 5, str(marks)))

    threads = [threading.Thread(target=orchestrate) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert results == [25] * 6
    assert executions(marks) == 1
    assert len(shells) == 1, "who doesn't hold the lock calls no Shell"


ORCHESTRATE = """
import os, memo_functions as functions
locks = LeaseManager(sys.argv[1], cluster="demo", ttl=float(sys.argv[2]))
shell = {"subprocess": subprocess_shell, "detached": detached_shell, "samethread": samethread_shell}[sys.argv[3]]
runner = MemoizingPicklingRunner(locks, shell=shell, pipeline_id="demo")
say("ready")
line = listen().split()
name, args = line[0], line[1:]
args = [int(a) if a.isdigit() else a for a in args]
try:
    say("value", runner.call(getattr(functions, name), *args))
except Exception as error:
    say("raised", type(error).__name__)
listen()
"""


# --- "allow orchestrators to resume their previously-started remote invocations after exiting"
# --- "if the orchestrator itself dies, then the lock will not expire until after the remote side exits"


def test_a_restarted_orchestrator_resumes_the_invocation_of_a_killed_one(
    shared_url: str, shared_locks: LeaseManager, marks: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with children(ORCHESTRATE, ORCHESTRATE, url=shared_url, args=("3", "detached")) as [first, second]:
        first.hear()
        first.tell(f"slow_square 6 {marks} {gate}")
        eventually(lambda: executions(marks) == 1, "the remote started")
        first.signal(signal.SIGKILL)
        second.hear()
        second.tell(f"slow_square 6 {marks} {gate}")
        name = shared_locks.list("memo/")[0].name
        eventually(lambda: len((shared_locks.read(name) or pytest.fail("not held")).waiters) == 1, "the second waits")
        time.sleep(4)  # longer than the ttl of 3 s: the remote alone maintains it
        info = shared_locks.read(name)
        assert info is not None
        assert [m.role for m in info.maintainers if m.pid != first.process.pid] == ["remote"]
        gate.touch()
        assert second.hear() == "value 36"
        assert executions(marks) == 1
        assert shared_locks.read(name) is None


# --- known limitation "delayed remote maintenance + dying orchestrators", and what replaces it: adoption


DELAYED = """
import subprocess, memo_functions as functions
from lease_locks.memo.shells import remote_command, remote_environment
from concurrent.futures import Future

class Queue:
    'A cluster with a queue: a remote starts when its gate is there, whoever asked for it.'
    def __call__(self, args):
        import shlex
        gate, command = sys.argv[3], " ".join(shlex.quote(a) for a in remote_command(args))
        process = subprocess.Popen(
            ["sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.02; done; exec {command}"],
            env=remote_environment(), start_new_session=True)
        future = Future()
        future.handle = str(process.pid)
        say("queued", process.pid)
        return future
    if sys.argv[4] == "adoptable":
        def attach(self, handle):
            say("attached", handle)
            future = Future()
            def follow():
                while os.path.exists(f"/proc/{handle}"):
                    time.sleep(0.02)
                future.set_result(None)
            threading.Thread(target=follow, daemon=True).start()
            return future

locks = LeaseManager(sys.argv[1], cluster="demo", ttl=float(sys.argv[2]))
runner = MemoizingPicklingRunner(locks, shell=Queue(), pipeline_id="demo")
say("ready")
x, folder = listen().split()
say("value", runner.call(functions.square, int(x), folder))
listen()
"""


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def test_a_pending_remote_of_a_dead_orchestrator_is_adopted(shared_url: str, marks: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    pids: list[int] = []
    try:
        with children(DELAYED, DELAYED, url=shared_url, args=("30", str(gate), "adoptable")) as [first, second]:
            for child in (first, second):
                assert child.hear() == "ready"
            first.tell(f"9 {marks}")
            pid = first.hear().split()[1]
            pids.append(int(pid))
            time.sleep(0.5)  # its handle is stored just after
            first.signal(signal.SIGKILL)
            first.process.wait(DEADLINE)
            second.tell(f"9 {marks}")
            assert second.hear() == f"attached {pid}", "no Shell was called"
            gate.touch()
            assert second.hear() == "value 81"
            assert executions(marks) == 1
    finally:
        for pid_ in pids:
            _kill_group(pid_)


def test_without_attach_the_last_orchestrator_wins_and_the_late_remote_is_refused(
    shared_url: str, shared_locks: LeaseManager, marks: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    pids: list[int] = []
    try:
        with children(DELAYED, DELAYED, url=shared_url, args=("30", str(gate), "plain")) as [first, second]:
            for child in (first, second):
                assert child.hear() == "ready"
            first.tell(f"9 {marks}")
            pids.append(int(first.hear().split()[1]))
            first.signal(signal.SIGKILL)
            first.process.wait(DEADLINE)
            second.tell(f"9 {marks}")
            word, pid = second.hear().split()
            pids.append(int(pid))
            assert word == "queued", "a remote of its own"
            gate.touch()
            assert second.hear() == "value 81"
            runner = runner_of(shared_locks)
            eventually(lambda: sorted(a.state for a in attempts(runner)) == ["ok", "stolen"], "the late one is refused")
            assert executions(marks) == 1
    finally:
        for pid_ in pids:
            _kill_group(pid_)


def test_a_remote_without_the_lock_exits_47_and_touches_no_outcome(locks: LeaseManager, marks: Path) -> None:
    given: list[Any] = []

    def shell(args: Any) -> None:
        given.append(list(args))
        locks.force_release(bind("demo", functions.square, (3, str(marks)), {}).memo.lock_name, reason="test")
        given.append(run_remote(args))
        if len(given) > 2:
            pytest.fail("only the first remote is robbed")

    robbed = runner_of(locks, shell)
    keys = robbed.rows.keys(bind("demo", functions.square, (3, str(marks)), {}).memo)
    rerun = threading.Thread(target=lambda: robbed.call(functions.square, 3, str(marks)), daemon=True)
    robbed.shell = lambda args: (shell(args), setattr(robbed, "shell", samethread_shell))[0]  # type: ignore[func-returns-value]
    rerun.start()
    rerun.join(DEADLINE)
    assert given[1] == 47
    assert executions(marks) == 1, "its live orchestrator went back, acquired again and called the Shell again"
    assert run(locks.db, lambda tr: tr.get(keys.failure).value) is None
    states = sorted(a.state for a in attempts(robbed))
    assert states == ["ok", "stolen"]


# --- "looking for an existing result, prior to passing control to the Shell"


def test_the_order_is_look_acquire_shell(locks: LeaseManager, marks: Path) -> None:
    seen: list[tuple[int, bool]] = []

    def shell(args: Any) -> None:
        name = bind("demo", functions.square, (2, str(marks)), {}).memo.lock_name
        seen.append((executions(marks), locks.read(name) is not None))
        samethread_shell(args)

    runner = runner_of(locks, shell)
    runner.call(functions.square, 2, str(marks))
    runner.call(functions.square, 2, str(marks))
    assert seen == [(0, True)], "once, before the function and under the lock"


def test_a_waiter_returns_the_result_soon_after_it_is_there(any_db: Any, marks: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with LeaseManager(any_db, cluster="demo", ttl=100.0) as locks:
        runner = runner_of(locks)
        futures = [runner.submit(functions.slow_square, 4, str(marks), str(gate)) for _ in range(8)]
        name = bind("demo", functions.slow_square, (4, str(marks), str(gate)), {}).memo.lock_name
        eventually(lambda: (i := locks.read(name)) is not None and len(i.waiters) == 7, "seven wait")
        gate.touch()
        assert [future.result(DEADLINE) for future in futures] == [16] * 8
        assert executions(marks) == 1
        assert counts(runner) == {"executed": 1, "awaited": 7}
        lock = locks.space.lock(name)
        eventually(lambda: not list(any_db.get_range(lock.queue, lock.rows_end)), "nobody left a place behind")


# --- "the lock should be maintained by the acquirer": MAINTAIN_LOCKS


def test_maintain_locks_is_on_and_switched_by_config_and_both_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAINTAIN_LOCKS() is True
    for variable in ("MAINSPRING_MAINTAIN_LOCKS", "THDS_MOPS_PURE_ORCHESTRATOR_MAINTAIN_LOCKS"):
        monkeypatch.setenv(variable, "0")
        assert MAINTAIN_LOCKS() is False
        monkeypatch.delenv(variable)
    try:
        MAINTAIN_LOCKS.set_global(False)
        assert MAINTAIN_LOCKS() is False
        with MAINTAIN_LOCKS.set_local(True):
            assert MAINTAIN_LOCKS() is True
        assert MAINTAIN_LOCKS() is False
    finally:
        MAINTAIN_LOCKS.set_global(None)
    assert MAINTAIN_LOCKS() is True


def test_an_unmaintained_lock_expires_and_a_late_remote_rearms_it(any_db: Any, marks: Path) -> None:
    """One computation remains one, though the orchestrator's heartbeats keep nothing."""
    late = threading.Event()
    joined: list[Any] = []

    def shell(args: Any) -> None:
        name = bind("demo", functions.square, (3, str(marks)), {}).memo.lock_name
        info = locks.read(name)
        assert info is not None
        assert info.maintainers == ()
        late.wait(DEADLINE)
        samethread_shell(args)
        joined.append(locks.history(name)[1].kind)

    with LeaseManager(any_db, cluster="demo", ttl=1.0) as locks, MAINTAIN_LOCKS.set_local(False):
        runner = runner_of(locks, shell)
        lost = threading.Timer(1.6, late.set)
        lost.start()
        assert runner.call(functions.square, 3, str(marks)) == 9
        assert joined == ["joined"], "it had expired for everybody, and was still its orchestrator's"
        assert executions(marks) == 1


# --- "when a Shell exits (whether successfully or unsuccessfully), the orchestrator will release the lock immediately"


def test_the_lock_is_released_and_the_exit_recorded_when_the_shell_raises(locks: LeaseManager, marks: Path) -> None:
    def shell(args: Any) -> None:
        raise OSError("no cluster")

    runner = runner_of(locks, shell)
    with pytest.raises(OSError, match="no cluster"):
        runner.call(functions.square, 3, str(marks))
    assert locks.list("memo/") == []
    assert [a.state for a in attempts(runner)] == ["gone"]
    runner.shell = samethread_shell
    assert runner.call(functions.square, 3, str(marks)) == 9
    assert all(a.shell_exit_us for a in attempts(runner) if a.state == "ok")


def test_a_shell_that_ends_without_an_outcome_says_so_and_frees_the_lock(
    shared_locks: LeaseManager, marks: Path
) -> None:
    runner = runner_of(shared_locks, subprocess_shell)
    with pytest.raises(NoResultAfterShell, match="lease-locks inspect memo:demo/"):
        runner.call(functions.dies, str(marks))
    assert shared_locks.list("memo/") == []


# --- failures


def test_a_failure_is_raised_with_its_type_and_the_remote_traceback(shared_locks: LeaseManager, marks: Path) -> None:
    runner = runner_of(shared_locks, subprocess_shell)
    with pytest.raises(functions.Refusal, match="it always fails") as failed:
        runner.call(functions.fails, str(marks))
    assert failed.value.code == 17
    assert "memo_functions.py" in str(failed.value.__cause__)


def test_a_failure_runs_again_unless_failures_are_memoized(locks: LeaseManager, marks: Path) -> None:
    runner = runner_of(locks)
    for _ in range(2):
        with pytest.raises(functions.Refusal):
            runner.call(functions.fails, str(marks))
    assert executions(marks) == 2
    remembering = runner_of(locks, rerun_exceptions=False)
    with pytest.raises(functions.Refusal):
        remembering.call(functions.fails, str(marks))
    assert executions(marks) == 2


@pytest.mark.parametrize(("policy", "runs"), [("share", 1), ("rerun", 4)])
def test_four_callers_of_a_failing_function(any_db: Any, marks: Path, tmp_path: Path, policy: str, runs: int) -> None:
    gate = tmp_path / "gate"
    with LeaseManager(any_db, cluster="demo") as locks:
        runner = runner_of(locks, on_awaited_error=policy)
        futures = [runner.submit(functions.fails, str(marks), str(gate)) for _ in range(4)]
        name = bind("demo", functions.fails, (str(marks), str(gate)), {}).memo.lock_name
        eventually(lambda: (i := locks.read(name)) is not None and len(i.waiters) == 3, "three wait")
        gate.touch()
        for future in futures:
            error = future.exception(DEADLINE)
            assert isinstance(error, functions.Refusal)
            assert "memo_functions.py" in str(error.__cause__)
        assert executions(marks) == runs


def test_an_exception_that_does_not_pickle_is_carried_as_text(locks: LeaseManager) -> None:
    class Local(Exception):
        def __init__(self) -> None:
            super().__init__("has a lock")
            self.lock = threading.Lock()

    def fail() -> None:
        raise Local

    with pytest.raises(RemoteError, match="has a lock"):
        runner_of(locks).call(fail)


# --- correctness never depends on the lock


def test_a_result_is_written_once(locks: LeaseManager, marks: Path) -> None:
    """A remote that lost its lock while it ran publishes only where there is no result."""
    call = bind("demo", functions.square, (5, str(marks)), {})

    def shell(args: Any) -> None:
        locks.force_release(call.memo.lock_name, reason="test")
        assert runner.inject(functions.square, (5, str(marks)), 26)
        samethread_shell(args)  # refused
        robbed.append(True)

    robbed: list[bool] = []
    runner = runner_of(locks, shell)
    assert runner.call(functions.square, 5, str(marks)) == 26
    assert robbed
    assert not runner.inject(functions.square, (5, str(marks)), 27)
    assert runner.call(functions.square, 5, str(marks)) == 26


def test_a_remote_robbed_while_it_runs_publishes_if_there_is_no_result(locks: LeaseManager) -> None:
    name: list[str] = []

    def compute() -> int:
        locks.force_release(name[0], reason="test")
        return 5

    runner = runner_of(locks)
    name.append(bind("demo", compute, (), {}).memo.lock_name)
    assert runner.call(compute) == 5
    (record,) = attempts(runner)
    assert record.note == "the lock was lost while it ran"


def test_a_remote_robbed_while_it_runs_never_publishes_its_failure(locks: LeaseManager) -> None:
    name: list[str] = []
    runs: list[int] = []

    def compute() -> int:
        runs.append(1)
        if len(runs) == 1:
            locks.force_release(name[0], reason="test")
            raise ValueError("robbed")
        return 6

    runner = runner_of(locks)
    call = bind("demo", compute, (), {})
    name.append(call.memo.lock_name)
    with pytest.raises(ValueError, match="robbed"):
        runner.call(compute)
    keys = runner.rows.keys(call.memo)
    assert run(locks.db, lambda tr: tr.get(keys.failure).value) is None


# --- memo keys


def test_equal_arguments_give_one_key_whatever_their_identity(locks: LeaseManager) -> None:
    runner = runner_of(locks)
    seen: list[Any] = []

    @runner.memoize
    def use(value: Any) -> str:
        seen.append(value)
        return repr(value)

    text = "".join(["ab", "cd"])
    pairs: list[tuple[Any, Any]] = [
        (("abcd", "abcd"), (text, "".join(["abc", "d"]))),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({3, 1, 2, "x"}, {"x", 2, 3, 1}),
        ([b"x" * 10, {"k": (1, 2)}], [bytes(bytearray(b"x" * 10)), {"k": (1, 2)}]),
        (Path("/a/b"), Path("/a") / "b"),
    ]
    for number, (left, right) in enumerate(pairs):
        assert left == right
        use(left)
        use(right)
        assert len(seen) == number + 1, (left, right)


def test_different_arguments_give_different_keys() -> None:
    values = [
        1,
        1.0,
        True,
        "1",
        b"1",
        (1,),
        [1],
        {1},
        frozenset({1}),
        {1: None},
        None,
        ((1,),),
        "",
        b"",
        (),
        [],
        -1,
        256,
    ]
    digests = {bind("p", functions.length, (value,), {}).memo.digest for value in values}
    assert len(digests) == len(values)


def test_positional_keyword_and_default_arguments_bind_alike() -> None:
    f = functions.with_default
    calls = [
        bind("p", f, (1,), {}),
        bind("p", f, (), {"x": 1}),
        bind("p", f, (1, 0.1), {}),
        bind("p", f, (1,), {"lr": 0.1}),
    ]
    assert len({call.memo for call in calls}) == 1
    assert bind("q", f, (1,), {}).memo != calls[0].memo


def test_a_function_logic_key_is_part_of_the_address() -> None:
    memo = bind("p", functions.keyed, (1,), {}).memo
    assert memo.function == "memo_functions--keyed@v2"


def test_a_value_that_contains_itself_has_a_key() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    other: list[Any] = [1]
    other.append(other)
    assert bind("p", functions.length, (loop,), {}).memo == bind("p", functions.length, (other,), {}).memo


# --- payloads


@pytest.mark.parametrize("size", [20_000, 25_000_000])
def test_large_arguments_and_results_round_trip_and_equal_content_is_stored_once(
    locks: LeaseManager, size: int
) -> None:
    runner = runner_of(locks)
    data = runner.call(functions.big, size)
    assert len(data) == size
    assert runner.call(functions.length, data) == size
    assert runner.call(functions.big, size) == data
    if size < 1_000_000:
        before = len(list(locks.db.get_range_startswith(locks.space.cluster.blobs.key())))
        other = MemoizingPicklingRunner(locks, shell=samethread_shell, pipeline_id="other")
        other.call(functions.length, data)
        chunks = [kv for kv in locks.db.get_range_startswith(locks.space.cluster.blobs.key()) if b"chunk" in kv.key]
        assert before
        assert len(chunks) == 2, "one for the result, one for the arguments of both calls"


# --- the rest of the runner


def test_peek_require_all_inject_invalidate(locks: LeaseManager, marks: Path) -> None:
    runner = runner_of(locks)
    missing = runner.peek(functions.square, 3, str(marks))
    assert isinstance(missing, Unmemoized)
    assert not missing
    with pytest.raises(RequiredResultNotFound, match="offline"), runner.require_all("offline"):
        runner.call(functions.square, 3, str(marks))
    assert executions(marks) == 0
    assert missing.invoke() == 9
    assert runner.peek(functions.square, 3, str(marks)) == 9
    with runner.require_all():
        assert runner.call(functions.square, 3, str(marks)) == 9
    assert runner.invalidate(functions.square, 3, str(marks)) == 1
    assert isinstance(runner.peek(functions.square, 3, str(marks)), Unmemoized)
    assert runner.inject(functions.square, (3, str(marks)), 10)
    runner.call(functions.square, 4, str(marks))
    assert runner.call(functions.square, 3, str(marks)) == 10
    assert runner.invalidate(functions.square) == 2
    assert runner.invalidate(functions.square) == 0


def test_counts_are_right(locks: LeaseManager, marks: Path) -> None:
    """The reference counted 1 execution and 3 hits as 1 call and no execution."""
    runner = runner_of(locks)
    for _ in range(4):
        runner.call(functions.square, 3, str(marks))
    with pytest.raises(functions.Refusal):
        runner.call(functions.fails, str(marks))
    assert counts(runner) == {"executed": 2, "hit": 3, "failed": 1}


def test_a_memoized_function_may_call_another(locks: LeaseManager) -> None:
    runner = runner_of(locks)

    @runner.memoize
    def inner(x: int) -> int:
        return x + 1

    @runner.memoize
    def outer(x: int) -> int:
        return inner(x) * 10

    assert outer(1) == 20
    assert counts(runner) == {"executed": 2}


def test_shells_run_the_remote_where_they_say(shared_locks: LeaseManager) -> None:
    pids = {
        shell: runner_of(shared_locks, shell).call(functions.identity_of_process, number)
        for number, shell in enumerate((samethread_shell, subprocess_shell, DetachedSubprocessShell()))
    }
    assert list(pids.values()).count(os.getpid()) == 1
    assert len(set(pids.values())) == 3


# --- defects of the reference that this package must not have


def test_defect_a_remote_that_starts_late_is_alive_by_its_join(any_db: Any) -> None:
    with LeaseManager(any_db, ttl=1.0) as locks, LeaseManager(any_db, ttl=1.0) as other:
        claim_lost = locks.acquire("a")
        locks.session.ledger.drop_key(claim_lost.part.key)  # its orchestrator died silently: nobody renews
        remote = other.join("a", claim_lost.writer_id)
        with pytest.raises(TimeoutError):
            locks.acquire("a", timeout=1.6)
        remote.check()


def test_defect_a_result_published_between_look_and_acquire_is_not_computed_again(
    any_db: Any, marks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LeaseManager(any_db, cluster="demo") as locks:
        runner = runner_of(locks)
        original = threads.drive
        once: list[bool] = []

        def drive(db: Any, steps: Any) -> Any:
            if not once:
                once.append(True)
                with LeaseManager(any_db, cluster="demo") as other:
                    assert runner_of(other).call(functions.square, 3, str(marks)) == 9
            return original(db, steps)

        monkeypatch.setattr(threads, "drive", drive)
        assert runner.call(functions.square, 3, str(marks)) == 9
        assert executions(marks) == 1


def test_defect_an_orphan_that_fails_frees_the_lock_at_once(
    shared_url: str, shared_locks: LeaseManager, marks: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with children(ORCHESTRATE, url=shared_url, args=("600", "detached")) as [orchestrator]:
        orchestrator.hear()
        orchestrator.tell(f"fails {marks} {gate}")
        eventually(lambda: executions(marks) == 1, "the remote runs")
        orchestrator.signal(signal.SIGKILL)
        gate.touch()
        eventually(lambda: shared_locks.list("memo/") == [], "long before 600 s")
        kinds = [
            e.kind
            for e in shared_locks.history(bind("demo", functions.fails, (str(marks), str(gate)), {}).memo.lock_name)
        ]
        assert kinds == ["acquired", "joined", "released"]


def test_a_remote_of_another_process_is_refused_a_database_in_memory(marks: Path) -> None:
    with LeaseManager("memory:", cluster="demo") as locks, pytest.raises(NoResultAfterShell):
        runner_of(locks, subprocess_shell).call(functions.square, 3, str(marks))


def test_a_writer_id_is_the_token_of_the_lock(locks: LeaseManager, marks: Path) -> None:
    given: list[str] = []

    def shell(args: Any) -> None:
        given.extend(a.split("=", 1)[1] for a in args if a.startswith("--writer-id="))
        info = locks.list("memo/")[0]
        assert info.writer_id == given[0]
        assert info.meta["memo"] == args[0]
        samethread_shell(args)

    runner_of(locks, shell).call(functions.square, 3, str(marks))
    assert FencingToken.from_hex(given[0])


def test_the_database_of_a_remote_is_its_orchestrators(shared_url: str, marks: Path) -> None:
    db = open_database(shared_url)
    with LeaseManager(db, cluster="elsewhere") as locks:
        assert runner_of(locks, subprocess_shell).call(functions.square, 3, str(marks)) == 9
