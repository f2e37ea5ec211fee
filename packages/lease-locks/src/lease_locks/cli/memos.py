"""Commands that look at the memo: runs, inspect, summarize, diff. They read metadata and never unpickle."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections import Counter
from typing import Annotated, Any

import typer

from fdb_schema import RecordError
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
from fdb_schema.serving.figures import cut, short_ids
from lease_locks.cli.opening import look_into
from lease_locks.errors import DamagedRowError, LeaseNotFoundError, MemoUriError
from lease_locks.grants.info import wall_time
from lease_locks.locks import LeaseManager
from lease_locks.memo.counting import MICROSECONDS
from lease_locks.memo.rows import MemoRows
from lease_locks.memo.stored.addresses import Memo, function_uri
from lease_locks.memo.stored.records import AttemptRecord, InvocationRecord, OutcomeRecord

UriArgument = Annotated[str, typer.Argument(metavar="MEMO_URI", help="memo:PIPELINE/FUNCTION/DIGEST")]


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command("runs")(list_runs)
    app.command("summarize")(summarize)
    app.command("inspect")(inspect)
    app.command("diff")(diff)


def _totals(counts: dict[Any, int]) -> dict[str, float]:
    totals: Counter[str] = Counter()
    for (_, kind), count in counts.items():
        totals[kind] += count
    executed, hit, awaited = totals["executed"], totals["hit"], totals["awaited"]
    return {
        "calls": executed + hit + awaited,
        "executed": executed,
        "hit": hit,
        "awaited": awaited,
        "failed": totals["failed"],
        "computed_seconds": round(totals[MICROSECONDS] / 1e6, 3),
    }


def list_runs(
    limit: LimitOption = None,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    json: JsonOption = False,
) -> None:
    """List the processes that called memoized functions, and what their calls came to."""
    locks = look_into(db, cluster)
    rows: list[dict[str, Any]] = []
    for run_id, record, counts in MemoRows(locks.space).runs(locks.db):
        rows.append(
            {
                "run": run_id,
                "by": record.by if record else "",
                "command": record.command if record else "",
                "started_at": wall_time(record.started_us) if record else None,
                "last_at": wall_time(record.counted_us) if record and record.counted_us else None,
                **_totals(counts),
            }
        )
    columns = ["run", "by", "command", "calls", "executed", "hit", "awaited", "failed", "computed_seconds"]
    if in_terminal() and not json:
        rows.sort(key=lambda row: row["started_at"].timestamp() if row["started_at"] else 0.0, reverse=True)
        rows = [row | {"by": cut(row["by"], 20)} for row in rows]
        columns = ["run", "calls", "executed", "hit", "awaited", "failed", "computed_seconds", "command"]
    print_rows(
        rows,
        columns,
        as_json=json,
        empty="no function was called through a runner",
        whole=("run",),
        limit=limit,
    )


def summarize(
    run_id: Annotated[str | None, typer.Argument(metavar="[RUN]", help="One run; without it, all of them.")] = None,
    limit: LimitOption = None,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    json: JsonOption = False,
) -> None:
    """Per function: how many calls there were, and how many of them were executed, found or awaited."""
    locks = look_into(db, cluster)
    functions: dict[tuple[str, str], dict[Any, int]] = {}
    found = False
    for _, _, counts in MemoRows(locks.space).runs(locks.db, run_id):
        found = True
        for (memo, kind), count in counts.items():
            into = functions.setdefault((memo.pipeline, memo.function), {})
            into[memo, kind] = into.get((memo, kind), 0) + count
    if run_id is not None and not found:
        raise LeaseNotFoundError(f"there is no run {run_id!r} in cluster {cluster!r}: see `lease-locks runs`")
    rows = [
        {
            "pipeline": pipeline,
            "function": function,
            "uri": function_uri(pipeline, function),
            "invocations": len({memo for memo, _ in counts if memo.digest}),
            **_totals(counts),
        }
        for (pipeline, function), counts in sorted(functions.items())
    ]
    print_rows(
        rows,
        ["uri", "invocations", "calls", "executed", "hit", "awaited", "failed", "computed_seconds"],
        as_json=json,
        empty="no function was called through a runner",
        flowing="uri",
        limit=limit,
    )


_BEGINNING = re.compile(r"[0-9a-f]{4,63}")
_DIGEST = len("01d90ac1")


def parse(uri: str) -> Memo | str:
    """The invocation of a whole address, or the address as it is where its digest may only be begun. Raises `MemoUriError`."""
    front, _, digits = uri.rpartition("/")
    if front.count("/") == 1 and _BEGINNING.fullmatch(digits):
        Memo.prefix(front)
        return uri
    return Memo.from_uri(uri)


def resolve(locks: LeaseManager, meant: Memo | str) -> Memo:
    """The invocation that `parse` found, or the only one whose digest begins so. Raises `MemoUriError`, `LeaseNotFoundError`."""
    if isinstance(meant, Memo):
        return meant
    front, _, digits = meant.rpartition("/")
    known = (memo for memo, _ in MemoRows(locks.space).scan(locks.db, *Memo.prefix(front)))
    found = [memo for memo in known if memo.digest.hex().startswith(digits)]
    if len(found) > 1:
        raise MemoUriError(f"several invocations begin with {meant}: {', '.join(memo.uri for memo in found[:6])}")
    if not found:
        raise LeaseNotFoundError(f"nothing is known of {meant}")
    return found[0]


def describe(locks: LeaseManager, memo: Memo) -> dict[str, Any]:
    """Everything known of an invocation; of a row that can't be read, which one. Raises `LeaseNotFoundError`."""
    memos = MemoRows(locks.space)
    rows = next((found for _, found in memos.scan(locks.db, memo.pipeline, memo.function, memo.digest)), None)
    if rows is None:
        raise LeaseNotFoundError(f"nothing is known of {memo.uri}")
    described: dict[str, Any] = {"memo_uri": memo.uri, "lock": memo.lock_name, "arguments": [], "attempts": []}
    damaged: list[str] = []
    for column, data in sorted(rows.items()):
        try:
            _describe_row(described, column, data)
        except RecordError as error:
            damaged.append(f"row {column!r} can't be read: {error}")
    try:
        info = locks.read(memo.lock_name)
        described["held_by"] = None if info is None else info.describe()
    except DamagedRowError as error:
        damaged.append(str(error))
        described["held_by"] = None
    described["damaged"] = damaged
    return described


def _describe_row(described: dict[str, Any], column: str, data: bytes) -> None:
    if column == "inv":
        record = InvocationRecord.decode(data)
        described["arguments"] = [
            {"parameter": name, "value": value, "digest": digest.hex()} for name, value, digest in record.shown
        ]
        described["invoked_at"], described["invoked_by"] = wall_time(record.at_us), record.by
    elif column in ("res", "exc"):
        outcome = OutcomeRecord.decode(data)
        described["result" if column == "res" else "exception"] = {
            "bytes": outcome.payload.size,
            "at": wall_time(outcome.at_us),
            "by": outcome.by,
            "error": outcome.error,
            "late": outcome.late,
            "injected": outcome.injected,
        }
    elif column.startswith("att:"):
        attempt = AttemptRecord.decode(data)
        row = {field.name: getattr(attempt, field.name) for field in dataclasses.fields(attempt)}
        row.pop("extra")
        row["failure"] = attempt.failure.error if attempt.failure else ""
        row["writer_id"] = column[4:]
        row["pending_seconds"] = _between(attempt.invoked_us, attempt.started_us)
        row["ran_seconds"] = _between(attempt.started_us, attempt.ended_us)
        described["attempts"].append(row)


def _between(begin_us: int, end_us: int) -> float | None:
    """Seconds, by the clocks of whoever wrote the two; None where one hasn't come, or where it can't be so."""
    return round((end_us - begin_us) / 1e6, 3) if 0 < begin_us <= end_us else None


def invocations(locks: LeaseManager, prefix: str) -> list[dict[str, Any]]:
    """Every invocation of a pipeline, or of a function of it, as rows of a listing."""
    rows = []
    for memo, found in MemoRows(locks.space).scan(locks.db, *Memo.prefix(prefix)):
        outcome = "result" if "res" in found else "exception" if "exc" in found else ""
        described: dict[str, Any] = {"arguments": []}
        with contextlib.suppress(RecordError, KeyError):
            _describe_row(described, "inv", found["inv"])
        arguments = ", ".join(f"{each['parameter']}={each['value']}" for each in described["arguments"])
        rows.append({"memo_uri": memo.uri, "outcome": outcome, "arguments": arguments})
    return rows


def inspect(
    memo_uri: Annotated[
        str,
        typer.Argument(
            metavar="MEMO_URI", help="memo:PIPELINE/FUNCTION/DIGEST; memo:PIPELINE/FUNCTION or memo:PIPELINE list."
        ),
    ],
    limit: LimitOption = None,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    json: JsonOption = False,
) -> None:
    """Show an invocation: its arguments, attempts, result or exception. Nothing is unpickled.

    The address of a function, as `summarize` prints it, or of a pipeline lists the invocations. Exit code 3 where
    nothing is known of it.
    """
    if memo_uri.count("/") < 2:
        Memo.prefix(memo_uri)  # a mistyped address is one in any database
        rows = invocations(look_into(db, cluster), memo_uri)
        if not rows:
            raise LeaseNotFoundError(
                f"nothing is known of {memo_uri} in cluster {cluster!r}: see `lease-locks summarize`"
            )
        if in_terminal() and not json:
            shown = short_ids([row["memo_uri"].rpartition("/")[2] for row in rows], _DIGEST)
            for row in rows:
                front, _, digest = row["memo_uri"].rpartition("/")
                row["memo_uri"] = f"{front}/{shown[digest]}"
        print_rows(rows, ["outcome", "memo_uri", "arguments"], as_json=json, whole=("memo_uri",), limit=limit)
        return
    meant = parse(memo_uri)
    locks = look_into(db, cluster)
    described = describe(locks, resolve(locks, meant))
    if json:
        print_json(described)
        return
    say(described["memo_uri"])
    for argument in described["arguments"]:
        say(f"  {argument['parameter']} = {argument['value']}{'' if argument['digest'] else '  (no part of the key)'}")
    for attempt in described["attempts"]:
        note = attempt["failure"] or attempt["note"]
        said = {"pending": attempt["pending_seconds"], "ran": attempt["ran_seconds"]}
        times = "".join(f" {word} {seconds:,.3g} s" for word, seconds in said.items() if seconds is not None)
        say(f"attempt {attempt['writer_id']} {attempt['state']} {attempt['shell']} {attempt['remote']}{times} {note}")
    for kind in ("result", "exception"):
        outcome = described.get(kind)
        if outcome is not None:
            say(f"{kind}: {outcome['bytes']:,} bytes by {outcome['by']} at {outcome['at']:%F %T} {outcome['error']}")
    if described["held_by"]:
        say(f"lock held by {described['held_by']}")
    for damaged in described["damaged"]:
        say(f"damaged: {damaged}")


def diff(
    left: UriArgument,
    right: UriArgument,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    json: JsonOption = False,
) -> None:
    """Show why two invocations are two: what differs in pipeline, function or arguments. Exit code 1 where any does."""
    meant = [parse(left), parse(right)]
    locks = look_into(db, cluster)
    memos = [resolve(locks, one) for one in meant]
    sides = [describe(locks, memo) for memo in memos]
    rows: list[dict[str, Any]] = []
    for what in ("pipeline", "function"):
        values = [getattr(memo, what) for memo in memos]
        if values[0] != values[1]:
            rows.append({"what": what, "left": values[0], "right": values[1]})
    arguments = [{a["parameter"]: a for a in side["arguments"]} for side in sides]
    for parameter in dict.fromkeys([*arguments[0], *arguments[1]]):
        found = [side.get(parameter) for side in arguments]
        if (found[0] or {}).get("digest") != (found[1] or {}).get("digest"):
            values = [f["value"] if f else None for f in found]
            rows.append({"what": parameter, "left": values[0], "right": values[1]})
    print_rows(rows, ["what", "left", "right"], as_json=json, empty="no difference")
    if rows:
        raise typer.Exit(1)
