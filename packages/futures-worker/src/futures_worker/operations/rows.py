"""Futures and workers as rows of a listing, typed: for programs, and for the tables of commands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from fdb_datamodel import FutureInfo, FutureState, WorkerStatus, named_of
from futures_worker.operations.finding import seconds_of_last

_HEX_ID: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")


@dataclass(frozen=True, slots=True)
class FutureRow:
    """One future of `Client.futures`. Times are wall clocks of the processes that noted them."""

    id: UUID
    name: str  # given at submit, or the function's: module.qualname
    state: FutureState
    reason: str  # why it is in that state
    attempts: int  # starts
    worker: str | None  # "ip:port" that has it, made its result, or had it when it failed for good
    submitted: datetime | None
    claimed: datetime | None  # its latest attempt
    ended: datetime | None
    seconds: float | None  # that the last attempt took; None where it hasn't ended


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One worker of `Client.workers`."""

    address: str  # "ip:port"
    slots: int
    free_slots: int | None  # None before its first heartbeat
    claims: int  # futures that it has claimed, counted up to 1,000
    cpu: float  # offered to tasks
    ram: int  # bytes offered to tasks
    gpu: float
    object_store: int  # bytes of results that it keeps in memory
    object_store_free: int | None
    host: str
    pid: int
    started: datetime | None
    last_beat: datetime | None
    resources: Mapping[str, float] = field(default_factory=dict)  # named ones that are offered to tasks


def future_row(info: FutureInfo) -> FutureRow:
    """The row of a future."""
    return FutureRow(
        id=UUID(bytes=info.id),
        name=info.name,
        state=info.state,
        reason=dashed(info.reason),
        attempts=info.attempts,
        worker=info.address,
        submitted=_moment(info.wall_us),
        claimed=_moment(info.claimed_us),
        ended=_moment(info.ended_us),
        seconds=seconds_of_last(info),
    )


def worker_row(status: WorkerStatus) -> WorkerRow:
    """The row of a worker."""
    beat, total = status.heartbeat, status.info.total.shape
    return WorkerRow(
        address=f"{status.id.ip}:{status.id.port}",
        slots=status.info.slots,
        free_slots=beat.free_slots if beat is not None else None,
        claims=status.claims,
        cpu=total[0] / 1000,
        ram=total[1],
        gpu=total[2] / 1000,
        object_store=status.info.object_store,
        object_store_free=beat.object_store_free if beat is not None else None,
        host=status.info.host,
        pid=status.info.pid,
        started=_moment(status.info.wall_us),
        last_beat=_moment(beat.wall_us) if beat is not None else None,
        resources={name: amount / 1000 for name, amount in named_of(total)},
    )


def dashed(text: str) -> str:
    """A text of the data model with the ids in it as commands print them."""
    return _HEX_ID.sub(lambda match: str(UUID(match[0])), text)


def _moment(microseconds: int) -> datetime | None:
    try:
        return datetime.fromtimestamp(microseconds / 1e6, UTC) if microseconds else None
    except (ValueError, OverflowError, OSError):  # no calendar has it
        return None
