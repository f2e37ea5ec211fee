"""Many client processes on one database, some killed, some stopped for a while, and the history that they leave."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from histories.checker import Anomaly, check
from histories.history import Outcome, Transaction, read_history
from histories.workload import Settings, final_look

DURABILITIES: Final = ("process", "fsync")
LONGEST: Final = 600.0  # seconds that a process may take


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. Everything random in it comes from the seed; what the machine's scheduler does is its own."""

    seed: int
    processes: int = 4
    threads: int = 3
    transactions: int = 100
    kills: int = 2
    stops: int = 2
    held: int = 0
    growth: float = 0.0
    defect: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What a run gave."""

    anomalies: list[Anomaly]
    transactions: int
    committed: int
    unknown: int

    def told(self) -> str:
        """One line, and the anomalies."""
        head = f"{self.transactions} transactions, {self.committed} committed, {self.unknown} of unknown outcome"
        return "\n".join([head, *(f"{one.kind}: {one.story}" for one in self.anomalies)])


def run(plan: Plan, url: str, folder: Path) -> Report:
    """Run it on the database at `url` (a directory, or fdb:FILE), with logs in `folder`; check the history."""
    history = gather(plan, url, folder)
    return Report(
        check(history),
        len(history),
        sum(one.outcome is Outcome.ok for one in history),
        sum(one.outcome is Outcome.unknown for one in history),
    )


def gather(plan: Plan, url: str, folder: Path) -> list[Transaction]:
    """The history of one run."""
    rng = random.Random(plan.seed)
    folder.mkdir(parents=True, exist_ok=True)
    base = Settings(
        url, "process", "", "", plan.seed, plan.threads, plan.transactions, plan.held, plan.growth, plan.defect
    )
    made = 0
    logs: list[Path] = []

    def settings() -> Settings:
        nonlocal made
        made += 1
        logs.append(folder / f"{made}.log")
        durability = DURABILITIES[made % len(DURABILITIES)]
        return replace(base, durability=durability, log=str(logs[-1]), name=f"c{made}")

    running = [_start(settings()) for _ in range(plan.processes)]
    try:
        for process in running:
            _begin(process)
        blows = ["kill"] * plan.kills + ["stop"] * plan.stops
        rng.shuffle(blows)
        for blow in blows:
            _await_lines(logs, rng.randint(20, 200))
            at = rng.randrange(len(running))
            if running[at].poll() is not None:
                continue
            if blow == "stop":
                running[at].send_signal(signal.SIGSTOP)
                _await_lines(logs, rng.randint(20, 200))
                running[at].send_signal(signal.SIGCONT)
            else:
                running[at].kill()
                _end(running[at])
                running[at] = _start(settings())
                _begin(running[at])
        for process in running:
            code = process.wait(LONGEST)
            if code:
                raise RuntimeError(f"a client ended with {code}: see its output above")
    finally:
        for process in running:
            process.kill()
            _end(process)
    final = settings()
    final_look(final)
    return list(read_history(log for log in logs if log.exists()))


def _start(settings: Settings) -> subprocess.Popen[str]:
    root = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    process = subprocess.Popen(
        [sys.executable, "-m", "histories.workload"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(asdict(settings)) + "\n")
    process.stdin.flush()
    return process


def _begin(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise RuntimeError(f"a client ended with {process.wait(LONGEST)} before it was ready")
    process.stdin.write("go\n")
    process.stdin.flush()


def _end(process: subprocess.Popen[str]) -> None:
    process.wait(LONGEST)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None and not pipe.closed:
            try:
                pipe.close()
            except BrokenPipeError:
                pass


def _await_lines(logs: list[Path], more: int) -> None:
    """Until the clients have written so many more lines, or for a second: they may all have ended."""
    wanted = _size(logs) + more * 100
    until = time.monotonic() + 1.0
    while _size(logs) < wanted and time.monotonic() < until:
        time.sleep(0.005)  # files that other processes write can't be awaited


def _size(logs: list[Path]) -> int:
    return sum(log.stat().st_size for log in logs if log.exists())
