"""The database's side of the worker: turns, bells, mail and signs of life, on every engine."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import calls_of

from fdb_datamodel import (
    Capacity,
    Claim,
    Claims,
    ClusterSpace,
    FutureSpec,
    FutureState,
    Heartbeat,
    Outcome,
    Requirements,
    WorkerFencedError,
    WorkerId,
    WorkerSighting,
    advance,
    cancel_future,
    declare_dead,
    describe_future,
    get_future_state,
    list_workers,
    new_future_id,
    put_code,
    reap,
    sightings,
    submit_claimed,
    submit_future,
    submit_futures,
    validate,
)
from futures_worker.database import is_database_trouble
from futures_worker.worker.deciding.instructions import RunTurn
from futures_worker.worker.housekeeping import Housekeeping
from futures_worker.worker.registration import describe_self, join, leave
from futures_worker.worker.running import ledger as ledger_module
from futures_worker.worker.running.ledger import Ledger
from idempotent_txn import CommitUnknownResultFatal, run

PATIENCE = 60.0
SPACE = ClusterSpace("test")
ROOM = Capacity(Requirements(4, "1GiB"))


class Site:
    """A database with one worker registered, and somebody who submits."""

    def __init__(self, db: Any) -> None:
        self.db = db
        self.woken = threading.Event()
        self.in_hand: set[bytes] = set()
        self.worker = self.join(7001)
        self.ledger = Ledger(db, SPACE, self.worker, self.woken.set)

    def join(self, port: int) -> WorkerId:
        return join(self.db, SPACE, "127.0.0.1", port, describe_self(1, Requirements(4), 0), ttl=0.5)

    def submit(self) -> bytes:
        def body(tr: Any) -> bytes:
            spec = FutureSpec(code=put_code(tr, SPACE, b"code"), id=future_id, session=b"c" * 16)
            return submit_future(tr, SPACE, spec).bytes

        future_id = new_future_id()
        return run(self.db, body)

    def state(self, future_id: bytes) -> FutureState:
        return run(self.db, get_future_state, SPACE, future_id)

    def arm(self, pool_matters: bool = True) -> tuple[bool, list[Any], list[Claim]]:
        return self.ledger.arm(pool_matters, lambda: self.in_hand)

    def rung(self) -> tuple[bool, list[Any], list[Claim]]:
        return self.ledger.rung(lambda: self.in_hand)

    def claim(self, limit: int = 10) -> Claims:
        return self.ledger.take_turn(RunTurn([], ROOM, limit))

    def check(self) -> None:
        assert validate(self.db, SPACE) == []


@pytest.fixture
def site(any_db: Any) -> Iterator[Site]:
    site = Site(any_db)
    yield site
    site.ledger.close()


def test_a_turn_reports_and_claims(site: Site) -> None:
    first, second = site.submit(), site.submit()
    (claim,) = site.claim(1)
    assert claim.id == first
    (following,) = site.ledger.take_turn(RunTurn([Outcome.realized(claim, b"result")], ROOM, 1))
    assert following.id == second
    assert (site.state(first), site.state(second)) == (FutureState.realized, FutureState.claimed)
    site.check()


@pytest.mark.embedded_only("the engine's own functions are counted")
def test_what_a_future_costs_the_worker_in_calls(site: Site) -> None:
    """A turn of many, in which each future ends and another begins: what limits the throughput is what Python has to do.

    The session waits for mail, which a versionstamp orders, and the worker looks at the pool's bell behind it.
    """
    many = 100
    specs = [FutureSpec(code=b"code", args=b"a", name="task", session=b"c" * 16) for _ in range(2 * many)]
    run(site.db, submit_futures, SPACE, specs)
    claims = site.claim(many)
    turn = RunTurn([Outcome.realized(claim, b"result") for claim in claims], ROOM, many)
    found: list[Claims] = []
    calls = calls_of(lambda: found.append(site.ledger.take_turn(turn)))
    assert len(found[0]) == many
    assert calls / many <= 30
    site.check()


def test_one_bad_outcome_harms_no_other(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [site.submit() for _ in range(4)]
    claims = site.claim()
    genuine = ledger_module.finish_turn

    def refuses(tr: Any, space: Any, worker: Any, outcomes: list[Outcome], *rest: Any) -> Claims:
        if any(o.result == b"bad" for o in outcomes):
            raise ValueError("can't be written")
        return genuine(tr, space, worker, outcomes, *rest)

    monkeypatch.setattr(ledger_module, "finish_turn", refuses)
    outcomes = [Outcome.realized(c, b"bad" if c.id == ids[2] else b"good") for c in claims]
    turn = RunTurn(outcomes, ROOM, 5)
    with pytest.raises(ValueError, match="can't be written") as caught:
        site.ledger.take_turn(turn)
    more = site.submit()
    assert [c.id for c in site.ledger.take_turn_apart(turn, caught.value)] == [more]
    assert [site.state(i) for i in ids] == [*[FutureState.realized] * 2, FutureState.failed, FutureState.realized]
    info = run(site.db, describe_future, SPACE, ids[2])
    assert info.failure is not None
    assert "can't be recorded: ValueError: can't be written" in info.failure.message
    site.check()


@pytest.mark.parametrize("recorded", [False, True])
def test_trouble_of_the_database_in_a_turn_taken_apart_fails_no_future(
    site: Site, monkeypatch: pytest.MonkeyPatch, recorded: bool
) -> None:
    """A commit whose outcome the database doesn't tell says nothing of what was to be recorded: the task has succeeded."""
    ids = [site.submit() for _ in range(3)]
    turn = RunTurn([Outcome.realized(c, b"r") for c in site.claim()], ROOM, 0)
    genuine = Ledger.take_turn
    turns: list[RunTurn] = []

    def unknown(ledger: Ledger, turn: RunTurn) -> Claims:
        turns.append(turn)
        if len(turns) != 2:
            return genuine(ledger, turn)
        if recorded:
            genuine(ledger, turn)
        raise CommitUnknownResultFatal("the database doesn't tell")

    monkeypatch.setattr(Ledger, "take_turn", unknown)
    with pytest.raises(CommitUnknownResultFatal) as caught:
        site.ledger.take_turn_apart(turn, ValueError("x"))
    assert is_database_trouble(caught.value), "the turn is taken again"
    assert site.ledger.take_turn(turn).stale == ()
    assert [site.state(i) for i in ids] == [FutureState.realized] * 3
    site.check()


def test_a_claim_lost_to_somebody_else_is_named_even_when_a_turn_is_taken_apart(site: Site) -> None:
    ids = [site.submit() for _ in range(2)]
    claims = site.claim()
    run(site.db, cancel_future, SPACE, ids[0])
    turn = RunTurn([Outcome.realized(c, b"r") for c in claims], ROOM, 0)
    assert site.ledger.take_turn_apart(turn, ValueError("x")).stale == (ids[0],)
    assert site.state(ids[1]) == FutureState.realized
    site.check()


def test_a_ring_wakes_and_what_happened_before_arming_is_not_missed(site: Site) -> None:
    site.claim()
    assert site.arm() == (False, [], [])
    site.submit()
    assert site.woken.wait(PATIENCE)
    assert site.rung() == (True, [], [])
    assert len(site.claim()) == 1
    site.submit()  # between the look and the arming
    assert site.arm() == (True, [], [])
    assert site.rung() == (False, [], [])


def test_a_bell_of_the_pool_is_not_armed_while_it_does_not_matter(site: Site) -> None:
    site.claim()
    site.arm(pool_matters=False)
    site.submit()
    assert site.rung() == (False, [], [])
    assert site.arm() == (True, [], [])


def test_mail_tells_of_cancellations_once(site: Site) -> None:
    site.arm(pool_matters=False)
    future_id = site.submit()
    site.claim()
    run(site.db, cancel_future, SPACE, future_id)
    assert site.woken.wait(PATIENCE)
    rung, mail, pushed = site.rung()
    assert (rung, pushed) == (True, [])
    assert [(entry.id, entry.kind) for entry in mail] == [(future_id, "cancel")]
    assert site.ledger.read_own(set()) == ([], [])
    site.check()


def test_mail_that_could_not_be_read_to_its_end_is_told_all_the_same(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled = [site.submit() for _ in range(3)]
    site.claim()
    for future_id in cancelled:
        run(site.db, cancel_future, SPACE, future_id)
    whole, pages = ledger_module.read_mailbox, itertools.count()

    def by_the_row(tr: Any, space: ClusterSpace, session: bytes, after: bytes) -> Any:
        if next(pages) == 2:
            raise TimeoutError("the database is silent")
        return whole(tr, space, session, after, limit=1)

    monkeypatch.setattr(ledger_module, "read_mailbox", by_the_row)
    with pytest.raises(TimeoutError):
        site.ledger.read_own(set())
    mail, _ = site.ledger.read_own(set())
    assert [entry.id for entry in mail] == cancelled


def test_what_a_client_pushes_is_told_once_and_found_again_by_who_lost_track(site: Site) -> None:
    site.arm()
    spec = FutureSpec(code=b"code", session=b"c" * 16)
    run(site.db, submit_claimed, SPACE, [spec], site.worker)
    assert site.woken.wait(PATIENCE)
    rung, mail, (claim,) = site.rung()
    assert (rung, mail, claim.id) == (False, [], spec.id)
    site.in_hand = {claim.id}
    assert site.ledger.read_own(site.in_hand) == ([], [])
    assert [c.id for c in site.ledger.read_own(set())[1]] == [spec.id]
    site.ledger.take_turn(RunTurn([Outcome.realized(claim, b"r")], ROOM, 0))
    assert site.ledger.read_own(set()) == ([], [])
    site.check()


def test_a_worker_that_was_declared_dead_learns_it_from_everything_it_does(site: Site) -> None:
    site.submit()
    (claim,) = site.claim()
    site.ledger.beat(lambda counter: Heartbeat(counter=counter))
    (sighting,) = run(site.db, sightings, SPACE)
    assert run(site.db, declare_dead, SPACE, sighting)
    while run(site.db, reap, SPACE):
        pass
    with pytest.raises(WorkerFencedError):
        site.ledger.beat(lambda counter: Heartbeat(counter=counter))
    with pytest.raises(WorkerFencedError):
        site.ledger.take_turn(RunTurn([Outcome.realized(claim, b"late")], ROOM, 0))
    with pytest.raises(WorkerFencedError):
        site.ledger.take_turn_apart(RunTurn([Outcome.realized(claim, b"late")], ROOM, 0), ValueError("x"))
    assert site.state(claim.id) == FutureState.unclaimed
    site.check()


def test_every_start_is_another_incarnation_and_gives_back_what_the_last_one_held(site: Site) -> None:
    future_id = site.submit()
    site.claim()
    again = site.join(7001)  # the same process: its earlier incarnation is known to be gone
    assert (again.ip, again.port) == (site.worker.ip, site.worker.port)
    assert again.incarnation != site.worker.incarnation
    assert site.state(future_id) == FutureState.unclaimed
    with pytest.raises(WorkerFencedError):
        site.claim()
    leave(site.db, SPACE, again)
    assert run(site.db, list_workers, SPACE) == []
    site.check()


def test_leaving_gives_back_what_is_still_held_at_no_charge(site: Site) -> None:
    future_id = site.submit()
    site.claim()
    leave(site.db, SPACE, site.worker)
    info = run(site.db, describe_future, SPACE, future_id)
    assert (info.state, info.attempts, info.charged, info.losses) == (FutureState.unclaimed, 1, 0, 0)
    site.check()


def test_housekeeping_reaps_the_silent_and_names_the_living(site: Site) -> None:
    future_id = site.submit()
    site.claim()
    other = site.join(7002)
    seen: list[list[WorkerId]] = []
    keeper = Housekeeping(site.db, SPACE, ttl=1.0, on_peers=lambda live: seen.append([status.id for status in live]))
    stop = threading.Event()
    beats = Ledger(site.db, SPACE, other, lambda: None)

    def beat() -> None:
        while not stop.wait(0.1):
            beats.beat(lambda counter: Heartbeat(counter=counter))

    thread = threading.Thread(target=beat)
    thread.start()
    keeper.start()
    try:
        done = threading.Event()
        for _ in range(int(PATIENCE / 0.05)):
            if seen and seen[-1] == [other]:
                break
            done.wait(0.05)
        assert seen[-1] == [other]
    finally:
        keeper.close()
        stop.set()
        thread.join()
    assert site.state(future_id) == FutureState.unclaimed
    assert run(site.db, sightings, SPACE)[0].id == other
    site.check()


def test_a_chore_that_fails_keeps_none_of_the_others_from_being_done_and_is_told_once(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looked, done = threading.Event(), threading.Event()
    rounds = itertools.count(1)

    def fail() -> None:
        raise ValueError("a row is damaged" if next(rounds) <= 5 else "another row is")

    def end() -> None:
        if next(rounds) > 10:
            done.set()

    keeper = Housekeeping(site.db, SPACE, ttl=0.3, on_peers=lambda _: looked.set(), chores=(fail, end))
    monkeypatch.setattr(keeper, "tick", lambda: reap(None))  # type: ignore[call-arg, arg-type]
    keeper.start()
    try:
        assert looked.wait(PATIENCE)
        assert done.wait(PATIENCE)
    finally:
        keeper.close()
    told = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert told[1:] == ["a row is damaged", "another row is"]
    assert "reap" in told[0]


def test_housekeeping_hurries_when_edges_are_left(site: Site) -> None:
    upstream = site.submit()

    def many(tr: Any) -> None:
        for _ in range(300):
            submit_future(tr, SPACE, FutureSpec(code=put_code(tr, SPACE, b"code"), dependencies=(upstream,)))

    run(site.db, many)
    claims: list[Claim] = list(site.claim(1))
    turned = site.ledger.take_turn(RunTurn([Outcome.realized(claims[0], b"r")], ROOM, 0))
    assert turned.unsettled
    keeper = Housekeeping(site.db, SPACE, ttl=1.0)
    keeper.tick()
    assert not run(site.db, advance, SPACE, 0).more
    assert len(site.claim(400)) + len(site.claim(400)) == 300
    site.check()


def test_sightings_are_what_the_observer_compares(site: Site) -> None:
    (first,) = run(site.db, sightings, SPACE)
    site.ledger.beat(lambda counter: Heartbeat(counter=counter))
    (second,) = run(site.db, sightings, SPACE)
    assert isinstance(first, WorkerSighting)
    assert first.id == second.id == site.worker
    assert first.counter != second.counter


def test_a_turn_that_was_begun_while_its_task_ran_reads_nothing_twice(site: Site) -> None:
    """And what changed meanwhile counts: a claim that was taken away is named, a fence is met."""
    first, second = site.submit(), site.submit()
    one, two = site.claim(2)
    site.ledger.begin_turn(one)
    assert not site.ledger.take_turn(RunTurn([Outcome.realized(one, b"r")], ROOM, 0)).stale
    assert site.state(first) is FutureState.realized
    site.ledger.begin_turn(two)
    run(site.db, cancel_future, SPACE, second)
    assert site.ledger.take_turn(RunTurn([Outcome.realized(two, b"r")], ROOM, 0)).stale == (second,)
    assert site.state(second) is FutureState.failed
    site.check()


def test_a_turn_begun_for_another_claim_reads_its_own_rows(site: Site) -> None:
    ids = [site.submit() for _ in range(3)]
    one, two, three = site.claim(3)
    site.ledger.begin_turn(one)
    turn = RunTurn([Outcome.realized(claim, b"r") for claim in (two, three)], ROOM, 0)
    assert not site.ledger.take_turn(turn).stale
    site.ledger.begin_turn(one)
    site.ledger.forget_turn()
    assert not site.ledger.take_turn(RunTurn([Outcome.realized(one, b"r")], ROOM, 0)).stale
    assert {site.state(one) for one in ids} == {FutureState.realized}
    site.check()
