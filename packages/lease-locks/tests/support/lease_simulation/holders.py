"""The actors: sessions that renew, clients that acquire, hold, write guarded effects and release; and what must hold."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lease_locks.errors import LeaseLost
from lease_locks.grants import ending, joining
from lease_locks.grants import transitions as t
from lease_locks.grants.records import WaiterRecord
from lease_locks.grants.rows import read_grant
from lease_locks.grants.space import LeaseSpace, LockKeys
from lease_locks.grants.states import Belief, News
from lease_locks.grants.tokens import FencingToken
from lease_locks.session.holding import Holding, SessionCore
from lease_locks.session.sessions import clear_if_dead, register, renew
from lease_simulation.store import Transaction
from lease_simulation.world import Actor, Attempt, Conflict, Process, Sleep, Unreachable, Watch, World

SPACE = LeaseSpace("simulation")
_EFFECTS = b"\x02effects\x00"


@dataclass
class Held:
    """A lease that a client of a process holds, as the manager of a real process keeps it."""

    lock: LockKeys
    token: FencingToken
    holding: Holding
    mode: str
    slots: int
    claim: t.Claim
    joined: bool = False


@dataclass
class Session:
    """What a LeaseManager keeps, driven by the simulation's actors in place of threads."""

    process: Process
    ttl: float
    core: SessionCore
    held: dict[Any, Held] = field(default_factory=dict)
    to_leave: list[Held] = field(default_factory=list)
    to_withdraw: list[tuple[LockKeys, t.Claim]] = field(default_factory=list)


@dataclass
class Wait:
    name: str
    process: Process
    since: float


@dataclass
class Model:
    """Sessions, clients and everything that is checked."""

    world: World
    names: list[str]
    sessions: list[Session] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    grants: dict[str, list[FencingToken]] = field(default_factory=dict)
    effects: dict[str, bytes] = field(default_factory=dict)  # by name: the token of the last one that committed
    acquired: int = 0
    lost: int = 0

    def believers(self, name: str) -> list[Held]:
        """Who, at this very instant, would answer `check()` with yes."""
        found = []
        for session in self.sessions:
            if session.process.crashed:
                continue
            now = session.process.boottime()
            for held in session.held.values():
                holding = held.holding
                if held.lock.name == name and holding.state is Belief.HELD and holding.overdue(now) is None:
                    found.append(held)
        return found

    def check(self) -> None:
        for name in self.names:
            mark, before = self.world.store.rows.get(_EFFECTS + name.encode()), self.effects.get(name, b"")
            if mark is not None:  # at its commit: who read before it may commit after it
                assert mark >= before, f"{name}: an effect of an older token after one of a newer"
                self.effects[name] = mark
            believers = self.believers(name)
            if len(believers) > 1:
                believers = [held for held in believers if not self.handed_back(held)]
            if len(believers) < 2:
                continue
            modes = {held.mode for held in believers}
            if modes == {"shared"}:
                continue
            slots = min(held.slots for held in believers)
            tokens = {held.token for held in believers}
            assert modes == {"exclusive"}, f"{name}: exclusive beside shared: {believers}"
            assert len(tokens) <= slots, f"{name}: {len(tokens)} believers for {slots} slots: {believers}"

    def handed_back(self, held: Held) -> bool:
        """Whether another maintainer of the same lease, to whom it was handed, has released it."""
        return False

    def settled(self) -> bool:
        """Nobody who lives waits for anything, holds anything, or owes the database anything."""
        return all(wait.process.crashed for wait in self.waits) and all(
            session.process.crashed or not (session.held or session.to_leave or session.to_withdraw)
            for session in self.sessions
        )

    def granted(self, name: str, token: FencingToken) -> None:
        self.acquired += 1
        self.grants.setdefault(name, []).append(token)


def run(body: Callable[[Any], Any], process: Process, rng: Any, attempts: int = 10_000) -> Actor:
    """The retry loop: (value, commit version). Raises `Unreachable` after so many attempts of unknown fate."""
    for _ in range(attempts):
        try:
            return (yield Attempt(body))
        except Conflict:
            yield Sleep(rng.uniform(0.0005, 0.005))
        except Unreachable:
            yield Sleep(rng.uniform(0.01, 0.1))
    raise Unreachable


def renewer(model: Model, session: Session) -> Actor:
    """The session's thread."""
    process, core, rng = session.process, session.core, model.world.rng
    record = process.record(session.ttl)
    yield from run(lambda tr: register(tr, SPACE, process.sid, record), process, rng)
    while True:
        now = process.boottime()
        for key, holding in core.lost_by(now):
            lost(model, session, key)
            assert holding.reason in ("unreachable", "max_hold")
        yield from _clean_up(model, session)
        if model.world.troubled and rng.random() < 0.02:
            yield from janitor(model, session)
        now = process.boottime()
        pause = min(core.renewal_due(), core.next_deadline()) - now
        if pause > 0:
            # A watch on the revocation row wakes the real thread; here it looks twice a second.
            yield Sleep(min(pause, 0.5))
            if process.boottime() < core.renewal_due() and rng.random() < 0.7:
                continue
        renewal = core.begin_renewal(process.boottime())
        held = {key: (h.lock, h.token) for key, h in session.held.items()}

        def body(tr: Any, renewal: Any = renewal, held: Any = held) -> Any:
            return renew(tr, SPACE, process.sid, record, renewal.known, held, record.started_us)

        try:
            (known, gone), _ = yield from run(body, process, rng, attempts=1)
        except Unreachable:
            core.renewal_failed(process.boottime())
            continue
        ended = [(key, reason) for key, (reason, _) in gone.items()]
        for key, _ in core.renewal_done(renewal, process.boottime(), known, ended):
            lost(model, session, key)


def janitor(model: Model, session: Session) -> Actor:
    """Clears the rows of a session that this process can prove dead, as it sees it."""
    process, rng = session.process, model.world.rng
    other = rng.choice(model.sessions)
    if other is not session:
        with contextlib.suppress(Unreachable):
            yield from run(lambda tr: clear_if_dead(tr, SPACE, other.process.sid, process.observer), process, rng, 2)


def lost(model: Model, session: Session, key: Any) -> None:
    """As Session._lose: the database is owed the end of what this session alone kept alive."""
    model.lost += 1
    held = session.held[key]
    parts = [h for h in session.held.values() if h.token == held.token and h.joined and held.joined]
    if held.holding.maintained and not any(h.holding.state is Belief.HELD for h in parts):
        session.to_leave.append(held)


def _clean_up(model: Model, session: Session) -> Actor:
    process, rng = session.process, model.world.rng
    while session.to_leave:
        held = session.to_leave[-1]
        assert held.holding.state is not Belief.HELD

        def gone(tr: Any, held: Held = held) -> bool:
            by = "simulation"
            return ending.leave(tr, SPACE, held.lock, held.token, process.sid, by, "lost", 0, joined=held.joined)

        try:
            yield from run(gone, process, rng, attempts=2)
        except Unreachable:
            return
        session.to_leave.remove(held)
    while session.to_withdraw:
        lock, claim = session.to_withdraw[-1]
        try:
            yield from run(lambda tr, lock=lock, claim=claim: t.withdraw(tr, SPACE, lock, claim), process, rng, 2)
        except Unreachable:
            return
        session.to_withdraw.remove((lock, claim))


def client(model: Model, session: Session, number: int) -> Actor:
    """Acquires a lease, holds it for a while, writes effects under its guard, releases it; again and again."""
    process, world, rng = session.process, model.world, model.world.rng
    yield Sleep(rng.uniform(0, 3))
    round_ = 0
    while world.troubled:
        round_ += 1
        name = rng.choice(model.names)
        lock = SPACE.lock(name)
        kind = rng.choices(["plain", "shared", "slots", "brief"], [60, 10, 10, 20])[0]
        claim = t.Claim(
            owner=bytes([process.index, number]) + round_.to_bytes(14, "big"),
            session=process.sid,
            ttl=session.ttl,
            mode="shared" if kind == "shared" else "exclusive",
            slots=2 if kind == "slots" else 1,
            fair=rng.random() < 0.9,
            max_hold=rng.choice([0.0, 0.0, 0.0, 6.0]),
            host=process.host,
            pid=process.index,
        )
        patience = rng.choice([0.5, 5.0, None, None]) if kind != "brief" else 0.0
        wait = Wait(name, process, world.now)
        model.waits.append(wait)
        granted = yield from acquire(model, session, lock, claim, patience)
        model.waits.remove(wait)
        if granted is None:
            yield Sleep(rng.uniform(0, 1))
            continue
        yield from hold(model, session, granted, rng.choice([0.01, 0.3, 2.0, 9.0]))


def acquire(model: Model, session: Session, lock: LockKeys, claim: t.Claim, patience: float | None) -> Actor:
    """The loop of LeaseManager.acquire: attempts, a place in the queue, watches; nothing left behind when it gives up."""
    process, rng = session.process, model.world.rng
    queued = False
    give_up = None if patience is None else process.monotonic() + patience
    unsettled: float | None = None
    known: bytes | None = None
    attempts = 0
    enqueue = patience != 0.0
    while True:
        started = process.boottime() if unsettled is None else unsettled
        known = session.core.revocation if unsettled is None else known

        def body(tr: Any, queued: bool = queued) -> Any:
            nonlocal attempts
            attempts += 1
            first = attempts == 1
            return t.acquire(
                tr, SPACE, lock, claim, process.observer, queued=queued, enqueue=enqueue, first=first, draw=rng.random
            )

        try:
            outcome, version = yield from run(body, process, rng, attempts=3)
            unsettled = None
        except Unreachable:
            unsettled, queued = started, True
            if give_up is not None and process.monotonic() >= give_up:
                session.to_withdraw.append((lock, claim))
                return None
            yield Sleep(rng.uniform(0.05, 0.3))
            continue
        if isinstance(outcome, t.Granted):
            token = outcome.token or FencingToken(outcome.epoch, version.to_bytes(8, "big") + b"\x00\x00")
            holding = Holding(claim.ttl, started, max_hold=claim.max_hold)
            held = Held(lock, token, holding, claim.mode, claim.slots, claim)
            session.held[claim.owner] = held
            session.core.add(claim.owner, holding, known)
            model.granted(lock.name, token)
            return held
        assert isinstance(outcome, t.Waiting)
        queued = True
        if outcome.again:
            continue
        if give_up is not None and process.monotonic() >= give_up:
            session.to_withdraw.append((lock, claim))
            return None
        pause = min(outcome.look_in, 0.5) + 0.001
        yield Watch(outcome.watch, min(pause, outcome.look_in + 0.001))


def hold(model: Model, session: Session, held: Held, seconds: float) -> Actor:
    """Write effects while the lease is believed to be held, then release it."""
    process, rng = session.process, model.world.rng
    until = process.monotonic() + seconds
    mark = bytes(held.token)
    effects = _EFFECTS + held.lock.name.encode()
    while process.monotonic() < until and held.holding.look(process.boottime()) is Belief.HELD:

        def write(tr: Any) -> None:
            joining.guard(tr, held.lock, held.token)
            last = tr.snapshot.get(effects).value
            if held.mode == "exclusive" and held.slots == 1:
                assert last is None or last <= mark, "an effect of an older token after one of a newer"
                tr.set(effects, mark)

        try:
            yield from run(write, process, rng, attempts=2)
        except (LeaseLost, Unreachable):
            break
        yield Sleep(rng.uniform(0.05, 0.5))
    held.holding.learn(News.RELEASED)  # from here on nothing is believed, whatever becomes of the release
    while True:
        # A lost lease is released as well: that frees it where nobody took it over, and touches nobody else's.
        try:
            yield from run(
                lambda tr: ending.release(tr, SPACE, held.lock, held.token, process.sid, "simulation", "", 0),
                process,
                rng,
                attempts=3,
            )
        except Unreachable:
            yield Sleep(0.2)
            continue
        break
    session.held.pop(held.claim.owner, None)
    session.core.drop(held.claim.owner)


def simulate(seed: int) -> Model:
    """Trouble for 40 s of virtual time, then peace; every assertion is about what must hold in both."""
    world = World(seed, trouble_until=40.0)
    rng = world.rng
    model = Model(world, [f"lease-{i}" for i in range(rng.choice([1, 2, 3]))])
    world.check = model.check
    hosts = [f"host-{i}" for i in range(rng.choice([2, 3]))]
    ttl = rng.choice([2.0, 4.0])
    for _ in range(rng.choice([3, 5, 7])):
        process = world.process(rng.choice(hosts))
        core = SessionCore(ttl, rng.random, process.boottime())
        session = Session(process, ttl, core)
        model.sessions.append(session)
        world.start(process, renewer(model, session))
        for number in range(rng.choice([1, 2, 3])):
            world.start(process, client(model, session, number))
    world.after(rng.uniform(0, 4), world.stir)
    world.run(until=140.0, settled=model.settled)
    for wait in model.waits:
        assert wait.process.crashed, f"seed {seed}: still waiting since {wait.since:.1f}: {wait}"
    for session in model.sessions:
        if not session.process.crashed:
            assert not session.to_leave, "a lost lease was never left"
            assert not session.to_withdraw, "a given-up claim was never withdrawn"
            assert not session.held
    check_rows(model)
    return model


def check_rows(model: Model) -> None:
    """Tokens grew in the order of grants, and only the dead left anything behind."""
    crashed = {s.process.sid for s in model.sessions if s.process.crashed}
    store = model.world.store
    for name in model.names:
        lock = SPACE.lock(name)
        tokens = model.grants.get(name, [])
        assert len(set(tokens)) == len(tokens), "a token was given twice"
        tr = Transaction(store)
        for token in tokens:
            grant = read_grant(tr, lock, token)
            assert grant is None or grant.record.session in crashed, f"{name}: {grant} was left behind"
        left = store.scan(lock.queue, lock.queue_end)
        for _, value in left:
            assert WaiterRecord.decode(value).session in crashed, "a living process left its place behind"
