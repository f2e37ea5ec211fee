"""`mainspring migrate`: from the embedded engine to a FoundationDB cluster, or to another embedded database."""

from __future__ import annotations

import dataclasses
import sys
import time
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fdb_schema import DatabaseUrlError, database_url, open_database
from fdb_schema.cli import JsonOption, print_json
from fdb_schema.database import URL_VARIABLE
from mainspring.existing import open_existing
from mainspring.migrate.copying import SourceInUseError, migrate_database, version_of

STILL_SECONDS = 1.5


def migrate(
    to: Annotated[
        str, typer.Option("--to", metavar="URL", help="The database to copy to; empty, or an unfinished copy.")
    ],
    db: Annotated[
        str | None,
        typer.Option(
            "--from",
            "--db",
            envvar=URL_VARIABLE,
            metavar="URL",
            help="The embedded: database to copy; without it embedded:./.mainspring.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Copy an embedded database (--from) to another (--to), with every cluster in it; verify every byte.

    Stop everything that uses the source first: services, clients, dashboards. An interrupted copy goes on where it was when
    the same command is given again. The source is only read.
    """
    url = database_url(db)
    if not url.startswith("embedded:"):
        raise DatabaseUrlError(f"--from {url!r}: only an embedded: database is copied; FoundationDB has fdbbackup")
    source = open_existing(url)
    target = open_database(to)
    check_still(source)
    total = _rows_of(source)
    console = Console(stderr=True)
    columns = (TextColumn("copying rows"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task("rows", total=total)
        done = migrate_database(source, target, lambda rows, _: bar.update(task, completed=rows))
    if as_json:
        print_json(dataclasses.asdict(done))
        return
    resumed = f", {done.resumed_at} of them before this run" if done.resumed_at else ""
    print(f"copied {done.rows} rows, {done.bytes} bytes{resumed}; both have the digest {done.digest}")
    print(f"versions went from {done.source_version} to {done.target_version}: later tokens are greater")
    print(f"start your services with --db {to}; keep the source until you are sure, and start nothing on it")


def check_still(source: Any, seconds: float = STILL_SECONDS) -> None:
    """Raises `SourceInUseError` where anything is committed within `seconds`; services commit several times a second."""
    before = version_of(source)
    time.sleep(seconds)
    after = version_of(source)
    if after != before:
        raise SourceInUseError(
            "the source is in use: something commits to it. Stop every service and client; `mainspring status` lists workers, "
            "`mainspring leases sessions` other processes"
        )


def _rows_of(source: Any) -> int | None:
    engine = getattr(getattr(source, "dpointer", None), "engine", None)
    if engine is None:
        return None
    from fdb_embedded.status import measure

    return int(measure(engine)["rows"])
