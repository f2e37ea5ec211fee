"""Submits what schedules say when it is due; done by whichever worker, or janitor, keeps the cluster's clock."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from fdb_datamodel import ClusterSpace, FutureState, get_future_states
from fdb_datamodel.transitions.schedules import (
    Schedule,
    due_schedules,
    fire_schedule,
    read_schedule,
    set_schedule_aside,
)
from fdb_schema import MainspringError, RecordError
from futures_worker.database import is_database_trouble
from futures_worker.schedules.planning import plan
from idempotent_txn import run

log = logging.getLogger("futures_worker")


def fire_due(db: Any, space: ClusterSpace, now_us: int, wall: Callable[[], float] = time.time) -> int:
    """Submit every occurrence that is due at `now_us` of the cluster clock; how many. Several may do so at once.

    Raises MainspringError, in the end, for those whose times this process can't tell: they stay due, others may know.
    """
    made = 0
    unknown: dict[str, Exception] = {}
    while due := _due_but(db, space, now_us, unknown):
        for due_us, name in due:
            try:
                made += _fire_one(db, space, due_us, name, now_us, int(wall() * 1e6))
            except Exception as error:
                if is_database_trouble(error):
                    raise
                unknown[name] = error
    if unknown:
        said = "; ".join(f"{name!r}: {type(error).__name__}: {error}" for name, error in sorted(unknown.items())[:5])
        raise MainspringError(
            f"{len(unknown)} schedules are due, and this process can't tell their times ({said}): a time zone it doesn't know comes "
            "with the package tzdata; else delete the schedule, or make it anew"
        ) from next(iter(unknown.values()))
    return made


def _due_but(db: Any, space: ClusterSpace, now_us: int, unknown: Mapping[str, object]) -> list[tuple[int, str]]:
    due = run(db, due_schedules, space, now_us, 50 + len(unknown), strategy="off")
    return [(due_us, name) for due_us, name in due if name not in unknown]


def _fire_one(db: Any, space: ClusterSpace, due_us: int, name: str, now_us: int, wall_us: int) -> int:
    try:
        found = run(db, read_schedule, space, name, strategy="off")
    except RecordError as error:
        log.error("schedule %r can't be read, and is set aside: %s; delete it, or make it anew", name, error)
        found = None
    if found is None or found.due_us != due_us:
        run(db, set_schedule_aside, space, due_us, name, strategy="off")
        return 0
    return _fire(db, space, found, now_us, wall_us)


def _fire(db: Any, space: ClusterSpace, schedule: Schedule, now_us: int, wall_us: int) -> int:
    found = plan(schedule.when, schedule.zone, schedule.missed, schedule.nominal, now_us, wall_us)
    occurrences = found.occurrences
    if occurrences and not schedule.overlap:
        occurrences = [] if _runs(db, space, schedule.last) else occurrences[-1:]
    try:
        ids = run(db, fire_schedule, space, schedule, occurrences, found.nominal, found.due_us)
    except MainspringError as error:
        if is_database_trouble(error):
            raise
        log.error("an occurrence of schedule %r can't be submitted, and is left out: %s", schedule.name, error)
        ids = run(db, fire_schedule, space, schedule, [], found.nominal, found.due_us)
    if ids:
        log.debug("schedule %r: %d submitted", schedule.name, len(ids))
    return len(ids)


def _runs(db: Any, space: ClusterSpace, last: bytes) -> bool:
    if not last:
        return False
    state = run(db, get_future_states, space, [last], strategy="off")[0]
    return state not in (None, FutureState.realized, FutureState.failed)
