"""A worker's place in the cluster: taken at start, given up at the end, never shared by two that live."""

from __future__ import annotations

import itertools
import math
import os
import socket
import time
from collections.abc import Iterable, Mapping
from typing import Any

from fdb_datamodel import (
    ClusterSpace,
    Requirements,
    WorkerId,
    WorkerInfo,
    WorkerSighting,
    WorkerStatus,
    find_worker,
    new_incarnation,
    reap,
    register_worker,
    run_apart,
    unregister_worker,
)
from fdb_schema import process_start
from futures_worker.errors import AddressInUseError
from futures_worker.liveness import TTL_SECONDS, process_space, worker_gone
from idempotent_txn import run

MOST_GPUS = 1024
_LOOK = 0.25
"""Seconds between looks at the heartbeat of an earlier incarnation."""


def whole_machine(
    cpus: float | None = None, ram: int | None = None, gpus: float = 0, named: Mapping[str, float] | None = None
) -> Requirements:
    """What a worker offers that wasn't told otherwise: the cpus that this process may use, and 80 % of the memory.

    `named`: other resources. Raises ValueError.
    """
    memory = int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 0.8)
    offered = float(len(os.sched_getaffinity(0))) if cpus is None else cpus
    return Requirements(offered, memory if ram is None else ram, gpus, named or {})


def gpu_ids(gpus: float | None, visible: str | None) -> tuple[float, tuple[str, ...]]:
    """How many gpus a worker offers, and their ids as CUDA_VISIBLE_DEVICES has them; `visible`: what that is for the worker.

    gpus: None is all that are visible to it by that variable. Ids that it doesn't say are 0, 1 and so on. Raises ValueError.
    """
    named = visible.split(",") if visible else []
    ids = [one.strip() for one in itertools.takewhile(lambda one: one.strip() not in ("", "-1"), named)]
    if len(set(ids)) < len(ids):
        raise ValueError(f"CUDA_VISIBLE_DEVICES={visible} names a gpu twice")
    if gpus is None:
        return float(len(ids)), tuple(ids)
    count = math.ceil(gpus)
    if visible is None:
        ids = [str(at) for at in range(min(count, MOST_GPUS))]
    if count > len(ids):
        there = (
            f"CUDA_VISIBLE_DEVICES={visible!r} names {len(ids)}" if visible is not None else f"{MOST_GPUS} are possible"
        )
        raise ValueError(f"{gpus:g} gpus are asked for, and {there}")
    return gpus, tuple(ids[:count])


def read_offers(texts: Iterable[str]) -> dict[str, float]:
    """Named resources and amounts of "db=1" and the like. Raises ValueError."""
    found: dict[str, float] = {}
    for text in texts:
        name, equals, amount = text.partition("=")
        try:
            if not equals or name in found:
                raise ValueError
            found[name] = float(amount)
        except ValueError:
            raise ValueError(
                f"--resource {text}: it is named twice"
                if name in found
                else f"--resource {text}: write NAME=AMOUNT, as db=1"
            ) from None
    return found


def describe_self(slots: int, total: Requirements, object_store: int) -> WorkerInfo:
    """What this process registers about itself."""
    started = process_start(os.getpid())
    return WorkerInfo(
        slots=slots,
        total=total,
        object_store=object_store,
        pid=os.getpid(),
        boot_id=process_space(),
        host=socket.gethostname(),
        wall_us=int(time.time() * 1e6),
        pid_start=started[0] if started else 0,
    )


def join(db: Any, space: ClusterSpace, ip: str, port: int, info: WorkerInfo, *, ttl: float = TTL_SECONDS) -> WorkerId:
    """Registers a fresh incarnation at an address and gives back what an earlier one had claimed.

    An earlier incarnation is replaced at once if its process is gone on this boot of this host, or after its heartbeat
    stood still for `ttl` seconds. Raises `AddressInUseError` as soon as it is seen to live.
    """
    me = WorkerId(ip, port, new_incarnation())
    before = run(db, find_worker, space, ip, port, strategy="off")
    replaces = None if before is None else _judge(db, space, before, ttl)
    run(db, register_worker, space, me, info, replaces)
    while run_apart(db, space, reap, space):
        pass
    return me


def leave(db: Any, space: ClusterSpace, worker: WorkerId) -> None:
    """Gives up the place; whatever is still held goes back, charged to nobody."""
    run(db, unregister_worker, space, worker)
    while run_apart(db, space, reap, space):
        pass


def _judge(db: Any, space: ClusterSpace, before: WorkerStatus, ttl: float) -> WorkerSighting:
    """The earlier incarnation, once it is known to be dead. Raises `AddressInUseError` if it lives."""
    seen = _counter(before)
    this_process = before.info.boot_id == process_space() != "" and before.info.pid == os.getpid()
    if this_process or worker_gone(before.info):
        return WorkerSighting(before.id, seen)
    give_up = time.monotonic() + ttl
    while time.monotonic() < give_up:
        time.sleep(_LOOK)  # a heartbeat is not an event that this process could wait for
        now = run(db, find_worker, space, before.id.ip, before.id.port, strategy="off")
        if now is None:
            break
        if now.id != before.id or _counter(now) != seen:
            raise AddressInUseError(
                f"worker {now.id.ip}:{now.id.port} of cluster {space.cluster!r} is alive "
                f"(pid {now.info.pid} on {now.info.host}): choose another --address or --port"
            )
    return WorkerSighting(before.id, seen)


def _counter(status: WorkerStatus) -> int:
    return status.heartbeat.counter if status.heartbeat is not None else 0
