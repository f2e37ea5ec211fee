"""The command `futures-worker`: run a worker, and look at futures and workers without unpickling anything."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

from fdb_datamodel import (
    GRACE_SECONDS,
    SESSION_TTL_SECONDS,
    ClusterSpace,
    FutureInfo,
    FutureState,
    Requirements,
    WorkerStatus,
    describe_future,
    list_futures,
    list_workers,
    parse_size,
)
from fdb_schema import open_database, url_of
from fdb_schema.cli import ClusterOption, DbOption, JsonOption, command_app, fail, print_json, print_rows, run_app
from fdb_schema.errors import EXIT_NOT_FOUND, EXIT_USAGE
from fdb_schema.keyspace import DEFAULT_CLUSTER
from futures_worker.errors import FutureDeletedError, UnknownFutureError
from futures_worker.liveness import TTL_SECONDS
from idempotent_txn import run as run_transaction

app = command_app("futures-worker", "Run durable futures: worker processes, and what they are doing.")

_PAGE = 500


@app.command()
def run(
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    address: Annotated[
        str, typer.Option(help="Address to listen on; other processes reach the worker there.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes any free one.")] = 0,
    slots: Annotated[int | None, typer.Option(min=1, help="Tasks at a time.", show_default="as many as --cpus")] = None,
    cpus: Annotated[float | None, typer.Option(min=0, help="Cpus offered.", show_default="all of this machine")] = None,
    ram: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory offered to tasks, as 2GiB.", show_default="80 % of the machine's"),
    ] = None,
    gpus: Annotated[float, typer.Option(min=0, help="Gpus offered.")] = 0,
    object_store: Annotated[
        str, typer.Option(metavar="SIZE", help="Results kept in memory; more goes to --spill.")
    ] = "512MiB",
    spill: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Directory for results that leave memory.",
            show_default="the system's for temporary files",
        ),
    ] = None,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds that running tasks have to finish after SIGTERM.")
    ] = 30.0,
    ttl: Annotated[
        float, typer.Option(min=1, help="Seconds without a heartbeat after which this worker declares another dead.")
    ] = TTL_SECONDS,
    collect_after: Annotated[
        float, typer.Option(min=0, help="Seconds that a future is kept after it ended and nobody holds it.")
    ] = GRACE_SECONDS,
    session_ttl: Annotated[
        float, typer.Option(min=1, help="Seconds without a sign of life after which a client is declared dead.")
    ] = SESSION_TTL_SECONDS,
    as_json: Annotated[bool, typer.Option("--json", help="Print the ready line as JSON.")] = False,
) -> None:
    """Run a worker until SIGTERM. Prints one line when it is ready, with its address."""
    from futures_worker.worker.service import WorkerConfig, serve

    offered = cpus if cpus is not None else float(len(os.sched_getaffinity(0)))
    try:
        total = Requirements(offered, parse_size(ram) if ram is not None else _memory(), gpus)
        store_bytes = parse_size(object_store)
    except ValueError as exc:
        fail(str(exc), EXIT_USAGE)
    config = WorkerConfig(
        url=db,
        cluster=cluster,
        address=address,
        port=port,
        slots=slots if slots is not None else max(1, int(offered)),
        total=total,
        object_store=store_bytes,
        spill=spill,
        grace=grace,
        ttl=ttl,
        collect_after=collect_after,
        session_ttl=session_ttl,
    )
    serve(config, as_json=as_json)


@app.command("ls")
def ls(
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    state: Annotated[FutureState | None, typer.Option(help="Only futures in this state.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Futures to list at most.")] = 100,
    after: Annotated[
        str | None, typer.Option(metavar="ID", help="List futures after this one, in the order of submission.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List futures, oldest first."""
    database, space = open_database(db), ClusterSpace(cluster)
    rows: list[dict[str, Any]] = []
    cursor = _future_id(after).bytes if after is not None else None
    while len(rows) < limit:
        found, cursor = run_transaction(
            database, list_futures, space, cursor, min(_PAGE, limit - len(rows)), state, strategy="off"
        )
        rows.extend(_future_row(info) for info in found)
        if cursor is None:
            break
    columns = ["id", "state", "name", "attempts", "worker", "reason"]
    print_rows(rows, columns, as_json=as_json, empty=_nothing("futures", database, cluster))
    if cursor is not None:
        typer.echo(f"there may be more: --after {rows[-1]['id']}", err=True)


@app.command()
def show(
    future: Annotated[str, typer.Argument(metavar="ID", help="The future's id.")],
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    as_json: JsonOption = False,
) -> None:
    """Show everything known about one future, with the reason for its state."""
    future_id = _future_id(future)
    database, space = open_database(db), ClusterSpace(cluster)
    try:
        info: FutureInfo = run_transaction(database, describe_future, space, future_id, strategy="off")
    except (UnknownFutureError, FutureDeletedError) as exc:
        fail(str(exc), EXIT_NOT_FOUND)
    row = _future_row(info) | _future_details(info)
    if as_json:
        print_json(row)
        return
    for name, value in row.items():
        if value not in (None, "", [], {}):
            typer.echo(f"{name.replace('_', ' '):>20}  {value}")


@app.command()
def workers(db: DbOption = None, cluster: ClusterOption = DEFAULT_CLUSTER, as_json: JsonOption = False) -> None:
    """List the cluster's workers."""
    database, space = open_database(db), ClusterSpace(cluster)
    statuses: list[WorkerStatus] = run_transaction(database, list_workers, space, strategy="off")
    columns = [
        "address",
        "slots",
        "free_slots",
        "claims",
        "cpu",
        "ram",
        "gpu",
        "object_store",
        "host",
        "pid",
        "last_beat",
    ]
    empty = _nothing("workers", database, cluster)
    print_rows([_worker_row(s) for s in statuses], columns, as_json=as_json, empty=empty)


def _nothing(what: str, database: Any, cluster: str) -> str:
    """Why a listing may be empty: the database, made absolute, and the clusters that it has instead."""
    from futures_worker.client.diagnosis import clusters

    others = [name for name in clusters(database) if name != cluster]
    place = url_of(database) or "this database"
    has = f"it has the clusters {', '.join(map(repr, others))}" if others else "it has no other cluster"
    return f"no {what} in cluster {cluster!r} of {place}; {has}"


def _future_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        fail(f"{text!r} is no id of a future: give a UUID, as `futures-worker ls` prints them", EXIT_USAGE)


def _future_row(info: FutureInfo) -> dict[str, Any]:
    return {
        "id": str(UUID(bytes=info.id)),
        "state": info.state.value,
        "name": info.name,
        "attempts": info.attempts,
        "worker": f"{info.worker.ip}:{info.worker.port}" if info.worker is not None else None,
        "reason": info.reason,
    }


def _future_details(info: FutureInfo) -> dict[str, Any]:
    failure = info.failure or info.last_failure
    return {
        "submitted": _wall(info.wall_us),
        "charged_attempts": info.charged,
        "max_retries": info.max_retries,
        "worker_losses": info.losses,
        "out_of_memory": info.out_of_memory,
        "epoch": info.epoch,
        "priority": info.priority,
        "cpu": info.requirements.cpu,
        "ram": info.requirements.ram,
        "gpu": info.requirements.gpu,
        "dependencies": [str(UUID(bytes=i)) for i in info.dependencies],
        "waiting_on": [str(UUID(bytes=i)) for i in info.waiting_on],
        "result_bytes": info.result.size or len(info.result.inline or b"") if info.result is not None else None,
        "copies": [f"{c.worker.ip}:{c.worker.port}" for c in info.copies if c.worker is not None],
        "failure": None if failure is None else f"{failure.reason}: {failure.message}",
        "allow_reconstruction": info.allow_reconstruction,
        "code_bytes": info.code_size,
        "args_bytes": info.args_size,
        **dict(info.details),
    }


def _worker_row(status: WorkerStatus) -> dict[str, Any]:
    beat = status.heartbeat
    total = status.info.total
    return {
        "address": f"{status.id.ip}:{status.id.port}",
        "incarnation": status.id.incarnation.hex(),
        "slots": status.info.slots,
        "free_slots": beat.free_slots if beat is not None else None,
        "claims": status.claims,
        "assignments": status.assignments,
        "cpu": total.cpu,
        "ram": total.ram,
        "gpu": total.gpu,
        "object_store": status.info.object_store,
        "object_store_free": beat.object_store_free if beat is not None else None,
        "host": status.info.host,
        "pid": status.info.pid,
        "started": _wall(status.info.wall_us),
        "heartbeat": beat.counter if beat is not None else None,
        "last_beat": _wall(beat.wall_us) if beat is not None else None,
    }


def _wall(microseconds: int) -> str | None:
    """Wall time as people read it; for display only."""
    if not microseconds:
        return None
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(microseconds / 1e6))


def _memory() -> int:
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 0.8)


def main() -> None:
    """Entry point of the command."""
    run_app(app)


if __name__ == "__main__":
    main()
