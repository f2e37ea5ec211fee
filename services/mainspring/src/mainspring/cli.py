"""The command `mainspring`: every service and every package's command, and what looks after a whole cluster."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from fdb_schema.cli import CommandApp, JsonOption, command_app, fail, print_rows, run_app
from fdb_schema.errors import EXIT_USAGE
from fdb_schema.serving.configuration import CONFIG_VARIABLE
from fdb_schema.serving.service import SERVICE, service_command
from futures_worker.cli import app as futures_app
from futures_worker.cli import run as run_worker
from futures_worker.commands.output import logs
from futures_worker.commands.top import top
from idempotent_txn.cli import app as ids_app
from lease_locks.cli import app as leases_app
from mainspring.demo.commands import demo_app
from mainspring.doctor.command import doctor
from mainspring.migrate.command import migrate
from mainspring.settings import effective, services_of
from mainspring.size.command import size
from mainspring.status import status
from mainspring.up.command import NO_DASHBOARD, up
from mainspring_janitor.cleaning import clean
from mainspring_scheduler.scheduling import schedule
from s3heap_tender.cli import app as heap_app
from s3heap_tender.cli.services import tend

app = command_app("mainspring", "Durable computation on FoundationDB: a cluster, its services, and what they do.")
app.info.context_settings = {**(app.info.context_settings or {}), "auto_envvar_prefix": "MAINSPRING"}

_CLUSTER = "A cluster"
_SERVICE = "Services"
_LOOK = "Looking and changing"

app.command("up", rich_help_panel=_CLUSTER, **SERVICE)(service_command(up, "up"))
app.command("status", rich_help_panel=_CLUSTER, **SERVICE)(service_command(status, "status"))
app.command("doctor", rich_help_panel=_CLUSTER, **SERVICE)(service_command(doctor, "doctor"))
app.command("migrate", rich_help_panel=_CLUSTER, **SERVICE)(service_command(migrate, "migrate"))
app.add_typer(demo_app, name="demo", rich_help_panel=_CLUSTER)
app.command("worker", rich_help_panel=_SERVICE, **SERVICE)(service_command(run_worker, "worker"))
app.command("tender", rich_help_panel=_SERVICE, **SERVICE)(service_command(tend, "tender"))
app.command("scheduler", rich_help_panel=_SERVICE, **SERVICE)(service_command(schedule, "scheduler"))
app.command("janitor", rich_help_panel=_SERVICE, **SERVICE)(service_command(clean, "janitor"))
if importlib.util.find_spec("mainspring_dashboard") is not None:
    _dashboard = importlib.import_module("mainspring_dashboard.cli").dashboard
    app.command("dashboard", rich_help_panel=_SERVICE, **SERVICE)(service_command(_dashboard, "dashboard"))
else:

    @app.command(
        "dashboard",
        rich_help_panel=_SERVICE,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
        help="Serve the dashboard (not installed).",
    )
    def _no_dashboard() -> None:
        fail(NO_DASHBOARD, EXIT_USAGE)


app.command("top", rich_help_panel=_LOOK)(top)
app.command("logs", rich_help_panel=_LOOK)(logs)
app.command("size", rich_help_panel=_CLUSTER)(size)
app.add_typer(futures_app, name="futures", rich_help_panel=_LOOK, help="What `futures-worker` does.")
app.add_typer(leases_app, name="leases", rich_help_panel=_LOOK, help="What `lease-locks` does.")
app.add_typer(heap_app, name="heap", rich_help_panel=_LOOK, help="What `s3heap-tender` does.")
app.add_typer(ids_app, name="ids", rich_help_panel=_LOOK, help="What `idempotent-txn` does.")

config_app = CommandApp(no_args_is_help=True, help="The services' settings.")
app.add_typer(config_app, name="config", rich_help_panel=_LOOK)


def service_commands() -> Mapping[str, Any]:
    """Every service's command, by the name of its table in a file of settings."""
    return services_of(typer.main.get_command(app))


@config_app.command("show")
def config_show(
    config: Annotated[
        Path | None, typer.Option(envvar=CONFIG_VARIABLE, metavar="FILE", help="The TOML file.", show_default=False)
    ] = None,
    changed: Annotated[bool, typer.Option("--changed", help="Only what isn't at its default.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show every service's settings, and whether the environment, the file or nobody set them. Unknown keys are errors."""
    rows = [row for row in effective(config, service_commands()) if not changed or row["source"] != "default"]
    print_rows(rows, ["service", "setting", "value", "source"], as_json=as_json, empty="everything is at its default")


@app.command(hidden=True)
def version() -> None:
    """Print the version (as --version does)."""
    from importlib.metadata import version as installed

    typer.echo(installed("mainspring"))


def main() -> NoReturn:
    """Run the command."""
    run_app(app)


if __name__ == "__main__":
    main()
