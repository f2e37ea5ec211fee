"""Commands on the heap."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from fdb_schema.cli import (
    DryRunOption,
    JsonOption,
    LimitOption,
    fail,
    in_terminal,
    print_json,
    print_record,
    print_rows,
    say,
)
from fdb_schema.errors import EXIT_FAILED, EXIT_USAGE
from fdb_schema.serving.figures import short_ids, size, told
from s3heap_tender import export as exporting
from s3heap_tender import inspection
from s3heap_tender.cli.common import app, heap_command, heap_reader, item_row, look_of, show_cell
from s3heap_tender.cli.moments import Moments
from s3heap_tender.heap import Heap


@app.command()
@heap_reader
def peek(
    heap: Heap,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
    before: Annotated[float | None, typer.Option(help="Only what is due before, s of the cluster clock.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the heap's live items in the order of their due times."""
    moments = Moments(heap.sysdb.now())
    try:
        items = heap.peek(limit, before)
    except ValueError as error:
        fail(str(error), EXIT_USAGE)
    rows = [item_row(item, moments) for item in items]
    columns = (
        ("due_in", "task", "gen", "partition") if in_terminal() else ("due_in", "due_at", "task", "gen", "partition")
    )
    if in_terminal() and not as_json:
        short = short_ids([row["task"] for row in rows]), short_ids([row["partition"] for row in rows])
        rows = [row | {"task": short[0][row["task"]], "partition": short[1][row["partition"]]} for row in rows]
    print_rows(rows, columns, as_json=as_json, empty="the heap has no live item", show=show_cell, style=look_of)


@app.command()
@heap_reader
def buckets(heap: Heap, limit: LimitOption = None, as_json: JsonOption = False) -> None:
    """List the heap's objects, oldest first."""
    moments = Moments(heap.sysdb.now())
    rows = [{**asdict(bucket), **moments.fields("start", bucket.start)} for bucket in heap.buckets()]
    columns = ("start_in", "items", "size", "shard", "key") if in_terminal() else _BUCKET_COLUMNS
    print_rows(rows, columns, as_json=as_json, empty="the heap is empty", show=_show_bucket, limit=limit)


_BUCKET_COLUMNS = ("key", "shard", "start_in", "start_at", "items", "size")


def _show_bucket(column: str, value: Any) -> str:
    return size(value) if column == "size" and in_terminal() else show_cell(column, value)


@app.command()
@heap_reader
def summary(heap: Heap, as_json: JsonOption = False) -> None:
    """Say what is on the heap and how far behind the system is."""
    moments = Moments(heap.sysdb.now())
    counted = heap.summary()
    found = {**asdict(counted), **asdict(inspection.metrics(heap.sysdb, heap))}
    if as_json:
        print_json({**found, **moments.fields("oldest", counted.oldest), **moments.fields("newest", counted.newest)})
        return
    shown = {}
    for name, value in found.items():
        if name in ("oldest", "newest"):
            name, value = f"{name} bucket", None if value is None else moments.text(value)
        shown[name] = told(round(value, 3) if isinstance(value, float) else value, "none")
    print_record(shown, _MEANINGS)


_MEANINGS = {
    "items": "done ones among them, until they are pruned",
    "due": "live items whose time has come",
    "by_shard": "items of each",
    "oldest_due_age": "seconds that the longest-waiting task is late",
    "dirty_lag": "seconds since the oldest write that no tender has looked at",
    "dirty_partitions": "written since a tender last looked",
    "outbox_depth": "to push: runs to be put on the heap",
    "cursor_lag": "seconds without a prune",
    "active": "tasks scheduled or running",
    "retakes": "runs taken over from schedulers that are gone",
    "dead_letters": "runs given up after too many failures",
    "conflicts": "writes to the store that another was faster with",
    "requests": "of this look",
    "orphaned": "runs whose scheduler is gone",
}
"""What words mean that are the data model's own."""


@app.command()
@heap_command
def prune(
    heap: Heap,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many objects.")] = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove done items from the heap."""
    found = asdict(heap.prune(limit, dry_run=dry_run))
    print_rows([found], tuple(found), as_json=as_json)


@app.command()
@heap_reader
def fsck(
    heap: Heap,
    repair: Annotated[bool, typer.Option("--repair", help="Mend what is found; without it nothing changes.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare heap and sysdb; exit code 1 where something is wrong and was not mended."""
    found = inspection.fsck(heap, heap.sysdb, repair=repair)
    moments = Moments(heap.sysdb.now())
    row = {**asdict(found), "clean": found.clean}
    row["unknown"] = [item_row(item, moments) for item in found.unknown]
    if as_json:
        print_json(row)
    else:
        counted = {name: told(value, "none") for name, value in row.items() if name != "unknown"}
        print_record({**counted, "unknown": len(found.unknown) or "none"}, _FOUND)
        for item in row["unknown"]:
            say(f"  of no task: {item['task']} generation {item['gen']}, due {item['due_at']}")
    if not found.clean and not (repair and not found.unknown and not found.foreign):
        raise typer.Exit(EXIT_FAILED)


_FOUND = {
    "missing": "items that the heap lacks",
    "prunable": "done items",
    "unknown": "items of tasks that never were",
    "unreadable": "objects that are damaged",
    "foreign": "objects that are none of the heap's",
    "overdue": "items due for over a minute",
}


@app.command()
@heap_reader
def export(
    heap: Heap,
    file: Annotated[Path, typer.Argument(help="The Parquet file to be written; one that is there is replaced.")],
    as_json: JsonOption = False,
) -> None:
    """Write the heap's items to a Parquet file, to be looked at with other tools. Needs pyarrow."""
    items = exporting.export_parquet(heap, file)
    if as_json:
        print_json({"file": str(file), "items": items, "unreadable": sorted(heap.unreadable)})
    else:
        say(f"{items} item{'s' if items != 1 else ''} written to {file}")
        for key, why in sorted(heap.unreadable.items()):
            say(f"  without those of {key}: {why}", err=True)
