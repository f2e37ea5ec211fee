"""The command `idempotent-txn`: what is kept of ids, the fate of one, and making room."""

from __future__ import annotations

import time
from dataclasses import asdict
from heapq import nlargest
from itertools import islice
from typing import Annotated, Any, Final

import typer

from fdb_schema import open_database
from fdb_schema.cli import (
    DbOption,
    DryRunOption,
    JsonOption,
    command_app,
    completing,
    fail,
    in_terminal,
    print_json,
    print_rows,
    run_app,
    say,
)
from fdb_schema.errors import EXIT_NOT_FOUND
from fdb_schema.serving.figures import ago, counted, timestamp
from idempotent_txn.attempts.outcome import Committed
from idempotent_txn.cleaner import IDEMPOTENCY_IDS_MIN_AGE_SECONDS, Cleaner, IdStatus, id_status, kept_ids
from idempotent_txn.errors import IdempotencyIdError
from idempotent_txn.ids.identity import IdempotencyId
from idempotent_txn.results import commit_result, expire_idempotency_id, find_commit

app = command_app("idempotent-txn", "Idempotency ids of transactions: what is kept, the fate of one, making room.")


def _text_of(id: bytes) -> str:
    """An id as the commands take it."""
    try:
        text = id.decode()
    except UnicodeDecodeError:
        return f"hex:{id.hex()}"
    return text if text.isprintable() and not text.startswith("hex:") else f"hex:{id.hex()}"


_COMPLETED: Final = 10_000
"""Ids that are looked through for a completion."""


def _complete(db: str | None, _cluster: str, beginning: str) -> list[str]:
    kept = kept_ids(open_database(db, create=False))
    return [text for one in islice(kept, _COMPLETED) if (text := _text_of(one.id)).startswith(beginning)]


IdArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="The id as text, or its bytes as hex:6f726465722d3137.",
        autocompletion=completing(_complete),
    ),
]


@app.command()
def ls(
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="List so many at most.")] = 100,
    db: DbOption = None,
    json: JsonOption = False,
) -> None:
    """List the ids that are kept, the newest first, with their commits."""
    kept = nlargest(
        limit + 1, kept_ids(open_database(db, create=False)), key=lambda one: (one.version, one.batch_index)
    )
    rows = [
        {
            "id": one.id,
            "text": _text_of(one.id),
            "committed_at": timestamp(one.timestamp or None),
            "age": max(0.0, round(time.time() - one.timestamp, 3)) if one.timestamp else None,
            "version": one.version,
            "batch_index": one.batch_index,
            "store": one.store,
        }
        for one in kept[:limit]
    ]
    print_rows(
        rows,
        ["age", "version", "store", "text"]
        if in_terminal()
        else ["committed_at", "version", "batch_index", "store", "text"],
        as_json=json,
        whole=("text",),
        empty="no id is kept",
        show=_shown,
    )
    if len(kept) > limit:
        say("there are more: a greater --limit lists them", err=True)


@app.command()
def status(db: DbOption = None, json: JsonOption = False) -> None:
    """Count, bytes and oldest age of the ids that are kept."""
    stores = id_status(open_database(db, create=False))
    if json:
        ages = [store.oldest_age for store in stores if store.oldest_age is not None]
        print_json(
            {
                "count": sum(store.ids for store in stores),
                "bytes": sum(store.bytes for store in stores),
                "oldest_age": max(ages, default=None),
                "stores": [_store_row(store) for store in stores],
            }
        )
        return
    print_rows(
        [_store_row(store) for store in stores],
        ["store", "ids", "rows", "bytes", "oldest_age", "oldest_at", "expired_version"],
        as_json=False,
        show=_shown,
    )


def _store_row(store: IdStatus) -> dict[str, Any]:
    return {**asdict(store), "oldest_at": timestamp(store.oldest_timestamp or None)}


@app.command("show", aliases=("result",))
def result(
    id: IdArgument,
    read_snapshot: Annotated[
        int | None,
        typer.Option(
            "--read-snapshot",
            min=0,
            metavar="VERSION",
            help="Read version of the last attempt; without it all that is kept is searched.",
        ),
    ] = None,
    db: DbOption = None,
    json: JsonOption = False,
) -> None:
    """Whether the transaction with this id committed (exit code 3 where it did not, and can't any more)."""
    name = _parsed(id)
    database = open_database(db, create=False)
    found = find_commit(database, name) if read_snapshot is None else commit_result(database, name, read_snapshot)
    committed = isinstance(found, Committed)
    document: dict[str, Any] = {"id": bytes(name), "committed": committed}
    if isinstance(found, Committed):
        document |= asdict(found)
    if json:
        print_json(document)
    elif isinstance(found, Committed):
        print(f"committed at version {found.version}, batch index {found.batch_index}")
    else:
        print("not committed")
    if not committed:
        raise typer.Exit(EXIT_NOT_FOUND)


@app.command()
def expire(id: IdArgument, dry_run: DryRunOption = False, db: DbOption = None, json: JsonOption = False) -> None:
    """Forget an id: nobody will ask for it again (exit code 3 where it isn't kept)."""
    name = _parsed(id)
    if dry_run:
        # Without a fence: an attempt that is in flight isn't to be ended by who only asks.
        kept = any(one.id == bytes(name) for one in kept_ids(open_database(db, create=False)))
        if json:
            print_json({"id": bytes(name), "expired": False, "kept": kept})
        elif kept:
            say(f"the id {id} would be forgotten")
        if not kept:
            fail(f"the id {id} isn't kept: it never committed, or was expired before", EXIT_NOT_FOUND)
        return
    expired = expire_idempotency_id(open_database(db), name)
    if json:
        print_json({"id": bytes(name), "expired": expired})
    elif expired:
        print("expired")
    if not expired:
        fail(f"the id {id} isn't kept: it never committed, or was expired before", EXIT_NOT_FOUND)


@app.command()
def clean(
    min_age: Annotated[
        float,
        typer.Option("--min-age", min=0, metavar="SECONDS", help="Clear only ids that are older than this."),
    ] = IDEMPOTENCY_IDS_MIN_AGE_SECONDS,
    dry_run: DryRunOption = False,
    db: DbOption = None,
    json: JsonOption = False,
) -> None:
    """Clear ids past the minimum age, oldest first, and the lanes of clients silent for a week."""
    cleaned = Cleaner(open_database(db, create=not dry_run), min_age).run_once(dry_run=dry_run)
    if json:
        print_json(asdict(cleaned))
    else:
        done = "would clear" if dry_run else "cleared"
        print(
            f"{done} {counted(cleaned.ids, 'id')} in {counted(cleaned.rows, 'row')} ({counted(cleaned.bytes, 'byte')}) "
            f"and the lanes of {cleaned.clients} silent clients"
        )


def _parsed(text: str) -> IdempotencyId:
    if not text.startswith("hex:"):
        return IdempotencyId(text.encode())
    try:
        return IdempotencyId(bytes.fromhex(text[4:]))
    except ValueError as error:
        if isinstance(error, IdempotencyIdError):
            raise
        raise IdempotencyIdError(f"{text!r} is no hexadecimal text: give hex: and pairs of 0-9 and a-f") from None


def _shown(column: str, value: Any) -> str:
    if value is None:
        return "-"
    if column in ("age", "oldest_age"):
        return ago(value)
    return str(value)


def main() -> None:
    """Run the command."""
    run_app(app)


if __name__ == "__main__":
    main()
