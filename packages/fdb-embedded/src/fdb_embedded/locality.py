"""Sizes, split points and addresses: what a cluster answers from its shards, answered for one machine."""

from __future__ import annotations

from . import errors
from .errors import Code
from .transaction import Transaction

ADDRESS = b"127.0.0.1:4500"


def estimated_size(transaction: Transaction, begin: bytes, end: bytes) -> int:
    """Bytes of keys and values in [begin, end)."""
    transaction._check()
    if begin > end:
        raise Code(errors.INVERTED_RANGE)
    return sum(len(key) + len(value) for key, value in transaction._rows(begin, end, False, True, 4096))


def split_points(transaction: Transaction, begin: bytes, end: bytes, chunk: int, limit: int) -> list[bytes]:
    """Keys that part [begin, end) into pieces of about `chunk` bytes, both ends included; at most `limit` inside."""
    transaction._check()
    if begin > end:
        raise Code(errors.INVERTED_RANGE)
    if end > transaction._limit_key():
        raise Code(errors.KEY_OUTSIDE_LEGAL_RANGE)
    points = [begin]
    size = 0
    for key, value in transaction._rows(begin, end, False, True, 4096):
        if size >= chunk and key > points[-1]:
            if 0 <= limit <= len(points) - 1:
                break
            points.append(key)
            size = 0
        size += len(key) + len(value)
    points.append(end)
    return points


def addresses(transaction: Transaction, key: bytes) -> list[bytes]:
    """Where a key is stored: on this machine."""
    transaction._check()
    return [ADDRESS]
