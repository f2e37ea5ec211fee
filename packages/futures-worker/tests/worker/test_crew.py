"""The crew outlives the process that forks its children, whatever died first."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from futures_worker.store import ObjectStore, WorkDirectory
from futures_worker.worker.crew import Crew
from futures_worker.worker.instructions import ChildEnded, ChildStarted, Event, SpawnChild

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


def test_a_template_whose_children_died_first_is_replaced(crew: Crew) -> None:
    started = crew.carry_out(SpawnChild(1))
    assert started == [ChildStarted(1)]
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
    assert crew.carry_out(SpawnChild(2)) == [ChildStarted(2)]
