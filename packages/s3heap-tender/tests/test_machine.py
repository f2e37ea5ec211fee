"""A Hypothesis state machine over one sysdb, heap, tender and two schedulers, at a virtual clock."""

from __future__ import annotations

import contextlib
import os
import sys
import uuid
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from fdb_schema import open_database
from s3heap_tender import ClaimLostError, ClaimRefusedError, TransitionError, history
from s3heap_tender.claims.outbox import Verdict

EXAMPLES = int(os.environ.get("MAINSPRING_SEEDS") or 200)
PARTITIONS = ("p", "q")


class Machine(RuleBasedStateMachine):
    tasks = Bundle("tasks")
    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        virtual: Any = sys.modules["s3heap_tender_tests_virtual"]
        self.bench = virtual.Bench(open_database(f"memory:machine-{uuid.uuid4().hex}"))
        self.names = 0
        self.deleted: set[uuid.UUID] = set()
        self.starts: dict[uuid.UUID, list[tuple[int, int, int]]] = {}

    @rule(
        target=tasks,
        partition=st.sampled_from(PARTITIONS),
        cadence=st.sampled_from((0.0, 1.0, 30.0)),
        overlap=st.sampled_from(("skip", "buffer_one", "buffer_all", "cancel_other")),
        many=st.booleans(),
    )
    def create(self, partition: str, cadence: float, overlap: str, many: bool) -> Any:
        self.names += 1
        more = {"min_records": 3, "max_wait": 20.0} if many else {}
        task = self.bench.sysdb.create_task(
            partition, f"t{self.names}", cadence=cadence, overlap=overlap, max_attempts=2, **more
        )
        return task.id

    @rule(partition=st.sampled_from(PARTITIONS), records=st.integers(1, 4))
    def write(self, partition: str, records: int) -> None:
        self.bench.write(partition, records)

    @rule()
    def tend(self) -> None:
        self.bench.tend()

    @rule(seconds=st.sampled_from((0.1, 0.6, 5.0, 31.0, 70.0)))
    def wait(self, seconds: float) -> None:
        self.bench.clock.sleep(seconds)

    @rule(target=claims)
    def claim(self) -> Any:
        for item in self.bench.heap.peek(10):
            sysdb = self.bench.new_sysdb()
            with contextlib.suppress(ClaimRefusedError):
                claim = sysdb.claim(item)
                assert item.task not in self.deleted, "G4: a claim committed after the deletion"
                self.starts.setdefault(item.task, []).append((round(claim.started * 1e6), claim.gen, claim.epoch))
                return sysdb, claim
        return multiple()

    @rule(held=consumes(claims), outcome=st.sampled_from(("finish", "read all", "fail", "die")))
    def settle(self, held: Any, outcome: str) -> None:
        sysdb, claim = held
        try:
            if outcome == "finish":
                sysdb.finish(claim)
            elif outcome == "read all":
                sysdb.finish(claim, sysdb.log_end(claim.task.partition))
            elif outcome == "fail":
                sysdb.fail(claim, "no")
        except ClaimLostError:
            pass
        sysdb.close()

    @rule(id=tasks, request=st.sampled_from(("pause", "resume", "run_now", "backfill", "redrive")))
    def request(self, id: uuid.UUID, request: str) -> None:
        if id in self.deleted:
            return
        sysdb = self.bench.sysdb
        if request == "backfill":
            sysdb.backfill(id, 1)
        elif request == "redrive":
            with contextlib.suppress(TransitionError):
                sysdb.redrive(id, sysdb.get(id).gen)
        else:
            getattr(sysdb, request)(id)

    @rule(id=consumes(tasks))
    def delete(self, id: uuid.UUID) -> None:
        assert self.bench.sysdb.delete(id) is (id not in self.deleted)
        self.deleted.add(id)

    @rule()
    def prune(self) -> None:
        self.bench.heap.prune()

    @invariant()
    def what_is_needed_is_on_the_heap_or_on_its_way(self) -> None:
        sysdb = self.bench.sysdb
        there = {record for content in self.bench.heap.scan() for record in content.records}
        for task in sysdb.tasks():
            if task.state == "waiting":
                continue
            assert sysdb.verdicts([task.item]) == [Verdict.LIVE]
            pending = sysdb.describe(task.id).intent_pending
            assert pending or task.state == "running" or task.item.pack() in there

    def teardown(self) -> None:
        bench = self.bench
        for task in list(bench.sysdb.tasks()):
            if task.paused:
                bench.sysdb.resume(task.id)
            if task.dead:
                bench.sysdb.redrive(task.id, task.gen)
        sessions = type(bench.sysdb.sessions)
        for task in list(bench.sysdb.tasks()):
            if task.state == "running":
                session = sysdb_session(bench, task.id)
                sessions(session).close()
        for _ in range(60):
            bench.settle(lambda task, gen, epoch: None, seconds=10, step=5.0)
            if all(task.state == "waiting" for task in bench.sysdb.tasks()):
                break
        for task in bench.sysdb.tasks():
            assert task.state == "waiting", task
            assert task.completion_offset >= bench.sysdb.log_end(task.partition), f"G2: {task}"
        for starts in self.starts.values():
            assert len({epoch for _, _, epoch in starts}) == len(starts)
        bench.clock.sleep(7200)
        bench.heap.prune()
        assert bench.heap.buckets() == []
        assert [str(found) for found in history.check(bench.lines)] == []


def sysdb_session(bench: Any, id: uuid.UUID) -> str:
    from s3heap_tender.claims import transitions

    row = bench.sysdb.read(lambda tr, at: transitions.load_existing(tr, at, id))
    return str(row.session)


TestSeededMachine = Machine.TestCase
TestSeededMachine.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
