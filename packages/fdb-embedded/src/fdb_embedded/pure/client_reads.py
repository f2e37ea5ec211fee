"""Reads of selectors and ranges step by step as FoundationDB's client makes them (`RYWImpl` of its ReadYourWrites).

A read goes through segments: what the transaction wrote (`write_map`) over what it knows of its snapshot (`known`). Where it
comes to something unknown it asks the database, and what it learns is known from then on. So whether a read meets something
unreadable can depend on what was read before. Names and order are the client's, so that the two can be compared.
"""

from __future__ import annotations

from typing import Final

from .client_places import (
    Ask,
    At,
    Found,
    Limits,
    Selector,
    count_unknown,
    count_unknown_back,
    skip_unknown,
    skip_unknown_back,
)
from .known import EMPTY, UNKNOWN, VALUE, Known
from .write_map import UNMODIFIED, Segment, WriteMap

END: Final = b"\xff\xff"
MOST_BYTES: Final = 80_000


class ClientReads:
    """The reads of one transaction over `writes`, None where they aren't to be seen; `edge` ends what may be read."""

    def __init__(self, writes: WriteMap | None, known: Known, ask: Ask, edge: bytes, bypass: bool) -> None:
        self.writes = writes if writes is not None else WriteMap()
        self.known = known
        self.ask = ask
        self.edge = edge
        self.bypass = bypass

    def at(self, key: bytes) -> At:
        return At(self, Segment(self.writes, key), self.known.containing(key))

    def before(self, key: bytes) -> At:
        return At(self, Segment.before(self.writes, key), self.known.before(key))

    # --- selectors ---

    def _resolve(self, key: Selector, flags: Found, actual: int) -> tuple[At, int]:
        """Move `key` as far as what is known allows (resolveKeySelectorFromCache): where it is, and its actual offset."""
        exhausted = key.offset == 1
        edge = self.edge
        it = self.at(key.key)
        if key.offset <= 0 and it.begin == key.key and key.key != b"":
            it = it.previous()
        border = key.key
        while key.offset > 1 and not it.unreadable and it.kind != UNKNOWN and it.end < edge:
            if it.kind == VALUE:
                key.offset -= 1
            it = it.next()
            border = it.begin
        while key.offset < 1 and not it.unreadable and it.kind != UNKNOWN and it.begin != b"":
            if it.kind == VALUE:
                key.offset += 1
                if key.offset == 1:
                    border = it.begin
                    break
            it = it.previous()
            border = it.end
        if not exhausted:
            actual = key.offset
        if not it.unreadable and it.kind != UNKNOWN and key.offset < 1:
            flags.to_begin = True
            key.key, key.offset = b"", 1
            return it, actual
        if not it.unreadable and it.kind != UNKNOWN and key.offset > 1:
            flags.through_end = True
            key.key, key.offset = edge, 1
            return it, actual
        while not it.unreadable and it.kind == EMPTY and it.end < edge:
            it = it.next()
            border = it.begin
        key.key = border
        return it, actual

    def get_key(self, key: Selector) -> bytes:
        """The key of a selector."""
        if key.offset > 0:
            found = self.forward(key, Selector(self.edge, 1), Limits(1, None))
            if found.to_begin:
                return b""
            return self.edge if found.through_end or not found.rows else found.rows[0][0]
        key.offset += 1
        found = self.backward(Selector(b"", 1), key, Limits(1, None))
        if found.through_end:
            return self.edge
        return b"" if found.to_begin or not found.rows else found.rows[0][0]

    # --- ranges ---

    def forward(self, begin: Selector, end: Selector, limits: Limits) -> Found:
        """The rows between two selectors (getRangeValue)."""
        return self._forward(Selector(begin.key, begin.offset), Selector(end.key, end.offset), limits)

    def _forward(self, begin: Selector, end: Selector, limits: Limits) -> Found:
        edge = self.edge
        flags, result = Found(), Found()
        rows = result.rows
        additional = past_end = requests = 0
        begin_at, end_at = begin.offset, end.offset
        it, begin_at = self._resolve(begin, flags, begin_at)
        it_end, end_at = self._resolve(end, flags, end_at)
        if begin_at >= end_at and begin.key >= end.key:
            return Found()
        if (begin.is_plain and begin.key == edge) or (end.is_plain and end.key == b""):
            return flags
        if not end.is_plain and begin.key > end.key:
            resolved = self._far(end, flags)
            if begin.key >= resolved and begin.offset > 0:
                return Found()
            if resolved == b"":
                return flags
            it, begin_at = self._resolve(begin, flags, begin_at)
            it_end, end_at = self._resolve(end, flags, end_at)
        while True:
            if not rows and begin_at >= end_at and begin.key >= end.key:
                return Found()
            if end.offset <= 1 and end.key == b"":
                return flags
            if (begin.offset >= end.offset and begin.key >= end.key) or (begin.offset >= 1 and begin.key >= edge):
                if end.is_plain or not rows:
                    break
                end.key, end.offset = self._far(end, flags), 1
                break
            if not it.unreadable and it.kind != UNKNOWN and it.begin > it_end.begin:
                if end.is_plain:
                    break
                return flags
            if limits.reached() and past_end >= 1 - end.offset:
                break
            if it.same(it_end) and (
                (not it.unreadable and it.kind != UNKNOWN)
                or (begin.offset > 0 and end.is_plain and end.key == it.begin)
            ):
                break
            kind = it.kind
            if kind == UNKNOWN:
                if limits.size is not None and limits.least == 0 and rows and past_end >= 1 - end.offset:
                    result.more = True
                    break
                clear_limit = 1 << min(requests, 20) if requests else 0
                singles = 0
                last = it
                if it.begin < it_end.begin:
                    last, counted = skip_unknown(it, it_end, clear_limit + 100)
                    singles = min(counted, clear_limit)
                if not last.same(it_end):
                    read_end = Selector(last.end, 1)
                    if end.offset < 1:
                        additional += 1 - end.offset
                elif end.offset < 1:
                    read_end = Selector(end.key, 1)
                    additional += 1 - end.offset
                else:
                    read_end = Selector(end.key, end.offset)
                    if end.offset > 1:
                        singles += count_unknown(last, clear_limit - singles)
                        read_end.offset += singles
                additional += singles
                if begin.is_plain:
                    begin.key = max(begin.key, it.begin)
                    read_begin = Selector(begin.key, 1)
                elif begin.offset > 1:
                    read_begin = Selector(begin.key, 1)
                    additional += begin.offset - 1
                else:
                    singles = count_unknown_back(it, clear_limit)
                    read_begin = Selector(begin.key, begin.offset - singles)
                    additional += singles
                if read_end.key < read_begin.key:
                    read_end.key = read_begin.key
                request = self._request_limits(limits, additional, 2 - read_begin.offset, requests)
                requests += 1
                additional = 0
                answer = self.ask(read_begin, read_end, request, False)
                self._learn(answer, read_begin, read_end)
                it, begin_at = self._resolve(begin, flags, begin_at)
                it_end, end_at = self._resolve(end, flags, end_at)
            elif kind == VALUE:
                row = it.row()
                if row is None:
                    it = it.next()
                    continue
                run = [row]
                if it.segment.kind == UNMODIFIED:
                    until = end.key if end.is_plain else edge
                    run = self.known.contiguous(row[0], min(until, it.segment.end)) or run
                count = 0
                for key, value in run:
                    if limits.reached():
                        break
                    limits.decrement(key, value)
                    count += 1
                past_end += len(run) - count
                rows += run[:count]
                it = self.at(run[-1][0]).next()
            else:
                it = it.next()
        result.more = result.more or limits.reached()
        if end.is_plain:
            kept = [row for row in rows if row[0] < end.key]
            if len(kept) < len(rows):
                result.more = False
                rows[:] = kept
        result.to_begin = flags.to_begin
        result.through_end = not result.more and flags.through_end
        return result

    def _far(self, selector: Selector, flags: Found) -> bytes:
        """The far selector's key, where it must be known before all else."""
        resolved = self.get_key(Selector(selector.key, selector.offset))
        flags.to_begin = flags.to_begin or resolved == b""
        flags.through_end = flags.through_end or resolved == self.edge
        return resolved

    def backward(self, begin: Selector, end: Selector, limits: Limits) -> Found:
        """The rows between two selectors, the last first (getRangeValueBack)."""
        return self._backward(Selector(begin.key, begin.offset), Selector(end.key, end.offset), limits)

    def _backward(self, begin: Selector, end: Selector, limits: Limits) -> Found:
        edge = self.edge
        flags, result = Found(), Found()
        rows = result.rows
        additional = past_begin = requests = 0
        begin_at, end_at = begin.offset, end.offset
        it, end_at = self._resolve(end, flags, end_at)
        it_end, begin_at = self._resolve(begin, flags, begin_at)
        if begin_at >= end_at and begin.key >= end.key:
            return Found()
        if (begin.is_plain and begin.key == edge) or (end.is_plain and end.key == b""):
            return flags
        if not begin.is_plain and begin.key > end.key:
            resolved = self._far(begin, flags)
            if resolved >= end.key and end.offset <= 1:
                return Found()
            if resolved == edge:
                return flags
            it, end_at = self._resolve(end, flags, end_at)
            it_end, begin_at = self._resolve(begin, flags, begin_at)
        while True:
            if not rows and begin_at >= end_at and begin.key >= end.key:
                return Found()
            if begin.offset >= 1 and begin.key >= edge:
                return flags
            if (begin.offset >= end.offset and begin.key >= end.key) or (end.offset <= 1 and end.key == b""):
                if begin.is_plain or not rows:
                    break
                begin.key, begin.offset = self._far(begin, flags), 1
                break
            if past_begin >= begin.offset - 1 and not it.unreadable and it.kind != UNKNOWN and it.begin < it_end.begin:
                if begin.is_plain:
                    break
                return flags
            if limits.reached() and past_begin >= begin.offset - 1:
                break
            if end.is_plain and end.key == it.begin:
                if past_begin >= begin.offset - 1 and it.same(it_end):
                    break
                it = it.previous()
            kind = it.kind
            if kind == UNKNOWN:
                if limits.size is not None and rows and past_begin >= begin.offset - 1:
                    result.more = True
                    break
                clear_limit = 1 << min(requests, 20) if requests else 0
                singles = 0
                first = it
                if it.begin > it_end.begin:
                    first, counted = skip_unknown_back(it, it_end, clear_limit + 100)
                    singles = min(counted, clear_limit)
                if not first.same(it_end):
                    read_begin = Selector(first.begin, 1)
                    if begin.offset > 1:
                        additional += begin.offset - 1
                elif begin.offset > 1:
                    read_begin = Selector(begin.key, 1)
                    additional += begin.offset - 1
                else:
                    read_begin = Selector(begin.key, begin.offset)
                    if begin.offset < 1:
                        singles += count_unknown_back(first, clear_limit - singles)
                        read_begin.offset -= singles
                additional += singles
                if end.is_plain:
                    end.key = min(end.key, it.end)
                    read_end = Selector(end.key, 1)
                elif end.offset < 1:
                    read_end = Selector(end.key, 1)
                    additional += 1 - end.offset
                else:
                    singles = count_unknown(it, clear_limit)
                    read_end = Selector(end.key, end.offset + singles)
                    additional += singles
                if read_begin.key > read_end.key:
                    read_begin.key = read_end.key
                request = self._request_limits(limits, additional, read_end.offset, requests)
                requests += 1
                additional = 0
                answer = self.ask(read_begin, read_end, request, True)
                self._learn_back(answer, read_begin, read_end)
                it, end_at = self._resolve(end, flags, end_at)
                it_end, begin_at = self._resolve(begin, flags, begin_at)
            else:
                row = it.row() if kind == VALUE else None
                if row is not None:
                    run = [row]
                    if it.segment.kind == UNMODIFIED:
                        since = begin.key if begin.is_plain else b""
                        run = self.known.contiguous_back(row[0], max(since, it.segment.begin)) or run
                    count = 0
                    for key, value in reversed(run):
                        if limits.reached():
                            break
                        limits.decrement(key, value)
                        count += 1
                    past_begin += len(run) - count
                    rows += run[::-1][:count]
                    it = self.at(run[0][0])
                if it.same(it_end):
                    break
                it = it.previous()
        result.more = result.more or limits.reached()
        if begin.is_plain:
            kept = [row for row in rows if row[0] >= begin.key]
            if len(kept) < len(rows):
                result.more = False
                rows[:] = kept
        result.to_begin = not result.more and flags.to_begin
        result.through_end = flags.through_end
        return result

    # --- asking ---

    @staticmethod
    def _request_limits(limits: Limits, additional: int, offset: int, requests: int) -> Limits:
        rows = None if limits.rows is None else max(max(1, limits.rows) + additional, offset)
        size = limits.size
        if size == 0:
            size = None
            if rows is None:
                rows = max(1 + additional, offset)
        elif size is not None:
            size = min(size << min(requests, 20), MOST_BYTES)
        return Limits(rows, size, max(1 + additional, offset))

    def _learn(self, answer: Found, begin: Selector, end: Selector) -> None:
        rows = answer.rows
        low = begin.key if begin.offset <= 1 else END
        high = end.key if not answer.more and end.offset >= 1 else b""
        if answer.to_begin:
            low = b""
        if answer.through_end:
            high = END
        if rows:
            low = min(low, rows[0][0])
            if answer.more or rows[-1][0] >= high:
                high = rows[-1][0] + b"\0"
        self.known.insert(low, high, rows)

    def _learn_back(self, answer: Found, begin: Selector, end: Selector) -> None:
        rows = answer.rows
        low = begin.key if not answer.more and begin.offset <= 1 else END
        high = end.key if end.offset >= 1 else b""
        if answer.to_begin:
            low = b""
        if answer.through_end:
            high = END
        if rows:
            if answer.more or rows[-1][0] <= low:
                low = rows[-1][0]
            if rows[0][0] >= high:
                high = rows[0][0] + b"\0"
        self.known.insert(low, high, rows[::-1])
