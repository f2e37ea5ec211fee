"""Key selectors: how they resolve alone and as ends of ranges."""

from __future__ import annotations

import bisect
from typing import Any

import fdb
import pytest
from tests.conformance.expect import OUTSIDE_LEGAL_RANGE, fdb_error, keys

PRESENT = [b"b", b"d", b"d\x00", b"f", b"h"]
BASES = [b"", b"a", b"b", b"b\x00", b"c", b"d", b"d\x00", b"e", b"f", b"h", b"h\x00", b"z", b"\xff"]


@pytest.fixture
def letters(any_db: Any) -> Any:
    """A database with the keys of `PRESENT`."""

    @fdb.transactional
    def fill(tr: Any) -> None:
        for key in PRESENT:
            tr[key] = b"v" + key

    fill(any_db)
    return any_db


def resolved(base: bytes, or_equal: bool, offset: int, present: list[bytes] = PRESENT) -> bytes:
    """What a selector means: the key `offset` places after the last one below (or equal to) its base."""
    at = (bisect.bisect_right if or_equal else bisect.bisect_left)(present, base) - 1 + offset
    if at < 0:
        return b""
    return present[at] if at < len(present) else b"\xff"


@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("or_equal", [False, True])
def test_every_selector_resolves_as_defined(letters: Any, or_equal: bool, snapshot: bool) -> None:
    tr = letters.create_transaction()
    view = tr.snapshot if snapshot else tr
    for base in BASES:
        for offset in range(-7, 9):
            found = bytes(view.get_key(fdb.KeySelector(base, or_equal, offset)).wait())
            assert found == resolved(base, or_equal, offset), (base, or_equal, offset)


def test_the_named_selectors(letters: Any) -> None:
    tr = letters.create_transaction()
    assert tr.get_key(fdb.KeySelector.last_less_than(b"d")) == b"b"
    assert tr.get_key(fdb.KeySelector.last_less_or_equal(b"d")) == b"d"
    assert tr.get_key(fdb.KeySelector.first_greater_than(b"d")) == b"d\x00"
    assert tr.get_key(fdb.KeySelector.first_greater_or_equal(b"d")) == b"d"
    assert tr.get_key(fdb.KeySelector.first_greater_or_equal(b"d") + 2) == b"f"
    assert tr.get_key(fdb.KeySelector.last_less_than(b"f") - 1) == b"d"
    assert letters.get_key(fdb.KeySelector.first_greater_than(b"f")) == b"h"


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("limit", [0, 1, 3])
def test_ranges_between_selectors(letters: Any, reverse: bool, limit: int) -> None:
    tr = letters.create_transaction()
    selectors = [(base, eq, off) for base in BASES[::2] for eq in (False, True) for off in (-3, -1, 0, 1, 2, 6)]
    for begin in selectors[::2]:
        for end in selectors[1::3]:
            low, high = resolved(*begin), resolved(*end)
            wanted = [k for k in PRESENT if low <= k < high]
            if reverse:
                wanted.reverse()
            found = keys(tr.get_range(fdb.KeySelector(*begin), fdb.KeySelector(*end), limit=limit, reverse=reverse))
            assert found == wanted[: limit or None], (begin, end)


def test_selectors_resolve_over_own_writes(letters: Any) -> None:
    tr = letters.create_transaction()
    tr[b"c"] = b"new"
    del tr[b"d"]
    tr.clear_range(b"g", b"i")
    tr.add(b"e", b"\x01")
    present = [b"b", b"c", b"d\x00", b"e", b"f"]
    for base in BASES:
        for or_equal in (False, True):
            for offset in range(-6, 8):
                found = bytes(tr.get_key(fdb.KeySelector(base, or_equal, offset)).wait())
                assert found == resolved(base, or_equal, offset, present), (base, or_equal, offset)


def test_a_selector_past_the_ends_gives_the_ends(letters: Any) -> None:
    tr = letters.create_transaction()
    assert tr.get_key(fdb.KeySelector.last_less_than(b"")) == b""
    assert tr.get_key(fdb.KeySelector.first_greater_or_equal(b"\xff")) == b"\xff"
    assert tr.get_key(fdb.KeySelector.first_greater_than(b"h") + 1000) == b"\xff"
    assert tr.get_key(fdb.KeySelector.first_greater_or_equal(b"") - 1000) == b""


def test_an_empty_database_has_only_ends(any_db: Any) -> None:
    tr = any_db.create_transaction()
    for base in (b"", b"m", b"\xff"):
        for offset in (-2, 0, 1, 2):
            assert tr.get_key(fdb.KeySelector(base, False, offset)) == (b"" if offset <= 0 else b"\xff")


def test_a_base_outside_user_keys_is_refused(letters: Any) -> None:
    tr = letters.create_transaction()
    with fdb_error(OUTSIDE_LEGAL_RANGE):
        tr.get_key(fdb.KeySelector.first_greater_than(b"\xff\x00")).wait()
    with fdb_error(OUTSIDE_LEGAL_RANGE):
        list(tr.get_range(fdb.KeySelector.last_less_than(b"\xff\x00"), b"\xff"))


def test_selectors_as_slices(letters: Any) -> None:
    tr = letters.create_transaction()
    first, last = fdb.KeySelector.first_greater_than(b"b"), fdb.KeySelector.last_less_than(b"h")
    assert keys(tr[first:last]) == [b"d", b"d\x00"]
    assert keys(tr[first:last:-1]) == [b"d\x00", b"d"]
