"""The conflict ranges of range reads whose selectors run off the beginning or the end, as FoundationDB 7.3.79 gave them."""

from __future__ import annotations

from typing import Any

import fdb
import pytest
from tests.conformance.expect import read_conflict_ranges

Selector = tuple[bytes, bool, int]

CASES: list[tuple[bool, Selector, Selector, bool, int, list[tuple[bytes, bytes]]]] = [
    (True, (b"b", False, 2), (b"a", False, 1), False, 0, []),
    (True, (b"c", False, 4), (b"b", True, 1), False, 0, []),
    (True, (b"a", False, 0), (b"c", False, 0), True, 0, [(b"", b"c")]),
    (True, (b"a", False, 0), (b"a", True, -1), True, 0, [(b"a", b"a\x00")]),
    (True, (b"a", True, 1), (b"c", True, 4), False, 2, [(b"a\x00", b"c\x00")]),
    (True, (b"a", True, 1), (b"c", True, 4), False, 0, [(b"a\x00", b"\xff")]),
    (True, (b"c", True, 0), (b"a", False, 4), False, 0, [(b"a", b"\xff")]),
    (True, (b"c", True, -1), (b"a", False, -1), False, 0, []),
    (True, (b"c", True, 3), (b"b", False, 4), True, 0, [(b"b", b"\xff")]),
    (True, (b"c", True, 3), (b"b", False, 1), True, 0, []),
    (True, (b"a", False, -2), (b"c", False, 4), True, 2, [(b"b", b"\xff")]),
    (True, (b"a", False, -2), (b"c", False, 4), True, 0, [(b"", b"\xff")]),
    (False, (b"b", False, 2), (b"a", False, 1), False, 0, []),
    (False, (b"c", False, 4), (b"b", True, 1), False, 0, []),
    (False, (b"a", False, 0), (b"c", False, 0), True, 0, [(b"", b"c")]),
    (False, (b"a", False, 0), (b"a", True, -1), True, 0, [(b"a", b"a\x00")]),
    (False, (b"a", True, 1), (b"c", True, 4), False, 2, [(b"a\x00", b"c\x00")]),
    (False, (b"a", True, 1), (b"c", True, 4), False, 0, [(b"a\x00", b"\xff")]),
    (False, (b"c", True, 0), (b"a", False, 4), False, 0, [(b"a", b"c\x00")]),
    (False, (b"c", True, -1), (b"a", False, -1), False, 0, []),
    (False, (b"c", True, 3), (b"b", False, 4), True, 0, [(b"b", b"\xff")]),
    (False, (b"c", True, 3), (b"b", False, 1), True, 0, []),
    (False, (b"a", False, -2), (b"c", False, 4), True, 2, [(b"b", b"\xff")]),
    (False, (b"a", False, -2), (b"c", False, 4), True, 0, [(b"", b"\xff")]),
]
"""Read-your-writes, begin, end, reverse, limit, and the conflict ranges in a database of the keys a, b and c."""


@pytest.mark.parametrize(("ryw", "begin", "end", "reverse", "limit", "ranges"), CASES)
def test_the_conflict_range_of_selectors_that_run_off(
    any_db: Any,
    ryw: bool,
    begin: Selector,
    end: Selector,
    reverse: bool,
    limit: int,
    ranges: list[tuple[bytes, bytes]],
) -> None:
    for key in (b"a", b"b", b"c"):
        any_db[key] = b"v"
    tr = any_db.create_transaction()
    if not ryw:
        tr.options.set_read_your_writes_disable()
    list(tr.get_range(fdb.KeySelector(*begin), fdb.KeySelector(*end), limit=limit, reverse=reverse))
    # what lies among the system's keys differs from one database to the next
    found = [(low, min(high, b"\xff")) for low, high in read_conflict_ranges(tr) if low < b"\xff"]
    assert found == ranges


def test_special_keys_end_with_their_transaction(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr.get(b"a").wait()
    tr.cancel()
    with pytest.raises(fdb.FDBError) as caught:
        read_conflict_ranges(tr)
    assert caught.value.code == 1025
