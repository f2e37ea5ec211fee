"""Worker processes of this machine: each is started, awaited until it is registered, and ended."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import site
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from fdb_schema.serving.private_files import private_opener
from fdb_schema.serving.processes import signal_name
from futures_worker.errors import WorkerStartError

STOP_SECONDS: Final = 20.0
"""Beyond the grace, from SIGTERM to SIGKILL."""
TAIL_BYTES: Final = 3_000
"""Of a log, that an error shows."""


class LocalWorker:
    """One worker process of a `LocalCluster`."""

    def __init__(self, settings: dict[str, Any], log: Path) -> None:
        """Start it; `wait_ready` awaits it. `settings`: as `worker_main` takes them, but for those it is given here."""
        self.log = log
        """The file with what it says: its messages, and what tasks print."""
        self.address = ""
        """By which the cluster knows it, once it is registered: "ip:port"."""
        self.slots: int = settings["slots"]
        self._grace: float = settings["grace"]
        self._said = b""
        self._ready, told = os.pipe()
        command = [sys.executable, "-P", "-m", "futures_worker.local.worker_main"]
        settings = settings | {"parent": os.getpid(), "ready": told}
        try:
            with open(log, "ab", opener=private_opener) as output:
                self._process: subprocess.Popen[bytes] = subprocess.Popen(
                    [*command, json.dumps(settings)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(search_path()), "PYTHONUNBUFFERED": "1"},
                    pass_fds=(told,),
                    start_new_session=True,  # an interrupt from the terminal is for whoever started it
                )
        except BaseException:
            self._hear_no_more()
            raise
        finally:
            os.close(told)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process lives."""
        return self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL: it gets no chance to say goodbye. The processes of its tasks die with it."""
        self._process.kill()
        self._process.wait()

    def ask_to_stop(self) -> None:
        """SIGTERM: it takes nothing more, and gives back what isn't done within the grace. Not awaited."""
        if self.alive:
            self._process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """End it, with SIGTERM, and SIGKILL where it doesn't end in time."""
        self.ask_to_stop()
        try:
            self._process.wait(self._grace + STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        self._hear_no_more()

    def tail(self) -> str:
        """The end of its log."""
        with contextlib.suppress(OSError), open(self.log, "rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
            return log.read().decode(errors="replace").strip()
        return ""

    def __repr__(self) -> str:
        if not self.alive:
            return f"<worker {self.address or 'that never served'}: {_how_it_ended(self._process.returncode)}>"
        return f"<worker {self.address or 'that starts'}, process {self.pid}>"

    # --- the start ----------------------------------------------------------------------------------------------------

    def _hear(self) -> bool:
        """Reads what it says of its start; whether it is ready. Raises WorkerStartError if it ended instead."""
        data = os.read(self._ready, 4096)
        self._said += data
        if b"\n" in self._said:
            self.address = json.loads(self._said.partition(b"\n")[0])["address"]
            self._hear_no_more()
            return True
        if not data:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
            code = self._process.poll()
            raise self.start_error("closed its end" if code is None else _how_it_ended(code))
        return False

    def start_error(self, why: str) -> WorkerStartError:
        """What is said of a worker that doesn't start."""
        return WorkerStartError(
            f"worker process {self.pid} {why} before it served. The end of its log, {self.log}:\n{self.tail() or '(empty)'}"
        )

    def _hear_no_more(self) -> None:
        if self._ready >= 0:
            os.close(self._ready)
            self._ready = -1

    @property
    def starting(self) -> int | None:
        """The descriptor by which it tells of its start; None once it has."""
        return self._ready if self._ready >= 0 else None


def wait_ready(workers: Iterable[LocalWorker], timeout: float) -> None:
    """Return once all are registered. Raises WorkerStartError, with the end of the log of one that isn't."""
    end = time.monotonic() + timeout
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            if worker.starting is not None:
                selector.register(worker.starting, selectors.EVENT_READ, worker)
        while left := [key.data for key in selector.get_map().values()]:
            for key, _ in selector.select(max(0.0, end - time.monotonic())):
                if key.data._hear():
                    selector.unregister(key.fd)
            if time.monotonic() >= end and any(worker.starting is not None for worker in left):
                raise left[0].start_error(f"said nothing for {timeout:g} s")


def search_path() -> Iterator[str]:
    """Where this process finds modules, but for what every process of this Python has: its library and site-packages."""
    paths = sysconfig.get_paths()
    own = {os.path.realpath(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    own |= {os.path.realpath(path) for path in (*site.getsitepackages(), site.getusersitepackages())}
    own |= {os.path.join(path, "lib-dynload") for path in own}
    for path in sys.path:
        absolute = os.path.abspath(path)  # "" is the working directory
        if os.path.exists(absolute) and os.path.realpath(absolute) not in own and os.pathsep not in absolute:
            yield absolute


def _how_it_ended(code: int) -> str:
    return f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
