"""Commands on the heap."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fdb_schema.cli import JsonOption, fail, print_json, print_rows, say
from fdb_schema.errors import EXIT_FAILED, EXIT_USAGE
from s3heap_tender import export as exporting
from s3heap_tender import inspection
from s3heap_tender.cli.common import app, heap_command, heap_reader, item_row, show_cell
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
    columns = ("due_in", "due_at", "task", "gen", "partition")
    print_rows(rows, columns, as_json=as_json, empty="the heap has no live item", show=show_cell)


@app.command()
@heap_reader
def buckets(heap: Heap, as_json: JsonOption = False) -> None:
    """List the heap's objects, oldest first."""
    moments = Moments(heap.sysdb.now())
    rows = [{**asdict(bucket), **moments.fields("start", bucket.start)} for bucket in heap.buckets()]
    columns = ("key", "shard", "start_in", "start_at", "items", "size")
    print_rows(rows, columns, as_json=as_json, empty="the heap is empty", show=show_cell)


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
    for name, value in found.items():
        if name in ("oldest", "newest"):
            name, value = f"{name} bucket", "none" if value is None else moments.text(value)
        say(f"{name:18} {value}")


@app.command()
@heap_command
def prune(
    heap: Heap,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many objects.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
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
        for name, value in row.items():
            say(f"{name:12} {value}")
    if not found.clean and not (repair and not found.unknown and not found.foreign):
        raise typer.Exit(EXIT_FAILED)


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
        print_json({"file": str(file), "items": items})
    else:
        say(f"{items} item{'s' if items != 1 else ''} written to {file}")
