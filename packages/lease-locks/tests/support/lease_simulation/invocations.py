"""Orchestrators and remotes in the simulated world: the memo's transactions under the same trouble."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from lease_locks.errors import LeaseLost, LockWasStolenError
from lease_locks.grants import ending, joining
from lease_locks.grants import transitions as t
from lease_locks.grants.records import MaintainerRecord
from lease_locks.grants.states import News
from lease_locks.grants.tokens import FencingToken
from lease_locks.memo.rows import MemoKeys, MemoRows, change_attempt, invoke, publish
from lease_locks.memo.stored.addresses import Memo
from lease_locks.memo.stored.records import (
    FAILED,
    PENDING,
    STARTED,
    AttemptRecord,
    InvocationRecord,
    OutcomeRecord,
    Payload,
)
from lease_locks.session.holding import Holding, SessionCore
from lease_simulation.holders import SPACE, Held, Model, Session, renewer, run
from lease_simulation.store import Transaction
from lease_simulation.world import Actor, Process, Sleep, Unreachable, Watch, World

ROWS = MemoRows(SPACE)


@dataclass
class Invocations(Model):
    """What is checked beside the believers: results are written once."""

    memos: list[MemoKeys] = field(default_factory=list)
    results: dict[bytes, bytes] = field(default_factory=dict)
    computing: int = 0
    asked: list[Any] = field(default_factory=list)  # (process, memo) of callers without an answer
    exited: set[bytes] = field(default_factory=set)  # tokens whose Shell has exited

    def settled(self) -> bool:
        return super().settled() and all(process.crashed for process, _ in self.asked)

    def handed_back(self, held: Held) -> bool:
        return ending.how_ended(Transaction(self.world.store), held.lock, held.token)[0] == "released"

    def check(self) -> None:
        super().check()
        for keys in self.memos:
            value = self.world.store.rows.get(keys.result)
            known = self.results.get(keys.result)
            assert known is None or value == known, "a result changed, or is gone"
            if value is not None:
                self.results[keys.result] = value


def parts(process: Process) -> Any:
    """What the memo's transactions use of a Session."""
    return SimpleNamespace(space=SPACE, sid=process.sid, by=process.host)


def orchestrator(model: Invocations, session: Session, number: int) -> Actor:
    """Look and acquire in one transaction; invoke, call the Shell, wait for its exit; until there is a result."""
    process, rng = session.process, model.world.rng
    yield Sleep(rng.uniform(0, 20))
    keys = rng.choice(model.memos)
    lock = SPACE.lock(keys.memo.lock_name)
    asked = (process, keys.memo)
    model.asked.append(asked)
    for round_ in range(10_000):
        claim = t.Claim(
            owner=bytes([process.index, number]) + round_.to_bytes(14, "big"),
            session=process.sid,
            ttl=session.ttl,
            maintained=rng.random() < 0.8,
            max_hold=rng.choice([0.0, 0.0, 0.0, 8.0]),
            adopt=True,
            host=process.host,
            pid=process.index,
        )
        found = yield from look_or_acquire(model, session, keys, lock, claim)
        if isinstance(found, Held):
            yield from execute(model, session, keys, found)
            continue
        model.asked.remove(asked)
        return


def look_or_acquire(model: Invocations, session: Session, keys: MemoKeys, lock: Any, claim: t.Claim) -> Actor:
    process, rng = session.process, model.world.rng
    queued = False
    unsettled: float | None = None
    known: bytes | None = None
    attempts = 0
    while True:
        started = process.boottime() if unsettled is None else unsettled
        known = session.core.revocation if unsettled is None else known

        def body(tr: Any, queued: bool = queued) -> Any:
            nonlocal attempts
            attempts += 1
            first = attempts == 1
            if tr.get(keys.result).present():
                t.withdraw(tr, SPACE, lock, claim)
                return "result"
            return t.acquire(tr, SPACE, lock, claim, process.observer, queued=queued, first=first, draw=rng.random)

        try:
            found, version = yield from run(body, process, rng, attempts=3)
            unsettled = None
        except Unreachable:
            unsettled, queued = started, True
            yield Sleep(rng.uniform(0.05, 0.3))
            continue
        if found == "result":
            return found
        if isinstance(found, t.Granted):
            token = found.token or FencingToken(found.epoch, version.to_bytes(8, "big") + b"\x00\x00")
            holding = Holding(claim.ttl, started, max_hold=claim.max_hold, maintained=claim.maintained)
            held = Held(lock, token, holding, claim.mode, claim.slots, claim)
            session.held[claim.owner] = held
            session.core.add(claim.owner, holding, known)
            model.granted(lock.name, token)
            return held
        queued = True
        if not found.again:
            yield Watch((*found.watch, (keys.result, None)), min(found.look_in, 0.5) + 0.001)


def execute(model: Invocations, session: Session, keys: MemoKeys, held: Held) -> Actor:
    process, world, rng = session.process, model.world, model.world.rng
    token = held.token
    payload = Payload(1, b"x")

    def invoked(tr: Any) -> None:
        joining.unadopt(tr, held.lock, token)
        invoke(tr, parts(process), keys, held.lock, token, InvocationRecord(payload), AttemptRecord(PENDING))

    try:
        yield from run(invoked, process, rng)
        where = rng.choice([s for s in model.sessions if not s.process.crashed])
        delay = rng.choice([0.01, 0.2, 1.5 * session.ttl, 3 * session.ttl])  # pods take their time
        world.after(delay, lambda: world.start(where.process, remote(model, where, keys, token)))
        while bytes(token) not in model.exited and not where.process.crashed:
            yield Sleep(0.2)
    except LeaseLost:
        pass
    if held.holding.state == "held":
        held.holding.learn(News.RELEASED)
    yield from run(
        lambda tr: ending.release(tr, SPACE, held.lock, token, process.sid, process.host, "Shell exit", 0), process, rng
    )
    session.held.pop(held.claim.owner, None)
    session.core.drop(held.claim.owner)


def remote(model: Invocations, session: Session, keys: MemoKeys, token: FencingToken) -> Actor:
    """Join early or not at all, compute, publish and free the lock."""
    process, rng = session.process, model.world.rng
    lock = SPACE.lock(keys.memo.lock_name)
    started = process.boottime()
    known = session.core.revocation

    def joined(tr: Any) -> Any:
        record = MaintainerRecord("remote", 0, process.host, process.index)
        grant = joining.join(tr, lock, token, process.sid, record, process.host)
        change_attempt(tr, keys, token, state=STARTED)
        return grant

    try:
        grant, version = yield from run(joined, process, rng)
    except LockWasStolenError:
        model.exited.add(bytes(token))
        return
    key = b"remote" + bytes(token) + process.sid
    holding = Holding(grant.record.ttl_ms / 1000, started, max_hold=joining.hold_left(grant, version))
    claim = t.Claim(b"", process.sid, session.ttl)
    session.held[key] = Held(lock, grant.token, holding, "exclusive", 1, claim, joined=True)
    session.core.add(key, holding, known)
    model.computing += 1
    yield Sleep(rng.choice([0.01, 0.5, 3.0, 12.0]))
    failed = rng.random() < 0.2 and model.world.troubled
    # Each attempt would publish another value: whoever is first, nobody may be second.
    outcome = OutcomeRecord(Payload(14, bytes(token)), bytes(token), 0, process.host, error="failed" if failed else "")

    def published(tr: Any) -> bool:
        return publish(tr, parts(process), keys, lock, grant.token, token, outcome, 0)

    yield from run(published, process, rng)
    holding.learn(News.RELEASED)
    session.held.pop(key, None)
    session.core.drop(key)
    model.exited.add(bytes(token))


def simulate_invocations(seed: int) -> Invocations:
    """Trouble for 40 s, then peace; every caller that lives has its result in the end, and there was one."""
    world = World(seed, trouble_until=40.0)
    rng = world.rng
    memos = [ROWS.keys(Memo("demo", "function", bytes([n]) * 32)) for n in range(rng.choice([1, 2]))]
    model = Invocations(world, [keys.memo.lock_name for keys in memos], memos=memos)
    world.check = model.check
    ttl = rng.choice([2.0, 4.0])
    for _ in range(rng.choice([3, 5])):
        process = world.process(f"host-{rng.randrange(3)}")
        session = Session(process, ttl, SessionCore(ttl, rng.random, process.boottime()))
        model.sessions.append(session)
        world.start(process, renewer(model, session))
        for number in range(rng.choice([1, 2])):
            world.start(process, orchestrator(model, session, number))
    world.after(rng.uniform(0, 4), world.stir)
    world.run(until=200.0, settled=model.settled)
    for process, memo in model.asked:
        assert process.crashed, f"seed {seed}: a living caller never got the result of {memo}"
    for keys in memos:
        attempts = [v for k, v in world.store.scan(keys.prefix, keys.end) if k.startswith(keys.attempt(b"")[:-2])]
        states = {AttemptRecord.decode(value).state for value in attempts}
        assert states <= {PENDING, STARTED, FAILED, "ok", "stolen"}
    return model
