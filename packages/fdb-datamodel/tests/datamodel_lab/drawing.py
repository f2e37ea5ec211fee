"""What workers and clients do next, drawn by whoever decides: Hypothesis, which can shrink, or a seeded generator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from datamodel_lab.model import Future
from datamodel_lab.world import SESSIONS, Op, World
from fdb_datamodel import Backoff, Claim, Failure, FutureResult, FutureSpec, Locality, Outcome, Requirements, WorkerId

Choose = Callable[[str, Sequence[Any]], Any]

_REASONS = ("error", "error", "crash", "oom", "oom", "unpickle")
_KINDS = ("plain", "plain", "plain", "once", "short", "backoff", "soft", "pinned", "timeout")
_NEEDS = (None, None, Requirements(1, 1000), Requirements(0, 0, 1), Requirements(1, "1GiB", 1, named={"db": 1}))


class Drawing:
    def __init__(self, world: World, choose: Choose) -> None:
        self.world = world
        self.choose = choose
        self.made = 0

    def worker(self) -> WorkerId:
        pool = list(self.world.workers.values()) * 3 + self.world.ghosts[-2:]
        return self.choose("worker", pool)  # type: ignore[no-any-return]

    def future(self) -> Future:
        return self.choose("future", list(self.world.model.futures.values()))  # type: ignore[no-any-return]

    def new_id(self) -> bytes:
        self.made += 1
        return self.made.to_bytes(6, "big") + b"\x70\x00\x80" + b"\x00" * 7  # zeros: the encoding escapes them

    def spec(self, earlier: list[bytes]) -> FutureSpec:
        known = [f.id for f in self.world.model.futures.values() if f.state != "deleted"] + earlier
        deps: list[bytes] = []
        if known:
            for _ in range(self.choose("dependencies", (0, 0, 1, 1, 2, 3))):
                deps.append(self.choose("dependency", known))
        spec = FutureSpec(b"code", b"args", self.new_id(), self.choose("session", SESSIONS), tuple(dict.fromkeys(deps)))
        kind = self.choose("kind", _KINDS)
        if kind == "once":
            spec.max_retries = spec.max_worker_losses = spec.max_oom = 0
            spec.allow_reconstruction = False
        elif kind == "short":
            spec.max_retries, spec.max_worker_losses, spec.max_oom, spec.max_reconstructions = 1, 1, 0, 1
        elif kind == "backoff":
            spec.backoff = Backoff(2.0)
        elif kind in ("soft", "pinned"):
            spec.locality = Locality(self.worker(), None, kind == "pinned")
        elif kind == "timeout":
            spec.total_timeout = 5.0
        spec.requirements = _NEEDS[self.made % len(_NEEDS)]
        return spec

    def outcome(self, claim: Claim) -> Outcome:
        kinds = ["realize", "object", "object", "fail", "drain", "permanent"]
        kind = self.choose("outcome", kinds)
        world = self.world.model
        lost = [dep for dep in claim.dependencies if not world.available(world.futures[dep])]
        if lost:
            kind = "miss"  # it can't run without them
        elif claim.dependencies and kind == "drain":
            lost, kind = list(claim.dependencies), "miss"  # it couldn't reach them
        if kind == "realize":
            return Outcome.realized(claim, b"result")
        if kind == "object":
            return Outcome.realized(claim, FutureResult(None, 100_000, "object"))
        if kind == "miss":
            return Outcome.missed_inputs(claim, lost)
        if kind == "drain":
            return Outcome.relinquished(claim)
        reason = self.choose("reason", _REASONS)
        return Outcome.failed(claim, Failure(reason, "it went wrong"), kind == "permanent" or reason == "unpickle")

    def operation(self) -> Op:
        """Any operation of a client or a worker."""
        world, choose = self.world, self.choose
        kinds = ["submit", "submit", "submit", "claim", "turn", "turn", "turn", "turn", "single", "push", "put"]
        if world.model.futures:
            kinds += ["cancel", "delete", "resubmit", "recover", "subscribe", "copy", "copy", "assign", "claim_one"]
        kind = choose("operation", kinds)
        if kind == "submit":
            specs: list[FutureSpec] = []
            for _ in range(choose("specs", (1, 2, 3))):
                specs.append(self.spec([spec.id for spec in specs]))
            return world.submit(specs)
        worker = self.worker()
        if kind == "push":
            return world.push(FutureSpec(b"code", b"args", self.new_id(), SESSIONS[0]), worker)
        if kind == "put":
            spec = FutureSpec(id=self.new_id(), session=SESSIONS[1])
            return world.put(spec, worker, choose("inline", (False, True)))
        if kind == "claim":
            return world.claim(worker, choose("limit", (1, 3, 100)))
        if kind in ("turn", "single"):
            held = world.held.get(worker.incarnation, [])[-6:]
            running = [claim for claim in held if world.model.futures[claim.id].token == claim.token]
            if kind == "single" and held:
                one = self.outcome(choose("claim", held))
                return world.turn(worker, [one], 0) if one.event == "miss_inputs" else world.single(one)
            claims = [claim for claim in (running or held)[-4:] if choose("ends", (True, True, False))]
            return world.turn(worker, [self.outcome(claim) for claim in claims], choose("limit", (0, 2, 100)))
        f = self.future()
        if kind == "claim_one":
            return world.claim_one(f, worker)
        if kind == "cancel":
            return world.cancel(f)
        if kind == "delete":
            return world.delete(f)
        if kind == "resubmit":
            return world.resubmit(f, max(0, f.epoch - choose("stale by", (0, 0, 1))))
        if kind == "recover":
            return world.recover(f)
        if kind == "subscribe":
            return world.subscribe(f, choose("session", SESSIONS))
        if kind == "copy":
            return world.copy(f, worker, choose("source", (None, self.worker())))
        return world.assign(f, choose("target", (None, worker)), choose("pinned", (False, True)))
