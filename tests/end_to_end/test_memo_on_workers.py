"""Memoized invocations whose remotes are futures on the cluster's workers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from futures_worker import WorkerPoolShell
from lease_locks import LeaseManager, MemoizingPicklingRunner
from lease_locks.memo.functions import bind
from lease_locks.memo.stored.records import AttemptRecord


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
    for nobodys in (str(uuid4()), "memo-0001", ""):
        assert shell.attach(nobodys) is None
        assert not shell.cancel(nobodys)


ORCHESTRATE = """
import sys
import importlib
from futures_worker import Client, WorkerPoolShell
from lease_locks import LeaseManager, MemoizingPicklingRunner
url, cluster, module, marks = sys.argv[1:]
with Client(url, cluster=cluster) as client, LeaseManager(url, ttl=600.0) as locks:
    runner = MemoizingPicklingRunner(locks, shell=WorkerPoolShell(client), pipeline_id="workers")
    runner.call(importlib.import_module(module).where, 9, marks)
"""


def test_a_pending_remote_of_a_killed_orchestrator_is_adopted_from_the_pool(
    cluster: Callable[..., Any], tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    demo = cluster(workers=0)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])}
    command = [sys.executable, "-c", ORCHESTRATE, demo.url, demo.name, where.__module__, str(marks)]
    first = subprocess.Popen(command, env=environment)
    try:
        with LeaseManager(demo.url) as locks:
            runner = MemoizingPicklingRunner(locks, shell=WorkerPoolShell(demo.client()), pipeline_id="workers")
            keys = runner.rows.keys(bind("workers", where, (9, str(marks)), {}).memo)
            until = time.monotonic() + 120
            while not any(b.handle for b in attempts(locks, keys)):
                assert first.poll() is None
                assert time.monotonic() < until, "no remote is pending"
                time.sleep(0.05)
            first.kill()
            first.wait()
            future = runner.submit(where, 9, str(marks))
            while not any(b.note.startswith("adopted the remote") for b in attempts(locks, keys)):
                assert time.monotonic() < until, "the remote was not adopted"
                time.sleep(0.05)
            demo.start()
            assert future.result(120)[0] == 81
            assert len(list(marks.iterdir())) == 1
            assert [b.state for b in attempts(locks, keys)].count("ok") == 1
    finally:
        first.kill()
        first.wait()


def attempts(locks: LeaseManager, keys: Any) -> list[AttemptRecord]:
    rows = locks.db.get_range(keys.prefix, keys.end)
    return [AttemptRecord.decode(bytes(v)) for k, v in rows if bytes(k).startswith(keys.attempt(b"")[:-2])]
