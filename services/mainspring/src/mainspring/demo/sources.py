"""The main job: rank the functions of real sources by complexity on a cluster that loses a worker midway.

One future per file, then a tree of futures that merge the reports of others. At a random moment one of the workers is
killed with SIGKILL, and another takes its place. What it was running starts again elsewhere, reports that only it held are
computed again from their lineage, and the answer is the one of a plain sequential run, which is made to check it.
"""

from __future__ import annotations

import os
import random
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from fdb_datamodel import ClusterSpace, FutureInfo, Violation, describe_future, validate
from fdb_schema import open_database
from fdb_schema.serving.figures import counted
from futures_worker import Client, Future, LocalCluster, as_completed
from idempotent_txn import run
from mainspring.demo.complexity import Report, analyse_file, merge_reports, python_files

FAN_IN: Final = 16
DEADLINE_SECONDS: Final = 600.0
PAGE: Final = 200
NEXT: Final = """
Next, in the checkout:
  nox -s demo -- --files DIR       the same for sources of yours
  nox -s demo -- pipeline          writes that cause runs, while services are killed
  python tools/install.py mainspring mainspring-dashboard
  mainspring up                    a cluster that stays; docs/start.md leads on"""


@dataclass(frozen=True, slots=True)
class Tally:
    """How the futures of a run fared."""

    futures: int
    attempts: int
    restarted: int  # futures whose attempt was lost with the worker
    reconstructed: int  # futures computed again because only the dead worker held their result


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the demo found and how it went; `right` is the verdict."""

    report: Report
    expected: Report
    seconds: float
    sequential_seconds: float
    tally: Tally
    killed_after: int | None
    violations: tuple[Violation, ...]
    cores: int  # that the workers' slots could keep busy
    workers: int  # processes that took part, the replaced one counted too

    @property
    def right(self) -> bool:
        return self.report == self.expected and not self.violations

    @property
    def speed_up(self) -> float:
        """How many times as fast as the sequential run."""
        return self.sequential_seconds / max(self.seconds, 1e-9)


def standard_library() -> Path:
    """The folder of the running interpreter's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def analyse(
    root: Path,
    *,
    workers: int = 2,
    slots: int = 1,
    seed: int | None = None,
    kill: bool = True,
    limit: int | None = None,
    console: Console | None = None,
) -> Outcome:
    """Analyse every Python file below `root` on `workers` local workers, one of which is killed where `kill`.

    `seed` decides the moment and the victim. Raises `ValueError` where there is nothing to analyse.
    """
    console = console or Console(quiet=True)
    files = python_files(root)[:limit]
    if not files:
        raise ValueError(f"no Python file below {root}: name a folder that has some with --files")
    rng = random.Random(seed)
    kill_at = max(1, round(len(files) * rng.uniform(0.15, 0.75))) if kill and workers > 1 else None
    cluster = LocalCluster(workers, slots, cluster="demo")
    with cluster as client:
        console.print(
            f"{counted(workers, 'worker')} of {counted(slots, 'slot')} over [bold]{escape(cluster.url)}[/bold]; {len(files):,} files in {escape(str(root))}"
        )
        started = time.monotonic()
        leaves, merges = _submit(client, str(root), files)
        last = (merges or leaves)[-1]
        _follow(cluster, leaves, merges, kill_at, rng, console)
        report: Report = last.result(timeout=DEADLINE_SECONDS)
        seconds = time.monotonic() - started
        tally = _tally(cluster, [*leaves, *merges])
        started_workers = workers + (kill_at is not None)
        database = open_database(cluster.url)
        violations = tuple(validate(database, cluster.cluster))
    began = time.monotonic()
    expected = _sequential(str(root), files, console)
    sequential = time.monotonic() - began
    cores = min(workers * slots, os.cpu_count() or 1)
    return Outcome(report, expected, seconds, sequential, tally, kill_at, violations, cores, started_workers)


def _submit(client: Client, root: str, files: list[str]) -> tuple[list[Future[Any]], list[Future[Any]]]:
    """A future per file and the tree over them; the last merge is the answer."""
    leaves = [client.submit(analyse_file, root, file, name=f"analyse {file}") for file in files]
    merges: list[Future[Any]] = []
    level = leaves
    while len(level) > 1:
        level = [
            client.submit(merge_reports, level[start : start + FAN_IN], name=f"merge {start // FAN_IN}")
            for start in range(0, len(level), FAN_IN)
        ]
        merges += level
    return leaves, merges


def _follow(
    cluster: LocalCluster,
    leaves: list[Future[Any]],
    merges: list[Future[Any]],
    kill_at: int | None,
    rng: random.Random,
    console: Console,
) -> None:
    """Show progress until every future is done; kill a worker once `kill_at` files are analysed."""
    merging = {future.id for future in merges}
    count = len(cluster.workers)
    analysed = 0
    with _progress(console) as progress:
        bars: dict[bool, TaskID] = {
            False: progress.add_task("analyse", total=len(leaves)),
            True: progress.add_task("merge", total=len(merges)),
        }
        for future in as_completed([*leaves, *merges], timeout=DEADLINE_SECONDS):
            merged = future.id in merging
            progress.advance(bars[merged])
            analysed += not merged
            if kill_at is not None and analysed == kill_at and not merged:
                victim = rng.choice(cluster.workers)
                victim.kill()
                replacement = cluster.scale(count, wait=False)[-1]
                progress.console.print(
                    f"[bold red]SIGKILL[/bold red] worker process {victim.pid} after {analysed:,} files; "
                    f"process {replacement.pid} takes its place"
                )


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:>10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )


def _tally(cluster: LocalCluster, futures: list[Future[Any]]) -> Tally:
    """Read from the database what each future went through."""
    database = open_database(cluster.url)
    space = ClusterSpace(cluster.cluster)
    infos: list[FutureInfo] = []

    def page(tr: Any, ids: list[bytes]) -> list[FutureInfo]:
        return [describe_future(tr, space, future_id) for future_id in ids]

    ids = [future.id.bytes for future in futures]
    for start in range(0, len(ids), PAGE):
        infos += run(database, page, ids[start : start + PAGE])
    return Tally(
        futures=len(infos),
        attempts=sum(info.attempts for info in infos),
        restarted=sum(info.losses > 0 for info in infos),
        reconstructed=sum(info.epoch > 0 for info in infos),
    )


def _sequential(root: str, files: list[str], console: Console) -> Report:
    console.print("the same in one process without any of it, to compare answer and time:")
    with _progress(console) as progress:
        bar = progress.add_task("check", total=len(files))
        reports = []
        for file in files:
            reports.append(analyse_file(root, file))
            progress.advance(bar)
    return merge_reports(reports)


def show(outcome: Outcome, console: Console, top: int = 15) -> None:
    """Print the ranking, the throughput, and what was recovered."""
    report, tally = outcome.report, outcome.tally
    table = Table(title=f"The {top} most complex functions", title_justify="left", box=None, pad_edge=False)
    table.add_column("complexity", justify="right")
    table.add_column("function", style="bold")
    table.add_column("place", style="dim")
    for function in report.ranking[:top]:
        table.add_row(str(function.complexity), function.name, escape(f"{function.file}:{function.line}"))
    console.print(table)
    mean = report.complexity / report.functions if report.functions else 0.0
    console.print(
        f"{report.files:,} files, {report.lines:,} lines, {report.classes:,} classes, {report.functions:,} functions "
        f"of mean complexity {mean:.2f}; {len(report.unparsable)} files that this Python can't parse"
    )
    console.print(
        f"{tally.futures:,} durable futures in {outcome.seconds:.1f} s ({tally.futures / outcome.seconds:,.0f}/s), one process alone "
        f"{outcome.sequential_seconds:.1f} s: {outcome.speed_up:.2f} times as fast on {outcome.cores} of {os.cpu_count()} cores"
    )
    if outcome.killed_after is not None:
        console.print(
            f"survived: {counted(tally.restarted, 'future')} that the killed worker held ran again elsewhere, "
            f"{counted(tally.reconstructed, 'result that only it had was', 'results that only it had were')} computed again; {counted(tally.attempts, 'start was', 'starts were')} claimed in all, "
            "some given back unbegun to whoever was free sooner"
        )
    for violation in outcome.violations:
        console.print(f"[red]violation[/red] {violation}")
    if outcome.right:
        console.print(
            "[bold green]right[/bold green]: equal to the sequential run, every invariant of the data model holds"
        )
        console.print(NEXT)
    else:
        console.print("[bold red]WRONG[/bold red]: not what the sequential run found, or an invariant is broken")
