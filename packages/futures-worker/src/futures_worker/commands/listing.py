"""`ls`, `show` and `workers`: what there is, and why it is in its state."""

from __future__ import annotations

import itertools
import time
from typing import Annotated, Any
from uuid import UUID

import typer

from fdb_datamodel import FutureInfo, FutureState, Requirements, WorkerStatus, list_downstreams, list_workers, named_of
from fdb_schema.cli import (
    DEFAULT_CLUSTER,
    ClusterOption,
    DbOption,
    JsonOption,
    LimitOption,
    in_terminal,
    print_json,
    print_rows,
    say,
)
from fdb_schema.serving.figures import told
from futures_worker.commands.choosing import (
    IdArgument,
    NameOption,
    ReasonOption,
    SinceOption,
    ago,
    cut,
    in_brief,
    parse_id,
    resolve_id,
    said_once,
    short_ids,
    wanted,
)
from futures_worker.commands.opening import find_future, look_into, nothing, size, wall
from futures_worker.operations.finding import PAGE, Order, in_order, seconds_of_last, walk
from futures_worker.operations.newest import newest_first
from futures_worker.operations.rows import dashed
from idempotent_txn import run

_STATES = {
    "waiting": "for its arguments, or a pause after a failure",
    "unclaimed": "in the pool, until a worker takes it",
    "claimed": "a worker has it",
    "realized": "done: its result is stored",
    "failed": "for good",
}
_MEANINGS = {
    "charged_attempts": "all but the first are retries, of which max_retries allows so many",
    "worker_losses": "attempts that ended with their worker",
    "epoch": "times that its result was lost and computed again",
    "named_by": "futures that have it as an argument",
}
"""What `show` adds to words that are the data model's own."""
_WORKER_COLUMNS = [
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
_SIZES = frozenset({"ram", "object_store", "object_store_free", "result_bytes", "code_bytes", "args_bytes"})


_LOOKS = {
    "waiting": "yellow",
    "unclaimed": "yellow",
    "claimed": "cyan",
    "realized": "green",
    "failed": "bold red",
}


def ls(
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    state: Annotated[FutureState | None, typer.Option(help="Only futures in this state.")] = None,
    name: NameOption = None,
    reason: ReasonOption = None,
    since: SinceOption = None,
    limit: Annotated[int, typer.Option(min=1, help="Futures to list at most.")] = 100,
    after: Annotated[
        str | None, typer.Option(metavar="ID", help="List futures after this one, in the order of the list.")
    ] = None,
    newest: Annotated[
        bool | None,
        typer.Option("--newest/--oldest", help="Which come first.", show_default="newest in a terminal, else oldest"),
    ] = None,
    sort: Annotated[
        Order | None, typer.Option(help="Order of what is listed: the oldest, the longest, the most first.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List futures, and why each is in its state.

    A future is waiting (for its arguments), unclaimed (in the pool), claimed (by a worker), realized (done) or failed.
    Ids are cut to what tells them apart: every command takes the beginning of an id.
    """
    like = wanted(None if state is None else frozenset({state}), name, reason, since)
    begin = parse_id(after) if after is not None else None
    database, space = look_into(db, cluster)
    brief = not as_json and in_terminal()
    newest = brief if newest is None else newest
    last_seen = resolve_id(database, space, begin) if begin is not None else None
    cursor = last_seen.bytes if last_seen is not None else None
    page = PAGE if like else min(PAGE, limit + 1)
    ordered = newest_first if newest else walk
    found = list(itertools.islice(ordered(database, space, like, cursor, page=page), limit + 1))
    more = len(found) > limit
    infos = found[:limit]
    last = str(UUID(bytes=infos[-1].id)) if infos else ""
    if sort is not None:
        infos = in_order(infos, sort)
    rows = [future_row(info) | future_times(info) for info in infos]
    more_columns = _shorten(rows) if brief else ("attempts", "worker")
    print_rows(
        rows,
        ["id", "state", "name", "age", "took", *more_columns, "reason"],
        as_json=as_json,
        empty=_nothing_found(bool(like or state), last_seen, newest, database, cluster),
        show=_show_future,
        style=_look,
        flowing="reason" if brief else None,
    )
    if more:
        say(f"there may be more: {'--newest' if newest else '--oldest'} --after {last}", err=True)


def _shorten(rows: list[dict[str, Any]]) -> tuple[str, ...]:
    """Cuts the rows to what a terminal has room for; the further columns: the reason says where it runs, attempts are told
    where one wasn't enough.
    """
    shown = short_ids([row["id"] for row in rows])
    for row in rows:
        row |= {"reason": in_brief(row["reason"], row["id"]), "id": shown[row["id"]], "name": cut(row["name"])}
    return ("attempts",) if any(row["attempts"] > 1 for row in rows) else ()


def _nothing_found(filtered: bool, after: UUID | None, newest: bool, database: Any, cluster: str) -> str:
    what = "such futures" if filtered else "futures"
    if after is None:
        return nothing(what, database, cluster)
    return f"no {what} {'older' if newest else 'newer'} than {after} in cluster {cluster!r}: the list ends there"


def _show_future(column: str, value: Any) -> str:
    if value is None:
        return ""
    return ago(value) if column in ("age", "took") else str(value)


def _look(column: str, value: Any) -> str:
    return _LOOKS.get(str(value), "") if column == "state" else "dim" if column == "id" else ""


def show(
    future: IdArgument,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    as_json: JsonOption = False,
) -> None:
    """Show everything known about one future, with the reason for its state."""
    meant = parse_id(future)
    database, space = look_into(db, cluster)
    future_id = resolve_id(database, space, meant)
    info = find_future(database, space, future_id)
    downstreams = run(database, list_downstreams, space, future_id, strategy="off")
    row = future_row(info) | future_details(info) | {"named_by": [str(UUID(bytes=one)) for one in downstreams]}
    if as_json:
        print_json(row)
        return
    told_reason = said_once(row["reason"], row["id"])
    for name, value in row.items():
        if name == "traceback":
            continue  # many lines: after the others
        if name in ("reason", "failure"):
            value = said_once(str(value or ""), row["id"])
        if value not in (None, "", [], {}) and not (name == "failure" and value in told_reason):
            shown = size(value) if name in _SIZES else ", ".join(value) if isinstance(value, list) else value
            shown = told(shown)
            meaning = _meaning(name, row)
            say(f"{name.replace('_', ' '):>20}  {shown}" + (f"  ({meaning})" if meaning else ""))
    if row["traceback"]:
        say(str(row["traceback"]).rstrip())


def _meaning(name: str, row: dict[str, Any]) -> str | None:
    uncharged = row["attempts"] - row["charged_attempts"]
    if name == "attempts" and uncharged > 0 and row["state"] in ("realized", "failed"):
        return f"{uncharged:,} of them not charged to max_retries"
    return _STATES.get(row["state"]) if name == "state" else _MEANINGS.get(name)


def workers(
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    limit: LimitOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the cluster's workers."""
    database, space = look_into(db, cluster)
    statuses: list[WorkerStatus] = run(database, list_workers, space, strategy="off")
    print_workers([worker_row(status) for status in statuses], nothing("workers", database, cluster), as_json, limit)


def print_workers(rows: list[dict[str, Any]], empty: str, as_json: bool = False, limit: int | None = None) -> None:
    """Workers as a listing; in a terminal what fits eighty columns."""
    brief = not as_json and in_terminal()
    print_rows(
        [with_busy(row) for row in rows] if brief else rows,
        BRIEF_COLUMNS if brief else _WORKER_COLUMNS,
        as_json=as_json,
        empty=empty,
        show=show_cell,
        flowing="host" if brief else None,
        limit=limit,
    )


BRIEF_COLUMNS = ("address", "busy", "cpu", "ram", "gpu", "object_store", "pid", "host")
"""What eighty columns have room for."""


def with_busy(row: dict[str, Any]) -> dict[str, Any]:
    """A worker's row with how many of its slots are taken."""
    free = row["free_slots"]
    return row | {"busy": f"{'?' if free is None else row['slots'] - free}/{row['slots']}"}


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
        "worker": info.address,
        "reason": dashed(info.reason),
    }


def future_times(info: FutureInfo) -> dict[str, Any]:
    """What `ls` adds to the row: seconds since it was submitted, and from the claim to the end or, where it runs, to now."""
    now_us = time.time_ns() // 1000
    took = seconds_of_last(info)
    if took is None and info.claimed_us and info.state is FutureState.claimed:
        took = max(0.0, (now_us - info.claimed_us) / 1e6)
    age = max(0.0, (now_us - info.wall_us) / 1e6) if info.wall_us else None
    return {"age": None if age is None else round(age, 3), "took": None if took is None else round(took, 6)}


def future_details(info: FutureInfo) -> dict[str, Any]:
    """What `show` adds to the row."""
    failure = info.failure or info.last_failure
    return {
        "submitted": wall(info.wall_us),
        "claimed": wall(info.claimed_us),
        "ended": wall(info.ended_us),
        "seconds": seconds_of_last(info),
        "charged_attempts": info.charged,
        "max_retries": info.max_retries,
        "worker_losses": info.losses,
        "out_of_memory": info.out_of_memory,
        "epoch": info.epoch,
        "priority": info.priority,
        "cpu": info.requirements.cpu,
        "ram": info.requirements.ram,
        "gpu": info.requirements.gpu,
        "resources": _named(info.requirements),
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


def _named(of: Requirements) -> dict[str, float]:
    """Named resources and amounts."""
    return {name: amount / 1000 for name, amount in named_of(of.shape)}


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
        "resources": _named(total),
        "object_store": status.info.object_store,
        "object_store_free": beat.object_store_free if beat is not None else None,
        "host": status.info.host,
        "pid": status.info.pid,
        "started": wall(status.info.wall_us),
        "heartbeat": beat.counter if beat is not None else None,
        "last_beat": wall(beat.wall_us) if beat is not None else None,
    }
