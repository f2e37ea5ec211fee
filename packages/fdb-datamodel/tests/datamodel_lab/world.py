"""Workers and clients that run transitions under faults, and the model that says what must come of it.

An operation is a body (a transaction) and what its value means to the model. It is executed plainly, or its commit is
lost (the body runs again), doubled (committed twice, as after an unknown result), late (a second run commits first), or
interleaved with another operation (read before, committed after).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import fdb_datamodel as dm
from datamodel_lab.model import ENDED, Future, Model
from fdb_datamodel import (
    Capacity,
    Claim,
    ClaimLostError,
    Claims,
    ClusterSpace,
    Failure,
    FutureDeletedError,
    FutureResult,
    FutureSpec,
    FutureStateError,
    Locality,
    Outcome,
    Requirements,
    WorkerFencedError,
    WorkerId,
    WorkerSighting,
)
from fdb_datamodel.rows.ids import show_id
from fdb_schema import ClockReading, MainspringError, fdb_error_code

SESSIONS = (b"a" * 16, b"b" * 16)
ROOM = Capacity(Requirements(1000, "1TiB", 1000, named={"db": 1000}))  # for all that is drawn
MODES = ("plain", "plain", "lost", "doubled", "late")


@dataclass
class Op:
    body: Callable[[Any], Any]
    apply: Callable[[Any], None]
    again: Callable[[Any], None] | None = None  # of a second committed run; None: it must change nothing


class World:
    def __init__(self, db: Any, cluster: str) -> None:
        self.db = db
        self.space = ClusterSpace(cluster)
        self.model = Model()
        self.workers: dict[int, WorkerId] = {}
        self.held: dict[bytes, list[Claim]] = {}  # incarnation → claims it got, ended ones too
        self.ghosts: list[WorkerId] = []  # incarnations declared dead that don't know it
        self.fresh = True  # the transaction being applied read what was committed just before

    # --- execution

    def attempt(self, body: Callable[[Any], Any]) -> tuple[Any, Any]:
        """A transaction whose body ran and that isn't committed: (tr, value)."""
        while True:
            tr = self.db.create_transaction()
            try:
                return tr, body(tr)
            except MainspringError as error:
                return None, error
            except Exception as error:
                if fdb_error_code(error) is None:
                    raise

    def commit(self, tr: Any) -> bool:
        if tr is None:
            return True
        try:
            tr.commit().wait()
        except Exception as error:
            if fdb_error_code(error) != 1020:
                raise
            return False
        return True

    def plain(self, op: Op) -> Any:
        while True:
            tr, value = self.attempt(op.body)
            if self.commit(tr):
                op.apply(value)
                return value

    def execute(self, op: Op, mode: str) -> None:
        if mode == "lost":
            self.attempt(op.body)
        if mode == "late":
            early, value = self.attempt(op.body)
            self.plain(op)
            if early is not None and self.commit(early) and op.again is not None:
                self.fresh = False
                op.again(value)
                self.fresh = True
            return
        self.plain(op)
        if mode == "doubled":
            tr, value = self.attempt(op.body)
            assert self.commit(tr)
            if op.again is not None and not isinstance(value, MainspringError):
                op.again(value)

    def interleave(self, first: Op, second: Op) -> None:
        tr, value = self.attempt(first.body)
        self.plain(second)
        # One that only read takes its place before `second`: it says nothing about now.
        if tr is not None and self.commit(tr) and tr.get_committed_version() >= 0:
            self.fresh = False
            first.apply(value)
            self.fresh = True
        else:
            self.plain(first)

    # --- operations

    def submit(self, specs: list[FutureSpec]) -> Op:
        def apply(value: Any) -> None:
            assert value == [spec.id for spec in specs], value
            for spec in specs:
                self.model.submit(_future(spec))

        def body(tr: Any) -> Any:
            return dm.submit_futures(tr, self.space, specs)

        def apply_or_refused(value: Any) -> None:
            if isinstance(value, FutureDeletedError):
                gone = {f.id for f in self.model.futures.values() if f.state == "deleted"}
                assert any(gone.intersection(spec.dependencies) for spec in specs)
                return
            apply(value)

        return Op(body, apply_or_refused)

    def push(self, spec: FutureSpec, worker: WorkerId) -> Op:
        def apply(value: Any) -> None:
            if isinstance(value, WorkerFencedError):
                assert worker.incarnation not in self.model.live
                return
            f = _future(spec)
            self.model.futures[f.id] = f
            f.state = "unclaimed"
            self.take_claims(worker, value)

        return Op(lambda tr: dm.submit_claimed(tr, self.space, [spec], worker), apply)

    def put(self, spec: FutureSpec, worker: WorkerId, inline: bool) -> Op:
        result: Any = b"put" if inline else FutureResult(None, 100_000, "put")

        def apply(value: Any) -> None:
            if isinstance(value, WorkerFencedError):
                assert worker.incarnation not in self.model.live
                return
            f = Future(spec.id, spec.session, allow_reconstruction=False, has_code=False, state="realized", attempts=1)
            f.inline = inline
            f.copies = set() if inline else {worker.incarnation}
            self.model.futures[f.id] = f

        return Op(lambda tr: dm.put_realized_future(tr, self.space, spec, worker, result), apply)

    def take_claims(self, worker: WorkerId, claims: Any) -> None:
        for claim in claims:
            f = self.model.futures[claim.id]
            assert worker.incarnation in self.model.live
            self.model.claim(f, worker.incarnation, claim.token, claim.attempt, claim.epoch)
            assert set(claim.inputs) == set(f.deps)
            self.held.setdefault(worker.incarnation, []).append(claim)

    def claim(self, worker: WorkerId, limit: int) -> Op:
        def apply(value: Any) -> None:
            if isinstance(value, WorkerFencedError):
                assert worker.incarnation not in self.model.live
                return
            self.put_back()
            self.take_claims(worker, value)
            if len(value) < limit and self.fresh and not value.more:
                for f in self.model.futures.values():
                    assert f.state != "unclaimed" or (f.where is not None and f.where[0] != worker.incarnation), (
                        f"{show_id(f.id)} could be claimed and wasn't"
                    )

        return Op(lambda tr: dm.claim_futures(tr, self.space, worker, ROOM, limit), apply, apply)

    def put_back(self) -> None:
        """A claim sends futures that lack an input back to wait, or ends them: follow what it decided."""
        changed = True
        while changed:
            changed = False
            for f in list(self.model.futures.values()):
                lacks = any(self.model.futures[dep].state != "realized" for dep in f.deps)
                if f.state == "unclaimed" and lacks and self.state(f.id) != "unclaimed":
                    self.model.place(f)
                    changed = True

    def claim_one(self, f: Future, worker: WorkerId) -> Op:
        def apply(value: Any) -> None:
            lacks = any(self.model.futures[dep].state != "realized" for dep in f.deps)
            elsewhere = f.where is not None and f.where[0] != worker.incarnation
            if isinstance(value, Claim):
                self.take_claims(worker, [value])
            elif isinstance(value, WorkerFencedError):
                assert worker.incarnation not in self.model.live
            else:
                assert f.state != "unclaimed" or lacks or elsewhere, value

        return Op(lambda tr: dm.claim_future(tr, self.space, f.id, worker), apply, lambda value: None)

    def turn(self, worker: WorkerId, outcomes: list[Outcome], limit: int) -> Op:
        def apply(value: Any) -> None:
            if isinstance(value, WorkerFencedError):
                assert worker.incarnation not in self.model.live
                return
            assert isinstance(value, Claims)
            stale = set()
            for one in sorted(outcomes, key=lambda one: one.event != "realize_future"):
                f = self.model.futures[one.claim.id]
                if f.state == "claimed" and f.token == one.claim.token:
                    self.end(f, one)
                elif not (one.event == "realize_future" and f.state == "realized" and f.token == one.claim.token):
                    stale.add(f.id)
            assert set(value.stale) == stale
            self.put_back()
            self.take_claims(worker, value)

        def again(value: Any) -> None:
            self.put_back()
            self.take_claims(worker, value)

        return Op(lambda tr: dm.finish_turn(tr, self.space, worker, outcomes, ROOM, limit), apply, again)

    def end(self, f: Future, one: Outcome) -> None:
        if one.event == "realize_future":
            self.model.realize(f, isinstance(one.result, bytes))
        elif one.event == "miss_inputs":
            self.model.miss_inputs(f, list(one.lost))
        else:
            assert one.failure is not None
            self.model.end_attempt(f, one.failure.reason, one.permanently, one.started)

    def single(self, one: Outcome) -> Op:
        claim = one.claim

        def body(tr: Any) -> Any:
            if one.event == "realize_future":
                return dm.realize_future(tr, self.space, claim, one.result)
            if one.event == "fail_future":
                return dm.fail_future(tr, self.space, claim, one.failure, one.permanently)
            return dm.relinquish_claim(tr, self.space, claim, one.failure.reason)

        def apply(value: Any) -> None:
            f = self.model.futures[claim.id]
            if f.state == "claimed" and f.token == claim.token and claim.worker.incarnation in self.model.live:
                self.end(f, one)
                assert value is None or value == f.state
            else:
                done = f.attempts == claim.attempt and f.state != "claimed"
                assert isinstance(value, ClaimLostError) or done, value

        return Op(body, apply)

    def cancel(self, f: Future) -> Op:
        def apply(value: Any) -> None:
            if f.state == "deleted":
                assert isinstance(value, FutureDeletedError)
            else:
                self.model.cancel(f)
                assert value == f.state

        return Op(lambda tr: dm.cancel_future(tr, self.space, f.id), apply)

    def delete(self, f: Future) -> Op:
        return Op(lambda tr: dm.delete_future(tr, self.space, f.id), lambda value: self.model.delete(f))

    def resubmit(self, f: Future, epoch: int) -> Op:
        def apply(value: Any) -> None:
            if f.state == "deleted":
                assert isinstance(value, FutureDeletedError)
                return
            may = f.state in ENDED and f.epoch == epoch
            if may and f.state == "failed" and not f.has_code:
                assert isinstance(value, FutureStateError)
                return
            assert value is may
            if may:
                self.model.reconstruct(f, lost=f.state == "realized")

        def again(value: Any) -> None:
            # A Realized future that may not be reconstructed failed in its epoch: a repeat is a retry of the failed one.
            if value is True:
                assert f.has_code
                assert not f.allow_reconstruction or f.epoch >= f.max_reconstructions or f.state == "failed"
                self.model.reconstruct(f, lost=False)

        return Op(lambda tr: dm.resubmit_future(tr, self.space, f.id, epoch), apply, again)

    def recover(self, f: Future) -> Op:
        def apply(value: Any) -> None:
            if f.state == "deleted":
                assert isinstance(value, FutureDeletedError)
                return
            assert (value is not None) == self.model.recover(f)

        return Op(lambda tr: dm.recover_result(tr, self.space, f.id, 0), apply)

    def subscribe(self, f: Future, session: bytes) -> Op:
        def apply(value: Any) -> None:
            assert [entry.kind for entry in value] == (
                ["failed" if f.state == "deleted" else f.state] if f.state in ENDED else []
            )
            if f.state not in ENDED:
                self.model.subscribers.setdefault(f.id, set()).add(session)

        return Op(lambda tr: dm.subscribe(tr, self.space, session, [f.id]), apply)

    def copy(self, f: Future, to: WorkerId, source: WorkerId | None) -> Op:
        """Clone to `to`, or transfer there from `source`."""
        token = f.token or b""

        def body(tr: Any) -> Any:
            current = dm.read_results(tr, self.space, [f.id])[0]
            copy = FutureResult(None, 100_000, "copy", to, current.token if current else token)
            if source is None:
                return dm.clone_result(tr, self.space, f.id, copy)
            return dm.transfer_result(tr, self.space, f.id, source, copy)

        def apply(value: Any) -> None:
            if isinstance(value, MainspringError):
                assert f.state == "deleted" or to.incarnation not in self.model.live
                return
            if value:
                assert f.state == "realized"
                f.copies.add(to.incarnation)
                if source is not None and source != to:
                    f.copies.discard(source.incarnation)

        return Op(body, apply)

    def assign(self, f: Future, to: WorkerId | None, pinned: bool) -> Op:
        locality = None if to is None else Locality(to, None, pinned)

        def apply(value: Any) -> None:
            if f.state == "deleted":
                assert isinstance(value, FutureDeletedError)
                return
            may = f.state == "unclaimed" and (to is None or to.incarnation in self.model.live)
            assert value is may
            if may:
                f.where = None if to is None else (to.incarnation, pinned)
                self.model.enqueue(f)

        return Op(lambda tr: dm.reassign_future(tr, self.space, f.id, locality), apply)

    # --- workers

    def start_worker(self, port: int) -> None:
        """A worker starts on an address, over a dead predecessor if there is one, which it reaps before it works."""
        old = self.workers.get(port)
        worker = WorkerId("127.0.0.1", port, os.urandom(16))
        sighting = None if old is None else self.sight(old)

        def apply(value: Any) -> None:
            assert value == worker
            if old is not None:
                self.model.live.discard(old.incarnation)
                self.ghosts.append(old)
            self.model.live.add(worker.incarnation)

        self.plain(Op(lambda tr: dm.register_worker(tr, self.space, worker, None, sighting), apply))
        self.workers[port] = worker

    def sight(self, worker: WorkerId) -> WorkerSighting:
        seen = [s for s in self.read(lambda tr: dm.sightings(tr, self.space)) if s.id == worker]
        return seen[0]

    def kill(self, worker: WorkerId, mode: str) -> None:
        sighting = self.sight(worker)

        def apply(value: Any) -> None:
            assert value is True
            self.model.live.discard(worker.incarnation)

        self.execute(Op(lambda tr: dm.declare_dead(tr, self.space, sighting), apply), mode)
        del self.workers[worker.port]
        self.ghosts.append(worker)

    def reap(self, mode: str) -> None:
        for _ in range(50):
            more = [True]

            def apply(value: Any, more: list[bool] = more) -> None:
                more[0] = value

            self.execute(Op(lambda tr: dm.reap(tr, self.space, 3), apply, lambda value: None), mode)
            if not more[0]:
                break
        for dead in [worker.incarnation for worker in self.ghosts]:
            self.model.reap(dead)

    def advance(self, seconds: float) -> None:
        self.model.clock += round(seconds * 1e6)
        now = self.model.clock
        self.plain(Op(lambda tr: tr.set(self.space.clock_key, ClockReading(now, 0, 0).encode()), lambda value: None))
        progress = self.plain(Op(lambda tr: dm.advance(tr, self.space, now, 1000), lambda value: None))
        assert not progress.more
        self.model.advance(now)

    # --- reads and checks

    def read(self, body: Callable[[Any], Any]) -> Any:
        return body(self.db.create_transaction())

    def state(self, future_id: bytes, tr: Any = None) -> str:
        try:
            return str(dm.get_future_state(tr or self.db.create_transaction(), self.space, future_id))
        except FutureDeletedError:
            return "deleted"

    def check(self) -> None:
        tr = self.db.create_transaction()  # one for all: nothing changes meanwhile
        for f in self.model.futures.values():
            state = self.state(f.id, tr)
            assert state == f.state, f"{show_id(f.id)} is {state}, not {f.state} ({f.reason})"
            if f.state == "deleted":
                continue
            info = dm.describe_future(tr, self.space, f.id)
            told = (info.attempts, info.epoch, info.losses, info.out_of_memory, info.charged, set(info.waiting_on))
            assert told == (f.attempts, f.epoch, f.lost, f.oom, f.charged, f.edges), (told, f)
            if f.state == "failed":
                assert info.failure is not None
                if {info.failure.reason, f.reason} == {"timeout", "upstream"}:
                    f.reason = info.failure.reason  # both were due at once
                assert info.failure.reason == f.reason, (info.failure, f.reason)
                if f.reason == "upstream":
                    assert info.failure.chain[0] in f.deps
            if f.state == "unclaimed":  # a soft assignment may fall back to the pool
                where = None if info.worker is None else info.worker.incarnation
                assert where in ((f.where or (None,))[0], None)
                assert where is not None or f.where is None or not f.where[1]
                f.where = f.where if where is not None else None
            if f.state == "realized":
                copies = dm.live_copies(tr, self.space, f.id)
                expected = {None} if f.inline else f.copies & self.model.live
                assert {None if c.inline is not None else c.worker.incarnation for c in copies} == expected
        for session in SESSIONS:
            entries, _ = dm.read_mailbox(tr, self.space, session)
            got = Counter((entry.id, entry.kind, entry.epoch) for entry in entries)
            assert got == Counter(self.model.mail.get(session, ())), f"mail of {session!r}"
        for worker in self.workers.values():
            held = dm.claims_of(tr, self.space, worker)
            running = {
                f.id for f in self.model.futures.values() if f.holder == worker.incarnation and f.state == "claimed"
            }
            assert {claim.id for claim in held} == running
        assert dm.validate(self.db, self.space) == []


def _future(spec: FutureSpec) -> Future:
    return Future(
        spec.id,
        spec.session,
        spec.dependencies,
        spec.max_retries,
        spec.max_worker_losses,
        spec.max_oom,
        spec.max_reconstructions,
        spec.allow_reconstruction,
        spec.backoff.initial if spec.backoff else 0.0,
        spec.total_timeout,
        (spec.locality.worker.incarnation, spec.locality.pinned) if spec.locality else None,
    )


__all__ = ["MODES", "SESSIONS", "Failure", "FutureStateError", "Op", "Requirements", "World"]
