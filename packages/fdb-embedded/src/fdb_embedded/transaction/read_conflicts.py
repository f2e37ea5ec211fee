"""Where the read conflicts of a transaction are noted: points, ranges, and what they count."""

from __future__ import annotations

from collections.abc import Iterable

from ..pure.write_map import CONFLICT_COST
from .state import TransactionState


def _first_points(tr: TransactionState) -> set[bytes]:
    fresh: set[bytes] = set()
    points = tr.read_points
    if points is None:  # no call until it is set: not by another thread meanwhile
        tr.read_points = points = fresh
    return points


def insert_point(tr: TransactionState, key: bytes) -> None:
    points = tr.read_points
    if points is None:
        points = _first_points(tr)
    points.add(key)


def insert_points(tr: TransactionState, keys: Iterable[bytes]) -> None:
    points = tr.read_points
    if points is None:
        points = _first_points(tr)
    points.update(keys)


def insert_range(tr: TransactionState, begin: bytes, end: bytes) -> None:
    if len(end) == len(begin) + 1 and end[-1] == 0 and end.startswith(begin):
        insert_point(tr, begin)
    else:
        tr.read_ranges.append((begin, end))


def insert_part(tr: TransactionState, begin: bytes, end: bytes) -> None:
    """A part between the transaction's own writes: who reads from one place again and again meets the same ones each time."""
    parts = tr.read_parts
    if parts is None or parts[0] is not tr.read_ranges:  # the conflicts were given up meanwhile
        parts = tr.read_parts = (tr.read_ranges, set())
    if (begin, end) not in parts[1]:
        insert_range(tr, begin, end)
        parts[1].add((begin, end))  # afterwards: another thread that meets it relies on it


def count(tr: TransactionState, begin: bytes, end: bytes) -> None:
    """A read conflict that counts for the size of the transaction."""
    size = len(begin) + len(end) + CONFLICT_COST
    if tr.options.ryw_disabled:
        tr.uncounted += size
    else:
        tr.approximate += size
