"""Commands that run the services, and the one that checks what they did."""

from __future__ import annotations

import threading
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fdb_schema import DEFAULT_CLUSTER
from fdb_schema.cli import ClusterOption, DbOption, JsonOption, fail, print_rows
from fdb_schema.errors import EXIT_FAILED, EXIT_USAGE
from s3heap_tender import history
from s3heap_tender.cli.common import (
    DEFAULT_STORE,
    EndpointOption,
    StoreOption,
    app,
    open_heap,
    stop_on_signals,
)
from s3heap_tender.scheduler import Scheduler
from s3heap_tender.tender import Tender
from s3heap_tender.triggers import subprocess_trigger


@app.command()
def tend(
    store: StoreOption = DEFAULT_STORE,
    endpoint_url: EndpointOption = None,
    poll: Annotated[float, typer.Option(help="Seconds between looks.")] = 0.2,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
) -> None:
    """Run a tender until interrupted: sweep writes, push what is due, prune, reconcile."""
    stop = stop_on_signals()
    with open_heap(db, cluster, store, endpoint_url) as heap:
        Tender(heap, heap.sysdb, poll=poll).run(stop)


@app.command()
def schedule(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="What runs a task; write -- before it.")],
    store: StoreOption = DEFAULT_STORE,
    endpoint_url: EndpointOption = None,
    poll: Annotated[float, typer.Option(help="Seconds between looks.")] = 0.2,
    concurrency: Annotated[int, typer.Option(min=1, help="Runs at once.")] = 8,
    timeout: Annotated[float | None, typer.Option(help="Seconds until a run is killed.")] = None,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
) -> None:
    """Run a scheduler until interrupted: each due task runs COMMAND, with the task in its environment (S3HEAP_…)."""
    stop = stop_on_signals()
    with open_heap(db, cluster, store, endpoint_url) as heap:
        trigger = subprocess_trigger(command, timeout=timeout)
        Scheduler(heap, heap.sysdb, trigger, concurrency=concurrency, poll=poll).run(stop)


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
