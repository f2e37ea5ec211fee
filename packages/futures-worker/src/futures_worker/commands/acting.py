"""`cancel` and `retry`: what people may do to a future from outside."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fdb_datamodel import FutureState, cancel_future, get_future_state, resubmit_future
from fdb_schema.cli import DEFAULT_CLUSTER, ClusterOption, DbOption, JsonOption, fail, print_json, say
from futures_worker.commands.opening import find_future, look_into, not_found, parse_id
from futures_worker.errors import FutureDeletedError, UnknownFutureError
from idempotent_txn import run

_Ids = Annotated[list[str], typer.Argument(metavar="ID...", help="The futures' ids.")]


def cancel(
    futures: _Ids, db: DbOption = None, cluster: ClusterOption = DEFAULT_CLUSTER, as_json: JsonOption = False
) -> None:
    """Cancel futures that haven't ended: queued ones never run, running ones are stopped. Fails if one is realized."""
    ids = [parse_id(text) for text in futures]
    database, space = look_into(db, cluster)
    rows: list[dict[str, Any]] = []
    for one in ids:
        try:
            state: FutureState = run(database, cancel_future, space, one)
        except (UnknownFutureError, FutureDeletedError) as error:
            not_found(error)
        failure = find_future(database, space, one).failure if state is FutureState.failed else None
        rows.append(
            {"id": str(one), "state": state.value, "cancelled": failure is not None and failure.reason == "cancelled"}
        )
    _report(rows, "cancelled", as_json, "had ended before")


def retry(
    futures: _Ids, db: DbOption = None, cluster: ClusterOption = DEFAULT_CLUSTER, as_json: JsonOption = False
) -> None:
    """Run futures again that have failed, with a fresh budget of attempts. What failed with them has to be asked too."""
    ids = [parse_id(text) for text in futures]
    database, space = look_into(db, cluster)
    rows: list[dict[str, Any]] = []
    for one in ids:
        info = find_future(database, space, one)
        retried = False
        if info.state is FutureState.failed:
            retried = run(database, resubmit_future, space, one, info.epoch)
        state = run(database, get_future_state, space, one, strategy="off")
        rows.append({"id": str(one), "state": state.value, "retried": retried})
    _report(rows, "retried", as_json, "isn't failed")


def _report(rows: list[dict[str, Any]], done: str, as_json: bool, otherwise: str) -> None:
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            outcome = done if row[done] else f"{row['state']}: not {done}, it {otherwise}"
            say(f"{row['id']}  {outcome}")
    if not all(row[done] for row in rows):
        fail(f"{sum(not row[done] for row in rows)} of {len(rows)} futures not {done}")
