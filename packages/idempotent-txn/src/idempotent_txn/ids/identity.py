"""Names of transactions: ids that a caller gives, and strong random ones."""

from __future__ import annotations

import os
import struct
from typing import Final

from idempotent_txn.errors import IdempotencyIdError

MAX_ID_BYTES: Final = 255
RANDOM_ID_BYTES: Final = 16
NATIVE_MIN_BYTES: Final = 16
SHORT_PREFIX: Final = b"mainspring:short:"
"""Put before ids under 16 bytes, which FoundationDB's option refuses. Ids that begin so are reserved."""

_POOL_IDS: Final = 256
_cut: Final = struct.Struct(f"{RANDOM_ID_BYTES}s" * _POOL_IDS).unpack


class IdempotencyId(bytes):
    """The name of one transaction, 1 to 255 bytes of the caller's choice, e.g. `IdempotencyId(b"order-17")`.

    It is kept with the commit until `expire_idempotency_id`, so that any process can ask `commit_result` for it. Two
    transactions under way with one id exclude each other; `run` doesn't deduplicate a second call.

    Raises:
        IdempotencyIdError: it isn't bytes, is empty, over 255 bytes, or begins with a reserved prefix.
    """

    __slots__ = ()

    def __new__(cls, value: bytes) -> IdempotencyId:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise IdempotencyIdError(f"an idempotency id is bytes, not {type(value).__name__}: encode it first")
        size = len(bytes(value))
        if not 1 <= size <= MAX_ID_BYTES:
            raise IdempotencyIdError(
                f"an idempotency id has 1 to {MAX_ID_BYTES} bytes, not {size}: hash it, or shorten it"
            )
        if bytes(value).startswith(SHORT_PREFIX):
            raise IdempotencyIdError(
                f"idempotency ids that begin with {SHORT_PREFIX!r} are reserved: choose another one"
            )
        return super().__new__(cls, value)

    def __repr__(self) -> str:
        return f"IdempotencyId({bytes(self)!r})"

    @classmethod
    def random(cls) -> IdempotencyId:
        """16 bytes that no other process will draw."""
        return cls(os.urandom(RANDOM_ID_BYTES))


def checked_id(value: bytes) -> IdempotencyId:
    """`value` as an `IdempotencyId`; raises `IdempotencyIdError`."""
    return value if isinstance(value, IdempotencyId) else IdempotencyId(value)


def native_form(value: bytes) -> bytes:
    """What option 504 is given for an explicit id: 16 to 255 bytes."""
    return value if len(value) >= NATIVE_MIN_BYTES else SHORT_PREFIX + value


def public_form(native: bytes) -> bytes:
    """The inverse of `native_form`."""
    return native.removeprefix(SHORT_PREFIX)


random_ids: Final[list[bytes]] = []
"""Drawn, and not given to anybody yet: each is popped once."""


def random_id() -> bytes:
    """16 bytes from the operating system's generator; drawn many at a time, for a call of it costs a microsecond."""
    try:
        return random_ids.pop()
    except IndexError:
        drawn = os.urandom(RANDOM_ID_BYTES * _POOL_IDS)
        random_ids.extend(_cut(drawn))
        return os.urandom(RANDOM_ID_BYTES)


# A child must not draw the ids that its parent is about to use.
os.register_at_fork(after_in_child=random_ids.clear)
