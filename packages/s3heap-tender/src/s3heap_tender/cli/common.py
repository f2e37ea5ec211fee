"""What the commands share: the application, its options, how they open sysdb and heap, and how they show tasks."""

from __future__ import annotations

import inspect
import logging
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Final
from uuid import UUID

import typer

from fdb_schema import open_database
from fdb_schema.cli import (
    DEFAULT_CLUSTER,
    ClusterOption,
    DbOption,
    command_app,
    completing,
    fail,
    in_terminal,
    print_json,
    print_rows,
    say,
)
from fdb_schema.errors import EXIT_USAGE
from fdb_schema.serving.figures import ago, cut, short_ids, told
from fdb_schema.serving.logs import log_to_stderr
from s3heap_tender.claims.describing import STILL
from s3heap_tender.cli.moments import Moments
from s3heap_tender.errors import StoreUnavailableError, TaskNotFoundError
from s3heap_tender.heap import Heap
from s3heap_tender.rows.items import HeapItem
from s3heap_tender.rows.records import Task
from s3heap_tender.rows.states import State
from s3heap_tender.stores import HeapStore
from s3heap_tender.stores.opening import CLIENTS
from s3heap_tender.sysdb import SysDb

app = command_app("s3heap-tender", "Tasks that run because data was written, no faster than their cadence.")

log = logging.getLogger("s3heap_tender")
DEFAULT_STORE: Final = "file:./heap"
_BEGINNING: Final = re.compile(r"[0-9a-fA-F]{4}[0-9a-fA-F-]{0,32}")


def _task(text: str) -> UUID | str:
    try:
        return UUID(text)
    except ValueError:
        if "/" in text.strip("/") or _BEGINNING.fullmatch(text):
            return text
        raise typer.BadParameter(
            f"{text!r} is no id of a task: give a UUID, or four digits or more of its beginning, as `s3heap-tender ls` lists "
            "them, or PARTITION/NAME"
        ) from None


def _beginning(sysdb: SysDb, text: str) -> UUID:
    """The only task whose id begins so. Raises `TaskNotFoundError`."""
    digits = text.lower().replace("-", "")
    found = [task.id for task in sysdb.tasks() if task.id.hex.startswith(digits)]
    if len(found) > 1:
        fail(f"several tasks have ids that begin with {text}: {', '.join(map(str, found[:6]))}", EXIT_USAGE)
    if not found:
        raise TaskNotFoundError(f"no task has an id that begins with {text}")
    return found[0]


def _complete(db: str | None, cluster: str, beginning: str) -> Iterator[str]:
    """Names of tasks, or ids where an id was begun."""
    with open_sysdb(db, cluster, create=False) as sysdb:
        for task in sysdb.tasks():
            for text in (f"{task.partition_name or task.partition}/{task.name}", str(task.id)):
                if text.startswith(beginning) and (beginning or "/" in text):
                    yield text


def _named(sysdb: SysDb, text: str) -> UUID:
    """The task PARTITION/NAME; either may hold slashes. Raises `TaskNotFoundError`."""
    words = text.split("/")
    found: set[UUID] = set()
    for at in range(1, len(words)):
        partition, name = "/".join(words[:at]), "/".join(words[at:])
        with suppress(TaskNotFoundError):
            if partition and name:
                found.add(sysdb.find(partition_of(partition), name).id)
    if len(found) > 1:
        fail(f"{text!r} names several tasks: {', '.join(map(str, sorted(found)))}", EXIT_USAGE)
    if not found:
        raise TaskNotFoundError(f"no task is named {text!r}: give PARTITION/NAME, or an id as `ls` lists them")
    return found.pop()


def partition_of(text: str) -> UUID | str:
    """A partition as a command line names it."""
    try:
        return UUID(text)
    except ValueError:
        return text


TaskArgument = Annotated[
    UUID,
    typer.Argument(
        metavar="TASK",
        parser=_task,
        help="The task's id, or how it begins, or PARTITION/NAME.",
        autocompletion=completing(_complete),
    ),
]
PollOption = Annotated[float, typer.Option(min=0.0, help="Seconds between looks.")]
StoreOption = Annotated[
    str,
    typer.Option(
        "--store", envvar="MAINSPRING_HEAP", metavar="URL", help="The heap: s3://BUCKET/PREFIX or file:DIRECTORY."
    ),
]
NewHeapOption = Annotated[
    bool,
    typer.Option("--new-heap", help="Begin an empty heap at --store though the cluster has one elsewhere."),
]
EndpointOption = Annotated[
    str | None,
    typer.Option("--endpoint-url", envvar="AWS_ENDPOINT_URL", metavar="URL", help="Of an S3 server other than AWS's."),
]
ClientOption = Annotated[
    str | None,
    typer.Option("--s3-client", envvar="MAINSPRING_S3_CLIENT", metavar="NAME", help=f"{' or '.join(CLIENTS)}."),
]


def _option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


_SYSDB_OPTIONS: Final = (_option("db", DbOption, None), _option("cluster", ClusterOption, DEFAULT_CLUSTER))
_HEAP_OPTIONS: Final = (
    _option("store", StoreOption, DEFAULT_STORE),
    _option("endpoint_url", EndpointOption, None),
    _option("s3_client", ClientOption, None),
    *_SYSDB_OPTIONS,
)


@contextmanager
def open_sysdb(db: str | None, cluster: str, *, create: bool = True) -> Iterator[SysDb]:
    """The sysdb that the options name; `create` as of `open_database`."""
    with SysDb(open_database(db, create=create), cluster) as sysdb:
        yield sysdb


@contextmanager
def open_heap(
    db: str | None,
    cluster: str,
    store: str,
    endpoint_url: str | None,
    s3_client: str | None,
    *,
    create: bool = True,
    patient: bool = False,
    new_heap: bool = False,
) -> Iterator[Heap]:
    """The heap that the options name, with its sysdb; `create` as of `open_database`, `patient` waits for its store."""
    options: dict[str, Any] = {}
    if store.startswith("s3:"):
        options["endpoint_url"] = endpoint_url
        if s3_client is not None:
            options["client"] = s3_client
    with ExitStack() as stack:
        sysdb = stack.enter_context(open_sysdb(db, cluster, create=create))
        yield open_heap_on(stack, sysdb, store, options, patient=patient, new_heap=new_heap)


def open_heap_on(
    stack: ExitStack,
    sysdb: SysDb,
    store: str,
    options: dict[str, Any],
    *,
    patient: bool = False,
    new_heap: bool = False,
    stop: threading.Event | None = None,
) -> Heap:
    """The heap of a sysdb on the store of that URL, closed by the stack. A `patient` service waits for a store that is away,
    and ends with code 0 where `stop` is set meanwhile."""

    def opened() -> Heap:
        with ExitStack() as whole:
            heap = whole.enter_context(Heap(whole.enter_context(HeapStore(store, **options)), sysdb, may_move=new_heap))
            stack.push(whole.pop_all())
            return heap

    if not patient:
        return opened()
    log_to_stderr()
    stop = stop or threading.Event()
    delay = 1.0
    while not stop.is_set():
        try:
            return opened()
        except StoreUnavailableError as error:
            log.warning("the store is away; it is asked again in %.0f s: %s", delay, error)
        stop.wait(delay)
        delay = min(30.0, delay * 2)
    raise typer.Exit


def sysdb_command(function: Callable[..., None]) -> Callable[..., None]:
    """A command that is given the open sysdb first: `--db` and `--cluster` are added to its options."""
    return _opening(function, _SYSDB_OPTIONS, open_sysdb)


def sysdb_reader(function: Callable[..., None]) -> Callable[..., None]:
    """A `sysdb_command` that only looks: where there is no database it says so, and makes none."""
    return _opening(function, _SYSDB_OPTIONS, partial(open_sysdb, create=False))


def heap_command(function: Callable[..., None]) -> Callable[..., None]:
    """A command that is given the open heap first: the options that say which are added to its own."""
    return _opening(function, _HEAP_OPTIONS, open_heap)


def heap_maker(function: Callable[..., None]) -> Callable[..., None]:
    """A `heap_service` that may begin the heap anew, elsewhere."""
    options = (*_HEAP_OPTIONS, _option("new_heap", NewHeapOption, False))
    return _opening(function, options, partial(open_heap, patient=True))


def heap_service(function: Callable[..., None]) -> Callable[..., None]:
    """A `heap_command` that runs for ever: it waits for a store that is away, and says so."""
    return _opening(function, _HEAP_OPTIONS, partial(open_heap, patient=True))


def heap_reader(function: Callable[..., None]) -> Callable[..., None]:
    """A `heap_command` that only looks: where there is no database it says so, and makes none."""
    return _opening(function, _HEAP_OPTIONS, partial(open_heap, create=False))


def _opening(
    function: Callable[..., None], options: tuple[inspect.Parameter, ...], opened: Callable[..., Any]
) -> Callable[..., None]:
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]

    def command(**given: Any) -> None:
        with opened(**{option.name: given.pop(option.name) for option in options}) as subject:
            if isinstance(named_task := given.get("task"), str):
                find = _named if "/" in named_task else _beginning
                given["task"] = find(subject if isinstance(subject, SysDb) else subject.sysdb, named_task)
            function(subject, **given)

    named = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    signature = inspect.Signature([*named, *options])
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    command.__name__, command.__doc__ = function.__name__, function.__doc__
    return command


def stop_on_signals() -> threading.Event:
    """An event that SIGINT and SIGTERM set; and logs to standard error, which services write."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    log_to_stderr()
    return stop


def task_row(task: Task, moments: Moments) -> dict[str, Any]:
    """A task's fields, and its times as people read them."""
    row = asdict(task)
    row.pop("payload")
    row["backoff"].pop("extra", None)
    due = None if task.state == State.WAITING.value else task.due
    started = moments.fields("last_start", task.last_start)
    if task.started_wall is not None:
        # While no service moves the cluster clock it stands still, so it can't say how long ago that was.
        started = moments.fields_of_wall("last_start", task.started_wall)
    return {**row, **moments.fields("due", due), **started}


def show_task(sysdb: SysDb, task: Task, as_json: bool) -> None:
    """One task, after it was changed."""
    row = task_row(task, Moments(sysdb.now()))
    if as_json:
        print_json(row)
    else:
        print_tasks([row], ("id", "name", "state", "gen", "due_in", "last_error"), as_json=False)
        for reason in sysdb.describe(task.id).reasons:
            if STILL in reason:
                say(f"→ {reason}", err=True)


def show_cell(column: str, value: Any) -> str:
    """A table's cell: `…_in` and `…_at` as people read times."""
    if value is None:
        return ""
    if column.endswith("_in"):
        return Moments.brief(value) if in_terminal() else Moments.relative(value)
    if column == "cadence" and in_terminal():
        return ago(value)
    return Moments.short(value) if column.endswith("_at") else told(value)


_LOOKS: Final = {
    "running": "cyan",
    "scheduled": "yellow",
    "waiting": "green",
    "paused": "magenta",
    "dead": "bold red",
}


def look_of(column: str, value: Any) -> str:
    """How a table's cell looks in a terminal."""
    if column == "state":
        return _LOOKS.get(str(value), "")
    return {"id": "dim", "task": "dim", "last_error": "red", "error": "red"}.get(column, "")


def print_tasks(
    rows: list[dict[str, Any]],
    columns: tuple[str, ...],
    *,
    as_json: bool,
    empty: str = "no tasks",
    limit: int | None = None,
) -> None:
    """A listing of tasks, or of what belongs to one; in a terminal ids are cut to what tells them apart, and the state says
    what keeps a task from running."""
    for row in rows if not as_json else ():
        row["state"] = "dead" if row.get("dead") else "paused" if row.get("paused") else row.get("state")
        row["name"] = f"{row.get('partition_name') or ''}/{row['name']}".lstrip("/")
    if in_terminal() and not as_json:
        key = "id" if "id" in columns else "task"
        shown = short_ids([str(row[key]) for row in rows])
        most = 20 if "last_error" in columns else 28
        for row in rows:
            row |= {key: shown[str(row[key])], "name": cut(row["name"], most)}
            row |= {column[:-3]: _brief(row, column) for column in columns if column.endswith("_in")}
        columns = tuple(column.removesuffix("_in") for column in columns)
    print_rows(rows, columns, as_json=as_json, empty=empty, show=show_cell, style=look_of, limit=limit)


def _brief(row: dict[str, Any], column: str) -> str:
    """A moment of a task in a terminal: of its `…_in` column."""
    moment = None if column == "due_in" and row["state"] == "dead" else row[column]
    if moment is not None and column != "due_in":
        moment = min(moment, -1e-3)  # it is past, whatever a clock that stands still says
    return "" if moment is None else Moments.brief(moment)


def item_row(item: HeapItem, moments: Moments) -> dict[str, Any]:
    """A heap item's fields, and its due time as people read it."""
    row = {"task": str(item.task), "partition": str(item.partition), "gen": item.gen, "due": item.due}
    return {**row, **moments.fields("due", item.due)}
