"""A small Mainspring cluster under load on servers that meet faults: two workers, a tender, a scheduler, a janitor, and who uses them."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from chaos.processes import Process

from cluster.servers import Servers

TESTS = Path(__file__).resolve().parent.parent
DEADLINE = 60.0
"""Seconds after the cluster's return by which everybody must have gone on; a defect alone reaches it."""
SERVICES = ("scheduler", "tender", "janitor", "worker-1", "worker-2")
USERS = ("client", "leases-1", "leases-2", "writing", "probe")
KINDS = ("task", "program", "beside", "once", "actor", "lease", "write", "run")
"""What must go on, but for the probe, which says when FoundationDB does. `run`: the scheduler's, of what was written."""
TOLD = {
    "DatabaseUnreachableError": "the database gave no answer for",
    "LeaseLost": "lease",
    "TransactionTimedOut": "",
}
"""What a user may be told while the cluster is away, and what it has to say."""


class World:
    """Processes on `servers`, in a Mainspring cluster of their own. `hosts`: process → what starts it in its namespace."""

    def __init__(
        self,
        servers: Servers,
        name: str,
        folder: Path,
        *,
        hosts: dict[str, Sequence[str]] | None = None,
        address: str = "",
    ) -> None:
        self.servers = servers
        self.name = name
        self.folder = folder
        self.hosts = hosts or {}
        self.address = address
        self.heap = f"file:{folder / 'heap'}"
        self.processes: dict[str, Process] = {}
        self.stop_file = folder / "stop"
        self._places: dict[Path, int] = {}
        self._lines: list[dict[str, Any]] = []
        folder.mkdir(parents=True, exist_ok=True)

    def _start(self, name: str, *command: str) -> None:
        environment = {
            **os.environ, **self.servers.environment(), "MAINSPRING_DB": self.servers.url, "MAINSPRING_CLUSTER": self.name,
            "MAINSPRING_HEAP": self.heap, "MAINSPRING_TRACE": str(self.folder / "trace"),
            "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }  # fmt: skip
        log = self.folder / f"{name}.log"
        command = (*self.hosts.get(name, ()), *command)
        self.processes[name] = Process([*command], log, environment)

    def _user(self, kind: str) -> None:
        self._start(
            kind,
            sys.executable,
            "-c",
            "from cluster import load; load.main()",
            kind,
            self.servers.url,
            self.name,
            str(self.folder),
        )

    def start(self) -> None:
        """All of it; returns once every kind of work is done now and then."""
        for number in (1, 2):
            place = ("--address", self.address, "--port", str(4100 + number)) if self.address else ()
            self._start(
                f"worker-{number}", sys.executable, "-m", "futures_worker", "run", "--slots", "4", "--grace", "5",
                "--spill", str(self.folder / f"spill-{number}"), *place,
            )  # fmt: skip
        self._start("tender", sys.executable, "-m", "s3heap_tender", "tend")
        # What runs says when: the file is what the scheduler's progress is measured by.
        said = f'read up rest < /proc/uptime; echo "{{\\"t\\": $up, \\"kind\\": \\"run\\", \\"event\\": \\"done\\"}}" >> {self.folder}/runs.jsonl'
        self._start(
            "scheduler", sys.executable, "-m", "s3heap_tender", "schedule", "--grace", "5", "--", "sh", "-c", said
        )
        self._start("janitor", sys.executable, "-m", "mainspring_janitor", "--every", "1")
        for kind in USERS:
            self._user(kind)
        self.await_progress(time.monotonic())

    # --- what they say

    def lines(self) -> list[dict[str, Any]]:
        """All that was written to the journals until now."""
        for file in self.folder.glob("*.jsonl"):
            place = self._places.get(file, 0)
            with file.open("rb") as journal:
                journal.seek(place)
                data = journal.read()
            data = data[: data.rfind(b"\n") + 1]
            self._places[file] = place + len(data)
            self._lines += [json.loads(line) for line in data.splitlines()]
        return self._lines

    def first_after(self, moment: float, kind: str) -> float | None:
        """When the first thing of a kind was done after a moment."""
        return min(
            (
                line["t"]
                for line in self.lines()
                if line["kind"] == kind and line["event"] == "done" and line["t"] > moment
            ),
            default=None,
        )

    def await_progress(self, since: float, kinds: Sequence[str] = KINDS) -> dict[str, float]:
        """Until each kind was done again since FoundationDB itself took a commit after that moment: seconds from that on."""
        back = self._await(lambda: self.first_after(since, "probe"), 2 * DEADLINE, "FoundationDB takes no commit")
        until = time.monotonic() + DEADLINE
        return {
            kind: round(
                self._await(
                    lambda kind=kind: self.first_after(back, kind), until - time.monotonic(), f"{kind} doesn't go on"
                )
                - back,
                2,
            )
            for kind in kinds
        }

    def _await(self, found: Any, seconds: float, what: str) -> Any:
        until = time.monotonic() + seconds
        while (value := found()) is None:
            self.check_alive()
            assert time.monotonic() < until, f"{what}, {seconds:.0f} s after it could; {self.told()}"
            time.sleep(0.05)  # what other processes write can't be awaited
        return value

    def pause(self, seconds: float) -> None:
        """What is wrong lasts so long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.check_alive()
            time.sleep(0.05)

    def check_alive(self) -> None:
        for name, process in self.processes.items():
            assert process.alive or self.stop_file.exists(), f"{name} ended: {process.tail()}"

    def told(self) -> str:
        """What users were told."""
        return str(
            Counter(f"{line['kind']}: {line['type']}: {line['text']}" for line in self.lines() if "type" in line)
        )

    def wrong(self, lost: bool) -> list[str]:
        """What must not have been written."""
        events = ("wrong",) if lost else ("wrong", "lost")
        found = [f"{line['kind']}: {line['text']}" for line in self.lines() if line["event"] in events]
        for line in self.lines():
            if line["event"] == "error" and TOLD.get(line["type"], "\0") not in line["text"]:
                found.append(f"{line['kind']} was told {line['type']}: {line['text']}")
        return found

    # --- the end

    def finish(self, *, lost: bool = False) -> list[str]:
        """Everybody ends; what doesn't hold then. `lost`: workers were taken for dead, with what may run once only."""
        self.stop_file.touch()
        wrong = []
        for name in USERS:
            try:
                code = self.processes[name].popen.wait(2 * DEADLINE)
            except Exception:
                code = -1
            if code != 0:
                wrong.append(f"{name} ended with {code}: {self.processes[name].tail()}")
        self._user("check")
        if self.processes["check"].popen.wait(4 * DEADLINE) != 0:
            wrong.append(self.processes["check"].tail())
        for name, code in self.end_services().items():
            if code != 0:
                wrong.append(f"{name} ended with {code}: {self.processes[name].tail()}")
        for checked in (("check", str(self.folder / "trace")), ("fsck",)):
            self._start(f"{checked[0]}-heap", sys.executable, "-m", "s3heap_tender", *checked)
            process = self.processes[f"{checked[0]}-heap"]
            if process.popen.wait(2 * DEADLINE) != 0:
                wrong.append(f"s3heap-tender {checked[0]}: {process.tail()}")
        return wrong + self.wrong(lost)

    def end_services(self) -> dict[str, int]:
        """SIGTERM to each; their exit codes."""
        for name in SERVICES:
            self.processes[name].signal(signal.SIGTERM)
        return {name: self.processes[name].popen.wait(2 * DEADLINE) for name in SERVICES}

    def close(self) -> None:
        for process in self.processes.values():
            process.signal(signal.SIGCONT)
            process.kill()

    def logs(self) -> Iterator[str]:
        """What services and users wrote."""
        for name, process in self.processes.items():
            yield from (f"{name}: {line}" for line in process.log.read_text(errors="replace").splitlines())
