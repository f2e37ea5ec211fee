"""The command that looks for what dead processes left behind: doctor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer

from fdb_schema.cli import DEFAULT_CLUSTER, ClusterOption, DbOption, JsonOption, print_json, say
from fdb_schema.serving.figures import counted
from idempotent_txn import run
from lease_locks.cli.leases import judged
from lease_locks.cli.opening import look_into
from lease_locks.errors import DamagedRowError
from lease_locks.grants.observer import Dead
from lease_locks.session.upkeep import IDEMPOTENT

_ALIKE: Final = 3


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("doctor")(doctor)


def doctor(
    clean: Annotated[bool, typer.Option("--clean", help="Remove the rows of sessions that are proved dead.")] = False,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    json: JsonOption = False,
) -> None:
    """Look for what dead processes left behind. Exit code 1 where something is found that isn't cleaned.

    What is found harms nobody: a dead holder's lease is taken over by whoever wants it.
    """
    locks = look_into(db, cluster)
    findings: list[dict[str, Any]] = []
    alive = 0
    for sid, record, _ in locks.sessions():
        why = run(locks.db, locks.session_dead, sid, strategy=IDEMPOTENT)
        if why is None:
            alive += 1
            continue
        what = f"session {sid.hex()} of {record.host}:{record.pid} is dead: {why}"
        findings.append({"what": what, "do": "lease-locks doctor --clean", "cleanable": True})
    for info in locks.list():
        try:
            verdicts = judged(locks, info.name)
        except DamagedRowError:
            continue  # which the listing has named
        for verdict in [v for grant, _, v in verdicts if grant.token == info.token and isinstance(v, Dead)]:
            what = f"lease {info.name!r} of {info.host}:{info.pid} is dead: {verdict.why}"
            do = f"nothing: who acquires it takes it over; or lease-locks force-release {info.name} --reason …"
            findings.append({"what": what, "do": do, "cleanable": False})
    findings += [{"what": str(row), "do": "see what wrote it", "cleanable": False} for row in locks.damaged.values()]
    cleaned = locks.clear_dead_sessions() if clean else 0
    left = [f for f in findings if not (clean and f["cleanable"])]
    if json:
        print_json({"sessions_alive": alive, "findings": findings, "cleaned": cleaned})
    else:
        say(f"{counted(alive, 'session')} alive, {counted(len(findings), 'finding')}, {cleaned:,} cleaned")
        for what, do in _grouped(findings, clean):
            say(f"- {what}\n  {do}")
    if left:
        raise typer.Exit(1)


def _grouped(findings: list[dict[str, Any]], clean: bool) -> Iterator[tuple[str, str]]:
    """What was found, and what to do: of many alike the first, and how many more there are."""
    groups: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        do = "cleaned" if clean and finding["cleanable"] else finding["do"]
        key = do if finding["cleanable"] else finding["what"]
        groups.setdefault((key, do), []).append(finding["what"])
    for (_, do), alike in groups.items():
        for what in alike[: len(alike) if len(alike) <= _ALIKE else 1]:
            yield what, do
        if len(alike) > _ALIKE:
            yield f"{len(alike) - 1} more sessions are dead: `lease-locks sessions` lists them", do
