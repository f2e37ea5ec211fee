"""`mainspring migrate`: from the embedded engine to a FoundationDB cluster or back, or to another embedded database."""

from __future__ import annotations

import dataclasses
import sys
from typing import Annotated, Any

import typer

from fdb_schema import DatabaseUrlError, database_url, open_database
from fdb_schema.cli import JsonOption, print_json
from fdb_schema.database import URL_VARIABLE
from mainspring.existing import open_existing
from mainspring.migrate.copying import migrate_database
from mainspring.migrate.sources import check_still


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
            help="The database to copy; without it embedded:./.mainspring. It or the target is embedded.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Copy a database (--from) to another (--to), with every cluster in it; verify every byte. One of them is embedded.

    Stop everything that uses the source first: services, clients, dashboards. An interrupted copy goes on where it was when
    the same command is given again. The source is only read.
    """
    url = database_url(db)
    if not url.startswith(("embedded:", "fdb:")):
        raise DatabaseUrlError(f"--from {url!r}: embedded: databases and clusters are copied, nothing else")
    if not url.startswith("embedded:") and not to.startswith("embedded:"):
        raise DatabaseUrlError(
            f"--from {url!r} --to {to!r}: only an embedded: database is copied to others, and clusters only to one; "
            "FoundationDB has fdbbackup"
        )
    # A process has one engine behind the name fdb: where a cluster has it, the embedded database is opened beside it.
    source = open_existing(url, beside=url.startswith("embedded:") and to.startswith("fdb:"))
    target = open_database(to, beside=url.startswith("fdb:"))
    check_still(source)
    total = _rows_of(source)
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

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


def _rows_of(source: Any) -> int | None:
    engine = getattr(getattr(source, "dpointer", None), "engine", None)
    if engine is None:
        return None
    from fdb_embedded.engine.status import measure

    return int(measure(engine)["rows"])
