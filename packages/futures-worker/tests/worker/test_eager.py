"""A worker stays awake for what comes at once, for a moment, and not where others want the core."""

from __future__ import annotations

from typing import Any

import pytest

from futures_worker.worker.running.eager import HELD_UP, MOMENT, REST, WEIGH_AFTER, Eager, seconds_waited

STEP = MOMENT / 10


class World:
    """A clock that each look moves on, and something that comes at a time."""

    def __init__(self, cores: int = 2) -> None:
        self.now = 100.0
        self.looks = 0
        self.comes_at = float("inf")
        self.step = STEP
        self.waited: float | None = None
        self.eager = Eager(lambda: self.now, lambda: self.waited, cores)

    def poll(self, timeout: int) -> list[str]:
        assert timeout == 0
        self.looks += 1
        self.now += self.step
        return ["it"] if self.now >= self.comes_at else []

    def look(self, seconds: float = 1.0) -> list[str]:
        self.looks = 0
        return self.eager.look(self.poll, seconds)


def test_nothing_is_looked_for_unless_it_is_expected() -> None:
    world = World()
    assert world.look() == [] and world.looks == 0
    world.eager.expect()
    world.comes_at = world.now + 3 * STEP
    assert world.look() == ["it"] and world.looks == 3


def test_a_wait_is_awake_for_a_moment_at_most_and_no_longer_than_it_may_last() -> None:
    world = World()
    world.eager.expect()
    assert world.look() == [] and 9 <= world.looks <= 11
    assert world.look() == [] and world.looks == 0, "the moment is over"
    world.eager.expect()
    assert world.look(2.5 * STEP) == [] and world.looks == 3


def test_the_next_request_is_expected_where_the_last_one_came_at_once() -> None:
    world = World()
    world.comes_at = 0.0
    for pause, awake in ((1.0, False), (MOMENT / 2, True), (MOMENT / 2, True), (10 * MOMENT, False)):
        world.now += pause
        world.eager.asked()
        world.eager.answered()
        assert bool(world.look() or world.looks) == awake


def test_a_core_that_others_want_is_left_to_them() -> None:
    world = World()
    world.step = 2 * HELD_UP
    world.eager.expect()
    assert world.look() == [] and world.looks == 1
    world.step = STEP
    world.eager.expect()
    assert world.look() == [] and world.looks == 0
    world.now += REST
    world.eager.expect()
    assert world.look() == [] and world.looks > 1


def test_who_waits_for_a_core_is_counted() -> None:
    world = World()

    def looks_after(waited: float | None, seconds: float = 3 * WEIGH_AFTER) -> int:
        world.now += seconds
        world.waited = waited
        world.eager.asked()
        world.eager.expect()
        world.look()
        return world.looks

    assert not looks_after(50.0), "the first count says nothing yet"
    assert looks_after(50.0)
    assert not looks_after(50.0 + 2 * WEIGH_AFTER)
    assert not looks_after(50.0 + 2 * WEIGH_AFTER, WEIGH_AFTER), "it isn't read again so soon"
    assert looks_after(50.0 + 3 * WEIGH_AFTER)
    assert looks_after(None), "where nobody counts, a look that is held up has to tell"


def test_with_one_core_a_worker_sleeps() -> None:
    world = World(cores=1)
    world.eager.expect()
    assert world.look() == [] and world.looks == 0


def test_the_kernels_count_never_falls(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    first = seconds_waited()
    if first is not None:
        assert 0 <= first <= (seconds_waited() or 0)
    for text in ("", "some avg10=0.00 total=x\n", None):
        path = tmp_path / "cpu"
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text)
        monkeypatch.setattr("futures_worker.worker.running.eager._PRESSURE", str(path))
        assert seconds_waited() is None
    path.write_text("some avg10=1.00 avg60=1.00 avg300=1.00 total=2500000\nfull avg10=0 total=7\n")
    assert seconds_waited() == 2.5
