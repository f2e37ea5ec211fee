"""The log that the pipeline's demo writes to, and what runs on the workers because of it.

    (cluster, "demo_log", partition, offset)                → file name, its text compressed (msgpack)
    (cluster, "demo_runs", partition, begin, end, gen, attempt) → lines, functions, complexity, wall µs (msgpack)

A run covers the records [begin, end) of its partition. Its row is written in a transaction that reads that the task still
stands at `begin`, so a run that was given up writes nothing late; whoever adds up follows the rows from 0 to the end.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from fdb_schema import ClusterSpace, open_database, pack, read_range, unpack
from futures_worker import current_client
from futures_worker.worker.child.task_context import current_task
from idempotent_txn import run
from mainspring.demo.complexity import Report, analyse_source
from s3heap_tender import ReadUpTo, SysDb
from s3heap_tender.claims import transitions

PAGE: Final = 50
LARGEST: Final = 60_000


@dataclass(frozen=True, slots=True)
class Covered:
    """A run's row."""

    begin: int
    end: int
    gen: int
    attempt: int
    lines: int
    functions: int
    complexity: int
    wall_us: int


def append(tr: Any, sysdb: SysDb, partition: str, begin: int, sources: Sequence[tuple[str, bytes]]) -> None:
    """Write records to a partition's log, and that they were written: both commit, or neither."""
    log = sysdb.space["demo_log"]
    for offset, (name, text) in enumerate(sources, begin):
        tr.set(log.pack((partition, offset)), pack([name, text]))
    sysdb.record_write(tr, partition, len(sources))


def compressed(source: bytes) -> bytes | None:
    """A record's text; None where it is too large for this demo."""
    data = zlib.compress(source, 6)
    return data if len(data) <= LARGEST else None


def analyse_record(name: str, text: bytes) -> Report:
    """One future: the report of one record."""
    return analyse_source(zlib.decompress(text), name)


def index(task_id: UUID, gen: int, attempt: int) -> ReadUpTo:
    """The memoized invocation: a future per record that the task hasn't read yet; says up to where it read."""
    here = current_task()
    assert here is not None, "it runs on a worker"
    client = current_client()
    with SysDb(open_database(here.url), here.cluster) as sysdb:
        task = sysdb.get(task_id)
        partition = task.payload.decode()
        begin = task.completion_offset
        end = sysdb.log_end(partition)
        reports: list[Report] = []
        for start in range(begin, end, PAGE):
            records = run(sysdb.db, _records, sysdb.space, partition, start, min(end, start + PAGE), strategy="off")
            futures = [client.submit(analyse_record, name, text, name=f"analyse {name}") for name, text in records]
            reports += client.gather(futures, progress=False)
            client.delete_all(futures)
        run(sysdb.db, _write_run, sysdb, task_id, partition, begin, end, gen, attempt, reports)
    return ReadUpTo(end)


def _records(tr: Any, space: ClusterSpace, partition: str, begin: int, end: int) -> list[tuple[str, bytes]]:
    log = space["demo_log"]
    rows = read_range(tr, log.pack((partition, begin)), log.pack((partition, end)), snapshot=True)
    assert len(rows) == end - begin, f"records {begin} to {end} of {partition} are written before they are counted"
    found = [unpack(value) for _, value in rows]
    return [(name, text) for name, text in found]


def _write_run(
    tr: Any,
    sysdb: SysDb,
    task_id: UUID,
    partition: str,
    begin: int,
    end: int,
    gen: int,
    attempt: int,
    reports: Sequence[Report],
) -> None:
    row = transitions.load_existing(tr, sysdb.layout, task_id)
    if row.gen != gen or row.completion != begin:
        return
    key = sysdb.space["demo_runs"].pack((partition, begin, end, gen, attempt))
    lines, functions = sum(r.lines for r in reports), sum(r.functions for r in reports)
    tr.set(key, pack([lines, functions, sum(r.complexity for r in reports), time.time_ns() // 1000]))


def runs_of(tr: Any, space: ClusterSpace, partition: str) -> list[Covered]:
    """Every run's row of a partition, in the order of the log."""
    runs = space["demo_runs"]
    prefix = runs.pack((partition,))
    rows = read_range(tr, prefix, prefix + b"\xff", snapshot=True)
    return [Covered(*runs.unpack(key)[1:], *unpack(value)) for key, value in rows]


def chain(runs: Sequence[Covered], end: int) -> list[Covered] | None:
    """Runs that cover [0, end) without gap or overlap; None where no such chain exists."""
    before: dict[int, Covered | None] = {0: None}
    for one in sorted(runs, key=lambda one: (one.begin, one.end)):
        if one.begin in before and one.end > one.begin:
            before.setdefault(one.end, one)
    if end not in before:
        return None
    found: list[Covered] = []
    last = before[end]
    while last is not None:
        found.append(last)
        last = before[last.begin]
    return found[::-1]
