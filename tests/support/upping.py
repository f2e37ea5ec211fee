"""A `mainspring up` as a real process, for tests: started in a folder of its own, looked at by its `up.json`, ended for sure."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

DEADLINE = 90.0


def wait_until(condition: Callable[[], Any], what: str, seconds: float = DEADLINE) -> Any:
    """The first true value of `condition()`; fails naming `what` where none comes in time."""
    until = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < until, f"not in {seconds:.0f} s: {what}"
        time.sleep(0.05)  # another process's files and rows can't be awaited


def mainspring(
    folder: Path, *arguments: str, env: dict[str, str] | None = None, timeout: float = DEADLINE
) -> subprocess.CompletedProcess[str]:
    """`mainspring ARGUMENTS` in a folder."""
    return subprocess.run(
        [sys.executable, "-m", "mainspring", *arguments],
        cwd=folder,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )


class Up:
    """One `mainspring up`, without the dashboard unless `arguments` ask for it. Its database, heap and state lie in `folder`."""

    def __init__(self, folder: Path, *arguments: str, env: dict[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.url = f"embedded:{folder.resolve() / '.mainspring'}"
        self.store = f"file:{folder.resolve() / 'heap'}"
        self.output = folder / "up.log"
        self.environment = {**os.environ, "PYTHONUNBUFFERED": "1", "MAINSPRING_DB": self.url, **(env or {})}
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mainspring", "up", "--no-dashboard", *arguments],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def wait_ready(self) -> None:
        """Until every service runs."""

        def ready() -> bool:
            assert self.process.poll() is None, f"`mainspring up` ended: {self.text()}"
            return "\nready\n" in "\n" + self.text()

        wait_until(ready, f"ready; it said: {self.text()}")

    def state(self) -> dict[str, Any]:
        """What `up.json` says; {} where there is none."""
        try:
            found: dict[str, Any] = json.loads((self.folder / ".mainspring-up" / "up.json").read_text())
        except FileNotFoundError:
            return {}
        return found

    def pid(self, service: str) -> int:
        return int(self.state()["services"][service]["pid"])

    def kill(self, service: str) -> None:
        """SIGKILL a service; returns once it runs again."""
        before = self.pid(service)
        os.kill(before, signal.SIGKILL)

        def back() -> bool:
            row = self.state()["services"][service]
            return row["phase"] == "running" and row["pid"] not in (None, before)

        wait_until(back, f"{service} back; it said: {self.text()}")

    def command(self, *arguments: str, timeout: float = DEADLINE) -> subprocess.CompletedProcess[str]:
        """`mainspring ARGUMENTS` in the folder."""
        return mainspring(self.folder, *arguments, env=self.environment, timeout=timeout)

    def processes(self) -> list[int]:
        """Every process that has this folder's database in its environment, or works in the folder; none of this test's own."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    environment = (entry / "environ").read_bytes()
                    zombie = (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
                except (OSError, ValueError):
                    continue
                if self.url.encode() in environment and not zombie:
                    found.append(int(entry.name))
        return found

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it in good order; its exit code."""
        self.process.send_signal(number)
        return self.process.wait(DEADLINE)

    def close(self) -> None:
        """End it and everything of it, whatever happened."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
