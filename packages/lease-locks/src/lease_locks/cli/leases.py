"""Commands that look at leases and end them: ls, show, history, watch, wait, force-release, sessions."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from fdb_schema import DatabaseUnreachableError
from fdb_schema.cli import (
    DEFAULT_CLUSTER,
    ClusterOption,
    DbOption,
    DryRunOption,
    JsonOption,
    LimitOption,
    completing,
    in_terminal,
    print_json,
    print_rows,
    say,
    seconds_of,
)
from fdb_schema.serving.figures import ago, cut, short_ids, told
from idempotent_txn import TransactionTimedOut, run
from lease_locks.cli.opening import act_on, look_into
from lease_locks.errors import AcquireTimeout, LeaseNotFoundError
from lease_locks.grants.ending import judge_grants
from lease_locks.grants.info import SERVICES, LeaseEvent, LeaseInfo, history, lease_infos, wall_time
from lease_locks.grants.observer import Alive, Dead, Subject
from lease_locks.grants.rows import HeldGrant
from lease_locks.grants.tokens import STAMP_BYTES
from lease_locks.grants.transitions import PRESENT
from lease_locks.locks import LeaseManager
from lease_locks.session.upkeep import IDEMPOTENT
from lease_locks.waiting.acquiring import GRACE, Pause, local, unanswered
from lease_locks.waiting.claims import limit
from lease_locks.waiting.threads import pause


def _complete(db: str | None, cluster: str, beginning: str) -> Iterator[str]:
    yield from sorted({info.name for info in look_into(db, cluster).list(beginning)})


NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The lease's name.", autocompletion=completing(_complete))
]
_WATCH_SECONDS = 0.25
_REREAD_SECONDS = 15.0


def lease_row(info: LeaseInfo) -> dict[str, Any]:
    """A lease as a row of a listing."""
    row = {field.name: getattr(info, field.name) for field in dataclasses.fields(info)}
    row["token"] = info.token.hex
    row["holder"] = f"{info.host}:{info.pid}"
    row["maintainers"] = [dataclasses.asdict(m) for m in info.maintainers]
    row["waiters"] = [dataclasses.asdict(w) for w in info.waiters]
    row["waiting"] = len(info.waiters)
    row["held_for"] = _since(info.acquired_at)
    row["renewed"] = _since(info.updated_at)
    return row


def event_row(event: LeaseEvent) -> dict[str, Any]:
    """An event as a row of a listing."""
    return {**dataclasses.asdict(event), "token": event.token.hex}


def _since(at: datetime | None) -> float | None:
    """Seconds since a moment."""
    return None if at is None else round(max(0.0, (datetime.now(UTC) - at).total_seconds()), 3)


def _ago(at: datetime | None) -> str:
    seconds = _since(at)
    return "" if seconds is None else ago(seconds)


def _show(column: str, value: Any) -> str:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    if column in ("held_for", "renewed", "ttl", "max_hold") and value is not None:
        return ago(value)
    return told(value)


def _look(column: str, value: Any) -> str:
    if column == "kind":
        return {"acquired": "green", "expired": "red", "stolen": "red", "forced": "bold red"}.get(str(value), "")
    if column == "waiting" and value:
        return "yellow"
    return {"dead": "red", "token": "dim", "session": "dim"}.get(column, "")


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command("ls")(list_leases)
    app.command("show")(show)
    app.command("history")(show_history)
    app.command("watch")(watch)
    app.command("wait")(wait)
    app.command("force-release")(force_release)
    app.command("sessions")(list_sessions)


class Order(StrEnum):
    """By what `ls` sorts."""

    name = "name"
    age = "age"  # the newest first
    waiting = "waiting"  # the most waited for first


_KEYS: Final[dict[Order, Callable[[LeaseInfo], Any]]] = {
    Order.name: lambda info: info.name,
    Order.age: lambda info: -info.acquired_at.timestamp(),
    Order.waiting: lambda info: -len(info.waiters),
}


def list_leases(
    prefix: Annotated[str, typer.Argument(help="Only names that start with this.")] = "",
    starts: Annotated[str, typer.Option("--prefix", help="The same as an option.")] = "",
    since: Annotated[str | None, typer.Option(metavar="AGO", help="Only leases held since: 90s, 10m, 2h, 7d.")] = None,
    sort: Annotated[
        Order | None,
        typer.Option(
            help="Order of what is listed.",
            show_default="in a terminal users' leases, the newest first, then services'",
        ),
    ] = None,
    limit: LimitOption = None,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    json: JsonOption = False,
) -> None:
    """List the leases that are held."""
    if prefix and starts and prefix != starts:
        raise typer.BadParameter("give the beginning of the names once: PREFIX or --prefix")
    back = None if since is None else seconds_of(since)
    brief = in_terminal() and not json
    infos = [
        info
        for info in look_into(db, cluster).list(prefix or starts)
        if back is None or (_since(info.acquired_at) or 0.0) <= back
    ]
    if sort is not None:
        infos.sort(key=_KEYS[sort])
    elif brief:
        infos.sort(key=lambda info: (info.name.startswith(SERVICES), _KEYS[Order.age](info)))
    rows = [lease_row(info) for info in infos]
    for row in rows if brief else ():
        row["holder"] = cut(row["holder"], 26)
    columns = ["name", "holder", "mode", "ttl", "held_for", "renewed", "waiting"]
    print_rows(
        rows, columns, as_json=json, empty="no lease is held", show=_show, style=_look, flowing="name", limit=limit
    )


def show(
    name: NameArgument, db: DbOption = None, cluster: ClusterOption = DEFAULT_CLUSTER, json: JsonOption = False
) -> None:
    """Show who holds a lease, who maintains it, and who waits for it. Exit code 3 where nobody holds it."""
    info = look_into(db, cluster, name).read(name)
    if info is None:
        raise LeaseNotFoundError(f"nobody holds lease {name!r} in cluster {cluster!r}")
    row = lease_row(info)
    if json:
        print_json(row)
        return
    for field in ("name", "holder", "token", "mode", "slots", "ttl", "max_hold", "held_for", "renewed", "meta"):
        if (shown := _show(field, row[field])) != "":
            say(f"{field.replace('_', ' '):<12}{shown}")
    for maintainer in info.maintainers:
        renewed = _ago(maintainer.updated_at)
        say(f"maintainer  {maintainer.role} {maintainer.host}:{maintainer.pid}, renewed {renewed} ago")
    for place, waiter in enumerate(info.waiters, 1):
        say(f"waiter {place:<5}{waiter.host}:{waiter.pid} {waiter.mode}, for {_ago(waiter.since)}")


def show_history(
    name: NameArgument,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="The last so many.", show_default="all")] = None,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    json: JsonOption = False,
) -> None:
    """Show the last 64 events of a name: acquired, joined, released, expired, stolen, forced; by whom; why."""
    rows = [event_row(event) for event in look_into(db, cluster, name).history(name)]
    if not rows:
        raise LeaseNotFoundError(f"lease {name!r} of cluster {cluster!r} has no history: it was never granted")
    rows = rows[-limit:] if limit is not None else rows
    columns = ["at", "kind", "token", "by", "why"]
    if in_terminal() and not json:  # the ends of tokens tell them apart: they begin with the versions of one day
        rows = [row | {"token": cut(row["token"], 9), "by": cut(row["by"], 20)} for row in rows]
    print_rows(rows, columns, as_json=json, show=_show, style=_look, flowing="why")


def watch(
    name: NameArgument,
    seconds: Annotated[float | None, typer.Option("--for", min=0.0, help="Stop after so many seconds.")] = None,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    json: JsonOption = False,
) -> None:
    """Print a name's events as they happen, until interrupted; with --json one document per line."""
    locks = look_into(db, cluster, name, patient=True)
    seconds = limit(seconds)
    until = None if seconds is None else time.monotonic() + seconds
    seen = max((event.version for event in _history(locks, name, until)), default=0)
    while until is None or time.monotonic() < until:
        events = [event for event in _history(locks, name, until) if event.version > seen]
        for event in events:
            if json:
                print_json(event_row(event))
            else:
                say(f"{event.at:%H:%M:%S} {event.kind:<9}{event.by}  {event.why}")
        seen = max((event.version for event in events), default=seen)  # of what was printed, not of what came since
        time.sleep(_WATCH_SECONDS)


def _history(locks: LeaseManager, name: str, until: float | None) -> list[LeaseEvent]:
    """The events of a name. Raises `DatabaseUnreachableError` where the database doesn't answer until then."""
    timeout = None if until is None else max(0.0, until - time.monotonic()) + GRACE
    try:
        return run(locks.db, history, locks.space.lock(name), strategy=IDEMPOTENT, timeout=timeout)
    except TransactionTimedOut as error:
        raise DatabaseUnreachableError(f"lease {name!r}: the database did not answer in time ({error})") from error


def judged(
    locks: LeaseManager, name: str, timeout: float | None = None
) -> list[tuple[HeldGrant, Subject, Alive | Dead]]:
    """Who holds a name, and whether each lives, as far as it can be told here."""
    lock, observer = locks.space.lock(name), locks.session.observer
    return run(locks.db, judge_grants, locks.space, lock, observer, strategy=IDEMPOTENT, timeout=timeout)


def wait(
    name: NameArgument,
    timeout: Annotated[float | None, typer.Option(min=0.0, help="Seconds; exit code 75 afterwards.")] = None,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
) -> None:
    """Wait until nobody who lives holds a lease, without taking it."""
    locks = look_into(db, cluster, name, patient=True)
    timeout = limit(timeout)
    until = None if timeout is None else time.monotonic() + timeout
    try:
        while True:
            held = judged(locks, name, None if until is None else max(0.0, until - time.monotonic()) + GRACE)
            living = [verdict.look_in for _, _, verdict in held if isinstance(verdict, Alive)]
            if not living:
                return
            left = _REREAD_SECONDS if until is None else until - time.monotonic()
            if left <= 0:
                infos = run(
                    locks.db, lease_infos, locks.space, locks.space.lock(name), strategy=IDEMPOTENT, timeout=GRACE
                )
                if not infos:
                    return
                raise AcquireTimeout(f"lease {name!r} is still held after {timeout:g} s by {infos[0].describe()}")
            rows = tuple((grant.key, PRESENT) for grant, _, _ in held)
            subjects = local(locks.session, tuple(subject for _, subject, _ in held))
            pause(locks.db, Pause(rows, min(left, _REREAD_SECONDS, *living), subjects))
    except TransactionTimedOut as error:
        raise unanswered(name, timeout or 0.0, error) from error


def force_release(
    name: NameArgument,
    reason: Annotated[str, typer.Option(help="Goes to the history; the holder sees it.")],
    dry_run: DryRunOption = False,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    json: JsonOption = False,
) -> None:
    """End a lease by your word. Its holder learns it in under a second; its guarded commits fail at once."""
    if dry_run:
        infos = [info for info in look_into(db, cluster, name).list(name) if info.name == name]
        if not infos:
            raise LeaseNotFoundError(f"nobody holds lease {name!r} in cluster {cluster!r}")
        if json:
            print_json([{"name": name, "token": info.token.hex, "released": False} for info in infos])
        else:
            for info in infos:
                say(f"{name} of {info.describe()} would be released")
        return
    locks = act_on(db, cluster)
    ended = locks.force_release(name, reason=reason)
    if not ended and not locks.damaged:
        raise LeaseNotFoundError(f"nobody holds lease {name!r} in cluster {cluster!r}")
    if json:
        print_json([{"name": name, "token": token.hex, "released": True} for token in ended])
        return
    for token in ended:
        say(f"released {name} (token {token.hex})")


def list_sessions(
    limit: LimitOption = None,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    json: JsonOption = False,
) -> None:
    """List the processes that hold or wait for leases, what each holds, and why it is dead where that is proved."""
    locks = look_into(db, cluster)
    held: dict[str, int] = {}
    for info in locks.list():
        for maintainer in info.maintainers:
            held[maintainer.session] = held.get(maintainer.session, 0) + 1
    rows = []
    for sid, record, heartbeat in locks.sessions():
        us = int.from_bytes((heartbeat or b"")[STAMP_BYTES : STAMP_BYTES + 8], "big")
        at = wall_time(us) if us else None
        rows.append(
            {
                "session": sid.hex(),
                "process": f"{record.host}:{record.pid}",
                "command": record.command,
                "ttl": record.ttl_ms / 1000,
                "started_at": wall_time(record.started_us),
                "updated_at": at,
                "renewed": _since(at),
                "leases": held.get(sid.hex(), 0),
                "dead": run(locks.db, locks.session_dead, sid, strategy=IDEMPOTENT),
            }
        )
    columns = ["session", "process", "command", "ttl", "renewed", "leases", "dead"]
    if in_terminal() and not json:
        shown = short_ids([row["session"] for row in rows])
        rows.sort(key=lambda row: -row["started_at"].timestamp())
        for row in rows:
            row |= {"session": shown[row["session"]], "process": cut(row["process"], 24)}
        columns = ["session", "process", "leases", "renewed", *(("dead",) if any(r["dead"] for r in rows) else ())]
        columns.append("command")
    print_rows(rows, columns, as_json=json, empty="no session", show=_show, style=_look, limit=limit)
