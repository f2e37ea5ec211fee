"""Several `fdbserver` processes that keep every row twice: started, killed, stopped, filled, and asked who they are.

    python -m cluster.servers --kill-every 5

runs them, prints the URL, and kills one after another until it is ended: something for another laboratory to run on.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chaos.processes import Process, free_port

FOLDER_VARIABLE = "MAINSPRING_FDBSERVER"
"""The folder of `fdbserver` and `fdbcli`, and perhaps of `libfdb_c.so`."""
REPLIES = 120.0
COORDINATORS = 3


def binaries() -> Path | None:
    """The folder that holds `fdbserver` and `fdbcli`: the one that is named, one beside a `libfdb_c.so`, or one of PATH."""
    named = os.environ.get(FOLDER_VARIABLE)
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    places = [named] if named else [*libraries, *os.environ.get("PATH", "").split(os.pathsep), "/usr/sbin"]
    for place in filter(None, places):
        if all(os.access(Path(place) / name, os.X_OK) for name in ("fdbserver", "fdbcli")):
            return Path(place).resolve()
    return None


class Servers:
    """`count` servers, each a machine of its own to FoundationDB. Whatever listens does so at `address`."""

    def __init__(self, folder: Path, count: int = 4, *, address: str = "127.0.0.1", prefix: Sequence[str] = ()) -> None:
        found = binaries()
        assert found is not None, "there is no fdbserver"
        self.binaries = found
        self.folder = folder
        self.prefix = list(prefix)
        self.ports = [free_port() for _ in range(count)]
        self.addresses = [f"{address}:{port}" for port in self.ports]
        self.processes: list[Process | None] = [None] * count
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "fdb.cluster"
        coordinators = ",".join(self.addresses[:COORDINATORS])
        self.file.write_text(f"faults:{secrets.token_hex(8)}@{coordinators}\n")
        self.url = f"fdb:{self.file}"

    def environment(self) -> dict[str, str]:
        """What their clients need: the library that lies beside the servers."""
        if not (self.binaries / "libfdb_c.so").exists():
            return {}
        others = os.environ.get("LD_LIBRARY_PATH")
        return {"LD_LIBRARY_PATH": os.pathsep.join([str(self.binaries), *filter(None, [others])])}

    def start(self) -> None:
        """All of them, and a new database."""
        for number in range(len(self.ports)):
            self.run(number)
        self.ask("configure new double memory")
        self.await_health()

    def run(self, number: int, *knobs: str) -> None:
        """Start one, if it doesn't run."""
        process = self.processes[number]
        if process is not None and process.alive:
            return
        data = self.folder / f"data-{number}"
        command = [
            *self.prefix, str(self.binaries / "fdbserver"), "-p", self.addresses[number], "-C", str(self.file),
            "-d", str(data), "-L", str(self.folder), "--locality-machineid", f"m{number}", "--locality-zoneid", f"z{number}",
            *knobs,
        ]  # fmt: skip
        self.processes[number] = Process(command, self.folder / f"server-{number}.log", {**os.environ})

    def process(self, number: int) -> Process:
        found = self.processes[number]
        assert found is not None
        return found

    def kill(self, number: int) -> None:
        """SIGKILL."""
        self.process(number).kill()

    def stop(self, number: int) -> None:
        """SIGSTOP: as slow as a server can be."""
        self.process(number).signal(signal.SIGSTOP)

    def resume(self, number: int) -> None:
        self.process(number).signal(signal.SIGCONT)

    def ask(self, *commands: str, seconds: float = REPLIES) -> str:
        """What `fdbcli` answers."""
        done = subprocess.run(
            [
                *self.prefix,
                str(self.binaries / "fdbcli"),
                "-C",
                str(self.file),
                "--timeout",
                f"{seconds:.0f}",
                "--exec",
                ";".join(commands),
            ],
            capture_output=True,
            text=True,
            env={**os.environ, **self.environment()},
            timeout=seconds + REPLIES,
        )
        return done.stdout + done.stderr

    def status(self) -> dict[str, Any]:
        text = self.ask("status json")
        with contextlib.suppress(ValueError):
            found: dict[str, Any] = json.loads(text[text.index("{") : text.rindex("}") + 1])
            return found
        return {}

    def await_health(self) -> None:
        """Until the last recovery is over and every server takes part."""
        until = time.monotonic() + REPLIES
        while True:
            cluster = self.status().get("cluster", {})
            recovery = cluster.get("recovery_state", {}).get("name")
            if recovery == "fully_recovered" and len(cluster.get("processes", {})) == len(self.ports):
                return
            assert time.monotonic() < until, f"the servers don't become healthy ({recovery}): {cluster.get('messages')}"
            time.sleep(0.5)  # there is nothing else to await

    def who(self, role: str) -> int | None:
        """The server that has a role now (`master`, `cluster_controller`, …); None where that isn't known."""
        for process in self.status().get("cluster", {}).get("processes", {}).values():
            if any(each.get("role") == role for each in process.get("roles", [])):
                return self.addresses.index(process["address"])
        return None

    def close(self) -> None:
        for process in filter(None, self.processes):
            process.signal(signal.SIGCONT)
            process.kill()


def main() -> int:
    parser = argparse.ArgumentParser(prog="cluster.servers", description=__doc__)
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--kill-every", type=float, default=0.0, help="seconds between two kills; 0: none")
    given = parser.parse_args()
    if binaries() is None:
        print(f"no fdbserver and fdbcli are found: name their folder in {FOLDER_VARIABLE}", file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="mainspring-servers-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    servers = Servers(folder, given.servers)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        servers.start()
        print(servers.url, flush=True)
        number = 0
        while True:
            time.sleep(given.kill_every or 3600.0)
            if given.kill_every:
                servers.kill(number % given.servers)
                servers.run(number % given.servers)
                number += 1
    except KeyboardInterrupt:
        return 0
    finally:
        servers.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
