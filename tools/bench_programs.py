"""Durable programs beside DBOS on SQLite, in one run on this machine: `nox -s bench -- programs`.

Rows, each the median of `--rounds` rounds after a warm-up:

- steps: one program that runs `--steps` steps, each recorded before the next begins; steps per second
- programs: `--programs` programs of one step each, asked for together; programs per second
- resume: from the SIGKILL of the worker that runs a program until another worker runs its next step; ms (ours alone)
- sleepers: `--sleepers` programs that sleep: how many a second go to sleep and, all due at once, come back and end, and what
  one that sleeps takes of the workers' private memory, in bytes (ours alone)

Both keep what is recorded through the death of any process (ours with the engine's process durability, DBOS as it sets up
SQLite). Ours runs programs in two workers' processes, DBOS in threads of the process that asks. Its Python is given by
`--dbos-python` (nox makes it); without, it is left out. The target is the larger of 1,000 steps and 300 programs a second, and
20 times DBOS; what limits it is in the documentation's page on performance.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from futures_worker import Client, sleep, step

TARGETS = {"steps": 1_000.0, "programs": 300.0}
TIMES_DBOS = 20.0
ROWS = {
    "steps": "steps of one program per second",
    "programs": "programs of one step per second",
    "resume": "resume after a SIGKILL of the worker (ms)",
    "asleep": "programs that go to sleep per second",
    "awake": "programs that come back, all due at once, per second",
    "memory": "private memory of workers per sleeping program (bytes)",
}

DBOS = """
import json, logging, os, statistics, sys, tempfile, time
from dbos import DBOS
folder, steps, programs, rounds = sys.argv[1], *map(int, sys.argv[2:5])
DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{folder}/dbos.sqlite"})

@DBOS.step()
def one(number): return number

@DBOS.workflow()
def walk(count):
    for number in range(count):
        one(number)

@DBOS.workflow()
def small(number): return one(number)

logging.disable(logging.CRITICAL)
DBOS.launch()
walk(20)
found = {"steps": [], "programs": []}
for _ in range(rounds):
    began = time.perf_counter()
    walk(steps)
    found["steps"].append(steps / (time.perf_counter() - began))
    began = time.perf_counter()
    for handle in [DBOS.start_workflow(small, number) for number in range(programs)]:
        handle.get_result()
    found["programs"].append(programs / (time.perf_counter() - began))
print(json.dumps({row: statistics.median(values) for row, values in found.items()}), flush=True)
os._exit(0)
"""


def one(number: int) -> int:
    """The step of every row."""
    return number


def walk(count: int) -> int:
    """A program of many steps."""
    for number in range(count):
        step(one, number)
    return count


def small(number: int) -> int:
    """A program of one step."""
    return step(one, number)


def sleeper(seconds: float) -> None:
    """A program that sleeps."""
    sleep(seconds)


def stamped(path: str, count: int) -> None:
    """A program whose steps note when and where they ran."""
    for _ in range(count):
        step(stamp, path)


def stamp(path: str) -> None:
    """One such step; it takes a moment, so that the kill comes between two."""
    with open(path, "a") as file:
        file.write(f"{os.getppid()} {time.monotonic()}\n")
    time.sleep(0.02)


@contextlib.contextmanager
def workers(url: str, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """`count` workers of one slot."""
    command = [sys.executable, "-m", "futures_worker", "run", "--db", url, "--slots", "1"]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) for _ in range(count)]
    try:
        for worker in started:
            assert worker.stdout is not None
            worker.stdout.readline()
        yield started
    finally:
        for worker in started:
            worker.kill()
            worker.wait()


def timed(call: Callable[[], Any]) -> float:
    """Seconds."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def ours(arguments: argparse.Namespace) -> dict[str, float]:
    """Every row of ours."""
    found: dict[str, list[float]] = {row: [] for row in ROWS}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        url = f"embedded:{folder}/db"
        with workers(url, 2) as running, Client(url) as client:
            client.submit(walk, 50, durable=True).result(timeout=60)
            for _ in range(arguments.rounds):
                program = client.submit(walk, arguments.steps, durable=True)
                found["steps"].append(arguments.steps / timed(program.result))
                found["programs"].append(
                    arguments.programs
                    / timed(
                        lambda: client.gather(
                            client.map(small, range(arguments.programs), durable=True), progress=False
                        )
                    )
                )
            sleepers(client, running, arguments.sleepers, found)
        for number in range(arguments.rounds):
            found["resume"].append(resume(url, Path(folder, f"stamps-{number}")))
    return {row: statistics.median(values) for row, values in found.items()}


def sleepers(client: Client, running: list[subprocess.Popen[bytes]], count: int, found: dict[str, list[float]]) -> None:
    """The rows of programs that sleep."""
    before = sum(private_bytes(worker.pid) for worker in running)
    seconds = max(5.0, count / 300)
    began = time.perf_counter()
    futures = client.map(sleeper, [seconds] * count, durable=True)
    client.flush()
    while len(client.futures(state="waiting", function=sleeper, limit=None)) < count:
        time.sleep(0.05)  # that a program has gone to sleep is no event
        if time.perf_counter() - began > seconds:
            break
    asleep = time.perf_counter() - began
    found["asleep"].append(count / asleep)
    grown = sum(private_bytes(worker.pid) for worker in running) - before
    found["memory"].append(max(0.0, grown / count))
    time.sleep(max(0.0, seconds - asleep))
    found["awake"].append(count / timed(lambda: client.gather(futures, progress=False)))


def resume(url: str, path: Path) -> float:
    """Milliseconds from a worker's death to the next step of its program elsewhere."""
    with workers(url, 2) as running, Client(url) as client:
        program = client.submit(stamped, str(path), 60, durable=True, max_worker_losses=10)
        while not path.exists() or path.read_text().count("\n") < 10:
            time.sleep(0.005)
        pid = int(path.read_text().split()[0])
        worker = next(one for one in running if one.pid == parent_of(pid))
        worker.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        program.result(timeout=60)
        times = [float(line.split()[1]) for line in path.read_text().splitlines()]
        return 1e3 * (min(when for when in times if when > killed + 0.001) - killed)


def parent_of(pid: int) -> int:
    """The process that started the one which forks a worker's children, or that one itself."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def private_bytes(pid: int) -> int:
    """Memory of a process that it shares with nobody."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Private_Dirty"):
            return 1024 * int(line.split()[1])
    return 0


def dbos(arguments: argparse.Namespace) -> dict[str, float]:
    """The rows that DBOS has."""
    if not arguments.dbos_python:
        return {}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        numbers = map(str, (arguments.peer_steps, arguments.peer_programs, arguments.rounds))
        command = [arguments.dbos_python, "-c", DBOS, folder, *numbers]
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip().splitlines()[-1]
    result: dict[str, float] = json.loads(found)
    return result


def report(mine: dict[str, float], theirs: dict[str, float]) -> None:
    """The table."""
    print(f"{'':58} {'ours':>10} {'DBOS':>10} {'ratio':>7}  target")
    for row, text in ROWS.items():
        peer = theirs.get(row)
        ratio = f"{mine[row] / peer:7.2f}" if peer else f"{'':7}"
        target = (
            f"{max(TARGETS[row], TIMES_DBOS * (peer or 0)):,.0f}"
            if row in TARGETS
            else "1,000"
            if row == "resume"
            else ""
        )
        print(f"{text:58} {mine[row]:>10,.0f} {f'{peer:,.0f}' if peer else '':>10} {ratio}  {target}")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3_000)
    parser.add_argument("--programs", type=int, default=1_000)
    parser.add_argument("--sleepers", type=int, default=3_000)
    parser.add_argument("--peer-steps", type=int, default=1_000)
    parser.add_argument("--peer-programs", type=int, default=300)
    parser.add_argument("--folder", default="/dev/shm", help="where databases are made")
    parser.add_argument("--dbos-python", default=os.environ.get("MAINSPRING_DBOS_PYTHON", ""))
    arguments = parser.parse_args()
    report(ours(arguments), dbos(arguments))


if __name__ == "__main__":
    main()
