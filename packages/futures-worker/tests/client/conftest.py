"""A worker inside the test process: claims, runs and realizes through the data model, so that clients can be tested fast."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fdb_datamodel import (
    Capacity,
    Claim,
    ClusterSpace,
    Outcome,
    WorkerFencedError,
    WorkerId,
    WorkerSighting,
    claims_of,
    declare_dead,
    finish_turn,
    get_code,
    new_incarnation,
    reap,
    register_worker,
    sightings,
)
from fdb_datamodel import Failure as FailureRecord
from futures_worker.payload import dump_exception, dump_result, load_call, load_result
from idempotent_txn import run


class ThreadWorker(threading.Thread):
    """Serves a cluster until `stop()`. With `crashes`, it dies that often per task and comes back as a new incarnation."""

    def __init__(self, db: Any, cluster: str, port: int = 1, *, seed: int = 0, crashes: float = 0.0) -> None:
        super().__init__(name=f"worker-{port}", daemon=True)
        self.db = db
        self.space = ClusterSpace(cluster)
        self.port = port
        self.random = random.Random(seed)
        self.crashes = crashes
        self.ended = threading.Event()
        self.trouble: BaseException | None = None
        self.me = self._register()

    def run(self) -> None:
        outcomes: list[Outcome] = []
        try:
            while not self.ended.is_set():
                try:
                    claims = list(run(self.db, finish_turn, self.space, self.me, outcomes, Capacity(), 4))
                    claims = claims or run(self.db, claims_of, self.space, self.me)  # pushed by a client
                except WorkerFencedError:
                    self.me, outcomes = self._register(), []
                    continue
                outcomes = [self._outcome(claim) for claim in claims]
                if claims and self.random.random() < self.crashes:
                    self._die()
                    self.me, outcomes = self._register(), []
                if not claims:
                    self.ended.wait(0.001)
        except BaseException as error:  # told by stop()
            self.trouble = error

    def stop(self) -> None:
        self.ended.set()
        self.join(60)
        assert not self.is_alive()
        if self.trouble is not None:
            raise self.trouble

    def _register(self) -> WorkerId:
        return run(self.db, register_worker, self.space, WorkerId("127.0.0.1", self.port, new_incarnation()))

    def _die(self) -> None:
        """As another process would find it: the incarnation is fenced, what it held is given back."""
        for sighting in run(self.db, sightings, self.space):
            if sighting.id == self.me:
                run(self.db, declare_dead, self.space, WorkerSighting(sighting.id, sighting.counter))
        while run(self.db, reap, self.space):
            pass

    def _outcome(self, claim: Claim) -> Outcome:
        try:
            values = [load_result(claim.inputs[dependency].inline or b"") for dependency in claim.dependencies]
            code = run(self.db, get_code, self.space, claim.code)
            args = run(self.db, get_code, self.space, claim.args)
            function, positional, keywords = load_call(code, args, values)
            return Outcome.realized(claim, dump_result(function(*positional, **keywords)).to_bytes())
        except BaseException as error:
            failure = FailureRecord("error", str(error), dump_exception(error).to_bytes())
            return Outcome.failed(claim, failure)


@pytest.fixture
def thread_worker() -> Iterator[Callable[..., ThreadWorker]]:
    """Start workers in threads: `thread_worker(db, cluster, port, seed=, crashes=)`; stopped at the end."""
    started: list[ThreadWorker] = []

    def start(db: Any, cluster: str, port: int = 1, **options: Any) -> ThreadWorker:
        worker = ThreadWorker(db, cluster, port, **options)
        started.append(worker)
        worker.start()
        return worker

    yield start
    for worker in started:
        worker.stop()
