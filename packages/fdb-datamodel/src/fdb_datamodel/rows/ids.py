"""Ids of futures: UUIDv7 made by the client, rising within a process even inside one millisecond.

Inside the package an id is its 16 bytes; a `uuid.UUID` is accepted at every public function.
"""

from __future__ import annotations

import os
import threading
import time
from uuid import UUID, uuid5

_KEY_NAMESPACE = UUID("6f1c3c55-5f0b-5d55-9c39-6a0d2a4d7e11")
_VERSION = 0x7000
_VARIANT = 0x80
_SEQUENCE_LIMIT = 1 << 12

_lock = threading.Lock()
_random = b""
_RANDOM_BYTES = 512
_last_ms = 0
_sequence = 0


def new_future_ids(count: int) -> list[bytes]:
    """Return `count` new ids (16 bytes each), each greater than every id this process made before.

    The 12 bits after the milliseconds count within the millisecond; when they run out the millisecond is borrowed
    from the future, as RFC 9562 (6.2, method 1) allows.
    """
    global _last_ms, _sequence
    now = time.time_ns() // 1_000_000
    ids: list[bytes] = []
    append = ids.append
    with _lock:
        tails = _take_random(8 * count)
        ms, sequence = _last_ms, _sequence
        if now > ms:
            ms, sequence = now, 0
        for at in range(0, 8 * count, 8):
            if sequence == _SEQUENCE_LIMIT:
                ms, sequence = ms + 1, 0
            head = (ms << 16) | _VERSION | sequence
            sequence += 1
            append(head.to_bytes(8, "big") + bytes((_VARIANT | (tails[at] & 0x3F),)) + tails[at + 1 : at + 8])
        _last_ms, _sequence = ms, sequence
    return ids


def _take_random(size: int) -> bytes:
    """Random bytes, of which many are got at once: for that the interpreter lets other threads run. Under `_lock`."""
    global _random
    if len(_random) < size:
        _random = os.urandom(size + _RANDOM_BYTES)
    taken, _random = _random[:size], _random[size:]
    return taken


def new_future_id() -> bytes:
    """Return one new id (16 bytes)."""
    return new_future_ids(1)[0]


def id_for_key(cluster: str, key: str) -> bytes:
    """Return the id that a deduplicating `key` names in a cluster: equal keys give equal ids (a UUIDv5)."""
    return uuid5(_KEY_NAMESPACE, f"{cluster}\0{key}").bytes


def as_id(future_id: UUID | bytes) -> bytes:
    """Return the 16 bytes of an id.

    Raises ValueError for anything that isn't 16 bytes.
    """
    if isinstance(future_id, UUID):
        return future_id.bytes
    if len(future_id) != 16:
        raise ValueError(f"a future's id is 16 bytes or a UUID, not {len(future_id)} bytes")
    return future_id


def show_id(future_id: bytes) -> str:
    """An id as people see it everywhere: a UUID with its dashes."""
    return str(UUID(bytes=future_id))


def _after_fork() -> None:
    global _lock, _random
    _lock = threading.Lock()
    _random = b""  # the parent gives the same to its own ids


os.register_at_fork(after_in_child=_after_fork)
