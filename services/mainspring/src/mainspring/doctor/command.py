"""`mainspring doctor`: every check, what it found, what to do, and an exit code."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fdb_datamodel import (
    FutureDeletedError,
    FutureInfo,
    UnknownFutureError,
    describe_future,
    parse_size,
    validate,
)
from fdb_schema import DEFAULT_CLUSTER, ClusterSpace, MainspringError, database_url, fdb_error_code, url_of
from fdb_schema.cli import ClusterOption, DbOption, JsonOption, fail, print_json
from fdb_schema.errors import EXIT_FAILED, EXIT_USAGE
from idempotent_txn import id_status, run
from mainspring.doctor import cluster as checks
from mainspring.doctor.findings import Finding, Level, ok, problem, warning
from mainspring.doctor.machine import check_engine, check_space, check_versions
from mainspring.doctor.observing import Observation, observe
from mainspring.existing import open_existing

_MARKS = {Level.ok: ("ok", "green"), Level.warning: ("warning", "yellow"), Level.problem: ("PROBLEM", "bold red")}
OLD_IDS_SECONDS = 3 * 86_400.0


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
    findings = examine(database, cluster, watch, wanted, places, deep=deep)
    if as_json:
        counted = {level.value: sum(f.level is level for f in findings) for level in Level}
        print_json({"cluster": cluster, **counted, "findings": [dataclasses.asdict(f) for f in findings]})
    else:
        _print(findings, f"cluster {cluster} in {url_of(database)}")
    bad = {Level.problem, Level.warning} if strict else {Level.problem}
    if any(finding.level in bad for finding in findings):
        raise typer.Exit(EXIT_FAILED)


def examine(
    db: Any, cluster: str, watch: float, min_free: int, places: list[Path], *, deep: bool = False
) -> list[Finding]:
    """All findings. A check that fails is a finding itself, and keeps no other from being made."""
    space = ClusterSpace(cluster)

    def describe(future: bytes) -> FutureInfo | None:
        try:
            return run(db, describe_future, space, future, strategy="off")
        except (UnknownFutureError, FutureDeletedError):
            return None  # meanwhile

    url = url_of(db) or database_url()
    findings = [
        *_guarded("engine", lambda: check_engine(db, space)),
        *_guarded("versions", lambda: check_versions(db, space)),
        *_guarded("space", lambda: check_space(url, min_free, places)),
        *_guarded("ids", lambda: _check_ids(db)),
    ]
    seen: list[Observation] = []

    def look() -> list[Finding]:
        seen.append(observe(db, cluster, watch))
        return []

    findings += _guarded("observation", look)
    for observation in seen:
        findings += checks.check_cluster(observation, cluster)
        for name, check in _CHECKS.items():
            findings += _guarded(name, lambda c=check, o=observation: c(o))  # type: ignore[misc]
        findings += _guarded("futures", lambda o=observation: checks.check_futures(o, describe))  # type: ignore[misc]
    if deep:
        findings += _guarded("invariants", lambda: _check_invariants(db, cluster))
    return findings


_CHECKS: dict[str, Callable[[Observation], list[Finding]]] = {
    "clock": checks.check_clock,
    "workers": checks.check_workers,
    "sessions": checks.check_sessions,
    "leases": checks.check_leases,
    "heap": checks.check_heap,
    "janitor": checks.check_duties,
}


def _check_ids(db: Any) -> list[Finding]:
    stores = id_status(db)
    oldest = max((store.oldest_age or 0.0 for store in stores), default=0.0)
    kept = sum(store.ids for store in stores)
    if oldest > OLD_IDS_SECONDS:
        what = f"{kept} idempotency ids are kept, the oldest for {oldest / 86_400:.1f} days"
        return [warning("ids", what, "run a janitor, or `mainspring ids clean`")]
    return [ok("ids", f"{kept} idempotency ids are kept")]


def _check_invariants(db: Any, cluster: str) -> list[Finding]:
    violations = validate(db, cluster)
    if not violations:
        return [ok("invariants", "every invariant of the futures holds")]
    return [
        problem("invariants", str(violation), "keep the database as it is, and report it with the workers' logs")
        for violation in violations[:20]
    ]


def _guarded(name: str, check: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return check()
    except Exception as error:
        if not isinstance(error, (MainspringError, OSError)) and fdb_error_code(error) is None:
            raise
        return [problem(name, f"it can't be checked: {error}", "mend this first")]


def _print(findings: list[Finding], where: str) -> None:
    console = Console(emoji=False, highlight=False, markup=False, soft_wrap=True)
    console.print(where)
    for finding in findings:
        mark, style = _MARKS[finding.level]
        console.print(f"{mark:>8}", style=style, end="")
        console.print(f"  {finding.check:<11} {finding.what}")
        if finding.do:
            console.print(f"{'':>10}{'':<11}  → {finding.do}")
    problems = sum(finding.level is Level.problem for finding in findings)
    warnings = sum(finding.level is Level.warning for finding in findings)
    console.print(f"{problems} problems, {warnings} warnings")
