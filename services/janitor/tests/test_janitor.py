"""The janitor as real processes: what the dead left behind goes, what lives stays, and two of them do no harm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.upping import wait_until

from fdb_datamodel import list_workers
from fdb_schema import ClusterSpace, NewerFormatError, open_database, pack
from idempotent_txn import IdempotencyId, id_status, run
from lease_locks import LeaseManager, duty_reports
from mainspring_janitor.cleaning import Kept, duties_of
from s3heap_tender import Heap, HeapStore, Scheduler, SysDb, Tender

HOLDER = """
import sys, time
from lease_locks import LeaseManager
locks = LeaseManager(sys.argv[1], sys.argv[2], ttl=2.0); lease = locks.acquire("of the dead"); print("held", flush=True); time.sleep(600)
"""


@pytest.fixture
def janitors(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        with (tmp_path / f"janitor-{len(started)}.log").open("wb") as log:
            started.append(
                subprocess.Popen([sys.executable, "-m", "mainspring_janitor", *arguments], stdout=log, stderr=log)
            )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_what_the_dead_left_behind_goes(
    cluster: Any, janitors: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    local = cluster(workers=1, slots=1)
    db = open_database(local.url)
    space = ClusterSpace(local.name)
    store = f"file:{tmp_path / 'heap'}"

    # a done item that no tender prunes
    with SysDb(db, local.name) as sysdb, HeapStore(store) as opened, Heap(opened, sysdb) as heap:
        sysdb.create_task("orders", "index", cadence=0)
        Tender(heap, sysdb).turn(prune=False)
        scheduler = Scheduler(heap, sysdb, lambda *_: None, concurrency=0)
        wait_until(lambda: scheduler.turn().finished, "the run of the task")
        assert heap.summary().items == 1
    # a lease and a session of a process that is no more
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, local.url, local.name], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    # an id that is kept until it is old; a cluster cleans its own native ones
    run(
        db,
        lambda tr: tr.set(space["notes"].pack((1,)), b""),
        idempotency_id=IdempotencyId(b"order-17-of-the-shop"),
        strategy="ids",
    )
    # a worker that is no more
    local.workers[0].kill()

    with LeaseManager(db, local.name) as locks:
        living = locks.acquire("of the living")
        arguments = ("--db", local.url, "--cluster", local.name, "--store", store)
        for _ in range(2):
            janitors(*arguments, "--every", "0.3", "--ids-min-age", "0", "--leases-after", "0")

        wait_until(lambda: not run(db, list_workers, space, strategy="off"), "no dead worker")
        wait_until(lambda: locks.read("of the dead") is None, "no lease of the dead")
        wait_until(lambda: holder.pid not in {record.pid for _, record, _ in locks.sessions()}, "no dead session")
        wait_until(lambda: duty_reports(db, space).get("heap", None) is not None, "a round of the heap's duty")
        with SysDb(db, local.name) as sysdb, HeapStore(store) as opened, Heap(opened, sysdb) as heap:
            wait_until(lambda: heap.summary().items == 0, "no done item")
        wait_until(lambda: duty_reports(db, space)["ids"].done > 0, "ids that were cleared")
        reports = duty_reports(db, space)
        assert [name for name, report in reports.items() if report.failures] == []
        assert living.held
        assert max((stored.expired_version for stored in id_status(db)), default=0) > 0


def test_what_a_newer_release_wrote_is_left_alone() -> None:
    database = open_database("memory:")
    space = ClusterSpace("newer")
    run(database, lambda tr: tr.set(space.format.pack(("futures",)), pack(99)))
    with (
        LeaseManager(database, space.cluster) as locks,
        pytest.raises(NewerFormatError, match="has format 99, this release reads up to"),
    ):
        duties_of(database, space.cluster, locks, Kept(0, 0, None, None, 0, 0), 1.0, once=True)


def test_one_round_by_hand(tmp_path: Path, shared_url: str) -> None:
    open_database(shared_url)
    done = subprocess.run(
        [sys.executable, "-m", "mainspring_janitor", "--once", "--db", shared_url],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == [
        "workers",
        "sessions",
        "garbage",
        "leases",
        "ids",
        "runs",
    ]


def test_a_store_that_is_not_the_heaps_fails_its_duty_alone_and_nothing_is_made_there(
    tmp_path: Path, shared_url: str
) -> None:
    db = open_database(shared_url)
    with SysDb(db) as sysdb, HeapStore(f"file:{tmp_path / 'heap'}") as right, Heap(right, sysdb):
        pass
    wrong = tmp_path / "haep"
    command = [sys.executable, "-m", "mainspring_janitor", "--once", "--db", shared_url, "--store", f"file:{wrong}"]
    once = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert once.returncode == 1
    assert "holds no heap" in once.stderr
    assert "ids: 0" in once.stdout, "the other duties were done"
    assert not (wrong / "meta").exists()


def test_it_ends_at_sigterm(shared_url: str, janitors: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = janitors("--db", shared_url)
    db = open_database(shared_url)
    wait_until(lambda: len(duty_reports(db, ClusterSpace("mainspring"))) == 6, "a round of each duty")
    process.terminate()
    assert process.wait(60) == 0
    assert LeaseManager(db).list("duty/") == []


def test_its_figures_are_served_for_prometheus(tmp_path: Path, shared_url: str) -> None:
    store = f"file:{tmp_path / 'heap'}"
    command = [sys.executable, "-m", "mainspring_janitor", "--db", shared_url, "--store", store, "--metrics-port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        db = open_database(shared_url)
        wait_until(lambda: len(duty_reports(db, ClusterSpace("mainspring"))) == 7, "a round of each duty")
        with urllib.request.urlopen(url, timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        figures = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        assert figures['mainspring_futures{state="unclaimed",cluster="mainspring"}'] == "0"
        assert float(figures['mainspring_duty_rounds_total{duty="garbage",cluster="mainspring"}']) >= 1
        assert figures['mainspring_heap_outbox_depth{cluster="mainspring"}'] == "0"
        assert int(figures['mainspring_leases{cluster="mainspring"}']) == 7
    finally:
        process.terminate()
        assert process.wait(60) == 0
        assert process.stdout is not None
        process.stdout.close()
