"""Commands on tasks."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fdb_schema.cli import JsonOption, fail, print_json, print_rows, say
from fdb_schema.errors import EXIT_USAGE
from s3heap_tender import inspection
from s3heap_tender.cli.common import (
    TaskArgument,
    app,
    partition_of,
    show_cell,
    show_task,
    sysdb_command,
    sysdb_reader,
    task_row,
)
from s3heap_tender.cli.moments import Moments
from s3heap_tender.sysdb import SysDb


@app.command()
@sysdb_reader
def tasks(
    sysdb: SysDb,
    partition: Annotated[str | None, typer.Option(help="Only of this partition: a UUID or a name.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List tasks."""
    moments = Moments(sysdb.now())
    rows = [task_row(task, moments) for task in sysdb.tasks(None if partition is None else partition_of(partition))]
    columns = ("id", "name", "state", "gen", "due_in", "due_at", "cadence", "completion_offset", "paused", "dead")
    print_rows(rows, columns, as_json=as_json, empty="no tasks", show=show_cell)


@app.command()
@sysdb_reader
def describe(sysdb: SysDb, task: TaskArgument, as_json: JsonOption = False) -> None:
    """Show a task, the end of what its last run printed, and why it is not running."""
    found = sysdb.describe(task)
    moments = Moments(found.now)
    row = {**task_row(found.task, moments), **{k: v for k, v in asdict(found).items() if k != "task"}}
    row.update(moments.fields("not_before", found.not_before))
    if as_json:
        print_json(row)
        return
    for name, value in row.items():
        if name in ("reasons", "output", "output_gen", "now") or name.endswith(("_in", "_at")):
            continue
        if name == "last_start" and row["last_start_in"] is not None:
            value = f"{moments.relative(row['last_start_in'])}, {moments.short(row['last_start_at'])}"
        elif name in ("due", "last_start", "not_before") and value is not None:
            value = moments.text(value)
        say(f"{name:18} {value}")
    if found.output:
        say(f"generation {found.output_gen} printed at its end:")
        for line in found.output.rstrip("\n").split("\n"):
            say(f"  {line}")
    since = f"it runs since {row['last_start_at'] and moments.short(row['last_start_at'])}"
    for reason in found.reasons or (since,):
        say(f"→ {reason}")


@app.command()
@sysdb_command
def create(
    sysdb: SysDb,
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
) -> None:
    """Create a task; it is due at once."""
    try:
        made = sysdb.create_task(
            partition_of(partition),
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
    show_task(sysdb, made, as_json)


@app.command()
@sysdb_command
def pause(sysdb: SysDb, task: TaskArgument, as_json: JsonOption = False) -> None:
    """Start no more runs of a task; writes accumulate."""
    show_task(sysdb, sysdb.pause(task), as_json)


@app.command()
@sysdb_command
def resume(sysdb: SysDb, task: TaskArgument, as_json: JsonOption = False) -> None:
    """End a pause; what was written meanwhile causes one run."""
    show_task(sysdb, sysdb.resume(task), as_json)


@app.command(name="run-now")
@sysdb_command
def run_now(sysdb: SysDb, task: TaskArgument, as_json: JsonOption = False) -> None:
    """Run a task as soon as its cadence allows."""
    show_task(sysdb, sysdb.run_now(task), as_json)


@app.command()
@sysdb_command
def backfill(
    sysdb: SysDb,
    task: TaskArgument,
    runs: Annotated[int, typer.Argument(min=1, help="How many more generations.")],
    as_json: JsonOption = False,
) -> None:
    """Give a task more generations, a cadence apart."""
    show_task(sysdb, sysdb.backfill(task, runs), as_json)


@app.command()
@sysdb_command
def delete(sysdb: SysDb, task: TaskArgument, as_json: JsonOption = False) -> None:
    """Delete a task for ever."""
    deleted = sysdb.delete(task)
    if as_json:
        print_json({"task": str(task), "deleted": deleted})
    else:
        say(f"task {task} was {'deleted' if deleted else 'deleted before'}")


@app.command(name="next")
@sysdb_reader
def next_(
    sysdb: SysDb,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 10,
    as_json: JsonOption = False,
) -> None:
    """List the tasks that start next, from the sysdb alone."""
    moments = Moments(sysdb.now())
    rows = [task_row(task, moments) for task in inspection.next_due(sysdb, limit)]
    columns = ("due_in", "due_at", "id", "name", "gen")
    print_rows(rows, columns, as_json=as_json, empty="nothing is scheduled", show=show_cell, flowing="name")


@app.command()
@sysdb_reader
def dlq(sysdb: SysDb, as_json: JsonOption = False) -> None:
    """List dead letters: generations that failed too often."""
    moments = Moments(sysdb.now())
    rows = [{**asdict(letter), **moments.fields("died", letter.at)} for letter in sysdb.dead_letters()]
    columns = ("task", "gen", "name", "failures", "died_at", "error")
    print_rows(rows, columns, as_json=as_json, empty="no dead letters", show=show_cell, flowing="error")


@app.command()
@sysdb_command
def redrive(
    sysdb: SysDb,
    task: TaskArgument,
    gen: Annotated[int, typer.Argument(help="The dead letter's generation.")],
    as_json: JsonOption = False,
) -> None:
    """Run a dead letter's generation again."""
    show_task(sysdb, sysdb.redrive(task, gen), as_json)
