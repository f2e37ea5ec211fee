"""`mainspring size`: what a cluster must bear. Opens no database."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from typing import Annotated, Any

import typer

from fdb_schema.cli import JsonOption, fail, print_json, print_rows, say
from fdb_schema.errors import EXIT_USAGE
from fdb_schema.serving import figures
from mainspring.size.model import Demand, Load, demand


class Engine(StrEnum):
    """Of FoundationDB's storage."""

    ssd = "ssd"
    memory = "memory"


class Redundancy(StrEnum):
    """Of FoundationDB."""

    single = "single"
    double = "double"
    triple = "triple"


def size(
    workers: Annotated[int, typer.Option(min=0, help="Workers.")] = 1,
    rate: Annotated[float, typer.Option(min=0, help="Tasks a second, in all.")] = 0.0,
    clients: Annotated[int, typer.Option(min=0, help="Processes that submit and wait.")] = 1,
    slots: Annotated[int, typer.Option(min=1, help="Tasks that a worker runs at a time.")] = 8,
    task_seconds: Annotated[float, typer.Option(min=0, help="How long a task runs.")] = 0.0,
    args_bytes: Annotated[int, typer.Option(min=0, help="Of a task's arguments; 0: it has none.")] = 0,
    result_bytes: Annotated[int, typer.Option(min=0, help="Of a task's result.")] = 0,
    dependencies: Annotated[float, typer.Option(min=0, help="Futures that a task takes, on average.")] = 0.0,
    leases: Annotated[float, typer.Option(min=0, help="Leases acquired and released a second.")] = 0.0,
    held: Annotated[int, typer.Option(min=0, help="Processes that hold leases at a time.")] = 0,
    lease_ttl: Annotated[float, typer.Option(min=0.001, help="Of the leases, in seconds.")] = 15.0,
    heap_runs: Annotated[float, typer.Option(min=0, help="Writes a second that each trigger a run.")] = 0.0,
    tenders: Annotated[int, typer.Option(min=0, help="Tenders.")] = 0,
    latency_ms: Annotated[float, typer.Option(min=0.001, help="From a transaction's begin to its commit.")] = 6.0,
    engine: Annotated[Engine, typer.Option(help="FoundationDB's storage engine.")] = Engine.ssd,
    redundancy: Annotated[Redundancy, typer.Option(help="FoundationDB's redundancy.")] = Redundancy.triple,
    as_json: JsonOption = False,
) -> None:
    """Print what a cluster of FoundationDB must bear for a load: per role, the hottest keys, and what its first limit is."""
    load = Load(
        workers=workers, rate=rate, clients=clients, slots=slots, seconds=task_seconds, args_bytes=args_bytes,
        result_bytes=result_bytes, dependencies=dependencies, leases=leases, held=held, lease_ttl=lease_ttl,
        heap_runs=heap_runs, tenders=tenders, latency=latency_ms / 1000, engine=engine.value, redundancy=redundancy.value,
    )  # fmt: skip
    try:
        found = demand(load)
    except ValueError as error:
        fail(str(error), EXIT_USAGE)
    if as_json:
        print_json(in_plain_values(load, found))
    else:
        _print(load, found)


def in_plain_values(load: Load, found: Demand) -> dict[str, Any]:
    """All of it. Numbers are per second, but for processes and shares."""
    return {
        "load": dataclasses.asdict(load),
        "total": found.total._asdict(),
        "flows": [{"kind": one.kind, "items": one.items, **one.cost._asdict()} for one in found.flows],
        "roles": [role._asdict() for role in found.roles],
        "hot_keys": [key._asdict() for key in found.hot],
        "watches_fired": found.watches_fired,
        "conflicting_turns": found.conflicts,
        "busy_slots": found.busy,
        "first_limit": found.limit,
        "notes": found.notes,
    }


def _print(load: Load, found: Demand) -> None:
    total = found.total
    say(
        f"{load.workers:,} workers of {load.slots} slots, {load.rate:,.0f} tasks a second from {load.clients:,} clients: "
        f"{found.busy:.0%} of the slots are busy"
    )
    say(
        f"each second  {total.transactions:,.0f} transactions, {total.commits:,.0f} of them commits; "
        f"{total.written:,.0f} keys written ({figures.size(total.written_bytes)}), {total.read:,.0f} read ({figures.size(total.read_bytes)}); "
        f"{found.watches_fired:,.0f} watches fire; {found.conflicts:.1%} of the claims conflict"
    )
    roles = [
        {"role": one.name, "processes": one.processes, "busy": f"{one.share:.0%}", "each second": one.does}
        for one in found.roles
    ]
    print_rows(roles, ["role", "processes", "busy", "each second"], as_json=False)
    keys = [
        {"key": key.name, "writes/s": f"{key.writes:,.1f}", "woken by each": f"{key.watchers:,.0f}"}
        for key in found.hot
    ]
    if keys:
        print_rows(keys, ["key", "writes/s", "woken by each"], as_json=False)
    say(f"first limit  {found.limit}")
    for note in found.notes:
        say(f"note         {note}")
