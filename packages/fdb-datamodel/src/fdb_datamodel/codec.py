"""How each value is stored: msgpack arrays whose first fields never move, written and read without intermediate objects.

`token` is the first field of `claim` and `latest_result`, so that "this result is of this claim" is a comparison of
twelve bytes (`same_token`). Readers take fields by position, give absent trailing ones their default and ignore more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgpack

from .records import (
    Backoff,
    CodeDigest,
    Failure,
    FutureResult,
    FutureSpec,
    Heartbeat,
    Locality,
    WorkerId,
    WorkerInfo,
)
from .requirements import Requirements, Shape

pack: Callable[[Any], bytes] = msgpack.Packer(use_bin_type=True, autoreset=True).pack


def unpack(value: bytes) -> Any:
    return msgpack.unpackb(value, use_list=False, raw=False)


def _at(fields: tuple[Any, ...], index: int, default: Any) -> Any:
    return fields[index] if index < len(fields) else default


def same_token(one: bytes, other: bytes) -> bool:
    """Whether two stored records (of fewer than 16 fields, token first) carry the same token."""
    return one[1:13] == other[1:13]


# --- workers


def pack_worker(worker: WorkerId | None) -> bytes:
    return pack(None) if worker is None else pack((worker.ip, worker.port, worker.incarnation))


def worker_from(fields: tuple[Any, ...] | None) -> WorkerId | None:
    return None if fields is None else _worker(fields[:3])


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


def unpack_worker_info(value: bytes) -> tuple[bytes, WorkerInfo]:
    f = unpack(value)
    total = Requirements.from_shape(_at(f, 2, (0, 0, 0)))
    info = WorkerInfo(
        _at(f, 1, 1), total, _at(f, 3, 0), _at(f, 4, 0), _at(f, 5, ""), _at(f, 6, ""), _at(f, 7, 0), _at(f, 8, 0)
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
        )
    )


def unpack_heartbeat(value: bytes) -> Heartbeat:
    f = unpack(value)
    return Heartbeat(
        f[0],
        _at(f, 1, 0),
        _at(f, 2, 1),
        Requirements.from_shape(_at(f, 3, (0, 0, 0))),
        _at(f, 4, 0),
        Requirements.from_shape(_at(f, 5, (0, 0, 0))),
        _at(f, 6, 0),
        _at(f, 7, 0),
        _at(f, 8, 0),
    )


# --- claims


def pack_claim(worker: WorkerId, token: bytes, wall_us: int, attempt: int) -> bytes:
    return claim_head(worker, token, wall_us) + pack(attempt)


def claim_head(worker: WorkerId, token: bytes, wall_us: int) -> bytes:
    """A claim's value but for its last field, the attempt: the same for every claim of a batch."""
    return b"\x96" + pack(token) + pack(worker.ip) + pack(worker.port) + pack(worker.incarnation) + pack(wall_us)


def unpack_claim(value: bytes) -> tuple[bytes, WorkerId, int, int]:
    """(token, worker, wall_us, attempt)."""
    f = unpack(value)
    return f[0], WorkerId(f[1], f[2], f[3]), f[4], f[5]


def pack_claim_row(worker: WorkerId, token: bytes) -> bytes:
    return pack((token, worker.incarnation))


# --- results


def pack_latest_result(result: FutureResult, token: bytes, wall_us: int) -> bytes:
    inline = result.inline
    size = result.size if inline is None else len(inline)
    return (
        b"\x96"
        + pack(token)
        + pack(inline)
        + pack(size)
        + pack(result.name)
        + pack_worker(result.worker)
        + pack(wall_us)
    )


def unpack_latest_result(value: bytes) -> FutureResult:
    f = unpack(value)
    return FutureResult(f[1], f[2], f[3], worker_from(f[4]), f[0], f[5])


def pack_result_row(result: FutureResult, token: bytes, wall_us: int) -> bytes:
    size = result.size if result.inline is None else len(result.inline)
    return (
        b"\x96"
        + pack(token)
        + pack(size)
        + pack(result.name)
        + pack_worker(result.worker)
        + pack(wall_us)
        + pack(result.inline is not None)
    )


def unpack_result_row(value: bytes) -> tuple[FutureResult, bool]:
    """A copy (without the inline bytes) and whether it is inline."""
    f = unpack(value)
    return FutureResult(None, f[1], f[2], worker_from(f[3]), f[0], f[4]), bool(f[5])


# --- failures


def pack_failure(failure: Failure) -> bytes:
    failure = failure.bounded()
    return pack(
        (
            failure.reason,
            failure.message,
            failure.payload,
            failure.traceback,
            failure.chain,
            failure.epoch,
            failure.attempt,
            failure.token,
            failure.wall_us,
            failure.cause,
        )
    )


def unpack_failure(value: bytes) -> Failure:
    f = unpack(value)
    return Failure(*f[:10])


# --- what is submitted


def pack_code(session: bytes, code: bytes, wall_us: int) -> bytes:
    return pack((session, bytes(code), isinstance(code, CodeDigest), wall_us))


def unpack_code(value: bytes) -> tuple[bytes, bytes, int]:
    """(session, code or its digest, wall_us)."""
    f = unpack(value)
    return f[0], (CodeDigest(f[1]) if f[2] else f[1]), f[3]


def pack_args(args: bytes, dependencies: tuple[bytes, ...]) -> bytes | None:
    """None where there is nothing to store."""
    if isinstance(args, CodeDigest):
        return pack((bytes(args), dependencies, True))
    if dependencies:
        return pack((args, dependencies))
    return pack((args,)) if args else None


def unpack_args(value: bytes | None) -> tuple[bytes, tuple[bytes, ...]]:
    """(payload or its digest, dependency ids)."""
    if value is None:
        return b"", ()
    f = unpack(value)
    return (CodeDigest(f[0]) if _at(f, 2, False) else f[0]), _at(f, 1, ())


def pack_requirements(shape: Shape, priority: int, locality: Locality | None) -> bytes | None:
    """None where all are the default."""
    if locality is not None:
        w = locality.worker
        where = (w.ip, w.port, w.incarnation, locality.reason, locality.pinned, locality.wait)
        return pack((*shape, priority, where))
    if priority:
        return pack((*shape, priority))
    return pack(shape) if any(shape) else None


def unpack_requirements(value: bytes | None) -> tuple[Shape, int, Locality | None]:
    if value is None:
        return (0, 0, 0), 0, None
    f = unpack(value)
    where = _at(f, 4, None)
    locality = where and Locality(WorkerId(where[0], where[1], where[2]), where[3], where[4], where[5])
    return (f[0], f[1], f[2]), _at(f, 3, 0), locality


def pack_assignment(locality: Locality, shape: Shape) -> bytes:
    return pack((locality.worker.incarnation, locality.reason, locality.pinned, *shape))


def unpack_assignment(value: bytes) -> tuple[bytes, bytes | None, bool, Shape]:
    """(incarnation, reason, pinned, shape)."""
    f = unpack(value)
    return f[0], f[1], f[2], (f[3], f[4], f[5])


_OPTION_DEFAULTS: dict[str, Any] = {
    "max_worker_losses": 3,
    "max_oom": 3,
    "max_reconstructions": 10,
    "queue_timeout": None,
    "run_timeout": None,
    "total_timeout": None,
    "unschedulable_timeout": None,
    "name": "",
    "call_options": b"",
    "keep": False,
    "parent": b"",
    "ttl": None,
    "max_restarts": None,
}


def pack_options(spec: FutureSpec) -> bytes | None:
    """None where all are the default."""
    options = {name: value for name, default in _OPTION_DEFAULTS.items() if (value := getattr(spec, name)) != default}
    if spec.backoff is not None:
        options["backoff"] = (spec.backoff.initial, spec.backoff.factor, spec.backoff.maximum)
    return pack(options) if options else None


def unpack_options(value: bytes | None) -> dict[str, Any]:
    """What was stored; take absent ones from `option`."""
    options: dict[str, Any] = {} if value is None else unpack(value)
    return options


def option(options: dict[str, Any], name: str) -> Any:
    found = options.get(name)
    return _OPTION_DEFAULTS[name] if found is None else found


def backoff_of(options: dict[str, Any]) -> Backoff | None:
    fields = options.get("backoff")
    return None if fields is None else Backoff(*fields)


def has_defaults_only(spec: FutureSpec) -> bool:
    """Whether a spec needs no row but its code, its arguments and its place in the indices."""
    return (
        spec.max_retries == 3
        and spec.allow_reconstruction
        and spec.requirements is None
        and spec.priority == 0
        and spec.locality is None
        and not spec.name
        and not spec.call_options
        and spec.backoff is None
        and spec.max_worker_losses == 3
        and spec.max_oom == 3
        and spec.max_reconstructions == 10
        and spec.queue_timeout is None
        and spec.run_timeout is None
        and spec.total_timeout is None
        and spec.unschedulable_timeout is None
        and not spec.keep
        and not spec.parent
        and spec.ttl is None
        and spec.max_restarts is None
    )
