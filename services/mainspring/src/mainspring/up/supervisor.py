"""Keeps processes alive: starts them in order, starts again what ended, stops all of them and leaves nothing behind.

STARTING ─ready─▶ RUNNING ─ended─▶ WAITING ─pause is over─▶ STARTING; any ─stop─▶ STOPPING ─ended─▶ STOPPED.

Every child leads a session of its own, so that an interrupt from the terminal reaches the supervisor alone; the kernel
tells the children to end should the supervisor be killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from fdb_schema.serving.private_files import make_private_directory, private_opener
from fdb_schema.serving.processes import dying_with_parent, signal_name
from mainspring.up.plan import ServiceSpec, Stage
from mainspring.up.restarts import Restarts

DASHBOARD_TOKEN: Final = "MAINSPRING_DASHBOARD_TOKEN"

TAIL_BYTES: Final = 2_000
LOG_BYTES: Final = 16 << 20
"""A log that is larger begins anew; what it held is kept beside it."""
LOG_SECONDS: Final = 10.0
"""How often that is looked at."""
_LINE_LIMIT: Final = 65_536


class Phase(StrEnum):
    """What a service is doing."""

    starting = "starting"
    running = "running"
    waiting = "waiting"  # for its next start
    stopping = "stopping"
    stopped = "stopped"


Say = Callable[[str, str], None]
"""`say(service, text)`: tells the person at the terminal; raises nothing, also where nobody reads any more."""


class Supervised:
    """One service: its process, or the pause before its next one."""

    def __init__(self, spec: ServiceSpec, log: Path) -> None:
        self.spec = spec
        self.log = log
        self.phase = Phase.stopped
        self.process: subprocess.Popen[bytes] | None = None
        self.restarts = Restarts()
        self.started = 0.0
        self.start_at = 0.0
        self.said = ""  # its ready line
        self._output = b""

    @property
    def pid(self) -> int | None:
        return None if self.process is None else self.process.pid

    def start(self) -> int:
        """Start the process; its standard output's file descriptor."""
        make_private_directory(self.log.parent)
        self.bound_log()
        with open(self.log, "ab", opener=private_opener) as errors:
            self.process = subprocess.Popen(
                self.spec.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**_inherited(self.spec), "PYTHONUNBUFFERED": "1", **self.spec.environment},
                start_new_session=True,
                preexec_fn=dying_with_parent(),
            )
        self.started = time.monotonic()
        self.phase = Phase.starting if self.spec.says_ready else Phase.running
        self._output = b""
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        return self.process.stdout.fileno()

    def bound_log(self) -> None:
        """Begin the log anew where it has grown large. Who writes to it appends, and goes on at its beginning."""
        with contextlib.suppress(OSError):
            if self.log.stat().st_size > LOG_BYTES:
                kept = self.log.with_suffix(".log.1")
                with (
                    open(self.log, "rb", opener=private_opener) as whole,
                    open(kept, "wb", opener=private_opener) as copy,
                ):
                    shutil.copyfileobj(whole, copy)
                os.truncate(self.log, 0)

    def read(self) -> list[str] | None:
        """Whole lines of its standard output; None at its end."""
        assert self.process is not None
        assert self.process.stdout is not None
        try:
            data = os.read(self.process.stdout.fileno(), _LINE_LIMIT)
        except BlockingIOError:
            return []
        if not data:
            return None
        *lines, self._output = (self._output + data).split(b"\n")
        self._output = self._output[-_LINE_LIMIT:]
        return [line.decode(errors="replace") for line in lines]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and those of its group."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def tail(self) -> str:
        """The end of its log."""
        with contextlib.suppress(OSError), open(self.log, "rb", opener=private_opener) as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
            return log.read().decode(errors="replace").strip()
        return ""


def _counts_as_ready(service: Supervised) -> bool:
    return service.phase is Phase.running or (service.spec.stage is Stage.dashboard and service.restarts.total > 0)


class Supervisor:
    """Runs services until SIGINT or SIGTERM. Not thread-safe: `run` belongs to the main thread."""

    def __init__(
        self, specs: Sequence[ServiceSpec], state: Path, say: Say, facts: dict[str, Any] | None = None
    ) -> None:
        """`state`: directory for logs and `up.json`. `facts` are written to that file too."""
        self.services = [Supervised(spec, state / "logs" / f"{spec.name}.log") for spec in specs]
        self._state = state
        self._say = say
        self._facts = facts or {}
        self._asked = 0
        self._asked_by: signal.Signals | None = None
        self._logs_at = time.monotonic()
        self._ready_told = False
        self._selector = selectors.DefaultSelector()

    def run(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Start everything; `on_ready` is called once all services run for the first time.

        A dashboard that can't be started is said and tried again, and holds nobody up: it is only looked at.
        """
        with self._signals() as woken:
            self._selector.register(woken, selectors.EVENT_READ, None)
            try:
                for stage in Stage:
                    self._start_stage(stage)
                self._publish()
                while not self._asked:
                    self._turn()
                    if not self._ready_told and all(map(_counts_as_ready, self.services)):
                        self._ready_told = True
                        on_ready()
            finally:
                self._stop_all()
                self._selector.close()
                (self._state / "up.json").unlink(missing_ok=True)

    # --- life

    def _start_stage(self, stage: Stage) -> None:
        chosen = [service for service in self.services if service.spec.stage is stage]
        for service in chosen:
            if not self._asked:
                self._start(service)
        # The next stage needs this one, if only for its database and store to exist; it copes where that takes long.
        until = time.monotonic() + 60
        while not self._asked and time.monotonic() < until and any(s.phase is Phase.starting for s in chosen):
            self._turn()

    def _start(self, service: Supervised) -> None:
        try:
            descriptor = service.start()
        except (OSError, subprocess.SubprocessError) as error:  # no process, descriptor or room on the disk just now
            service.started = time.monotonic()
            self._again(service, f"can't be started ({error})")
            return
        self._selector.register(descriptor, selectors.EVENT_READ, service)

    def _again(self, service: Supervised, how: str, said: str = "") -> None:
        pause = service.restarts.ended(service.started, time.monotonic())
        service.phase, service.start_at = Phase.waiting, time.monotonic() + pause
        self._say(service.spec.name, f"{how}; starting it again in {pause:.1f} s" + (f": {said}" if said else ""))

    def _turn(self) -> None:
        """Wait for the next event, at most until a pause is over, and deal with it."""
        now = time.monotonic()
        pauses = [s.start_at - now for s in self.services if s.phase is Phase.waiting]
        changed = False
        for key, _ in self._selector.select(max(0.0, min([1.0, *pauses]))):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    key.fileobj.recv(1024)  # type: ignore[union-attr]
            else:
                changed |= self._hear(key.data)
        for service in self.services:
            if service.process is not None and service.process.poll() is not None:
                self._ended(service, service.process.returncode)
                changed = True
            if service.phase is Phase.waiting and service.start_at <= time.monotonic() and not self._asked:
                self._start(service)
                changed = True
        if time.monotonic() - self._logs_at > LOG_SECONDS:
            self._logs_at = time.monotonic()
            for service in self.services:
                service.bound_log()
        if changed and not self._asked:
            self._publish()

    def _hear(self, service: Supervised) -> bool:
        lines = service.read()
        if lines is None:
            assert service.process is not None
            assert service.process.stdout is not None
            self._selector.unregister(service.process.stdout)
            return False
        for line in lines:
            if service.phase is Phase.starting:
                service.phase, service.said = Phase.running, line
                self._say(service.spec.name, line)
        return bool(lines)

    def _ended(self, service: Supervised, code: int) -> None:
        process = service.process
        assert process is not None
        assert process.stdout is not None
        with contextlib.suppress(KeyError):
            self._selector.unregister(process.stdout)
        process.stdout.close()
        service.signal(signal.SIGKILL)  # what it may have left in its group
        service.process = None
        if service.phase is Phase.stopping or self._asked:
            service.phase = Phase.stopped
            return
        how = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        said = service.tail().rpartition("\n")[2] if code > 0 else ""
        self._again(service, how, said)

    def _stop_all(self) -> None:
        self._asked = max(1, self._asked)
        if self._asked_by is not None:
            self._say("mainspring", f"{self._asked_by.name}: stopping; once more to stop at once")
        for service in self.services:
            if service.process is None:
                service.phase = Phase.stopped  # no pause is waited for any more
        for stage in reversed(Stage):
            chosen = [s for s in self.services if s.spec.stage is stage and s.process is not None]
            for service in chosen:
                service.phase = Phase.stopping
                service.signal(signal.SIGTERM)
            until = time.monotonic() + max((s.spec.grace for s in chosen), default=0.0)
            while any(s.process is not None for s in chosen):
                if time.monotonic() > until or self._asked > 1:
                    for service in chosen:
                        service.signal(signal.SIGKILL)
                self._turn()
            for service in chosen:
                service.phase = Phase.stopped
        for service in self.services:
            service.phase = Phase.stopped

    # --- outside

    def _publish(self) -> None:
        """Write who runs, for tools; readers see a whole file always."""
        rows = {
            s.spec.name: {
                "pid": s.pid, "phase": s.phase.value, "restarts": s.restarts.total, "log": str(s.log), "ready": s.said,
            }
            for s in self.services
        }  # fmt: skip
        temporary = self._state / "up.json.new"
        text = json.dumps({"pid": os.getpid(), **self._facts, "services": rows}, indent=1)
        try:
            make_private_directory(self._state)
            temporary.unlink(missing_ok=True)
            # For its owner alone: the dashboard's address, with the token that it made, is in it.
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(text)
            temporary.replace(self._state / "up.json")
        except OSError as error:  # tools are blind until there is room again; the cluster goes on
            self._say("mainspring", f"{self._state / 'up.json'} can't be written: {error.strerror or error}")

    @contextlib.contextmanager
    def _signals(self) -> Iterator[socket.socket]:
        """SIGINT, SIGTERM and SIGHUP ask for the end, a second time for a quick one; SIGCHLD wakes the loop."""

        def asked(number: int, _frame: object) -> None:
            # Nothing is said here: it may come in the midst of a start, or of what is being said.
            self._asked += 1
            self._asked_by = self._asked_by or signal.Signals(number)

        here, there = socket.socketpair()
        here.setblocking(False)
        there.setblocking(False)
        before: dict[int, Any] = {
            number: signal.signal(number, asked) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        old = signal.set_wakeup_fd(there.fileno(), warn_on_full_buffer=False)
        try:
            yield here
        finally:
            signal.set_wakeup_fd(old)
            for number, handler in before.items():
                signal.signal(number, handler)
            here.close()
            there.close()


def _inherited(spec: ServiceSpec) -> dict[str, str]:
    """The environment, where the token of the dashboard is for the dashboard alone."""
    return {name: value for name, value in os.environ.items() if name != DASHBOARD_TOKEN or spec.name == "dashboard"}
