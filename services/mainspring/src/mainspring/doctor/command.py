"""`mainspring doctor`: every check, what it found, what to do, and an exit code."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import typer

from fdb_datamodel import parse_size
from fdb_schema import DEFAULT_CLUSTER, url_of
from fdb_schema.cli import ClusterOption, DbOption, JsonOption, fail, hanging, print_json, printable, say
from fdb_schema.errors import EXIT_FAILED, EXIT_USAGE
from fdb_schema.serving.figures import counted
from mainspring.advice import placed
from mainspring.doctor.examining import examine
from mainspring.doctor.findings import Finding, Level
from mainspring.existing import open_existing

_MARKS = {Level.ok: ("ok", "green"), Level.warning: ("warning", "yellow"), Level.problem: ("PROBLEM", "bold red")}


def doctor(
    watch: Annotated[
        float, typer.Option(min=0.5, help="Seconds between two looks; what stands still meanwhile shows no life.")
    ] = 6.0,
    min_free: Annotated[str, typer.Option(metavar="SIZE", help="Free space wanted on every disk.")] = "1GiB",
    store: Annotated[
        str | None,
        typer.Option(envvar="MAINSPRING_HEAP", metavar="URL", help="The heap, to check its disk.", show_default=False),
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Check every invariant of every future too; reads all rows.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for warnings too.")] = False,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    as_json: JsonOption = False,
) -> None:
    """Look for what is wrong with a cluster, and say what to do. Exit code 1 where there is a problem."""
    try:
        wanted = parse_size(min_free)
    except ValueError as error:
        fail(str(error), EXIT_USAGE)
    database = open_existing(db)
    places = [Path(store[5:])] if store is not None and store.startswith("file:") else []
    if sys.stderr.isatty():
        say(f"looking twice, {watch:g} s apart …", err=True)
    findings = examine(database, cluster, watch, wanted, places, deep=deep)
    findings = [dataclasses.replace(finding, do=placed(finding.do, db, cluster)) for finding in findings]
    if as_json:
        levels = {level.value: sum(f.level is level for f in findings) for level in Level}
        print_json({"cluster": cluster, **levels, "findings": [dataclasses.asdict(f) for f in findings]})
    else:
        _print(findings, f"cluster {cluster} in {url_of(database)}")
    bad = {Level.problem, Level.warning} if strict else {Level.problem}
    if any(finding.level in bad for finding in findings):
        raise typer.Exit(EXIT_FAILED)


def _print(findings: list[Finding], where: str) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(emoji=False, highlight=False, markup=False, soft_wrap=True)
    say(hanging(where, 8))
    for finding in findings:
        mark, style = _MARKS[finding.level]
        said = Text(hanging(f"{mark:>8}  {finding.check:<11} {printable(finding.what)}", 22))
        said.stylize(style, 0, 8)
        console.print(said)
        if finding.do:
            console.print(Text(hanging(f"{'':>23}→ {printable(finding.do)}", 25)))
    problems = sum(finding.level is Level.problem for finding in findings)
    warnings = sum(finding.level is Level.warning for finding in findings)
    console.print(f"{counted(problems, 'problem')}, {counted(warnings, 'warning')}")
