"""What people see of a whole cluster: a terminal of 80 columns, and findings that are told once for all that are alike."""

from __future__ import annotations

import re
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from support.terminal import screen
from support.upping import wait_until

import fdb_datamodel as dm
from fdb_schema import ClusterSpace, open_database
from idempotent_txn import run
from lease_locks import Duties, Duty, LeaseManager, duty_reports
from mainspring.advice import placed
from mainspring.cli import main
from mainspring.doctor.cluster import check_futures
from mainspring.up.others import waiting_elsewhere


@pytest.fixture
def where(tmp_path: Path) -> tuple[str, ...]:
    """A cluster with one worker and no heap."""
    url = f"embedded:{tmp_path / 'db'}"
    db, space = open_database(url), ClusterSpace("demo")
    info = dm.WorkerInfo(4, dm.Requirements(4, 8 << 30), 512 << 20, 4711, host="node-with-a-long-name.example")
    worker = run(db, dm.register_worker, space, dm.WorkerId("10.0.0.7", 40001, b"w" * 16), info)
    beat = dm.Heartbeat(counter=1, slots=4, free_slots=4, wall_us=int((time.time() - 12) * 1e6))
    run(db, dm.heartbeat, space, worker, beat)
    return ("--db", url, "--cluster", "demo")


def test_status_fits_eighty_columns(where: tuple[str, ...]) -> None:
    lines = screen(main, "status", *where).splitlines()
    heading, worker = lines[-2:]
    assert heading == "address         busy  pid   last beat  host"
    assert re.fullmatch(r"10\.0\.0\.7:40001  0/4   4711  \d+s ago +node-with-a-long-name\.example", worker)
    assert all(len(line) <= 80 or " " not in line.strip() for line in lines)


def test_status_says_where_the_reasons_are_and_who_holds_what_and_who_works_no_more(where: tuple[str, ...]) -> None:
    db, space = open_database(where[1]), ClusterSpace("demo")
    specs = [dm.FutureSpec(code=b"x", name="f", session=b"s" * 16, max_retries=0) for _ in range(2)]
    run(db, dm.beat_session, space, b"s" * 16, 1)
    first, _ = run(db, dm.submit_futures, space, specs)
    worker = dm.WorkerId("10.0.0.7", 40001, b"w" * 16)
    claim = run(db, dm.claim_future, space, getattr(first, "bytes", first), worker)
    run(db, dm.fail_future, space, claim, dm.Failure("error", "on purpose"), True)
    with LeaseManager(db, "demo") as locks:
        locks.acquire("orders")
        duties = Duties(locks, [Duty("garbage", 0.05, lambda: 1)], standby=0.5)
        thread = threading.Thread(target=duties.run)
        thread.start()
        wait_until(lambda: "garbage" in duty_reports(db, space), "a round")
        alive = screen(main, "status", *where)
        duties.stop()
        thread.join()
    shown = screen(main, "status", *where, columns=400)  # the name of the folder is as long as it is
    named = f"--db {where[1]} --cluster demo"
    assert "0 waiting, 1 unclaimed, 0 claimed, 0 realized, 1 failed" in shown
    assert f"           `mainspring futures ls --state unclaimed {named}` says why they wait" in shown
    assert f"           `mainspring futures errors {named}` says what failed" in shown
    assert "leases     1 lease of users and 1 of services held, 0 waiting; 1 session" in alive
    assert "leases     0 leases of users and 0 of services held, 0 waiting; 0 sessions" in shown
    assert "nobody does it now" not in alive
    assert re.search(r"duty       garbage: \d+ done in \d+ rounds?, the last by .*: nobody does it now", shown)


def test_up_names_other_clusters_whose_futures_wait_for_workers(where: tuple[str, ...]) -> None:
    db = open_database(where[1])
    assert list(waiting_elsewhere(db, "mainspring")) == [], "nothing waits there"
    for cluster, count in (("left", 2), ("demo", 1), ("mainspring", 1)):
        run(db, dm.beat_session, ClusterSpace(cluster), b"s" * 16, 1)
        specs = [dm.FutureSpec(code=b"x", name="f", session=b"s" * 16) for _ in range(count)]
        run(db, dm.submit_futures, ClusterSpace(cluster), specs)
    assert list(waiting_elsewhere(db, "mainspring")) == [
        "this database also has cluster 'left' with 2 waiting futures; `--cluster left` serves it"
    ], "demo has a worker"


@pytest.mark.parametrize(
    ("db", "cluster", "told"),
    [
        (None, "mainspring", "`mainspring worker`, or `mainspring ids clean`"),
        ("fdb:", "mainspring", "`mainspring worker`, or `mainspring ids clean`"),
        ("fdb:/a b", "x", "`mainspring worker --db 'fdb:/a b' --cluster x`, or `mainspring ids clean --db 'fdb:/a b'`"),
    ],
)
def test_advice_can_be_pasted(monkeypatch: pytest.MonkeyPatch, db: str | None, cluster: str, told: str) -> None:
    monkeypatch.setenv("MAINSPRING_DB", "fdb:")
    monkeypatch.delenv("MAINSPRING_CLUSTER", raising=False)
    assert placed("`mainspring worker`, or `mainspring ids clean`", db, cluster) == told


def test_settings_are_no_python(where: tuple[str, ...]) -> None:
    shown = screen(main, "config", "show")
    assert not any(form in shown for form in ("None", "True", "False"))
    assert max(map(len, shown.splitlines())) <= 80


def test_doctor_breaks_between_words(where: tuple[str, ...]) -> None:
    lines = screen(main, "doctor", "--watch", "0.5", *where, code=1).splitlines()
    assert any(line.startswith(" PROBLEM  workers ") for line in lines)
    assert all(len(line) <= 80 or " " not in line.strip() for line in lines[1:])


def test_failures_are_no_trouble_of_the_cluster_and_doctor_says_where_they_are_told() -> None:
    seen: Any = SimpleNamespace(
        first=SimpleNamespace(unclaimed=()), second=SimpleNamespace(unclaimed=(), states={"failed": 1410})
    )
    (found,) = check_futures(seen, lambda _: None)
    assert (found.level.value, found.what) == ("ok", "1,410 failed")
    assert found.do == "`mainspring futures errors` says what failed"
    seen.second.states = {"realized": 3}
    (found,) = check_futures(seen, lambda _: None)
    assert found.do == ""


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
