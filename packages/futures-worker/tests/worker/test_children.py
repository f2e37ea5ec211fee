"""Child processes as the operating system sees them: forked, fed, killed, taken from, and gone with their worker."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from futures_worker import payload
from futures_worker.objects.object_files import write_file
from futures_worker.objects.work_directory import WorkDirectory
from futures_worker.worker import messages
from futures_worker.worker.running.children import ChildProcess, ChildProcesses, Exited

PATIENCE = 60.0


class Pool:
    """A template and its children, with the waiting that a worker's loop does."""

    def __init__(self, directory: WorkDirectory, files: int = 0) -> None:
        self.directory = directory
        self.processes = ChildProcesses(str(directory.path), "memory:", "test", files)
        self.processes.wait_ready()
        self.seq = 0

    def code(self, function: Any) -> bytes:
        data = payload.dump_call(function).code.data
        digest = hashlib.sha256(data).digest()
        write_file(self.directory.code / digest.hex(), [data])
        return digest

    def task(self, function: Any, *args: Any, options: bytes = b"") -> list[Any]:
        self.seq += 1
        packed, _ = payload.dump_args(args, {})
        return [self.seq, self.code(function), packed, None, self.seq.to_bytes(16, "big"), 0, 1, options]

    def send(self, child: ChildProcess, *tasks: list[Any], at: float = math.inf) -> None:
        """One packet; the first of it counts as begun `at`, by default never."""
        assert child.send(msgpack.packb([at, *tasks]))

    def hear(self, child: ChildProcess, count: int = 1) -> list[Any]:
        heard: list[Any] = []
        deadline = time.monotonic() + PATIENCE
        while len(heard) < count:
            assert time.monotonic() < deadline, f"only heard {heard}"
            select.select([child.results], [], [], 1)
            heard += child.receive()
            assert not (child.closed and len(heard) < count), f"the child went away after {heard}"
        return heard

    def ended(self, child: ChildProcess) -> Exited:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            select.select([self.processes.control], [], [], 1)
            for exit_ in self.processes.exits():
                if exit_.child == child.number:
                    return exit_
        raise AssertionError("the child did not end")


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    directory = WorkDirectory(tmp_path / "spill", tmp_path)
    pool = Pool(directory)
    try:
        yield pool
    finally:
        pool.processes.close()
        directory.remove()


def double(x: int) -> int:
    return 2 * x


def test_a_child_runs_task_after_task_and_is_reused(pool: Pool) -> None:
    child = pool.processes.spawn(0)
    pool.send(child, pool.task(double, 1), pool.task(double, 2))
    pool.send(child, pool.task(os.getpid))
    heard = pool.hear(child, 3)
    assert [message[:2] for message in heard] == [[messages.RESULT, 1], [messages.RESULT, 2], [messages.RESULT, 3]]
    assert [payload.load_result(message[3]) for message in heard] == [2, 4, child.pid]


def test_a_finished_task_is_reported_while_the_next_one_runs(pool: Pool) -> None:
    child = pool.processes.spawn(0)
    pool.send(child, pool.task(double, 1), pool.task(time.sleep, 1000))
    assert pool.hear(child)[0][:2] == [messages.RESULT, 1]


def test_what_a_child_has_not_begun_can_be_taken_back_and_is_never_run(pool: Pool) -> None:
    child = pool.processes.spawn(0)
    begun, finish = os.pipe(), os.pipe()
    for descriptor in (*begun, *finish):
        os.close(descriptor)
    flag = pool.directory.path / "begun"
    pool.send(child, pool.task(_touch_and_wait, str(flag), str(pool.directory.path / "go")))
    pool.send(child, pool.task(double, 2))
    pool.send(child, pool.task(double, 3))
    _await_file(flag)
    back = [task[0] for packet in child.take_back() for task in msgpack.unpackb(packet)[1:]]
    assert back == [2, 3]
    (pool.directory.path / "go").touch()
    assert pool.hear(child)[0][:2] == [messages.RESULT, 1]
    pool.send(child, pool.task(double, 4))
    assert pool.hear(child)[0][:2] == [messages.RESULT, 4]


def test_a_killed_child_takes_its_whole_session_along(pool: Pool) -> None:
    child = pool.processes.spawn(0)
    pool.send(child, pool.task(_start_process))
    grandchild = payload.load_result(pool.hear(child)[0][3])
    pool.processes.kill(child)
    assert os.waitstatus_to_exitcode(pool.ended(child).status) == -signal.SIGKILL
    _await_gone(grandchild)


def test_a_process_that_left_the_session_ends_with_the_child_all_the_same(pool: Pool) -> None:
    child, other = pool.processes.spawn(0), pool.processes.spawn(1)
    pids = []
    for one in (child, other):
        pool.send(one, pool.task(_start_daemon))
        pids.append(payload.load_result(pool.hear(one)[0][3]))
    pool.processes.kill(child)
    pool.ended(child)
    _await_gone(pids[0])
    assert Path(f"/proc/{pids[1]}").exists(), "it is another child's"
    pool.processes.close()
    _await_gone(pids[1])


def test_tasks_do_not_see_what_the_environment_holds_for_other_services(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_DASHBOARD_TOKEN", "secret")
    monkeypatch.setenv("FOR_TASKS", "open")
    directory = WorkDirectory(tmp_path / "spill", tmp_path)
    pool = Pool(directory)
    try:
        child = pool.processes.spawn(0)
        for process in ("self", str(pool.processes._template.pid)):
            pool.send(child, pool.task(_environment_of, process))
            found = payload.load_result(pool.hear(child)[0][3])
            assert b"secret" not in found
            assert b"FOR_TASKS=open" in found
    finally:
        pool.processes.close()
        directory.remove()


def test_tasks_have_the_limit_of_files_that_the_worker_was_started_with(tmp_path: Path) -> None:
    directory = WorkDirectory(tmp_path / "spill", tmp_path)
    pool = Pool(directory, files=321)
    try:
        child = pool.processes.spawn(0)
        pool.send(child, pool.task(resource.getrlimit, resource.RLIMIT_NOFILE))
        assert payload.load_result(pool.hear(child)[0][3])[0] == 321
    finally:
        pool.processes.close()
        directory.remove()


def test_a_crash_tells_how_it_ended_and_leaves_the_others_alone(pool: Pool) -> None:
    first, second = pool.processes.spawn(0), pool.processes.spawn(1)
    pool.send(first, pool.task(os._exit, 3), pool.task(double, 1))
    assert os.waitstatus_to_exitcode(pool.ended(first).status) == 3
    pool.send(second, pool.task(double, 4))
    assert payload.load_result(pool.hear(second)[0][3]) == 8
    pool.send(second, pool.task(os.abort))
    assert os.waitstatus_to_exitcode(pool.ended(second).status) == -signal.SIGABRT


def test_the_rest_of_a_packet_is_not_begun_after_a_long_task(pool: Pool) -> None:
    child = pool.processes.spawn(0)
    flag = pool.directory.path / "flag"
    rest = pool.task(_touch, str(flag)), pool.task(double, 3)
    pool.send(child, pool.task(time.sleep, 2 * messages.PACKET_SECONDS), *rest, at=time.monotonic())
    pool.send(child, pool.task(double, 4))
    said = pool.hear(child, 4)
    assert [message[0] for message in said] == [messages.RESULT, messages.SKIPPED, messages.SKIPPED, messages.RESULT]
    assert not flag.exists()


def test_packets_a_dead_child_never_read_are_still_there(pool: Pool) -> None:
    child = pool.processes.spawn(0)
    pool.send(child, pool.task(os._exit, 1))
    pool.send(child, pool.task(double, 1))
    pool.ended(child)
    assert [task[0] for packet in child.take_back() for task in msgpack.unpackb(packet)[1:]] == [2]


def test_a_child_ends_by_itself_when_the_worker_hangs_up(pool: Pool) -> None:
    child = pool.processes.spawn(0)
    pool.send(child, pool.task(double, 1))
    child.hang_up()
    assert pool.hear(child)[0][:2] == [messages.RESULT, 1]
    assert os.waitstatus_to_exitcode(pool.ended(child).status) == 0


def test_exceptions_come_back_as_failures_with_the_remote_traceback(pool: Pool) -> None:
    child = pool.processes.spawn(0)
    pool.send(child, pool.task(_raise_value_error))
    kind, seq, _, failed, packed = pool.hear(child)[0]
    assert (kind, seq, failed) == (messages.FAILED, 1, messages.FAIL_RAISED)
    failure = payload.Failure.from_bytes(packed)
    assert (failure.error_type, failure.message) == ("builtins.ValueError", "seventeen")
    assert "_raise_value_error" in failure.traceback
    assert "child_main" not in failure.traceback


@pytest.mark.parametrize(
    ("function", "kind", "error"),
    [
        (lambda: (_ for _ in ()).throw(SystemExit(3)), messages.FAIL_PERMANENT, "builtins.SystemExit"),
        (lambda: [0] * (1 << 60), messages.FAIL_MEMORY, "builtins.MemoryError"),
        (lambda: threading.Lock(), messages.FAIL_PERMANENT, "futures_worker.errors.ResultPickleError"),
    ],
    ids=["exit", "memory", "result"],
)
def test_kinds_of_failures(pool: Pool, function: Any, kind: int, error: str) -> None:
    child = pool.processes.spawn(0)
    pool.send(child, pool.task(function))
    heard = pool.hear(child)[0]
    assert heard[3] == kind
    assert payload.Failure.from_bytes(heard[4]).error_type == error


def test_a_missing_module_is_permanent_and_named_with_both_pythons(pool: Pool) -> None:
    child = pool.processes.spawn(0)
    header = msgpack.packb([1, "3.9.1", "nowhere_to_be_found.f"])
    data = len(header).to_bytes(2, "big") + header + b"cnowhere_to_be_found\nf\n."
    digest = hashlib.sha256(data).digest()
    write_file(pool.directory.code / digest.hex(), [data])
    pool.send(child, [1, digest, b"", None, bytes(16), 0, 1, b""])
    heard = pool.hear(child)[0]
    assert heard[3] == messages.FAIL_PERMANENT
    message = payload.Failure.from_bytes(heard[4]).message
    assert "'nowhere_to_be_found'" in message
    assert "3.9.1" in message
    assert ".".join(map(str, sys.version_info[:3])) in message


@pytest.mark.parametrize("lost", ["code", "arguments", "inputs", "input"])
def test_what_somebody_removed_of_a_task_is_charged_to_nobody(pool: Pool, lost: str) -> None:
    child = pool.processes.spawn(0)
    task = pool.task(double, 3)
    gone = str(pool.directory.parcels / "gone")
    if lost == "code":
        shutil.rmtree(pool.directory.code)
    elif lost == "arguments":
        task[2] = gone
    else:
        task[2], task[3] = _args_with_reference(), gone if lost == "inputs" else [gone]
    pool.send(child, task)
    ((kind, _, _, failed, failure),) = pool.hear(child)
    assert (kind, failed) == (messages.FAILED, messages.FAIL_SHORT)
    assert "somebody removed" in payload.Failure.from_bytes(failure).message


def test_large_results_become_objects_and_large_inputs_come_as_files(pool: Pool) -> None:
    child = pool.processes.spawn(0)
    pool.send(child, pool.task(bytes, 100_000))
    kind, _, _, size, name = pool.hear(child)[0]
    assert kind == messages.STORED
    path = pool.directory.objects / name
    assert path.stat().st_size == size
    assert payload.load_result(path.read_bytes()) == bytes(100_000)
    task = pool.task(len)
    args, parcel = pool.directory.parcels / "args", pool.directory.parcels / "dependencies"
    write_file(args, [_args_with_reference()])
    write_file(parcel, [msgpack.packb([str(path)])])
    pool.send(child, [task[0], task[1], str(args), str(parcel), *task[4:]])
    assert payload.load_result(pool.hear(child)[0][3]) == 100_000


def test_what_tasks_print_does_not_reach_the_workers_standard_output(tmp_path: Path) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path; import test_children as t; from futures_worker.objects.work_directory import WorkDirectory\n"
        "pool = t.Pool(WorkDirectory(Path(sys.argv[2]), Path(sys.argv[2])))\n"
        "child = pool.processes.spawn(0)\n"
        "pool.send(child, pool.task(print, 'from a task')); pool.hear(child); pool.processes.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(Path(__file__).parent), str(tmp_path)],
        capture_output=True, text=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    assert done.stdout == ""


def test_an_end_that_is_told_of_during_a_fork_is_not_lost(pool: Pool) -> None:
    first = pool.processes.spawn(0)
    pool.send(first, pool.task(double, 1))
    pool.hear(first)
    others = [pool.processes.spawn(number) for number in range(1, 30)]
    for child in [*others, first]:
        pool.processes.kill(child)
    last = pool.processes.spawn(30)
    ended: set[int] = set()
    deadline = time.monotonic() + PATIENCE
    while len(ended) < 30:
        assert time.monotonic() < deadline, f"only {ended} ended"
        ended |= {exit_.child for exit_ in pool.processes.exits()}
        if len(ended) < 30:
            select.select([pool.processes.control], [], [], 1)
    assert ended == set(range(30))
    pool.send(last, pool.task(double, 2))
    assert payload.load_result(pool.hear(last)[0][3]) == 4


def test_everything_dies_and_is_removed_with_a_worker_that_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path; import test_children as t; from futures_worker.objects.work_directory import WorkDirectory\n"
        "pool = t.Pool(WorkDirectory(Path(sys.argv[2]) / 'spill', Path(sys.argv[2])))\n"
        "child = pool.processes.spawn(0)\n"
        "pool.send(child, pool.task(time.sleep, 1000))\n"
        "print(child.pid, pool.processes._template.pid, pool.directory.path, pool.directory.spill, flush=True)\n"
        "time.sleep(1000)\n"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", script, str(Path(__file__).parent), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert worker.stdout is not None
        child, template, directory, spill = worker.stdout.readline().split()
        assert Path(directory).is_dir()
        worker.kill()
        worker.wait()
        _await_gone(int(child))
        _await_gone(int(template))
        assert not Path(directory).exists()
        assert not Path(spill).exists()
        assert not Path(f"{directory}.lock").exists()
    finally:
        worker.kill()
        worker.wait()
        assert worker.stdout is not None
        worker.stdout.close()


# --- what the tasks above do ------------------------------------------------------------------------------------------


def _touch(flag: str) -> None:
    Path(flag).touch()


def _touch_and_wait(flag: str, go: str) -> None:
    Path(flag).touch()
    _await_file(Path(go))


def _start_process() -> int:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]).pid


def _start_daemon() -> int:
    """A daemon as they are made: the parent of it ends, and it leads a session of its own."""
    read, write = os.pipe()
    first = os.fork()
    if first == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            os.write(write, str(os.getpid()).encode())
            time.sleep(1000)
        os._exit(0)
    os.waitpid(first, 0)
    return int(os.read(read, 100))


def _environment_of(process: str) -> bytes:
    return Path(f"/proc/{process}/environ").read_bytes()


def _raise_value_error() -> None:
    raise ValueError("seventeen")


def _args_with_reference() -> bytes:
    import uuid

    class Reference:
        def __reduce__(self) -> Any:
            return payload.reference_to(uuid.UUID(int=1))

    data, dependencies = payload.dump_args((Reference(),), {})
    assert dependencies == (uuid.UUID(int=1),)
    return data


def _await_file(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def _await_gone(pid: int) -> None:
    """A process of another parent can't be awaited; the kernel's answer is polled."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return
        if state == "Z":
            return
        assert time.monotonic() < deadline, f"process {pid} lives"
        time.sleep(0.01)


def write_to_the_pipe(data: bytes) -> None:
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if int(name) > 2 and os.readlink(f"/proc/self/fd/{name}").startswith("pipe:"):
                os.write(int(name), data)


@pytest.mark.parametrize(
    "garbage", [b"\xc1\xc1", b"\x05", b"\x91\x00", msgpack.packb([1, 1, 1, 1, b"name"]), msgpack.packb([9, 1])]
)
def test_what_is_no_message_ends_the_child_and_not_the_worker(pool: Pool, garbage: bytes) -> None:
    child = pool.processes.spawn(0)
    pool.send(child, pool.task(write_to_the_pipe, garbage))
    deadline = time.monotonic() + PATIENCE
    while not child.closed:
        assert time.monotonic() < deadline
        select.select([child.results], [], [], 1)
        assert child.receive() == []
    assert child.receive() == []
    pool.processes.kill(child)
    pool.ended(child)
    child.close()


def test_the_process_that_forks_children_imports_nothing_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    here.chmod(0o777)
    for name in ("msgpack", "gc", "shutil", "futures_worker"):
        (here / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.chdir(here)
    directory = tmp_path / "directory"
    directory.mkdir()
    children = ChildProcesses(str(directory), "memory:", "test")
    children.wait_ready()
    children.close()
    assert not (tmp_path / "ran").exists()


def test_what_every_child_would_find_out_is_known_before_it_is_forked() -> None:
    from fdb_embedded.storage import readers
    from futures_worker.worker.child.template import load_engine

    readers.layout.cache_clear()
    load_engine("embedded:nowhere")
    assert readers.layout.cache_info().currsize == 1
    assert not Path("nowhere").exists()


def test_what_a_task_prints_where_there_is_no_room_is_lost_and_the_task_goes_on(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    script = (
        "import os, sys\nfrom futures_worker.worker.output import ChildOutput\n"
        f"answer = os.dup(1)\noutput = ChildOutput({str(tmp_path)!r})\nprint('kept é')\n"
        "full = os.open('/dev/full', os.O_WRONLY)\nos.dup2(full, 1)\nos.dup2(full, 2)\n"
        "print('lost ' * 10000)\nsys.stderr.write('lost too\\n')\nsys.stdout.flush()\n"
        "os.write(answer, b'went on')\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout) == (0, b"went on"), ran.stderr
    (out,) = (tmp_path / "logs").glob("*.out")
    assert out.read_text() == "kept é\n"
