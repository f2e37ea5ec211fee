"""`cancel` and `retry`: what people may do to futures from outside, to some by id or to all that are alike."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Annotated, Any, NamedTuple
from uuid import UUID

import typer

from fdb_datamodel import (
    ClusterSpace,
    FutureInfo,
    FutureState,
)
from fdb_schema.cli import DEFAULT_CLUSTER, ClusterOption, DbOption, DryRunOption, JsonOption, fail, print_json, say
from fdb_schema.errors import EXIT_USAGE
from fdb_schema.serving.figures import counted
from futures_worker.commands.choosing import (
    IdsArgument,
    NameOption,
    ReasonOption,
    SinceOption,
    parse_id,
    resolve_id,
    wanted,
)
from futures_worker.commands.opening import find_future, look_into
from futures_worker.errors import FutureDeletedError, UnknownFutureError
from futures_worker.operations.acting import Acted, cancel_one, retry_one
from futures_worker.operations.finding import Order, in_order, walk

_Sort = Annotated[
    Order | None, typer.Option("--sort", help="Which of them first: the oldest, the longest, the most attempts.")
]
_Limit = Annotated[
    int | None, typer.Option("--limit", min=1, metavar="N", help="So many of them at most.", show_default="all")
]
_ENDED = frozenset({FutureState.realized, FutureState.failed})
_Act = Callable[[Any, ClusterSpace, UUID], Acted]


class _Chosen(NamedTuple):
    """Which futures the options mean."""

    states: frozenset[FutureState]
    futures: list[str] | None
    options: tuple[str | None, str | None, str | None]
    sort: Order | None
    limit: int | None


def cancel(
    futures: IdsArgument = None,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    name: NameOption = None,
    reason: ReasonOption = None,
    since: SinceOption = None,
    sort: _Sort = None,
    limit: _Limit = None,
    grace: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="That running tasks have to clean up; programs have none here."),
    ] = 0.0,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Cancel futures that haven't ended: queued ones never run, running ones are stopped. Fails if one is realized.

    Without ids: all that haven't ended and are as the options say.
    """
    states = frozenset(FutureState) - _ENDED
    which = _Chosen(states, futures, (name, reason, since), sort, limit)
    _act(partial(cancel_one, grace=grace), "cancelled", "had ended before", which, db, cluster, dry_run, as_json)


def retry(
    futures: IdsArgument = None,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    name: NameOption = None,
    reason: ReasonOption = None,
    since: SinceOption = None,
    sort: _Sort = None,
    limit: _Limit = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run futures again that have failed, with a fresh budget of attempts. What failed with them has to be asked too.

    Without ids: all that have failed and are as the options say.
    """
    states = frozenset({FutureState.failed})
    which = _Chosen(states, futures, (name, reason, since), sort, limit)
    _act(retry_one, "retried", "isn't failed", which, db, cluster, dry_run, as_json)


def _act(
    act: _Act,
    done: str,
    otherwise: str,
    which: _Chosen,
    db: str | None,
    cluster: str,
    dry_run: bool,
    as_json: bool,
) -> None:
    like = wanted(which.states, *which.options)
    if bool(which.futures) == bool(like):
        fail("give either ids, or what the futures are like (--name, --reason, --since)", EXIT_USAGE)
    meant = [parse_id(text) for text in which.futures or ()]
    database, space = look_into(db, cluster)

    def chosen() -> Iterator[tuple[UUID, str, str]]:
        if like:
            found: Iterable[FutureInfo] = walk(database, space, like)
            if which.sort is not None:
                found = in_order(list(found), which.sort)
            for info in itertools.islice(found, which.limit):
                yield UUID(bytes=info.id), info.state.value, info.name
        for one in meant:
            info = find_future(database, space, resolve_id(database, space, one))
            yield UUID(bytes=info.id), info.state.value, info.name

    if dry_run:
        listed = [{"id": str(one), "state": state, "name": function} for one, state, function in chosen()]
        if as_json:
            print_json(listed)
            return
        for row in listed:
            say(f"{row['id']}  {row['state']}  {row['name']}")
        say(f"{counted(len(listed), 'future')} would be {done}", err=True)
        return
    rows = []
    for one in [one for one, _, _ in chosen()]:
        try:
            acted = act(database, space, one)
            rows.append({"id": str(one), "state": acted.state.value, done: acted.done})
        except (UnknownFutureError, FutureDeletedError):  # meanwhile: the others are meant all the same
            rows.append({"id": str(one), "state": "deleted", done: False})
    _report(rows, done, as_json, otherwise)


def _report(rows: list[dict[str, Any]], done: str, as_json: bool, otherwise: str) -> None:
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            why = "was deleted meanwhile" if row["state"] == "deleted" else otherwise
            outcome = done if row[done] else f"{row['state']}: not {done}, it {why}"
            say(f"{row['id']}  {outcome}")
        if not rows:
            say("no such future", err=True)
    if not all(row[done] for row in rows):
        fail(f"{sum(not row[done] for row in rows):,} of {counted(len(rows), 'future')} not {done}")
