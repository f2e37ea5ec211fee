"""A bar in a terminal, for waits that are long enough to be noticed."""

from __future__ import annotations

import sys
import time
from typing import Any, Final

PROGRESS_AFTER: Final = 0.5  # seconds of waiting after which a bar is shown


class Progress:
    """A bar on standard error, if that is a terminal and the wait is long enough to be noticed."""

    def __init__(self, total: int, *, shown: bool) -> None:
        self._total = total
        self._started = time.monotonic()
        self._bar: Any = None
        self._task: Any = None
        self._off = not (shown and sys.stderr.isatty())

    def show(self, remaining: int) -> None:
        if self._off or time.monotonic() - self._started < PROGRESS_AFTER:
            return
        if self._bar is None:
            try:
                from rich.console import Console
                from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
            except ModuleNotFoundError:  # it comes with the extra `cli`
                self._off = True
                return
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("futures", total=self._total)
            self._bar.start()
        self._bar.update(self._task, completed=self._total - remaining)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._bar is not None:
            self._bar.stop()
