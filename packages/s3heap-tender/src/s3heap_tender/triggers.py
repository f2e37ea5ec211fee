"""Triggers: what a scheduler calls to run a task. Any callable `trigger(task, gen, epoch)` is one; these are made here.

A run may be started again after its scheduler died, with the same generation and attempt: a trigger that names its work
by `run_key` re-attaches to what the dead scheduler had started.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final
from uuid import UUID

from s3heap_tender.errors import HeapTenderError
from s3heap_tender.records import Task
from s3heap_tender.scheduler import Trigger

ERROR_TAIL: Final = 2000


class TriggerError(HeapTenderError):
    """A run that ended badly."""


def run_key(task: Task, gen: int) -> tuple[str, int, int]:
    """(task, generation, attempt): the same for every start of one attempt, different for every other."""
    return str(task.id), gen, task.attempt


def futures_trigger(client: Any, function: Callable[..., Any], **options: Any) -> Trigger:
    """Runs each generation as a future: `client.submit(function, task, gen, epoch, key="task/gen/attempt", **options)`.

    With the client of futures-worker a new scheduler re-attaches to the future that runs already, by its key. The
    function returns None or the log offset it read up to.
    """

    def trigger(task: Task, gen: int, epoch: int) -> Any:
        return client.submit(function, task, gen, epoch, key="/".join(map(str, run_key(task, gen))), **options)

    return trigger


def memoized_trigger(runner: Any, function: Callable[[UUID, int, int], Any]) -> Trigger:
    """Runs `function(task id, gen, attempt)` through a `MemoizingPicklingRunner` of lease-locks.

    One result per attempt, ever: a start after a crash waits for the run that goes on, or gets the result there is.
    """

    def trigger(task: Task, gen: int, epoch: int) -> Any:
        return runner.call(function, task.id, gen, task.attempt)

    return trigger


def subprocess_trigger(
    command: Sequence[str], *, timeout: float | None = None, stop: threading.Event | None = None
) -> Trigger:
    """Runs `command` for each generation; exit code 0 is success, anything else a failed run.

    The payload is its standard input; `S3HEAP_TASK`, `_NAME`, `_PARTITION`, `_GEN`, `_EPOCH`, `_ATTEMPT` and
    `_COMPLETION_OFFSET` are in its environment. A last line `upto=N` on standard output says up to where it read.
    It is killed with its children after `timeout` seconds, or when `stop` is set.
    """
    words = [str(word) for word in command]
    if not words:
        raise ValueError("a subprocess trigger needs a command")

    def trigger(task: Task, gen: int, epoch: int) -> int | None:
        environment = {
            **os.environ,
            "S3HEAP_TASK": str(task.id),
            "S3HEAP_NAME": task.name,
            "S3HEAP_PARTITION": str(task.partition),
            "S3HEAP_GEN": str(gen),
            "S3HEAP_EPOCH": str(epoch),
            "S3HEAP_ATTEMPT": str(task.attempt),
            "S3HEAP_COMPLETION_OFFSET": str(task.completion_offset),
        }
        child = subprocess.Popen(
            words,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        output, errors = _finish(child, task.payload, timeout, stop)
        if child.returncode != 0:
            tail = errors.decode(errors="replace")[-ERROR_TAIL:].strip()
            raise TriggerError(f"{words[0]} exited with {child.returncode}" + (f": {tail}" if tail else ""))
        last = output.decode(errors="replace").strip().rpartition("\n")[2]
        return int(last[5:]) if last.startswith("upto=") and last[5:].isdigit() else None

    return trigger


def _finish(
    child: subprocess.Popen[bytes], payload: bytes, timeout: float | None, stop: threading.Event | None
) -> tuple[bytes, bytes]:
    if stop is not None:
        watcher = threading.Thread(target=_kill_when, args=(child, stop), daemon=True)
        watcher.start()
    try:
        return child.communicate(payload, timeout=timeout)
    except subprocess.TimeoutExpired:
        _kill(child)
        child.communicate()
        raise TriggerError(f"the command ran longer than {timeout:g} s and was killed") from None
    except BaseException:
        _kill(child)
        raise


def _kill_when(child: subprocess.Popen[bytes], stop: threading.Event) -> None:
    while child.poll() is None:
        if stop.wait(0.2):
            _kill(child)
            return


def _kill(child: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
