"""`limits`: how many futures of a kind run at once, or begin in a second."""

from __future__ import annotations

from typing import Annotated

import typer

from fdb_datamodel.transitions.limits import list_limits
from fdb_schema.cli import DEFAULT_CLUSTER, ClusterOption, DbOption, JsonOption, command_app, fail, print_rows, say
from fdb_schema.errors import EXIT_USAGE
from futures_worker.client.client import Client
from futures_worker.commands.opening import look_into, nothing
from idempotent_txn import run

limits_app = command_app(
    "limits", "How many futures of a kind run at once, or begin in a second, on all workers together."
)


@limits_app.command("ls")
def list_all(db: DbOption = None, cluster: ClusterOption = DEFAULT_CLUSTER, as_json: JsonOption = False) -> None:
    """List limits by name, how many of their permits are held, and how many futures wait for one."""
    database, space = look_into(db, cluster)
    rows = [one._asdict() for one in run(database, list_limits, space, strategy="off")]
    columns = ["name", "concurrent", "per_second", "held", "queued"]
    print_rows(rows, columns, as_json=as_json, empty=nothing("limits", database, cluster))


@limits_app.command("set")
def set_one(
    name: Annotated[str, typer.Argument(help="The limit's name, as futures name it.")],
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    concurrent: Annotated[int | None, typer.Option(min=1, help="Futures at once.", show_default="any number")] = None,
    per_second: Annotated[float | None, typer.Option(help="Starts in a second.", show_default="any number")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove it: what waits for it begins.")] = False,
) -> None:
    """Make a limit, change it, or remove it. What has a permit keeps it."""
    if remove == (concurrent is not None or per_second is not None):
        fail("give --concurrent, --per-second or both; or --remove", EXIT_USAGE)
    database, _ = look_into(db, cluster)
    with Client(database, cluster) as client:
        try:
            client.limit(name, concurrent=concurrent, per_second=per_second)
        except ValueError as error:
            fail(str(error), EXIT_USAGE)
    say(f"{name}  {'removed' if remove else 'set'}")
