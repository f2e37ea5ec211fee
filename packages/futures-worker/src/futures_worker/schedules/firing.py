"""Submits what schedules say when it is due; done by whichever worker, or janitor, keeps the cluster's clock."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
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
    """Submit every occurrence that is due at `now_us` of the cluster clock; how many. Several may do so at once."""
    made = 0
    while due := run(db, due_schedules, space, now_us, strategy="off"):
        for due_us, name in due:
            try:
                found = run(db, read_schedule, space, name, strategy="off")
            except RecordError as error:
                log.error("schedule %r can't be read, and is set aside: %s; delete it, or make it anew", name, error)
                found = None
            if found is None or found.due_us != due_us:
                run(db, set_schedule_aside, space, due_us, name, strategy="off")
            else:
                made += _fire(db, space, found, now_us, int(wall() * 1e6))
    return made


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
