"""The cluster clock: time that is stored and later compared.

    (cluster, "clock") → ClockReading(value µs, wall µs, version), msgpack

Wall clocks of two machines are never compared. Due times, back-offs, deadlines and graces are in µs of this one row,
which any service advances every `ADVANCE_SECONDS` by what its own monotonic clock shows since it read or wrote the
value that the row still holds. The advance reads the row serializably, so of two services at once one conflicts, and
no stretch of real time is counted twice: the clock may lag, it never outruns real time.

After a silence of all services the one that starts first catches up by the smaller of the wall time and the version
age since the row was written: a wall clock may be wrong and versions may jump, both at once are unlikely to err ahead.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from fdb_schema.bulk import read_version
from fdb_schema.errors import RecordError
from fdb_schema.keyspace import ClusterSpace
from fdb_schema.records import Record

ADVANCE_SECONDS: Final = 0.25
MICROSECONDS: Final = 1_000_000
STALE_SECONDS: Final = 1.0
"""Age of the row at which whoever stands by takes the clock over: four advances that nobody made."""


@dataclass(frozen=True, slots=True)
class ClockReading(Record):
    """What the row holds: the clock, and for catching up the wall time and read version when it was written."""

    value: int = 0
    wall: int = 0
    version: int = 0


def read_clock(tr: Any, space: ClusterSpace) -> int:
    """Cluster time in µs, by a snapshot read; 0 where no service ever ran."""
    data = tr.snapshot.get(space.clock_key).value
    return 0 if data is None else ClockReading.decode(data).value


def due_after(tr: Any, space: ClusterSpace, seconds: float) -> int:
    """When so much real time will have passed, in µs of the cluster clock.

    After a silence of all services the row is behind, until one catches it up: by as much what is counted from it would be
    early. So this adds what would be caught up now; as there, a wall clock or a version that jumped alone adds nothing.
    """
    due = round(seconds * MICROSECONDS)
    data = tr.snapshot.get(space.clock_key).value
    if data is None:
        return due
    reading = ClockReading.decode(data)
    if not reading.wall:
        return reading.value + due  # of a clock that is moved by hand
    return reading.value + due + _silence(reading, time.time(), read_version(tr))


def _silence(reading: ClockReading, wall: float, version: int) -> int:
    """µs that may be taken to have passed since the row was written."""
    return max(0, min(int(wall * MICROSECONDS) - reading.wall, version - reading.version))


class ClusterClock:
    """One process's part in advancing the clock. Not thread-safe: one thread of a service owns it."""

    def __init__(
        self,
        space: ClusterSpace,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.space = space
        self._monotonic = monotonic
        self._wall = wall
        self._row: bytes | None = None  # as last read or written here
        self._at = 0.0  # own monotonic time of that
        self._catch_up = 0  # µs owed for the silence before this process first saw the row
        self._pending: tuple[bytes, float] | None = None

    def read(self, tr: Any) -> int:
        """Cluster time in µs, by a snapshot read."""
        return read_clock(tr, self.space)

    def advance(self, tr: Any) -> int:
        """Advance the row by what this process observed; returns cluster time in µs.

        Call it in a transaction of its own and `committed()` after the commit. Safe to run again after an unknown
        outcome: where the first run did commit, the row no longer holds what was observed and only an observation is made.
        """
        now = self._monotonic()
        version = read_version(tr)
        data = tr.get(self.space.clock_key).value
        self._pending = None
        if data is None:
            return self._write(tr, 0, version, now)
        try:
            reading = ClockReading.decode(data)
        except RecordError as error:
            if self._row is None:
                raise RecordError(
                    f"the row of cluster {self.space.cluster!r}'s clock is damaged ({error}), and no service that knows its time "
                    "runs: restore the row from a dump"
                ) from error
            # It goes on from what was known here: time that passed since then did pass, so it doesn't outrun real time.
            passed = int((now - self._at) * MICROSECONDS)
            return self._write(tr, ClockReading.decode(self._row).value + passed, version, now)
        if data != self._row:
            # Another service wrote it, or this is the first look: nothing was observed to pass yet.
            first = self._row is None
            self._catch_up = _silence(reading, self._wall(), version) if first else 0
            # The row may have been written during this call, which may have taken long: what passes is counted from here.
            self._row, self._at = data, self._monotonic()
            return reading.value
        passed = int((now - self._at) * MICROSECONDS) + self._catch_up
        if passed <= 0:
            return reading.value
        return self._write(tr, reading.value + passed, version, now)

    def observe(self, tr: Any) -> tuple[int, bool]:
        """Cluster time in µs, and whether somebody else keeps the clock: if not, `advance` it. Writes nothing.

        It is kept if the row is not the one that was seen here last, and no older than `STALE_SECONDS` by the database's
        versions (which may jump: then this process advances the clock as well, which harms nothing). For processes that
        stand by; what passes while they do is counted by whoever keeps it.
        """
        version = read_version(tr)
        data = tr.snapshot.get(self.space.clock_key).value
        if data is None or self._row is None:
            return 0, False
        try:
            reading = ClockReading.decode(data)
        except RecordError:
            return 0, False  # `advance` says so, or goes on from what is known here
        if data == self._row:
            return reading.value, False
        self._row, self._at, self._catch_up = data, self._monotonic(), 0
        return reading.value, version - reading.version <= STALE_SECONDS * MICROSECONDS

    def committed(self) -> bool:
        """The transaction of the last `advance` committed: what it wrote is the row this process observed. Whether it wrote."""
        if self._pending is None:
            return False
        self._row, self._at = self._pending
        self._catch_up = 0
        self._pending = None
        return True

    def _write(self, tr: Any, value: int, version: int, now: float) -> int:
        row = ClockReading(value, int(self._wall() * MICROSECONDS), version).encode()
        tr.set(self.space.clock_key, row)
        self._pending = (row, now)
        return value
