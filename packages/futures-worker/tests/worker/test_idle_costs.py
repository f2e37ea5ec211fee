"""What workers that have nothing to do ask of the database, and who takes over what the first of them does for all."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from support.counting import Counted

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
    WorkerId,
    declare_dead,
    describe_future,
    get_future_state,
    heartbeat,
    list_workers,
    put_code,
    sightings,
    submit_future,
    validate,
)
from fdb_schema import open_database, read_clock
from fdb_schema.clock import ADVANCE_SECONDS, MICROSECONDS
from futures_worker import liveness
from futures_worker.liveness import TTL_SECONDS, Caretaker, see_workers
from futures_worker.worker import housekeeping
from futures_worker.worker.deciding.instructions import RunTurn
from futures_worker.worker.housekeeping import FOLLOW_SHARE, LATE_SECONDS, LOOKS_PER_TTL, Housekeeping
from futures_worker.worker.registration import describe_self, join
from futures_worker.worker.running.rhythm import HEARTBEAT_SECONDS, IDLE_REREAD_SECONDS, REREAD_SECONDS, Rhythm
from futures_worker.worker.running.shell import Shell
from idempotent_txn import run

SPACE = ClusterSpace("test")
MINUTE = 60.0


class House:
    """Workers whose housekeeping goes by one simulated clock, round by round, in one thread."""

    def __init__(self, workers: int) -> None:
        self.db = open_database("memory:")
        self.now = 1000.0
        self.stopped: set[int] = set()
        self.ids = [
            join(self.db, SPACE, "10.0.0.1", 7000 + n, describe_self(1, Requirements(4), 0), ttl=TTL_SECONDS)
            for n in range(workers)
        ]
        self.counted = [Counted(self.db) for _ in self.ids]
        self.beats: Counter[int] = Counter()
        self.keepers = [
            Housekeeping(db, SPACE, me=_always(worker), busy=lambda: False, monotonic=lambda: self.now)
            for db, worker in zip(self.counted, self.ids, strict=True)
        ]

    def live(self, seconds: float, until: Callable[[], bool] = lambda: False) -> float:
        """Let so many seconds pass, or until something is so; the seconds that did."""
        began = self.now
        while self.now < began + seconds and not until():
            self.now += ADVANCE_SECONDS
            for n, keeper in enumerate(self.keepers):
                if n not in self.stopped:
                    self.beats[n] += 1
                    run(self.db, heartbeat, SPACE, self.ids[n], Heartbeat(counter=self.beats[n]))
                    keeper._round()
        return self.now - began

    def clock(self) -> float:
        return run(self.db, lambda tr: read_clock(tr, SPACE)) / MICROSECONDS

    def submit(self, **spec: Any) -> UUID:
        return run(self.db, lambda tr: submit_future(tr, SPACE, FutureSpec(code=put_code(tr, SPACE, b"code"), **spec)))

    def failed(self, future: UUID) -> bool:
        return run(self.db, get_future_state, SPACE, future) is FutureState.failed


def _always(worker: WorkerId) -> Callable[[], WorkerId]:
    return lambda: worker


def test_of_many_idle_workers_one_keeps_the_clock_and_the_others_hardly_look() -> None:
    house = House(10)
    house.live(10)  # until all know who is first
    before, clock = [db.count for db in house.counted], house.clock()
    house.live(MINUTE)
    first, *others = [db.count - earlier for db, earlier in zip(house.counted, before, strict=True)]
    assert house.clock() - clock == pytest.approx(MINUTE, abs=2 * ADVANCE_SECONDS)
    ticks, looks = MINUTE / ADVANCE_SECONDS, MINUTE / (0.75 * TTL_SECONDS / LOOKS_PER_TTL)
    assert ticks <= first <= ticks + looks
    assert max(others) <= 2 * MINUTE / (0.75 * FOLLOW_SHARE * TTL_SECONDS)  # a tick and a look, each one transaction


@pytest.mark.parametrize("workers", [2, 3])
def test_when_the_first_stops_another_keeps_the_clock_and_fires_timers(workers: int) -> None:
    house = House(workers)
    house.live(10)
    house.stopped.add(0)
    clock = house.clock()
    late = house.submit(queue_timeout=0.5)
    followed = 1.25 * FOLLOW_SHARE * TTL_SECONDS
    assert house.live(MINUTE, lambda: house.failed(late)) <= 2 * followed + 0.5 + 2 * ADVANCE_SECONDS
    house.live(2 * TTL_SECONDS, lambda: len(run(house.db, list_workers, SPACE)) < workers)
    assert house.ids[0] not in [s.id for s in run(house.db, sightings, SPACE)], "it is declared dead as ever"
    passed = house.live(MINUTE)
    assert house.clock() - clock >= passed - 2 * ADVANCE_SECONDS, "the clock goes on"
    assert house.keepers[1]._first
    assert validate(house.db, SPACE) == []


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many workers each look is at, that workers and who waits take."""
    looks: list[int] = []

    def counted(tr: Any, space: ClusterSpace, first: int = 0) -> Any:
        found = see_workers(tr, space, first)
        looks.append(len(found[0]))
        return found

    for module in (housekeeping, liveness):
        monkeypatch.setattr(module, "see_workers", counted)
    return looks


def test_what_workers_read_of_each_other_rises_with_their_number_and_not_with_its_square(
    seen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_ten_seconds(workers: int, head: int) -> int:
        monkeypatch.setattr(liveness, "HEAD", head)
        house = House(workers)
        for keeper in house.keepers:
            keeper._busy = lambda: True
        house.live(1.0)
        seen.clear()
        house.live(10.0)
        return sum(seen)

    some = in_ten_seconds(8, head=2)
    assert 1.5 <= in_ten_seconds(16, head=2) / some <= 2.5
    assert in_ten_seconds(8, head=16) > 1.2 * some, "all look at all while they are few"


@pytest.mark.parametrize(
    "dead", [(0,), (9,), (0, 1, 2), (0, 1, 2, 3, 9)], ids=lambda dead: f"dead-{len(dead)}-{dead[-1]}"
)
def test_whoever_dies_of_many_is_declared_dead_and_the_clock_goes_on(
    dead: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "HEAD", 3)
    house = House(10)
    house.live(10)
    house.stopped.update(dead)
    late = house.submit(queue_timeout=2 * TTL_SECONDS)
    house.live(4 * TTL_SECONDS, lambda: len(run(house.db, list_workers, SPACE)) == 10 - len(dead))
    assert {s.id for s in run(house.db, sightings, SPACE)} == {
        worker for number, worker in enumerate(house.ids) if number not in dead
    }
    clock = house.clock()
    passed = house.live(3 * TTL_SECONDS)
    # Whoever stood in may leave before the next one has seen that it is first: the clock stands until somebody looks at it.
    assert house.clock() - clock >= passed - 1.25 * FOLLOW_SHARE * TTL_SECONDS - 2 * ADVANCE_SECONDS
    assert house.failed(late)
    first = min(set(range(10)) - set(dead))
    assert [number for number, keeper in enumerate(house.keepers) if number not in dead and keeper.leads] == [first]
    assert validate(house.db, SPACE) == []


def test_where_far_more_die_at_once_than_the_head_has_they_are_not_judged_one_head_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(liveness, "HEAD", 2)
    house = House(18)
    house.live(5)
    house.stopped.update(range(16))
    clock = house.clock()
    passed = house.live(16 * TTL_SECONDS, lambda: len(run(house.db, list_workers, SPACE)) == 2)
    assert passed <= 5 * TTL_SECONDS, "of eight heads in turn each would take a TTL"
    assert house.clock() - clock >= passed / 2


def test_who_declares_all_of_the_head_dead_takes_the_place_of_none_of_them_that_is_anothers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It had seen nobody else that lives, and others are before it all the same."""
    monkeypatch.setattr(liveness, "HEAD", 2)
    house = House(6)
    house.live(5)
    last = house.keepers[-1]
    last._breadth._next_whole = float("inf")
    declared: list[WorkerId] = []
    beats = itertools.count(1000)
    while not declared:
        house.now += 1.0
        for worker in house.ids[2:]:
            run(house.db, heartbeat, SPACE, worker, Heartbeat(counter=next(beats)))
        declared = last.look()
    assert declared == house.ids[:2]
    assert not last.leads and not last.in_head


def test_who_waits_looks_at_few_of_many_workers_and_at_all_where_one_of_those_is_dead(
    seen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "HEAD", 3)
    house = House(6)
    caretaker, beats, now = Caretaker(house.db, SPACE), itertools.count(1), itertools.count(1000)

    def look(seconds: float, living: list[WorkerId]) -> list[WorkerId]:
        declared: list[WorkerId] = []
        for _ in range(round(seconds)):
            for worker in living:
                run(house.db, heartbeat, SPACE, worker, Heartbeat(counter=next(beats)))
            declared += caretaker.look(next(now))
        return declared

    assert look(2 * TTL_SECONDS, house.ids) == []
    assert seen == [6, *[3] * 9]
    declared = look(4 * TTL_SECONDS, [])
    assert declared[:3] == house.ids[:3], "the head first, then all others"
    assert set(declared) == set(house.ids)


def test_a_worker_that_sees_nobody_since_it_was_declared_dead_itself_goes_on_looking() -> None:
    house = House(1)
    (sighting,) = run(house.db, sightings, SPACE)
    assert run(house.db, declare_dead, SPACE, sighting)
    assert house.keepers[0].look() == []
    assert house.keepers[0].leads


def test_a_timer_that_nobody_fires_is_fired_by_who_stands_by_though_the_clock_is_kept() -> None:
    house = House(2)
    house.live(10)
    house.stopped.add(0)
    keeper = Caretaker(house.db, SPACE)
    keeper._clock._monotonic = lambda: house.now
    late = house.submit(queue_timeout=0.5)

    def other_service_keeps_the_clock() -> bool:
        run(house.db, keeper._clock.advance, strategy="off")
        keeper._clock.committed()
        return house.failed(late)

    passed = house.live(MINUTE, other_service_keeps_the_clock)
    assert passed <= 0.5 + LATE_SECONDS + 2 * FOLLOW_SHARE * TTL_SECONDS
    assert run(house.db, describe_future, SPACE, late).failure is not None


def test_a_worker_that_is_first_again_is_so_alone() -> None:
    """The first was stopped for a while and goes on: who stood in stands by again."""
    house = House(3)
    house.live(10)
    house.stopped.add(0)
    house.live(4)
    house.stopped.clear()
    house.live(2 * TTL_SECONDS)
    assert [keeper.leads for keeper in house.keepers] == [True, False, False]


@pytest.mark.parametrize("lives", [True, False])
def test_a_look_of_who_waits_is_one_transaction_where_a_worker_lives_and_keeps_time_where_none_does(
    lives: bool,
) -> None:
    house = House(1 if lives else 0)
    db = Counted(house.db)
    caretaker = Caretaker(db, SPACE)
    late = house.submit(queue_timeout=0.1)
    assert caretaker.look(house.now) == []
    first = db.count
    caretaker.look(house.now)
    assert db.count - first == (1 if lives else 3)
    clock = house.clock()
    caretaker._clock._monotonic = lambda: house.now + 1e6  # what passes by its own clock
    caretaker.look(house.now)
    assert (house.clock() > clock) is not lives
    assert house.failed(late) is not lives


def test_what_a_dead_worker_held_is_given_back_by_who_waits_though_another_declared_it() -> None:
    house = House(2)
    (sighting, _) = run(house.db, sightings, SPACE)
    assert run(house.db, declare_dead, SPACE, sighting)
    assert Caretaker(house.db, SPACE).look(house.now) == []
    prefix = SPACE["dead_workers"].key()
    assert list(house.db.create_transaction().get_range(prefix, prefix + b"\xff")) == []


def test_an_idle_worker_beats_and_rereads_more_seldom_and_a_busy_one_at_once_as_often_as_ever() -> None:
    rhythm = Rhythm(TTL_SECONDS)
    assert rhythm.due(busy=False) == float("-inf")
    beats = rereads = 0
    now = 0.0
    while now < MINUTE:
        if now >= rhythm.beat_due(busy=False):
            rhythm.beats(now)
            beats += 1
        rhythm.looks(now, busy=False)
        rereads += rhythm.rereads(now, busy=False)
        now = rhythm.due(busy=False)
    assert beats <= MINUTE / (TTL_SECONDS / 4) + 2
    assert MINUTE / IDLE_REREAD_SECONDS / 1.25 <= rereads <= MINUTE / IDLE_REREAD_SECONDS / 0.75 + 2
    assert rhythm.beat_due(busy=True) - rhythm.beat_due(busy=False) == HEARTBEAT_SECONDS - TTL_SECONDS / 4
    assert rhythm.rereads(now + 2 * IDLE_REREAD_SECONDS, busy=True)
    assert rhythm.rereads(now + 2 * IDLE_REREAD_SECONDS + 1.25 * REREAD_SECONDS, busy=True)


def test_a_worker_with_a_task_for_a_moment_beats_with_its_turn_and_one_with_a_long_one_by_itself() -> None:
    rhythm = Rhythm(TTL_SECONDS)
    rhythm.saw(10.0, False)
    rhythm.beats(10.0)
    rhythm.saw(11.0, True)
    assert rhythm.beat_due(busy=True) == 10.0 + TTL_SECONDS / 4, "no beat comes before its turn"
    assert rhythm.carries(11.0)
    rhythm.beats(11.0)
    assert not rhythm.carries(11.4)
    rhythm.saw(11.4, True)
    assert rhythm.beat_due(busy=True) == 11.0 + HEARTBEAT_SECONDS


def test_a_turn_that_is_taken_apart_counts_as_no_sign_of_life() -> None:
    class Refusing:
        def take_turn(self, _turn: RunTurn, load: object) -> Claims:
            assert load is not None, "it was to carry one"
            raise ValueError("one outcome can't be written")

        def take_turn_apart(self, _turn: RunTurn, _why: Exception) -> Claims:
            return Claims()

    shell: Any = Shell.__new__(Shell)
    shell._rhythm, shell._joined = Rhythm(1e6), Refusing()
    shell._client_lines = SimpleNamespace(tell=lambda *_: False)
    shell._rhythm.beats(time.monotonic() - 2 * HEARTBEAT_SECONDS)
    outcome = Outcome.realized(Claim(b"f" * 16, WorkerId("127.0.0.1", 7000, b"i" * 16), bytes(10)), b"v")
    for _ in range(2):
        shell._run_turn(RunTurn([outcome], Capacity(Requirements(1)), 0))
    assert shell._rhythm.carries(time.monotonic()), "others would take it for dead: none was given"


def test_a_short_ttl_makes_no_idle_worker_beat_more_seldom_than_a_busy_one() -> None:
    rhythm = Rhythm(1.0)
    rhythm.beats(0.0)
    assert rhythm.beat_due(busy=False) == rhythm.beat_due(busy=True) == HEARTBEAT_SECONDS
