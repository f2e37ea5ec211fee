"""Which futures a command is about: by id, by the beginning of an id, or by what they are like."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Annotated, Any, Final
from uuid import UUID

import typer

from fdb_datamodel import ClusterSpace, FutureState, list_futures
from fdb_datamodel.views.reading import ids_beginning
from fdb_schema.cli import completing, fail, seconds_of
from fdb_schema.errors import EXIT_NOT_FOUND, EXIT_USAGE
from fdb_schema.serving.figures import ago, cut
from fdb_schema.serving.figures import short_ids as shortened
from futures_worker.commands.opening import look_into
from futures_worker.operations.finding import PAGE, Filter
from idempotent_txn import run

_SHORTEST: Final = 4  # digits of an id that are taken for its beginning
_CANDIDATES: Final = 6
_LONG_ID: Final = re.compile(r"\b([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4})-[0-9a-f]{4}-[0-9a-f]{12}\b")
_TWICE: Final = re.compile(r"(^|: )error: (?=[A-Za-z_][\w.]*(?:: |$))")
_INCARNATION: Final = re.compile(r"(:\d+)/[0-9a-f]+")

NameOption = Annotated[
    str | None,
    typer.Option(
        "--name", metavar="GLOB", help="Only futures of functions named so: resize (of any module), my.tasks.*"
    ),
]
ReasonOption = Annotated[
    str | None, typer.Option("--reason", metavar="TEXT", help="Only futures whose reason has this text in it.")
]
SinceOption = Annotated[
    str | None, typer.Option("--since", metavar="AGO", help="Only futures submitted since: 90s, 10m, 2h, 7d.")
]


def _complete(db: str | None, cluster: str, beginning: str) -> Iterator[str]:
    """Ids of the newest futures."""
    database, space = look_into(db, cluster)
    found, _ = run(database, list_futures, space, None, PAGE, None, newest_first=True, strategy="off")
    yield from (text for info in found if (text := str(UUID(bytes=info.id))).startswith(beginning.lower()))


IdArgument = Annotated[
    str,
    typer.Argument(metavar="ID", help="The future's id, or how it begins.", autocompletion=completing(_complete)),
]
IdsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[ID]...", help="The futures' ids, or how they begin.", autocompletion=completing(_complete)
    ),
]


def wanted(states: frozenset[FutureState] | None, name: str | None, reason: str | None, since: str | None) -> Filter:
    """The filter that options ask for, or the end of the command."""
    back = seconds_of(since) if since is not None else 0.0
    return Filter(states, name, reason, int((time.time() - back) * 1e6) if since is not None else 0)


def parse_id(text: str) -> UUID | str:
    """An id, or the digits that one begins with; or the end of the command."""
    try:
        return UUID(text)
    except ValueError:
        digits = text.strip().lower().replace("-", "")
    if not re.fullmatch(rf"[0-9a-f]{{{_SHORTEST},31}}", digits):
        fail(
            f"{text!r} is no id of a future: give a UUID as `futures-worker ls` prints them, or four digits or more of "
            "its beginning",
            EXIT_USAGE,
        )
    return digits


def resolve_id(database: Any, space: ClusterSpace, meant: UUID | str) -> UUID:
    """The id that `parse_id` found, or the only one that begins so; or the end of the command."""
    if isinstance(meant, UUID):
        return meant
    found = [UUID(bytes=one) for one in run(database, ids_beginning, space, meant, _CANDIDATES, strategy="off")]
    if not found:
        fail(f"no future in cluster {space.cluster!r} has an id that begins with {meant}", EXIT_NOT_FOUND)
    if len(found) > 1:
        more = ", ..." if len(found) == _CANDIDATES else ""
        fail(f"several futures have ids that begin with {meant}: {', '.join(map(str, found))}{more}", EXIT_USAGE)
    return found[0]


def short_ids(ids: list[str]) -> dict[str, str]:
    """As much of the beginning of each id as tells it from the others, all of one length.

    Never less than time and sequence, which are the client's own: futures that aren't listed seldom have the same.
    """
    return shortened(ids, len("019ad1f2-3c4d-7000"))


def said_once(text: str, future_id: str) -> str:
    """What is told beside a future's id: without that id, and without "error" before the exception's own name."""
    return (
        _TWICE.sub(r"\1", text).replace(f"future {future_id}", "this future").replace(f"call {future_id}", "this call")
    )


def in_brief(reason: str, future_id: str) -> str:
    """A reason for a narrow column: other ids as `ls` shows them, without the future's own and what tells incarnations apart."""
    text = said_once(reason.replace(f"future {future_id} depends on ", ""), future_id)
    return _INCARNATION.sub(r"\1", _LONG_ID.sub(r"\1", text))


__all__ = [
    "IdArgument",
    "IdsArgument",
    "NameOption",
    "ReasonOption",
    "SinceOption",
    "ago",
    "cut",
    "in_brief",
    "parse_id",
    "resolve_id",
    "said_once",
    "short_ids",
    "wanted",
]
