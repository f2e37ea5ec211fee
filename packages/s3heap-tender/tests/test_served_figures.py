"""What the commands `tend` and `schedule` serve for Prometheus while they run."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import idempotent_txn
from fdb_schema import open_database
from s3heap_tender import SysDb

DEADLINE = 60.0


def sample(name: str, **labels: str) -> str:
    inside = ",".join(f'{label}="{value}"' for label, value in {**labels, "cluster": "mainspring"}.items())
    return f"{name}{{{inside}}}"


class Command:
    """A running command and where its figures are."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "s3heap_tender", *arguments], stdout=subprocess.PIPE, text=True
        )

    def figures(self) -> dict[str, str]:
        with urllib.request.urlopen(self.url, timeout=DEADLINE) as answer:
            lines = answer.read().decode().splitlines()
        return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))

    def once(self, name: str, value: str) -> dict[str, str]:
        """The figures, as soon as one of them has a value."""
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split()[-1]
        deadline = time.monotonic() + DEADLINE
        while (figures := self.figures()).get(name) != value:
            assert time.monotonic() < deadline, f"{name} is {figures.get(name)}, not {value}, of {figures}"
            time.sleep(0.05)
        return figures


@pytest.fixture
def commands(shared_url: str, tmp_path: Path) -> Iterator[list[Command]]:
    where = ("--db", shared_url, "--store", f"file:{tmp_path / 'heap'}", "--metrics-port", "0")
    started: list[Command] = []
    try:
        for command in (("tend", *where), ("schedule", *where, "--", "true")):
            started.append(Command(*command))
        yield started
    finally:
        for one in started:
            one.process.terminate()
        for one in started:
            assert one.process.wait(DEADLINE) == 0
            assert one.process.stdout is not None
            one.process.stdout.close()


def test_tender_and_scheduler_serve_what_they_did(commands: list[Command], shared_url: str) -> None:
    tender, scheduler = commands
    database = open_database(shared_url)
    with SysDb(database, "mainspring") as sysdb:
        sysdb.create_task("p", "t", cadence=3600.0)
        idempotent_txn.run(database, lambda tr: sysdb.record_write(tr, "p"))
        did = tender.once(sample("mainspring_tender_tasks_total", work="pushed"), "1")
        ran = scheduler.once(sample("mainspring_scheduler_runs_total", outcome="finished"), "1")
    assert did[sample("mainspring_tender_errors_total")] == "0"
    assert int(did[sample("mainspring_tender_turns_total")]) >= 1
    assert any(name.startswith("mainspring_heap_requests_total") for name in did)
    assert ran[sample("mainspring_scheduler_runs_total", outcome="failed")] == "0"
    assert ran[sample("mainspring_scheduler_concurrency")] == "8"
