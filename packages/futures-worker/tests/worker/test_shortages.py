"""What a host is short of (descriptors, processes, threads, memory, disk) is said and tried again, and charged to no task."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import math
import os
import resource
import select
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
from core_driver import Driver, claim, claims, failure, outcomes, sent

from fdb_datamodel import Requirements, WorkerFencedError, list_futures
from futures_worker import Client, payload
from futures_worker.objects.arena import FreeFiles, map_shared
from futures_worker.objects.object_files import write_file
from futures_worker.objects.work_directory import WorkDirectory
from futures_worker.worker import messages, service
from futures_worker.worker.child.template import Template
from futures_worker.worker.deciding import planning
from futures_worker.worker.deciding.core import REFUSED_PAUSE
from futures_worker.worker.deciding.instructions import (
    ChildEnded,
    ChildSaid,
    DrainAsked,
    Event,
    Finish,
    InputsShort,
    KillChild,
    PrepareInputs,
    RetireChild,
    RunTurn,
    TurnEnded,
    TurnRefused,
    WorkSignalled,
)
from futures_worker.worker.deciding.reports import LEAVE_SECONDS
from futures_worker.worker.deciding.state import SHORT_PAUSE
from futures_worker.worker.running import inputs as inputs_module
from futures_worker.worker.running.children import ChildProcess, ChildProcesses, TemplateLostError
from futures_worker.worker.service import WorkerConfig, WorkerService
from idempotent_txn import run

PATIENCE = 60.0


# --- the core ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "started"), [(messages.FAIL_SHORT, False), (messages.FAIL_NO_ROOM, True)])
def test_a_shortage_charges_nothing_and_the_worker_leaves_the_pool_to_others(kind: int, started: bool) -> None:
    d = Driver()
    d.start(claim(1))
    packed = failure(OSError(errno.ENOSPC, "No space left on device"))
    (turn,) = d.only(RunTurn, d.say(ChildSaid(0, [[messages.FAILED, 0, 10, kind, packed]])))
    (outcome,) = turn.outcomes
    assert outcome.failure is not None
    assert (outcome.event, outcome.started, outcome.failure.reason) == ("relinquish_claim", started, "shortage")
    assert "127.0.0.1:7000 was short" in outcome.failure.message and "No space left" in outcome.failure.message
    assert turn.limit == 0
    d.say(TurnEnded(claims(), turn))
    assert not d.core.wants_work
    assert d.only(RunTurn, d.say(WorkSignalled())) == []
    assert d.core.deadline() == d.now + SHORT_PAUSE
    assert len(d.only(RunTurn, d.say(after=SHORT_PAUSE))) == 1


def test_a_shortage_of_one_process_keeps_the_worker_at_work() -> None:
    d = Driver()
    d.start(claim(1))
    d.result(0, 0)
    d.claim(claim(2))
    packed = failure(OSError(errno.EMFILE, "Too many open files"))
    (turn,) = d.only(RunTurn, d.say(ChildSaid(0, [[messages.FAILED, 1, 10, messages.FAIL_SHORT, packed]])))
    assert turn.limit > 0


def test_inputs_that_find_no_room_go_back_uncharged() -> None:
    d = Driver()
    d.hold_inputs = True
    (prepare,) = d.only(PrepareInputs, d.start(claim(1)))
    (outcome,) = outcomes(d.say(InputsShort(prepare.tasks[0], "no room")))
    assert outcome.failure is not None
    assert (outcome.event, outcome.started, outcome.failure.reason) == ("relinquish_claim", False, "shortage")


def test_what_the_database_refuses_is_kept_and_reported_later() -> None:
    d = Driver()
    d.start(claim(1))
    (turn,) = d.only(RunTurn, d.result(0, 0))
    assert d.say(TurnRefused(turn)) == []
    assert d.only(RunTurn, d.say(WorkSignalled())) == []
    assert d.core.deadline() == d.now + REFUSED_PAUSE
    (again,) = d.only(RunTurn, d.say(after=REFUSED_PAUSE))
    assert again.outcomes == turn.outcomes
    assert again.limit > 0


def test_a_worker_whose_database_refuses_can_still_be_ended() -> None:
    d = Driver()
    d.start(claim(1))
    (turn,) = d.only(RunTurn, d.result(0, 0))
    d.say(TurnRefused(turn), DrainAsked(0.2))
    assert d.only(Finish, d.say(after=0.2)) == [Finish()]


def test_a_child_that_can_not_be_made_is_asked_for_again_after_a_pause() -> None:
    d = Driver(slots=2)
    d.start(claim(1))
    idle = next(c.number for c in d.core.children.values() if not c.queue)
    d.say(ChildEnded(idle, "it could not be made"))
    assert len(d.core.children) == 1
    d.say(after=0.5)
    assert len(d.core.children) == 2


# --- what a child says that can't be ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        [messages.RESULT, 0, -1, b"v"],
        [messages.STORED, 0, 10, -1, "name"],
        [messages.FAILED, 0, 10, messages.FAIL_RAISED, b"no failure"],
        [messages.FAILED, 0, 10, 99, failure(ValueError())],
        [messages.FAILED, 0, 10, 0, msgpack.packb([1, 2, 3, 4, 5])],
        [messages.BLOCKED, 0, ["1"], []],
        [messages.BLOCKED, 0, [], [b"short"]],
        [messages.BLOCKED, 0, [], [bytes(16)] * (messages.MOST_AWAITED + 1)],
        [messages.SKIPPED, -1],
    ],
)
def test_a_message_with_false_content_is_none(message: list[Any]) -> None:
    assert not messages.well_formed(message)


def test_a_task_that_says_of_itself_that_it_has_not_begun_loses_its_process() -> None:
    d = Driver()
    d.start(claim(1))
    said = d.say(ChildSaid(0, [[messages.SKIPPED, d.seq_of(1)]]))
    assert d.only(RetireChild, said) == [RetireChild(0)]
    assert d.child_of(1) == 1, "another child begins it"
    assert d.core.deadline() == d.now + LEAVE_SECONDS
    assert d.only(KillChild, d.say(after=LEAVE_SECONDS)) == [KillChild(0)]
    d.say(ChildEnded(0, "signal SIGKILL (pid 7)"))
    assert set(d.core.children) == {1}


@pytest.mark.parametrize("kind", ["an object of another name", "a result of what waits", "returned itself"])
def test_a_child_that_says_what_can_not_be_is_ended_and_its_task_charged(kind: str) -> None:
    d = Driver()
    d.start(claim(0))
    d.result(0, 0)
    d.core.claim_target = 10
    d.claim(claim(1), claim(2))
    first, second = d.seq_of(1), d.seq_of(2)
    message = {
        "an object of another name": [messages.STORED, first, 10, 70_000, "other"],
        "a result of what waits": [messages.RESULT, second, 10, b"forged"],
        "returned itself": [messages.BLOCKED, first, [first], []],
    }[kind]
    d.say(ChildSaid(0, [message]))
    said = d.say(ChildEnded(0, "signal SIGKILL (pid 7)", unread=(second,)), after=planning.LINGER)
    said += d.say(after=0.5)
    (outcome,) = outcomes(said)
    assert outcome.failure is not None
    assert (outcome.claim.id, outcome.failure.reason) == (claim(1).id, "crash")
    assert "wrote to the worker's pipe" in outcome.failure.message
    assert sent(said) == [2]


# --- children ---------------------------------------------------------------------------------------------------------


class Pool:
    """One template, and children that are sent a packet per task."""

    def __init__(self, directory: WorkDirectory) -> None:
        self.directory = directory
        self.processes = ChildProcesses(str(directory.path), "memory:", "test")
        self.processes.wait_ready()
        self.seq = 0

    def send(self, child: ChildProcess, function: Any, *args: Any) -> None:
        data = payload.dump_call(function).code.data
        digest = hashlib.sha256(data).digest()
        path = self.directory.code / digest.hex()
        if not path.exists():
            write_file(path, [data])
        packed, _ = payload.dump_args(args, {})
        task = [self.seq, digest, packed, None, self.seq.to_bytes(16, "big"), 0, 1, b""]
        self.seq += 1
        assert child.send(msgpack.packb([math.inf, task]))

    def hear(self, child: ChildProcess) -> list[Any]:
        deadline = time.monotonic() + PATIENCE
        while not (heard := child.receive()):
            assert time.monotonic() < deadline
            assert not child.closed, "the child went away"
            select.select([child.results], [], [], 1)
        (message,) = heard
        return message  # type: ignore[no-any-return]

    def returned(self, child: ChildProcess, function: Any, *args: Any) -> Any:
        self.send(child, function, *args)
        message = self.hear(child)
        assert message[0] == messages.RESULT, message
        return payload.load_result(message[3])


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    directory = WorkDirectory(tmp_path / "spill", tmp_path)
    pool = Pool(directory)
    try:
        yield pool
    finally:
        pool.processes.close()
        directory.remove()


def surroundings() -> list[Any]:
    umask = os.umask(0)
    os.umask(umask)
    limits = [resource.getrlimit(one)[0] for one in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)]
    handlers = [signal.getsignal(one) is signal.SIG_IGN for one in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]
    return [os.getcwd(), umask, *limits, *handlers, signal.getitimer(signal.ITIMER_REAL)[0], sys.getrecursionlimit()]


def change_surroundings(directory: str) -> None:
    os.mkdir(directory)
    os.chdir(directory)
    os.rmdir(directory)
    os.umask(0)
    for one in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE):
        resource.setrlimit(one, (0, resource.getrlimit(one)[1]))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    signal.alarm(1000)


def lower_a_hard_limit() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))


def leak_descriptors() -> int:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    opened = [os.dup(0)]
    with contextlib.suppress(OSError):
        while opened[-1] < soft:
            opened.append(os.dup(0))
    return len(opened)


def test_what_a_task_changes_of_its_process_is_put_back(pool: Pool, tmp_path: Path) -> None:
    child = pool.processes.spawn(0)
    before = pool.returned(child, surroundings)
    pool.returned(child, change_surroundings, str(tmp_path / "gone"))
    assert pool.returned(child, surroundings) == before
    pool.returned(child, os.umask, 0o777)
    pool.returned(child, os.chdir, "/")
    pool.returned(child, sys.setrecursionlimit, 200)
    assert pool.returned(child, surroundings) == before


def close_standard_output() -> None:
    os.close(1)


@pytest.mark.parametrize("function", [lower_a_hard_limit, leak_descriptors, close_standard_output])
def test_a_process_that_can_not_be_put_back_runs_no_other_task(pool: Pool, function: Callable[[], object]) -> None:
    child = pool.processes.spawn(0)
    pool.send(child, function)
    pool.send(child, abs, -1)
    assert pool.hear(child)[0] == messages.RESULT
    deadline = time.monotonic() + PATIENCE
    while not child.closed:
        assert time.monotonic() < deadline
        assert child.receive() == [], "the second task is for another process"
    assert [task[0] for packet in child.take_back() for task in msgpack.unpackb(packet)[1:]] == [1]


def test_what_a_process_can_not_load_after_other_tasks_is_left_to_a_fresh_one(pool: Pool) -> None:
    child = pool.processes.spawn(0)
    pool.send(child, abs, Raising(ValueError("broken")))
    assert pool.hear(child)[3] == messages.FAIL_PERMANENT, "nothing ran before it"
    assert pool.returned(child, abs, -1) == 1
    pool.send(child, abs, Raising(ValueError("perhaps the process is broken")))
    assert pool.hear(child) == [messages.SKIPPED, 2]
    deadline = time.monotonic() + PATIENCE
    while not child.closed:
        assert time.monotonic() < deadline
        child.receive()


def test_a_task_that_can_not_be_loaded_for_want_of_descriptors_is_not_at_fault(pool: Pool) -> None:
    child = pool.processes.spawn(0)
    pool.send(child, abs, Raising(OSError(errno.EMFILE, "Too many open files")))
    message = pool.hear(child)
    assert (message[0], message[3]) == (messages.FAILED, messages.FAIL_SHORT)


def an_actor_that_can_not_be_started(error: Exception) -> None:
    """As a worker's process begins one whose class must not be made."""
    from futures_worker.client import context
    from futures_worker.worker.actor_host import run_actor

    def short() -> Any:
        raise error

    context.worker_context = short
    run_actor(Callable, (), {}, True, b"")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("can't start new thread"), messages.FAIL_SHORT),
        (OSError(errno.EMFILE, "Too many open files"), messages.FAIL_SHORT),
        (ValueError("another"), messages.FAIL_RAISED),
    ],
)
def test_an_actor_that_a_process_short_of_threads_can_not_start_is_tried_again(
    pool: Pool, error: Exception, kind: int
) -> None:
    child = pool.processes.spawn(0)
    pool.send(child, an_actor_that_can_not_be_started, error)
    message = pool.hear(child)
    assert (message[0], message[3]) == (messages.FAILED, kind)


def test_memory_that_runs_out_while_a_task_is_loaded_counts_as_such(pool: Pool) -> None:
    child = pool.processes.spawn(0)
    pool.send(child, abs, Raising(MemoryError("no more")))
    message = pool.hear(child)
    assert (message[0], message[3]) == (messages.FAILED, messages.FAIL_MEMORY)


class Raising:
    """Raises an error where it is unpickled."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        return throw, (self.error,)


def throw(error: Exception) -> None:
    raise error


def test_a_process_that_can_not_be_forked_is_said_and_the_others_live(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    previous = signal.getsignal(signal.SIGCHLD), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with ours, theirs:
        template = Template(theirs)
        try:

            def no_more() -> int:
                raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

            monkeypatch.setattr(os, "fork", no_more)
            pipe = os.pipe()
            template._fork(7, *pipe)
            template._fork(8)  # the kernel had no descriptors left to hand over
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in zip((signal.SIGCHLD, signal.SIGINT, signal.SIGTERM), previous, strict=True):
                signal.signal(number, handler)
        answers = [msgpack.unpackb(ours.recv(4096)) for _ in range(2)]
        assert [answer[:2] for answer in answers] == [["refused", 7], ["refused", 8]]
        assert "temporarily unavailable" in answers[0][2]
        for descriptor in pipe:
            with pytest.raises(OSError, match="Bad file"):
                os.fstat(descriptor)


def test_mapped_files_hold_no_descriptors_and_are_not_used_again_meanwhile(tmp_path: Path) -> None:
    folder = tmp_path / "free"
    folder.mkdir()
    paths = [tmp_path / str(number) for number in range(300)]
    for path in paths:
        path.write_bytes(bytes([len(path.name)]) * (256 << 10 if path is paths[0] else 5000))
    views = [map_shared(path) for path in paths]
    held = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert not [target for target in held if target.startswith(str(tmp_path))]
    assert all(
        view.readonly and bytes(view[:2]) == bytes([len(path.name)]) * 2
        for view, path in zip(views, paths, strict=True)
    )
    assert not FreeFiles(folder, 1 << 30).put(paths[0]), "it is still read"
    again = tmp_path / "again"
    again.write_bytes(bytes(256 << 10))
    view = map_shared(again)
    del view
    assert FreeFiles(folder, 1 << 30).put(again)


# --- the worker -------------------------------------------------------------------------------------------------------


@pytest.fixture
def worker(any_url: str, tmp_path: Path) -> Iterator[WorkerService]:
    """A worker of one slot, in a thread of this process."""
    service = WorkerService(WorkerConfig(any_url, "short", slots=1, total=Requirements(1), spill=tmp_path / "spill"))
    thread = threading.Thread(target=service.run, daemon=True)
    thread.start()
    yield service
    service.shell.drain(0.0)
    thread.join(PATIENCE)
    assert not thread.is_alive()


class FDBError(Exception):
    code = 1510


@pytest.mark.embedded_only("children of a worker in this process can't open a database that isn't theirs")
def test_a_database_that_refuses_for_a_while_costs_no_work(
    worker: WorkerService, any_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = threading.Semaphore(0)
    ledger = worker.shell._ledger
    real = {name: getattr(ledger, name) for name in ("take_turn", "beat", "read_own", "arm")}

    def refuse(*_: Any, **__: Any) -> Any:
        refused.release()
        raise FDBError("Disk i/o operation failed")

    client = Client(any_url, "short")
    assert client.submit(abs, -1).result(PATIENCE) == 1
    for name in real:
        monkeypatch.setattr(type(ledger), name, refuse)
    future = client.submit(abs, -2)
    client.flush()
    for _ in range(4):
        assert refused.acquire(timeout=PATIENCE)
    assert not future.done()
    monkeypatch.undo()
    assert future.result(PATIENCE) == 2
    assert worker.shell._ledger.worker == ledger.worker, "it is the same incarnation"
    client.close()


@pytest.mark.embedded_only("children of a worker in this process can't open a database that isn't theirs")
def test_children_that_are_lost_just_before_their_worker_is_declared_dead_are_not_sent_tasks(
    worker: WorkerService, any_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, before = worker.shell._children_pool, worker.shell._ledger.worker
    befallen = threading.Event()

    def lose_template(events: list[Event]) -> None:
        if not befallen.is_set():
            pool._replace_template(TemplateLostError("it was killed"), events)

    def be_dead(*_: Any) -> None:
        befallen.set()
        monkeypatch.undo()
        raise WorkerFencedError("declared dead")

    with Client(any_url, "short") as client:
        assert client.submit(abs, -1).result(PATIENCE) == 1
        monkeypatch.setattr(pool, "look", lose_template)
        monkeypatch.setattr(type(worker.shell._ledger), "beat", be_dead)
        assert befallen.wait(PATIENCE)
        assert client.submit(abs, -2).result(PATIENCE) == 2
    assert worker.shell._ledger.worker != before


@pytest.mark.embedded_only("children of a worker in this process can't open a database that isn't theirs")
def test_small_tasks_run_while_memory_is_full_and_the_disk_is_not(
    worker: WorkerService, any_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spill = str(worker.store.directory.spill)

    def full(path: Path | str, segments: Any) -> int:
        if not str(path).startswith(spill):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return write_file(path, segments)

    monkeypatch.setattr(inputs_module, "write_file", full)
    with Client(any_url, "short") as client:
        assert client.submit(len, bytes(100_000)).result(PATIENCE) == 100_000


@pytest.mark.embedded_only("children of a worker in this process can't open a database that isn't theirs")
def test_a_worker_whose_directory_is_removed_goes_on(worker: WorkerService, any_url: str) -> None:
    with Client(any_url, "short") as client:
        large = client.submit(bytes, 1_000_000)
        client.await_all([large], PATIENCE)
        shutil.rmtree(worker.store.directory.path)
        futures = [
            client.submit(hash, 1),
            client.submit(len, bytes(100_000)),
            client.submit(len, large),
            client.submit(bytes, 2_000_000),
        ]
        assert client.gather(futures, timeout=PATIENCE) == [1, 100_000, 1_000_000, bytes(2_000_000)]


@pytest.mark.embedded_only("children of a worker in this process can't open a database that isn't theirs")
def test_where_neither_has_room_a_task_waits_and_says_why(
    worker: WorkerService, any_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = threading.Semaphore(0)

    def full(path: Path | str, segments: Any) -> int:
        tried.release()
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(inputs_module, "write_file", full)
    with Client(any_url, "short") as client:
        future = client.submit(len, bytes(100_000), max_retries=0)
        client.flush()
        assert tried.acquire(timeout=PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while (found := described(client)).last_failure is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert (found.last_failure.reason, found.charged) == ("shortage", 0)
        assert "No space left on device" in found.last_failure.message
        monkeypatch.undo()
        assert future.result(PATIENCE) == 100_000


def described(client: Client) -> Any:
    (info,), _ = run(client._context.db, list_futures, client._context.space, None, 10)
    return info


@pytest.mark.parametrize("as_json", [False, True])
def test_a_worker_works_though_nobody_can_be_told_that_it_is_ready(
    as_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.StringIO):
        def write(self, _text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    worker = SimpleNamespace(incarnation=b"")
    ready: Any = SimpleNamespace(
        address=("127.0.0.1", 1), metrics=None, space=SimpleNamespace(cluster="c"), _info=SimpleNamespace(pid=1)
    )
    ready.core = SimpleNamespace(worker=worker, slots=1)
    service._print_ready(ready, as_json)
