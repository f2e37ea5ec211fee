"""The pipeline, live in the terminal: logs and how far they are covered, services, what was killed."""

from __future__ import annotations

from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fdb_schema.serving.figures import counted
from mainspring.demo.pipeline import Pipeline, PipelineOutcome, PipelineSettings, run_pipeline

EVENTS: Final = 6
_STYLES: Final = {"running": "green", "starting": "yellow", "waiting": "red", "stopping": "yellow", "stopped": "dim"}


def picture(pipeline: Pipeline) -> RenderableType:
    """One frame."""
    logs = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    for column, justify in (("log", "left"), ("covered", "left"), ("", "right"), ("runs", "right"), ("task", "left")):
        logs.add_column(column, justify=justify, ratio=3 if column == "covered" else None)  # type: ignore[arg-type]
    for partition in pipeline.partitions:
        bar = ProgressBar(total=max(1, len(partition.files)), completed=partition.covered)
        count = f"{partition.covered}/{partition.written} of {len(partition.files)}"
        logs.add_row(partition.name, bar, count, str(partition.runs), partition.state)
    services = Text()
    for name, row in pipeline.services().items():
        services.append(f"● {name}", style=_STYLES.get(row["phase"], ""))
        services.append(f" ×{row['restarts']}  " if row["restarts"] else "  ", style="dim")
    recent = Text(
        "\n".join(pipeline.events[-EVENTS:]) or "nothing was killed yet", style="red" if pipeline.events else "dim"
    )
    outcome = pipeline.outcome
    head = Text.assemble(
        (pipeline.stage, "bold"),
        f"   {counted(outcome.writes, 'write')}, {counted(outcome.records, 'record')}, {counted(sum(outcome.kills.values()), 'kill')}, ",
        f"cadence {pipeline.settings.cadence:g} s, seed {pipeline.settings.seed}",
    )
    return Group(
        head,
        Panel(logs, title="logs → tender → heap → scheduler → memo → futures", title_align="left"),
        Panel(services, title="services", title_align="left"),
        Panel(recent, title="SIGKILL", title_align="left"),
    )


def show_pipeline(settings: PipelineSettings, console: Console) -> PipelineOutcome:
    """Run the pipeline, live where the console is a terminal, and print the verdict."""
    console.print("write to a log → tender → heap → scheduler → memoized invocation under a lease → futures → results")
    if console.is_terminal:
        with Live(console=console, refresh_per_second=8, transient=True) as live:
            outcome = run_pipeline(settings, lambda pipeline: live.update(picture(pipeline)))
    else:
        told: list[str] = []

        def tell(pipeline: Pipeline) -> None:
            for line in [pipeline.stage, *pipeline.events]:
                if line not in told:
                    told.append(line)
                    console.print(line, markup=False)

        outcome = run_pipeline(settings, tell)
    _verdict(outcome, console)
    return outcome


def _verdict(outcome: PipelineOutcome, console: Console) -> None:
    killed = ", ".join(f"{name} {count}×" for name, count in sorted(outcome.kills.items())) or "nothing"
    console.print(
        f"{counted(outcome.records, 'record')} in {counted(outcome.writes, 'write')} caused {counted(outcome.runs, 'run')} that count "
        f"({outcome.starts} starts) in {outcome.seconds:.0f} s; killed: {killed}",
        markup=False,
    )
    console.print(
        f"{outcome.lines:,} lines and {outcome.functions:,} functions counted; all was covered "
        f"{outcome.longest_lag:.1f} s after the last write",
        markup=False,
    )
    for problem in outcome.problems[:20]:
        console.print(f"PROBLEM: {problem}", style="red", markup=False)
    if outcome.right:
        console.print(
            "[bold green]right[/bold green]: every write caused its run, no cadence was broken, the totals are those of "
            "a sequential count"
        )
    else:
        console.print("[bold red]WRONG[/bold red]")
