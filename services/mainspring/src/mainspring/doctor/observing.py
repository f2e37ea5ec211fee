"""Two looks at a cluster, some seconds apart: what stood still in between shows no life. No clocks are compared."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from fdb_datamodel import Counted, FutureState, WorkerStatus, census_page, list_workers
from fdb_schema import ClusterSpace, read_clock
from futures_worker.client.basis.diagnosis import clusters
from idempotent_txn import run
from lease_locks import DutyReport, LeaseInfo, LeaseManager, duty_reports
from mainspring.status import has_heap
from s3heap_tender import Metrics, SysDb, metrics

CONNECT_SECONDS: Final = 3.0
MOST_PENDING: Final = 200
COUNTED: Final = 200_000
TENDERS: Final = "s3heap/tender/"


@dataclass(slots=True)
class Look:
    """What was seen at one moment."""

    clock_us: int = 0
    workers: list[WorkerStatus] = field(default_factory=list)
    states: Counter[str] = field(default_factory=Counter)
    unclaimed: dict[bytes, Counted] = field(default_factory=dict)  # the oldest ones
    leases: list[LeaseInfo] = field(default_factory=list)
    dead_sessions: dict[str, str] = field(default_factory=dict)  # hexadecimal id → whose, and why it is dead
    sessions: set[str] = field(default_factory=set)  # hexadecimal ids of all that are registered, dead ones too
    heap: Metrics | None = None
    dead_letters: int = 0


@dataclass(slots=True)
class Observation:
    """Two looks, and what needs only one."""

    first: Look
    second: Look
    seconds: float
    refused: dict[str, str] = field(default_factory=dict)  # worker's address → why no connection came about
    others: list[str] = field(default_factory=list)  # the other clusters of the database
    duties: dict[str, DutyReport] = field(default_factory=dict)

    def silent_workers(self) -> list[WorkerStatus]:
        """Workers whose heartbeat was the same at both looks."""
        before = {worker.id: _beat(worker) for worker in self.first.workers}
        return [worker for worker in self.second.workers if before.get(worker.id, -1) == _beat(worker)]

    def held_by_the_dead(self, lease: LeaseInfo) -> bool:
        """Whether every process that kept the lease alive is dead, whether its session is still there or was cleared.

        A session that was registered at either look is judged by the second one, so that one which came or went between
        them isn't taken for a dead one.
        """
        known = self.first.sessions | self.second.sessions
        dead = self.second.dead_sessions
        return all(one.session in dead or one.session not in known for one in lease.maintainers)

    def gone_workers(self) -> list[WorkerStatus]:
        """Workers of the first look that are not registered at the second."""
        stayed = {worker.id for worker in self.second.workers}
        return [worker for worker in self.first.workers if worker.id not in stayed]

    def live_workers(self) -> list[WorkerStatus]:
        """Those that showed life, or came, between the looks."""
        silent = {worker.id for worker in self.silent_workers()}
        return [worker for worker in self.second.workers if worker.id not in silent]


def observe(
    db: Any, cluster: str, seconds: float, pause: Callable[[float], None] = time.sleep, *, brief: bool = False
) -> Observation:
    """Look, wait `seconds`, look again. `brief`: no future is counted, and no worker is called."""
    space = ClusterSpace(cluster)
    locks = LeaseManager(db, cluster)
    first = _look(db, space, locks, brief)
    pause(seconds)
    second = _look(db, space, locks, brief)
    if brief:
        return Observation(first, second, seconds, duties=duty_reports(db, space))
    addresses = {f"{worker.id.ip}:{worker.id.port}": (worker.id.ip, worker.id.port) for worker in second.workers}
    with ThreadPoolExecutor(16) as pool:
        answers = dict(zip(addresses, pool.map(_connect, addresses.values()), strict=True))
    refused = {address: why for address, why in answers.items() if why}
    others = [name for name in clusters(db) if name != cluster]
    return Observation(first, second, seconds, refused, others, duty_reports(db, space))


def _look(db: Any, space: ClusterSpace, locks: LeaseManager, brief: bool) -> Look:
    look = Look(clock_us=run(db, read_clock, space, strategy="off"))
    look.workers = run(db, list_workers, space, strategy="off")
    after: bytes | None = None
    while not brief:
        page, after = run(db, census_page, space, after, strategy="off")
        look.states.update(one.state.value for one in page)
        for one in page:
            if one.state is FutureState.unclaimed and len(look.unclaimed) < MOST_PENDING:
                look.unclaimed[one.id] = one
        if after is None or look.states.total() >= COUNTED:
            break
    look.leases = locks.list()
    for sid, record, _ in locks.sessions():
        look.sessions.add(sid.hex())
        why = run(db, locks.session_dead, sid, strategy="off")
        if why is not None:
            look.dead_sessions[sid.hex()] = f"{record.host}:{record.pid} ({why})"
    if has_heap(db, space.cluster):
        with SysDb(db, space.cluster) as sysdb:
            look.heap = metrics(sysdb)
            look.dead_letters = len(sysdb.dead_letters())
    return look


def _connect(address: tuple[str, int]) -> str:
    """Why no connection to `address` came about; "" where it did."""
    try:
        socket.create_connection(address, CONNECT_SECONDS).close()
    except OSError as error:
        return str(error.strerror or error)
    return ""


def _beat(worker: WorkerStatus) -> int:
    return -1 if worker.heartbeat is None else worker.heartbeat.counter
