"""Which occurrences of a schedule are to run now, and which one is next. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from fdb_schema.clock import MICROSECONDS

MISSED: Final = ("one", "all", "skip")
MOST_AT_ONCE: Final = 100
"""Missed occurrences that are submitted by one transaction."""
LATE_SECONDS: Final = 60.0
"""Up to which an occurrence isn't missed (or its period, where that is shorter)."""
LOOK_SECONDS: Final = 300.0
"""After which it is looked whether a time of day has come: the cluster clock doesn't count what a machine slept, or stood still."""
LEAST_SECONDS: Final = 1.0
"""Of a period: the cluster clock moves four times a second."""
MOST_SECONDS: Final = 1e9


class Plan(NamedTuple):
    """occurrences: nominal times to run now. nominal, due_us: of the next one."""

    occurrences: Sequence[int]
    nominal: int
    due_us: int


def read_when(when: Any, zone: str | None) -> tuple[str, str]:
    """(when, zone) as a schedule stores them. Raises ValueError, TypeError for what says no time."""
    if isinstance(when, timedelta):
        when = when.total_seconds()
    if isinstance(when, str):
        return _read_cron(when, zone)
    if isinstance(when, bool) or not isinstance(when, (int, float)):
        raise TypeError(
            f"a schedule is a number of seconds, or a cron expression such as '*/5 * * * *', found {when!r:.80}"
        )
    if not LEAST_SECONDS <= when <= MOST_SECONDS:
        raise ValueError(f"a schedule's period is {LEAST_SECONDS:g} to {MOST_SECONDS:g} seconds, found {when!r}")
    if zone is not None:
        raise ValueError("zone is of cron expressions: a period has no time of day")
    return repr(float(when)), ""


def _read_cron(when: str, zone: str | None) -> tuple[str, str]:
    name = "UTC" if zone is None else zone
    try:
        known = _zone(name)
        next(CronSim(when, datetime.now(known)))
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError) as error:
        raise ValueError(f"there is no time zone {name!r:.80}: give one such as 'Europe/Berlin'") from error
    except CronSimError as error:
        raise ValueError(f"{when!r:.80} is no cron expression: {error}; five fields, as '*/5 * * * *'") from error
    except StopIteration:
        raise ValueError(f"{when!r:.80} is at no time at all") from None
    return when, name


def first(when: str, zone: str, now_us: int, wall_us: int) -> tuple[int, int]:
    """(nominal, due µs) of the first occurrence from now on: of a period, a period from now."""
    period = _period(when)
    if period is not None:
        return now_us + period, now_us + period
    nominal = _next_of(when, zone, wall_us)
    return nominal, _look_at(nominal, now_us, wall_us)


def plan(when: str, zone: str, missed: str, nominal: int, now_us: int, wall_us: int) -> Plan:
    """What is to be done about an occurrence that is due.

    now_us: cluster clock; wall_us: this process's wall clock, which decides of cron expressions only.
    """
    period = _period(when)
    if period is not None:
        count = max(0, now_us - nominal) // period
        latest = nominal + count * period
        ran = _chosen(
            missed, [nominal + n * period for n in range(min(count + 1, MOST_AT_ONCE))], latest, now_us, period
        )
        following = (ran[-1] if missed == "all" else latest) + period
        return Plan(ran, following, following)
    if nominal - wall_us > LATE_SECONDS * MICROSECONDS:  # it was only to be looked at, or the cluster clock was wrong
        return Plan((), nominal, _look_at(nominal, now_us, wall_us))
    wall_us = max(wall_us, nominal)  # a clock that is behind: it is due all the same
    latest = max(nominal, _latest_of(when, zone, wall_us))
    ran = _chosen(missed, _some_from(when, zone, nominal, wall_us), latest, wall_us, MICROSECONDS * 60)
    following = _next_of(when, zone, ran[-1] if missed == "all" else latest)
    return Plan(ran, following, _look_at(following, now_us, wall_us))


def _look_at(nominal: int, now_us: int, wall_us: int) -> int:
    """When an occurrence is due by the cluster clock, or while that is long until then, is to be looked at again."""
    ahead = nominal - wall_us
    long = ahead > (LOOK_SECONDS + 2 * LATE_SECONDS) * MICROSECONDS
    return now_us + (round(LOOK_SECONDS * MICROSECONDS) if long else ahead)


def _chosen(missed: str, each: Sequence[int], latest: int, now_us: int, period: int) -> Sequence[int]:
    if missed == "all":
        return each
    late = now_us - latest > min(period, round(LATE_SECONDS * MICROSECONDS))
    return [] if missed == "skip" and late else [latest]


def _period(when: str) -> int | None:
    """In µs; None of a cron expression."""
    try:
        return round(float(when) * MICROSECONDS)
    except ValueError:
        return None


def _zone(name: str) -> tzinfo:
    return UTC if name == "UTC" else ZoneInfo(name)


def _at(wall_us: int, zone: str) -> datetime:
    return datetime.fromtimestamp(wall_us / MICROSECONDS, _zone(zone))


def _us(moment: datetime) -> int:
    return round(moment.timestamp()) * MICROSECONDS


def _next_of(when: str, zone: str, wall_us: int) -> int:
    return _us(next(CronSim(when, _at(wall_us, zone))))


def _latest_of(when: str, zone: str, wall_us: int) -> int:
    """The latest occurrence that isn't after a moment."""
    return _us(next(CronSim(when, _at(wall_us, zone) + timedelta(seconds=1), reverse=True)))


def _some_from(when: str, zone: str, nominal: int, wall_us: int) -> list[int]:
    found = [nominal]
    for moment in CronSim(when, _at(nominal, zone)):
        if len(found) == MOST_AT_ONCE or _us(moment) > wall_us:
            break
        found.append(_us(moment))
    return found
