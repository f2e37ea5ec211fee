"""The command `futures-worker`: run a worker, and look at futures and workers without unpickling anything."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from fdb_datamodel import (
    GRACE_SECONDS,
    SESSION_BEAT_SECONDS,
    SESSION_TTL_SECONDS,
    TOMBSTONE_SECONDS,
    parse_size,
)
from fdb_schema.cli import ClusterOption, DbOption, command_app, fail, run_app
from fdb_schema.errors import EXIT_USAGE
from fdb_schema.keyspace import DEFAULT_CLUSTER
from futures_worker.commands.acting import cancel, retry
from futures_worker.commands.grouping import errors
from futures_worker.commands.limits import limits_app
from futures_worker.commands.listing import ls, show, workers
from futures_worker.commands.output import logs, watch
from futures_worker.commands.programs import programs_app
from futures_worker.commands.queues import queues_app
from futures_worker.commands.schedules import schedules_app
from futures_worker.commands.secrets import secret_app
from futures_worker.commands.stacks import stack
from futures_worker.commands.timeline import timeline
from futures_worker.commands.top import top
from futures_worker.liveness import TTL_SECONDS

LEAST_SESSION_TTL = 3 * SESSION_BEAT_SECONDS
"""Seconds: who misses fewer beats than three may live, and takes itself for alive."""

app = command_app("futures-worker", "Run durable futures: worker processes, and what they are doing.")


@app.command()
def run(
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    address: Annotated[
        str, typer.Option(help="Address to listen on; other processes reach the worker there, or at --advertise.")
    ] = "127.0.0.1",
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="IP",
            help="Address by which others reach the worker, where that isn't --address.",
            show_default="--address",
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes any free one.")] = 0,
    slots: Annotated[int | None, typer.Option(min=1, help="Tasks at a time.", show_default="as many as --cpus")] = None,
    cpus: Annotated[float | None, typer.Option(min=0, help="Cpus offered.", show_default="all of this machine")] = None,
    ram: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory offered to tasks, as 2GiB.", show_default="80 % of the machine's"),
    ] = None,
    gpus: Annotated[
        float | None,
        typer.Option(min=0, help="Gpus offered, and given out by id.", show_default="those of CUDA_VISIBLE_DEVICES"),
    ] = None,
    resource: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=AMOUNT", help="A resource offered, by a name of yours; several times for several."),
    ] = None,
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
    tombstones: Annotated[
        float, typer.Option(min=0, help="Seconds that the id of a collected future answers that it was deleted.")
    ] = TOMBSTONE_SECONDS,
    session_ttl: Annotated[
        float,
        typer.Option(min=0, help="Seconds without a sign of life after which a client is declared dead; 15 at least."),
    ] = SESSION_TTL_SECONDS,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Port of --address for Prometheus (/metrics); 0 takes any free one.",
            show_default="none",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the ready line as JSON.")] = False,
) -> None:
    """Run a worker until SIGTERM. Prints one line when it is ready, with its address."""
    from futures_worker.worker.registration import gpu_ids, read_offers, whole_machine
    from futures_worker.worker.service import WorkerConfig, serve

    if session_ttl < LEAST_SESSION_TTL:
        fail(
            f"--session-ttl {session_ttl:g}: clients give a sign of life every {SESSION_BEAT_SECONDS:g} s, so live ones would be "
            f"declared dead; it is {LEAST_SESSION_TTL:g} or more",
            EXIT_USAGE,
        )
    try:
        gpus, ids = gpu_ids(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
        total = whole_machine(cpus, parse_size(ram) if ram is not None else None, gpus, read_offers(resource or ()))
        store_bytes = parse_size(object_store)
    except ValueError as exc:
        fail(str(exc), EXIT_USAGE)
    config = WorkerConfig(
        url=db,
        cluster=cluster,
        address=address,
        advertise=advertise,
        port=port,
        slots=slots if slots is not None else max(1, int(total.cpu)),
        total=total,
        gpus=ids,
        object_store=store_bytes,
        spill=spill,
        grace=grace,
        ttl=ttl,
        collect_after=collect_after,
        session_ttl=session_ttl,
        tombstones=tombstones,
        metrics_port=metrics_port,
    )
    serve(config, as_json=as_json)


app.add_typer(secret_app, name="secret")
app.add_typer(limits_app, name="limits")
app.add_typer(programs_app, name="programs")
app.add_typer(queues_app, name="queues")
app.add_typer(schedules_app, name="schedules")

for command in (ls, show, watch, errors, workers, top, logs, stack, cancel, retry, timeline):
    app.command(command.__name__)(command)


def main() -> None:
    """Entry point of the command."""
    run_app(app)


if __name__ == "__main__":
    main()
