"""What people see of a whole cluster: a terminal of 80 columns, and findings that are told once for all that are alike."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from support.terminal import screen

import fdb_datamodel as dm
from fdb_schema import ClusterSpace, open_database
from idempotent_txn import run
from mainspring.cli import main
from mainspring.doctor.cluster import check_futures


@pytest.fixture
def where(tmp_path: Path) -> tuple[str, ...]:
    """A cluster with one worker and no heap."""
    url = f"embedded:{tmp_path / 'db'}"
    db, space = open_database(url), ClusterSpace("demo")
    info = dm.WorkerInfo(4, dm.Requirements(4, 8 << 30), 512 << 20, 4711, host="node-with-a-long-name.example")
    run(db, dm.register_worker, space, dm.WorkerId("10.0.0.7", 40001, b"w" * 16), info)
    return ("--db", url, "--cluster", "demo")


def test_status_fits_eighty_columns(where: tuple[str, ...]) -> None:
    lines = screen(main, "status", *where).splitlines()
    assert lines[-2:] == [
        "address         busy  pid   last beat  host",
        "10.0.0.7:40001  0/4   4711             node-with-a-long-name.example",
    ]
    assert all(len(line) <= 80 or " " not in line.strip() for line in lines)


def test_settings_are_no_python(where: tuple[str, ...]) -> None:
    shown = screen(main, "config", "show")
    assert not any(form in shown for form in ("None", "True", "False"))
    assert max(map(len, shown.splitlines())) <= 80


def test_doctor_breaks_between_words(where: tuple[str, ...]) -> None:
    lines = screen(main, "doctor", "--watch", "0.5", *where, code=1).splitlines()
    assert any(line.startswith(" PROBLEM  workers ") for line in lines)
    assert all(len(line) <= 80 or " " not in line.strip() for line in lines[1:])


def test_doctor_says_at_once_that_it_looks(
    where: tuple[str, ...], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    screen(main, "doctor", "--watch", "0.5", *where, code=1)
    assert capfd.readouterr().err == "", "a log isn't told"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    screen(main, "doctor", "--watch", "0.5", *where, code=1)
    assert capfd.readouterr().err == "looking twice, 0.5 s apart …\n"


def test_what_waits_alike_is_one_finding() -> None:
    ids = [bytes(15) + bytes([at]) for at in range(9)]
    seen: Any = SimpleNamespace(
        first=SimpleNamespace(unclaimed=ids, workers=()),
        second=SimpleNamespace(unclaimed=ids, states={"unclaimed": 9}, workers=()),
        live_workers=lambda: [SimpleNamespace(heartbeat=None)],
    )

    def describe(one: bytes) -> Any:
        needs = "gpu=1" if one == ids[0] else "cpu=64"
        return SimpleNamespace(id=one, state=dm.FutureState.unclaimed, reason=f"unschedulable: needs {needs}")

    many, one = check_futures(seen, describe)
    assert many.what == f"8 futures can't run: unschedulable: needs cpu=64; one is {UUID(bytes=ids[1])}"
    assert many.do.endswith('`mainspring futures cancel --reason "unschedulable: needs cpu=64"`')
    assert one.what == f"future {UUID(bytes=ids[0])} can't run: unschedulable: needs gpu=1"
