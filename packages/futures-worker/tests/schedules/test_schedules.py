"""Schedules: which occurrences there are, that each is one future whoever submits it, and what real workers make of them."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest

import fdb_datamodel as dm
from fdb_datamodel.rows.space import layout_of
from fdb_datamodel.transitions.schedules import list_schedules, next_due
from fdb_schema import ClockReading, ClusterSpace, MainspringError, open_database, read_version
from futures_worker import Client, OversizeError
from futures_worker.cli import main
from futures_worker.schedules import planning
from futures_worker.schedules.firing import fire_due
from futures_worker.schedules.planning import LOOK_SECONDS, MOST_AT_ONCE, first, plan, read_when
from idempotent_txn import run

WAIT = 60.0
SECOND = 1_000_000


def us(text: str, zone: str = "UTC") -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()) * SECOND


# --- planning


def test_a_period_counts_on_the_cluster_clock() -> None:
    assert first("60.0", "", 5 * SECOND, us("2026-01-01")) == (65 * SECOND, 65 * SECOND)
    on_time = plan("60.0", "", "one", 65 * SECOND, 65 * SECOND + 1, 0)
    assert (list(on_time.occurrences), on_time.nominal, on_time.due_us) == ([65 * SECOND], 125 * SECOND, 125 * SECOND)


@pytest.mark.parametrize(
    ("missed", "ran", "following"),
    [("one", [365], 425), ("all", [65, 125, 185, 245, 305, 365], 425), ("skip", [365], 425)],
)
def test_what_was_missed_of_a_period(missed: str, ran: list[int], following: int) -> None:
    found = plan("60.0", "", missed, 65 * SECOND, 370 * SECOND, 0)
    assert ([one // SECOND for one in found.occurrences], found.nominal // SECOND) == (ran, following)


def test_skipped_are_those_that_are_late() -> None:
    late = plan("3600.0", "", "skip", 0, 100 * SECOND, 0)
    assert (list(late.occurrences), late.nominal) == ([], 3600 * SECOND)
    assert list(plan("3600.0", "", "skip", 0, 59 * SECOND, 0).occurrences) == [0]


def test_all_that_was_missed_is_made_up_for_in_pages() -> None:
    found = plan("1.0", "", "all", 0, 1_000 * SECOND, 0)
    assert len(found.occurrences) == MOST_AT_ONCE
    assert found.nominal == MOST_AT_ONCE * SECOND
    assert found.due_us < 1_000 * SECOND, "due at once"


def test_cron_is_of_wall_time_in_its_zone() -> None:
    wall = us("2026-03-28T12:00", "Europe/Berlin")
    nominal, due = first("30 4 * * *", "Europe/Berlin", 7 * SECOND, wall)
    assert nominal == us("2026-03-29T04:30", "Europe/Berlin")
    assert due - 7 * SECOND == LOOK_SECONDS * SECOND, "it is looked at before"
    assert first("30 4 * * *", "UTC", 7, us("2026-03-28T04:29"))[1] == 60 * SECOND + 7
    assert (nominal - wall) // SECOND == int(15.5 * 3600), "an hour of that night is left out"
    found = plan("30 4 * * *", "Europe/Berlin", "one", nominal, due, nominal + 1)
    assert list(found.occurrences) == [nominal]
    assert found.nominal == us("2026-03-30T04:30", "Europe/Berlin")


def test_what_was_missed_of_cron() -> None:
    nominal, wall = us("2026-01-01T00:05"), us("2026-01-01T00:22:30")
    latest = us("2026-01-01T00:20")
    assert list(plan("*/5 * * * *", "UTC", "one", nominal, 9, wall).occurrences) == [latest]
    assert list(plan("0 */5 * * * *", "UTC", "one", nominal, 9, wall).occurrences) == [latest], "with seconds"
    each = plan("*/5 * * * *", "UTC", "all", nominal, 9, wall).occurrences
    assert [one - nominal for one in each] == [n * 300 * SECOND for n in range(4)]
    assert list(plan("*/5 * * * *", "UTC", "skip", nominal, 9, wall).occurrences) == []
    assert list(plan("*/5 * * * *", "UTC", "skip", nominal, 9, latest + 9).occurrences) == [latest]


def test_a_wall_clock_that_is_behind_loses_no_occurrence() -> None:
    nominal = us("2026-01-01T00:05")
    found = plan("*/5 * * * *", "UTC", "one", nominal, 9 * SECOND, nominal - 40 * SECOND)
    assert list(found.occurrences) == [nominal]
    assert found.nominal == us("2026-01-01T00:10")


@pytest.mark.parametrize(
    ("when", "zone", "said"),
    [
        ("61 * * * *", None, "is no cron expression"),
        ("* * *", None, "is no cron expression"),
        ("0 0 30 2 *", None, "cron expression|at no time"),
        ("* * * * *", "Europe/Atlantis", "no time zone"),
        (0.5, None, "period is 1 to"),
        (60, "Europe/Berlin", "zone is of cron"),
        (True, None, "number of seconds"),
    ],
)
def test_what_says_no_time_is_refused(when: Any, zone: str | None, said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        read_when(when, zone)


# --- one database, without workers


@pytest.fixture
def client() -> Iterator[Client]:
    with Client("memory:schedules", f"schedules-{time.monotonic_ns()}") as found:
        yield found


class Clock:
    """Moves a cluster's clock, and has what is due submitted."""

    def __init__(self, client: Client) -> None:
        self.db, self.space = open_database("memory:schedules"), ClusterSpace(client.cluster)
        self.now = 0
        self.to(1)

    def to(self, seconds: float, wall: float | None = None) -> int:
        self.now = round(seconds * SECOND)
        row = ClockReading(self.now, 0, 0).encode()
        run(self.db, lambda tr: tr.set(self.space.clock_key, row))
        return fire_due(self.db, self.space, self.now, lambda: time.time() if wall is None else wall)

    def check(self) -> None:
        assert dm.validate(self.db, self.space) == []


def test_each_occurrence_is_one_future_whoever_submits_it(client: Client) -> None:
    clock = Clock(client)
    schedule = client.every(10, pow, 2, 3, name="powers", priority=7, max_retries=0)
    assert clock.to(10.9) == 0
    clock.now = 11 * SECOND
    made: list[int] = []
    threads = [
        threading.Thread(target=lambda: made.append(fire_due(clock.db, clock.space, clock.now))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(made) == 1
    assert schedule.made == 1
    assert clock.to(42) == 1, "the latest of those that were missed"
    last = schedule.last
    assert last is not None
    info = run(clock.db, dm.describe_future, clock.space, last.id)
    assert (info.priority, info.max_retries, info.name) == (7, 0, "builtins.pow")
    (claim, other) = run(clock.db, dm.claim_futures, clock.space, _worker(clock), dm.Capacity(), 9)
    assert claim.args == other.args
    clock.check()


def _worker(clock: Clock) -> dm.WorkerId:
    found: dm.WorkerId = run(
        clock.db, dm.register_worker, clock.space, dm.WorkerId("127.0.0.1", 1, dm.new_incarnation()), dm.WorkerInfo()
    )
    return found


def test_one_of_the_same_name_is_replaced_and_what_is_deleted_is_no_more(client: Client) -> None:
    clock = Clock(client)
    client.every(10, pow, 2, 3, name="same")
    client.every("*/5 * * * *", divmod, 7, 3, name="same", zone="Europe/Berlin")
    (schedule,) = client.schedules()
    assert (schedule.name, schedule.function, schedule.when) == ("same", "builtins.divmod", "*/5 * * * *")
    assert timedelta(0) <= schedule.next - datetime.now(UTC) + timedelta(seconds=2) < timedelta(minutes=6)
    clock.check()
    assert schedule.delete() is True
    assert schedule.delete() is False
    with pytest.raises(LookupError, match="was deleted"):
        _ = schedule.made
    assert client.schedules() == []
    assert clock.to(10_000) == 0
    clock.check()


def test_one_that_is_made_again_with_the_same_times_goes_on_from_where_it_was(client: Client) -> None:
    clock = Clock(client)
    client.every(10, pow, 2, 3, name="same", overlap=False)
    assert clock.to(11) == 1
    for second in range(12, 20):  # a program that starts again and again, and makes its schedules whenever it does
        schedule = client.every(10, divmod, 7, second, name="same", overlap=False)
        assert clock.to(second) == 0
    assert (schedule.function, schedule.made) == ("builtins.divmod", 1)
    assert clock.to(21) == 0, "the one before hasn't ended"
    assert schedule.last is not None and schedule.last.cancel()
    assert clock.to(31) == 1
    client.every(30, divmod, 7, 3, name="same")
    assert clock.to(59) == 0, "other times count from now"
    assert clock.to(62) == 1
    clock.check()


def test_one_that_replaces_another_by_the_name_of_the_function_says_so(client: Client) -> None:
    client.every(10, pow, 2, 3)
    with pytest.warns(UserWarning, match="another schedule 'builtins.pow' is replaced.*name="):
        client.every(10, pow, 2, 4)
    client.every(10, lambda: 1)
    with pytest.warns(UserWarning, match="<lambda>' is replaced"):
        client.every(10, lambda: 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        client.every(10, pow, 2, 4)
        for count in (3, 4):
            client.every(10, pow, 2, count, name="named")


def test_what_is_made_while_the_cluster_clock_stands_still_is_not_due_early(client: Client) -> None:
    clock = Clock(client)
    hour = 3600 * SECOND

    def stand_still(tr: Any) -> None:
        reading = ClockReading(5 * SECOND, round(time.time() * 1e6) - 9 * hour, read_version(tr) - 9 * hour)
        tr.set(clock.space.clock_key, reading.encode())

    run(clock.db, stand_still)
    period = client.every(7200, pow, 2, 3, name="period")
    client.every(f"0 {(datetime.now(UTC).hour + 6) % 24} * * *", pow, 2, 3, name="daily")
    assert abs(period.next - datetime.now(UTC) - timedelta(hours=2)) < timedelta(minutes=1)
    assert clock.to(5 + 9 * 3600) == 0


def test_a_time_of_day_that_the_wall_clock_is_far_from_waits_for_it() -> None:
    nominal = us("2026-01-01T03:00")
    found = plan("0 3 * * *", "UTC", "one", nominal, 9 * SECOND, nominal - 3600 * SECOND)
    assert (list(found.occurrences), found.nominal, found.due_us) == ([], nominal, 309 * SECOND)
    found = plan("0 3 * * *", "UTC", "one", nominal, 9 * SECOND, nominal - 400 * SECOND)
    assert (list(found.occurrences), found.due_us) == ([], 409 * SECOND), "never so that it is taken for late"


def test_a_time_of_day_comes_in_time_after_the_machine_slept(client: Client) -> None:
    clock = Clock(client)
    schedule = client.every("0 3 * * *", pow, 2, 3)
    comes = schedule.next
    assert comes.hour == 3
    wall = comes.timestamp() - 200  # after a sleep, by which the cluster clock is behind
    made = [clock.to(1 + seconds, wall + seconds) for seconds in range(0, 800, 10)]
    assert sum(made) == 1
    assert made.index(1) * 10 in range(200, 310)
    assert schedule.next == comes + timedelta(days=1)
    clock.check()


def test_one_whose_times_a_worker_can_not_tell_keeps_no_other_from_being_submitted(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(client)
    there = client.every("* * * * *", pow, 2, 3, name="a", zone="Europe/Berlin")
    client.every(100, pow, 2, 3, name="b")

    def no_zone(name: str) -> Any:
        raise ZoneInfoNotFoundError(f"No time zone found with key {name}")

    with monkeypatch.context() as changed:
        changed.setattr(planning, "_zone", no_zone)
        with pytest.raises(MainspringError, match=r"'a': ZoneInfoNotFoundError.*Berlin.*tzdata"):
            clock.to(150)
    assert [one.made for one in client.schedules()] == [0, 1]
    assert clock.to(151, wall=time.time() + 151) == 1, "of another worker"
    assert there.made == 1
    clock.check()


def test_one_that_can_not_be_read_is_deleted_and_made_anew_and_strays_are_stepped_over(client: Client) -> None:
    clock = Clock(client)
    keys = layout_of(clock.space)

    def damage(tr: Any) -> None:
        tr.set(keys.schedule("bad"), b"\xc1bad")

    bad = client.every(10, pow, 2, 3, name="bad")
    run(clock.db, damage)
    assert bad.delete() is True
    clock.check()
    client.every(10, pow, 2, 3, name="bad")
    run(clock.db, damage)
    assert client.every(10, pow, 2, 3, name="bad").made == 0
    clock.check()
    run(clock.db, lambda tr: tr.set(keys.schedules + b"\x02due\x00\x01", b""))
    assert run(clock.db, next_due, clock.space) == 11 * SECOND
    assert clock.to(12) == 1


def test_without_overlap_one_waits_for_the_one_before(client: Client) -> None:
    clock = Clock(client)
    schedule = client.every(10, pow, 2, 3, overlap=False)
    assert [clock.to(second) for second in (11, 21, 31)] == [1, 0, 0]
    assert schedule.last is not None and schedule.last.cancel()
    assert clock.to(41) == 1
    clock.check()


def test_many_schedules_are_due_together(client: Client) -> None:
    clock = Clock(client)
    for number in range(120):
        client.every(10, pow, 2, number, name=f"n{number:03}")
    assert clock.to(11) == 120
    assert len(client.schedules()) == 120
    assert [one.name for one in run(clock.db, list_schedules, clock.space, "n117")] == ["n118", "n119"]
    clock.check()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda client: client.every(10, pow, 2, missed="some"), "missed is 'one', 'all', 'skip'"),
        (lambda client: client.every(10, pow, 2, overlap=1), "overlap is True or False"),
        (lambda client: client.every(10, pow, 2, key="k"), "'key' is of one future"),
        (lambda client: client.every(10, pow, client.put(2)), "hold no futures"),
        (lambda client: client.every(10, pow, bytes(70_000)), "60,000 are possible"),
        (lambda client: client.every(10, pow, 2, name="a\0b"), "a schedule has a name"),
    ],
)
def test_what_cannot_be_scheduled_is_refused(client: Client, call: Callable[[Client], Any], said: str) -> None:
    with pytest.raises((ValueError, TypeError, OversizeError), match=said):
        call(client)
    assert client.schedules() == []


def test_damaged_rows_of_a_schedule_keep_no_other_from_running(client: Client) -> None:
    clock = Clock(client)
    client.every(10, pow, 2, 3, name="bad")
    client.every(10, pow, 2, 3, name="good")
    key = dm.rows.space.layout_of(clock.space).schedule("bad")
    run(clock.db, lambda tr: tr.set(key, b"\xc1"))
    assert clock.to(11) == 1
    assert [one.name for one in client.schedules()] == ["good"]


# --- with workers


def test_workers_do_it_and_the_next_ones_go_on(cluster: Any) -> None:
    demo = cluster(workers=1, slots=1)
    client = demo.client()
    schedule = client.every(1, time.time, name="ticks")
    deadline = time.monotonic() + WAIT

    def until(made: int) -> None:
        while schedule.made < made:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    until(1)
    demo.workers[0].kill()
    before = schedule.made
    demo.start("--slots", "1")
    until(before + 2)
    last = schedule.last
    assert last is not None and abs(last.result(timeout=WAIT) - time.time()) < WAIT
    listed = command("ls", "--db", demo.url, "--cluster", demo.name, "--json")
    (row,) = json.loads(listed)
    assert (row["name"], row["seconds"], row["cron"], row["made"] > before) == ("ticks", 1.0, None, True)
    assert "deleted" in command("delete", "ticks", "--db", demo.url, "--cluster", demo.name)
    with pytest.raises(SystemExit) as end:
        command("delete", "ticks", "--db", demo.url, "--cluster", demo.name)
    assert end.value.code == 3
    demo.check()


def command(*arguments: str) -> str:
    """What `futures-worker schedules …` prints, run inside this process. Raises SystemExit where it fails."""
    out = io.StringIO()
    argv, sys.argv = sys.argv, ["futures-worker", "schedules", *arguments]
    try:
        with contextlib.redirect_stdout(out):
            main()
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.argv = argv
    return out.getvalue()
