"""Commands on the heap."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from fdb_schema import DEFAULT_CLUSTER
from fdb_schema.cli import ClusterOption, DbOption, JsonOption, print_json, print_rows
from fdb_schema.errors import EXIT_FAILED
from s3heap_tender import inspection
from s3heap_tender.cli.common import (
    DEFAULT_STORE,
    EndpointOption,
    StoreOption,
    app,
    item_row,
    open_heap,
)


@app.command()
def peek(
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
    before: Annotated[float | None, typer.Option(help="Only what is due before, s of the cluster clock.")] = None,
    store: StoreOption = DEFAULT_STORE,
    endpoint_url: EndpointOption = None,
    as_json: JsonOption = False,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
) -> None:
    """List the heap's live items in the order of their due times."""
    with open_heap(db, cluster, store, endpoint_url) as heap:
        rows = [item_row(item) for item in heap.peek(limit, before)]
    print_rows(rows, ("due", "task", "gen", "partition"), as_json=as_json, empty="the heap has no live item")


@app.command()
def buckets(
    store: StoreOption = DEFAULT_STORE,
    endpoint_url: EndpointOption = None,
    as_json: JsonOption = False,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
) -> None:
    """List the heap's objects, oldest first."""
    with open_heap(db, cluster, store, endpoint_url) as heap:
        rows = [asdict(bucket) for bucket in heap.buckets()]
    print_rows(rows, ("key", "shard", "start", "items", "size"), as_json=as_json, empty="the heap is empty")


@app.command()
def summary(
    store: StoreOption = DEFAULT_STORE,
    endpoint_url: EndpointOption = None,
    as_json: JsonOption = False,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
) -> None:
    """Say what is on the heap and how far behind the system is."""
    with open_heap(db, cluster, store, endpoint_url) as heap:
        heap.sysdb.tick()
        found = {**asdict(heap.summary()), **asdict(inspection.metrics(heap.sysdb, heap))}
    if as_json:
        print_json(found)
        return
    for name, value in found.items():
        print(f"{name:18} {value}")


@app.command()
def prune(
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many objects.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    store: StoreOption = DEFAULT_STORE,
    endpoint_url: EndpointOption = None,
    as_json: JsonOption = False,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
) -> None:
    """Remove done items from the heap."""
    with open_heap(db, cluster, store, endpoint_url) as heap:
        found = asdict(heap.prune(limit, dry_run=dry_run))
    print_rows([found], tuple(found), as_json=as_json)


@app.command()
def fsck(
    repair: Annotated[bool, typer.Option("--repair", help="Mend what is found; without it nothing changes.")] = False,
    store: StoreOption = DEFAULT_STORE,
    endpoint_url: EndpointOption = None,
    as_json: JsonOption = False,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
) -> None:
    """Compare heap and sysdb; exit code 1 where something is wrong and was not mended."""
    with open_heap(db, cluster, store, endpoint_url) as heap:
        found = inspection.fsck(heap, heap.sysdb, repair=repair)
    row = {**asdict(found), "clean": found.clean}
    row["unknown"] = [item_row(item) for item in found.unknown]
    if as_json:
        print_json(row)
    else:
        for name, value in row.items():
            print(f"{name:12} {value}")
    if not found.clean and not (repair and not found.unknown and not found.foreign):
        raise typer.Exit(EXIT_FAILED)
