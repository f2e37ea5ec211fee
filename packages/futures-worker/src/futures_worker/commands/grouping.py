"""`errors`: what failed, told once for all that failed alike."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

from fdb_datamodel import FutureInfo, FutureState
from fdb_schema import RecordError
from fdb_schema.cli import DEFAULT_CLUSTER, ClusterOption, DbOption, JsonOption, in_terminal, print_rows, say
from futures_worker.commands.choosing import NameOption, ReasonOption, SinceOption, ago, short_ids, walk, wanted
from futures_worker.commands.opening import dashed, look_into, nothing, wall
from futures_worker.failure import Failure

_UPSTREAM = "upstream"


def errors(
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    name: NameOption = None,
    reason: ReasonOption = None,
    since: SinceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Group the futures that have failed by function and error, the most frequent first, with one id of each group.

    Those that failed because one of their arguments did are counted with a note and not listed: `show` names the cause.
    """
    like = wanted(frozenset({FutureState.failed}), name, reason, since)
    database, space = look_into(db, cluster)
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    followers = 0
    for info in walk(database, space, like):
        if info.failure is not None and info.failure.reason == _UPSTREAM:
            followers += 1
            continue
        error = kind_of(info)
        ended_us = info.failure.wall_us if info.failure is not None else 0
        group = groups.setdefault((info.name, error), {"count": 0, "name": info.name, "error": error, "last_us": -1})
        group["count"] += 1
        if ended_us >= group["last_us"]:  # the latest stands for all
            message = info.failure.message if info.failure is not None else ""
            group |= {"last_us": ended_us, "id": str(UUID(bytes=info.id)), "message": dashed(message)}
    found = sorted(groups.values(), key=lambda group: (-group["count"], -group["last_us"]))
    now_us = time.time_ns() // 1000
    brief = not as_json and in_terminal()
    shown = short_ids([group["id"] for group in found]) if brief else {}
    rows = []
    for group in found:
        last_us = group.pop("last_us")
        seconds = max(0.0, (now_us - last_us) / 1e6) if last_us > 0 else None
        rows.append(
            group
            | {"id": shown.get(group["id"], group["id"]), "last": wall(max(0, last_us)), "last_seconds_ago": seconds}
        )
        if not as_json:
            rows[-1]["last"] = "" if seconds is None else f"{ago(seconds)} ago"
    print_rows(
        rows,
        ["count", "last", "name", "error", "id", "message"],
        as_json=as_json,
        empty=nothing("failed futures", database, cluster),
        style=lambda column, _: {"count": "bold red", "id": "dim"}.get(column, ""),
        flowing="message" if brief else None,
    )
    if followers and not as_json:
        say(f"{followers} more failed because of an argument that did", err=True)


def kind_of(info: FutureInfo) -> str:
    """What a failure is called: the type of the exception that the code raised, else the failure's reason."""
    failure = info.failure
    if failure is None:
        return "failed"
    if failure.reason == "error" and failure.payload:
        try:
            return Failure.from_bytes(failure.payload).error_type.removeprefix("builtins.")
        except RecordError:
            pass
    return failure.reason
