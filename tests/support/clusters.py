"""The fixture `cluster`: workers as real processes, started by the command users start them with.

    def test_something(cluster):
        demo = cluster(workers=2, slots=2)
        client = demo.client()
        demo.workers[0].kill()

Every process is killed at the end of the test, whatever happened. `demo.check()` runs the data model's validation.

The fixture `shared_cluster` gives the same, but clusters stay for the module's other tests that ask for the same shape:
for tests that end what they begin, leave the workers alone and count nothing of the whole cluster.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

START_SECONDS = 60.0


class WorkerProcess:
    """One `futures-worker run`."""

    def __init__(self, command: list[str], log: Path, environment: dict[str, str]) -> None:
        self.log = log
        with log.open("wb") as errors:
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                env=environment,
            )
        self.line = ""

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_ready(self, timeout: float = START_SECONDS) -> str:
        """The first line the worker prints, once it serves. Fails the test with the worker's log if it ends instead."""
        stream = self.process.stdout
        assert stream is not None
        deadline = time.monotonic() + timeout
        data = b""
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while b"\n" not in data:
                if selector.select(max(0.0, deadline - time.monotonic())):
                    piece = os.read(stream.fileno(), 4096)
                    if piece:
                        data += piece
                        continue
                code = self.process.poll()
                pytest.fail(f"worker {self.pid} isn't ready (exit code {code}): {self.text()[-3000:]}")
        self.line = data.split(b"\n", 1)[0].decode()
        return self.line

    def text(self) -> str:
        """What it wrote to standard error."""
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL; returns once it is gone."""
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        """SIGSTOP: alive, but without a sign of life."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def stop(self, timeout: float = 60.0) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    def close(self) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.resume()
            self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()


IMPATIENT = ["-c", "from futures_worker import cli; cli.LEAST_SESSION_TTL = 0.0; cli.main()"]
"""A worker for tests that have clients declared dead, those that live too: its --session-ttl may be as short as they like."""


class LocalCluster:
    """A database, the workers on it, and clients that are closed with it."""

    def __init__(self, url: str, name: str, folder: Path) -> None:
        self.url = url
        self.name = name
        self.folder = folder
        self.workers: list[WorkerProcess] = []
        self._clients: list[Any] = []

    def start(self, *arguments: str, wait: bool = True, env: dict[str, str] | None = None) -> WorkerProcess:
        """One more worker; `arguments` are those of `futures-worker run`, `env` is added to this process's environment."""
        number = len(self.workers) + 1
        module = IMPATIENT if "--session-ttl" in arguments else ["-m", "futures_worker"]
        command = [sys.executable, *module, "run", "--db", self.url, "--cluster", self.name]
        command += ["--spill", str(self.folder / f"spill-{number}"), *arguments]
        worker = WorkerProcess(command, self.folder / f"worker-{number}.log", {**os.environ, **(env or {})})
        self.workers.append(worker)
        if wait:
            worker.wait_ready()
        return worker

    def client(self, **options: Any) -> Any:
        """A client, closed at the end of the test."""
        from futures_worker import Client

        client = Client(self.url, self.name, **options)
        self._clients.append(client)
        return client

    def check(self) -> None:
        """Fails with every invariant that doesn't hold in the database."""
        from fdb_datamodel import validate
        from fdb_schema import open_database

        violations = validate(open_database(self.url), self.name)
        assert violations == [], "\n".join(map(str, violations))

    def close_clients(self) -> None:
        while self._clients:
            self._clients.pop().close()

    def close(self) -> None:
        try:
            self.close_clients()
        finally:
            for worker in self.workers:
                worker.close()


ClusterFactory = Callable[..., LocalCluster]


@pytest.fixture
def cluster(shared_url: str, tmp_path: Path) -> Iterator[ClusterFactory]:
    """Make a cluster on an empty database, once per engine: `cluster(workers=2, slots=1, *arguments of run)`."""
    made: list[LocalCluster] = []

    def make(
        workers: int = 2, slots: int = 1, *arguments: str, name: str = "test", env: dict[str, str] | None = None
    ) -> LocalCluster:
        local = LocalCluster(shared_url, name, tmp_path)
        made.append(local)
        for _ in range(workers):
            local.start("--slots", str(slots), *arguments, wait=False, env=env)
        for worker in local.workers:
            worker.wait_ready()
        return local

    try:
        yield make
    finally:
        for local in made:
            local.close()


class KeptClusters:
    """Clusters by the arguments they were asked for with, each on a database of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kept: dict[tuple[Any, ...], LocalCluster] = {}

    def get(self, workers: int, slots: int, arguments: tuple[str, ...]) -> LocalCluster:
        """One whose workers all live, made anew if there is none."""
        key = (workers, slots, *arguments)
        local = self.kept.get(key)
        if local is not None and any(worker.process.poll() is not None for worker in local.workers):
            local.close()
            local = None
        if local is None:
            home = Path(tempfile.mkdtemp(dir=self.folder))
            local = self.kept[key] = LocalCluster(f"embedded:{home / 'db'}", "test", home)
            for _ in range(workers):
                local.start("--slots", str(slots), *arguments, wait=False)
            for worker in local.workers:
                worker.wait_ready()
        return local

    def close(self) -> None:
        for local in self.kept.values():
            local.close()


@pytest.fixture(scope="module")
def kept_clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeptClusters]:
    """What `shared_cluster` keeps from test to test of one module."""
    shm = Path("/dev/shm")
    memory = shm.is_dir() and os.access(shm, os.W_OK | os.X_OK)
    folder = Path(tempfile.mkdtemp(prefix="mainspring-test-", dir=shm if memory else tmp_path_factory.getbasetemp()))
    kept = KeptClusters(folder)
    try:
        yield kept
    finally:
        kept.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def shared_cluster(shared_url: str, cluster: ClusterFactory, kept_clusters: KeptClusters) -> Iterator[ClusterFactory]:
    """As `cluster`, but workers and database may have served other tests of the module. A real cluster is erased for each."""
    if not shared_url.startswith("embedded:"):
        yield cluster
        return

    def get(workers: int = 2, slots: int = 1, *arguments: str) -> LocalCluster:
        return kept_clusters.get(workers, slots, arguments)

    yield get
    for local in kept_clusters.kept.values():
        local.close_clients()
