"""Memoized invocations whose remotes are futures on the cluster's workers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from futures_worker import WorkerPoolShell
from lease_locks import LeaseManager, MemoizingPicklingRunner


def where(x: int, marks: str) -> tuple[int, int]:
    """Leaves one file per execution."""
    Path(marks, uuid4().hex).touch()
    return x * x, os.getpid()


def fail(marks: str) -> None:
    Path(marks, uuid4().hex).touch()
    raise KeyError("on purpose")


def test_an_invocation_runs_once_on_a_worker(cluster: Callable[..., Any], tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    demo = cluster(workers=1, slots=2)
    client = demo.client()
    shell = WorkerPoolShell(client)
    with LeaseManager(demo.url) as locks:
        runner = MemoizingPicklingRunner(locks, shell=shell, pipeline_id="workers")
        futures = [runner.submit(where, 7, str(marks)) for _ in range(4)]
        answers = {future.result(120) for future in futures}
        ((square, pid),) = answers
        assert square == 49
        assert pid != os.getpid()
        assert len(list(marks.iterdir())) == 1
        with pytest.raises(KeyError, match="on purpose"):
            runner.call(fail, str(marks))
        assert locks.list("memo/") == []


def test_a_remote_on_a_worker_is_found_again_by_its_handle(cluster: Callable[..., Any]) -> None:
    demo = cluster(workers=0)
    shell = WorkerPoolShell(demo.client(), module="json")
    future = shell(["nobody runs this"])
    handle = future.handle  # type: ignore[attr-defined]
    again = shell.attach(handle)
    assert again is not None
    assert not again.done()
    assert shell.cancel(handle)
    assert shell.attach(handle) is None
    assert shell.attach(str(uuid4())) is None
