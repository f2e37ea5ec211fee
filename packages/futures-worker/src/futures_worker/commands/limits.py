"""`limits`: how many futures of a kind run at once, or begin in a second."""

from __future__ import annotations

from typing import Annotated

import typer

from fdb_datamodel.transitions.limits import list_limits, missing_limits
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
from fdb_schema.errors import EXIT_NOT_FOUND, EXIT_USAGE
from futures_worker.client.client import Client
from futures_worker.commands.opening import look_into, nothing
from idempotent_txn import run

limits_app = command_app(
    "limits", "How many futures of a kind run at once, or begin in a second, on all workers together."
)


@limits_app.command("ls")
def list_all(
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    limit: LimitOption = 100,
    as_json: JsonOption = False,
) -> None:
    """List limits by name, how many of their permits are held, and how many futures wait for one."""
    database, space = look_into(db, cluster)
    rows = [one._asdict() for one in run(database, list_limits, space, strategy="off")[:limit]]
    columns = ["name", "concurrent", "per_second", "held", "queued"]
    print_rows(rows, columns, as_json=as_json, empty=nothing("limits", database, cluster))


_NameArgument = Annotated[str, typer.Argument(help="The limit's name, as futures name it.")]


@limits_app.command("set")
def set_one(
    name: _NameArgument,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    concurrent: Annotated[int | None, typer.Option(min=1, help="Futures at once.", show_default="any number")] = None,
    per_second: Annotated[float | None, typer.Option(help="Starts in a second.", show_default="any number")] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a limit, or change it. What has a permit keeps it."""
    if concurrent is None and per_second is None:
        fail("give --concurrent, --per-second or both; `limits delete` removes one", EXIT_USAGE)
    database, _ = look_into(db, cluster)
    with Client(database, cluster) as client:
        try:
            client.limit(name, concurrent=concurrent, per_second=per_second)
        except ValueError as error:
            fail(str(error), EXIT_USAGE)
    if as_json:
        print_json({"name": name, "concurrent": concurrent, "per_second": per_second})
    else:
        say(f"{name}  set")


@limits_app.command()
def delete(
    name: _NameArgument,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove a limit: all that waits for it begins."""
    database, space = look_into(db, cluster)
    if run(database, missing_limits, space, (name,), strategy="off"):
        fail(f"cluster {cluster!r} has no limit {name!r}", EXIT_NOT_FOUND)
    if not dry_run:
        with Client(database, cluster) as client:
            client.limit(name)
    if as_json:
        print_json({"name": name, "deleted": not dry_run})
    else:
        say(f"{name}  {'would be deleted' if dry_run else 'deleted'}")
