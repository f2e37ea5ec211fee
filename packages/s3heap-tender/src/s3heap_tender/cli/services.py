"""Commands that run the services, and the one that checks what they did."""

from __future__ import annotations

import logging
import shutil
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fdb_schema.cli import JsonOption, MetricsAddressOption, MetricsPortOption, fail, print_rows
from fdb_schema.errors import EXIT_FAILED, EXIT_USAGE
from fdb_schema.serving.ending import SILENT_SECONDS, end_though_silent
from fdb_schema.serving.metrics import metrics_served
from s3heap_tender import history
from s3heap_tender.cli.common import PollOption, app, heap_maker, heap_service, stop_on_signals
from s3heap_tender.heap import Heap
from s3heap_tender.prometheus import scheduler_metrics, tender_metrics
from s3heap_tender.runs.triggers import subprocess_trigger
from s3heap_tender.scheduler import Scheduler
from s3heap_tender.tender import KEEP_TOMBSTONES, Tender

log = logging.getLogger("s3heap_tender")


@app.command()
@heap_maker
def tend(
    heap: Heap,
    poll: PollOption = 0.2,
    keep_tombstones: Annotated[
        float, typer.Option(help="Seconds for which a deleted task's id is remembered.")
    ] = KEEP_TOMBSTONES,
    metrics_address: MetricsAddressOption = "127.0.0.1",
    metrics_port: MetricsPortOption = None,
) -> None:
    """Run a tender until interrupted: sweep writes, push what is due, prune, reconcile."""
    stop = stop_on_signals()
    end_though_silent(stop, heap.sysdb.db)
    log.info("tending %s, %d shards, for cluster %s", heap.store.url, heap.shards, heap.sysdb.cluster)
    tender = Tender(heap, heap.sysdb, poll=poll, keep_tombstones=keep_tombstones)
    with metrics_served(lambda: tender_metrics(tender), metrics_address, metrics_port):
        tender.run(stop)


@app.command()
@heap_service
def schedule(
    heap: Heap,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="What runs a task; write -- before it.")],
    poll: PollOption = 0.2,
    concurrency: Annotated[int, typer.Option(min=1, help="Runs at once.")] = 8,
    timeout: Annotated[float | None, typer.Option(help="Seconds until a run is killed.")] = None,
    grace: Annotated[float, typer.Option(help="Seconds that runs have to end when the scheduler is stopped.")] = 30.0,
    metrics_address: MetricsAddressOption = "127.0.0.1",
    metrics_port: MetricsPortOption = None,
) -> None:
    """Run a scheduler until interrupted: each due task runs COMMAND, with the task in its environment (S3HEAP_…).

    The end of what COMMAND prints is kept: `show` shows it.
    """
    if shutil.which(command[0]) is None:  # or each task would fail, and be a dead letter in the end
        fail(f"command not found: {command[0]!r} can't be run", EXIT_USAGE)
    stop = stop_on_signals()
    end_though_silent(stop, heap.sysdb.db, lambda: max(grace, SILENT_SECONDS))
    over = threading.Event()
    trigger = subprocess_trigger(command, timeout=timeout, stop=over)
    scheduler = Scheduler(heap, heap.sysdb, trigger, concurrency=concurrency, poll=poll)
    log.info("running what is due on %s, for cluster %s", heap.store.url, heap.sysdb.cluster)
    try:
        with metrics_served(lambda: scheduler_metrics(scheduler), metrics_address, metrics_port):
            scheduler.run(stop, grace=grace)
    finally:
        # What has used up its grace is killed before the session ends: then it runs nowhere twice.
        over.set()
        scheduler.drain(10.0)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="A trace, as MAINSPRING_TRACE=FILE writes it.")],
    live: Annotated[bool, typer.Option("--live", help="The system still runs: don't miss runs to come.")] = False,
    follow: Annotated[float | None, typer.Option(help="Check a live system's trace every so many seconds.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Find in a trace what must never happen; exit code 1 where there is any."""
    stop = threading.Event() if follow is None else stop_on_signals()
    while True:
        found = _violations(file, drained=not live and follow is None)
        if found or follow is None or stop.wait(follow):
            break
    rows = [asdict(violation) for violation in found]
    print_rows(rows, ("kind", "line", "message"), as_json=as_json, empty="no violation")
    if found:
        raise typer.Exit(EXIT_FAILED)


def _violations(file: Path, *, drained: bool) -> list[history.Violation]:
    try:
        with file.open(encoding="utf-8") as lines:
            return history.check(lines, drained=drained)
    except OSError as error:
        fail(f"the trace can't be read: {error}", EXIT_USAGE)
