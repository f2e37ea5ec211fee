"""The conflict range of a range read between two selectors without read-your-writes, as FoundationDB's client computes it.

A selector is its key (with `or_equal` taken into the key) and its offset.
"""

from __future__ import annotations

from .keys import Row
from .ranges import Range

Selector = tuple[bytes, int]


def plain(begin: Selector, end: Selector, rows: list[Row], more: bool, to_begin: bool, reverse: bool) -> Range:
    """`getRangeFinished` of the native client."""
    (begin_key, begin_offset), (end_key, end_offset) = begin, end
    low, high = begin_key, end_key
    if rows and not ((not reverse or not more or begin_offset > 1) and begin_offset > 0):
        low = rows[-1][0] if reverse else rows[0][0]
    if to_begin or (not begin_key and begin_offset < 1):
        low = b""
    if end_offset > begin_offset:
        low = min(low, end_key)
    if rows and not ((reverse or not more or end_offset <= 0) and end_offset <= 1):
        high = (rows[0][0] if reverse else rows[-1][0]) + b"\0"
    if begin_offset < end_offset:
        high = max(high, begin_key)
    return low, high
