"""Commands on tasks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final
from uuid import UUID

import typer

from fdb_schema.cli import (
    DryRunOption,
    JsonOption,
    LimitOption,
    fail,
    in_terminal,
    print_json,
    print_record,
    say,
    seconds_of,
)
from fdb_schema.errors import EXIT_USAGE
from s3heap_tender import inspection
from s3heap_tender.claims.describing import Description
from s3heap_tender.cli.common import (
    TaskArgument,
    app,
    partition_of,
    print_tasks,
    show_task,
    sysdb_command,
    sysdb_reader,
    task_row,
)
from s3heap_tender.cli.moments import Moments
from s3heap_tender.rows.records import CATCH_UPS, OVERLAPS, Task
from s3heap_tender.rows.states import State
from s3heap_tender.sysdb import SysDb

_WATCH_SECONDS: Final = 0.25


class Order(StrEnum):
    """By what `ls` sorts."""

    name = "name"
    due = "due"  # the next first
    age = "age"  # the last started first
    attempts = "attempts"  # the most first


_KEYS: Final[dict[Order, Callable[[Task], Any]]] = {
    Order.name: lambda task: (task.partition_name, task.name),
    Order.due: lambda task: (task.state == State.WAITING.value, task.due),
    Order.age: lambda task: -(task.last_start if task.last_start is not None else -1.0),
    Order.attempts: lambda task: -task.attempt,
}
_MEANINGS: Final = {
    "gen": "generation: runs so far, and the one to come",
    "live_gen": "items of lower generations are done",
    "epoch": "starts so far",
    "completion_offset": "records of the log that runs have processed",
    "log_end": "records written so far",
    "unread": "records written and not processed",
    "intent_pending": "to push: a run is to be put on the heap",
    "dirty": "written since a tender last looked",
    "dead": "gave up: a dead letter waits for redrive",
    "pending": "runs asked for that have no generation yet",
}
"""What words mean that are the data model's own."""


@app.command(aliases=("tasks",))
@sysdb_reader
def ls(
    sysdb: SysDb,
    partition: Annotated[
        str | None,
        typer.Option(metavar="PARTITION", help="Only of this partition: a UUID or a name."),
    ] = None,
    state: Annotated[State | None, typer.Option(help="Only tasks in this state.")] = None,
    name: Annotated[str | None, typer.Option(metavar="GLOB", help="Only tasks named so: index, report-*")] = None,
    reason: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only tasks whose last error has this text in it.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="AGO", help="Only tasks started since: 90s, 10m, 2h, 7d.")
    ] = None,
    sort: Annotated[Order | None, typer.Option(help="Order of what is listed; without it that of their ids.")] = None,
    limit: LimitOption = None,
    as_json: JsonOption = False,
) -> None:
    """List tasks.

    A task is waiting (for writes), scheduled (it has a due time) or running; paused or dead (it failed too often) where nothing
    starts it. Ids are cut to what tells them apart: every command takes the beginning of an id, or PARTITION/NAME.
    """
    moments = Moments(sysdb.now())
    back = None if since is None else seconds_of(since)
    found = []
    for task in sysdb.tasks(None if partition is None else partition_of(partition)):
        started = task_row(task, moments)["last_start_in"]
        if (
            (state is None or task.state == state.value)
            and (name is None or fnmatchcase(task.name, name))
            and (reason is None or reason.casefold() in task.last_error.casefold())
            and (back is None or (started is not None and -started <= back))
        ):
            found.append(task)
    if sort is not None:
        found.sort(key=_KEYS[sort])
    rows = [task_row(task, moments) for task in found]
    if in_terminal() and not as_json:
        columns: tuple[str, ...] = ("id", "state", "due_in", "cadence", "last_start_in", "gen", "name")
        if any(row["last_error"] for row in rows):
            columns = ("id", "state", "due_in", "gen", "name", "last_error")
    else:
        columns = ("id", "name", "state", "gen", "due_in", "due_at", "cadence", "completion_offset", "paused", "dead")
    print_tasks(rows, columns, as_json=as_json, limit=limit)


@app.command(aliases=("describe",))
@sysdb_reader
def show(sysdb: SysDb, task: TaskArgument, as_json: JsonOption = False) -> None:
    """Show a task, the end of what its last run printed, and why it is not running."""
    row, found = _described(sysdb, task)
    moments = Moments(found.now)
    if as_json:
        print_json(row)
        return
    shown: dict[str, Any] = {}
    for name, value in row.items():
        if name in ("reasons", "output", "output_gen", "now", "started_wall") or name.endswith(("_in", "_at")):
            continue
        if name == "last_start" and row["last_start_in"] is not None:
            value = f"{moments.relative(row['last_start_in'])}, {moments.short(row['last_start_at'])}"
        elif name in ("due", "last_start", "not_before") and value is not None:
            value = moments.text(value)
        shown[name] = "none" if value is None or value in ("", (), []) else value
    print_record(shown, _MEANINGS)
    if found.output:
        say(f"generation {found.output_gen} printed at its end:")
        for line in found.output.rstrip("\n").split("\n"):
            say(f"  {line}")
    since = f"it runs since {row['last_start_at'] and moments.short(row['last_start_at'])}"
    for reason in found.reasons or (since,):
        say(f"→ {reason}")


def _described(sysdb: SysDb, task: UUID) -> tuple[dict[str, Any], Description]:
    found = sysdb.describe(task)
    moments = Moments(found.now)
    row = {**task_row(found.task, moments), **{k: v for k, v in asdict(found).items() if k != "task"}}
    row.update(moments.fields("not_before", found.not_before))
    return row, found


@app.command()
@sysdb_reader
def watch(
    sysdb: SysDb,
    task: TaskArgument,
    seconds: Annotated[float | None, typer.Option("--for", min=0.0, help="Stop after so many seconds.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print a task's state whenever it changes, until interrupted; with --json one document per line."""
    until = None if seconds is None else time.monotonic() + seconds
    before: tuple[Any, ...] | None = None
    while True:
        row, found = _described(sysdb, task)
        now = (row["state"], row["gen"], row["attempt"], row["paused"], row["dead"])
        if now != before:
            before = now
            if as_json:
                print_json(row)
            else:
                state = "dead" if row["dead"] else "paused" if row["paused"] else row["state"]
                why = found.reasons[0] if found.reasons else ""
                say(f"{datetime.now(UTC):%H:%M:%S} {state:<9} generation {row['gen']} attempt {row['attempt']}  {why}")
            sys.stdout.flush()
        left = _WATCH_SECONDS if until is None else min(_WATCH_SECONDS, until - time.monotonic())
        if left <= 0:
            return
        time.sleep(left)


@app.command()
@sysdb_command
def create(
    sysdb: SysDb,
    partition: Annotated[str, typer.Argument(help="Whose writes run the task: a UUID or a name.")],
    name: Annotated[str, typer.Argument(help="The task's name, unique in its partition.")],
    cadence: Annotated[float, typer.Option(min=0.0, help="Seconds between starts.")] = 60.0,
    min_records: Annotated[int, typer.Option(min=1, help="Fewer unread records wait, at most --max-wait.")] = 1,
    max_wait: Annotated[float | None, typer.Option(min=0.0, help="Seconds that fewer records wait.")] = None,
    jitter: Annotated[float, typer.Option(min=0.0, help="Seconds over which runs are spread.")] = 0.0,
    backoff: Annotated[float, typer.Option(min=0.0, help="Seconds before the first retry.")] = 1.0,
    max_attempts: Annotated[int, typer.Option(min=1, help="Failures until a generation is a dead letter.")] = 5,
    overlap: Annotated[
        str, typer.Option(metavar="|".join(OVERLAPS), help="What becomes of a run that is due while one runs.")
    ] = "skip",
    catch_up: Annotated[
        str, typer.Option(metavar="|".join(CATCH_UPS), help="How many of the runs that were missed are made up for.")
    ] = "once",
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
def delete(sysdb: SysDb, task: TaskArgument, dry_run: DryRunOption = False, as_json: JsonOption = False) -> None:
    """Delete a task for ever."""
    if dry_run:
        would = sysdb.get(task)
        row = {"task": str(task), "name": would.name, "state": would.state, "deleted": False}
        print_tasks([row], ("task", "state", "name"), as_json=as_json)
        say("1 task would be deleted", err=True)
        return
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
    columns = ("due_in", "id", "gen", "cadence", "name") if in_terminal() else ("due_in", "due_at", "id", "name", "gen")
    print_tasks(rows, columns, as_json=as_json, empty="nothing is scheduled")


@app.command()
@sysdb_reader
def dlq(
    sysdb: SysDb,
    name: Annotated[str | None, typer.Option(metavar="GLOB", help="Only of tasks named so: index, report-*")] = None,
    reason: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only where the error has this text in it.")
    ] = None,
    limit: LimitOption = None,
    as_json: JsonOption = False,
) -> None:
    """List dead letters, the newest first: generations that failed too often."""
    moments = Moments(sysdb.now())
    letters = [
        letter
        for letter in sysdb.dead_letters()
        if (name is None or fnmatchcase(letter.name, name))
        and (reason is None or reason.casefold() in letter.error.casefold())
    ]
    letters.sort(key=lambda letter: -letter.at)
    rows = [{**asdict(letter), **moments.fields("died", letter.at)} for letter in letters]
    died = "died_in" if in_terminal() else "died_at"
    columns = ("task", "gen", "failures", died, "name", "error")
    print_tasks(rows, columns, as_json=as_json, empty="no dead letters", limit=limit)


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
