"""The command `s3heap-tender`: run the services, look at tasks and heap, and mend them."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NoReturn
from uuid import UUID

import typer

from fdb_schema import DEFAULT_CLUSTER, open_database
from fdb_schema.cli import ClusterOption, DbOption, JsonOption, command_app, fail, print_json, print_rows, run_app
from fdb_schema.errors import EXIT_FAILED, EXIT_USAGE
from s3heap_tender import history, inspection
from s3heap_tender.heap import Heap
from s3heap_tender.items import HeapItem
from s3heap_tender.records import Task
from s3heap_tender.scheduler import Scheduler
from s3heap_tender.stores import HeapStore
from s3heap_tender.sysdb import SysDb
from s3heap_tender.tender import Tender
from s3heap_tender.triggers import subprocess_trigger

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
def _sysdb(db: str | None, cluster: str) -> Iterator[SysDb]:
    with SysDb(open_database(db), cluster) as sysdb:
        yield sysdb


@contextmanager
def _heap(db: str | None, cluster: str, store: str, endpoint_url: str | None) -> Iterator[Heap]:
    with (
        _sysdb(db, cluster) as sysdb,
        HeapStore(store, endpoint_url=endpoint_url if store.startswith("s3:") else None) as opened,
        Heap(opened, sysdb) as heap,
    ):
        yield heap


def _stop_on_signals() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    return stop


def _task_row(task: Task) -> dict[str, Any]:
    row = asdict(task)
    row.pop("payload")
    row["backoff"].pop("extra", None)
    return row


def _show_task(task: Task, as_json: bool) -> None:
    row = _task_row(task)
    if as_json:
        print_json(row)
    else:
        print_rows([row], ("id", "name", "state", "gen", "due", "paused", "dead"), as_json=False)


def _item_row(item: HeapItem) -> dict[str, Any]:
    return {"task": str(item.task), "partition": str(item.partition), "gen": item.gen, "due": item.due}


@app.command()
def tend(
    store: StoreOption = DEFAULT_STORE,
    endpoint_url: EndpointOption = None,
    poll: Annotated[float, typer.Option(help="Seconds between looks.")] = 0.2,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
) -> None:
    """Run a tender until interrupted: sweep writes, push what is due, prune, reconcile."""
    stop = _stop_on_signals()
    with _heap(db, cluster, store, endpoint_url) as heap:
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
    stop = _stop_on_signals()
    with _heap(db, cluster, store, endpoint_url) as heap:
        trigger = subprocess_trigger(command, timeout=timeout)
        Scheduler(heap, heap.sysdb, trigger, concurrency=concurrency, poll=poll).run(stop)


@app.command()
def tasks(
    partition: Annotated[str | None, typer.Option(help="Only of this partition: a UUID or a name.")] = None,
    as_json: JsonOption = False,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
) -> None:
    """List tasks."""
    with _sysdb(db, cluster) as sysdb:
        rows = [_task_row(task) for task in sysdb.tasks(None if partition is None else _partition(partition))]
    columns = ("id", "name", "state", "gen", "due", "cadence", "completion_offset", "paused", "dead")
    print_rows(rows, columns, as_json=as_json, empty="no tasks")


def _partition(text: str) -> UUID | str:
    try:
        return UUID(text)
    except ValueError:
        return text


@app.command()
def describe(
    task: TaskArgument, as_json: JsonOption = False, db: DbOption = None, cluster: ClusterOption = DEFAULT_CLUSTER
) -> None:
    """Show a task, and say why it is not running."""
    with _sysdb(db, cluster) as sysdb:
        found = sysdb.describe(task)
    row = {**_task_row(found.task), **{k: v for k, v in asdict(found).items() if k not in ("task",)}}
    if as_json:
        print_json(row)
        return
    for name, value in row.items():
        if name != "reasons":
            print(f"{name:18} {value}")
    for reason in found.reasons or (f"running since {found.task.last_start:.3f} s (cluster clock)",):
        print(f"→ {reason}")


@app.command()
def create(
    partition: Annotated[str, typer.Argument(help="Whose writes run the task: a UUID or a name.")],
    name: Annotated[str, typer.Argument(help="The task's name, unique in its partition.")],
    cadence: Annotated[float, typer.Option(help="Seconds between starts.")] = 60.0,
    min_records: Annotated[int, typer.Option(help="Fewer unread records wait, at most --max-wait.")] = 1,
    max_wait: Annotated[float | None, typer.Option(help="Seconds that fewer records wait.")] = None,
    jitter: Annotated[float, typer.Option(help="Seconds over which runs are spread.")] = 0.0,
    backoff: Annotated[float, typer.Option(help="Seconds before the first retry.")] = 1.0,
    max_attempts: Annotated[int, typer.Option(help="Failures until a generation is a dead letter.")] = 5,
    overlap: Annotated[str, typer.Option(help="skip, buffer_one, buffer_all or cancel_other.")] = "skip",
    catch_up: Annotated[str, typer.Option(help="once or all.")] = "once",
    payload: Annotated[Path | None, typer.Option(help="File whose bytes the trigger gets.")] = None,
    as_json: JsonOption = False,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
) -> None:
    """Create a task; it is due at once."""
    with _sysdb(db, cluster) as sysdb:
        try:
            made = sysdb.create_task(
                _partition(partition),
                name,
                cadence,
                min_records,
                max_wait,
                jitter,
                backoff,
                max_attempts,
                overlap,
                catch_up,
                b"" if payload is None else payload.read_bytes(),
            )
        except (ValueError, OSError) as error:
            fail(str(error), getattr(error, "exit_code", EXIT_USAGE))
    _show_task(made, as_json)


@app.command()
def pause(
    task: TaskArgument, as_json: JsonOption = False, db: DbOption = None, cluster: ClusterOption = DEFAULT_CLUSTER
) -> None:
    """Start no more runs of a task; writes accumulate."""
    with _sysdb(db, cluster) as sysdb:
        _show_task(sysdb.pause(task), as_json)


@app.command()
def resume(
    task: TaskArgument, as_json: JsonOption = False, db: DbOption = None, cluster: ClusterOption = DEFAULT_CLUSTER
) -> None:
    """End a pause; what was written meanwhile causes one run."""
    with _sysdb(db, cluster) as sysdb:
        _show_task(sysdb.resume(task), as_json)


@app.command(name="run-now")
def run_now(
    task: TaskArgument, as_json: JsonOption = False, db: DbOption = None, cluster: ClusterOption = DEFAULT_CLUSTER
) -> None:
    """Run a task as soon as its cadence allows."""
    with _sysdb(db, cluster) as sysdb:
        _show_task(sysdb.run_now(task), as_json)


@app.command()
def backfill(
    task: TaskArgument,
    runs: Annotated[int, typer.Argument(min=1, help="How many more generations.")],
    as_json: JsonOption = False,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
) -> None:
    """Give a task more generations, a cadence apart."""
    with _sysdb(db, cluster) as sysdb:
        _show_task(sysdb.backfill(task, runs), as_json)


@app.command()
def delete(
    task: TaskArgument, as_json: JsonOption = False, db: DbOption = None, cluster: ClusterOption = DEFAULT_CLUSTER
) -> None:
    """Delete a task for ever."""
    with _sysdb(db, cluster) as sysdb:
        deleted = sysdb.delete(task)
    if as_json:
        print_json({"task": str(task), "deleted": deleted})
    else:
        print(f"task {task} was {'deleted' if deleted else 'deleted before'}")


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
    with _heap(db, cluster, store, endpoint_url) as heap:
        rows = [_item_row(item) for item in heap.peek(limit, before)]
    print_rows(rows, ("due", "task", "gen", "partition"), as_json=as_json, empty="the heap has no live item")


@app.command(name="next")
def next_(
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 10,
    as_json: JsonOption = False,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
) -> None:
    """List the tasks that start next, from the sysdb alone."""
    with _sysdb(db, cluster) as sysdb:
        now = sysdb.now()
        rows = [{**_task_row(task), "due_in": round(task.due - now, 3)} for task in inspection.next_due(sysdb, limit)]
    print_rows(rows, ("due_in", "id", "name", "gen"), as_json=as_json, empty="nothing is scheduled")


@app.command()
def buckets(
    store: StoreOption = DEFAULT_STORE,
    endpoint_url: EndpointOption = None,
    as_json: JsonOption = False,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
) -> None:
    """List the heap's objects, oldest first."""
    with _heap(db, cluster, store, endpoint_url) as heap:
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
    with _heap(db, cluster, store, endpoint_url) as heap:
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
    with _heap(db, cluster, store, endpoint_url) as heap:
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
    with _heap(db, cluster, store, endpoint_url) as heap:
        found = inspection.fsck(heap, heap.sysdb, repair=repair)
    row = {**asdict(found), "clean": found.clean}
    row["unknown"] = [_item_row(item) for item in found.unknown]
    if as_json:
        print_json(row)
    else:
        for name, value in row.items():
            print(f"{name:12} {value}")
    if not found.clean and not (repair and not found.unknown and not found.foreign):
        raise typer.Exit(EXIT_FAILED)


@app.command()
def dlq(as_json: JsonOption = False, db: DbOption = None, cluster: ClusterOption = DEFAULT_CLUSTER) -> None:
    """List dead letters: generations that failed too often."""
    with _sysdb(db, cluster) as sysdb:
        rows = [asdict(letter) for letter in sysdb.dead_letters()]
    print_rows(rows, ("task", "gen", "name", "failures", "error"), as_json=as_json, empty="no dead letters")


@app.command()
def redrive(
    task: TaskArgument,
    gen: Annotated[int, typer.Argument(help="The dead letter's generation.")],
    as_json: JsonOption = False,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
) -> None:
    """Run a dead letter's generation again."""
    with _sysdb(db, cluster) as sysdb:
        _show_task(sysdb.redrive(task, gen), as_json)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="A trace, as MAINSPRING_TRACE=FILE writes it.")],
    live: Annotated[bool, typer.Option("--live", help="The system still runs: don't miss runs to come.")] = False,
    follow: Annotated[float | None, typer.Option(help="Check a live system's trace every so many seconds.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Find in a trace what must never happen; exit code 1 where there is any."""
    stop = threading.Event() if follow is None else _stop_on_signals()
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


def main() -> NoReturn:
    """Run the command."""
    run_app(app)


if __name__ == "__main__":
    main()
