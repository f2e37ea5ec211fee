"""A cluster of workers on this machine, each a process of its own, for as long as a `with` block lasts."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from fdb_schema import MainspringError
from fdb_schema.serving.private_files import private_opener

START_SECONDS = 60.0
STOP_SECONDS = 20.0


class WorkerStartError(MainspringError):
    """A worker process ended, or said nothing, before it was ready."""


class LocalWorker:
    """One `futures-worker run` process; `ready` once it printed its first line."""

    def __init__(self, url: str, cluster: str, slots: int, log: Path, *arguments: str) -> None:
        command = [
            sys.executable, "-P", "-m", "futures_worker", "run", "--db", url, "--cluster", cluster, "--slots", str(slots), *arguments,
        ]  # fmt: skip
        self.log = log
        with open(log, "wb", opener=private_opener) as errors:
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_ready(self, timeout: float = START_SECONDS) -> str:
        """The worker's first line. Raises `WorkerStartError` with what it said instead."""
        stream = self.process.stdout
        assert stream is not None
        line = _read_line(stream, timeout)
        if line is None:
            code = self.process.poll()
            ended = f"ended with exit code {code}" if code is not None else f"said nothing for {timeout:.0f} s"
            said = self.log.read_text(errors="replace").strip()[-2000:]
            raise WorkerStartError(f"worker process {self.pid} {ended}: {said or 'no message'}")
        return line

    def kill(self) -> None:
        """SIGKILL: the worker gets no chance to say goodbye. Its children die with it."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL where it doesn't end in time."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()


def _read_line(stream: IO[bytes], timeout: float) -> str | None:
    """The first whole line of `stream`, None where it ends before or none comes in time."""
    deadline = time.monotonic() + timeout
    data = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while b"\n" not in data:
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                return None
            piece = os.read(stream.fileno(), 4096)
            if not piece:
                return None
            data += piece
    return data.split(b"\n", 1)[0].decode(errors="replace")


class LocalCluster:
    """Workers over a database in a temporary directory, removed at the end."""

    def __init__(self, workers: int = 2, slots: int = 1, *, cluster: str = "demo") -> None:
        self.cluster = cluster
        self._count = workers
        self._slots = slots
        self._folder = tempfile.TemporaryDirectory(prefix="mainspring-demo-")
        self.folder = Path(self._folder.name)
        self.url = f"embedded:{self.folder / 'db'}"
        self.workers: list[LocalWorker] = []

    def __enter__(self) -> Self:
        try:
            for _ in range(self._count):
                self.add_worker()
            for worker in self.workers:
                worker.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add_worker(self) -> LocalWorker:
        """Start one more worker; it is not awaited."""
        log = self.folder / f"worker-{len(self.workers) + 1}.log"
        spill = self.folder / f"spill-{len(self.workers) + 1}"
        worker = LocalWorker(self.url, self.cluster, self._slots, log, "--spill", str(spill))
        self.workers.append(worker)
        return worker

    def close(self) -> None:
        """Stop every worker and remove the database."""
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.process.send_signal(signal.SIGTERM)
        for worker in self.workers:
            worker.stop()
        self._folder.cleanup()
