"""What tasks print: a child notes which part of its output is whose, the worker keeps that part in the database.

In the worker's directory, per child process:

    logs/<pid>.out       standard output and error of the process and of whatever it starts, appended
    logs/<pid>.now       which task it runs, and where in the `.out` file that task's output begins (rewritten in place)
    logs/<pid>.<n>.done  the same of a task that ended and had printed something, until the worker has kept it

A task that prints nothing costs its child two system calls and the worker none.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import itertools
import logging
import os
import struct
import sys
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from fdb_datamodel import OUTPUT_KEPT, TaskOutput, write_output
from fdb_schema import ClusterSpace
from fdb_schema.serving.logs import printable
from fdb_schema.serving.private_files import check_own, read_own
from idempotent_txn import run

log = logging.getLogger("futures_worker")

_NOTE = struct.Struct(">QQI16s")  # begin, end (0: it goes on), attempt, future id
MAX_OUT = 4 << 20
"""Bytes of a `.out` file after which it is begun anew, between two tasks."""
MAX_DONE = 500
"""Notes of ended tasks kept while the worker doesn't take them; those of later tasks are dropped."""


ECHOED = 4096
"""Bytes of the end of a task's output that the worker repeats in its log, a line each with the time and the task."""
_NOBODY = _NOTE.pack(0, 0, 0, bytes(16))
_PUNCH_HOLE_KEEP_SIZE = 3


class Note(NamedTuple):
    """Which bytes of a child's output are of which attempt."""

    begin: int
    end: int
    attempt: int
    future_id: bytes


class _Printed(io.FileIO):
    """Where a process prints to. What there is no room for is lost, and is no error of who prints."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            return memoryview(data).nbytes


def _text(descriptor: int, before: Any) -> io.TextIOWrapper:
    """A text stream on a descriptor, which stays open with it."""
    encoding, errors = getattr(before, "encoding", None) or "utf-8", "backslashreplace"
    if descriptor == 1:
        errors = getattr(before, "errors", None) or "strict"
    raw = _Printed(descriptor, "wb", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=encoding, errors=errors, line_buffering=True)


class ChildOutput:
    """The child's side. Used by its main thread."""

    def __init__(self, directory: str) -> None:
        """Sends this process's standard output and error to its file."""
        self._base = f"{directory}/logs/{os.getpid()}"
        flags = os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._out = os.open(f"{self._base}.out", flags | os.O_RDWR | os.O_APPEND, 0o600)
        self._now = os.open(f"{self._base}.now", flags | os.O_WRONLY, 0o600)
        for descriptor in (1, 2):
            os.dup2(self._out, descriptor)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, ValueError, OSError):
                stream.flush()  # what was written before belongs where it was written to
        sys.stdout = _text(1, sys.stdout)
        sys.stderr = _text(2, sys.stderr)
        self._begin = 0
        self._numbers = itertools.count()

    def begin(self, future_id: bytes, attempt: int) -> None:
        """A task starts."""
        with contextlib.suppress(OSError):  # nowhere to note it: its output stays without an owner
            self._note_begin(future_id, attempt)

    def _note_begin(self, future_id: bytes, attempt: int) -> None:
        at = os.lseek(self._out, 0, os.SEEK_END)
        if at > MAX_OUT:
            os.ftruncate(self._out, 0)
            at = 0
        self._begin = at
        os.pwrite(self._now, _NOTE.pack(at, 0, attempt, future_id), 0)

    def end(self, future_id: bytes, attempt: int) -> None:
        """The task that began last ended."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # user code may have put anything in their place, or closed them
                stream.flush()
        with contextlib.suppress(OSError):  # no room for its output: that is lost, and not the task
            self._note_end(future_id, attempt)

    def _note_end(self, future_id: bytes, attempt: int) -> None:
        end = os.lseek(self._out, 0, os.SEEK_END)
        if end == self._begin:
            return
        number = next(self._numbers)
        if os.path.exists(f"{self._base}.{number - MAX_DONE}.done"):
            return
        partial = f"{self._base}.part"
        with open(partial, "wb") as file:
            file.write(_NOTE.pack(self._begin, end, attempt, future_id))
            with open(f"{self._base}.out", "rb") as out:
                out.seek(max(self._begin, end - OUTPUT_KEPT))
                file.write(out.read(OUTPUT_KEPT))
        os.rename(partial, f"{self._base}.{number}.done")
        os.pwrite(self._now, _NOBODY, 0)


class OutputKeeper:
    """The worker's side: used by its housekeeping."""

    def __init__(self, db: Any, space: ClusterSpace, directory: Path) -> None:
        """`directory`: the worker's own."""
        self._db = db
        self._space = space
        self._logs = directory / "logs"
        self._strange: set[Path] = set()  # told of
        self._kept: dict[Path, tuple[Note, int]] = {}  # of running tasks: how far their output was kept

    def tick(self) -> int:
        """Keeps what is new; how many attempts had anything."""
        count = 0
        seen: set[Path] = set()
        for path in sorted(self._logs.iterdir()):
            if path.suffix == ".done":
                count += self._keep_done(path)
            elif path.suffix == ".now" and path.stem.isdecimal():
                seen.add(path)
                count += self._keep_running(path)
        for gone in self._kept.keys() - seen:
            del self._kept[gone]
        return count

    def _keep_done(self, path: Path) -> int:
        """Tasks may write to the worker's directory: what no child wrote keeps no other output from being kept."""
        if path in self._strange:
            return 0
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                note = Note(*_NOTE.unpack(file.read(_NOTE.size)))
                data = file.read(OUTPUT_KEPT)
            size = note.end - note.begin
            if size < len(data):
                raise ValueError(f"{len(data)} bytes of a task that printed {size}")
        except (OSError, ValueError, struct.error) as error:
            self._strange.add(path)
            log.warning("%s isn't kept, and stays where it is: it is no output of a task (%s)", path, error)
            return 0
        self._write(note, data, size)
        path.unlink()
        return 1

    def _keep_running(self, path: Path) -> int:
        """Of a task that goes on, or whose process ended without a word."""
        alive = _is_alive(int(path.stem))
        out = path.with_suffix(".out")
        found = None
        try:
            found = self._printed(path, out)
        except (FileNotFoundError, struct.error):
            pass
        except OSError as error:
            if path not in self._strange:
                self._strange.add(path)
                log.warning("what process %s prints isn't kept: %s", path.stem, error)
        if found is not None:
            note, size, data = found
            self._write(note, data, size, echo=not alive)
            self._kept[path] = (note, size)
        if not alive:
            for one in (path, out, path.with_suffix(".part"), path.with_suffix(".stack")):
                with contextlib.suppress(
                    OSError
                ):  # there is none, or a directory: the worker's own goes with all in it
                    one.unlink()
        return found is not None

    def _printed(self, path: Path, out: Path) -> tuple[Note, int, bytes] | None:
        """What is new of it, its size and its end. Raises OSError, of what is no file of ours too: a task may have put it there."""
        note = Note(*_NOTE.unpack(read_own(path)))
        descriptor = os.open(out, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            size = check_own(descriptor, out).st_size - note.begin
            if not note.attempt or size <= 0 or self._kept.get(path) == (note, size):
                return None
            data = os.pread(descriptor, OUTPUT_KEPT, note.begin + max(0, size - OUTPUT_KEPT))
            if size > MAX_OUT:
                _punch_hole(descriptor, note.begin + size - OUTPUT_KEPT)
            return note, size, data
        finally:
            os.close(descriptor)

    def _write(self, note: Note, data: bytes, size: int, echo: bool = True) -> None:
        output = TaskOutput(note.attempt, data, size)
        run(self._db, write_output, self._space, note.future_id, output, strategy="off")
        if echo:  # also where the worker's own messages go
            task = str(UUID(bytes=note.future_id))
            extra = {"task": task, "attempt": note.attempt}
            for line in data[-ECHOED:].decode(errors="replace").splitlines():
                log.info("task %s attempt %d printed: %s", task, note.attempt, printable(line), extra=extra)


def _punch_hole(descriptor: int, end: int) -> None:
    """Give the memory of a file's beginning back, up to offset `end`: a task that prints for ever takes no more of it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate(descriptor, _PUNCH_HOLE_KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(max(1, end)))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
