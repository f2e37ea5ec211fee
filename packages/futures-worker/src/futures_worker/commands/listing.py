"""`ls`, `show` and `workers`: what there is, and why it is in its state."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import typer

from fdb_datamodel import FutureInfo, FutureState, WorkerStatus, list_downstreams, list_futures, list_workers
from fdb_datamodel.reading import with_reason
from fdb_schema.cli import DEFAULT_CLUSTER, ClusterOption, DbOption, JsonOption, print_json, print_rows, say
from futures_worker.commands.opening import dashed, find_future, look_into, nothing, parse_id, size, wall
from idempotent_txn import run

_PAGE = 500
_STATES = {
    "waiting": "for its arguments, or a pause after a failure",
    "unclaimed": "in the pool, until a worker takes it",
    "claimed": "a worker has it",
    "realized": "done: its result is stored",
    "failed": "for good",
}
_MEANINGS = {
    "charged_attempts": "that count against max_retries",
    "worker_losses": "attempts that ended with their worker",
    "epoch": "times that its result was lost and computed again",
    "named_by": "futures that have it as an argument",
}
"""What `show` adds to words that are the data model's own."""
_SIZES = frozenset({"ram", "object_store", "object_store_free", "result_bytes", "code_bytes", "args_bytes"})


def ls(
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    state: Annotated[FutureState | None, typer.Option(help="Only futures in this state.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Futures to list at most.")] = 100,
    after: Annotated[
        str | None, typer.Option(metavar="ID", help="List futures after this one, in the order of the list.")
    ] = None,
    newest: Annotated[bool, typer.Option("--newest", help="The newest futures first.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List futures, oldest first unless --newest.

    A future is waiting (for its arguments), unclaimed (in the pool), claimed (by a worker), realized (done) or failed.
    """
    cursor = parse_id(after).bytes if after is not None else None
    database, space = look_into(db, cluster)
    workers = run(database, list_workers, space, strategy="off")
    rows: list[dict[str, Any]] = []
    while len(rows) < limit:
        size_of_page = min(_PAGE, limit - len(rows))
        found, cursor = run(
            database, list_futures, space, cursor, size_of_page, state, newest_first=newest, strategy="off"
        )
        rows.extend(future_row(with_reason(info, workers)) for info in found)
        if cursor is None:
            break
    columns = ["id", "state", "name", "attempts", "worker", "reason"]
    print_rows(rows, columns, as_json=as_json, empty=nothing("futures", database, cluster))
    if cursor is not None and rows:
        say(f"there may be more: {'--newest ' if newest else ''}--after {rows[-1]['id']}", err=True)


def show(
    future: Annotated[str, typer.Argument(metavar="ID", help="The future's id.")],
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    as_json: JsonOption = False,
) -> None:
    """Show everything known about one future, with the reason for its state."""
    future_id = parse_id(future)
    database, space = look_into(db, cluster)
    info = find_future(database, space, future_id)
    downstreams = run(database, list_downstreams, space, future_id, strategy="off")
    row = future_row(info) | future_details(info) | {"named_by": [str(UUID(bytes=one)) for one in downstreams]}
    if as_json:
        print_json(row)
        return
    for name, value in row.items():
        if name == "traceback":
            continue  # many lines: after the others
        if value not in (None, "", [], {}) and not (name == "failure" and str(value) in str(row["reason"])):
            shown = size(value) if name in _SIZES else ", ".join(value) if isinstance(value, list) else value
            meaning = _STATES.get(str(value)) if name == "state" else _MEANINGS.get(name)
            say(f"{name.replace('_', ' '):>20}  {shown}" + (f"  ({meaning})" if meaning else ""))
    if row["traceback"]:
        say(str(row["traceback"]).rstrip())


def workers(db: DbOption = None, cluster: ClusterOption = DEFAULT_CLUSTER, as_json: JsonOption = False) -> None:
    """List the cluster's workers."""
    database, space = look_into(db, cluster)
    statuses: list[WorkerStatus] = run(database, list_workers, space, strategy="off")
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
    print_rows(
        [worker_row(status) for status in statuses],
        columns,
        as_json=as_json,
        empty=nothing("workers", database, cluster),
        show=show_cell,
    )


def show_cell(column: str, value: Any) -> str:
    """A cell of a table."""
    return "" if value is None else size(value) if column in _SIZES else str(value)


def future_row(info: FutureInfo) -> dict[str, Any]:
    """A future as a row of a listing."""
    return {
        "id": str(UUID(bytes=info.id)),
        "state": info.state.value,
        "name": info.name,
        "attempts": info.attempts,
        "worker": f"{info.worker.ip}:{info.worker.port}" if info.worker is not None else None,
        "reason": dashed(info.reason),
    }


def future_details(info: FutureInfo) -> dict[str, Any]:
    """What `show` adds to the row."""
    failure = info.failure or info.last_failure
    ended_us = info.failure.wall_us if info.failure else info.result.wall_us if info.result is not None else 0
    return {
        "submitted": wall(info.wall_us),
        "claimed": wall(info.claimed_us),
        "ended": wall(ended_us),
        "seconds": round((ended_us - info.claimed_us) / 1e6, 6) if ended_us and info.claimed_us else None,
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
        "failure": None if failure is None else dashed(f"{failure.reason}: {failure.message}"),
        "traceback": None if failure is None else failure.traceback,
        "allow_reconstruction": info.allow_reconstruction,
        "code_bytes": info.code_size,
        "args_bytes": info.args_size,
        "session": info.session.hex(),
        **dict(info.details),
    }


def worker_row(status: WorkerStatus) -> dict[str, Any]:
    """A worker as a row of a listing."""
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
        "started": wall(status.info.wall_us),
        "heartbeat": beat.counter if beat is not None else None,
        "last_beat": wall(beat.wall_us) if beat is not None else None,
    }
