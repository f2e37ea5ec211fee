"""`programs`: durable programs, what they asked for, and what people may do to them."""

from __future__ import annotations

import itertools
from dataclasses import asdict
from typing import Annotated, Any
from uuid import UUID

import typer

from fdb_datamodel import ClusterSpace, FutureState, FutureStateError
from fdb_schema.cli import (
    DEFAULT_CLUSTER,
    ClusterOption,
    DbOption,
    JsonOption,
    command_app,
    fail,
    in_terminal,
    print_json,
    print_rows,
    say,
)
from fdb_schema.errors import EXIT_USAGE
from futures_worker.client.client import Client
from futures_worker.client.session.queries import PROGRAM_GRACE_SECONDS
from futures_worker.commands.choosing import IdArgument, cut, parse_id, resolve_id, short_ids
from futures_worker.commands.listing import future_row, future_times
from futures_worker.commands.opening import find_future, look_into, nothing
from futures_worker.operations.programs import history, published, resume, send_json, walk_programs

programs_app = command_app("programs", "Durable programs: functions that survive the processes they run in.")


def _found(program: str, db: str | None, cluster: str) -> tuple[Any, ClusterSpace, UUID]:
    meant = parse_id(program)
    database, space = look_into(db, cluster)
    program_id = resolve_id(database, space, meant)
    info = find_future(database, space, program_id)
    if not info.details.get("durable"):
        fail(f"future {program_id} ({info.name}) is no program: only what is submitted with durable=True is one")
    return database, space, program_id


@programs_app.command("ls")
def list_programs(
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    state: Annotated[FutureState | None, typer.Option(help="Only programs in this state.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Programs to list at most.")] = 100,
    as_json: JsonOption = False,
) -> None:
    """List programs, the newest first, and what each waits for."""
    database, space = look_into(db, cluster)
    wanted = (info for info in walk_programs(database, space) if state is None or info.state is state)
    rows = [future_row(info) | future_times(info) for info in itertools.islice(wanted, limit)]
    if not as_json and in_terminal():
        shown = short_ids([row["id"] for row in rows])
        for row in rows:
            row |= {"id": shown[row["id"]], "name": cut(row["name"])}
    print_rows(
        rows,
        ["id", "state", "name", "reason"],
        as_json=as_json,
        empty=nothing("programs", database, cluster),
        flowing="reason",
    )


@programs_app.command()
def show(
    program: IdArgument,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    last: Annotated[int, typer.Option(min=1, help="The latest so many requests.")] = 50,
    everything: Annotated[bool, typer.Option("--all", help="All requests.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show a program: its state, what it published, and what it asked for. Nothing is unpickled."""
    database, space, program_id = _found(program, db, cluster)
    info = find_future(database, space, program_id)
    rows = [asdict(row) for row in history(database, space, program_id, None if everything else last)]
    names = published(database, space, program_id)
    if as_json:
        print_json(future_row(info) | {"published": names, "requests": rows})
        return
    say(f"program {program_id}  {info.name}")
    say(f"{info.state.value}: {info.reason}")
    for name, size in names.items():
        say(f"published {name!r}: {size:,} bytes")
    for row in rows:
        row["at"] = f"{row['at'].astimezone():%Y-%m-%d %H:%M:%S}"
    print_rows(rows, ["number", "at", "kind", "name", "outcome"], as_json=False, empty="it has asked for nothing yet")


@programs_app.command()
def send(
    program: IdArgument,
    name: Annotated[str, typer.Argument(help="The event's name, as the program waits for it.")],
    value: Annotated[str | None, typer.Argument(help="Its value, as JSON; without it: None.")] = None,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    as_json: JsonOption = False,
) -> None:
    """Send an event to a program: it is taken once, by `wait_for_event(NAME)`."""
    database, space, program_id = _found(program, db, cluster)
    try:
        send_json(database, space, program_id, name, value)
    except ValueError as error:
        fail(str(error), EXIT_USAGE)
    except FutureStateError as error:
        fail(str(error))
    _tell(program_id, f"sent {name!r}", as_json)


@programs_app.command()
def cancel(
    program: IdArgument,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds that it has to undo what it did.")
    ] = PROGRAM_GRACE_SECONDS,
    as_json: JsonOption = False,
) -> None:
    """Cancel a program and what it asked for, and wait for its end: its next request raises CancelledError. Fails if it had
    ended, or takes that for no reason to end."""
    database, _, program_id = _found(program, db, cluster)
    with Client(database, cluster) as client:
        found = client.get_future(program_id)
        if not found.cancel(grace=grace):
            fail(f"program {program_id} isn't cancelled: {found.state()}")
    _tell(program_id, "cancelled", as_json)


@programs_app.command("resume")
def resume_program(
    program: IdArgument,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    as_json: JsonOption = False,
) -> None:
    """Let one that failed, or was cancelled with --grace 0, go on from where it was; a step that it failed with runs again."""
    database, space, program_id = _found(program, db, cluster)
    if not resume(database, space, program_id):
        info = find_future(database, space, program_id)
        fail(f"program {program_id} is {info.state.value} ({info.reason}): only what failed is resumed")
    _tell(program_id, "resumed", as_json)


def _tell(program: UUID, done: str, as_json: bool) -> None:
    if as_json:
        print_json({"id": str(program), "done": done})
    else:
        say(f"{program}  {done}")
