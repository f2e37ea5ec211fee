"""Triggers: what a scheduler calls to run a task. Any callable `trigger(task, gen, epoch)` is one; these are made here.

A run may be started again after its scheduler died, with the same generation and attempt: a trigger that names its work
by `run_key` re-attaches to what the dead scheduler had started.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final
from uuid import UUID

from s3heap_tender.rows.records import ReadUpTo, Task
from s3heap_tender.runs.run_context import run_awaits, run_is_cancelled, run_over
from s3heap_tender.runs.running import Trigger
from s3heap_tender.runs.subprocesses import TriggerError, run_command

__all__ = ["RUNS_PIPELINE", "TriggerError", "futures_trigger", "memoized_trigger", "run_key", "subprocess_trigger"]


RUNS_PIPELINE: Final = "mainspring-scheduler"
"""The pipeline of memoized runs, which nobody needs once their claims are settled; a janitor forgets those in a while."""


def run_key(task: Task, gen: int) -> tuple[str, int, int]:
    """(task, generation, attempt): the same for every start of one attempt, different for every other."""
    return str(task.id), gen, task.attempt


def futures_trigger(client: Any, function: Callable[..., Any], **options: Any) -> Trigger:
    """Runs each generation as a future: `client.submit(function, task, gen, epoch, key="task/gen/attempt", **options)`.

    With the client of futures-worker a new scheduler re-attaches to the future that runs already, by its key. The
    function may return `ReadUpTo(offset)`, to say how far it read the log.
    """

    def trigger(task: Task, gen: int, epoch: int) -> Any:
        return client.submit(function, task, gen, epoch, key="/".join(map(str, run_key(task, gen))), **options)

    return trigger


def memoized_trigger(runner: Any, function: Callable[[UUID, int, int], Any]) -> Trigger:
    """Runs `function(task id, gen, attempt)` through a `MemoizingPicklingRunner` of lease-locks.

    One result per attempt, ever: a start after a crash waits for the run that goes on, or gets the result there is. A run
    that is cancelled, as after the scheduler's `timeout`, has its invocation cancelled: its remote is ended where the runner's
    Shell can do that.
    """

    def trigger(task: Task, gen: int, epoch: int) -> Any:
        arguments = task.id, gen, task.attempt
        # The value is waited for here, so that it is what the trigger returns, whoever calls it.
        run_awaits(_Invocation(lambda: runner.cancel(function, *arguments)))
        if run_is_cancelled():
            raise TriggerError("the run was cancelled before its invocation began")
        return runner.call(function, *arguments)

    return trigger


class _Invocation:
    """What a memoized run waits for, to be cancelled."""

    def __init__(self, cancel: Callable[[], object]) -> None:
        self.cancel = cancel


def subprocess_trigger(
    command: Sequence[str], *, timeout: float | None = None, stop: threading.Event | None = None
) -> Trigger:
    """Runs `command` for each generation; exit code 0 is success, anything else a failed run.

    The payload is its standard input; `S3HEAP_TASK`, `_NAME`, `_PARTITION`, `_PARTITION_NAME`, `_GEN`, `_EPOCH`, `_ATTEMPT` and
    `_COMPLETION_OFFSET` are in its environment. A last line `upto=N` on standard output says up to where it read. The end
    of what it prints is kept with the task. The run is over when the command is: what it left running in its process
    group is killed then, and all of it after `timeout` seconds. When `stop` is set it is killed too, but then the run
    didn't fail: its claim goes to whoever comes after this process's session.
    """
    words = [str(word) for word in command]
    if not words:
        raise ValueError("a subprocess trigger needs a command")

    def trigger(task: Task, gen: int, epoch: int) -> ReadUpTo | None:
        environment = {
            **os.environ,
            "S3HEAP_TASK": str(task.id),
            "S3HEAP_NAME": task.name,
            "S3HEAP_PARTITION": str(task.partition),
            "S3HEAP_PARTITION_NAME": task.partition_name,
            "S3HEAP_GEN": str(gen),
            "S3HEAP_EPOCH": str(epoch),
            "S3HEAP_ATTEMPT": str(task.attempt),
            "S3HEAP_COMPLETION_OFFSET": str(task.completion_offset),
        }
        output = run_command(words, environment, task.payload, timeout=timeout, stop=stop, over=run_over())
        last = output.strip().rpartition("\n")[2]
        said = last.startswith("upto=") and last[5:].isdecimal() and last.isascii()
        return ReadUpTo(int(last[5:])) if said else None

    return trigger
