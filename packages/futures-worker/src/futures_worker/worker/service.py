"""Puts a worker together from its parts and runs it until it is told to end."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from fdb_datamodel import (
    GRACE_SECONDS,
    PASS_SECONDS,
    SESSION_TTL_SECONDS,
    TOMBSTONE_SECONDS,
    ClusterSpace,
    Collector,
    Requirements,
    WorkerId,
    WorkerStatus,
)
from fdb_schema import database_url, open_database, url_of
from fdb_schema.serving.ending import SILENT_SECONDS, end_though_silent
from fdb_schema.serving.figures import counted
from fdb_schema.serving.logs import log_to_stderr
from fdb_schema.serving.metrics import MetricsServer
from futures_worker.errors import AddressUnknownError
from futures_worker.liveness import TTL_SECONDS
from futures_worker.metrics import worker_metrics
from futures_worker.objects.store import ObjectStore
from futures_worker.objects.store_client import ObjectFetcher
from futures_worker.objects.store_secret import ClusterSecrets
from futures_worker.objects.store_server import StoreServer, listen
from futures_worker.objects.work_directory import WorkDirectory
from futures_worker.ports.handshake import OBJECTS, Identity
from futures_worker.worker.audit import StoreAudit
from futures_worker.worker.deciding.core import WorkerCore
from futures_worker.worker.deciding.instructions import PeersSeen
from futures_worker.worker.housekeeping import Housekeeping
from futures_worker.worker.output import OutputKeeper
from futures_worker.worker.processes import raise_file_limit
from futures_worker.worker.registration import describe_self, join, leave
from futures_worker.worker.running.inputs import Inputs
from futures_worker.worker.running.shell import DEFAULT_GRACE, Shell
from futures_worker.worker.spill_watch import SpillWatch
from futures_worker.worker.stacks import Stacks

log = logging.getLogger("futures_worker")

LEAST_PASS_SECONDS: Final = 0.25
"""Between two passes of the collector, where futures are kept for less than twice that: a round of housekeeping."""


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """How to run one worker."""

    url: str | None = None  # database; None: the environment's, else the default
    cluster: str = "mainspring"
    address: str = "127.0.0.1"  # to listen on, and known by unless there is `advertise`
    port: int = 0  # 0: any free one
    slots: int = 1  # tasks at a time
    total: Requirements = field(default_factory=Requirements)  # cpu, ram, gpu, named resources offered
    gpus: tuple[
        str, ...
    ] = ()  # ids of the gpus, as CUDA_VISIBLE_DEVICES has them, which tasks are given; () leaves that alone
    object_store: int = 256 << 20  # bytes of results kept in memory
    spill: Path | None = None  # directory for what is over it
    grace: float = DEFAULT_GRACE  # seconds for running tasks after SIGTERM
    ttl: float = TTL_SECONDS  # seconds without a heartbeat that mean death
    collect_after: float = GRACE_SECONDS  # seconds that an ended future is kept which nobody holds
    metrics_port: int | None = None  # for Prometheus, at the same address; 0: any free one
    tombstones: float = TOMBSTONE_SECONDS  # seconds that a collected future's id answers "deleted"
    session_ttl: float = SESSION_TTL_SECONDS  # seconds without a beat that mean a client's death
    files: int = 0  # that a task may have open; 0: as many as the worker
    advertise: str | None = None  # the address by which others reach it, where that isn't the one to listen on


COLLECT_AT_ONCE = 0.02
"""Seconds of collecting in one round of housekeeping, of which there are four in a second."""


def advertised(address: str, advertise: str | None, listening: str) -> str:
    """By what a worker is known that listens at an address. Raises `AddressUnknownError` where nobody could reach it there."""
    try:
        known = ipaddress.ip_address(advertise if advertise is not None else listening)
    except ValueError:
        raise AddressUnknownError(
            f"--advertise {advertise}: give the IP address by which other machines reach this one, not a name"
        ) from None
    if known.is_unspecified or known.is_multicast:
        raise AddressUnknownError(
            f"--address {address} means every address of this machine, and other machines can't dial that: give the one by which "
            "they reach this machine, as --address, or as --advertise beside it"
        )
    return str(known)


class WorkerService:
    """One worker process. `run` blocks; `shell.drain()` ends it from anywhere."""

    def __init__(self, config: WorkerConfig) -> None:
        self.config = config
        self.url = database_url(config.url)
        self.space = ClusterSpace(config.cluster)
        self.metrics: MetricsServer | None = None
        self._peers = PeersSeen(0, 1)
        self._joining = True
        self._incarnations: list[bytes] = []  # of this process: what it held before it was declared dead it holds still
        self._cleanup = contextlib.ExitStack()
        try:
            self._build()
        except BaseException:
            self._cleanup.close()
            raise

    def _build(self) -> None:
        config = self.config
        self.db: Any = open_database(self.url)
        self.url = url_of(self.db) or self.url  # tasks may change the working directory
        secrets = ClusterSecrets(self.db, self.space)
        sock = listen(config.address, config.port)
        self._cleanup.callback(sock.close)
        port = sock.getsockname()[1]
        ip = advertised(config.address, config.advertise, sock.getsockname()[0])
        self.address: tuple[str, int] = (ip, port)
        directory = WorkDirectory(config.spill)
        self._cleanup.callback(directory.remove)
        self.store = ObjectStore(directory, config.object_store)
        self._cleanup.callback(self.store.close)
        self._info = describe_self(config.slots, config.total, config.object_store)
        self.core = WorkerCore(WorkerId(ip, port, b""), config.slots, config.total)
        self.core.give_out_gpus(config.gpus)
        self.shell = Shell(
            self.db,
            self.space,
            self.core,
            self.store,
            self.url,
            grace=config.grace,
            object_store=config.object_store,
            files=config.files,
            address=sock.getsockname()[0],
            ttl=config.ttl,
        )
        self._cleanup.callback(self.shell.close)
        self._serve_objects(sock, secrets, directory)
        self.shell.join(self._join())
        self._keep_house(directory)

    def _serve_objects(self, sock: socket.socket, secrets: ClusterSecrets, directory: WorkDirectory) -> None:
        """Objects come from other workers, and go to them and to clients."""
        core, shell = self.core, self.shell
        fetcher = ObjectFetcher(secrets)
        self._cleanup.callback(fetcher.close)
        shell.inputs = Inputs(
            self.db, self.space, self.store, fetcher, shell.post, core.digests_in_hand, core.folders_in_hand
        )
        server = StoreServer(
            sock,
            secrets,
            self.store,
            self._about,
            shell.admit,
            core.runs,
            Stacks(directory.logs, shell.process_of).of,
            identity=Identity(OBJECTS, *self.address, lambda: None if self._joining else tuple(self._incarnations)),
        )
        server.start()
        self._cleanup.callback(server.close)

    def _join(self) -> WorkerId:
        """Join the cluster, also once more after this worker was declared dead."""
        self._joining = True
        worker = join(self.db, self.space, *self.address, self._info, ttl=self.config.ttl)
        self._incarnations.append(worker.incarnation)
        self._joining = False
        return worker

    def _keep_house(self, directory: WorkDirectory) -> None:
        """What goes on beside the tasks: signs of life, collecting, output, figures."""
        config = self.config
        collector = Collector(
            self.db,
            self.space,
            grace=config.collect_after,
            session_ttl=config.session_ttl,
            tombstones=config.tombstones,
            interval=min(PASS_SECONDS, max(LEAST_PASS_SECONDS, config.collect_after / 2)),
        )
        self._output = OutputKeeper(self.db, self.space, directory.path)
        audit = StoreAudit(self.db, self.space, self.store, lambda: self.core.worker, config.session_ttl)
        self._housekeeping = Housekeeping(
            self.db,
            self.space,
            ttl=config.ttl,
            me=lambda: self.core.worker,
            busy=lambda: bool(self.core.tasks),
            on_peers=self._on_peers,
            chores=(
                SpillWatch(self.store, lambda: self.shell.drain(0.0)).tick,
                self._output.tick,
                lambda: self._housekeeping.in_head and collector.tick(COLLECT_AT_ONCE),
                audit.tick,
            ),
        )
        self.shell.on_unsettled = self._housekeeping.hurry
        if config.metrics_port is not None:
            self.metrics = MetricsServer(
                lambda: worker_metrics(self.core, self.store, config.cluster), config.address, config.metrics_port
            )
            self._cleanup.callback(self.metrics.close)
        self._housekeeping.start()
        self._cleanup.callback(self._housekeeping.close)

    def _on_peers(self, live: list[WorkerStatus]) -> None:
        here = sorted((status.id.ip, status.id.port) for status in live)
        if self.address in here:
            beats = [s.heartbeat for s in live if s.heartbeat and (s.id.ip, s.id.port) != self.address]
            room = max((beat.free.shape for beat in beats if beat.free_slots), default=(0, 0, 0))
            seen = PeersSeen(here.index(self.address), len(here), sum(beat.free_slots for beat in beats), room)
            if seen != self._peers or seen.idle_slots:
                self._peers = seen
                self.shell.post(seen)

    def _about(self) -> dict[str, Any]:
        in_memory, on_disk = self.store.used()
        return {
            "incarnation": self.core.worker.incarnation,
            "pid": self._info.pid,
            "slots": self.config.slots,
            "object_store": in_memory,
            "spilled": on_disk,
        }

    def run(self, ready: Callable[[WorkerService], None] | None = None) -> None:
        """Works until drained. A worker that was declared dead (it was paused too long) starts anew by itself."""
        try:
            if ready is not None:
                ready(self)
            while True:
                self.shell.run()
                if not self.shell.fenced:
                    break
                before, worker = self.core.worker, self._join()
                self.shell.rejoin(worker)
                log.warning("worker %s works on as %s; what it held was given to others", before, worker)
            self._housekeeping.close()
            with contextlib.suppress(OSError):
                self._output.tick()  # what the last tasks printed
            leave(self.db, self.space, self.core.worker)
        finally:
            self._cleanup.close()


def serve(config: WorkerConfig, *, as_json: bool = False, ready: Callable[[WorkerService], None] | None = None) -> None:
    """Runs a worker in this process: one ready line on standard output, SIGTERM and SIGINT drain, again: at once.

    `ready` is called instead of any line on standard output.
    """
    log_to_stderr()
    sys.setswitchinterval(0.001)  # housekeeping must not hold the loop up for 5 ms
    config = replace(config, files=config.files or raise_file_limit())  # a waiting task costs the worker three
    service: WorkerService | None = None
    asked = 0
    told = threading.Event()

    def on_signal(number: int, _frame: Any) -> None:
        nonlocal asked
        asked += 1
        told.set()
        if service is not None:
            service.shell.drain(None if asked == 1 else 0.0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    service = WorkerService(config)
    if asked:  # while it started; it may have joined the cluster, which it has to leave
        service.shell.drain(0.0)
    # The loop itself waits for the database, which may be away.
    over = end_though_silent(told, service.db, lambda: max(config.grace, SILENT_SECONDS) if asked < 2 else 0.0)
    service.run(ready or (lambda s: _print_ready(s, as_json)))
    over.set()
    if not as_json and ready is None:
        with contextlib.suppress(OSError):  # whoever read it may be gone
            print("stopped", flush=True)


def _print_ready(service: WorkerService, as_json: bool) -> None:
    ip, port = service.address
    worker = service.core.worker
    if as_json:
        line = json.dumps(
            {"ready": True, "address": f"{ip}:{port}", "ip": ip, "port": port, "incarnation": worker.incarnation.hex()}
            | ({"metrics_port": service.metrics.address[1]} if service.metrics is not None else {})
            | {"cluster": service.space.cluster, "slots": service.core.slots, "pid": service._info.pid}
        )
    else:
        line = f"ready: worker {ip}:{port} of cluster {service.space.cluster}, {counted(service.core.slots, 'slot')}"
    with contextlib.suppress(OSError):  # a full disk, or nobody reads any more: it is no reason not to work
        print(line, flush=True)
