"""Durable programs beside DBOS (on SQLite and PostgreSQL) and Celery (on Redis), in one run on this machine: `nox -s bench -- programs`.

Rows, each the median of `--rounds` rounds after a warm-up:

- steps: one program that runs `--steps` steps, each recorded before the next begins; steps per second
- programs: `--programs` programs of one step each, asked for together; programs per second
- resume: from the SIGKILL of the worker that runs a program until another worker runs its next step; ms (ours alone)
- sleepers: `--sleepers` programs that sleep: how many a second go to sleep and, all due at once, come back and end, and what
  one that sleeps takes of the workers' private memory and of the database's files, in bytes (ours alone)

All keep what is recorded through the death of any process: ours with the engine's process durability, DBOS as it sets up
SQLite and PostgreSQL (which wait for the disk unless told otherwise), Redis with `--appendonly yes`. Ours and Celery run in two
processes, DBOS in threads of the process that asks. Celery has no programs: its steps are a chain of tasks, of which each starts
the next, its programs are tasks.

A peer that isn't given is left out: `--dbos-python` and `--celery-python` (nox makes them), `--postgres-url` of a database that
DBOS may fill, and `redis-server` on the PATH. The target is the larger of 1,000 steps and 300 programs a second, and 20 times
DBOS on SQLite; what limits it is in the documentation's page on performance.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from futures_worker import Client, now, sleep, step

TARGETS = {"steps": 1_000.0, "programs": 300.0}
TIMES_DBOS = 20.0
ROWS = {
    "steps": "steps of one program per second",
    "programs": "programs of one step per second",
    "resume": "resume after a SIGKILL of the worker (ms)",
    "asleep": "programs that go to sleep per second",
    "awake": "programs that come back, all due at once, per second",
    "memory": "private memory of workers per sleeping program (bytes)",
    "stored": "files of the database per sleeping program (bytes)",
}

DBOS = """
import json, logging, os, statistics, sys, tempfile, time
from dbos import DBOS
url, steps, programs, rounds = sys.argv[1], *map(int, sys.argv[2:5])
DBOS(config={"name": "bench", "system_database_url": url})

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

CELERY = """
import json, os, statistics, sys, time
from celery import Celery, chain, group
app = Celery("bench", broker=os.environ["REDIS"], backend=os.environ["REDIS"])
app.conf.task_acks_late = True

@app.task(name="one")
def one(number): return number

def main():
    steps, programs, rounds = map(int, sys.argv[1:4])
    chain(*[one.s(0) if not n else one.s() for n in range(20)])().get(timeout=60)
    found = {"steps": [], "programs": []}
    for _ in range(rounds):
        began = time.perf_counter()
        chain(*[one.s(0) if not n else one.s() for n in range(steps)])().get(timeout=600)
        found["steps"].append(steps / (time.perf_counter() - began))
        began = time.perf_counter()
        group(one.s(n) for n in range(programs))().get(timeout=600)
        found["programs"].append(programs / (time.perf_counter() - began))
    print(json.dumps({row: statistics.median(values) for row, values in found.items()}), flush=True)

if __name__ == "__main__":
    main()
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


def sleeper(due: float) -> None:
    """A program that sleeps until then."""
    sleep(max(0.0, due - now()))


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
            if arguments.sleepers:
                for row, value in sleepers(client, running, folder, arguments).items():
                    found[row].append(value)
        for number in range(arguments.rounds):
            found["resume"].append(resume(url, Path(folder, f"stamps-{number}")))
    return {row: statistics.median(values) for row, values in found.items() if values}


def sleepers(
    client: Client, running: list[subprocess.Popen[bytes]], folder: str, arguments: argparse.Namespace
) -> dict[str, float]:
    """The rows of programs that sleep."""
    count = arguments.sleepers
    memory, stored = sum(private_bytes(worker.pid) for worker in running), bytes_of(folder)
    began = time.time()
    due = began + 5 + count / arguments.asleep_rate
    futures = client.map(sleeper, [due] * count, durable=True)
    client.flush()
    while any(status != "waiting" for status in statuses(client, min(count, 200))):
        time.sleep(0.05 + count / 1e6)  # that a program has gone to sleep is no event
        if time.time() > due:
            raise SystemExit(
                f"{count:,} programs take longer to go to sleep than they sleep: give --asleep-rate a smaller one"
            )
    asleep = time.time() - began
    if any(status != "waiting" for status in statuses(client, None)):
        raise SystemExit("the programs asked for last are asleep and others are not")
    grown = sum(private_bytes(worker.pid) for worker in running) - memory
    row = {
        "asleep": count / asleep,
        "memory": max(0.0, grown / count),
        "stored": (bytes_of(folder) - stored) / count,
    }
    time.sleep(max(0.0, due - time.time()))
    return row | {"awake": count / timed(lambda: client.gather(futures, progress=False))}


def statuses(client: Client, limit: int | None) -> list[str]:
    """Of the newest sleepers."""
    return [one.state for one in client.futures(function=sleeper, limit=limit)]


def bytes_of(folder: str) -> int:
    """What its files take."""
    return sum(512 * found.stat().st_blocks for found in Path(folder).rglob("*") if found.is_file())


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


def dbos(arguments: argparse.Namespace, url: str) -> dict[str, float]:
    """The rows that DBOS has, on the database of that URL."""
    if not arguments.dbos_python:
        return {}
    name = "DBOS PostgreSQL" if url.startswith("postgresql") else "DBOS SQLite"
    return _peer(name, arguments, [arguments.dbos_python, "-c", DBOS, url], os.environ)


def celery(arguments: argparse.Namespace) -> dict[str, float]:
    """The rows that Celery has, on a Redis of its own whose log outlives its process."""
    redis = shutil.which("redis-server")
    if not arguments.celery_python or redis is None:
        return {}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder, contextlib.ExitStack() as running:
        Path(folder, "bench_celery.py").write_text(CELERY)
        socket = Path(folder, "redis.sock")
        environment = {**os.environ, "PYTHONPATH": folder, "REDIS": f"redis+socket://{socket}"}
        server = [redis, "--port", "0", "--unixsocket", str(socket), "--dir", folder, "--appendonly", "yes"]
        app = [arguments.celery_python, "-m", "celery", "-A", "bench_celery", "worker", "--concurrency", "2"]
        for command in (server, app):
            started = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            running.callback(started.wait)
            running.callback(started.terminate)
            while not socket.exists():
                time.sleep(0.05)
        return _peer("Celery Redis", arguments, [arguments.celery_python, "bench_celery.py"], environment, folder)


def _peer(
    name: str,
    arguments: argparse.Namespace,
    command: list[str],
    environment: Mapping[str, str],
    folder: str | None = None,
) -> dict[str, float]:
    """The rows that a peer's program prints as its last line; none where it fails, and why is told."""
    numbers = map(str, (arguments.peer_steps, arguments.peer_programs, arguments.rounds))
    try:
        done = subprocess.run(
            [*command, *numbers], check=True, capture_output=True, text=True, env=environment, cwd=folder
        )
    except subprocess.CalledProcessError as failed:
        last = (failed.stderr.strip().splitlines() or [""])[-1]
        print(f"{name}: left out, it failed with exit code {failed.returncode}: {last}", file=sys.stderr)
        return {}
    result: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def targets(peers: dict[str, dict[str, float]]) -> dict[str, float]:
    """Row → its target, that of `resume` a most."""
    dbos = peers.get("DBOS SQLite", {})
    return {row: max(least, TIMES_DBOS * dbos.get(row, 0.0)) for row, least in TARGETS.items()} | {"resume": 1_000.0}


def report(mine: dict[str, float], peers: dict[str, dict[str, float]]) -> None:
    """The table."""
    print(f"{'':58} {'ours':>10}" + "".join(f" {name:>16} {'ratio':>7}" for name in peers) + "  target")
    for row, text in ROWS.items():
        if row not in mine:
            continue
        beside = ""
        for theirs in peers.values():
            peer = theirs.get(row)
            beside += f" {peer:>16,.0f} {mine[row] / peer:7.2f}" if peer else f" {'':24}"
        target = targets(peers).get(row)
        print(f"{text:58} {mine[row]:>10,.0f}{beside}  {f'{target:,.0f}' if target else ''}")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3_000)
    parser.add_argument("--programs", type=int, default=1_000)
    parser.add_argument("--sleepers", type=int, default=3_000, help="0: none")
    parser.add_argument(
        "--asleep-rate", type=float, default=300.0, help="how many a second are given time to go to sleep"
    )
    parser.add_argument("--peer-steps", type=int, default=1_000)
    parser.add_argument("--peer-programs", type=int, default=300)
    parser.add_argument("--folder", default="/dev/shm", help="where databases are made")
    parser.add_argument("--dbos-python", default=os.environ.get("MAINSPRING_DBOS_PYTHON", ""))
    parser.add_argument("--postgres-url", default="", help="postgresql://…: a database that DBOS may fill")
    parser.add_argument("--celery-python", default=os.environ.get("MAINSPRING_CELERY_PYTHON", ""))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    mine = ours(arguments)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        peers = {"DBOS SQLite": dbos(arguments, f"sqlite:///{folder}/dbos.sqlite")}
    if arguments.postgres_url:
        peers["DBOS PostgreSQL"] = dbos(arguments, arguments.postgres_url)
    peers["Celery Redis"] = celery(arguments)
    peers = {name: rows for name, rows in peers.items() if rows}
    if arguments.json:
        print(json.dumps({"rows": ROWS, "results": {"ours": mine, **peers}, "targets": targets(peers)}))
        return
    report(mine, peers)


if __name__ == "__main__":
    main()
