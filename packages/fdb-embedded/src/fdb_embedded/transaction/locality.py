"""Sizes, split points and addresses: what a cluster answers from its shards, answered for one machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from .. import errors
from ..errors import Code
from ..storage.extents import Tree, Unknown
from .read_version import snapshot_of
from .state import TransactionState

ADDRESS = b"127.0.0.1:4500"
COUNTED_ROWS = 1000
COUNTED_BYTES = 1 << 20
"""Ranges that are no larger are counted row by row."""
ATTEMPTS = 8

T = TypeVar("T")


def estimated_size(transaction: TransactionState, begin: bytes, end: bytes) -> int:
    """Bytes of keys and values in [begin, end): counted where they are few, else estimated from some of the pages that hold them."""
    transaction.check()
    few = _few(transaction, begin, end)
    if few is not None:
        return sum(size for _, size in few)
    estimate = _of_tree(transaction, lambda tree: tree.size(begin, end))
    return sum(size for _, size in _rows(transaction, begin, end)) if estimate is None else estimate


def _rows(transaction: TransactionState, begin: bytes, end: bytes) -> Iterator[tuple[bytes, int]]:
    """Keys that the database holds, and the bytes of their rows: it is asked without a read version, and knows nothing of the
    transaction's writes.
    """
    snap = transaction.engine.snapshots.begin(transaction.go_on)
    try:
        for key, value in snap.stream(begin, end, False, waiter=transaction):
            yield key, len(key) + len(value)
    finally:
        transaction.engine.snapshots.release(snap)


def _few(transaction: TransactionState, begin: bytes, end: bytes) -> list[tuple[bytes, int]] | None:
    """All rows of [begin, end), or None where they are many."""
    found = []
    size = 0
    for row in _rows(transaction, begin, end):
        found.append(row)
        size += row[1]
        if len(found) > COUNTED_ROWS or size > COUNTED_BYTES:
            return None
    return found


def _of_tree(transaction: TransactionState, ask: Callable[[Tree], T]) -> T | None:
    """What the pages tell: it takes about as long for many rows as for few. None where it has to be counted: since keys of more than 510
    bytes lie elsewhere, or somebody goes on committing.
    """
    store = transaction.engine.store
    for _ in range(ATTEMPTS if not store.page.long_keys else 0):
        try:
            return store.read(lambda txn: ask(Tree(store.map.file, store.map.page_size, txn)), transaction.go_on)
        except Unknown:
            continue
    return None


def split_points(transaction: TransactionState, begin: bytes, end: bytes, chunk: int, limit: int) -> list[bytes]:
    """Keys that part [begin, end) into pieces of about `chunk` bytes, both ends included; at most `limit` inside."""
    transaction.check()
    if end > transaction.limit_key():
        raise Code(errors.KEY_OUTSIDE_LEGAL_RANGE)
    parts: Iterable[tuple[bytes, float]] | None = _few(transaction, begin, end)
    if parts is None:
        parts = _of_tree(transaction, lambda tree: list(tree.parts(begin, end, chunk / 2)))
    if parts is None:
        parts = _rows(transaction, begin, end)
    points = [begin]
    total = 0.0
    for key, size in parts:
        if total >= chunk and key > points[-1]:
            if 0 <= limit <= len(points) - 1:
                break
            points.append(key)
            total = 0.0
        total += size
    points.append(end)
    return points


def addresses(transaction: TransactionState, key: bytes) -> list[bytes]:
    """Where a key is stored, if it can be: on this machine."""
    transaction.check()
    transaction.asked = True
    snapshot_of(transaction)  # the client reads it, as it reads a row
    return [ADDRESS] if key < b"\xff\xff" else []
