"""The pure parts: tables, tokens, the observer's three rules, fencing deadlines, the renewal schedule."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from lease_locks.errors import CannotMaintainLock, LeaseStateError
from lease_locks.grants.observer import FENCE, LONG_DEAD_SECONDS, UNCHANGED, Alive, Dead, Observer, Subject, Vital
from lease_locks.grants.records import SessionRecord
from lease_locks.grants.states import BELIEF_ROWS, Belief, Event, Grant, News, next_belief, next_grant
from lease_locks.grants.tokens import FencingToken
from lease_locks.session.holding import Holding, SessionCore


def test_every_belief_and_news_has_a_row_and_nothing_leaves_lost_or_released() -> None:
    assert set(BELIEF_ROWS) == set(itertools.product(Belief, News))
    for news in News:
        assert next_belief(Belief.LOST, news) is Belief.LOST
        assert next_belief(Belief.RELEASED, news) is Belief.RELEASED


@pytest.mark.parametrize("event", [e for e in Event if e is not Event.ACQUIRED])
def test_a_grant_that_ended_takes_no_event(event: Event) -> None:
    with pytest.raises(LeaseStateError, match=f"ended can't be {event}"):
        next_grant(Grant.ENDED, event)


def test_a_grant_is_acquired_once() -> None:
    assert next_grant(Grant.ABSENT, Event.ACQUIRED) is Grant.HELD
    with pytest.raises(LeaseStateError, match="held can't be acquired"):
        next_grant(Grant.HELD, Event.ACQUIRED)


def test_a_token_is_ordered_alike_as_object_number_and_text() -> None:
    stamps = [b"\x00" * 7 + b"\x01\x00\x00", b"\x00" * 7 + b"\x01\x00\x01", b"\x00" * 7 + b"\x02\x00\x00"]
    tokens = [FencingToken(epoch, stamp) for epoch in (0, 1) for stamp in stamps]
    assert tokens == sorted(tokens)
    assert [int(t) for t in tokens] == sorted(int(t) for t in tokens)
    assert [t.hex for t in tokens] == sorted(t.hex for t in tokens)
    assert len({int(t) for t in tokens}) == len(tokens)
    for token in tokens:
        assert FencingToken.from_hex(token.hex) == token
        assert "/" not in token.hex


@pytest.mark.parametrize("text", ["", "zz", "00", "a/b", "0" * 27])
def test_a_malformed_writer_id_is_refused(text: str) -> None:
    with pytest.raises(CannotMaintainLock):
        FencingToken.from_hex(text)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


ME = SessionRecord(10_000, "here", "boot", "ns", 42, 7)


def _stamp(version: int) -> bytes:
    return version.to_bytes(8, "big") + b"\x00\x00"


def _subject(beat: int = 1_000_000, *, joins: tuple[bytes, ...] = (), max_hold: float = 0.0) -> Subject:
    vitals = (Vital(b"s1", ME, _stamp(beat)), Vital(b"s2", replace(ME, pid=43), _stamp(1_000_000)))
    return Subject(("n", 1), _stamp(1_000_000), 10.0, vitals, joins, max_hold)


def test_rule_1_counts_from_after_the_read_that_first_returned_the_heartbeats() -> None:
    clock = Clock()
    observer = Observer(clock, lambda record: False)
    assert isinstance(observer.judge(_subject(), 1_000_000), Alive)
    clock.now += UNCHANGED * 10 - 0.01
    verdict = observer.judge(_subject(), 1_000_000)
    assert isinstance(verdict, Alive)
    assert verdict.look_in == pytest.approx(0.01)
    clock.now += 0.02
    dead = observer.judge(_subject(), 1_000_000)
    assert isinstance(dead, Dead)
    assert not dead.early


@pytest.mark.parametrize("sign", [_subject(2_000_000), _subject(joins=(b"joined",))], ids=["heartbeat", "join"])
def test_rule_1_starts_again_at_any_sign_of_life(sign: Subject) -> None:
    clock = Clock()
    observer = Observer(clock, lambda record: False)
    observer.judge(_subject(), 1_000_000)
    clock.now += UNCHANGED * 10 - 0.01
    assert isinstance(observer.judge(sign, 1_000_000), Alive)
    clock.now += UNCHANGED * 10 - 0.01
    assert isinstance(observer.judge(sign, 1_000_000), Alive)


def test_rule_1_ignores_the_heartbeat_of_who_does_not_maintain_it() -> None:
    clock = Clock()
    observer = Observer(clock, lambda record: False)
    subject = replace(_subject(), vitals=(Vital(b"s1", ME, _stamp(1_000_000), counts=False),))
    observer.judge(subject, 1_000_000)
    clock.now += UNCHANGED * 10
    beating = replace(subject, vitals=(Vital(b"s1", ME, _stamp(9_000_000), counts=False),))
    assert isinstance(observer.judge(beating, 1_000_000), Dead)


def test_rule_2_takes_the_long_dead_at_once_and_tolerates_36_jumps_of_versions() -> None:
    observer = Observer(Clock(), lambda record: False)
    jumps = 1_000_000 + 36 * 100_000_000
    assert isinstance(observer.judge(_subject(), jumps), Alive)
    assert isinstance(observer.judge(_subject(), 1_000_000 + int((10 + LONG_DEAD_SECONDS) * 1e6)), Dead)


def test_rule_3_needs_every_process_gone() -> None:
    observer = Observer(Clock(), lambda record: record.pid == 42)
    assert isinstance(observer.judge(_subject(), 1_000_000), Alive)
    observer = Observer(Clock(), lambda record: True)
    dead = observer.judge(_subject(), 1_000_000)
    assert isinstance(dead, Dead)
    assert dead.early
    unknown = replace(_subject(), vitals=(*_subject().vitals, Vital(b"s3", None, None)))
    assert isinstance(observer.judge(unknown, 1_000_000), Alive)


def test_a_holder_over_its_max_hold_is_dead_though_it_beats() -> None:
    clock = Clock()
    observer = Observer(clock, lambda record: False)
    for beat in range(20):
        verdict = observer.judge(_subject(1_000_000 + beat, max_hold=10.0), 1_000_000)
        if isinstance(verdict, Dead):
            break
        clock.now += 1.0
    assert beat == 14  # 10 s × 1.375 on the observer's clock


def test_a_holder_stops_believing_before_any_observer_may_act_with_10_percent_of_drift() -> None:
    slowest_holder = FENCE / 0.9
    fastest_observer = UNCHANGED / 1.1
    assert slowest_holder < fastest_observer


def test_the_deadline_counts_from_the_start_of_the_renewal() -> None:
    holding = Holding(10.0, started=0.0)
    holding.renewed(started=1.0, now=7.0)
    assert holding.deadline == 1.0 + FENCE * 10
    assert holding.look(8.9) is Belief.HELD
    assert holding.look(9.0) is Belief.LOST
    assert holding.reason == "unreachable"


def test_a_renewal_that_is_acknowledged_after_the_deadline_revives_nothing() -> None:
    holding = Holding(10.0, started=0.0)
    holding.renewed(started=7.9, now=8.1)
    assert holding.look(8.1) is Belief.LOST
    holding.renewed(started=9.0, now=9.1)
    assert holding.look(9.1) is Belief.LOST
    assert holding.remaining(9.1) == 0.0


def test_max_hold_ends_the_belief_though_it_is_renewed() -> None:
    holding = Holding(10.0, started=0.0, max_hold=12.0)
    for second in range(12):
        holding.renewed(float(second), second + 0.1)
        assert holding.look(second + 0.2) is Belief.HELD
    assert holding.look(12.0) is Belief.LOST
    assert holding.reason == "max_hold"


def test_renewals_come_every_third_of_the_shortest_ttl_within_10_percent() -> None:
    draws = itertools.cycle([0.0, 0.5, 0.999])
    core = SessionCore(15.0, lambda: next(draws), now=0.0)
    core.add(1, Holding(9.0, 0.0))
    core.add(2, Holding(6.0, 0.0))
    start = 0.0
    for _ in range(6):
        due = core.renewal_due()
        assert 0.9 * 2.0 - 1e-9 <= due - start <= 1.1 * 2.0 + 1e-9
        start = due
        core.renewal_done(core.begin_renewal(due), due + 0.01, None)


def test_a_renewal_that_fails_is_due_again_soon_and_for_ever() -> None:
    core = SessionCore(15.0, lambda: 0.5, now=0.0)
    core.add(1, Holding(15.0, 0.0))
    now = core.renewal_due()
    pauses = []
    for _ in range(40):
        core.renewal_failed(now)
        pauses.append(core.renewal_due() - now)
        now = core.renewal_due()
    assert pauses[0] == pytest.approx(0.05)
    assert all(0 < pause <= 1.5 + 1e-9 for pause in pauses)
    core.renewal_done(core.begin_renewal(now), now, None)
    assert core.renewal_due() - now == pytest.approx(5.0)


def test_what_the_clock_ends_is_told_once() -> None:
    core = SessionCore(10.0, lambda: 0.5, now=0.0)
    holding = Holding(10.0, 0.0)
    core.add("a", holding)
    assert core.next_deadline() == 8.0
    assert core.lost_by(7.9) == []
    assert core.lost_by(8.0) == [("a", holding)]
    assert core.lost_by(9.0) == []
