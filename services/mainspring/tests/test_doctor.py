"""The doctor finds what is planted, says what to do, and finds nothing where all is well."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from support.upping import Up, mainspring, wait_until

from fdb_datamodel import (
    Counted,
    FutureSpec,
    FutureState,
    Heartbeat,
    Requirements,
    WorkerId,
    WorkerInfo,
    WorkerStatus,
    describe_future,
    heartbeat,
    new_incarnation,
    register_worker,
    submit_future,
)
from fdb_schema import ClusterSpace, open_database, pack
from idempotent_txn import run
from lease_locks import Duties, Duty, LeaseManager, Waiter, duty_reports
from mainspring.doctor.cluster import check_futures, check_leases
from mainspring.doctor.machine import check_space
from mainspring.doctor.observing import Look, Observation, observe
from s3heap_tender import Heap, HeapStore, Scheduler, SysDb, Tender

HOLDER = """
import sys, time
from lease_locks import LeaseManager
locks = LeaseManager(sys.argv[1], sys.argv[2]); lease = locks.acquire("of the dead"); print("held", flush=True); time.sleep(600)
"""


def examine(folder: Path, url: str, cluster: str, *arguments: str) -> tuple[int, list[dict[str, str]]]:
    """Exit code and findings of `mainspring doctor`."""
    done = mainspring(folder, "doctor", "--json", "--db", url, "--cluster", cluster, *arguments)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)["findings"]


def says(findings: list[dict[str, str]], check: str, level: str, text: str) -> bool:
    found = [f for f in findings if f["check"] == check and f["level"] == level and text in f["what"]]
    return bool(found) and all(f["do"] for f in found)


def fail(*_: object) -> None:
    raise ValueError("on purpose")


def test_faults_planted_on_purpose_are_found(cluster: Any, tmp_path: Path) -> None:
    local = cluster(2, 1, "--ttl", "600")  # the others don't clear away the silent one before it is looked at
    db = open_database(local.url)
    space = ClusterSpace(local.name)
    client = local.client()
    # 1: a future that needs what no worker has
    needy = client.submit(len, "", resources={"gpu": 8})
    # 2: a run that failed for good; 3: runs to be pushed and no tender
    with SysDb(db, local.name) as sysdb, HeapStore(f"file:{tmp_path / 'heap'}") as store, Heap(store, sysdb) as heap:
        sysdb.create_task("orders", "doomed", cadence=0, max_attempts=1)
        Tender(heap, sysdb).turn()
        scheduler = Scheduler(heap, sysdb, fail, concurrency=0)
        wait_until(lambda: scheduler.turn().failed, "a failed run")
        sysdb.create_task("orders", "waiting for a tender", cadence=0)
    # 4, 5: a process that died with a lease
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, local.url, local.name], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    # 6: a duty that fails
    with LeaseManager(db, local.name) as locks:
        duties = Duties(locks, [Duty("ids", 0.05, fail)], standby=0.5)  # type: ignore[arg-type]
        thread = threading.Thread(target=duties.run)
        thread.start()
        wait_until(lambda: "ids" in duty_reports(db, space), "a failed duty")
        duties.stop()
        thread.join()
    # 7: a worker that beats and can't be reached; 8: one that is silent
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        port = taken.getsockname()[1]
        ghost = WorkerId("127.0.0.1", port, new_incarnation())
        run(db, register_worker, space, ghost, WorkerInfo(host="ghost"))
        over = threading.Event()

        def beat() -> None:
            counter = 0
            while not over.wait(0.2):
                counter += 1
                run(db, heartbeat, space, ghost, Heartbeat(counter=counter), strategy="off")

        beating = threading.Thread(target=beat)
        beating.start()
        local.workers[1].pause()
        silent = json.loads(mainspring(tmp_path, "status", "--json", "--db", local.url, "--cluster", local.name).stdout)
        (address,) = [w["address"] for w in silent["workers"] if w["pid"] == local.workers[1].pid]
        try:
            # 9: less space than is wanted
            elsewhere = f"file:{tmp_path / 'mistyped'}"
            arguments = ("--watch", "2.5", "--min-free", "900000GiB", "--store", elsewhere)
            code, findings = examine(tmp_path, local.url, local.name, *arguments)
        finally:
            over.set()
            beating.join()
            local.workers[1].resume()
    assert code == 1
    assert says(findings, "futures", "problem", f"future {needy.id} can't run: unschedulable"), findings
    assert says(findings, "heap", "problem", "1 run failed for good")
    assert says(findings, "heap", "problem", "no tender runs; ")
    assert any(f["level"] == "ok" and "dead, holds 1 lease ('of the dead')" in f["what"] for f in findings)
    assert says(findings, "sessions", "warning", f":{holder.pid} (its processes are gone)")
    assert says(findings, "janitor", "problem", "duty 'ids' failed")
    assert says(findings, "workers", "problem", f"worker 127.0.0.1:{port} beats, and can't be reached from here")
    assert says(findings, "workers", "problem", f"worker {address}")
    if local.url.startswith("embedded:"):  # a cluster's space is looked after by its own tools
        assert says(findings, "space", "problem", "where the database is")
    assert says(findings, "space", "problem", f"there is no directory {tmp_path / 'mistyped'} for the heap")
    assert all(f["level"] == "ok" for f in findings if f["check"] in ("engine", "versions", "clock", "ids"))


@pytest.mark.parametrize(
    ("first", "second", "free", "gone", "found"),
    [
        (1, 1, Requirements(cpu=2), False, "problem"),  # nobody takes it though there is room
        (0, 1, Requirements(cpu=2), False, "ok"),  # a slot that was free for a moment only
        (1, 1, Requirements(cpu=0.5), False, "ok"),  # the free slot has not the cores that it needs
        (1, 1, Requirements(cpu=2), True, "ok"),  # deleted after the second look
    ],
)
def test_futures_that_wait_are_a_problem_where_a_worker_has_room_for_them(
    first: int, second: int, free: Requirements, gone: bool, found: str
) -> None:
    space = ClusterSpace("c")
    db = open_database(f"memory:{uuid4().hex}")
    future = run(
        db, submit_future, space, FutureSpec(code=b"code", args=b"args", requirements=Requirements(cpu=1))
    ).bytes
    worker = WorkerId("127.0.0.1", 1, b"i" * 16)

    def look(counter: int, slots: int) -> Look:
        beat = Heartbeat(counter=counter, slots=4, free_slots=slots, free=free)
        status = WorkerStatus(worker, WorkerInfo(slots=4, total=Requirements(cpu=4)), beat)
        return Look(workers=[status], unclaimed={future: Counted(future, FutureState.unclaimed, 0, 0, 0)})

    info = run(db, describe_future, space, future, strategy="off")
    findings = check_futures(Observation(look(1, first), look(2, second), 6.0), lambda _: None if gone else info)
    assert [finding.level.value for finding in findings] == [found]


def test_work_without_workers_and_a_clock_that_nobody_advances(tmp_path: Path, cluster: Any) -> None:
    local = cluster(workers=0)
    local.client().submit(len, "").id
    code, findings = examine(tmp_path, local.url, local.name, "--watch", "1")
    assert code == 1
    assert says(findings, "futures", "problem", "1 future waits and no worker lives")
    assert says(findings, "clock", "warning", "no service runs")
    assert says(findings, "janitor", "warning", "no janitor runs")


def test_a_lease_whose_holder_was_cleared_away_is_found() -> None:
    db, name = open_database(f"memory:{uuid4().hex}"), "c"
    holder = LeaseManager(db, name)
    lease = holder.acquire("of the cleared")
    seen = observe(db, name, 0, pause=lambda _: None)
    assert [finding.level.value for finding in check_leases(seen)] == ["ok"]
    for look in (seen.first, seen.second):
        look.sessions.clear()  # as after a sweep of dead sessions: the lease's row stays until somebody wants it
    found, _ = check_leases(seen)
    assert (found.level.value, found.do) == ("ok", ""), "nothing is to be done, so nothing is warned of"
    assert "holds 1 lease ('of the cleared')" in found.what
    lease.release()
    holder.close()


def test_the_leases_of_one_dead_process_are_one_finding_and_a_problem_where_others_wait() -> None:
    db, name = open_database(f"memory:{uuid4().hex}"), "c"
    holder = LeaseManager(db, name)
    for at in range(9):
        holder.acquire(f"shard/{at}")
    seen = observe(db, name, 0, pause=lambda _: None)
    for look in (seen.first, seen.second):
        look.sessions.clear()
    found, alive = check_leases(seen)
    assert f":{os.getpid()}, which is dead, holds 9 leases ('shard/0', 'shard/1'," in found.what
    assert "and 4 more): whoever acquires next takes over" in found.what
    assert alive.what == "0 leases, held by processes that live"
    waiter = Waiter("b" * 32, "exclusive", "vm", 1, datetime.now(UTC))
    seen.second.leases = [
        dataclasses.replace(lease, waiters=(waiter,) if lease.name == "shard/3" else ()) for lease in seen.second.leases
    ]
    problem, rest, _ = check_leases(seen)
    assert problem.level.value == "problem"
    assert problem.what.endswith("which is dead, holds 1 lease ('shard/3'); 1 waiter")
    assert problem.do == "`mainspring leases force-release shard/3 --reason …`"
    assert (rest.level.value, "8 leases" in rest.what) == ("ok", True)
    holder.close()


def test_a_cluster_that_is_not_there_is_named_beside_those_that_are(tmp_path: Path, cluster: Any) -> None:
    local = cluster(workers=0)
    local.client().submit(len, "").id
    code, findings = examine(tmp_path, local.url, "mistyped", "--watch", "0.5")
    assert code == 1
    assert says(
        findings, "cluster", "problem", f"there is no cluster 'mistyped' in this database; it has '{local.name}'"
    )
    assert says(findings, "workers", "warning", "no worker runs")


def test_data_of_a_newer_release_is_named_and_hides_nothing_else(tmp_path: Path, cluster: Any) -> None:
    local = cluster(workers=0)
    local.client().close()
    db, space = open_database(local.url), ClusterSpace(local.name)
    run(db, lambda tr: tr.set(space.format.pack(("lease",)), pack(99)))
    code, findings = examine(tmp_path, local.url, local.name, "--watch", "0.5")
    assert code == 1
    assert says(findings, "versions", "problem", "subspace 'lease' was written in format 99")
    assert any(f["check"] == "futures" and f["level"] == "ok" for f in findings)


def test_what_is_no_database_is_an_error_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "holiday.jpg").write_bytes(b"\xff\xd8")
    done = mainspring(tmp_path, "doctor", "--db", f"embedded:{tmp_path / 'db'}")
    assert done.returncode == 4
    assert done.stderr.startswith("error: embedded:")


def test_a_healthy_cluster_has_nothing(tmp_path: Path) -> None:
    running = Up(tmp_path / "cluster", "--workers", "1")
    try:
        running.wait_ready()
        db = open_database(running.url)
        wait_until(lambda: len(duty_reports(db, ClusterSpace("mainspring"))) == 7, "a round of each duty")
        done = running.command("doctor", "--strict", "--min-free", "1MiB", "--deep")
        assert done.returncode == 0, done.stdout
        assert "0 problems, 0 warnings" in done.stdout
    finally:
        running.close()


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no memory-backed storage here")
def test_a_database_in_memory_is_warned_of() -> None:
    findings = check_space("embedded:/dev/shm/somewhere", 1, [])
    assert [finding.level.value for finding in findings] == ["warning"]
    assert "a restart of the machine ends it" in findings[0].what
