"""The cluster clock lags real time or keeps with it; it never outruns it, whatever wall clocks say."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest

import fdb_schema.clock as clock_module
from fdb_schema import ClockReading, ClusterClock, ClusterSpace, RecordError, due_after, open_database, read_clock

SECOND = 1_000_000


class World:
    """Real time, and the clocks that machines take for it."""

    def __init__(self, url: str) -> None:
        self.db = open_database(url)
        self.space = ClusterSpace("clock-test")
        self.now = 0.0
        tr = self.db.create_transaction()
        tr.clear_range_startswith(self.space.key())
        tr.commit().wait()

    def service(self, wall_offset: float = 0.0) -> ClusterClock:
        start = random.Random(str(wall_offset)).uniform(0, 1000)
        return ClusterClock(
            self.space, monotonic=lambda: start + self.now, wall=lambda: 1_700_000_000 + self.now + wall_offset
        )

    def advance(self, clock: ClusterClock) -> None:
        tr = self.db.create_transaction()
        clock.advance(tr)
        tr.commit().wait()
        clock.committed()

    def read(self) -> int:
        return read_clock(self.db.create_transaction(), self.space)


@pytest.fixture
def world(any_url: str) -> World:
    return World(any_url)


def test_one_service_keeps_with_real_time(world: World) -> None:
    clock = world.service()
    for _ in range(40):
        world.advance(clock)
        world.now += 0.25
    world.advance(clock)
    assert world.read() == pytest.approx(10 * SECOND, abs=5)


@pytest.mark.parametrize("seed", range(20))
def test_many_services_with_wrong_wall_clocks_never_outrun_real_time(
    world: World, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The database's versions pass with the world's time, not with the test's: a test that stands still is no silence.
    monkeypatch.setattr(clock_module, "read_version", lambda tr: SECOND + int(world.now * SECOND))
    rng = random.Random(seed)
    clocks = [world.service(rng.uniform(-7200, 7200)) for _ in range(4)]
    world.advance(clocks[0])
    before = world.now
    last = world.read()
    for _ in range(100):
        world.now += rng.uniform(0, 0.4)
        world.advance(rng.choice(clocks))
        shown = world.read()
        assert last <= shown <= (world.now - before) * SECOND + 1
        last = shown
    # Random gaps lose nothing while somebody observes: each service's first look is all that may be lost.
    assert last >= 0.5 * (world.now - before) * SECOND


def test_a_look_that_took_long_is_not_counted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recovery of the cluster, or a process that is stopped: the row that is found was written while the question waited."""
    one, other = world.service(), world.service(1.0)
    world.advance(one)
    world.advance(other)
    ask = clock_module.read_version

    def wait_long(tr: Any) -> int:
        monkeypatch.setattr(clock_module, "read_version", ask)
        world.now += 10
        world.advance(one)
        return ask(tr)

    monkeypatch.setattr(clock_module, "read_version", wait_long)
    world.advance(other)
    world.now += 0.25  # and `one` has ended
    world.advance(other)
    assert world.read() <= world.now * SECOND


def test_two_at_once_conflict_and_count_the_time_once(world: World) -> None:
    a, b = world.service(), world.service(3600)
    world.advance(a)
    world.advance(b)
    world.now += 10
    first, second = world.db.create_transaction(), world.db.create_transaction()
    a.advance(first)
    b.advance(second)
    first.commit().wait()
    a.committed()
    with pytest.raises(Exception) as caught:
        second.commit().wait()
    assert getattr(caught.value, "code", None) == 1020
    world.advance(b)
    assert world.read() == pytest.approx(10 * SECOND, abs=2)


def test_an_advance_run_twice_counts_once(world: World) -> None:
    clock = world.service()
    world.advance(clock)
    world.now += 5
    for _ in range(2):  # the first commit's answer was lost: the body runs again
        tr = world.db.create_transaction()
        clock.advance(tr)
        tr.commit().wait()
    clock.committed()
    assert world.read() == pytest.approx(5 * SECOND, abs=2)


def _plant(world: World, value: int, wall_age: float, version_age: float) -> None:
    tr: Any = world.db.create_transaction()
    version = tr.get_read_version().wait()
    wall = int((1_700_000_000 + world.now - wall_age) * SECOND)
    tr.set(world.space.clock_key, ClockReading(value, wall, version - int(version_age * SECOND)).encode())
    tr.commit().wait()


@pytest.mark.parametrize(("wall_age", "version_age", "expected"), [(3600, 50, 50), (20, 9000, 20), (-50, 100, 0)])
def test_after_a_silence_the_smaller_of_wall_and_version_age_is_caught_up(
    world: World, wall_age: float, version_age: float, expected: float
) -> None:
    _plant(world, 1000 * SECOND, wall_age, version_age)
    clock = world.service()
    world.advance(clock)
    assert world.read() == 1000 * SECOND  # the first look only observes
    world.now += 0.25
    world.advance(clock)
    # The version age grows with the real time that the test itself takes.
    assert world.read() - 1000 * SECOND == pytest.approx((expected + 0.25) * SECOND, abs=30 * SECOND)
    assert world.read() - 1000 * SECOND >= (expected + 0.25) * SECOND - 1


@pytest.mark.parametrize(("wall_age", "version_age", "behind"), [(3600, 50, 50), (20, 9000, 20), (-50, 100, 0)])
def test_what_is_due_later_counts_the_silence_that_will_be_caught_up(
    world: World, wall_age: float, version_age: float, behind: float
) -> None:
    assert due_after(world.db.create_transaction(), world.space, 7) == 7 * SECOND, "where no clock ever ran"
    world.now = time.time() - 1_700_000_000
    _plant(world, 1000 * SECOND, wall_age, version_age)
    due = due_after(world.db.create_transaction(), world.space, 7)
    assert due - 1007 * SECOND == pytest.approx(behind * SECOND, abs=30 * SECOND)
    assert due - 1007 * SECOND >= behind * SECOND - 1


def test_nothing_is_caught_up_while_another_service_is_alive(world: World) -> None:
    _plant(world, 0, 3600, 3600)
    alive, late = world.service(), world.service()
    world.advance(alive)
    world.advance(late)
    world.now += 0.25
    world.advance(alive)  # catches the hour up
    caught = world.read()
    world.now += 0.25
    world.advance(late)  # sees another row than the one it would have caught up on
    world.advance(alive)
    assert world.read() - caught <= 0.25 * SECOND + 1


def test_a_silence_in_which_nobody_committed_anything_is_caught_up(world: World) -> None:
    first = world.service()
    world.advance(first)
    before = world.read()
    began = time.monotonic()
    while time.monotonic() - began < 0.3:  # real time: the versions' age is the engine's to tell
        threading.Event().wait(0.05)
    world.now += 3600
    second = world.service(0.001)
    world.advance(second)  # the first look only observes
    world.now += 0.25
    world.advance(second)
    assert world.read() - before >= (0.3 + 0.25 - 0.15) * SECOND
    assert world.read() - before <= (time.monotonic() - began + 0.25 + 1) * SECOND


def test_an_hour_of_silence_is_caught_up_on_an_engine_that_stood_still() -> None:
    world = World("memory:clock-stood-still")
    world.advance(world.service())
    before = world.read()
    engine: Any = world.db
    engine.dpointer.engine.store.clock.base += 3600 * SECOND
    world.now += 3600
    second = world.service(0.001)
    world.advance(second)
    world.now += 0.25
    world.advance(second)
    assert world.read() - before == pytest.approx(3600.25 * SECOND, abs=SECOND)


@pytest.mark.parametrize("garbage", [b"", b"\xc1", b"\xff" * 40])
def test_a_damaged_row_is_written_anew_by_who_knows_the_time_and_by_nobody_else(world: World, garbage: bytes) -> None:
    known, other = world.service(), world.service()
    for _ in range(8):
        world.advance(known)
        world.now += 0.25
    world.advance(known)
    tr = world.db.create_transaction()
    tr[world.space.clock_key] = garbage
    tr.commit().wait()
    world.now += 1.0
    with pytest.raises(RecordError, match=r"clock is damaged.*restore the row"):
        world.advance(other)
    world.advance(known)
    assert world.read() == pytest.approx(3 * SECOND, abs=5)
    world.advance(other)
    world.now += 0.5
    world.advance(other)
    assert world.read() == pytest.approx(3.5 * SECOND, abs=5)
