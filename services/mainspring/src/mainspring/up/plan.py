"""Which processes make a cluster, and how each is started: a pure function of what was asked for."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

from futures_worker.worker.registration import gpu_ids

S3_BUCKET: Final = "heap"
OWN: Final = frozenset({"log_format", "log_level", "grace"})
"""Settings of `up` for every service that a service's own table of the file goes before."""


class Stage(IntEnum):
    """Services start in this order and stop in the opposite one: who needs another goes first."""

    store = 0
    workers = 1
    keepers = 2  # tender, janitor
    schedulers = 3
    dashboard = 4


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """One process to be kept alive."""

    name: str
    command: tuple[str, ...]
    stage: Stage
    environment: Mapping[str, str] = field(default_factory=dict)
    says_ready: bool = False  # prints a line once it serves
    grace: float = 15.0  # seconds from SIGTERM to SIGKILL


@dataclass(frozen=True, slots=True)
class UpSettings:
    """What was asked for; paths absolute."""

    url: str
    cluster: str
    store: str
    state: Path
    workers: int = 2
    slots: int | None = None
    tenders: int = 1
    schedulers: int = 1
    janitors: int = 1
    dashboard: bool = False
    run: str | None = None
    endpoint_url: str | None = None
    s3_port: int | None = None  # of the development server; None: there is none
    config: Path | None = None
    log_format: str = "text"
    log_level: str = "info"
    otlp_endpoint: str | None = None
    grace: float = 10.0
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # service → what it is told by itself, of OWN
    dashboard_port: int | None = None  # None: the dashboard's own default
    gpus: str | None = None  # CUDA_VISIBLE_DEVICES, whose gpus the workers share


_VARIABLES: Final = {"MAINSPRING_LOG_FORMAT": "log_format", "MAINSPRING_LOG_LEVEL": "log_level"}


def services(settings: UpSettings) -> list[ServiceSpec]:
    """Every process of the cluster, in the order of starting."""
    plan = _Plan(settings)
    slots = () if settings.slots is None else ("--slots", str(settings.slots))
    spill = ("--spill", str(settings.state / "spill" / "{name}"))
    chosen = () if settings.run is None else ("--run", settings.run)
    if settings.s3_port is not None:
        plan.add_store(settings.s3_port)
    grace, patience = plan.graceful("worker")
    plan.add("worker", settings.workers, Stage.workers, *slots, *spill, *grace, says_ready=True, grace=patience)
    plan.add("tender", settings.tenders, Stage.keepers)
    plan.add("janitor", settings.janitors, Stage.keepers, grace=20)
    grace, patience = plan.graceful("scheduler")
    plan.add("scheduler", settings.schedulers, Stage.schedulers, *chosen, *grace, grace=patience)
    if settings.dashboard:
        at = () if settings.dashboard_port is None else ("--port", str(settings.dashboard_port))
        plan.add("dashboard", 1, Stage.dashboard, *at, says_ready=True)
    return plan.specs


def _share_of_gpus(visible: str | None, number: int, count: int) -> dict[str, str]:
    """Which of the gpus that are visible here a worker gives out, so that no two of several have one in common."""
    if visible is None or count == 1:
        return {}
    try:
        ids = gpu_ids(None, visible)[1]
    except ValueError:
        return {}  # the workers say what is wrong with it
    return {"CUDA_VISIBLE_DEVICES": ",".join(ids[number - 1 :: count])}


class _Plan:
    """The processes of one cluster, added in the order of starting."""

    def __init__(self, settings: UpSettings) -> None:
        self.specs: list[ServiceSpec] = []
        self._settings = settings
        self._environment = {
            "MAINSPRING_DB": settings.url,
            "MAINSPRING_CLUSTER": settings.cluster,
            "MAINSPRING_HEAP": settings.store,
            "MAINSPRING_LOG_FORMAT": settings.log_format,
            "MAINSPRING_LOG_LEVEL": settings.log_level,
        }
        if settings.endpoint_url is not None:
            self._environment["AWS_ENDPOINT_URL"] = settings.endpoint_url
        if settings.otlp_endpoint is not None:
            self._environment["MAINSPRING_OTLP_ENDPOINT"] = settings.otlp_endpoint

    def add(
        self, kind: str, count: int, stage: Stage, *arguments: str, says_ready: bool = False, grace: float | None = None
    ) -> None:
        """`count` processes of a service; "{name}" in their arguments is the name of each."""
        told = self._settings.own.get(kind, {})
        environment = {name: value for name, value in self._environment.items() if _VARIABLES.get(name) not in told}
        for number in range(1, count + 1):
            name = kind if count == 1 else f"{kind}-{number}"
            own = [argument.replace("{name}", name) for argument in arguments]
            shared = _share_of_gpus(self._settings.gpus, number, count) if kind == "worker" else {}
            command = [sys.executable, "-P", "-m", f"mainspring_{kind}", *own]
            # The database, cluster and heap of `up` hold for all, whatever the file says; the file's tables for the rest.
            if self._settings.config is not None:
                command += ["--config", str(self._settings.config)]
            patience = grace or self._settings.grace + 5
            self.specs.append(ServiceSpec(name, tuple(command), stage, environment | shared, says_ready, patience))

    def add_store(self, port: int) -> None:
        """A development S3 server."""
        where = ("--dir", str(self._settings.state / "s3"), "--port", str(port))
        command = (sys.executable, "-P", "-m", "s3heap_tender.devserver", *where)
        self.specs.append(ServiceSpec("s3", command, Stage.store, {}, says_ready=True))

    def graceful(self, kind: str) -> tuple[tuple[str, ...], float]:
        """The grace that a service is told, where its own settings don't say one; and for how long its end is waited for."""
        told = self._settings.own.get(kind, {}).get("grace")
        if told is None:
            return ("--grace", f"{self._settings.grace:g}"), self._settings.grace + 5
        return (), float(told) + 5
