"""Commands that end what the memo has computed, or forget it: cancel, invalidate, prune. They never unpickle."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from fdb_schema.cli import DEFAULT_CLUSTER, ClusterOption, DbOption, DryRunOption, JsonOption, print_json, say
from fdb_schema.serving.figures import counted
from lease_locks.cli.memos import parse, resolve
from lease_locks.cli.opening import act_on, look_into
from lease_locks.errors import LeaseNotFoundError, MemoUriError
from lease_locks.locks import LeaseManager
from lease_locks.memo.calling.cancelling import cancel
from lease_locks.memo.pruning import forget, prune
from lease_locks.memo.rows import MemoRows
from lease_locks.memo.shells import end_process, is_alive
from lease_locks.memo.stored.addresses import Memo
from lease_locks.memo.stored.records import AttemptRecord


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command("cancel")(cancel_invocations)
    app.command("invalidate")(invalidate)
    app.command("prune")(prune_memos)


def _meant(memo_uri: str, db: str | None, cluster: str, *, look: bool) -> tuple[LeaseManager, list[Memo]]:
    """The invocation of an address, or all that are known of a function's. Raises `MemoUriError`, `LeaseNotFoundError`."""
    whole = memo_uri.count("/") < 2
    if whole and len(Memo.prefix(memo_uri)) < 2:
        raise MemoUriError(
            f"{memo_uri!r:.120} is a whole pipeline: give memo:PIPELINE/FUNCTION, or memo:PIPELINE/FUNCTION/DIGEST for one"
        )
    meant = None if whole else parse(memo_uri)
    locks = look_into(db, cluster) if look else act_on(db, cluster)
    if meant is not None:
        return locks, [resolve(locks, meant)]
    return locks, [here for here, _ in MemoRows(locks.space).scan(locks.db, *Memo.prefix(memo_uri))]


def invalidate(
    memo_uri: Annotated[
        str,
        typer.Argument(metavar="MEMO_URI", help="memo:PIPELINE/FUNCTION/DIGEST, or memo:PIPELINE/FUNCTION for all."),
    ],
    dry_run: DryRunOption = False,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    json: JsonOption = False,
) -> None:
    """Forget the outcome of an invocation, or of all invocations of a function."""
    locks, memos = _meant(memo_uri, db, cluster, look=dry_run)
    rows = MemoRows(locks.space)
    if dry_run:
        count = sum(1 for here in memos for _ in rows.scan(locks.db, here.pipeline, here.function, here.digest))
    else:
        count = sum(forget(locks, rows, here) for here in memos)
    if not count:
        raise LeaseNotFoundError(f"nothing is known of {memo_uri}")
    if json:
        print_json({"memo_uri": memo_uri, "invocations": count, "forgotten": not dry_run})
    else:
        say(f"{'would forget' if dry_run else 'forgot'} {count} invocation{'s' if count != 1 else ''}")


def cancel_invocations(
    memo_uri: Annotated[
        str,
        typer.Argument(metavar="MEMO_URI", help="memo:PIPELINE/FUNCTION/DIGEST, or memo:PIPELINE/FUNCTION for all."),
    ],
    dry_run: DryRunOption = False,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    json: JsonOption = False,
) -> None:
    """End an invocation that is being computed, or all of a function's. Whoever waits for one gets an error.

    Its lock is free at once. Its remote is ended here where it is a process of this host, else by its orchestrator or by itself.
    """
    locks, memos = _meant(memo_uri, db, cluster, look=dry_run)
    remotes: list[str] = []
    count = 0
    for memo in memos:
        if dry_run:
            count += locks.read(memo.lock_name) is not None
            continue
        here = _running_here(locks, memo)
        attempts = cancel(locks, memo)
        count += bool(attempts)
        for attempt in attempts:
            # A remote that hears of it sooner than we get to it has ended by itself: it was this that ended it.
            if end_process(attempt.handle) or attempt.handle in here:
                remotes.append(attempt.remote or attempt.handle)
    if not count:
        raise LeaseNotFoundError(f"nobody computes {memo_uri}")
    if json:
        print_json({"memo_uri": memo_uri, "invocations": count, "cancelled": not dry_run, "ended_here": remotes})
    else:
        ended = f", and ended {', '.join(remotes)}" if remotes else ""
        say(f"{'would cancel' if dry_run else 'cancelled'} {counted(count, 'invocation')}{ended}")


def _running_here(locks: LeaseManager, memo: Memo) -> set[str]:
    """The handles of an invocation's remotes that are processes of this host and run."""
    found = [
        AttemptRecord.found(value)
        for _, columns in MemoRows(locks.space).scan(locks.db, memo.pipeline, memo.function, memo.digest)
        for column, value in columns.items()
        if column.startswith("att:")
    ]
    return {one.handle for one in found if one is not None and is_alive(one.handle)}


def prune_memos(
    older_than: Annotated[
        float | None, typer.Option(min=0.0, help="Seconds: forget what was computed, or counted, longer ago.")
    ] = None,
    most_bytes: Annotated[
        int | None, typer.Option(min=0, help="Forget the oldest until the rest takes at most so many bytes.")
    ] = None,
    pipeline: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of this pipeline alone, and of runs that called nothing else.")
    ] = None,
    dry_run: DryRunOption = False,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    json: JsonOption = False,
) -> None:
    """Forget old invocations with their arguments and results, and the counts of old runs.

    Nothing goes that is being computed, or that somebody waits for.
    """
    if older_than is None and most_bytes is None:
        raise typer.BadParameter("say how much is to be kept: --older-than, --most-bytes or both")
    found = prune(look_into(db, cluster), older_than, most_bytes, pipeline=pipeline, dry_run=dry_run)
    if json:
        print_json(dataclasses.asdict(found))
    else:
        done = "would forget" if dry_run else "forgot"
        typer.echo(
            f"{done} {counted(found.invocations, 'invocation')} ({counted(found.bytes, 'byte')}) and {counted(found.runs, 'run')}"
        )
