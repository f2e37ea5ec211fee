"""`errors`: what failed, told once for all that failed alike."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

from fdb_datamodel import FutureState
from fdb_datamodel.views.troubles import find_troubles
from fdb_schema.cli import (
    DEFAULT_CLUSTER,
    ClusterOption,
    DbOption,
    JsonOption,
    LimitOption,
    in_terminal,
    print_rows,
    say,
)
from futures_worker.commands.choosing import (
    NameOption,
    ReasonOption,
    SinceOption,
    ago,
    cut,
    in_brief,
    short_ids,
    wanted,
)
from futures_worker.commands.opening import look_into, nothing, wall
from futures_worker.operations.finding import walk
from futures_worker.operations.rows import dashed


def errors(
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    name: NameOption = None,
    reason: ReasonOption = None,
    since: SinceOption = None,
    limit: LimitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Group the futures that have failed by function and error, the most frequent first, with one id of each group.

    Those that failed because one of their arguments did, and those that were cancelled, are counted with a note and not
    listed: `show` names the cause.
    """
    like = wanted(frozenset({FutureState.failed}), name, reason, since)
    database, space = look_into(db, cluster)
    found = find_troubles(walk(database, space, like))
    now_us = time.time_ns() // 1000
    rows: list[dict[str, Any]] = []
    for group in found.listed():
        seconds = max(0.0, (now_us - group.last_us) / 1e6) if group.last_us > 0 else None
        rows.append(
            {
                "count": group.count,
                "name": group.name,
                "error": group.what,
                "id": str(UUID(bytes=group.id)),
                "message": dashed(group.message),
                "last": wall(max(0, group.last_us)),
                "last_seconds_ago": seconds,
            }
        )
    brief = not as_json and in_terminal()
    if brief:
        shown = short_ids([row["id"] for row in rows])
        for row in rows:
            row |= {
                "message": in_brief(row["message"], row["id"]),
                "id": shown[row["id"]],
                "name": cut(row["name"], 28),
            }
            row["last"] = "" if row["last_seconds_ago"] is None else f"{ago(row['last_seconds_ago'])} ago"
    print_rows(
        rows,
        ["count", "last", "name", "error", "id", "message"],
        as_json=as_json,
        empty=nothing("failed futures", database, cluster),
        style=lambda column, _: {"count": "bold red", "id": "dim"}.get(column, ""),
        under=True,
        limit=limit,
    )
    if brief and rows:
        say("`futures-worker show ID` has the traceback", err=True)
    if found.followers and not as_json:
        say(f"{found.followers} more failed because of an argument that did", err=True)
    if found.cancelled and not as_json:
        were = "was" if found.cancelled == 1 else "were"
        say(f"{found.cancelled} more {were} cancelled: `ls --state failed --reason cancelled` lists them", err=True)
