"""What lives as long as its users do not grow: files, under writers that replace the same rows and readers that stay.

Eight seconds here; `MAINSPRING_CHURN_SECONDS=3600` is the hour. The bounds don't depend on how long it runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fdb_embedded.storage.durability import CHECKPOINT_BYTES

SECONDS = float(os.environ.get("MAINSPRING_CHURN_SECONDS", "8"))
ROWS, BYTES, PACE = 2000, 500, 150  # rows replaced for ever, of up to so many bytes; transactions a second
LOG_SECONDS = (
    15.0  # of commits that may be kept: conflicts are judged over 5 s, ids over 10 s, and a pass takes a while
)
ROWS_A_TRANSACTION = 10

CHURN = """
import random, sys, time
import fdb_embedded
db = fdb_embedded.open(sys.argv[1], durability=sys.argv[2])
rows, most, pace, batch = map(int, sys.argv[3:])
rng = random.Random(rows)
written = 0
print("ready", flush=True)
while True:
    tr = db.create_transaction()
    first = rng.randrange(rows)
    if rng.random() < 0.3:
        tr.clear_range(b"row%08d" % first, b"row%08d" % (first + batch))
    for number in range(first, first + batch):
        tr[b"row%08d" % number] = rng.randbytes(rng.randrange(1, most))
    tr.commit().wait()
    written += 1
    if written % 50 == 0:
        print(written, flush=True)
    time.sleep(1 / pace)
"""

STAY = """
import sys, time
import fdb_embedded
db = fdb_embedded.open(sys.argv[1], durability=sys.argv[2])
fdb = fdb_embedded.load()
print("ready", flush=True)
while True:
    tr = db.create_transaction()
    tr.get_read_version().wait()
    began = time.monotonic()
    try:
        while True:  # one snapshot for as long as it may be read
            list(tr.get_range(b"row", b"rox", limit=100))
            time.sleep(0.5)
    except fdb.FDBError as error:
        assert error.code == 1007, error
        print(f"{time.monotonic() - began:.1f}", flush=True)
"""


def taken(folder: Path, names: str = "*") -> int:
    """Bytes of disk that the files of a database take."""
    total = 0
    for path in folder.rglob(names):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:  # a journal that was done
            continue
    return total


@pytest.fixture
def churning(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    numbers = [str(number) for number in (ROWS, BYTES, PACE, ROWS_A_TRANSACTION)]
    try:
        for code in (CHURN, CHURN, STAY):
            command = [sys.executable, "-c", code, str(tmp_path / "db"), request.param, *numbers]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            processes.append(process)
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            os.set_blocking(process.stdout.fileno(), False)
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@pytest.mark.timeout(0)
@pytest.mark.parametrize("churning", ["process", "fsync"], indirect=True)
def test_files_stay_as_they_are_under_replaced_rows_and_readers_that_stay(
    churning: list[subprocess.Popen[str]], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rows = ROWS * BYTES
    logged = int(2 * PACE * ROWS_A_TRANSACTION * BYTES * LOG_SECONDS)
    journal = 3 * CHECKPOINT_BYTES if request.node.callspec.params["churning"] == "fsync" else 0
    bound = 4 * (rows + logged) + (32 << 20) + journal
    samples: list[int] = []
    data: list[int] = []
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        time.sleep(min(1.0, SECONDS / 8))
        assert all(process.poll() is None for process in churning), "a process ended"
        samples.append(taken(tmp_path / "db"))
        data.append(taken(tmp_path / "db", "data.mdb"))
        assert samples[-1] < bound, f"{samples[-1]:,} bytes after {len(samples)} samples; rows are at most {rows:,}"
    third = len(data) // 3
    if SECONDS >= 10 * LOG_SECONDS:  # else the log itself still fills
        # a journal grows and is begun anew by turns; the bound above is for it
        middle, last = max(data[third : 2 * third]), max(data[2 * third :])
        assert last <= 1.1 * middle, f"it grew from {middle:,} to {last:,} bytes"
    for process in churning[:2]:
        assert process.stdout is not None
        assert process.stdout.read(), "nothing was written"
    print(f"{SECONDS:.0f} s: first {samples[0]:,}, most {max(samples):,}, last {samples[-1]:,} bytes")
