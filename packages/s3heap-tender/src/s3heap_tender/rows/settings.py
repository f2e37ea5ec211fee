"""Checks what a caller gives for a new task, and makes its row."""

from __future__ import annotations

import uuid
from typing import Final
from uuid import UUID

from fdb_schema import OversizeError, RecordError, check_name
from s3heap_tender.rows.records import CATCH_UPS, MICROSECONDS, OVERLAPS, Backoff, TaskRow
from s3heap_tender.rows.states import State

MAX_PAYLOAD: Final = 64_000
MAX_ROW: Final = 50_000  # of a new task: a value of the database has at most 100,000 bytes, and a row grows
PARTITION_NAMESPACE: Final = uuid.UUID("7b6a6c1e-4ad5-5f0a-9c55-30d0b1a7f6f4")


def partition_id(partition: UUID | str) -> UUID:
    """A partition's UUID: itself, or the uuid5 of a name. Raises `TypeError`, or `ValueError` for an empty name."""
    if isinstance(partition, UUID):
        return partition
    if not isinstance(partition, str):
        raise TypeError(f"a partition is a UUID or a name, not {type(partition).__name__}: {partition!r}")
    if not partition:
        raise ValueError("a partition's name can't be empty")
    return uuid.uuid5(PARTITION_NAMESPACE, partition)


def _micro(what: str, seconds: float) -> int:
    if not seconds >= 0 or seconds > 1e9:
        raise ValueError(f"{what} must be 0 or more seconds, at most 1e9, not {seconds!r}")
    return round(seconds * MICROSECONDS)


def new_row(
    partition: UUID | str,
    name: str,
    cadence: float,
    min_records: int,
    max_wait: float | None,
    jitter: float,
    backoff: Backoff | float | None,
    max_attempts: int,
    overlap: str,
    catch_up: str,
    payload: bytes,
) -> TaskRow:
    """The row of a task to be created. Raises `ValueError` for a setting out of range, naming it."""
    check_name("task name", name)
    if isinstance(min_records, bool) or not isinstance(min_records, int) or min_records < 1:
        raise ValueError(f"min_records must be 1 or more, not {min_records!r}")
    if min_records > 1 and max_wait is None:
        raise ValueError(
            f"min_records={min_records} needs max_wait: without it a smaller write would never cause a run"
        )
    if max_attempts < 1:
        raise ValueError(f"max_attempts must be 1 or more, not {max_attempts!r}")
    if overlap not in OVERLAPS:
        raise ValueError(f"overlap must be one of {', '.join(OVERLAPS)}, not {overlap!r}")
    if catch_up not in CATCH_UPS:
        raise ValueError(f"catch_up must be one of {', '.join(CATCH_UPS)}, not {catch_up!r}")
    if len(payload) > MAX_PAYLOAD:
        raise OversizeError(f"payload of task {name!r} has {len(payload)} bytes; the limit is {MAX_PAYLOAD}")
    if backoff is None:
        backoff = Backoff()
    elif isinstance(backoff, (int, float)):
        backoff = Backoff(initial=float(backoff))
    if not (backoff.initial >= 0 and backoff.factor >= 1 and backoff.maximum >= 0 and backoff.jitter >= 0):
        raise ValueError(
            f"backoff must have initial, maximum and jitter of 0 or more and factor of 1 or more: {backoff}"
        )
    row = TaskRow(
        partition=partition_id(partition),
        partition_name=partition if isinstance(partition, str) else "",
        name=name,
        state=State.SCHEDULED,
        gen=1,
        live_gen=1,
        due=0,
        created=0,
        cadence=_micro("cadence", cadence),
        min_records=min_records,
        max_wait=None if max_wait is None else _micro("max_wait", max_wait),
        jitter=_micro("jitter", jitter),
        backoff=backoff,
        max_attempts=max_attempts,
        overlap=overlap,
        catch_up=catch_up,
    )
    return _storable(row)


def _storable(row: TaskRow) -> TaskRow:
    """The row, where what is stored of it can be read. Raises `ValueError`: nobody could read, run or delete such a task."""
    try:
        data = row.encode()
        TaskRow.decode(data)
    except (RecordError, OverflowError) as error:
        raise ValueError(f"the settings of task {row.name!r} can't be stored: {error}") from error
    if len(data) > MAX_ROW:
        raise OversizeError(
            f"the partition's name is too long: the row of task {row.name!r} would have {len(data)} bytes"
        )
    return row
