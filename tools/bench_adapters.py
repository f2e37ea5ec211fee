"""What a task of joblib and a node of a Dask graph cost, beside their own ways to run them, in one run: `nox -s bench -- adapters`.

All have two processes, or two threads, and tasks that do nothing. Each figure is the median of `--rounds` rounds after one to warm up, each of
a graph of its own: of one that it has computed before Dask.distributed may still have the results.

- calls: `--calls` calls of `joblib.Parallel`, in batches as large as joblib makes them; µs a call
- batches: a twentieth of them, one in a batch; µs a call
- nodes: a tree of `--nodes` nodes of `dask.delayed`, each of which adds two others; µs a node
- blocks: the sum of a product of two arrays of Dask, 1,000 by 1,000 in blocks of 250 by 250; ms

Ours are durable: every batch and node is rows of a database. Peers keep theirs in memory. Dask.distributed runs under the Python given by
`--dask-python` (nox makes it), else it is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
ROWS = {"calls": "µs a call", "batches": "µs a call", "nodes": "µs a node", "blocks": "ms"}


def add(*values: int) -> int:
    """What every node does; of nothing, what every call does."""
    return sum(values)


def median(rounds: int, make: Callable[[int], T], run: Callable[[T], Any]) -> float:
    """Seconds that `run` takes for what `make` makes anew for each round, the first of which warms up."""
    taken = []
    for number in range(rounds + 1):
        made = make(number)
        started = time.perf_counter()
        run(made)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken[1:])


def of_joblib(options: argparse.Namespace) -> dict[str, float]:
    """The rows of joblib with the backend that is chosen."""
    from joblib import Parallel, delayed

    few = max(20, options.calls // 20)

    def run(calls: int, **how: Any) -> float:
        return median(options.rounds, lambda _: [delayed(add)()] * calls, Parallel(n_jobs=2, **how))

    calls, batches = run(options.calls), run(few, batch_size=1)
    return {"calls": calls / options.calls * 1e6, "batches": batches / few * 1e6}


def of_dask(options: argparse.Namespace, scheduler: Any) -> dict[str, float]:
    """The rows of Dask with a scheduler; None: that of the client of Dask.distributed."""
    import dask
    import dask.array as da

    leaves = options.nodes // 2

    def tree(_: int) -> Any:
        level = [dask.delayed(add)(1, pure=False) for _ in range(leaves)]
        while len(level) > 1:
            level = [dask.delayed(add)(*level[at : at + 2], pure=False) for at in range(0, len(level), 2)]
        return level[0]

    def product(number: int) -> Any:
        array = da.full((1000, 1000), number + 1.0, chunks=(250, 250))
        return (array @ array).sum(), (number + 1.0) ** 2 * 1e9

    def sum_tree(root: Any) -> None:
        assert dask.compute(root, scheduler=scheduler) == (leaves,), "wrong result"

    def sum_product(made: Any) -> None:
        assert abs(dask.compute(made[0], scheduler=scheduler)[0] / made[1] - 1) < 1e-9, "wrong result"

    nodes = median(options.rounds, tree, sum_tree)
    blocks = median(options.rounds, product, sum_product)
    return {"nodes": nodes / options.nodes * 1e6, "blocks": blocks * 1e3}


def of_distributed(options: argparse.Namespace) -> dict[str, float]:
    """The rows of Dask.distributed, which this Python has."""
    from distributed import Client, LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster):
        return of_dask(options, None)


def of_ours(options: argparse.Namespace) -> dict[str, float]:
    """Ours."""
    import joblib

    from futures_worker import LocalCluster, register_joblib

    register_joblib()
    with LocalCluster(workers=2, slots=1) as client:
        with joblib.parallel_config("mainspring", client=client):
            found = of_joblib(options)
        return found | of_dask(options, client)


def measured(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """System → its rows."""
    import joblib

    found = {"ours": of_ours(options)}
    for backend in ("loky", "threading"):
        with joblib.parallel_config(backend):
            found[f"joblib, {backend}"] = of_joblib(options)
    found["Dask, threads"] = of_dask(options, "threads")
    if options.dask_python:
        command = [options.dask_python, __file__, "--distributed", *map(str, sys.argv[1:])]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            print(f"Dask.distributed: left out, it failed with exit code {done.returncode}", file=sys.stderr)
        else:
            found["Dask.distributed"] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=4000)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dask-python", default=os.environ.get("MAINSPRING_DASK_PYTHON"))
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--distributed", action="store_true", help="measure Dask.distributed only, which this Python has"
    )
    options = parser.parse_args()
    if options.distributed:
        print(json.dumps(of_distributed(options)))
        return 0
    found = measured(options)
    if options.json:
        print(json.dumps(found))
        return 0
    ours = found["ours"]
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for name, rows in found.items():
        for row, value in rows.items():
            ratio = "" if name == "ours" else f"   ours takes {ours[row] / value:.2f} times that"
            print(f"{row:8} {name:18} {value:10.1f} {ROWS[row]:10}{ratio}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
