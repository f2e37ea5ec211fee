"""One run as a process group: its end and its output are waited for in bounded time and memory, and nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO, Final

from s3heap_tender.errors import HeapTenderError, RunStoppedError
from s3heap_tender.rows.output import keep_output

OUTPUT_BYTES: Final = 4000
_CHUNK: Final = 65_536
_LONGEST_NAP: Final = 0.05
_DRAIN_SECONDS: Final = 5.0


class TriggerError(HeapTenderError):
    """A run that ended badly."""


class _Tail:
    """Reads a pipe to its end and keeps the last bytes, so that a command never waits for its reader."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._kept = b""
        self._pipe = pipe
        self._thread = threading.Thread(target=self._read, name="s3heap-output", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._pipe:
            while data := os.read(self._pipe.fileno(), _CHUNK):
                self._kept = (self._kept + data)[-OUTPUT_BYTES:]

    def text(self) -> str:
        """The end of what was printed, once all writers are gone; a stranger that holds the pipe is not waited for."""
        self._thread.join(_DRAIN_SECONDS)
        return self._kept.decode(errors="replace")


def run_command(
    words: Sequence[str],
    environment: Mapping[str, str],
    payload: bytes,
    *,
    timeout: float | None = None,
    stop: threading.Event | None = None,
    over: threading.Event | None = None,
) -> str:
    """Run a command to its end; returns the last 4000 bytes of its standard output.

    They are kept as the run's output, or the end of its standard error where it printed nothing else.

    Raises `TriggerError` where it can't be started, exits with another code than 0 or takes longer than `timeout` s, and
    `RunStoppedError` where `stop` was set before it ended; where `over` was, it is killed and has failed.
    """
    with tempfile.TemporaryFile() as given:
        given.write(payload)
        given.seek(0)
        try:
            child = subprocess.Popen(
                list(words),
                env=dict(environment),
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise TriggerError(f"{words[0]} can't be started: {error.strerror or error}") from error
    assert child.stdout is not None
    assert child.stderr is not None
    output, errors = _Tail(child.stdout), _Tail(child.stderr)
    ended = ""
    try:
        ended = _await_end(child.pid, timeout, stop, over)
    finally:
        # The child is not reaped yet, so its number can't be another's.
        _kill_group(child.pid)
        child.wait()
    printed, complained = output.text(), errors.text()
    keep_output(printed or complained)
    if ended == "stopped":
        raise RunStoppedError(f"{words[0]} was killed because its scheduler stops; the run goes to another")
    if ended == "cancelled":
        raise TriggerError(f"{words[0]} was killed because its run was cancelled")
    if ended == "late":
        raise TriggerError(f"{words[0]} ran longer than {timeout:g} s and was killed")
    if child.returncode != 0:
        why = complained.strip() or printed.strip()
        how = f"exited with {child.returncode}" if child.returncode > 0 else f"was ended by signal {-child.returncode}"
        raise TriggerError(f"{words[0]} {how}" + (f": {why[-900:]}" if why else ""))
    return printed


def _await_end(pid: int, timeout: float | None, stop: threading.Event | None, over: threading.Event | None) -> str:
    """Wait for the child's end without reaping it; says "late", "stopped" or "cancelled" where that came first."""
    end = None if timeout is None else time.monotonic() + timeout
    nap = 0.002
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if stop is not None and stop.is_set():
            return "stopped"
        if over is not None and over.is_set():
            return "cancelled"
        if end is not None and time.monotonic() >= end:
            return "late"
        if stop is None:
            time.sleep(nap)
        else:
            stop.wait(nap)
        nap = min(_LONGEST_NAP, nap * 1.5)
    return ""


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # nothing of it is left, or all that is left belongs to another user
