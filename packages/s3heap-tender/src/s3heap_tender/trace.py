"""The trace: with `MAINSPRING_TRACE=FILE` every step appends one JSON line, for the history checker.

A line is written after its step took effect; a process that dies in between leaves a gap, which the checker closes
from the numbers in the next line (`step` of a task's row, `prev` ETag of an object).
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Iterable
from typing import Any, Final
from uuid import UUID

from fdb_schema.forks import goes_on_in_children
from fdb_schema.serving.private_files import PRIVATE_FILE
from s3heap_tender.claims.transitions import Step
from s3heap_tender.rows.items import HeapItem
from s3heap_tender.rows.records import TaskRow

log = logging.getLogger("s3heap_tender.trace")
VARIABLE: Final = "MAINSPRING_TRACE"


class Trace:
    """Appends lines to a file, or to a list for tests; does nothing where it has neither."""

    def __init__(self, path: str | None = None, lines: list[str] | None = None) -> None:
        self.path = path
        self.lines = lines
        self._lock = threading.Lock()
        goes_on_in_children(self)

    def after_fork(self) -> None:
        """See `fdb_schema.forks`."""
        self._lock = threading.Lock()

    @classmethod
    def from_environment(cls) -> Trace:
        return cls(os.environ.get(VARIABLE) or None)

    @property
    def enabled(self) -> bool:
        return self.path is not None or self.lines is not None

    def line(self, op: str, **fields: Any) -> None:
        """Append one line: `op`, the fields, this process's id and the wall time (for people to read)."""
        if not self.enabled:
            return
        text = json.dumps({"op": op, **fields, "pid": os.getpid(), "wall": round(time.time(), 3)}, default=_plain)
        with self._lock:
            if self.lines is not None:
                self.lines.append(text)
            if self.path is not None:
                try:
                    self._append(self.path, text.encode() + b"\n")
                except OSError as error:
                    # The step took effect: a full disk must not make its caller believe that it did not.
                    log.warning("a step could not be traced to %s: %s", self.path, error)

    def _append(self, path: str, line: bytes) -> None:
        # One write of one line in append mode: lines of several processes never mix.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE_FILE)
        try:
            os.write(handle, line)
        finally:
            os.close(handle)

    def steps(self, steps: Iterable[Step], *, read_version: int | None, version: int | None) -> None:
        """One line for each task a transaction changed."""
        for step in steps:
            row = step.after or step.before
            assert row is not None
            self.line(
                step.operation,
                task=step.task,
                partition=row.partition,
                now=step.now,
                before=row_view(step.before),
                after=row_view(step.after),
                rv=read_version,
                v=version,
                **step.extra,
            )


def row_view(row: TaskRow | None) -> dict[str, Any] | None:
    """What the checker needs of a row."""
    if row is None:
        return None
    return {
        "step": row.step,
        "state": row.state.value,
        "gen": row.gen,
        "live": row.live_gen,
        "due_ms": row.due // 1000,
        "epoch": row.epoch,
        "attempt": row.attempt,
        "start": row.last_start,
        "cadence": row.cadence,
        "completion": row.completion,
        "pending": row.pending,
        "paused": row.paused,
        "dead": row.dead,
        "session": row.session,
        "obey": row.backoff.obey_cadence,
    }


def items_view(items: Iterable[HeapItem]) -> list[list[Any]]:
    """Items as [task, generation, due ms]."""
    return [[str(item.task), item.gen, item.due_ms] for item in items]


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, UUID) else repr(value)
