"""`LocalCluster`: workers on this machine and a client of them, in one line, for as long as a block or this process lasts."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import math
import os
import shutil
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fdb_datamodel import Requirements, parse_size
from fdb_schema.serving.figures import counted
from fdb_schema.serving.private_files import make_private_directory
from futures_worker.client import Client
from futures_worker.client.basis.html import panel
from futures_worker.errors import MainspringError
from futures_worker.local.workers import LocalWorker, wait_ready
from futures_worker.worker.registration import gpu_ids

START_SECONDS: Final = 60.0
"""That all workers have, together, until they are registered."""


class LocalCluster:
    """A database, workers that are processes of this machine, and a client of them.

        with LocalCluster(workers=2) as client:
            print(client.submit(pow, 2, 10).result())

    All of it ends with the block. Elsewhere, as in a notebook, it is made, used and ended: `cluster = LocalCluster()`,
    `cluster.client`, `cluster.close()`; what isn't closed ends with this process, whatever ends that. Workers start when it is
    made; whoever first enters the block or asks for the client or the workers waits until all are registered.
    """

    def __init__(
        self,
        workers: int = 2,
        slots: int | None = None,
        *,
        db: str | Path | None = None,
        cluster: str | None = None,
        cpus: float | None = None,
        ram: int | str | None = None,
        gpus: float = 0,
        offers: Mapping[str, float] | None = None,
        logs: str | Path | None = None,
        grace: float = 0.0,
        **options: Any,
    ) -> None:
        """Start the workers.

        Args:
            workers: how many processes.
            slots: tasks that each runs at a time. None: the cores of this machine are shared among them.
            db: the database: a URL, as `Client` takes it, or a `Path`, the folder of an embedded one; it stays. None: an embedded
                one in a temporary folder, which is removed at the end.
            cluster: the cluster's name; None: of the environment variable MAINSPRING_CLUSTER, else the default one.
            cpus, ram, gpus: what each worker offers to tasks that ask for `resources`; ram in bytes, or "8GiB". None: the cpus of this
                machine, and 80 % of its memory. No two workers have a gpu in common: the first has the first of CUDA_VISIBLE_DEVICES,
                or 0 and so on.
            offers: named resources that each worker offers likewise, `{"db": 1}`.
            logs: a folder for what workers and tasks print, a file per worker, which stays. None: a temporary one.
            grace: seconds that running tasks have at the end; what isn't done by then is given back to the database.
            options: those of `Client`: `secret`, `durability`, and defaults for its submits, as `max_retries=0`.

        Raises what `Client` raises; ValueError for a `memory:` database, which no other process can open, and for less than 0 workers.
        WorkerStartError, with the end of the log, is raised by whoever waits for workers.
        """
        check_count("workers", workers, 0)
        if slots is not None:
            check_count("slots", slots, 1)
        size = None if ram is None else parse_size(ram)
        Requirements(cpus or 0, size or 0, gpus, offers or {})  # refuses what makes no sense
        offered = {"cpus": cpus, "ram": size, "gpus": gpus, "named": dict(offers or {})}
        url = f"embedded:{db}" if isinstance(db, Path) else db
        if url is not None and url.startswith("memory:"):
            raise ValueError(
                f"{url} lives in one process and workers are others: give db='embedded:PATH', or leave it out"
            )
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._workers: list[LocalWorker] = []
        self._started = 0
        self._gpus = gpus
        self._gpus_of: dict[int, LocalWorker] = {}  # the share of the gpus that each has
        self._closed = False
        self._slots = slots or max(1, len(os.sched_getaffinity(0)) // max(1, workers))
        self._grace = grace
        self._offered = offered
        self._folder = tempfile.mkdtemp(prefix="mainspring-")  # a TemporaryDirectory goes with the first fork that ends
        try:
            self._logs = make_private_directory(Path(logs or Path(self._folder, "logs")).absolute())
            url = url or f"embedded:{self._folder}/db"
            self._client = Client(url, cluster, **options)
            self._url = self._client.origin.url or url
            _open.add(self)
            self._start(workers)
        except BaseException:
            self.close()
            raise

    # --- what it consists of ------------------------------------------------------------------------------------------

    @property
    def client(self) -> Client:
        """A client of it, closed with it. Waits until the workers are registered; raises WorkerStartError."""
        self._wait()
        return self._client

    @property
    def workers(self) -> list[LocalWorker]:
        """Its processes that live: `.pid`, `.address`, `.log`, `.kill()`. Waits until they are registered."""
        self._wait()
        return [worker for worker in self._workers if worker.alive]

    @property
    def url(self) -> str:
        """The database, for other clients and for commands: `--db`."""
        return self._url

    @property
    def cluster(self) -> str:
        """The cluster's name: `--cluster`."""
        return self._client.cluster

    @property
    def logs(self) -> Path:
        """The folder of the workers' logs."""
        return self._logs

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self._closed

    # --- what becomes of it -------------------------------------------------------------------------------------------

    def scale(self, workers: int, *, wait: bool = True) -> list[LocalWorker]:
        """Have so many workers that live: start some, in the place of dead ones too, or end the newest. Returns them, oldest first.

        What those run that end is given back after the grace, and results that only they hold are computed again when they are asked
        for. `wait`: until the new ones are registered, and the others gone.
        """
        check_count("workers", workers, 0)
        self._check_open()
        with self._lock:
            living = [worker for worker in self._workers if worker.alive]
            for worker in self._workers:
                if worker not in living:
                    worker.stop()
            self._workers = living
            leaving = living[workers:]
            for worker in leaving:
                worker.ask_to_stop()
            self._start(workers - len(living))
            if wait:
                for worker in leaving:
                    worker.stop()
                self._workers = [worker for worker in self._workers if worker not in leaving]
                self._wait()
            return [worker for worker in self._workers if worker not in leaving]

    def close(self) -> None:
        """Close the client, end the workers, and remove the temporary folder. Closing twice is harmless."""
        if self._pid != os.getpid():  # a fork's copy: the workers are its parent's
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            _open.discard(self)
            try:
                if hasattr(self, "_client"):
                    self._client.close()
            finally:
                for worker in self._workers:
                    worker.ask_to_stop()
                for worker in self._workers:
                    worker.stop()
                shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, count: int) -> None:
        temporary = self._folder
        for _ in range(count):
            self._started += 1
            block, ids = self._next_gpus()
            settings = {
                "url": self._url,
                "cluster": self.cluster,
                "slots": self._slots,
                **self._offered,
                "ids": ids,
                "spill": f"{temporary}/spill-{self._started}",
                "grace": self._grace,
                "remove": temporary,
            }
            worker = LocalWorker(settings, self._logs / f"worker-{self._started}.log")
            self._workers.append(worker)
            self._gpus_of[block] = worker

    def _next_gpus(self) -> tuple[int, list[str]]:
        """The gpus of one more worker, none of a living one's: which share of them, and their ids. Raises ValueError."""
        each = math.ceil(self._gpus)
        block = next(one for one in itertools.count() if one not in self._gpus_of or not self._gpus_of[one].alive)
        if not each:
            return block, []
        return block, list(gpu_ids((block + 1) * each, os.environ.get("CUDA_VISIBLE_DEVICES"))[1][block * each :])

    def _wait(self) -> None:
        self._check_open()
        with self._lock:
            wait_ready(self._workers, START_SECONDS)

    def _check_open(self) -> None:
        if self._closed:
            raise MainspringError(f"this LocalCluster {self.cluster!r} is closed: make a new one")

    def __enter__(self) -> Client:
        try:
            self._wait()
        except BaseException:
            self.close()
            raise
        return self._client.__enter__()

    def __exit__(self, *exc_info: object) -> None:
        try:
            self._client.__exit__(*exc_info)
        finally:
            self.close()

    async def __aenter__(self) -> Client:
        import asyncio

        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, self._wait)
        except BaseException:
            await loop.run_in_executor(None, self._give_up)
            raise
        return await self._client.__aenter__()

    async def __aexit__(self, *exc_info: object) -> None:
        import asyncio

        try:
            await self._client.__aexit__(*exc_info)
        finally:
            await asyncio.get_running_loop().run_in_executor(None, self.close)

    def _give_up(self) -> None:
        """Close it while another thread may wait for workers: their end is the end of that wait."""
        for worker in list(self._workers):
            worker.ask_to_stop()
        self.close()

    # --- how it looks -------------------------------------------------------------------------------------------------

    def _told(self) -> str:
        living = sum(worker.alive for worker in self._workers)
        slots = f"{counted(self._slots, 'slot')} each"
        if self._closed:
            return "closed"
        gone = len(self._workers) - living
        return f"{counted(living, 'worker')}, {slots}" + (f", {gone} more dead" if gone else "")

    def __repr__(self) -> str:
        return f"<LocalCluster {self.cluster!r} of {self._url}: {self._told()}>"

    def _repr_html_(self) -> str:
        rows = {"database": self._url, "workers": self._told(), "logs": self._logs}
        if not self._closed:
            rows |= {f"worker {at}": repr(worker).strip("<>") for at, worker in enumerate(self._workers, 1)}
        return panel(f"LocalCluster {self.cluster}", rows)


def check_count(what: str, value: object, least: int) -> None:
    """Raises TypeError, ValueError for what is no number of things."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} is a whole number, found {value!r:.80}")
    if value < least:
        raise ValueError(f"{what} is {least} or more, found {value}")


_open: set[LocalCluster] = set()


def _at_exit() -> None:
    for cluster in list(_open):
        with contextlib.suppress(Exception):  # nobody is left to be told; the workers see this process end
            cluster.close()


def _after_fork_in_child() -> None:
    _open.clear()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork_in_child)
