"""An orchestrator that is interrupted leaves; the remote that runs keeps the lock, and the next one awaits it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import memo_functions as functions
import pytest
from lease_processes import DEADLINE, children, eventually
from memo_records import attempts

from idempotent_txn import run
from lease_locks import MAINTAIN_LOCKS, LeaseManager, MemoizingPicklingRunner, run_remote, samethread_shell
from lease_locks.grants import ending
from lease_locks.grants.states import Belief
from lease_locks.memo import remote
from lease_locks.memo.functions import bind
from lease_locks.memo.rows import MemoRows
from lease_locks.memo.stored.records import GONE, TIME_OVER, AttemptRecord
from lease_locks.waiting import threads
from lease_locks.waiting.acquiring import acquiring
from lease_locks.waiting.claims import claim_of


class Remotes:
    """An adoptable Shell whose remotes run in threads with managers of their own, once `start` is set."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.start = threading.Event()
        self.futures: dict[str, Future[Any]] = {}
        self.attached: list[str] = []

    def __call__(self, args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        handle = f"remote-{len(self.futures)}"
        self.futures[handle] = future
        future.handle = handle  # type: ignore[attr-defined]
        args = [arg for arg in args if not arg.startswith("--in-process=")]

        def work() -> None:
            self.start.wait(DEADLINE)
            try:
                future.set_result(run_remote(args))
            except Exception as error:  # as a Shell tells it, to whoever waits yet
                future.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        return future

    def attach(self, handle: str) -> Future[Any] | None:
        future = self.futures.get(handle)
        if future is None or future.done():
            return None
        self.attached.append(handle)
        return future


class Interrupting(MemoizingPicklingRunner):
    """Ctrl-C comes in the wait for the Shell, once `when` says so."""

    when: Callable[[], bool] = staticmethod(lambda: True)

    def _wait(self, *args: Any) -> Any:
        eventually(self.when, "the moment of the interruption")
        raise KeyboardInterrupt


@pytest.fixture
def watching(shared_url: str) -> Iterator[LeaseManager]:
    with LeaseManager(shared_url, cluster="demo", ttl=1.0) as manager:
        yield manager


def slow(url: str, marks: Path, gate: Path) -> tuple[Remotes, Path, tuple[int, str, str], str]:
    """A Shell that starts at once, what holds its remote up, the remote's arguments and the name of its lock."""
    shell = Remotes(url)
    shell.start.set()
    arguments = 6, str(marks), str(gate)
    return shell, gate, arguments, bind("demo", functions.slow_square, arguments, {}).memo.lock_name


def test_the_lock_of_a_running_remote_survives_the_interruption(
    shared_url: str, watching: LeaseManager, marks: Path, tmp_path: Path
) -> None:
    shell, gate, arguments, name = slow(shared_url, marks, tmp_path / "gate")
    try:
        with LeaseManager(shared_url, cluster="demo", ttl=1.0) as first:
            runner = Interrupting(first, shell=shell, pipeline_id="demo")
            runner.when = lambda: len(os.listdir(marks)) == 1
            with pytest.raises(KeyboardInterrupt):
                runner.call(functions.slow_square, *arguments)
            held = watching.read(name)
            assert held is not None, "the remote's lock was freed"
            assert [m.role for m in held.maintainers] == ["remote"]
        again = MemoizingPicklingRunner(watching, shell=shell, pipeline_id="demo").submit(
            functions.slow_square, *arguments
        )
        eventually(lambda: (info := watching.read(name)) is not None and len(info.waiters) == 1, "it waits")
        gate.touch()
        assert again.result(DEADLINE) == 36
        assert len(os.listdir(marks)) == 1, "computed once"
        assert len(shell.futures) == 1, "one Shell call"
        assert watching.read(name) is None
    finally:
        gate.touch()
        shell.start.set()


def test_a_pending_remote_of_an_interrupted_orchestrator_is_adopted(
    shared_url: str, watching: LeaseManager, marks: Path
) -> None:
    shell = Remotes(shared_url)
    try:
        with LeaseManager(shared_url, cluster="demo", ttl=1.0) as first:
            with pytest.raises(KeyboardInterrupt):
                Interrupting(first, shell=shell, pipeline_id="demo").call(functions.square, 7, str(marks))
            # In this very process, which lives on, too: nobody maintains the lock, so it expires.
            again = MemoizingPicklingRunner(first, shell=shell, pipeline_id="demo").submit(
                functions.square, 7, str(marks)
            )
            eventually(lambda: shell.attached == ["remote-0"], "adopted")
            shell.start.set()
            assert again.result(DEADLINE) == 49
            assert len(shell.futures) == 1
            assert len(os.listdir(marks)) == 1
    finally:
        shell.start.set()


class OneForOurselves(Remotes):
    """Its first remote is this test's to end; the next ones run at once."""

    cancelled = ""

    def __call__(self, args: Any) -> Future[Any]:
        if self.futures:
            return samethread_shell(args)  # type: ignore[return-value]
        future = self.futures["remote-0"] = Future()
        future.set_running_or_notify_cancel()
        future.handle = "remote-0"  # type: ignore[attr-defined]
        return future

    def cancel(self, handle: str) -> bool:
        self.cancelled = handle
        return False


def test_that_the_time_of_who_left_is_over_is_no_matter_to_who_adopts(
    shared_url: str, watching: LeaseManager, marks: Path
) -> None:
    """Its remote was stopped meanwhile, say, and ended itself by the clock of the grant that it had joined."""
    shell = OneForOurselves(shared_url)
    with LeaseManager(shared_url, cluster="demo", ttl=1.0) as first, pytest.raises(KeyboardInterrupt):
        Interrupting(first, shell=shell, pipeline_id="demo", max_hold=60.0).call(functions.square, 7, str(marks))
    runner = MemoizingPicklingRunner(watching, shell=shell, pipeline_id="demo")
    again = runner.submit(functions.square, 7, str(marks))
    eventually(lambda: any(attempt.adopted_by for attempt in attempts(runner)), "adopted")
    keys = MemoRows(watching.space).keys(bind("demo", functions.square, (7, str(marks)), {}).memo)

    def end(tr: Any) -> None:
        for key, value in tr[keys.attempts : keys.attempts + b"\xff"]:
            attempt = AttemptRecord.found(bytes(value))
            if attempt is not None and attempt.adopted_by:
                tr[bytes(key)] = replace(attempt, state=GONE, note=TIME_OVER).encode()

    run(watching.db, end)
    shell.futures["remote-0"].set_result(-signal.SIGTERM)
    assert again.result(DEADLINE) == 49
    assert len(os.listdir(marks)) == 1
    assert shell.cancelled == "remote-0", "whatever of it still runs is ended"


def test_closing_the_manager_leaves_the_lock_to_the_remote(
    shared_url: str, watching: LeaseManager, marks: Path, tmp_path: Path
) -> None:
    shell, gate, arguments, name = slow(shared_url, marks, tmp_path / "gate")
    try:
        with LeaseManager(shared_url, cluster="demo", ttl=1.0) as first:
            runner = MemoizingPicklingRunner(first, shell=shell, pipeline_id="demo")
            runner.submit(functions.slow_square, *arguments)
            eventually(lambda: len(os.listdir(marks)) == 1, "the remote started")
        held = watching.read(name)
        assert held is not None, "the remote's lock was freed"
        assert [m.role for m in held.maintainers] == ["remote"]
    finally:
        gate.touch()
        shell.start.set()
    eventually(lambda: watching.read(name) is None, "the remote frees it")


def test_a_remote_nobody_could_follow_loses_the_lock_before_it_joins(
    shared_url: str, watching: LeaseManager, marks: Path
) -> None:
    shell = Remotes(shared_url)
    try:
        with LeaseManager(shared_url, cluster="demo", ttl=30.0) as first:
            runner = Interrupting(first, shell=lambda args: shell(args), pipeline_id="demo")
            with pytest.raises(KeyboardInterrupt):
                runner.call(functions.square, 7, str(marks))
            assert watching.list() == []
            shell.start.set()
            assert shell.futures["remote-0"].result(DEADLINE) == 47
            assert os.listdir(marks) == []
    finally:
        shell.start.set()


ORCHESTRATE = """
import memo_functions as functions
from lease_locks.memo.shells import detached_shell
with LeaseManager(sys.argv[1], cluster="demo", ttl=float(sys.argv[2])) as locks:
    runner = MemoizingPicklingRunner(locks, shell=detached_shell, pipeline_id="demo")
    say("ready")
    x, folder, gate = listen().split()
    say("value", runner.call(functions.slow_square, int(x), folder, gate))
    listen()
"""


def test_control_c_in_one_process_and_a_restart_compute_once(
    shared_url: str, watching: LeaseManager, marks: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    name = bind("demo", functions.slow_square, (6, str(marks), str(gate)), {}).memo.lock_name
    try:
        with children(ORCHESTRATE, ORCHESTRATE, url=shared_url, args=("6",)) as [first, second]:
            assert first.hear() == "ready"
            first.tell(f"6 {marks} {gate}")
            eventually(lambda: len(os.listdir(marks)) == 1, "the remote started")
            first.signal(signal.SIGINT)
            first.process.wait(DEADLINE)
            assert second.hear() == "ready"
            second.tell(f"6 {marks} {gate}")

            def decided() -> bool:
                held = watching.read(name)
                return len(os.listdir(marks)) > 1 or (held is not None and len(held.waiters) == 1)

            eventually(decided, "the second waits, or computes")
            gate.touch()
            assert second.hear() == "value 36"
            assert len(os.listdir(marks)) == 1
    finally:
        gate.touch()


@pytest.mark.parametrize("how", ["unmaintained", "cut off"])
def test_an_orchestrator_that_lost_its_belief_leaves_the_lock_to_the_running_remote(
    shared_url: str, watching: LeaseManager, marks: Path, tmp_path: Path, how: str
) -> None:
    shell, gate, arguments, name = slow(shared_url, marks, tmp_path / "gate")
    try:
        with LeaseManager(shared_url, cluster="demo", ttl=1.0) as first, MAINTAIN_LOCKS.set_local(how == "cut off"):
            runner = Interrupting(first, shell=shell, pipeline_id="demo")

            def lost() -> bool:
                if len(os.listdir(marks)) < 1:
                    return False
                if how == "cut off":
                    for part in first.session.ledger.parts:  # as after a suspend: its clock went on, it renewed nothing
                        part.holding.deadline = 0.0
                        assert first.session.ledger.look(part) is Belief.LOST
                return first.session.ledger.parts == []

            runner.when = lost
            with pytest.raises(KeyboardInterrupt):
                runner.call(functions.slow_square, *arguments)
            held = watching.read(name)
            assert held is not None, "the running remote's lock was freed"
            assert [m.role for m in held.maintainers] == ["remote"]
        assert watching.read(name) is not None, "closing freed it"
        again = MemoizingPicklingRunner(watching, shell=shell, pipeline_id="demo").submit(
            functions.slow_square, *arguments
        )
        gate.touch()
        assert again.result(DEADLINE) == 36
        assert len(os.listdir(marks)) == 1, "computed once"
    finally:
        gate.touch()
        shell.start.set()


@pytest.mark.parametrize("left", [False, True], ids=["never maintained", "left"])
def test_a_remote_that_loses_the_lease_ends_it_only_where_its_holder_has_left_it(
    locks: LeaseManager, other: LeaseManager, left: bool
) -> None:
    claim = claim_of(locks.session, meta={}, maintained=left)
    lock, session = locks.space.lock("a"), locks.session
    session.start()
    lease: Any = threads.claimed(session, lock, claim, acquiring(session, lock, claim, None))
    remote = other.join("a", lease.writer_id)
    if left:
        run(locks.db, ending.leave, locks.space, lock, lease.token, session.sid, session.by, "lost", 0)
    remote.part.holding.deadline = 0.0  # cut off
    eventually(lambda: remote.lost.is_set(), "the remote knows")
    eventually(lambda: (info := other.read("a")) is None or not info.maintainers, "and has left")
    assert (other.read("a") is None) == left
    if not left:
        assert lease.held
        assert other.try_acquire("a") is None, "two would believe"


@pytest.mark.parametrize("joined", [True, False], ids=["that runs", "that came to nothing"])
def test_a_shell_that_fails_leaves_the_lock_to_a_remote_that_it_started(
    shared_url: str, watching: LeaseManager, marks: Path, tmp_path: Path, joined: bool
) -> None:
    """As one whose request was heard, and whose answer was lost."""
    gate = tmp_path / "gate"
    arguments = 6, str(marks), str(gate)

    def shell(args: Any) -> None:
        if joined:
            threading.Thread(target=run_remote, args=(args,), daemon=True).start()
            eventually(lambda: os.listdir(marks), "the remote runs")
        raise OSError("the answer was lost")

    with LeaseManager(shared_url, cluster="demo") as locks:
        runner = MemoizingPicklingRunner(locks, shell=shell, pipeline_id="demo")
        with pytest.raises(OSError, match="the answer was lost"):
            runner.call(functions.slow_square, *arguments)
        name = bind("demo", functions.slow_square, arguments, {}).memo.lock_name
        held = watching.read(name)
        assert (None if held is None else [m.role for m in held.maintainers]) == (["remote"] if joined else None)
        again = MemoizingPicklingRunner(watching, shell=samethread_shell, pipeline_id="demo")
        future = again.submit(functions.slow_square, *arguments)
        gate.touch()
        assert future.result(DEADLINE) == 36
    assert len(os.listdir(marks)) == 1, "computed once"


@pytest.mark.parametrize("error", [OSError("no answer"), KeyboardInterrupt("no answer")], ids=["failed", "interrupted"])
def test_a_remote_of_this_thread_whose_outcome_was_not_written_keeps_nothing(
    locks: LeaseManager, monkeypatch: pytest.MonkeyPatch, marks: Path, error: BaseException
) -> None:
    """Its process lives on, and its heartbeats would keep the lock for as long."""
    publish, errors = remote._publish, [error]

    def once(*args: Any, **options: Any) -> None:
        if errors:
            raise errors.pop()
        publish(*args, **options)

    monkeypatch.setattr(remote, "_publish", once)
    runner = MemoizingPicklingRunner(locks, shell=samethread_shell, pipeline_id="demo")
    with pytest.raises(type(error), match="no answer"):
        runner.call(functions.square, 6, str(marks))
    assert locks.list("memo/") == []
    assert runner.call(functions.square, 6, str(marks)) == 36


# --- a process that ends by itself

ENDS = """
import sys
from lease_locks import LeaseManager
locks = LeaseManager(sys.argv[1], cluster="demo", ttl=600.0)
lease = locks.acquire("a")
dropped = LeaseManager(sys.argv[1], cluster="demo", ttl=600.0)
dropped.acquire("b")
if sys.argv[2] == "closes":
    locks.close()
elif sys.argv[2] == "raises":
    raise RuntimeError("after all")
elif sys.argv[2] == "exits":
    sys.exit(3)
"""


@pytest.mark.parametrize("how", ["ends", "closes", "raises", "exits"])
def test_a_process_that_ends_without_close_releases_what_it_holds(shared_url: str, how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDS, shared_url, how], capture_output=True, text=True, timeout=DEADLINE
    )
    assert done.returncode == {"raises": 1, "exits": 3}.get(how, 0)
    assert ("after all" in done.stderr) == (how == "raises")
    with LeaseManager(shared_url, cluster="demo") as locks:
        for name in ("a", "b"):
            assert locks.read(name) is None
            assert [event.kind for event in locks.history(name)] == ["acquired", "released"]
        assert [sid for sid, _, _ in locks.sessions() if sid != locks.session.sid] == []
