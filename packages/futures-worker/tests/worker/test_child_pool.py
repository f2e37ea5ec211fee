"""The pool of children outlives the process that forks its children, whatever died first."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from futures_worker.objects.store import ObjectStore
from futures_worker.objects.work_directory import WorkDirectory
from futures_worker.worker.deciding.instructions import (
    ChildEnded,
    ChildStarted,
    Event,
    KillChild,
    MemoryShort,
    SpawnChild,
)
from futures_worker.worker.running.child_pool import ChildPool

PATIENCE = 60.0


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[ChildPool]:
    directory = WorkDirectory(tmp_path / "spill", tmp_path)
    with select.epoll() as epoll:
        pool = ChildPool(epoll, ObjectStore(directory, 1 << 20), "memory:", "test")
        try:
            yield pool
        finally:
            pool.close()
            directory.remove()


def gone(pid: int) -> bool:
    """Whether a process has let its descriptors go: it is a zombie, or nobody."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def listen_until(pool: ChildPool, awaited: Event) -> list[Event]:
    """What the pool hears from its template, until `awaited`."""
    events: list[Event] = []
    deadline = time.monotonic() + PATIENCE
    while awaited not in events:
        assert time.monotonic() < deadline, events
        select.select([pool._processes.control], [], [], 0.1)
        pool.listen(pool._processes.control.fileno(), events)
    return events


def test_what_a_process_had_begun_to_write_goes_with_it(pool: ChildPool) -> None:
    pool.carry_out(SpawnChild(1))
    listen_until(pool, ChildStarted(1))
    pid = pool._children[1].pid
    folders = pool._store.directory.objects, pool._store.directory.spill
    for folder in folders:
        for name in (f"a.part-{pid}-12", f"b.part-{pid}", f"c.part-{pid}7-1", "d"):
            (folder / name).write_bytes(b"x")
    os.kill(pid, signal.SIGKILL)
    listen_until(pool, ChildEnded(1, f"signal SIGKILL (pid {pid})"))
    for folder in folders:
        assert sorted(path.name for path in folder.iterdir()) == [f"c.part-{pid}7-1", "d"]


def test_from_95_percent_on_the_process_that_holds_most_is_named(
    pool: ChildPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        pool.carry_out(SpawnChild(number))
        listen_until(pool, ChildStarted(number))
    held = {pool._children[1].pid: 700 << 20, pool._children[2].pid: 90 << 20}
    monkeypatch.setattr("futures_worker.worker.running.child_pool.resident_bytes", held.__getitem__)
    named = []
    for used in (0.94, 0.95):
        monkeypatch.setattr(pool._memory, "used_fraction", lambda used=used: used)
        events: list[Event] = []
        pool._look_at_memory(events)
        named.append(events)
    assert named == [[], [MemoryShort(1, "95% used, 700 MiB of it by this process")]]
    held.update(dict.fromkeys(held, 10 << 20))
    pool._look_at_memory(events := [])
    assert events == [], "none of them is what memory is short of"


def test_a_template_whose_children_died_first_is_replaced(pool: ChildPool) -> None:
    assert pool.carry_out(SpawnChild(1)) == []
    assert listen_until(pool, ChildStarted(1))[-1] == ChildStarted(1)
    child = pool._children[1].pid
    os.kill(pool._processes._template.pid, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE
    while not gone(child):
        assert time.monotonic() < deadline, "the kernel did not kill the child of a dead template"
        time.sleep(0.005)
    events: list[Event] = []
    pool.listen(pool._processes.control.fileno(), events)
    assert [
        (event.child, "lost with the template" in event.description)
        for event in events
        if isinstance(event, ChildEnded)
    ] == [(1, True)]
    begun = time.monotonic()
    assert pool.carry_out(SpawnChild(2)) == []
    assert not pool._processes.ready or time.monotonic() - begun < 1, "nobody waited for the template"
    assert listen_until(pool, ChildStarted(2)) == [ChildStarted(2)]


def test_what_was_asked_of_a_template_that_died_is_asked_of_the_next(pool: ChildPool) -> None:
    os.kill(pool._processes._template.pid, signal.SIGSTOP)
    assert pool.carry_out(SpawnChild(1)) == []
    assert pool.carry_out(SpawnChild(2)) == []
    assert pool.carry_out(KillChild(2)) == []
    os.kill(pool._processes._template.pid, signal.SIGKILL)
    events = listen_until(pool, ChildStarted(1))
    assert [event.child for event in events if isinstance(event, ChildEnded)] == [2]
    assert ChildStarted(2) not in events


def test_a_template_that_does_not_come_up_is_replaced(pool: ChildPool, monkeypatch: pytest.MonkeyPatch) -> None:
    os.kill(pool._processes._template.pid, signal.SIGKILL)
    events: list[Event] = []
    deadline = time.monotonic() + PATIENCE
    while pool._processes.ready:
        assert time.monotonic() < deadline
        pool.listen(pool._processes.control.fileno(), events)
    second = pool._processes
    os.kill(second._template.pid, signal.SIGSTOP)
    assert pool.carry_out(SpawnChild(1)) == []
    pool.look(events)
    assert pool._processes is second, "it has time to come up"
    monkeypatch.setattr("futures_worker.worker.running.child_pool.START_TIMEOUT", 0.0)
    pool.look(events)
    assert pool._processes is not second
    monkeypatch.undo()
    assert listen_until(pool, ChildStarted(1))[-1] == ChildStarted(1)


def test_a_template_that_the_host_has_no_room_for_is_started_later(
    pool: ChildPool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, refused = subprocess.Popen, [errno.EMFILE, errno.ENOMEM, errno.EAGAIN]

    def popen(*args: Any, **kwargs: Any) -> Any:
        if refused:
            number = refused.pop()
            raise OSError(number, os.strerror(number))
        return real(*args, **kwargs)

    monkeypatch.setattr(subprocess, "Popen", popen)
    open_before = len(os.listdir("/proc/self/fd"))
    os.kill(pool._processes._template.pid, signal.SIGKILL)
    events: list[Event] = []
    deadline = time.monotonic() + PATIENCE
    while pool._processes.ready:
        assert time.monotonic() < deadline
        pool.listen(pool._processes.control.fileno(), events)
    assert pool.carry_out(SpawnChild(1)) == []
    assert pool.carry_out(SpawnChild(2)) == []
    assert pool.carry_out(KillChild(2)) == [ChildEnded(2, "it was not begun")]
    pool.look(events)
    assert len(refused) == 2, "not at once"
    monkeypatch.setattr("futures_worker.worker.running.child_pool.TEMPLATE_PAUSE", 0.0)
    pool._start_at = 1.0
    while pool._start_at:
        assert len(os.listdir("/proc/self/fd")) <= open_before
        pool.look(events)
    assert not refused
    assert listen_until(pool, ChildStarted(1))[-1] == ChildStarted(1)
    assert caplog.text.count("this host is short: the process that forks children can't be started") == 3
