"""Put and get of a large array on one host, beside a plain copy of it in memory: `nox -s bench -- objects`.

The target is put >= 0.7 x memcpy, and a get that copies nothing. Ratios are of processor time within one run, so that they
mean the same on a busy machine; wall times are printed beside.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from futures_worker import Client
from futures_worker.objects.work_directory import memory_root

TARGET = 0.7


def timed(what: Any) -> tuple[float, float, Any]:
    """(processor ms of this process, wall ms, what it returned)."""
    wall, cpu = time.perf_counter(), time.process_time()
    value = what()
    return (time.process_time() - cpu) * 1e3, (time.perf_counter() - wall) * 1e3, value


def measure(url: str, megabytes: int, rounds: int) -> list[dict[str, float]]:
    """The figures of each round; the memory of the first rounds is new, that of later ones is used again."""
    array = np.random.default_rng(1).random(megabytes * 125_000)
    target = np.empty_like(array)
    target[:] = array
    rows = []
    with Client(url) as client:
        for _ in range(rounds):
            copy_cpu, copy_wall, _ = timed(lambda: np.copyto(target, array))
            put_cpu, put_wall, future = timed(lambda: client.put(array))
            get_cpu, get_wall, value = timed(future.result)
            if value.flags.owndata or value[-1] != array[-1]:
                raise SystemExit("the array was copied by the get, or is another one")
            rows.append(
                {
                    "memcpy": copy_cpu, "put": put_cpu, "get": get_cpu,
                    "memcpy_wall": copy_wall, "put_wall": put_wall, "get_wall": get_wall,
                }
            )  # fmt: skip
            del value
            client.delete(future)
            del future
            gc.collect()
            time.sleep(0.3)  # the worker frees what it was told to
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=memory_root()) as folder:
        url = f"embedded:{Path(folder, 'db')}"
        command = [sys.executable, "-m", "futures_worker", "run", "--db", url, "--slots", "1", "--object-store", "1GiB"]
        worker = subprocess.Popen([*command, "--spill", str(Path(folder, "spill"))], stdout=subprocess.PIPE)
        try:
            assert worker.stdout is not None
            worker.stdout.readline()
            rows = measure(url, given.megabytes, given.rounds)
        finally:
            worker.terminate()
            worker.wait()
    ratio = statistics.median(row["memcpy"] for row in rows) / statistics.median(row["put"] for row in rows)
    if given.json:
        medians = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
        print(json.dumps({"ms": medians, "ratio": ratio, "target": TARGET}))
        return 0
    for row in rows:
        print("  ".join(f"{name} {value:.2f}" for name, value in row.items()), "ms")
    print(
        f"put {ratio:.2f} x memcpy (median, processor time); target {TARGET}: {'met' if ratio >= TARGET else 'missed'}"
    )
    return 0 if ratio >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
