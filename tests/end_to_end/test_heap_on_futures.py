"""Tasks that writes trigger, run as futures by real workers; a scheduler that dies leaves its future to the next."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fdb_schema import open_database
from idempotent_txn import run
from s3heap_tender import Heap, HeapStore, Scheduler, SysDb, Tender, futures_trigger
from s3heap_tender.claims.sessions import LocalSessions

DEADLINE = 60.0


def note(folder: str) -> Callable[[Any, int, int], int]:
    def work(task: Any, gen: int, epoch: int) -> int:
        with (Path(folder) / f"{task.name}-{gen}").open("a") as file:
            file.write(f"epoch {epoch}\n")
        return 3

    return work


def test_a_write_causes_a_future_and_its_result_ends_the_run(cluster: Any, tmp_path: Path) -> None:
    local = cluster(workers=1, slots=2)
    client = local.client()
    sysdb = SysDb(open_database(local.url), local.name, sessions=LocalSessions())
    heap = Heap(HeapStore(f"file:{tmp_path / 'heap'}"), sysdb)
    task = sysdb.create_task("orders", "index", cadence=0)
    run(sysdb.db, sysdb.record_write, "orders", 3)
    tender = Tender(heap, sysdb)
    scheduler = Scheduler(heap, sysdb, futures_trigger(client, note(str(tmp_path))), concurrency=0)
    deadline = time.monotonic() + DEADLINE
    while sysdb.get(task.id).state != "waiting":
        assert time.monotonic() < deadline
        tender.turn()
        scheduler.turn()
    assert sysdb.get(task.id).completion_offset == 3
    assert (tmp_path / "index-1").read_text() == "epoch 1\n"


def test_a_new_scheduler_attaches_to_the_future_that_runs(cluster: Any, tmp_path: Path) -> None:
    local = cluster(workers=1, slots=2)
    client = local.client()
    db = open_database(local.url)
    dying = SysDb(db, local.name, sessions=LocalSessions())
    heap = Heap(HeapStore(f"file:{tmp_path / 'heap'}"), dying)
    task = dying.create_task("orders", "index", cadence=0)
    Tender(heap, dying).turn()
    trigger = futures_trigger(client, note(str(tmp_path)))
    claim = dying.claim(task)
    trigger(claim.task, claim.gen, claim.epoch).result()  # and then it dies, before it settles its claim
    dying.close()
    living = SysDb(db, local.name, sessions=LocalSessions())
    scheduler = Scheduler(Heap(heap.store, living), living, trigger, concurrency=0)
    assert scheduler.turn().finished == 1
    assert living.get(task.id).state == "waiting"
    assert (tmp_path / "index-1").read_text() == "epoch 1\n"
