"""The conflict range of a range read between two selectors, as FoundationDB's client computes it.

A selector is its key (with `or_equal` taken into the key) and its offset; where it led to is a key and the offset that was
left there: 1 where the key was found, else what is missing beyond the beginning (less) or the end (more).
"""

from __future__ import annotations

from .conflict import Range
from .keys import Row

Selector = tuple[bytes, int]


def overlaid(
    begin: Selector,
    end: Selector,
    low: Selector,
    high: Selector,
    rows: list[Row],
    more: bool,
    reverse: bool,
    edge: bytes,
) -> Range:
    """With read-your-writes: `RYWImpl::addConflictRange`. `edge` is the end of what the transaction may read."""
    to_begin, through_end = _ran_off(begin, end, low, high, reverse, edge)
    (begin_key, begin_offset), (end_key, end_offset) = begin, end
    if begin_key < end_key:
        first, last = begin_key, end_key
        if reverse:
            if begin_offset <= 1 and more:
                first = end_key
        elif end_offset > 0 and more:
            last = begin_key
    else:
        first, last = end_key, begin_key
    if to_begin and begin_offset <= 0 and not (more and reverse):
        first = b""
    if through_end and end_offset > 0 and not (more and not reverse):
        last = edge
    if rows:
        if reverse:
            first = min(first, rows[-1][0])
            if end_offset > 0 and last <= rows[0][0]:
                last = rows[0][0] + b"\0"
        else:
            if begin_offset <= 0:
                first = min(first, rows[0][0])
            if last <= rows[-1][0]:
                last = rows[-1][0] + b"\0"
    return first, last


def _ran_off(
    begin: Selector, end: Selector, low: Selector, high: Selector, reverse: bool, edge: bytes
) -> tuple[bool, bool]:
    """Whether the client notices that a selector came to the beginning, or to the end."""
    crossed = begin[0] > end[0]
    if crossed and not reverse and end[1] != 1 and high[0] == b"":  # the far selector is resolved before all else
        return begin[1] < 1, False
    if crossed and reverse and begin[1] != 1 and low[0] == edge:
        return False, end[1] > 1
    if low[0] >= high[0] and low[1] >= high[1]:
        return False, False
    through_end = low[1] > 1 or high[1] > 1 or (crossed and not reverse and end[1] != 1 and high[0] == edge)
    return low[1] < 1 or high[1] < 1, through_end


def plain(begin: Selector, end: Selector, rows: list[Row], more: bool, to_begin: bool, reverse: bool) -> Range:
    """Without read-your-writes: `getRangeFinished` of the native client."""
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
