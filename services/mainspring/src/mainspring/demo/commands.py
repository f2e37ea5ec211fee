"""`mainspring demo`: the demonstrations on real input."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from fdb_schema.cli import CommandApp, fail
from fdb_schema.errors import EXIT_FAILED, EXIT_USAGE

demo_app = CommandApp(invoke_without_command=True, help="Demonstrations on real input.")


@demo_app.callback()
def sources(
    context: typer.Context,
    files: Annotated[
        Path | None, typer.Option(help="Folder of Python sources; without it this interpreter's standard library.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes to start on this machine.")] = 2,
    slots: Annotated[
        int | None, typer.Option(min=1, help="Tasks a worker runs at once; by default the cores are shared.")
    ] = None,
    kill: Annotated[bool, typer.Option(help="Kill one of the workers midway with SIGKILL.")] = True,
    seed: Annotated[int | None, typer.Option(help="Decides which worker is killed, and when.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Analyse only the first files.")] = None,
    top: Annotated[int, typer.Option(min=1, help="How many functions to print.")] = 15,
) -> None:
    """Rank the functions of real sources by complexity, on a local cluster that loses a worker midway."""
    if context.invoked_subcommand is not None:
        return
    from rich.console import Console

    from mainspring.demo.sources import analyse, show, standard_library

    console = Console()
    root = (files or standard_library()).expanduser().resolve()
    if not root.is_dir():
        fail(f"--files {root} is not a folder", EXIT_USAGE)
    share = slots or max(1, (os.cpu_count() or 1) // workers)
    try:
        outcome = analyse(root, workers=workers, slots=share, seed=seed, kill=kill, limit=limit, console=console)
    except ValueError as error:
        fail(str(error), EXIT_USAGE)
    show(outcome, console, top)
    if not outcome.right:
        raise SystemExit(EXIT_FAILED)


@demo_app.command()
def pipeline(
    files: Annotated[
        Path | None, typer.Option(help="Folder of Python sources; without it this interpreter's standard library.")
    ] = None,
    records: Annotated[int, typer.Option(min=1, help="Files to write to the logs.")] = 240,
    partitions: Annotated[int, typer.Option(min=1, help="Logs, each with a task that follows it.")] = 6,
    cadence: Annotated[float, typer.Option(min=0, help="Seconds between two starts of one task, at least.")] = 1.0,
    seconds: Annotated[float, typer.Option(min=0, help="Seconds over which the records are written.")] = 20.0,
    kill_every: Annotated[float, typer.Option(min=0, help="Seconds between two SIGKILLs; 0 kills nothing.")] = 3.0,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 2,
    s3: Annotated[bool, typer.Option("--s3", help="Keep the heap on a development S3 server.")] = False,
    seed: Annotated[int | None, typer.Option(help="Decides what is written when, and who is killed.")] = None,
) -> None:
    """Write real sources to logs and watch each write cause its run, while every service is killed in turn."""
    import secrets

    from rich.console import Console

    from mainspring.demo.pipeline import PipelineSettings
    from mainspring.demo.pipeline_view import show_pipeline
    from mainspring.demo.sources import standard_library

    root = (files or standard_library()).expanduser().resolve()
    if not root.is_dir():
        fail(f"--files {root} is not a folder", EXIT_USAGE)
    settings = PipelineSettings(
        root, partitions, records, cadence, seconds, kill_every, secrets.randbelow(10**6) if seed is None else seed,
        workers, s3=s3,
    )  # fmt: skip
    try:
        outcome = show_pipeline(settings, Console())
    except ValueError as error:
        fail(str(error), EXIT_USAGE)
    if not outcome.right:
        raise SystemExit(EXIT_FAILED)
