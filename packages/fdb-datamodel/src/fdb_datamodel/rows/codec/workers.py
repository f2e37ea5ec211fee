"""Workers, what they say of themselves and how they fare, and sessions."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from fdb_datamodel.rows.codec.needs import total_from
from fdb_datamodel.rows.codec.values import BYTES, INT, MAYBE_INT, STR, TUPLE, nth, pack, reader, typed, unpack
from fdb_datamodel.rows.records import Heartbeat, WorkerId, WorkerInfo


def pack_worker(worker: WorkerId | None) -> bytes:
    return pack(None) if worker is None else pack((worker.ip, worker.port, worker.incarnation))


def worker_from(fields: tuple[Any, ...] | None) -> WorkerId | None:
    if fields is None:
        return None
    typed(fields, STR, INT, BYTES)
    return _worker(fields[:3])


@lru_cache(maxsize=1024)
def _worker(fields: tuple[str, int, bytes]) -> WorkerId:
    """One object for each: whoever holds a million results holds few workers."""
    return WorkerId(*fields)


def pack_worker_info(incarnation: bytes, info: WorkerInfo) -> bytes:
    return pack(
        (
            incarnation,
            info.slots,
            info.total.shape,
            info.object_store,
            info.pid,
            info.boot_id,
            info.host,
            info.wall_us,
            info.pid_start,
        )
    )


@reader("what a worker says of itself")
def unpack_worker_info(value: bytes) -> tuple[bytes, WorkerInfo]:
    f = unpack(value)
    typed(f, BYTES, INT, TUPLE, INT, INT, STR, STR, INT, INT)
    total = total_from(nth(f, 2, (0, 0, 0)))
    info = WorkerInfo(
        nth(f, 1, 1), total, nth(f, 3, 0), nth(f, 4, 0), nth(f, 5, ""), nth(f, 6, ""), nth(f, 7, 0), nth(f, 8, 0)
    )
    return f[0], info


def incarnation_of(value: bytes | None) -> bytes | None:
    """The incarnation of a stored worker row, without decoding the rest (it is the first field, 16 bytes)."""
    return None if value is None else value[3:19]


def pack_heartbeat(beat: Heartbeat) -> bytes:
    return pack(
        (
            beat.counter,
            beat.started_at_us,
            beat.slots,
            beat.total.shape,
            beat.free_slots,
            beat.free.shape,
            beat.object_store,
            beat.object_store_free,
            beat.wall_us,
            None if beat.cpu_used is None else round(beat.cpu_used * 1000),
            beat.memory_used,
        )
    )


@reader("a heartbeat")
def unpack_heartbeat(value: bytes) -> Heartbeat:
    f = unpack(value)
    typed(f, INT, INT, INT, TUPLE, INT, TUPLE, INT, INT, INT, MAYBE_INT, MAYBE_INT)
    cpu = nth(f, 9, None)
    return Heartbeat(
        f[0],
        nth(f, 1, 0),
        nth(f, 2, 1),
        total_from(nth(f, 3, (0, 0, 0))),
        nth(f, 4, 0),
        total_from(nth(f, 5, (0, 0, 0))),
        nth(f, 6, 0),
        nth(f, 7, 0),
        nth(f, 8, 0),
        None if cpu is None else cpu / 1000,
        nth(f, 10, None),
    )


@reader("a session")
def unpack_session(value: bytes) -> tuple[int, int, str, int]:
    """(counter, wall_us, host, pid)."""
    f = unpack(value)
    typed(f, INT, INT, STR, INT)
    return f[0], f[1], f[2], f[3]


def pack_session(
    counter: int, wall_us: int, host: str, pid: int, hears: bool, place: str = "", pid_start: int = 0
) -> bytes:
    """`hears`: whether it is mailed when its futures' tasks have printed something. `place`, `pid_start`: as of `SessionSighting`."""
    return pack((counter, wall_us, host, pid, hears, place, pid_start))


@reader("a session")
def process_of_session(value: bytes) -> tuple[str, int]:
    """(place, pid_start): where its process id means that process; ("", 0) where it doesn't say."""
    f = unpack(value)
    place, start = nth(f, 5, ""), nth(f, 6, 0)
    if type(place) is not str or type(start) is not int:
        raise ValueError("it names no process")
    return place, start


@reader("a session")
def hears_output(value: bytes) -> bool:
    """Whether the session is mailed of output."""
    return bool(nth(unpack(value), 4, False))
