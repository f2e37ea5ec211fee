"""Nothing grows: rows, files, descriptors, threads and memory are as many after many rounds of work as after a few.

MAINSPRING_SOAK_ROUNDS sets the number of rounds; the short form in CI has few.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from fdb_schema import ClusterSpace, open_database, read_range
from futures_worker import Client
from idempotent_txn import run

WAIT = 120.0
ROUNDS = int(os.environ.get("MAINSPRING_SOAK_ROUNDS") or 5)
PER_ROUND = 60


def large(number: int) -> bytes:
    return bytes([number % 256]) * (300_000 + number % 7)


def chatty(number: int) -> int:
    print("round", number)
    return number


def fail() -> None:
    raise ValueError("always")


def work(demo: Any, number: int) -> None:
    """One client's life: results of each kind, used, and let go."""
    with Client(demo.url, demo.name) as client:
        small = client.map(abs, range(PER_ROUND))
        blobs = [client.submit(large, number + n) for n in range(6)]
        total = client.submit(sum, small)
        lengths = [client.submit(len, blob) for blob in blobs]
        put = client.put(bytes(400_000))
        use = client.submit(len, put)
        said = client.submit(chatty, number)
        bad = client.submit(fail, max_retries=0)
        # Code of its own in every round: what nobody needs any more goes too.
        own = client.submit(eval("lambda: " + repr(f"code of round {number}" * 50)))
        assert total.result(WAIT) == PER_ROUND * (PER_ROUND - 1) // 2
        assert sum(client.gather(lengths, timeout=WAIT)) >= 6 * 300_000
        assert use.result(WAIT) == 400_000 and said.result(WAIT) == number
        assert isinstance(bad.exception(WAIT), ValueError) and own.result(WAIT)
        assert [len(blob.result(WAIT)) for blob in blobs]


def rows(demo: Any) -> Counter[str]:
    space = ClusterSpace(demo.name)
    span = space.range(())
    found: Counter[str] = Counter()
    for key, _ in run(open_database(demo.url), lambda tr: read_range(tr, span.start, span.stop), strategy="off"):
        found[space.unpack(key)[0]] += 1
    return found


def descendants(pid: int) -> list[int]:
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def status(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    return 0


def measure(demo: Any) -> dict[str, int]:
    """How much there is of everything, of the worker with all its processes, and of this one."""
    pid = demo.workers[0].pid
    pids = descendants(pid)
    (folder,) = Path("/dev/shm").glob(f"futures-worker-{os.getuid()}-{pid}-*[0-9a-f]")
    gc.collect()
    return {
        "rows": sum(count for name, count in rows(demo).items() if name not in ("bells",)),
        "bells": rows(demo)["bells"],
        "files": sum(1 for path in folder.rglob("*") if path.is_file()),
        "descriptors": sum(len(os.listdir(f"/proc/{one}/fd")) for one in pids),
        "threads": sum(status(one, "Threads") for one in pids),
        "own descriptors": len(os.listdir("/proc/self/fd")),
        "own threads": threading.active_count(),
        "worker MiB": status(pid, "RssAnon") >> 10,
        "own MiB": status(os.getpid(), "RssAnon") >> 10,
    }


def settle(demo: Any) -> dict[str, int]:
    """Measured once the futures of the round were collected."""
    deadline = time.monotonic() + WAIT
    while True:
        found = rows(demo)
        if not found["futures"] and not found["sessions"] and not found["results"] and not found["logs"]:
            return measure(demo)
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def test_many_rounds_leave_no_more_than_a_few(cluster: Any) -> None:
    quick = ("--collect-after", "0.2", "--session-ttl", "2", "--tombstones", "0.2", "--object-store", "32MiB")
    demo = cluster(1, 2, *quick)
    found = []
    for number in range(ROUNDS):
        work(demo, number)
        found.append(settle(demo))
    early, late = found[2 : 2 + max(1, ROUNDS // 3)], found[-max(1, ROUNDS // 3) :]
    slack = {"rows": 12, "bells": 4, "files": 12, "descriptors": 12, "threads": 3, "own descriptors": 6}
    for name in found[0]:
        before, after = max(one[name] for one in early), max(one[name] for one in late)
        allowed = slack.get(name, 3) if not name.endswith("MiB") else 2 + before // 5
        assert after <= before + allowed, f"{name} grows: {[one[name] for one in found]}"
    demo.check()
