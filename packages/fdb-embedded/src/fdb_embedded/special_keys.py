"""Keys that are answered rather than stored: those under `\\xff\\xff`, and the system keys that programs read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import errors, idempotency
from .errors import Code

if TYPE_CHECKING:
    from .keys import Row
    from .transaction import Transaction

NO_SUCH_MODULE = 2113


def get(transaction: Transaction, key: bytes) -> bytes | None:
    raise Code(NO_SUCH_MODULE)


def get_key(transaction: Transaction, key: bytes, or_equal: bool, offset: int) -> bytes:
    raise Code(NO_SUCH_MODULE)


def get_range(
    transaction: Transaction,
    begin: tuple[bytes, bool, int],
    end: tuple[bytes, bool, int],
    limit: int,
    reverse: bool,
    snapshot: bool,
) -> list[Row]:
    raise Code(NO_SUCH_MODULE)


def set(transaction: Transaction, key: bytes, value: bytes) -> None:
    transaction._defer(errors.KEY_OUTSIDE_LEGAL_RANGE)


def clear(transaction: Transaction, begin: bytes, end: bytes) -> None:
    transaction._defer(errors.KEY_OUTSIDE_LEGAL_RANGE)


def system_get(transaction: Transaction, key: bytes) -> tuple[bytes | None] | None:
    """The answer for a system key that isn't (only) stored, in a tuple; None when the key is like any other."""
    if key.startswith(idempotency.IDS):
        rows = transaction._begin().rows(key, key + b"\0", 1, False)
        return (rows[0][1] if rows else None,)
    return None
