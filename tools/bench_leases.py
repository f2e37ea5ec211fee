"""What leases and memoized calls cost, beside their peers, in one run.

    python tools/bench_leases.py [--rounds 30] [--only acquire,memo,…] [--peers DIR] [--redis-server PATH] [--json]

| measure | what | peers, where installed |
|---|---|---|
| acquire | acquire + release, uncontended, one thread | thds.mops' lease, filelock's SoftFileLease, redis-py's Lock, etcd's lock |
| memo | a memoized call, found | joblib.Memory, thds.mops |
| result | from a result's commit to a waiter's return, in another process | |
| takeover | from SIGKILL of a holder to the next one's grant, same host | |
| elsewhere | the same for a holder whose process can't be looked at, in its ttl; at three moments between its heartbeats, the worst | |
| orphan | from the end of a failing orphan to a free lock | |
| renewals | transactions per ttl for 2,000 leases of one process | |

Contestants take turns within every round, so that what else the machine does falls on all of them; a figure is the
median over rounds of the round's median. Redis runs as a server of its own, without persistence, over a Unix socket; etcd, too,
with its data beside the others', over its JSON gateway and one connection. `--peers` names a folder with peers that aren't
installed here (`pip install --target DIR joblib redis thds.mops`); nox makes one, and names its Python.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import dataclasses
import http.client
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fdb_schema import open_database
from lease_locks import LeaseManager, MemoizingPicklingRunner, samethread_shell
from lease_locks.grants.observer import Observer

TARGETS: dict[str, tuple[str, float]] = {
    "acquire": ("ms p50", 0.3),
    "memo": ("ms p50", 0.11),
    "result": ("ms p95", 100.0),
    "takeover": ("s", 1.0),
    "elsewhere": ("ttl", 1.5),
    "orphan": ("s", 0.2),
    "renewals": ("per ttl", 4.0),
}
PER_ROUND = 100
Contestant = Callable[[], None]


def square(x: int) -> int:
    """What the memoizing contestants memoize."""
    return x * x


# --- contestants


@contextlib.contextmanager
def redis_server(path: str | None, folder: Path) -> Iterator[Any]:
    """A Redis client, to a server of its own; None where there is no server or no client."""
    binary = path or shutil.which("redis-server") or shutil.which("valkey-server")
    try:
        import redis
    except ImportError:
        redis = None
    if binary is None or redis is None:
        yield None
        return
    address = folder / "redis.sock"
    command = [binary, "--port", "0", "--unixsocket", str(address), "--save", "", "--appendonly", "no"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=folder)
    try:
        client = redis.Redis(unix_socket_path=str(address))
        for _ in range(200):
            try:
                client.ping()
                break
            except redis.exceptions.ConnectionError:
                time.sleep(0.05)
        yield client
    finally:
        server.terminate()
        server.wait(10)


@contextlib.contextmanager
def etcd_lock(folder: Path) -> Iterator[Contestant | None]:
    """A lock of etcd's, of a server of its own, locked and unlocked under one lease; None where there is no server."""
    binary = shutil.which("etcd")
    if binary is None:
        yield None
        return
    with contextlib.ExitStack() as bound:
        sockets = [bound.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        ports = [one.getsockname()[1] for one in sockets]
    client, peer = (f"http://127.0.0.1:{port}" for port in ports)
    command = [
        binary, "--data-dir", str(folder / "etcd"), "--listen-client-urls", client, "--advertise-client-urls", client,
        "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
    ]  # fmt: skip
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)
    connection = http.client.HTTPConnection("127.0.0.1", ports[0], timeout=10)

    def ask(path: str, **body: Any) -> Any:
        connection.request("POST", f"/v3/{path}", json.dumps(body))
        return json.loads(connection.getresponse().read())

    name = base64.b64encode(b"bench").decode()
    lease = None
    try:
        for _ in range(200):
            try:
                lease = ask("lease/grant", TTL=3600)["ID"]
                break
            except (OSError, http.client.HTTPException, LookupError, ValueError):
                connection.close()
                time.sleep(0.05)
        if lease is None:
            print(f"etcd lock: {binary} gave no lease within 200 attempts", file=sys.stderr)
            yield None
        else:
            yield lambda: ask("lock/unlock", key=ask("lock/lock", name=name, lease=lease)["key"])
    finally:
        connection.close()
        server.terminate()
        server.wait(10)


def lease_contestants(folder: Path, locks: LeaseManager, redis: Any, etcd: Contestant | None) -> dict[str, Contestant]:
    found: dict[str, Contestant] = {"lease-locks": lambda: _use(locks)}
    if etcd is not None:
        found["etcd lock"] = etcd
    if redis is not None:
        found["redis-py Lock"] = lambda: _use_redis(redis)
    with contextlib.suppress(ImportError):
        from filelock import SoftFileLease

        found["SoftFileLease"] = lambda: _use_file(SoftFileLease, folder)
    with contextlib.suppress(Exception):  # whatever its configuration dislikes about this machine
        from thds.mops.pure.core import lease as mops

        uri = f"file://{folder}/mops-lease"
        mops.acquire(uri).release()
        found["thds.mops lease"] = lambda: mops.acquire(uri).release()
    return found


def _use(locks: LeaseManager) -> None:
    locks.acquire("bench").release()


def _use_redis(client: Any) -> None:
    lock = client.lock("bench", timeout=15)
    lock.acquire()
    lock.release()


def _use_file(kind: Any, folder: Path) -> None:
    lease = kind(str(folder / "lease"), lease_duration=15)
    lease.acquire()
    lease.release()


def memo_contestants(folder: Path, locks: LeaseManager) -> dict[str, Contestant]:
    runner = MemoizingPicklingRunner(locks, shell=samethread_shell, pipeline_id="bench")
    runner.call(square, 7)
    found: dict[str, Contestant] = {"lease-locks": lambda: runner.call(square, 7)}
    with contextlib.suppress(ImportError):
        from joblib import Memory

        cached = Memory(str(folder / "joblib"), verbose=0).cache(square)
        cached(7)
        found["joblib.Memory"] = lambda: cached(7)
    with contextlib.suppress(Exception):
        import logging

        from thds.mops import pure

        logging.disable(logging.INFO)
        magic = pure.magic("samethread", blob_root=f"file://{folder}/mops", pipeline_id="bench")(square)
        magic(7)
        found["thds.mops"] = lambda: magic(7)
    return found


def turns(contestants: dict[str, Contestant], rounds: int) -> dict[str, float]:
    """Milliseconds: the median over rounds of each contestant's median."""
    medians: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, act in contestants.items():
            times = []
            for _ in range(PER_ROUND if name != "thds.mops lease" else 10):
                started = time.perf_counter()
                act()
                times.append(time.perf_counter() - started)
            medians[name].append(statistics.median(times) * 1e3)
    return {name: statistics.median(values) for name, values in medians.items()}


# --- what only this package is measured in

WAIT = """
import sys, time
from lease_locks import LeaseManager, MemoizingPicklingRunner, samethread_shell
sys.path.insert(0, sys.argv[2])
from bench_leases import slow_square
with LeaseManager(sys.argv[1]) as locks:
    runner = MemoizingPicklingRunner(locks, shell=samethread_shell, pipeline_id="wait")
    for number in range(int(sys.argv[3])):
        print("next", flush=True)
        sys.stdin.readline()
        runner.call(slow_square, number)
        print(time.monotonic(), flush=True)
"""

HOLD = """
import sys, time
from lease_locks import LeaseManager
locks = LeaseManager(sys.argv[1], ttl=float(sys.argv[2]))
lease = locks.acquire("killed")
print("held", flush=True)
sys.stdin.readline()
lease.maintain()
print(time.monotonic(), flush=True)
time.sleep(1000)
"""


def slow_square(x: int) -> int:
    """Long enough for a waiter to arrive."""
    time.sleep(0.15)
    return x * x


def fails() -> None:
    """An orphan's function."""
    time.sleep(0.3)
    raise ValueError("on purpose")


def _child(script: str, *args: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)}
    return subprocess.Popen([sys.executable, "-c", script, *args], stdin=-1, stdout=-1, text=True, env=env)


def measure_result(url: str, locks: LeaseManager, count: int) -> float:
    """Milliseconds p95 from the commit of a result to the return of a waiter of another process."""
    runner = MemoizingPicklingRunner(locks, shell=samethread_shell, pipeline_id="wait")
    waiter = _child(WAIT, url, str(Path(__file__).parent), str(count))
    assert waiter.stdin is not None
    assert waiter.stdout is not None
    late = []
    try:
        for number in range(count):
            waiter.stdout.readline()
            future = runner.submit(slow_square, number)
            time.sleep(0.03)
            waiter.stdin.write("go\n")
            waiter.stdin.flush()
            future.result(60)
            done = time.monotonic()
            late.append(max(0.0, float(waiter.stdout.readline()) - done) * 1e3)
    finally:
        waiter.kill()
        waiter.communicate()
    return statistics.quantiles(late, n=20)[-1]


def measure_takeover(url: str, locks: LeaseManager, ttl: float = 600.0, after: float = 0.0) -> tuple[float, float]:
    """Seconds from SIGKILL of a holder to the grant of who waits on this host, and from its last known renewal.

    It is killed `after` seconds after a renewal.
    """
    holder = _child(HOLD, url, str(ttl))
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        holder.stdout.readline()
        granted: list[float] = []

        def wait() -> None:
            lease = locks.acquire("killed", timeout=60)
            granted.append(time.monotonic())
            lease.release()

        thread = threading.Thread(target=wait)
        thread.start()
        while (info := locks.read("killed")) is None or not info.waiters:
            time.sleep(0.01)
        holder.stdin.write("go\n")
        holder.stdin.flush()
        renewed = float(holder.stdout.readline())
        time.sleep(after)
        killed = time.monotonic()
        holder.send_signal(signal.SIGKILL)
        thread.join(60)
        return granted[0] - killed, granted[0] - renewed
    finally:
        holder.kill()
        holder.communicate()


def measure_takeover_elsewhere(url: str, ttl: float = 3.0) -> float:
    """The longest of three takeovers, in ttl after the kill, by a manager to which no process is ever gone.

    Fails where one came before a whole ttl had passed since the last renewal.
    """
    longest = 0.0
    for share in (0.0, 0.1, 0.25):
        with LeaseManager(url, ttl=ttl) as locks:
            locks.session.record = dataclasses.replace(locks.session.record, boot_id="another host")
            locks.session.observer = Observer(time.monotonic, lambda record: False)
            after_kill, after_renewal = measure_takeover(url, locks, ttl, share * ttl)
        assert after_renewal >= ttl, f"taken over {after_renewal:.2f} s after a renewal, ttl {ttl:g} s"
        longest = max(longest, after_kill / ttl)
    return longest


def measure_orphan(locks: LeaseManager) -> float:
    """Seconds from the end of a failing function, whose orchestrator does nothing, to a free lock."""
    ended: list[float] = []

    def shell(args: Any) -> None:
        samethread_shell(args)
        ended.append(time.monotonic())
        while locks.list("memo/"):
            time.sleep(0.001)
        ended.append(time.monotonic())

    runner = MemoizingPicklingRunner(locks, shell=shell, pipeline_id="orphan")
    with contextlib.suppress(ValueError):
        runner.call(fails)
    return ended[1] - ended[0]


def measure_renewals(url: str, leases: int = 2_000, ttl: float = 6.0) -> float:
    """Transactions of the renewal thread per ttl."""

    class Counting:
        def __init__(self, db: Any) -> None:
            self.db, self.count = db, 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self.db, name)

        def create_transaction(self) -> Any:
            self.count += threading.current_thread().name == "lease-renewal"
            return self.db.create_transaction()

    db = Counting(open_database(url))
    with LeaseManager(db, ttl=ttl) as locks:
        held = [locks.acquire(f"many-{number}") for number in range(leases)]
        before, started = db.count, time.monotonic()
        time.sleep(2 * ttl)
        assert all(lease.held for lease in held)
        return (db.count - before) * ttl / (time.monotonic() - started)


# --- the run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", default=",".join(TARGETS), help="measures, separated by commas")
    parser.add_argument("--peers", help="a folder with peers that aren't installed here")
    parser.add_argument("--redis-server", help="path of the server's binary")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.peers:
        sys.path.append(args.peers)
    if python := os.environ.get("MAINSPRING_MOPS_PYTHON"):
        sys.path += map(str, Path(python).parent.parent.glob("lib/python*/site-packages"))
    wanted = args.only.split(",")
    shm = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="bench-leases-", dir=shm if shm.is_dir() else None))
    url = f"embedded:{folder}/db"
    results: dict[str, dict[str, float]] = {}
    try:
        with LeaseManager(url) as locks, redis_server(args.redis_server, folder) as redis, etcd_lock(folder) as etcd:
            if "acquire" in wanted:
                results["acquire"] = turns(lease_contestants(folder, locks, redis, etcd), args.rounds)
            if "memo" in wanted:
                results["memo"] = turns(memo_contestants(folder, locks), args.rounds)
            if "result" in wanted:
                results["result"] = {"lease-locks": measure_result(url, locks, max(20, args.rounds))}
            if "takeover" in wanted:
                results["takeover"] = {"lease-locks": measure_takeover(url, locks)[0]}
            if "elsewhere" in wanted:
                results["elsewhere"] = {"lease-locks": measure_takeover_elsewhere(url)}
            if "orphan" in wanted:
                results["orphan"] = {"lease-locks": measure_orphan(locks)}
            if "renewals" in wanted:
                results["renewals"] = {"lease-locks": measure_renewals(url)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if args.json:
        print(json.dumps({"targets": TARGETS, "results": results}))
        return
    print(f"{'measure':<10}{'contestant':<18}{'figure':>12}  {'unit':<9}target")
    for measure, figures in results.items():
        unit, target = TARGETS[measure]
        if measure == "memo":
            target = round(
                figures.get("joblib.Memory", target), 3
            )  # what it is to pass is what the peer does here and now
        for name, figure in figures.items():
            verdict = ("met" if figure <= target else "MISSED") if name == "lease-locks" else ""
            print(f"{measure:<10}{name:<18}{figure:>12.3f}  {unit:<9}{f'≤ {target:g} {verdict}' if verdict else ''}")
    if "acquire" in results and not any(name.startswith("redis") for name in results["acquire"]):
        print("redis: no server or no client found", file=sys.stderr)


if __name__ == "__main__":
    sys.modules.setdefault("bench_leases", sys.modules[__name__])
    main()
