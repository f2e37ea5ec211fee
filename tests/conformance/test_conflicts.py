"""Which changes by others refuse a transaction: reads, snapshot reads, explicit conflict ranges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fdb
import pytest
from tests.conformance.expect import (
    CONFLICTING_KEYS,
    INVERTED_RANGE,
    NOT_COMMITTED,
    OUTSIDE_LEGAL_RANGE,
    commit_code,
    conflicts,
    fdb_error,
    keys,
    read_conflict_ranges,
    write_conflict_ranges,
)

PRESENT = [b"b", b"d", b"f", b"h"]


@pytest.fixture
def letters(any_db: Any) -> Any:
    """A database with the keys of `PRESENT`."""

    @fdb.transactional
    def fill(tr: Any) -> None:
        for key in PRESENT:
            tr[key] = b"0"

    fill(any_db)
    return any_db


def sel(base: bytes, or_equal: bool, offset: int) -> Any:
    return fdb.KeySelector(base, or_equal, offset)


WRITES: dict[str, Callable[[Any], object]] = {
    "set": lambda tr: tr.set(b"d", b"1"),
    "set to the same value": lambda tr: tr.set(b"d", b"0"),
    "clear": lambda tr: tr.clear(b"d"),
    "clear a range": lambda tr: tr.clear_range(b"c", b"e"),
    "atomic add": lambda tr: tr.add(b"d", b"\x01"),
    "byte_max": lambda tr: tr.byte_max(b"d", b"9"),
    "compare_and_clear that changes nothing": lambda tr: tr.compare_and_clear(b"d", b"no"),
    "versionstamped value": lambda tr: tr.set_versionstamped_value(b"d", b"\x00" * 14),
    "write conflict key": lambda tr: tr.add_write_conflict_key(b"d"),
    "write conflict range": lambda tr: tr.add_write_conflict_range(b"c", b"e"),
}
READS: dict[str, Callable[[Any], object]] = {
    "get": lambda tr: tr.get(b"d").wait(),
    "get_key": lambda tr: tr.get_key(fdb.KeySelector.first_greater_or_equal(b"c")).wait(),
    "get_range": lambda tr: list(tr.get_range(b"c", b"e")),
    "read conflict key": lambda tr: tr.add_read_conflict_key(b"d"),
    "read conflict range": lambda tr: tr.add_read_conflict_range(b"c", b"e"),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("read", READS)
def test_every_read_conflicts_with_every_write(letters: Any, read: str, write: str) -> None:
    assert conflicts(letters, READS[read], WRITES[write])


@pytest.mark.parametrize("read", ["get", "get_key", "get_range"])
def test_snapshot_reads_conflict_with_nothing(letters: Any, read: str) -> None:
    assert not conflicts(letters, lambda tr: READS[read](tr.snapshot), WRITES["set"])


def test_a_snapshot_transaction_still_conflicts_through_its_explicit_ranges(letters: Any) -> None:
    def reads(tr: Any) -> None:
        list(tr.snapshot.get_range(b"a", b"z"))
        tr.add_read_conflict_key(b"d")

    assert conflicts(letters, reads, lambda tr: tr.set(b"d", b"1"))
    assert not conflicts(letters, reads, lambda tr: tr.set(b"f", b"1"))


def test_a_read_only_transaction_never_conflicts(letters: Any) -> None:
    tr = letters.create_transaction()
    tr[b"d"].wait()
    letters[b"d"] = b"1"
    assert commit_code(tr) == 0


def test_a_blind_write_never_conflicts(letters: Any) -> None:
    one, two = letters.create_transaction(), letters.create_transaction()
    one.get_read_version().wait()
    two.get_read_version().wait()
    one[b"d"] = b"1"
    two[b"d"] = b"2"
    assert commit_code(two) == 0
    assert commit_code(one) == 0
    assert letters[b"d"] == b"1"


def test_atomic_operations_do_not_conflict_with_each_other(letters: Any) -> None:
    one, two = letters.create_transaction(), letters.create_transaction()
    for tr in (one, two):
        tr.get_read_version().wait()
        tr.add(b"n", b"\x01\x00")
    assert commit_code(one) == 0
    assert commit_code(two) == 0
    assert letters[b"n"] == b"\x02\x00"


def test_a_write_before_the_read_version_does_not_conflict(letters: Any) -> None:
    letters[b"d"] = b"1"
    tr = letters.create_transaction()
    tr[b"d"].wait()
    tr[b"x"] = b""
    assert commit_code(tr) == 0


def test_a_conflict_counts_after_any_number_of_other_commits(letters: Any) -> None:
    tr = letters.create_transaction()
    tr[b"d"].wait()
    tr[b"x"] = b""
    letters[b"d"] = b"1"
    for i in range(300):
        letters[b"other%d" % i] = b""
    assert commit_code(tr) == NOT_COMMITTED


def test_a_refused_transaction_has_written_nothing(letters: Any) -> None:
    tr = letters.create_transaction()
    tr[b"d"].wait()
    tr[b"x"] = b"lost"
    tr.add(b"y", b"\x01")
    letters[b"d"] = b"1"
    assert commit_code(tr) == NOT_COMMITTED
    assert letters[b"x"] is None
    assert letters[b"y"] is None


def test_a_refused_transaction_refuses_nobody(letters: Any) -> None:
    refused, other = letters.create_transaction(), letters.create_transaction()
    refused[b"d"].wait()
    refused[b"x"] = b""
    other[b"x"].wait()
    other[b"y"] = b""
    letters[b"d"] = b"1"
    assert commit_code(refused) == NOT_COMMITTED
    assert commit_code(other) == 0


def test_a_range_conflicts_with_a_key_that_appears_in_it(letters: Any) -> None:
    def reads(tr: Any) -> None:
        list(tr.get_range(b"c", b"g"))

    assert conflicts(letters, reads, lambda tr: tr.set(b"e", b""))
    assert conflicts(letters, reads, lambda tr: tr.set(b"c", b""))
    assert not conflicts(letters, reads, lambda tr: tr.set(b"g", b""))
    assert not conflicts(letters, reads, lambda tr: tr.set(b"bz", b""))


def test_a_limited_range_conflicts_only_as_far_as_it_read(letters: Any) -> None:
    def forward(tr: Any) -> None:
        assert keys(tr.get_range(b"a", b"z", limit=2)) == [b"b", b"d"]

    def backward(tr: Any) -> None:
        assert keys(tr.get_range(b"a", b"z", limit=2, reverse=True)) == [b"h", b"f"]

    assert not conflicts(letters, forward, lambda tr: tr.set(b"f", b"1"))
    assert not conflicts(letters, forward, lambda tr: tr.add_write_conflict_range(b"d\x00", b"z"))
    assert conflicts(letters, forward, lambda tr: tr.add_write_conflict_range(b"a", b"a\x00"))
    assert conflicts(letters, forward, lambda tr: tr.set(b"d", b"1"))
    assert not conflicts(letters, backward, lambda tr: tr.add_write_conflict_range(b"a", b"f"))
    assert conflicts(letters, backward, lambda tr: tr.add_write_conflict_range(b"h\x00", b"z"))
    assert conflicts(letters, backward, lambda tr: tr.set(b"f", b"1"))


@pytest.mark.parametrize(
    ("selector", "inside", "outside"),
    [
        ((b"c", False, 1), [b"c", b"d"], [b"b", b"d\x00"]),  # first at or after c: d
        ((b"d", True, 1), [b"d\x00", b"e", b"f"], [b"d", b"f\x00"]),  # first after d: f
        ((b"c", False, 2), [b"c", b"e", b"f"], [b"b", b"f\x00"]),
        ((b"e", False, 0), [b"d", b"dz"], [b"c", b"e"]),  # last before e: d
        ((b"f", True, 0), [b"f"], [b"f\x00", b"e"]),  # last at or before f: f
        ((b"g", False, -1), [b"d", b"e", b"f"], [b"c", b"g"]),
        ((b"x", False, 9), [b"x", b"z\x00"], [b"w"]),  # past the end
        ((b"c", False, -9), [b"", b"a", b"b"], [b"c", b"d"]),  # before the beginning
    ],
)
def test_get_key_conflicts_between_its_base_and_its_result(
    letters: Any, selector: tuple[bytes, bool, int], inside: list[bytes], outside: list[bytes]
) -> None:
    def reads(tr: Any) -> None:
        tr.get_key(sel(*selector)).wait()

    for key in inside:
        assert conflicts(letters, reads, lambda tr, key=key: tr.add_write_conflict_key(key)), key
    for key in outside:
        assert not conflicts(letters, reads, lambda tr, key=key: tr.add_write_conflict_key(key)), key


@pytest.mark.parametrize(
    ("reads", "wanted"),
    [
        (lambda tr: tr.get(b"d").wait(), [(b"d", b"d\x00")]),
        (lambda tr: tr.get(b"").wait(), [(b"", b"\x00")]),
        (lambda tr: list(tr.get_range(b"a", b"e")), [(b"a", b"e")]),
        (lambda tr: list(tr.get_range(b"a", b"z", limit=1)), [(b"a", b"b\x00")]),
        (lambda tr: list(tr.get_range(b"a", b"z", limit=1, reverse=True)), [(b"h", b"z")]),
        (lambda tr: list(tr.get_range(b"z", b"a")), []),
        (lambda tr: list(tr.get_range(b"d", b"d")), []),
        (lambda tr: list(tr.get_range(sel(b"c", False, 2), b"z", limit=1)), [(b"c", b"f\x00")]),
        (lambda tr: list(tr.get_range(sel(b"e", False, 0), b"g")), [(b"d", b"g")]),
        (lambda tr: list(tr.get_range(b"c", sel(b"e", False, 2))), [(b"c", b"f\x00")]),
        (lambda tr: list(tr.get_range(b"c", sel(b"h", False, 9))), [(b"c", b"\xff")]),
        (lambda tr: tr.get_key(sel(b"c", False, 1)).wait(), [(b"c", b"d\x00")]),
        (lambda tr: tr.get_key(sel(b"d", True, 0)).wait(), [(b"d", b"d\x00")]),
        (lambda tr: tr.get_key(sel(b"d", False, 0)).wait(), [(b"b", b"d")]),
        (lambda tr: tr.add_read_conflict_range(b"k", b"m"), [(b"k", b"m")]),
        (lambda tr: (tr.get(b"x").wait(), tr.get(b"x\x00").wait()), [(b"x", b"x\x00\x00")]),
        (lambda tr: tr.snapshot.get(b"d").wait(), []),
    ],
)
def test_the_conflict_ranges_of_reads_are_exact(
    letters: Any, reads: Callable[[Any], object], wanted: list[tuple[bytes, bytes]]
) -> None:
    tr = letters.create_transaction()
    reads(tr)
    assert read_conflict_ranges(tr) == wanted


@pytest.mark.parametrize(
    ("writes", "wanted"),
    [
        (lambda tr: tr.set(b"d", b""), [(b"d", b"d\x00")]),
        (lambda tr: tr.clear(b"d"), [(b"d", b"d\x00")]),
        (lambda tr: tr.clear_range(b"d", b"g"), [(b"d", b"g")]),
        (lambda tr: tr.add(b"d", b"\x01"), [(b"d", b"d\x00")]),
        (lambda tr: tr.set_versionstamped_value(b"d", b"\x00" * 14), [(b"d", b"d\x00")]),
        (lambda tr: tr.add_write_conflict_range(b"d", b"g"), [(b"d", b"g")]),
        (lambda tr: (tr.set(b"d", b""), tr.clear_range(b"d\x00", b"g")), [(b"d", b"g")]),
        (lambda tr: (tr.clear_range(b"a", b"c"), tr.set(b"b", b"")), [(b"a", b"c")]),
        (lambda tr: tr.clear_range(b"d", b"d"), []),
        (lambda tr: tr.get(b"d").wait(), []),
    ],
)
def test_the_conflict_ranges_of_writes_are_exact(
    letters: Any, writes: Callable[[Any], object], wanted: list[tuple[bytes, bytes]]
) -> None:
    tr = letters.create_transaction()
    writes(tr)
    assert write_conflict_ranges(tr) == wanted


def test_the_next_write_can_go_without_a_conflict_range(letters: Any) -> None:
    def quiet(tr: Any) -> None:
        tr.options.set_next_write_no_write_conflict_range()
        tr[b"d"] = b"1"

    assert not conflicts(letters, lambda tr: tr.get(b"d").wait(), quiet)
    assert letters[b"d"] == b"1"


def test_only_one_write_goes_without_a_conflict_range(letters: Any) -> None:
    tr = letters.create_transaction()
    tr.options.set_next_write_no_write_conflict_range()
    tr.clear_range(b"a", b"c")
    tr[b"d"] = b"1"
    assert write_conflict_ranges(tr) == [(b"d", b"d\x00")]
    tr.options.set_next_write_no_write_conflict_range()
    tr.add(b"f", b"\x01")
    tr.options.set_next_write_no_write_conflict_range()
    tr.clear(b"h")
    assert write_conflict_ranges(tr) == [(b"d", b"d\x00")]
    tr.commit().wait()
    assert keys(letters[:]) == [b"d", b"f"]


def test_a_quiet_write_does_not_remove_an_earlier_conflict_range(letters: Any) -> None:
    tr = letters.create_transaction()
    tr[b"d"] = b"1"
    tr.options.set_next_write_no_write_conflict_range()
    tr[b"d"] = b"2"
    tr.add_write_conflict_key(b"f")
    tr.options.set_next_write_no_write_conflict_range()
    tr.clear_range(b"e", b"g")
    assert write_conflict_ranges(tr) == [(b"d", b"d\x00"), (b"f", b"f\x00")]


def test_a_write_with_its_conflict_after_a_quiet_one_conflicts(letters: Any) -> None:
    tr = letters.create_transaction()
    tr.options.set_next_write_no_write_conflict_range()
    tr[b"d"] = b"1"
    assert write_conflict_ranges(tr) == []
    tr[b"d"] = b"2"
    assert write_conflict_ranges(tr) == [(b"d", b"d\x00")]


def test_keys_conflict_with_ranges_cleared_many_commits_ago(letters: Any) -> None:
    tr = letters.create_transaction()
    tr[b"d"].wait()
    tr[b"x"] = b""
    letters.clear_range(b"c", b"e")
    for i in range(50):
        letters[b"other%d" % i] = b""
    assert commit_code(tr) == NOT_COMMITTED


def test_a_transaction_of_write_conflicts_alone_commits_a_version(letters: Any) -> None:
    tr = letters.create_transaction()
    tr.add_write_conflict_key(b"d")
    stamp = tr.get_versionstamp()
    tr.commit().wait()
    assert tr.get_committed_version() > 0
    assert len(bytes(stamp.wait())) == 10
    assert letters[b"d"] == b"0"


def test_a_transaction_of_read_conflicts_alone_commits_nothing(letters: Any) -> None:
    tr = letters.create_transaction()
    tr.get_read_version().wait()
    tr.add_read_conflict_key(b"d")
    letters[b"d"] = b"1"
    assert commit_code(tr) == 0
    assert tr.get_committed_version() == -1


def test_inverted_conflict_ranges_are_refused_at_once(any_db: Any) -> None:
    tr = any_db.create_transaction()
    with fdb_error(INVERTED_RANGE):
        tr.add_read_conflict_range(b"b", b"a")
    with fdb_error(INVERTED_RANGE):
        tr.add_write_conflict_range(b"b", b"a")


def test_empty_conflict_ranges_do_nothing(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr.add_read_conflict_range(b"b", b"b")
    tr.add_write_conflict_range(b"b", b"b")
    assert read_conflict_ranges(tr) == []
    tr.commit().wait()
    assert tr.get_committed_version() == -1


def test_conflict_ranges_outside_user_keys_refuse_the_commit(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr.add_write_conflict_range(b"a", b"\xff\x01")
    with fdb_error(OUTSIDE_LEGAL_RANGE):
        tr.commit().wait()
    tr = any_db.create_transaction()
    tr.add_read_conflict_range(b"\xff\x00", b"\xff\x01")
    with fdb_error(OUTSIDE_LEGAL_RANGE):
        tr.commit().wait()


def test_conflicting_keys_are_reported_on_demand(letters: Any) -> None:
    tr = letters.create_transaction()
    tr.options.set_report_conflicting_keys()
    tr[b"b"].wait()
    list(tr.get_range(b"d", b"g"))
    tr[b"x"] = b""
    letters[b"e"] = b""
    assert commit_code(tr) == NOT_COMMITTED
    rows = {
        bytes(k)[len(CONFLICTING_KEYS) :]: bytes(v)
        for k, v in tr.get_range(CONFLICTING_KEYS, CONFLICTING_KEYS + b"\xff")
    }
    ones = sorted(key for key, flag in rows.items() if flag == b"1")
    assert ones == [b"d"]
    assert rows[b"g"] == b"0"


def test_write_skew_is_refused(letters: Any) -> None:
    one, two = letters.create_transaction(), letters.create_transaction()
    one[b"b"].wait()
    two[b"d"].wait()
    one[b"d"] = b"1"
    two[b"b"] = b"1"
    assert sorted([commit_code(one), commit_code(two)]) == [0, NOT_COMMITTED]


def test_a_phantom_is_refused(letters: Any) -> None:
    tr = letters.create_transaction()
    assert len(keys(tr.get_range(b"a", b"z"))) == 4
    tr[b"count"] = b"4"
    letters[b"i"] = b""
    assert commit_code(tr) == NOT_COMMITTED


def test_own_writes_cause_no_conflict_with_oneself(letters: Any) -> None:
    tr = letters.create_transaction()
    tr[b"d"].wait()
    tr[b"d"] = b"1"
    tr[b"d"].wait()
    assert commit_code(tr) == 0
