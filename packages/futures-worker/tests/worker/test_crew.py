"""The crew outlives the process that forks its children, whatever died first."""

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
from futures_worker.worker.running.crew import Crew

PATIENCE = 60.0


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    directory = WorkDirectory(tmp_path / "spill", tmp_path)
    with select.epoll() as epoll:
        crew = Crew(epoll, ObjectStore(directory, 1 << 20), "memory:", "test")
        try:
            yield crew
        finally:
            crew.close()
            directory.remove()


def gone(pid: int) -> bool:
    """Whether a process has let its descriptors go: it is a zombie, or nobody."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def listen_until(crew: Crew, awaited: Event) -> list[Event]:
    """What the crew hears from its template, until `awaited`."""
    events: list[Event] = []
    deadline = time.monotonic() + PATIENCE
    while awaited not in events:
        assert time.monotonic() < deadline, events
        select.select([crew._processes.control], [], [], 0.1)
        crew.listen(crew._processes.control.fileno(), events)
    return events


def test_what_a_process_had_begun_to_write_goes_with_it(crew: Crew) -> None:
    crew.carry_out(SpawnChild(1))
    listen_until(crew, ChildStarted(1))
    pid = crew._children[1].pid
    folders = crew._store.directory.objects, crew._store.directory.spill
    for folder in folders:
        for name in (f"a.part-{pid}-12", f"b.part-{pid}", f"c.part-{pid}7-1", "d"):
            (folder / name).write_bytes(b"x")
    os.kill(pid, signal.SIGKILL)
    listen_until(crew, ChildEnded(1, f"signal SIGKILL (pid {pid})"))
    for folder in folders:
        assert sorted(path.name for path in folder.iterdir()) == [f"c.part-{pid}7-1", "d"]


def test_from_95_percent_on_the_process_that_holds_most_is_named(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2):
        crew.carry_out(SpawnChild(number))
        listen_until(crew, ChildStarted(number))
    held = {crew._children[1].pid: 700 << 20, crew._children[2].pid: 90 << 20}
    monkeypatch.setattr("futures_worker.worker.running.crew.resident_bytes", held.__getitem__)
    named = []
    for used in (0.94, 0.95):
        monkeypatch.setattr(crew._memory, "used_fraction", lambda used=used: used)
        events: list[Event] = []
        crew._look_at_memory(events)
        named.append(events)
    assert named == [[], [MemoryShort(1, "95% used, 700 MiB of it by this process")]]
    held.update(dict.fromkeys(held, 10 << 20))
    crew._look_at_memory(events := [])
    assert events == [], "none of them is what memory is short of"


def test_a_template_whose_children_died_first_is_replaced(crew: Crew) -> None:
    assert crew.carry_out(SpawnChild(1)) == []
    assert listen_until(crew, ChildStarted(1))[-1] == ChildStarted(1)
    child = crew._children[1].pid
    os.kill(crew._processes._template.pid, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE
    while not gone(child):
        assert time.monotonic() < deadline, "the kernel did not kill the child of a dead template"
        time.sleep(0.005)
    events: list[Event] = []
    crew.listen(crew._processes.control.fileno(), events)
    assert [
        (event.child, "lost with the template" in event.description)
        for event in events
        if isinstance(event, ChildEnded)
    ] == [(1, True)]
    begun = time.monotonic()
    assert crew.carry_out(SpawnChild(2)) == []
    assert not crew._processes.ready or time.monotonic() - begun < 1, "nobody waited for the template"
    assert listen_until(crew, ChildStarted(2)) == [ChildStarted(2)]


def test_what_was_asked_of_a_template_that_died_is_asked_of_the_next(crew: Crew) -> None:
    os.kill(crew._processes._template.pid, signal.SIGSTOP)
    assert crew.carry_out(SpawnChild(1)) == []
    assert crew.carry_out(SpawnChild(2)) == []
    assert crew.carry_out(KillChild(2)) == []
    os.kill(crew._processes._template.pid, signal.SIGKILL)
    events = listen_until(crew, ChildStarted(1))
    assert [event.child for event in events if isinstance(event, ChildEnded)] == [2]
    assert ChildStarted(2) not in events


def test_a_template_that_does_not_come_up_is_replaced(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    os.kill(crew._processes._template.pid, signal.SIGKILL)
    events: list[Event] = []
    deadline = time.monotonic() + PATIENCE
    while crew._processes.ready:
        assert time.monotonic() < deadline
        crew.listen(crew._processes.control.fileno(), events)
    second = crew._processes
    os.kill(second._template.pid, signal.SIGSTOP)
    assert crew.carry_out(SpawnChild(1)) == []
    crew.look(events)
    assert crew._processes is second, "it has time to come up"
    monkeypatch.setattr("futures_worker.worker.running.crew.START_TIMEOUT", 0.0)
    crew.look(events)
    assert crew._processes is not second
    monkeypatch.undo()
    assert listen_until(crew, ChildStarted(1))[-1] == ChildStarted(1)


def test_a_template_that_the_host_has_no_room_for_is_started_later(
    crew: Crew, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, refused = subprocess.Popen, [errno.EMFILE, errno.ENOMEM, errno.EAGAIN]

    def popen(*args: Any, **kwargs: Any) -> Any:
        if refused:
            number = refused.pop()
            raise OSError(number, os.strerror(number))
        return real(*args, **kwargs)

    monkeypatch.setattr(subprocess, "Popen", popen)
    open_before = len(os.listdir("/proc/self/fd"))
    os.kill(crew._processes._template.pid, signal.SIGKILL)
    events: list[Event] = []
    deadline = time.monotonic() + PATIENCE
    while crew._processes.ready:
        assert time.monotonic() < deadline
        crew.listen(crew._processes.control.fileno(), events)
    assert crew.carry_out(SpawnChild(1)) == []
    assert crew.carry_out(SpawnChild(2)) == []
    assert crew.carry_out(KillChild(2)) == [ChildEnded(2, "it was not begun")]
    crew.look(events)
    assert len(refused) == 2, "not at once"
    monkeypatch.setattr("futures_worker.worker.running.crew.TEMPLATE_PAUSE", 0.0)
    crew._start_at = 1.0
    while crew._start_at:
        assert len(os.listdir("/proc/self/fd")) <= open_before
        crew.look(events)
    assert not refused
    assert listen_until(crew, ChildStarted(1))[-1] == ChildStarted(1)
    assert caplog.text.count("this host is short: the process that forks children can't be started") == 3
