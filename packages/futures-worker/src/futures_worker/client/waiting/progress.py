"""A bar in a terminal or a notebook, for waits that are long enough to be noticed."""

from __future__ import annotations

import importlib
import sys
import time
from typing import Any, Final, Protocol

PROGRESS_AFTER: Final = 0.5  # seconds of waiting after which a bar is shown
_REDRAWN_AFTER: Final = 0.1  # seconds between two states that a notebook is shown


class _Bar(Protocol):
    def update(self, completed: int) -> None:
        """So many futures have ended."""

    def stop(self) -> None:
        """The wait is over."""


class Progress:
    """A bar on standard error, if that is a terminal, or below a notebook's cell, once the wait is long enough."""

    def __init__(self, total: int, *, shown: bool) -> None:
        self._total = total
        self._started = time.monotonic()
        self._bar: _Bar | None = None
        self._notebook = in_notebook()
        self._off = not (shown and (self._notebook or sys.stderr.isatty()))

    def show(self, remaining: int) -> None:
        if self._off or time.monotonic() - self._started < PROGRESS_AFTER:
            return
        if self._bar is None:
            try:
                self._bar = _NotebookBar(self._total) if self._notebook else _TerminalBar(self._total)
            except ModuleNotFoundError:  # rich comes with the extra `cli`
                self._off = True
                return
        self._bar.update(self._total - remaining)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook, which shows more than text."""
    shell = sys.modules.get("IPython")
    ask = getattr(shell, "get_ipython", None)
    return ask is not None and type(ask()).__name__ == "ZMQInteractiveShell"


class _TerminalBar:
    """Of rich; gone when the wait is over."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task("futures", total=total)
        self._progress.start()

    def update(self, completed: int) -> None:
        self._progress.update(self._task, completed=completed)

    def stop(self) -> None:
        self._progress.stop()


class _NotebookBar:
    """HTML's own; what it showed last stays below the cell."""

    def __init__(self, total: int) -> None:
        self._display: Any = importlib.import_module("IPython.display")
        self._total = total
        self._completed = self._shown = 0
        self._drawn = time.monotonic()
        self._handle = self._display.display(self._html(), display_id=True)

    def update(self, completed: int) -> None:
        self._completed = completed
        if time.monotonic() - self._drawn >= _REDRAWN_AFTER:
            self._draw()

    def stop(self) -> None:
        if self._shown != self._completed:
            self._draw()

    def _draw(self) -> None:
        self._drawn, self._shown = time.monotonic(), self._completed
        self._handle.update(self._html())

    def _html(self) -> Any:
        bar = f'<progress value="{self._completed}" max="{self._total}"></progress>'
        return self._display.HTML(f"{bar} {self._completed:,} of {self._total:,} futures")
