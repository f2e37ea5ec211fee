"""`schedules`: what is submitted again and again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated
from uuid import UUID

import typer

from fdb_datamodel.transitions.schedules import Schedule, delete_schedule, list_schedules, read_schedule
from fdb_schema import read_clock
from fdb_schema.cli import (
    DEFAULT_CLUSTER,
    ClusterOption,
    DbOption,
    DryRunOption,
    JsonOption,
    LimitOption,
    command_app,
    fail,
    print_json,
    print_rows,
    say,
)
from fdb_schema.errors import EXIT_NOT_FOUND
from futures_worker.commands.opening import look_into, nothing
from idempotent_txn import run

schedules_app = command_app("schedules", "Functions that are submitted again and again (`Client.every`).")


@schedules_app.command("ls")
def list_all(
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    limit: LimitOption = None,
    as_json: JsonOption = False,
) -> None:
    """List schedules by name, when each is due next, and the future of its latest occurrence."""
    database, space = look_into(db, cluster)
    now_us = run(database, read_clock, space, strategy="off")
    found: list[Schedule] = []
    while (limit is None or len(found) < limit) and (
        page := run(database, list_schedules, space, found[-1].name if found else "", strategy="off")
    ):
        found += page
    now = datetime.now(UTC)
    rows = [
        {
            "name": one.name,
            "cron": one.when if one.zone else None,
            "seconds": None if one.zone else float(one.when),
            "zone": one.zone,
            "function": one.function,
            "next": _next(one, now, now_us),
            "made": one.made,
            "last": str(UUID(bytes=one.last)) if one.last else None,
            "missed": one.missed,
            "overlap": one.overlap,
        }
        for one in found[:limit]
    ]
    columns = ["name", "cron", "seconds", "zone", "function", "next", "made", "last"]
    print_rows(rows, columns, as_json=as_json, empty=nothing("schedules", database, cluster))


@schedules_app.command()
def delete(
    name: Annotated[str, typer.Argument(help="The schedule's name, as `ls` lists it.")],
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete a schedule: nothing of it is submitted any more. What was submitted goes on."""
    database, space = look_into(db, cluster)
    act = read_schedule if dry_run else delete_schedule
    if not run(database, act, space, name):
        fail(f"cluster {cluster!r} has no schedule {name!r}", EXIT_NOT_FOUND)
    done = "would be deleted" if dry_run else "deleted"
    if as_json:
        print_json({"name": name, "done": done})
    else:
        say(f"{name}  {done}")


def _next(one: Schedule, now: datetime, now_us: int) -> datetime:
    """Of a cron expression by its own time: when its row is due, it may only be looked at."""
    if one.zone:
        return datetime.fromtimestamp(one.nominal / 1e6, UTC)
    return (now + timedelta(microseconds=one.due_us - now_us)).replace(microsecond=0)
