"""Range reads: order, limits, direction, streaming modes, continuation, bad arguments."""

from __future__ import annotations

from typing import Any

import fdb
import pytest
from tests.conformance.expect import OUTSIDE_LEGAL_RANGE, fdb_error, keys, pairs

MODES = ["iterator", "want_all", "small", "medium", "large", "serial"]


@pytest.fixture
def hundred(any_db: Any) -> Any:
    """A database with 100 keys `k00` … `k99` whose values are their numbers."""

    @fdb.transactional
    def fill(tr: Any) -> None:
        for i in range(100):
            tr[b"k%02d" % i] = b"%d" % i

    fill(any_db)
    return any_db


def mode(name: str) -> int:
    return int(getattr(fdb.StreamingMode, name))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("limit", [0, 1, 2, 7, 99, 100, 101])
def test_every_mode_limit_and_direction_gives_the_same_rows(hundred: Any, name: str, limit: int, reverse: bool) -> None:
    tr = hundred.create_transaction()
    rows = pairs(tr.get_range(b"k", b"l", limit=limit, reverse=reverse, streaming_mode=mode(name)))
    wanted = [(b"k%02d" % i, b"%d" % i) for i in range(100)]
    if reverse:
        wanted.reverse()
    assert rows == wanted[: limit or None]


@pytest.mark.parametrize("limit", [1, 50, 200])
def test_exact_mode_reads_as_many_as_its_limit(hundred: Any, limit: int) -> None:
    rows = hundred.create_transaction().get_range(b"", b"\xff", limit=limit, streaming_mode=mode("exact"))
    assert keys(rows) == [b"k%02d" % i for i in range(min(limit, 100))]


def test_exact_mode_needs_a_limit(hundred: Any) -> None:
    with fdb_error(2210):
        list(hundred.create_transaction().get_range(b"", b"\xff", streaming_mode=mode("exact")))


def test_a_negative_limit_is_refused(hundred: Any) -> None:
    with fdb_error(2012):
        list(hundred.create_transaction().get_range(b"", b"\xff", limit=-3))


@pytest.mark.parametrize("reverse", [False, True])
def test_a_range_over_many_batches_is_whole(any_db: Any, reverse: bool) -> None:
    @fdb.transactional
    def fill(tr: Any) -> None:
        for i in range(3000):
            tr[b"%06d" % i] = b"v" * 40

    fill(any_db)
    tr = any_db.create_transaction()
    wanted = [b"%06d" % i for i in range(3000)]
    if reverse:
        wanted.reverse()
    for name in MODES:
        assert keys(tr.get_range(b"", b"\xff", reverse=reverse, streaming_mode=mode(name))) == wanted
    assert keys(tr.get_range(b"", b"\xff", limit=2500, reverse=reverse)) == wanted[:2500]
    assert keys(tr.get_range(b"", b"\xff", reverse=reverse).to_list()) == wanted


def test_large_values_come_in_several_batches(any_db: Any) -> None:
    @fdb.transactional
    def fill(tr: Any, at: int) -> None:
        for i in range(at, at + 20):
            tr[b"%03d" % i] = bytes([i]) * 30_000

    for at in range(0, 80, 20):
        fill(any_db, at)
    tr = any_db.create_transaction()
    for name in MODES:
        rows = pairs(tr.get_range(b"", b"\xff", streaming_mode=mode(name)))
        assert [(k, v[:1], len(v)) for k, v in rows] == [(b"%03d" % i, bytes([i]), 30_000) for i in range(80)]


def test_an_iteration_can_stop_early_and_start_again(hundred: Any) -> None:
    tr = hundred.create_transaction()
    rows = tr.get_range(b"", b"\xff")
    first = []
    for kv in rows:
        first.append(kv.key)
        if len(first) == 3:
            break
    assert first == [b"k00", b"k01", b"k02"]
    assert len(list(rows)) == 100
    assert len(rows.to_list()) == 100


def test_empty_and_inverted_ranges_are_empty(hundred: Any) -> None:
    tr = hundred.create_transaction()
    assert keys(tr.get_range(b"k50", b"k50")) == []
    assert keys(tr.get_range(b"k60", b"k50")) == []
    assert keys(tr.get_range(b"k60", b"k50", reverse=True)) == []
    assert keys(tr.get_range(b"x", b"\xff")) == []


def test_the_end_of_user_keys_is_a_legal_end(hundred: Any) -> None:
    tr = hundred.create_transaction()
    assert len(keys(tr.get_range(b"", b"\xff"))) == 100
    assert len(keys(tr.get_range(b"", b"\xff", reverse=True))) == 100
    assert keys(tr.get_range(b"\xff", b"\xff")) == []


@pytest.mark.parametrize(("begin", "end"), [(b"", b"\xff\x00"), (b"\xff\x00", b"\xff\x01"), (b"\xff/a", b"\xff\xff/a")])
def test_ranges_outside_user_keys_are_refused(hundred: Any, begin: bytes, end: bytes) -> None:
    tr = hundred.create_transaction()
    with fdb_error(OUTSIDE_LEGAL_RANGE):
        list(tr.get_range(begin, end))


def test_rows_compare_and_unpack(hundred: Any) -> None:
    (row,) = list(hundred.create_transaction().get_range(b"k07", b"k08"))
    key, val = row
    assert (key, val) == (b"k07", b"7")
    assert row.key == b"k07"
    assert row.value == b"7"


def test_a_database_range_is_a_list(hundred: Any) -> None:
    rows = hundred.get_range(b"k10", b"k13")
    assert isinstance(rows, list)
    assert keys(rows) == [b"k10", b"k11", b"k12"]
    assert keys(hundred.get_range(b"k10", b"k20", limit=2, reverse=True)) == [b"k19", b"k18"]


def test_ranges_see_one_snapshot_while_others_commit(hundred: Any) -> None:
    tr = hundred.create_transaction()
    iterator = iter(tr.get_range(b"", b"\xff", streaming_mode=mode("small")))
    first = [next(iterator).key for _ in range(2)]
    hundred.clear_range(b"k50", b"k60")
    hundred[b"k005"] = b"between"
    rest = [kv.key for kv in iterator]
    assert first + rest == [b"k%02d" % i for i in range(100)]
