"""Transitions of several workers and clients in random order, under faults, against the model, with validate() each time."""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from fdb_schema import open_database

sys.path.insert(0, str(Path(__file__).parent))

from model import Future
from world import MODES, SESSIONS, Op, World

from fdb_datamodel import Backoff, Claim, Failure, FutureResult, FutureSpec, Locality, Outcome, WorkerId

EXAMPLES = int(os.environ.get("MAINSPRING_SEEDS") or 200)
_REASONS = ("error", "error", "crash", "oom", "unpickle")
_data = st.data()
_mode = st.sampled_from(MODES)


class Transitions(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        name = uuid.uuid4().hex
        self.world = World(open_database("memory:transitions"), f"c-{name}")
        self.world.start_worker(1)
        self.world.start_worker(2)
        self.made = 0

    # --- drawing

    def pick_worker(self, data: Any) -> WorkerId:
        pool = list(self.world.workers.values()) + self.world.ghosts[-2:]
        return data.draw(st.sampled_from(pool), label="worker")

    def pick_future(self, data: Any) -> Future:
        futures = list(self.world.model.futures.values())
        return futures[data.draw(st.integers(0, len(futures) - 1), label="future")]

    def new_id(self) -> bytes:
        self.made += 1
        return self.made.to_bytes(6, "big") + b"\x70\x00\x80" + b"\x00" * 7  # zeros: the encoding escapes them

    def draw_spec(self, data: Any, extra: list[bytes]) -> FutureSpec:
        known = [f.id for f in self.world.model.futures.values()] + extra
        deps = data.draw(st.lists(st.sampled_from(known), max_size=3, unique=True), label="deps") if known else []
        spec = FutureSpec(b"code", b"args", self.new_id(), data.draw(st.sampled_from(SESSIONS)), tuple(deps))
        kind = data.draw(st.sampled_from(("plain", "plain", "once", "short", "backoff", "soft", "pinned", "timeout")))
        if kind == "once":
            spec.max_retries = spec.max_worker_losses = spec.max_oom = 0
            spec.allow_reconstruction = False
        elif kind == "short":
            spec.max_retries, spec.max_worker_losses, spec.max_oom, spec.max_reconstructions = 1, 1, 0, 1
        elif kind == "backoff":
            spec.backoff = Backoff(2.0)
        elif kind in ("soft", "pinned"):
            spec.locality = Locality(self.pick_worker(data), None, kind == "pinned")
        elif kind == "timeout":
            spec.total_timeout = 5.0
        return spec

    def draw_outcome(self, data: Any, claim: Claim) -> Outcome:
        kinds = ["realize", "realize", "object", "fail", "fail", "drain", "permanent"]
        if claim.dependencies:
            kinds += ["miss", "miss"]
        kind = data.draw(st.sampled_from(kinds), label="outcome")
        if kind == "realize":
            return Outcome.realized(claim, b"result")
        if kind == "object":
            return Outcome.realized(claim, FutureResult(None, 100_000, "object"))
        if kind == "miss":
            return Outcome.missed_inputs(claim, claim.dependencies)
        if kind == "drain":
            return Outcome.relinquished(claim)
        reason = data.draw(st.sampled_from(_REASONS), label="reason")
        failure = Failure(reason, "it went wrong")
        return Outcome.failed(claim, failure, permanently=kind == "permanent" or reason == "unpickle")

    def draw_claim(self, data: Any, worker: WorkerId) -> Claim | None:
        held = self.world.held.get(worker.incarnation, [])
        if not held:
            return None
        return held[-1 - data.draw(st.integers(0, min(5, len(held) - 1)), label="claim")]

    def draw_op(self, data: Any) -> Op:
        """Any operation of a client or a worker."""
        world = self.world
        worker = self.pick_worker(data)
        kinds = ["submit", "submit", "claim", "claim", "turn", "turn", "turn", "single", "push", "put"]
        if world.model.futures:
            kinds += ["cancel", "delete", "resubmit", "recover", "subscribe", "copy", "assign", "claim_one"]
        kind = data.draw(st.sampled_from(kinds), label="operation")
        if kind == "submit":
            specs: list[FutureSpec] = []
            for _ in range(data.draw(st.integers(1, 3))):
                specs.append(self.draw_spec(data, [spec.id for spec in specs]))
            return world.submit(specs)
        if kind == "push":
            return world.push(FutureSpec(b"code", b"args", self.new_id(), SESSIONS[0]), worker)
        if kind == "put":
            return world.put(FutureSpec(id=self.new_id(), session=SESSIONS[1]), worker, data.draw(st.booleans()))
        if kind == "claim":
            return world.claim(worker, data.draw(st.sampled_from((1, 3, 100))))
        if kind in ("turn", "single"):
            claim = self.draw_claim(data, worker)
            if claim is not None and kind == "single":
                one = self.draw_outcome(data, claim)
                return world.turn(worker, [one], 0) if one.event == "miss_inputs" else world.single(one)
            held = self.world.held.get(worker.incarnation, [])
            claims = [c for c in held[-4:] if data.draw(st.booleans())]
            return world.turn(
                worker, [self.draw_outcome(data, c) for c in claims], data.draw(st.sampled_from((0, 2, 100)))
            )
        f = self.pick_future(data)
        if kind == "claim_one":
            return world.claim_one(f, worker)
        if kind == "cancel":
            return world.cancel(f)
        if kind == "delete":
            return world.delete(f)
        if kind == "resubmit":
            return world.resubmit(f, max(0, f.epoch - data.draw(st.sampled_from((0, 0, 1)))))
        if kind == "recover":
            return world.recover(f)
        if kind == "subscribe":
            return world.subscribe(f, data.draw(st.sampled_from(SESSIONS)))
        if kind == "copy":
            return world.copy(f, worker, data.draw(st.sampled_from((None, self.pick_worker(data)))))
        return world.assign(f, data.draw(st.sampled_from((None, worker))), data.draw(st.booleans()))

    # --- rules

    @rule(data=_data, mode=_mode)
    def one_operation(self, data: Any, mode: str) -> None:
        self.world.execute(self.draw_op(data), mode)
        self.world.check()

    @rule(data=_data, mode=_mode)
    def another_operation(self, data: Any, mode: str) -> None:
        self.world.execute(self.draw_op(data), mode)
        self.world.check()

    @rule(data=_data)
    def two_at_once(self, data: Any) -> None:
        self.world.interleave(self.draw_op(data), self.draw_op(data))
        self.world.check()

    @rule(port=st.sampled_from((1, 2, 3)))
    def worker_starts(self, port: int) -> None:
        self.world.start_worker(port)
        self.world.reap("plain")
        self.world.check()

    @precondition(lambda self: self.world.workers)
    @rule(data=_data, mode=_mode, reaped=st.sampled_from(("plain", "lost", "doubled", "late")))
    def worker_dies(self, data: Any, mode: str, reaped: str) -> None:
        worker = data.draw(st.sampled_from(list(self.world.workers.values())))
        self.world.kill(worker, mode)
        self.world.check()
        self.world.reap(reaped)
        self.world.check()

    @rule(seconds=st.sampled_from((0.3, 1.5, 10.0)))
    def time_passes(self, seconds: float) -> None:
        self.world.advance(seconds)
        self.world.check()


Transitions.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=25,
    deadline=None,
    print_blob=True,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
TestTransitions = Transitions.TestCase
