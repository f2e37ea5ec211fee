"""What the commands share: the application, its options, and how they open sysdb and heap."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any
from uuid import UUID

import typer

from fdb_schema import open_database
from fdb_schema.cli import command_app, print_json, print_rows
from s3heap_tender.heap import Heap
from s3heap_tender.items import HeapItem
from s3heap_tender.records import Task
from s3heap_tender.stores import HeapStore
from s3heap_tender.sysdb import SysDb

app = command_app("s3heap-tender", "Tasks that run because data was written, no faster than their cadence.")

StoreOption = Annotated[
    str,
    typer.Option(
        "--store", envvar="MAINSPRING_HEAP", metavar="URL", help="The heap: s3://BUCKET/PREFIX or file:DIRECTORY."
    ),
]
EndpointOption = Annotated[
    str | None,
    typer.Option("--endpoint-url", envvar="AWS_ENDPOINT_URL", metavar="URL", help="Of an S3 server other than AWS's."),
]
TaskArgument = Annotated[UUID, typer.Argument(metavar="TASK", help="The task's id.")]
DEFAULT_STORE = "file:./heap"


@contextmanager
def open_sysdb(db: str | None, cluster: str) -> Iterator[SysDb]:
    with SysDb(open_database(db), cluster) as sysdb:
        yield sysdb


@contextmanager
def open_heap(db: str | None, cluster: str, store: str, endpoint_url: str | None) -> Iterator[Heap]:
    with (
        open_sysdb(db, cluster) as sysdb,
        HeapStore(store, endpoint_url=endpoint_url if store.startswith("s3:") else None) as opened,
        Heap(opened, sysdb) as heap,
    ):
        yield heap


def stop_on_signals() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    return stop


def task_row(task: Task) -> dict[str, Any]:
    row = asdict(task)
    row.pop("payload")
    row["backoff"].pop("extra", None)
    return row


def show_task(task: Task, as_json: bool) -> None:
    row = task_row(task)
    if as_json:
        print_json(row)
    else:
        print_rows([row], ("id", "name", "state", "gen", "due", "paused", "dead"), as_json=False)


def item_row(item: HeapItem) -> dict[str, Any]:
    return {"task": str(item.task), "partition": str(item.partition), "gen": item.gen, "due": item.due}
