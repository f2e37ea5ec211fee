"""`timeline`: what ran where and when, as a Chrome trace (chrome://tracing, ui.perfetto.dev)."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

from fdb_datamodel import ClusterSpace, FutureInfo, FutureState, list_futures, list_workers
from fdb_schema.cli import DEFAULT_CLUSTER, ClusterOption, DbOption, JsonOption, fail, in_terminal
from fdb_schema.errors import EXIT_USAGE
from fdb_schema.serving.figures import counted
from fdb_schema.serving.private_files import private_opener
from futures_worker.commands.opening import look_into
from idempotent_txn import run

_PAGE = 500
_QUEUE = 1  # the process id of the lane that shows how many futures wait; workers follow


def timeline(
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where to write it, instead of standard output."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="The newest so many futures at most.")] = 100_000,
    as_json: JsonOption = False,
) -> None:
    """Write a Chrome trace of the futures: their latest attempts by worker and slot, and what they depended on.

    Wall clocks of several hosts may differ. With --json a summary of the file is printed.
    """
    if output is None and in_terminal():
        fail(
            "a trace is for programs: write it to a file with `-o trace.json`, and open that in ui.perfetto.dev",
            EXIT_USAGE,
        )
    database, space = look_into(db, cluster)
    infos = _newest(database, space, limit)
    slots = {(s.id.ip, s.id.port): s.info.slots for s in run(database, list_workers, space, strategy="off")}
    trace = chrome_trace(infos, slots)
    text = json.dumps(trace, separators=(",", ":"))
    if output is None:
        typer.echo(text)
        return
    try:
        with open(output, "w", opener=private_opener) as file:
            file.write(text)
    except OSError as error:
        fail(f"can't write {output}: {error.strerror}")
    summary = {"file": str(output), "futures": len(infos), "events": len(trace["traceEvents"])}
    typer.echo(
        json.dumps(summary)
        if as_json
        else f"{output}: {counted(len(infos), 'future')}, {counted(len(trace['traceEvents']), 'event')}"
    )


def _newest(database: Any, space: ClusterSpace, limit: int) -> list[FutureInfo]:
    """The newest futures, oldest of them first; in a terminal it is told how many were read."""
    from rich.console import Console

    infos: list[FutureInfo] = []
    after: bytes | None = None
    console = Console(stderr=True)
    with console.status("reading futures") as status:
        while len(infos) < limit:
            size = min(_PAGE, limit - len(infos))
            page, after = run(database, list_futures, space, after, size, newest_first=True, strategy="off")
            infos += page
            status.update(f"reading futures: {len(infos):,}")
            if after is None:
                break
    return infos[::-1]


def chrome_trace(infos: list[FutureInfo], slots: dict[tuple[str, int], int]) -> dict[str, Any]:
    """The trace as the JSON object of the Trace Event Format; times in µs.

    The database holds when an attempt was claimed and when it ended. Several may be claimed at once and run one after
    another, so an attempt is drawn from its claim or the end of the one before it in its slot, whichever is later.
    `slots`: of workers that are known, by address; others get as many lanes as they need.
    """
    events: list[dict[str, Any]] = []
    by_worker: dict[tuple[str, int], list[tuple[int, int, FutureInfo]]] = defaultdict(list)
    for info in infos:
        ended = _ended(info)
        if info.worker is not None and info.claimed_us and ended is not None:
            by_worker[info.worker.ip, info.worker.port].append((info.claimed_us, max(ended, info.claimed_us), info))
    at: dict[bytes, tuple[int, int, int, int]] = {}  # id -> pid, tid, begin, end
    for pid, (address, attempts) in enumerate(sorted(by_worker.items(), key=lambda item: item[0]), start=_QUEUE + 1):
        name = f"worker {address[0]}:{address[1]}"
        events.append({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}})
        lanes: list[int] = [0] * slots.get(address, 1)  # when each slot's last attempt ended
        for claimed, ended, info in sorted(attempts, key=lambda one: (one[1], one[0])):
            fitting = [n for n, free in enumerate(lanes) if free <= ended]
            if not fitting or (address not in slots and min(lanes) > claimed):
                lanes.append(0)
                fitting = [len(lanes) - 1]
            lane = max(fitting, key=lambda n: lanes[n] if lanes[n] <= claimed else -lanes[n])
            begin = max(claimed, lanes[lane])
            lanes[lane] = ended
            at[info.id] = (pid, lane + 1, begin, ended)
            events.append(
                {
                    "ph": "X",
                    "name": info.name or "future",
                    "cat": info.state.value,
                    "pid": pid,
                    "tid": lane + 1,
                    "ts": begin,
                    "dur": ended - begin,
                    "args": {"id": str(UUID(bytes=info.id)), "attempt": info.attempts, "epoch": info.epoch},
                }
            )
    events += _arrows(infos, at)
    events += _waiting(infos)
    events += [_failure(info) for info in infos if info.failure is not None]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _ended(info: FutureInfo) -> int | None:
    if info.state is FutureState.realized and info.result is not None:
        return info.result.wall_us
    return None


def _failure(info: FutureInfo) -> dict[str, Any]:
    """A mark where a future failed for good."""
    assert info.failure is not None
    what = {"id": str(UUID(bytes=info.id)), "reason": info.failure.reason, "message": info.failure.message}
    name = f"{info.name or 'future'} failed"
    return {
        "ph": "i",
        "s": "p",
        "name": name,
        "cat": "failed",
        "pid": _QUEUE,
        "tid": 0,
        "ts": info.failure.wall_us or info.wall_us,
        "args": what,
    }


def _arrows(infos: list[FutureInfo], at: dict[bytes, tuple[int, int, int, int]]) -> list[dict[str, Any]]:
    """From the end of each result to the beginning of what was made of it."""
    events: list[dict[str, Any]] = []
    for info in infos:
        for upstream in info.dependencies:
            if upstream in at and info.id in at:
                number = len(events) // 2 + 1
                up, down = at[upstream], at[info.id]
                flow = {"name": "argument", "cat": "dependency", "id": number}
                events.append({"ph": "s", "pid": up[0], "tid": up[1], "ts": up[3], **flow})
                events.append({"ph": "f", "bp": "e", "pid": down[0], "tid": down[1], "ts": max(down[2], up[3]), **flow})
    return events


def _waiting(infos: list[FutureInfo]) -> list[dict[str, Any]]:
    """How many futures were submitted and not yet claimed, over time."""
    changes: list[tuple[int, int]] = []
    for info in infos:
        changes.append((info.wall_us, 1))
        if info.claimed_us:
            changes.append((max(info.claimed_us, info.wall_us), -1))
    events: list[dict[str, Any]] = []
    count = 0
    for moment, change in sorted(changes):
        count += change
        if events and events[-1]["ts"] == moment:
            events[-1]["args"]["futures"] = count
        else:
            events.append(
                {"ph": "C", "name": "waiting", "pid": _QUEUE, "tid": 0, "ts": moment, "args": {"futures": count}}
            )
    if events:
        events.append({"ph": "M", "name": "process_name", "pid": _QUEUE, "tid": 0, "args": {"name": "queue"}})
    return events
