"""Puts futures of a cluster into states, without workers."""

from __future__ import annotations

import time
from typing import Any

import fdb_datamodel as dm
from fdb_datamodel import FutureSpec, Requirements, WorkerId, WorkerInfo
from fdb_schema import ClusterSpace, open_database
from idempotent_txn import run


class Lab:
    """Puts futures into states."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.db: Any = open_database(url)
        self.space = ClusterSpace("demo")
        self.worker = WorkerId("127.0.0.1", 7000, bytes(range(16)))
        total = Requirements(cpu=2, ram="4GiB")
        info = WorkerInfo(slots=2, total=total, host="here", pid=4242, wall_us=time.time_ns() // 1000)
        self(dm.open_cluster)
        self(dm.register_worker, self.worker, info)

    def __call__(self, transition: Any, *args: Any) -> Any:
        return run(self.db, transition, self.space, *args)

    def submit(self, **fields: Any) -> bytes:
        spec = FutureSpec(code=b"never unpickled", **fields)
        self(dm.submit_future, spec)
        return spec.id

    def realize(self, future_id: bytes, result: bytes = b"not a pickle") -> None:
        self(dm.realize_future, self(dm.claim_future, future_id, self.worker), result)

    def fail(self, future_id: bytes, why: str) -> None:
        self(dm.fail_future, self(dm.claim_future, future_id, self.worker), why, True)
