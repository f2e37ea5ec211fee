"""Runs one seed's plan against real processes, and checks what must hold when the dust has settled.

What must hold: every future Realized with the value its name says, or Failed for a reason that its kind allows;
`validate()` clean; every live worker's capacity free again; after the workers' end no file, segment, socket or process
of the run left behind.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from support.clusters import IMPATIENT

from chaos import checks
from chaos.kinds import ACTOR_NAMES, own_rows
from chaos.plan import Blow, Plan, Strike, plan
from chaos.processes import Process, free_port, parent_of
from fdb_datamodel import Collector, FutureInfo, FutureState, list_futures, list_workers
from fdb_schema import ClusterSpace, open_database
from fdb_schema.keyspace import prefix_end
from futures_worker import Client
from futures_worker.objects.work_directory import memory_root
from idempotent_txn import run

SETTLE_SECONDS = 300.0
"""How long a run may take to settle, on a machine that does much else."""
CLIENT_FAULTS = {
    "FDB_NETWORK_OPTION_CLIENT_BUGGIFY_ENABLE": "",
    "FDB_NETWORK_OPTION_CLIENT_BUGGIFY_SECTION_ACTIVATED_PROBABILITY": "100",
    "FDB_NETWORK_OPTION_CLIENT_BUGGIFY_SECTION_FIRED_PROBABILITY": "4",
}
"""What makes FoundationDB's own client inject faults, where the seed wants faulty processes and a cluster is used."""
RUN_VARIABLE = "MAINSPRING_CHAOS_RUN"
TESTS = Path(__file__).resolve().parent.parent


class ChaosError(AssertionError):
    """Something that must hold doesn't."""


@dataclass
class Report:
    """What became of one seed."""

    seed: int
    seconds: float = 0.0
    futures: int = 0
    states: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    blows: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    wrong: list[str] = field(default_factory=list)


class ChaosRun:
    """One cluster under one plan, in a database of its own, or beside others where `url` names a shared one."""

    def __init__(self, wanted: Plan, folder: Path, url: str | None = None) -> None:
        self.plan = wanted
        self.folder = folder
        self.mark = f"{os.getpid()}-{wanted.seed}-{time.monotonic_ns()}"
        self.cluster = f"chaos-{wanted.seed}"
        self.url = url or f"embedded:{folder / 'db'}"
        self.marks = folder / "marks"
        self.report = Report(wanted.seed)
        self.settle_seconds = SETTLE_SECONDS
        self.ports = [free_port() for _ in wanted.slots]
        self.workers: list[Process] = []
        self.of_workers: set[int] = set()
        self.clients: list[Process] = []
        self.killed_clients: set[int] = set()
        self._collector: Collector | None = None
        self._collect_at = 0.0
        self._cancel_at = 0.0
        self._stopped: list[tuple[float, int]] = []  # (until, pid)
        self.shm_before = set(memory_root().iterdir())

    # --- processes

    def _environment(self, faults: str) -> dict[str, str]:
        places = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
        extra = {RUN_VARIABLE: self.mark, "PYTHONDONTWRITEBYTECODE": "1"}
        if faults and self.url.startswith("embedded:"):
            extra["MAINSPRING_FAULTS"] = faults
        elif faults:
            extra |= CLIENT_FAULTS
            places.append(str(TESTS / "chaos" / "cluster_faults"))
        return {**os.environ, **extra, "PYTHONPATH": os.pathsep.join(places)}

    def _start_worker(self, number: int) -> Process:
        wanted = self.plan
        command = [sys.executable, *IMPATIENT, "run", "--db", self.url, "--cluster", self.cluster]
        command += ["--port", str(self.ports[number]), "--slots", str(wanted.slots[number]), "--cpus", "4"]
        command += ["--object-store", wanted.store, "--spill", str(self.folder / f"spill-{number}")]
        command += ["--ttl", str(wanted.ttl), "--grace", "1", "--session-ttl", str(wanted.session_ttl)]
        made = Process(command, self.folder / f"worker-{number}.log", self._environment(wanted.faults[number]))
        self.of_workers.add(made.popen.pid)
        return made

    def _start_client(self, number: int) -> Process:
        seed = str(self.plan.clients[number])
        command = [sys.executable, "-m", "chaos.client", self.url, self.cluster, seed, str(self.marks)]
        command.append(",".join(map(str, self.ports)))
        faults = self.plan.faults[len(self.ports) + number]
        return Process(command, self.folder / f"client-{number}.log", self._environment(faults))

    def of_run(self) -> Iterator[tuple[int, str]]:
        """Every process of this run, with its command line."""
        wanted = f"{RUN_VARIABLE}={self.mark}".encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if wanted in (entry / "environ").read_bytes().split(b"\0"):
                        yield int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()

    def _templates(self) -> list[int]:
        """The templates: their parent is a worker."""
        workers = {worker.popen.pid for worker in self.workers if worker.alive}
        return sorted(pid for pid, line in self.of_run() if "worker.template" in line and parent_of(pid) in workers)

    def _children(self) -> list[int]:
        templates = set(self._templates())
        return sorted(pid for pid, line in self.of_run() if "worker.template" in line and parent_of(pid) in templates)

    # --- the run

    def execute(self) -> Report:
        """The whole run; what is wrong is in the report. Nothing of the run is alive afterwards."""
        started = time.monotonic()
        try:
            self._erase()
            self.workers = [self._start_worker(n) for n in range(len(self.ports))]
            self.await_that(lambda: self._live() > 0, "no worker got ready")
            self.clients = [self._start_client(n) for n in range(len(self.plan.clients))]
            self.await_that(lambda: self.futures(1), "no client submitted anything")
            for strike in self.plan.strikes:
                self._pass_time(strike.after)
                self._strike(strike)
            self._pass_time(0.2)
            self._settle()
            checks.check_futures(self)
            checks.check_capacity(self)
            checks.end_workers(self)
            checks.check_rows(self)
            checks.check_garbage(self)
            checks.check_leftovers(self)
        except ChaosError as exc:
            self.report.wrong.append(str(exc))
        finally:
            self._kill_all()
            if not self.report.wrong:  # else it is kept, to be looked at
                self._erase()
        self.report.seconds = round(time.monotonic() - started, 2)
        return self.report

    def _strike(self, strike: Strike) -> None:
        blow = strike.blow
        pids: list[int] = []
        if blow is Blow.kill_all:
            wanted = {worker.popen.pid for worker in self.workers} | {*self._templates(), *self._children()}
            for pid in wanted - {worker.popen.pid for worker in self.workers if not worker.alive}:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for worker in self.workers:
                worker.popen.wait()
            self.workers = [self._start_worker(number) for number in range(len(self.workers))]
        elif blow in (Blow.kill_worker, Blow.lose_worker, Blow.drain_worker, Blow.stop_worker):
            numbers = [n for n, worker in enumerate(self.workers) if worker.alive]
            if not numbers:
                return
            number = numbers[strike.target % len(numbers)]
            worker = self.workers[number]
            if blow is Blow.stop_worker:
                pids = [worker.popen.pid]
            elif blow is Blow.drain_worker:
                worker.signal(signal.SIGTERM)
                self.await_that(lambda: not worker.alive, lambda: f"worker {number} isn't drained:\n{worker.tail()}")
            else:
                worker.kill()
            if blow in (Blow.kill_worker, Blow.drain_worker) and not worker.alive:
                self.workers[number] = self._start_worker(number)
        elif blow in (Blow.kill_client, Blow.stop_client):
            numbers = [n for n, client in enumerate(self.clients) if client.alive]
            if not numbers:
                return
            number = numbers[strike.target % len(numbers)]
            if blow is Blow.kill_client:
                self.clients[number].kill()
                self.killed_clients.add(number)
            else:
                pids = [self.clients[number].popen.pid]
        else:
            found = self._templates() if blow in (Blow.kill_template, Blow.stop_template) else self._children()
            if not found:
                return
            pid = found[strike.target % len(found)]
            if blow in (Blow.stop_child, Blow.stop_template):
                pids = [pid]
            else:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.report.blows[blow] += 1
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                self._stopped.append((time.monotonic() + strike.seconds, pid))

    def _pass_time(self, seconds: float) -> None:
        """Waits, and lets go on what was stopped for long enough."""
        end = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            for until, pid in list(self._stopped):
                if now >= until:
                    self._stopped.remove((until, pid))
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)
            self._collect()
            if now >= end:
                return
            time.sleep(min(0.05, end - now))

    def _collect(self) -> None:
        """Where nothing is kept after its end, collect all the time: what somebody needs must not go."""
        if self.plan.collecting and time.monotonic() >= self._collect_at and self._exists():
            self._collect_at = time.monotonic() + 0.5
            if self._collector is None:
                self._collector = Collector(self.db, self.space, grace=0.3, session_ttl=3 * self.plan.session_ttl)
            self._collector.whole_pass()

    def give_up(self, why: str) -> NoReturn:
        """The run ends here."""
        raise ChaosError(why)

    def check_workers(self) -> None:
        """All of them are alive."""
        for number, worker in enumerate(self.workers):
            if not worker.alive:
                self.give_up(f"worker {number} ended by itself:\n{worker.tail()}")

    def await_that(self, done: Any, what: Any) -> None:
        deadline = time.monotonic() + SETTLE_SECONDS
        while not done():
            if time.monotonic() > deadline:
                raise ChaosError(what if isinstance(what, str) else what())
            self._pass_time(0.1)

    @property
    def db(self) -> Any:
        return open_database(self.url)

    @property
    def space(self) -> ClusterSpace:
        return ClusterSpace(self.cluster)

    def _erase(self) -> None:
        """Nothing of this run, nor of an earlier one of its seed, is left in a database that others use."""
        if not self.url.startswith("embedded:"):
            for prefix in (self.space.key(), own_rows(self.cluster)):
                self.db.clear_range(prefix, prefix_end(prefix))

    def _exists(self) -> bool:
        """Whether a worker made the database."""
        scheme, _, rest = self.url.partition(":")
        return scheme != "embedded" or Path(rest).exists()

    def _live(self) -> int:
        if not self._exists():
            return 0
        return len(run(self.db, list_workers, self.space, strategy="off"))

    def _settle(self) -> None:
        """No more blows: every address has a worker again, the clients end, every future ends."""
        while self._stopped:
            self._pass_time(0.05)
        for number, worker in enumerate(self.workers):
            if not worker.alive:
                code = worker.popen.returncode
                if code not in (0, -signal.SIGKILL, -signal.SIGTERM):  # SIGTERM may come before Python does
                    self.report.wrong.append(f"worker {number} ended by itself with {code}:\n{worker.tail()}")
                self.workers[number] = self._start_worker(number)
        with Client(self.url, self.cluster) as client:
            for number, process in enumerate(self.clients):
                self.await_that(
                    lambda process=process: self._has_ended(process, client),
                    lambda number=number, process=process: (
                        f"client {number} doesn't end; {self._unfinished()}\n{process.tail()}"
                    ),
                )
                if number not in self.killed_clients and process.popen.returncode != 0:
                    self.report.wrong.append(f"client {number}: {process.tail()}")
            self.await_that(lambda: self._only_actors_left(client), self._unfinished)
            for name in ACTOR_NAMES:
                with contextlib.suppress(LookupError):
                    client.kill_actor(client.get_actor(name))
        self.await_that(lambda: not self._open_futures(), self._unfinished)

    def _has_ended(self, process: Process, client: Client) -> bool:
        """Whether a client ended; what one that was killed didn't come to cancel doesn't keep others' futures from running."""
        if process.alive and self.killed_clients and time.monotonic() >= self._cancel_at:
            self._cancel_at = time.monotonic() + 1.0
            for info in self._open_futures():
                if info.name.startswith("cancel="):
                    client.get_future(info.id).cancel()
        return not process.alive

    def _only_actors_left(self, client: Client) -> bool:
        """Whether all but actors with names ended; does what the clients that were killed didn't come to do."""
        left = self._open_futures()
        for info in left:
            kind = info.name.partition("=")[0]
            if kind == "cancel" and self.killed_clients:
                client.get_future(info.id).cancel()
            elif kind == "stream":  # a generator waits for its readers
                with contextlib.suppress(TimeoutError):
                    client.get_future(info.id).result(60.0)
        return all(info.name in ("actor Shared", "Shared.add") for info in left)

    def futures(self, enough: int = sys.maxsize) -> list[FutureInfo]:
        found: list[FutureInfo] = []
        cursor: bytes | None = None
        while True:
            page, cursor = run(self.db, list_futures, self.space, cursor, 200, strategy="off")
            found += page
            if cursor is None or len(found) >= enough:
                return found

    def _open_futures(self) -> list[FutureInfo]:
        return [f for f in self.futures() if f.state not in (FutureState.realized, FutureState.failed)]

    def _unfinished(self) -> str:
        lines = [f"  {f.name} {f.id.hex()} {f.state}: {f.reason}" for f in self._open_futures()[:10]]
        return "\n".join([f"{len(lines)} or more futures don't end:", *lines])

    def _kill_all(self) -> None:
        for _ in range(100):
            pids = [pid for pid, _ in self.of_run()]
            if not pids:
                break
            for pid in pids:
                for number in (signal.SIGKILL, signal.SIGCONT):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
            time.sleep(0.02)
        for process in [*self.workers, *self.clients]:
            process.kill()


def run_seed(seed: int, keep: Path | None = None, url: str | None = None) -> Report:
    """Run one seed in a folder of its own, on the database of `url` if it is given. What failed is kept under `keep`, with the logs and the plan."""
    random.seed(seed)
    folder = Path(tempfile.mkdtemp(prefix=f"mainspring-chaos-{seed}-", dir=memory_root()))
    wanted = plan(seed)
    try:
        report = ChaosRun(wanted, folder, url).execute()
        if report.wrong and keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            (folder / "plan").write_text(wanted.describe() + "\n\n" + "\n".join(report.wrong) + "\n")
            target = keep / f"seed-{seed}"
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(folder, target)
        return report
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def report_of(seed: int, keep: Path, url: str | None) -> dict[str, Any]:
    """`run_seed` as plain data, for a process that asks another one."""
    return {k: dict(v) if isinstance(v, Counter) else v for k, v in vars(run_seed(seed, keep, url)).items()}
