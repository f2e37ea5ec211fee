"""`schedules`: what is submitted again and again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated
from uuid import UUID

import typer

from fdb_datamodel.transitions.schedules import Schedule, delete_schedule, list_schedules
from fdb_schema import read_clock
from fdb_schema.cli import DEFAULT_CLUSTER, ClusterOption, DbOption, JsonOption, command_app, fail, print_rows, say
from fdb_schema.errors import EXIT_NOT_FOUND
from futures_worker.commands.opening import look_into, nothing
from idempotent_txn import run

schedules_app = command_app("schedules", "Functions that are submitted again and again (`Client.every`).")


@schedules_app.command("ls")
def list_all(db: DbOption = None, cluster: ClusterOption = DEFAULT_CLUSTER, as_json: JsonOption = False) -> None:
    """List schedules by name, when each is due next, and the future of its latest occurrence."""
    database, space = look_into(db, cluster)
    now_us = run(database, read_clock, space, strategy="off")
    found: list[Schedule] = []
    while page := run(database, list_schedules, space, found[-1].name if found else "", strategy="off"):
        found += page
    now = datetime.now(UTC)
    rows = [
        {
            "name": one.name,
            "when": one.when if one.zone else f"{float(one.when):g} s",
            "zone": one.zone,
            "function": one.function,
            "next": (now + timedelta(microseconds=one.due_us - now_us)).isoformat(timespec="seconds"),
            "made": one.made,
            "last": str(UUID(bytes=one.last)) if one.last else None,
            "missed": one.missed,
            "overlap": one.overlap,
        }
        for one in found
    ]
    columns = ["name", "when", "zone", "function", "next", "made", "last"]
    print_rows(rows, columns, as_json=as_json, empty=nothing("schedules", database, cluster))


@schedules_app.command("rm")
def remove(
    name: Annotated[str, typer.Argument(help="The schedule's name, as `ls` lists it.")],
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
) -> None:
    """Delete a schedule: nothing of it is submitted any more. What was submitted goes on."""
    database, space = look_into(db, cluster)
    if not run(database, delete_schedule, space, name):
        fail(f"cluster {cluster!r} has no schedule {name!r}", EXIT_NOT_FOUND)
    say(f"{name}  deleted")
