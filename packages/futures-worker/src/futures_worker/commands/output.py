"""`logs` and `watch`: what a task printed, and goes on to print; the states that a future goes through."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import typer

from fdb_datamodel import FutureState, TaskOutput, get_future_state
from fdb_schema.cli import DEFAULT_CLUSTER, ClusterOption, DbOption, JsonOption, print_json, printable, say
from futures_worker.commands.choosing import IdArgument, ago, parse_id, resolve_id, said_once
from futures_worker.commands.listing import future_details, future_row
from futures_worker.commands.opening import find_future, look_into, not_found
from futures_worker.errors import FutureDeletedError, UnknownFutureError
from futures_worker.operations.outputs import outputs
from futures_worker.operations.rows import dashed
from idempotent_txn import run

FOLLOW_SECONDS = 0.3
"""Between two looks; workers write what is printed four times a second."""


def logs(
    future: IdArgument,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the future has ended.")] = False,
    attempt: Annotated[int | None, typer.Option(min=1, help="Of this attempt only.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a task wrote to its standard output and error: the last 64 kB of each of its last attempts.

    Where it failed, its traceback follows on standard error.
    """
    meant = parse_id(future)
    database, space = look_into(db, cluster)
    future_id = resolve_id(database, space, meant)
    find_future(database, space, future_id)
    shown: dict[int, int] = {}  # attempt -> bytes of it that were shown or passed over
    if as_json:
        print_json([_row(output) for output in outputs(database, space, future_id, attempt)])
        return
    while True:
        try:
            state = run(database, get_future_state, space, future_id, strategy="off")
        except (UnknownFutureError, FutureDeletedError) as error:
            not_found(error)
        for output in outputs(database, space, future_id, attempt):
            _show_new(output, shown)
        if not follow:
            break
        if state in (FutureState.realized, FutureState.failed):
            time.sleep(2 * FOLLOW_SECONDS)  # its last words may come a moment after its end
            for output in outputs(database, space, future_id, attempt):
                _show_new(output, shown)
            break
        time.sleep(FOLLOW_SECONDS)
    failure = (info := find_future(database, space, future_id)).failure or info.last_failure
    if failure is not None and attempt in (None, failure.attempt):
        why = said_once(dashed(f"{failure.reason}: {failure.message}"), str(future_id))
        say(f"--- attempt {failure.attempt} failed: {why}", err=True)
        if failure.traceback:
            say(failure.traceback.rstrip(), err=True)


def watch(
    future: IdArgument,
    seconds: Annotated[float | None, typer.Option("--for", min=0.0, help="Stop after so many seconds.")] = None,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    as_json: JsonOption = False,
) -> None:
    """Print a future's state whenever it changes, until it has ended; with --json one document per line."""
    meant = parse_id(future)
    database, space = look_into(db, cluster)
    future_id = resolve_id(database, space, meant)
    began = time.monotonic()
    before: dict[str, Any] | None = None
    while True:
        info = find_future(database, space, future_id)
        row = future_row(info)
        if row != before:
            before = row
            if as_json:
                print_json(row | future_details(info))
            else:
                say(
                    f"{ago(time.monotonic() - began):>6}  {row['state']:<9}  attempt {row['attempts']}  "
                    + said_once(row["reason"], row["id"])
                )
            sys.stdout.flush()
        left = FOLLOW_SECONDS if seconds is None else min(FOLLOW_SECONDS, began + seconds - time.monotonic())
        if left <= 0 or info.state in (FutureState.realized, FutureState.failed):
            return
        time.sleep(left)


def _show_new(output: TaskOutput, shown: dict[int, int]) -> None:
    before = shown.get(output.attempt)
    if before is None and (shown or output.attempt > 1):
        typer.echo(f"--- attempt {output.attempt}", err=True)
    new = output.size - (before or 0)
    if new <= 0:
        return
    if new > len(output.data):
        typer.echo(f"... {new - len(output.data):,} bytes are no longer kept", err=True)
    text = output.data[-new:].decode(errors="replace")
    sys.stdout.write(_for_terminal(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()
    shown[output.attempt] = output.size


def _for_terminal(text: str) -> str:
    """What a task printed must not command the terminal of whoever looks; each state of a progress bar gets a line."""
    return printable(text.replace("\r\n", "\n").replace("\r", "\n"))


def _row(output: TaskOutput) -> dict[str, Any]:
    return {
        "attempt": output.attempt,
        "bytes": output.size,
        "kept_bytes": len(output.data),
        "output": output.data.decode(errors="replace"),
    }
