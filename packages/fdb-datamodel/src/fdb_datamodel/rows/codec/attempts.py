"""An attempt, from its claim to its result or failure, and the mail that tells of its end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fdb_datamodel.rows.codec.values import (
    BOOL,
    BYTES,
    INT,
    MAYBE_BYTES,
    MAYBE_TUPLE,
    STR,
    TUPLE,
    nth,
    pack,
    reader,
    typed,
    unpack,
)
from fdb_datamodel.rows.codec.workers import pack_worker, worker_from
from fdb_datamodel.rows.records import Failure, FutureResult, WorkerId


def pack_claim(worker: WorkerId, token: bytes, wall_us: int, attempt: int) -> bytes:
    return claim_head(worker, token, wall_us) + pack(attempt)


def claim_head(worker: WorkerId, token: bytes, wall_us: int, *, together: bool = False) -> bytes:
    """A claim's value but for the attempt, and, of those made `together`, with which one: the same for every claim of a batch."""
    return (
        (b"\x97" if together else b"\x96")
        + pack(token)
        + pack(worker.ip)
        + pack(worker.port)
        + pack(worker.incarnation)
        + pack(wall_us)
    )


@reader("a claim")
def unpack_claim(value: bytes) -> tuple[bytes, WorkerId, int, int]:
    """(token, worker, wall_us, attempt)."""
    f = _claim_fields(value)
    return f[0], WorkerId(f[1], f[2], f[3]), f[4], f[5]


@reader("a claim")
def claimed_with(value: bytes) -> bytes:
    """The id of the first one of those that a claim was made together with; b"" of one that was made by itself."""
    first: bytes = nth(_claim_fields(value), 6, b"")
    return first


def _claim_fields(value: bytes) -> tuple[Any, ...]:
    """The fields of a claim, every one of them looked at: who reads one of them finds it damaged where another reader does."""
    f: tuple[Any, ...] = unpack(value)
    typed(f, BYTES, STR, INT, BYTES, INT, INT, BYTES)
    if len(f) > 6 and len(f[6]) not in (0, 16):
        raise ValueError("it was made with what is no future")
    return f


def pack_claim_row(worker: WorkerId, token: bytes) -> bytes:
    return pack((token, worker.incarnation))


@reader("a worker's claim")
def unpack_claim_row(value: bytes) -> tuple[bytes, bytes]:
    """(token, incarnation)."""
    f = unpack(value)
    typed(f, BYTES, BYTES)
    return f[0], f[1]


def pack_claims_row(incarnation: bytes, ids: Iterable[bytes]) -> bytes:
    return pack((incarnation, b"".join(ids)))


@reader("a worker's claims")
def unpack_claims_row(value: bytes) -> tuple[bytes, list[bytes]]:
    """(incarnation, ids of the futures that it claimed together and holds)."""
    f = unpack(value)
    typed(f, BYTES, BYTES)
    incarnation, ids = f[:2]
    if len(incarnation) != 16:
        raise ValueError("it is no incarnation's")
    if not ids or len(ids) % 16:
        raise ValueError("it lists what are no futures")
    return incarnation, [ids[at : at + 16] for at in range(0, len(ids), 16)]


@reader("what an attempt printed")
def unpack_output(value: bytes) -> tuple[bytes, int]:
    """(what is kept, bytes in all)."""
    f = unpack(value)
    typed(f, BYTES, INT)
    return f[0], f[1]


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


@reader("a result")
def unpack_latest_result(value: bytes) -> FutureResult:
    f = unpack(value)
    typed(f, BYTES, MAYBE_BYTES, INT, STR, MAYBE_TUPLE, INT)
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


@reader("a copy of a result")
def unpack_result_row(value: bytes) -> tuple[FutureResult, bool]:
    """A copy (without the inline bytes) and whether it is inline."""
    f = unpack(value)
    typed(f, BYTES, INT, STR, MAYBE_TUPLE, INT, BOOL)
    return FutureResult(None, f[1], f[2], worker_from(f[3]), f[0], f[4]), bool(f[5])


@reader("mail")
def unpack_mail(value: bytes) -> list[tuple[bytes, str, bytes | None, int]]:
    """Entries: (future, kind, value, epoch)."""
    entries: list[tuple[bytes, str, bytes | None, int]] = []
    for entry in unpack(value):
        typed(entry, BYTES, STR, MAYBE_BYTES, INT)
        future_id, kind, what, epoch = entry
        if len(future_id) != 16:
            raise TypeError("an entry names no future")
        entries.append((future_id, kind, what, epoch))
    return entries


@reader("the grace of a cancelled task")
def unpack_seconds(value: bytes | None) -> float:
    """Seconds; 0 where there is nothing."""
    if value is None:
        return 0.0
    seconds = unpack(value)
    if type(seconds) is not float or not 0 <= seconds < float("inf"):
        raise TypeError("no number of seconds")
    return seconds


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
            failure.began_us,
            failure.worker,
        )
    )


@reader("a failure")
def unpack_failure(value: bytes) -> Failure:
    f = unpack(value)
    typed(f, STR, STR, BYTES, STR, TUPLE, INT, INT, BYTES, INT, STR, INT, STR)
    return Failure(*f[:12])
