"""Commands on tasks."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer

from fdb_schema import DEFAULT_CLUSTER
from fdb_schema.cli import ClusterOption, DbOption, JsonOption, fail, print_json, print_rows
from fdb_schema.errors import EXIT_USAGE
from s3heap_tender import inspection
from s3heap_tender.cli.common import (
    TaskArgument,
    app,
    open_sysdb,
    show_task,
    task_row,
)


@app.command()
def tasks(
    partition: Annotated[str | None, typer.Option(help="Only of this partition: a UUID or a name.")] = None,
    as_json: JsonOption = False,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
) -> None:
    """List tasks."""
    with open_sysdb(db, cluster) as sysdb:
        rows = [task_row(task) for task in sysdb.tasks(None if partition is None else _partition(partition))]
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
    with open_sysdb(db, cluster) as sysdb:
        found = sysdb.describe(task)
    row = {**task_row(found.task), **{k: v for k, v in asdict(found).items() if k not in ("task",)}}
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
    with open_sysdb(db, cluster) as sysdb:
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
    show_task(made, as_json)


@app.command()
def pause(
    task: TaskArgument, as_json: JsonOption = False, db: DbOption = None, cluster: ClusterOption = DEFAULT_CLUSTER
) -> None:
    """Start no more runs of a task; writes accumulate."""
    with open_sysdb(db, cluster) as sysdb:
        show_task(sysdb.pause(task), as_json)


@app.command()
def resume(
    task: TaskArgument, as_json: JsonOption = False, db: DbOption = None, cluster: ClusterOption = DEFAULT_CLUSTER
) -> None:
    """End a pause; what was written meanwhile causes one run."""
    with open_sysdb(db, cluster) as sysdb:
        show_task(sysdb.resume(task), as_json)


@app.command(name="run-now")
def run_now(
    task: TaskArgument, as_json: JsonOption = False, db: DbOption = None, cluster: ClusterOption = DEFAULT_CLUSTER
) -> None:
    """Run a task as soon as its cadence allows."""
    with open_sysdb(db, cluster) as sysdb:
        show_task(sysdb.run_now(task), as_json)


@app.command()
def backfill(
    task: TaskArgument,
    runs: Annotated[int, typer.Argument(min=1, help="How many more generations.")],
    as_json: JsonOption = False,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
) -> None:
    """Give a task more generations, a cadence apart."""
    with open_sysdb(db, cluster) as sysdb:
        show_task(sysdb.backfill(task, runs), as_json)


@app.command()
def delete(
    task: TaskArgument, as_json: JsonOption = False, db: DbOption = None, cluster: ClusterOption = DEFAULT_CLUSTER
) -> None:
    """Delete a task for ever."""
    with open_sysdb(db, cluster) as sysdb:
        deleted = sysdb.delete(task)
    if as_json:
        print_json({"task": str(task), "deleted": deleted})
    else:
        print(f"task {task} was {'deleted' if deleted else 'deleted before'}")


@app.command(name="next")
def next_(
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 10,
    as_json: JsonOption = False,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
) -> None:
    """List the tasks that start next, from the sysdb alone."""
    with open_sysdb(db, cluster) as sysdb:
        now = sysdb.now()
        rows = [{**task_row(task), "due_in": round(task.due - now, 3)} for task in inspection.next_due(sysdb, limit)]
    print_rows(rows, ("due_in", "id", "name", "gen"), as_json=as_json, empty="nothing is scheduled")


@app.command()
def dlq(as_json: JsonOption = False, db: DbOption = None, cluster: ClusterOption = DEFAULT_CLUSTER) -> None:
    """List dead letters: generations that failed too often."""
    with open_sysdb(db, cluster) as sysdb:
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
    with open_sysdb(db, cluster) as sysdb:
        show_task(sysdb.redrive(task, gen), as_json)
