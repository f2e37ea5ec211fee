"""Strict serializability with many threads and processes: lost updates, write skew, money, the history of a register."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import fdb
import pytest
from conftest import seed_params
from tests.conformance import workers
from tests.conformance.expect import WAIT, value
from tests.conformance.workers import Committed, Event, number

from fdb_schema import open_database


@pytest.fixture
def spawn() -> Iterator[Callable[..., tuple[Any, Any]]]:
    """Starts a process with a pipe to it; all are killed afterwards."""
    context = multiprocessing.get_context("spawn")
    processes: list[Any] = []

    def start(target: Callable[..., None], *arguments: Any) -> tuple[Any, Any]:
        here, there = context.Pipe()
        process = context.Process(target=target, args=(*arguments, there), daemon=True)
        process.start()
        there.close()
        processes.append(process)
        return process, here

    yield start
    for process in processes:
        if process.is_alive():
            process.kill()
        process.join(WAIT)


def received(pipe: Any) -> Any:
    assert pipe.poll(WAIT), "the process says nothing"
    return pipe.recv()


def together(pipes: list[Any]) -> list[Any]:
    """Let the processes begin when all are ready."""
    for pipe in pipes:
        assert received(pipe) == "ready"
    for pipe in pipes:
        pipe.send("go")
    return pipes


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run `work` in several threads and raise what one of them raised."""
    errors: list[BaseException] = []

    def run(name: int) -> None:
        try:
            work(name)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(name,)) for name in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT * 2)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def test_no_update_is_lost_between_threads(any_db: Any) -> None:
    @fdb.transactional
    def up(tr: Any) -> None:
        tr[b"n"] = b"%d" % (number(tr.get(b"n")) + 1)

    in_threads(6, lambda _: [up(any_db) for _ in range(40)] and None)
    assert any_db[b"n"] == b"240"


def test_no_update_is_lost_between_processes(shared_url: str, spawn: Any) -> None:
    db = open_database(shared_url)
    pipes = together([spawn(workers.increment, shared_url, 60)[1] for _ in range(3)])
    for pipe in pipes:
        for _ in range(60):
            assert received(pipe) == "counted"
    assert db[b"n"] == b"180"


def test_write_skew_never_happens(any_db: Any) -> None:
    """Two doctors are on call; each may leave only while the other stays."""

    @fdb.transactional
    def leave(tr: Any, me: bytes) -> None:
        on_call = [bytes(row.key) for row in tr.get_range(b"on call/", b"on call0") if row.value == b"yes"]
        if len(on_call) > 1:
            tr[b"on call/" + me] = b"no"

    for _ in range(25):
        for name in (b"0", b"1"):
            any_db[b"on call/" + name] = b"yes"
        in_threads(2, lambda name: leave(any_db, b"%d" % name))
        left = [bytes(row.value) for row in any_db.get_range(b"on call/", b"on call0")]
        assert sorted(left) == [b"no", b"yes"]


def test_a_range_and_a_key_cannot_skew(any_db: Any) -> None:
    """A limit of rows is kept although every thread counts them before it adds one."""

    @fdb.transactional
    def add(tr: Any, key: bytes) -> None:
        if len(list(tr.get_range(b"row/", b"row0"))) < 10:
            tr[key] = b""

    in_threads(5, lambda name: [add(any_db, b"row/%d/%d" % (name, i)) for i in range(6)] and None)
    assert len(any_db.get_range(b"row/", b"row0")) == 10


def open_accounts(db: Any, count: int) -> int:
    @fdb.transactional
    def fill(tr: Any) -> None:
        for i in range(count):
            tr[b"account/%d" % i] = b"100"

    fill(db)
    return 100 * count


def balance(db: Any) -> int:
    return sum(int(bytes(row.value)) for row in db.get_range(b"account/", b"account0"))


@pytest.mark.parametrize("seed", seed_params(4, fresh=1, most=100))
def test_money_is_kept_by_threads(any_db: Any, seed: int) -> None:
    total = open_accounts(any_db, 8)

    def right(seen: int) -> None:
        assert seen == total

    in_threads(4, lambda name: workers.move_money(any_db, 8, 40, seed * 10 + name, right))
    assert balance(any_db) == total


@pytest.mark.parametrize("seed", seed_params(2, fresh=1, most=50))
def test_money_is_kept_by_processes(shared_url: str, spawn: Any, seed: int) -> None:
    db = open_database(shared_url)
    total = open_accounts(db, 6)
    pipes = together([spawn(workers.transfer, shared_url, 6, 60, seed * 10 + name)[1] for name in range(3)])
    for pipe in pipes:
        while (seen := received(pipe)) is not None:
            assert seen == total
    assert balance(db) == total


def check_history(events: list[Event]) -> None:
    """Each read gives the last write at or below its stamp, and stamps respect the order of real time."""
    writes = sorted((stamp, written) for kind, written, stamp, _, _ in events if kind == "write")
    assert len({stamp for stamp, _ in writes}) == len(writes), "two commits share a stamp"
    for kind, seen, stamp, _, _ in events:
        if kind == "read":
            earlier = [written for at, written in writes if at <= stamp]
            assert seen == (earlier[-1] if earlier else 0)
    newest = 0
    for begin, _, stamp, kind in sorted(
        [(begin, 1, stamp, kind) for kind, _, stamp, begin, _ in events]
        + [(end, 0, stamp, "ended") for kind, _, stamp, _, end in events if kind == "write"]
    ):
        if kind == "ended":
            newest = max(newest, stamp)
        else:
            assert stamp >= newest, f"an operation that began at {begin} doesn't see what was committed before"


@pytest.mark.parametrize(
    "history",
    [
        [("write", 7, 100, 0.0, 1.0), ("read", 0, 99, 2.0, 3.0)],  # a stale read
        [("write", 7, 100, 0.0, 1.0), ("read", 0, 101, 2.0, 3.0)],  # a wrong read
        [("write", 7, 100, 0.0, 1.0), ("write", 8, 90, 2.0, 3.0)],  # a later commit with an earlier stamp
    ],
)
def test_the_check_of_histories_sees_what_is_wrong(history: list[Event]) -> None:
    with pytest.raises(AssertionError):
        check_history(history)


@pytest.mark.parametrize("seed", seed_params(4, fresh=1, most=100))
def test_the_history_of_a_register_between_threads(any_db: Any, seed: int) -> None:
    events: list[Event] = []
    in_threads(4, lambda name: events.extend(workers.use_register(any_db, name + 1, 60, seed * 10 + name)))
    assert sum(kind == "write" for kind, *_ in events) > 20
    check_history(events)


@pytest.mark.parametrize("seed", seed_params(2, fresh=1, most=50))
def test_the_history_of_a_register_between_processes(shared_url: str, spawn: Any, seed: int) -> None:
    open_database(shared_url)
    pipes = together([spawn(workers.register, shared_url, name, 120, seed * 10 + name)[1] for name in (1, 2, 3)])
    events = [event for pipe in pipes for event in received(pipe)]
    assert sum(kind == "write" for kind, *_ in events) > 30
    check_history(events)


def replay(committed: list[Committed]) -> dict[bytes, bytes]:
    """Run the transactions one after another in the order of their stamps: each must read what it read."""
    state: dict[bytes, bytes] = {}
    for stamp, reads, writes in sorted(committed, key=lambda one: one[0]):
        for what, answer in reads:
            if isinstance(what, bytes):
                assert state.get(what) == answer, (stamp, what)
            else:
                begin, end, limit = what
                rows = [(key, state[key]) for key in sorted(state) if begin <= key < end]
                assert rows[: limit or None] == answer, (stamp, what)
        for kind, key, operand in writes:
            if kind == "set":
                state[key] = operand
            elif kind == "append_if_fits":
                state[key] = state.get(key, b"") + operand
            else:
                for gone in [k for k in state if key <= k < operand]:
                    del state[gone]
    return state


@pytest.mark.parametrize("seed", seed_params(6, fresh=2, most=500))
def test_transactions_of_threads_could_have_run_one_by_one(any_db: Any, seed: int) -> None:
    committed: list[Committed] = []
    in_threads(5, lambda name: committed.extend(workers.random_transactions(any_db, 60, seed * 10 + name)))
    assert len({stamp for stamp, _, _ in committed}) == len(committed) > 50
    assert replay(committed) == {bytes(k): bytes(v) for k, v in any_db.get_range(b"", b"\xff")}


@pytest.mark.parametrize("seed", seed_params(3, fresh=1, most=100))
def test_transactions_of_processes_could_have_run_one_by_one(shared_url: str, spawn: Any, seed: int) -> None:
    db = open_database(shared_url)
    pipes = together([spawn(workers.run_transactions, shared_url, 400, seed * 10 + name)[1] for name in range(3)])
    committed = [one for pipe in pipes for one in received(pipe)]
    assert len({stamp for stamp, _, _ in committed}) == len(committed) > 100
    assert replay(committed) == {bytes(k): bytes(v) for k, v in db.get_range(b"", b"\xff")}


def test_a_killed_process_loses_no_acknowledged_commit_and_blocks_nobody(shared_url: str, spawn: Any) -> None:
    db = open_database(shared_url)
    acknowledged = 0
    for round_ in range(3):
        process, pipe = spawn(workers.increment, shared_url, 100_000)
        together([pipe])
        for _ in range(20 + 7 * round_):
            assert received(pipe) == "counted"
            acknowledged += 1
        os.kill(process.pid, signal.SIGKILL)
        process.join(WAIT)
        try:
            while pipe.poll(0):
                assert pipe.recv() == "counted"
                acknowledged += 1
        except EOFError:
            pass
        stored = int(value(db.create_transaction(), b"n") or b"0")
        assert acknowledged <= stored <= acknowledged + 1
        acknowledged = stored
        db[b"still"] = b"%d" % round_
        assert db[b"still"] == b"%d" % round_


def test_a_watch_hears_of_another_process(shared_url: str, spawn: Any) -> None:
    db = open_database(shared_url)
    _, pipe = spawn(workers.change, shared_url, b"k", b"from afar")
    assert received(pipe) == "ready"
    got, watch = db.get_and_watch(b"k")
    assert not got.present() if hasattr(got, "present") else got is None
    fired = threading.Event()
    watch.on_ready(lambda _: fired.set())
    pipe.send("go")
    assert fired.wait(WAIT)
    watch.wait()
    assert db[b"k"] == b"from afar"
    assert received(pipe) == "changed"


def test_another_process_hears_through_its_watch(shared_url: str, spawn: Any) -> None:
    db = open_database(shared_url)
    pipes = [spawn(workers.watch, shared_url, b"k%d" % i)[1] for i in range(2)]
    for pipe in pipes:
        assert received(pipe) == "watching"
    db[b"k1"] = b"one"
    assert received(pipes[1]) == b"one"
    assert not pipes[0].poll(0.2)
    db[b"k0"] = b"zero"
    assert received(pipes[0]) == b"zero"
