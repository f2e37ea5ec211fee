"""A cluster for unit tests: run transitions, count what they cost, look at rows."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from typing import Any

import fdb_datamodel as dm
from fdb_datamodel import Capacity, Claim, ClusterSpace, FutureSpec, MailEntry, WorkerId, WorkerInfo
from fdb_schema import ClockReading, open_database, read_range
from idempotent_txn import run


class Lab:
    """`lab(fn, …)` runs `fn(tr, space, …)` in a transaction."""

    def __init__(self, db: Any = None) -> None:
        self.db = db or open_database("memory:datamodel-tests")
        self.space = ClusterSpace(f"lab-{uuid.uuid4().hex}")
        self.commits = 0
        self.session = os.urandom(16)

    def __call__(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.commits += 1
        return run(self.db, fn, self.space, *args, **kwargs)

    def worker(self, port: int = 1, **info: Any) -> WorkerId:
        return self(dm.register_worker, WorkerId("127.0.0.1", port, dm.new_incarnation()), WorkerInfo(**info))

    def kill(self, worker: WorkerId) -> None:
        sighting = next(seen for seen in self(dm.sightings) if seen.id == worker)
        assert self(dm.declare_dead, sighting)

    def reap(self) -> None:
        while self(dm.reap):
            pass

    def spec(self, **options: Any) -> FutureSpec:
        return FutureSpec(b"code", session=self.session, **options)

    def submit(self, *specs: FutureSpec) -> list[bytes]:
        return self(dm.submit_futures, list(specs))

    def claim(self, worker: WorkerId, limit: int = 100, capacity: Capacity | None = None) -> list[Claim]:
        return self(dm.claim_futures, worker, capacity or Capacity(), limit)

    def state(self, future_id: bytes) -> str:
        return str(self(dm.get_future_state, future_id))

    def info(self, future_id: bytes) -> dm.FutureInfo:
        return self(dm.describe_future, future_id)

    def mail(self, session: bytes | None = None) -> list[MailEntry]:
        return self(dm.read_mailbox, session or self.session)[0]

    def clock(self, seconds: float) -> int:
        now = round(seconds * 1e6)
        row = ClockReading(now, 0, 0).encode()
        run(self.db, lambda tr: tr.set(self.space.clock_key, row))
        return now

    def rows(self) -> dict[tuple[Any, ...], bytes]:
        span = self.space.range(())
        found = run(self.db, lambda tr: read_range(tr, span.start, span.stop))
        return {self.space.unpack(key): value for key, value in found}

    def packed(self) -> list[bytes]:
        span = self.space.range(())
        return [key for key, _ in run(self.db, lambda tr: read_range(tr, span.start, span.stop))]

    def set_row(self, key: bytes, value: bytes | None) -> None:
        def write(tr: Any) -> None:
            if value is None:
                tr.clear(key)
            else:
                tr.set(key, value)

        run(self.db, write)

    def validate(self) -> list[dm.Violation]:
        return dm.validate(self.db, self.space)
