"""`top`: a cluster at work, refreshed in place."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fdb_datamodel import FutureState, WorkerStatus, census_page, list_workers
from fdb_schema.cli import DEFAULT_CLUSTER, ClusterOption, DbOption, JsonOption, print_json
from futures_worker.commands.listing import BRIEF_COLUMNS, show_cell, with_busy, worker_row
from futures_worker.commands.opening import look_into
from idempotent_txn import run

if TYPE_CHECKING:
    from rich.console import Group


def top(
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="Look once and end, as with --json and without a terminal.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show workers, futures by state, and how many end per second. Ctrl-C ends it."""
    from rich.console import Console
    from rich.live import Live

    database, space = look_into(db, cluster)
    console = Console()
    now = look(database, space)
    if as_json:
        print_json(now)
        return
    if once or not console.is_terminal:
        console.print(_page(cluster, now, None, 0.0))
        return
    with Live(_page(cluster, now, None, 0.0), console=console, screen=False) as live:
        while True:
            began = time.monotonic()
            time.sleep(interval)
            before, now = now, look(database, space)
            live.update(_page(cluster, now, before, time.monotonic() - began))


def look(database: Any, space: Any) -> dict[str, Any]:
    """What is shown, as plain data: workers, futures by state. Reads every future once, in pages."""
    statuses: list[WorkerStatus] = run(database, list_workers, space, strategy="off")
    states: Counter[FutureState] = Counter()
    after: bytes | None = None
    while True:
        counted, after = run(database, census_page, space, after, strategy="off")
        states.update(one.state for one in counted)
        if after is None:
            break
    return {
        "workers": [worker_row(status) for status in statuses],
        "futures": {state.value: states[state] for state in FutureState},
    }


def _page(cluster: str, now: dict[str, Any], before: dict[str, Any] | None, seconds: float) -> Group:
    from rich.console import Group
    from rich.text import Text

    from fdb_schema.serving.tables import table_of

    futures = now["futures"]
    text = f"cluster {cluster}: " + ", ".join(f"{count:,} {state}" for state, count in futures.items())
    if before is not None and seconds > 0:
        ended = sum(futures[state] - before["futures"][state] for state in ("realized", "failed"))
        text += f"; {max(0.0, ended / seconds):,.0f} ended per second"
    workers = [with_busy(row) for row in now["workers"]]
    table = table_of(workers, BRIEF_COLUMNS, show_cell) if workers else Text("no live worker", style="dim")
    where = ["`futures-worker ls --state unclaimed`"] if futures["unclaimed"] else []
    where += ["`futures-worker errors`"] if futures["failed"] else []
    reasons = [Text(f"see {', '.join(where)}", style="dim")] if where else []
    return Group(Text(text), *reasons, table)
