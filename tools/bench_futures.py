"""Futures beside Ray and Dask, in one run on this machine: `nox -s bench -- futures`.

Rows, each the median of `--rounds` rounds after a warm-up; every system gets the same number of worker processes, one
task at a time each, and its tasks run in processes of their own:

- throughput: a client submits `--tasks` no-op tasks one by one and gathers the results; tasks per second
- round trip: submit one no-op task and wait for its result, `--round-trips` times; median and 99th percentile, ms
- chain: `--chain` no-op tasks, each taking the one before as its argument; tasks per second
- calls of an actor: `--tasks` calls of a method that returns its argument, all made before the first result is asked for,
  and `--round-trips` calls one after another; calls per second

Rows of ours alone, judged against our own figures of the same run:

- put: a 100 MB array into the object store, as a fraction of the speed of memcpy; get: reading it back, ms
- backlog: a claim beside `--backlog` futures of different ram that don't fit, times that beside an empty pool
- queued: `--queued` futures submitted before the first is waited for, as a fraction of the throughput row; by how many
  MB the workers' private memory grew meanwhile (pages of the database's file, which the kernel lends, aren't counted);
  and what one future costs the client that holds it, in bytes of private memory

The targets are for `--backlog 1000000 --queued 1000000`; the defaults are smaller.

Results of ours are durable when the client sees them (process durability); the peers keep theirs in memory. Ray and Dask
run under the Pythons given by `--ray-python` and `--dask-python` (nox makes them); without, they are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

GATES = {  # (row, peer) -> how the ratio ours / peer is judged; from the page of targets
    ("throughput", "ray"): (">=", 10.0),
    ("round_trip", "ray"): ("<=", 0.25),
    ("round_trip_p99", "ray"): ("<=", 0.5),
    ("chain", "dask"): (">=", 25.0),
    ("calls", "ray"): (">=", 3.0),
    ("lone_calls", "ray"): (">=", 3.0),
}
ROWS = {
    "throughput": "no-op tasks per second, one by one",
    "round_trip": "round trip, median (ms)",
    "round_trip_p99": "round trip, 99th percentile (ms)",
    "chain": "chain of dependents, per second",
    "calls": "calls of an actor per second, pipelined",
    "lone_calls": "calls of an actor per second, one by one",
}


OWN_GATES = {"put": (">=", 0.7), "backlog": ("<=", 2.0), "queued": (">=", 0.7)}
OWN_ROWS = {
    "put": "put of a 100 MB array, of memcpy's speed",
    "get": "get of it on one host (ms)",
    "backlog": "claim beside a backlog that doesn't fit, times an empty pool's",
    "queued": "rate of many queued futures, of the throughput",
    "queued_growth": "memory that workers took for them (MB)",
    "queued_client": "memory of the client for each future that it holds (bytes)",
}


def noop(value: Any = None) -> Any:
    """The task of every row."""
    return value


class Echo:
    """The actor of the rows about calls."""

    def noop(self, value: Any) -> Any:
        """The method that is called."""
        return value


def measure(
    submit: Callable[..., Any],
    result: Callable[[Any], Any],
    gather: Callable[[list[Any]], Any],
    call: Callable[[int], Any],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """All rows for one system, through its verbs; `call` calls an actor's method."""
    gather([submit(noop, n) for n in range(200)])
    for n in range(50):
        result(submit(noop, n))
    rates, chains, trips = [], [], []
    for _ in range(options.rounds):
        started = time.perf_counter()
        answers = gather([submit(noop, n) for n in range(options.tasks)])
        rates.append(options.tasks / (time.perf_counter() - started))
        assert list(answers) == list(range(options.tasks)), "wrong results"
    for _ in range(options.rounds):
        for n in range(options.round_trips // options.rounds):
            started = time.perf_counter()
            assert result(submit(noop, n)) == n
            trips.append((time.perf_counter() - started) * 1e3)
    for _ in range(options.rounds):
        started = time.perf_counter()
        last = submit(noop, 7)
        for _ in range(options.chain - 1):
            last = submit(noop, last)
        assert result(last) == 7
        chains.append(options.chain / (time.perf_counter() - started))
    for n in range(200):
        assert result(call(n)) == n
    calls, lone_calls = [], []
    for _ in range(options.rounds):
        started = time.perf_counter()
        pending = [call(n) for n in range(options.tasks)]
        assert [result(one) for one in pending] == list(range(options.tasks)), "wrong results"
        calls.append(options.tasks / (time.perf_counter() - started))
        started = time.perf_counter()
        for n in range(options.round_trips):
            result(call(n))
        lone_calls.append(options.round_trips / (time.perf_counter() - started))
    trips.sort()
    return {
        "throughput": statistics.median(rates),
        "round_trip": trips[len(trips) // 2],
        "round_trip_p99": trips[int(len(trips) * 0.99)],
        "chain": statistics.median(chains),
        "calls": statistics.median(calls),
        "lone_calls": statistics.median(lone_calls),
    }


def private(pid: int) -> int:
    """Bytes of memory that are a process's own: not pages of files, the database's among them."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/{pid}/smaps_rollup has no line Anonymous")


def measure_own(
    client: Any, url: str, pids: list[int], throughput: float, options: argparse.Namespace
) -> dict[str, Any]:
    """The rows that have no peer."""
    import numpy as np
    from bench_datamodel import backlog

    from fdb_schema import ClusterSpace, open_database

    # First: later the client and the workers have futures to let go of.
    empty, full = backlog(open_database(url), ClusterSpace(f"bench-backlog-{os.getpid()}"), options.backlog, 500)
    array = np.ones(100_000_000, dtype=np.uint8)
    target = np.ones_like(array)
    puts, copies, gets = [], [], []
    for _ in range(2 * options.rounds):
        started = time.perf_counter()
        np.copyto(target, array)
        copies.append(time.perf_counter() - started)
        started = time.perf_counter()
        future = client.put(array)
        puts.append(time.perf_counter() - started)
        started = time.perf_counter()
        got = client.get_future(future.id).result(60)
        gets.append(time.perf_counter() - started)
        assert got[-1] == 1
        del got
        client.delete(future)
    before, own = sum(map(private, pids)), private(os.getpid())
    started = time.perf_counter()
    futures = [client.submit(noop, n) for n in range(options.queued)]
    most, step = 0, 10_000
    for start in range(0, options.queued, step):
        client.gather(futures[start : start + step], progress=False)
        if start % (10 * step) == 0:
            most = max(most, sum(map(private, pids)))
    rate = options.queued / (time.perf_counter() - started)
    most, held = max(most, sum(map(private, pids))), private(os.getpid()) - own
    del futures
    return {
        "put": statistics.median(copies) / statistics.median(puts),
        "get": statistics.median(gets) * 1e3,
        "backlog": full / empty,
        "queued": rate / throughput,
        "queued_growth": (most - before) / 1e6,
        "queued_client": held / options.queued,
    }


def run_ours(options: argparse.Namespace) -> dict[str, Any]:
    """Workers as processes of their own, each with one slot, on a fresh embedded database."""
    from fdb_datamodel import validate
    from fdb_schema import open_database
    from futures_worker import Client

    folder = tempfile.mkdtemp(prefix="mainspring-bench-", dir=options.folder)
    url = options.url or f"embedded:{folder}/db"
    command = [sys.executable, "-m", "futures_worker", "run", "--db", url, "--cluster", "bench", "--slots", "1"]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(options.workers)]
    try:
        for worker in workers:
            assert worker.stdout is not None
            if not worker.stdout.readline():
                raise SystemExit("a worker ended before it was ready")
        with Client(url, "bench") as client:
            rows = measure(
                client.submit,
                lambda future: future.result(60),
                lambda fs: client.gather(fs, progress=False),
                client.actor(Echo).noop,
                options,
            )
            rows |= measure_own(client, url, [worker.pid for worker in workers], rows["throughput"], options)
        violations = validate(open_database(url), "bench")
        if violations:
            raise SystemExit("the data is not valid: " + "; ".join(map(str, violations[:5])))
        return rows
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def run_ray(options: argparse.Namespace) -> dict[str, Any]:
    """Ray's workers are processes, one per cpu."""
    import ray

    ray.init(num_cpus=options.workers, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    remote = ray.remote(noop)
    actor = ray.remote(Echo).remote()
    try:
        return measure(lambda _, value: remote.remote(value), ray.get, ray.get, actor.noop.remote, options)
    finally:
        ray.shutdown()


def run_dask(options: argparse.Namespace) -> dict[str, Any]:
    """Dask's workers are processes with one thread each."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=options.workers, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=40
        ) as cluster,
        Client(cluster) as client,
    ):
        return measure(
            lambda fn, value: client.submit(fn, value, pure=False),
            lambda future: future.result(),
            client.gather,
            client.submit(Echo, actor=True).result().noop,
            options,
        )


SYSTEMS = {"ours": run_ours, "ray": run_ray, "dask": run_dask}


def run_apart(system: str, python: str, arguments: list[str]) -> dict[str, Any]:
    """One system in a process of its own; its rows."""
    command = [python, str(Path(__file__)), "--system", system, *arguments]
    environment = {**os.environ, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "PYTHONHASHSEED": "0"}
    if system != "ours":
        environment.pop("PYTHONPATH", None)
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=False, text=True)
    if done.returncode:
        raise SystemExit(f"{system} failed with exit code {done.returncode}")
    rows: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return rows


def compare(results: dict[str, dict[str, Any]]) -> tuple[str, bool]:
    """The table, and whether every gate that was measured holds."""
    peers = [name for name in results if name != "ours"]
    lines = ["| | ours | " + " | ".join(f"{p} | ours / {p}" for p in peers) + " |", "|---" * (2 + 2 * len(peers)) + "|"]
    good = True
    for row, title in ROWS.items():
        cells = [f"{results['ours'][row]:,.2f}"] if "ours" in results else ["–"]
        for peer in peers:
            cells.append(f"{results[peer][row]:,.2f}")
            if "ours" not in results:
                cells.append("–")
                continue
            ratio = results["ours"][row] / results[peer][row]
            gate = GATES.get((row, peer))
            mark = ""
            if gate is not None:
                held = ratio >= gate[1] if gate[0] == ">=" else ratio <= gate[1]
                good = good and held
                mark = f" ({'holds' if held else 'MISSED'}: {gate[0]} {gate[1]})"
            cells.append(f"{ratio:.2f}{mark}")
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    for row, title in OWN_ROWS.items() if "ours" in results else ():
        value = results["ours"][row]
        mark = ""
        if row in OWN_GATES:
            sign, limit = OWN_GATES[row]
            held = value >= limit if sign == ">=" else value <= limit
            good = good and held
            mark = f" ({'holds' if held else 'MISSED'}: {sign} {limit})"
        lines.append(f"| {title} | {value:,.2f}{mark} | " + " | ".join("–" for _ in range(2 * len(peers))) + " |")
    return "\n".join(lines), good


def main() -> int:
    """0; 1 with --check when a gate is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--round-trips", type=int, default=1_000)
    parser.add_argument("--chain", type=int, default=1_000)
    parser.add_argument("--backlog", type=int, default=20_000)
    parser.add_argument("--queued", type=int, default=30_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--url", help="database of ours; default: a fresh embedded one")
    parser.add_argument("--folder", help="where the embedded database is made; default: the system's temporary folder")
    parser.add_argument("--ray-python", default=os.environ.get("MAINSPRING_RAY_PYTHON"))
    parser.add_argument("--dask-python", default=os.environ.get("MAINSPRING_DASK_PYTHON"))
    parser.add_argument("--check", action="store_true", help="exit 1 when a gate is missed")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--system", choices=sorted(SYSTEMS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.system:
        print(json.dumps(SYSTEMS[options.system](options)))
        return 0
    arguments = [
        f"--{name}={getattr(options, name.replace('-', '_'))}"
        for name in ("tasks", "round-trips", "chain", "workers", "rounds", "backlog", "queued")
    ]
    arguments += [f"--{name}={value}" for name in ("url", "folder") if (value := getattr(options, name))]
    pythons = {"ours": sys.executable, "ray": options.ray_python, "dask": options.dask_python}
    results = {}
    for system, python in pythons.items():
        try:
            if python:
                results[system] = run_apart(system, python, arguments)
        except SystemExit as failed:
            if system == "ours":
                raise
            print(f"{system}: left out, since {failed}", file=sys.stderr)
    table, good = compare(results)
    if options.json:
        print(json.dumps({"machine": platform.platform(), "cpus": os.cpu_count(), "results": results}))
    else:
        load = os.getloadavg()[0]
        print(
            f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cpus, load {load:.1f}\n\n{table}"
        )
    return 0 if good or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
