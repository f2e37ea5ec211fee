"""What the scheduler service composes: due tasks from the heap, memoized invocations under leases, futures on workers."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from enum import StrEnum
from typing import Annotated, Any

import typer

from fdb_schema import DEFAULT_CLUSTER, MainspringError, open_database
from fdb_schema.cli import ClusterOption, DbOption, MetricsAddressOption, MetricsPortOption, fail
from fdb_schema.errors import EXIT_USAGE
from fdb_schema.serving.ending import SILENT_SECONDS, end_though_silent
from fdb_schema.serving.metrics import metrics_served
from fdb_schema.serving.processes import import_from_here
from futures_worker import Client, WorkerPoolShell
from lease_locks import MemoizingPicklingRunner
from s3heap_tender import (
    RUNS_PIPELINE,
    Scheduler,
    SysDb,
    Task,
    Trigger,
    futures_trigger,
    memoized_trigger,
    subprocess_trigger,
)
from s3heap_tender.cli.common import DEFAULT_STORE, EndpointOption, StoreOption, open_heap_on, stop_on_signals
from s3heap_tender.prometheus import scheduler_metrics


class How(StrEnum):
    """How a due task becomes work."""

    memoized = "memoized"
    future = "future"


class TaskFunctionError(MainspringError):
    """A task or the command line names a function that can't be found."""


def named_function(name: str) -> Callable[..., Any]:
    """The function `MODULE:FUNCTION`. Raises `TaskFunctionError` where there is none."""
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise TaskFunctionError(f"{name!r} names no function: give MODULE:FUNCTION, as reports.daily:summarize")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise TaskFunctionError(
            f"the function {name} can't be imported: {error}; set PYTHONPATH or install it"
        ) from error
    except AttributeError:
        raise TaskFunctionError(f"module {module} has no function {attribute!r}") from None
    if not callable(found):
        raise TaskFunctionError(f"{name} is {type(found).__name__}, and can't be called")
    return found  # type: ignore[no-any-return]


def function_trigger(name: str | None, start: Callable[[Callable[..., Any]], Trigger]) -> Trigger:
    """Runs `name`, or where that is None the function that each task's payload names, by the trigger `start` makes."""

    def trigger(task: Task, gen: int, epoch: int) -> Any:
        wanted = name if name is not None else task.payload.decode(errors="replace").strip()
        if not wanted:
            raise TaskFunctionError(
                f"task {task.name!r} says nothing to run: make it with --payload FILE that holds MODULE:FUNCTION, "
                "or start the scheduler with --run MODULE:FUNCTION or -- COMMAND"
            )
        return start(named_function(wanted))(task, gen, epoch)

    return trigger


def schedule(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND", help="Run a command instead; write -- before it.")
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="What every task runs; without it, and without COMMAND, a task's payload names its function.",
            show_default=False,
        ),
    ] = None,
    how: Annotated[
        How,
        typer.Option(
            help="memoized: function(task id, gen, attempt) runs on a worker, once for each attempt, under a lease. "
            "future: function(task, gen, epoch) is submitted as a future."
        ),
    ] = How.memoized,
    store: StoreOption = DEFAULT_STORE,
    endpoint_url: EndpointOption = None,
    poll: Annotated[float, typer.Option(min=0.01, help="Seconds between looks at the heap.")] = 0.2,
    concurrency: Annotated[int, typer.Option(min=1, help="Runs at once.")] = 32,
    timeout: Annotated[float | None, typer.Option(help="Seconds until a run is cancelled, and has failed.")] = None,
    grace: Annotated[float, typer.Option(min=0, help="Seconds that runs have to finish after SIGTERM.")] = 30.0,
    metrics_address: MetricsAddressOption = "127.0.0.1",
    metrics_port: MetricsPortOption = None,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
) -> None:
    """Run a scheduler until SIGTERM: each due task becomes a memoized invocation, or a future, on the workers."""
    if command and run:
        fail("give --run MODULE:FUNCTION or a COMMAND, not both", EXIT_USAGE)
    import_from_here()  # where the functions of who starts it usually are
    if run:
        named_function(run)
    stop = stop_on_signals()
    with ExitStack() as stack:
        database = open_database(db)
        end_though_silent(stop, database, lambda: max(grace, SILENT_SECONDS))
        sysdb = stack.enter_context(SysDb(database, cluster))
        options = {"endpoint_url": endpoint_url} if store.startswith("s3:") else {}
        heap = open_heap_on(stack, sysdb, store, options, patient=True, stop=stop)
        over = threading.Event()
        trigger = _trigger(stack, command, run, how, timeout, over, db, sysdb)
        limit = None if command else timeout  # a command is killed by its trigger
        scheduler = Scheduler(heap, sysdb, trigger, concurrency=concurrency, poll=poll, timeout=limit)
        with metrics_served(lambda: scheduler_metrics(scheduler), metrics_address, metrics_port):
            scheduler.run(stop, grace=grace)
        over.set()  # commands that have used up their grace are killed, and have not failed
        if not scheduler.drain(10.0 if command else 0):
            # Threads that wait for runs can't be interrupted. Their claims are free once this session has ended.
            sysdb.close()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)


def _trigger(
    stack: ExitStack,
    command: list[str] | None,
    run: str | None,
    how: How,
    timeout: float | None,
    stop: threading.Event,
    db: str | None,
    sysdb: SysDb,
) -> Trigger:
    if command:
        return subprocess_trigger(command, timeout=timeout, stop=stop)
    client = stack.enter_context(Client(db, sysdb.cluster))
    if how is How.future:
        return function_trigger(run, lambda function: futures_trigger(client, function))
    runner = MemoizingPicklingRunner(sysdb.locks, shell=WorkerPoolShell(client), pipeline_id=RUNS_PIPELINE)
    return function_trigger(run, lambda function: memoized_trigger(runner, function))
