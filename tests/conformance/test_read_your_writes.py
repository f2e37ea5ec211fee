"""What a transaction reads after its own writes, and which of these reads still conflict with others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fdb
import pytest
from tests.conformance.expect import (
    INVALID_OPERATION,
    conflicts,
    fdb_error,
    keys,
    pairs,
    read_conflict_ranges,
    value,
)


@pytest.fixture
def letters(any_db: Any) -> Any:
    """A database with `b`, `d`, `f`, `h`, each the little-endian number 5."""

    @fdb.transactional
    def fill(tr: Any) -> None:
        for key in (b"b", b"d", b"f", b"h"):
            tr[key] = b"\x05"

    fill(any_db)
    return any_db


@pytest.mark.parametrize("snapshot", [False, True])
def test_own_writes_are_read_at_once(letters: Any, snapshot: bool) -> None:
    tr = letters.create_transaction()
    view = tr.snapshot if snapshot else tr
    tr[b"a"] = b"new"
    tr[b"d"] = b"changed"
    del tr[b"f"]
    assert value(view, b"a") == b"new"
    assert value(view, b"d") == b"changed"
    assert value(view, b"f") is None
    assert pairs(view.get_range(b"", b"\xff")) == [
        (b"a", b"new"),
        (b"b", b"\x05"),
        (b"d", b"changed"),
        (b"h", b"\x05"),
    ]
    assert keys(view.get_range(b"", b"\xff", limit=2, reverse=True)) == [b"h", b"d"]
    assert view.get_key(fdb.KeySelector.first_greater_than(b"d")) == b"h"


def test_a_set_in_a_cleared_range_is_read(letters: Any) -> None:
    tr = letters.create_transaction()
    tr.clear_range(b"a", b"z")
    tr[b"c"] = b"1"
    tr[b"f"] = b"2"
    assert pairs(tr[:]) == [(b"c", b"1"), (b"f", b"2")]
    tr.clear_range(b"c", b"f")
    assert pairs(tr[:]) == [(b"f", b"2")]
    tr.commit().wait()
    assert pairs(letters[:]) == [(b"f", b"2")]


def test_overlapping_clears_and_sets(letters: Any) -> None:
    tr = letters.create_transaction()
    tr.clear_range(b"c", b"e")
    tr.clear_range(b"d", b"g")
    tr[b"e"] = b"e"
    tr.clear_range(b"a", b"d")
    assert keys(tr[:]) == [b"e", b"h"]
    tr.clear(b"e")
    tr.clear(b"h")
    assert keys(tr[:]) == []
    tr.commit().wait()
    assert keys(letters[:]) == []


ADDED: dict[str, tuple[Callable[[Any], object], bytes | None]] = {
    "on a stored value": (lambda tr: tr.add(b"d", b"\x01"), b"\x06"),
    "twice": (lambda tr: (tr.add(b"d", b"\x01"), tr.add(b"d", b"\x02")), b"\x08"),
    "after a set": (lambda tr: (tr.set(b"d", b"\x0a"), tr.add(b"d", b"\x01")), b"\x0b"),
    "after a clear": (lambda tr: (tr.clear(b"d"), tr.add(b"d", b"\x01")), b"\x01"),
    "in a cleared range": (lambda tr: (tr.clear_range(b"a", b"z"), tr.add(b"d", b"\x01")), b"\x01"),
    "before a clear": (lambda tr: (tr.add(b"d", b"\x01"), tr.clear_range(b"a", b"z")), None),
    "before a set": (lambda tr: (tr.add(b"d", b"\x01"), tr.set(b"d", b"\x63")), b"\x63"),
    "after a read": (lambda tr: (tr.get(b"d").wait(), tr.add(b"d", b"\x01")), b"\x06"),
    "after another operation": (lambda tr: (tr.bit_or(b"d", b"\x08"), tr.add(b"d", b"\x01")), b"\x0e"),
    "of another width": (lambda tr: (tr.add(b"d", b"\x01\x01"), tr.add(b"d", b"\xff")), b"\x05"),
    "after a comparison that clears": (
        lambda tr: (tr.compare_and_clear(b"d", b"\x05"), tr.add(b"d", b"\x02")),
        b"\x02",
    ),
}


@pytest.mark.parametrize("case", ADDED)
def test_pending_operations_are_read_and_committed_alike(letters: Any, case: str) -> None:
    writes, wanted = ADDED[case]
    tr = letters.create_transaction()
    writes(tr)
    assert value(tr, b"d") == wanted
    assert dict(pairs(tr.get_range(b"c", b"e"))) == ({} if wanted is None else {b"d": wanted})
    assert value(tr.snapshot, b"d") == wanted
    tr.commit().wait()
    assert letters[b"d"] == wanted
    blind = letters.create_transaction()
    blind[b"d"] = b"\x05"
    blind.commit().wait()
    blind = letters.create_transaction()
    writes(blind)
    blind.commit().wait()
    assert letters[b"d"] == wanted


def test_an_operation_creates_a_key_that_ranges_and_selectors_see(letters: Any) -> None:
    tr = letters.create_transaction()
    tr.add(b"e", b"\x07")
    assert tr.get_key(fdb.KeySelector.first_greater_than(b"d")) == b"e"
    assert pairs(tr.get_range(b"d", b"g", reverse=True)) == [(b"f", b"\x05"), (b"e", b"\x07"), (b"d", b"\x05")]
    tr.compare_and_clear(b"e", b"\x07")
    assert tr.get_key(fdb.KeySelector.first_greater_than(b"d")) == b"f"
    assert keys(tr.get_range(b"d", b"g", limit=2)) == [b"d", b"f"]


def test_a_cleared_comparison_leaves_limits_and_selectors_right(letters: Any) -> None:
    tr = letters.create_transaction()
    tr.compare_and_clear(b"d", b"\x05")
    tr.compare_and_clear(b"f", b"other")
    assert keys(tr.get_range(b"a", b"z", limit=2)) == [b"b", b"f"]
    assert keys(tr.get_range(b"a", b"z", limit=2, reverse=True)) == [b"h", b"f"]


@pytest.mark.parametrize(
    ("writes", "reads", "wanted"),
    [
        (lambda tr: tr.set(b"d", b""), lambda tr: tr.get(b"d").wait(), []),
        (lambda tr: tr.clear(b"d"), lambda tr: tr.get(b"d").wait(), []),
        (lambda tr: tr.add(b"d", b"\x01"), lambda tr: tr.get(b"d").wait(), [(b"d", b"d\x00")]),
        (lambda tr: (tr.clear(b"d"), tr.add(b"d", b"\x01")), lambda tr: tr.get(b"d").wait(), []),
        (lambda tr: (tr.add(b"d", b"\x01"), tr.set(b"d", b"")), lambda tr: tr.get(b"d").wait(), []),
        (lambda tr: tr.clear_range(b"c", b"e"), lambda tr: list(tr[b"a":b"g"]), [(b"a", b"c"), (b"e", b"g")]),
        (lambda tr: tr.set(b"d", b""), lambda tr: list(tr[b"c":b"e"]), [(b"c", b"d"), (b"d\x00", b"e")]),
        (lambda tr: tr.add(b"d", b"\x01"), lambda tr: list(tr[b"c":b"e"]), [(b"c", b"e")]),
        (lambda tr: tr.clear_range(b"a", b"z"), lambda tr: list(tr[b"c":b"e"]), []),
        (lambda tr: tr.add(b"d", b"\x01"), lambda tr: tr.add_read_conflict_range(b"c", b"e"), [(b"c", b"e")]),
        (lambda tr: tr.add(b"d", b"\x01"), lambda tr: list(tr.get_range(b"a", b"z", limit=2)), [(b"a", b"d\x00")]),
        (lambda tr: tr.set(b"d", b""), lambda tr: tr.add_read_conflict_key(b"d"), []),
        (
            lambda tr: tr.set(b"d", b""),
            lambda tr: tr.add_read_conflict_range(b"c", b"e"),
            [(b"c", b"d"), (b"d\x00", b"e")],
        ),
        (
            lambda tr: tr.set(b"e", b""),
            lambda tr: tr.get_key(fdb.KeySelector.first_greater_than(b"d")).wait(),
            [(b"d\x00", b"e")],
        ),
        (
            lambda tr: tr.clear_range(b"c", b"g"),
            lambda tr: tr.get_key(fdb.KeySelector.first_greater_or_equal(b"c")).wait(),
            [(b"g", b"h\x00")],
        ),
    ],
)
def test_reads_of_what_oneself_wrote_do_not_conflict(
    letters: Any, writes: Callable[[Any], object], reads: Callable[[Any], object], wanted: list[tuple[bytes, bytes]]
) -> None:
    tr = letters.create_transaction()
    writes(tr)
    reads(tr)
    assert read_conflict_ranges(tr) == wanted


def test_a_read_before_the_write_keeps_its_conflict(letters: Any) -> None:
    tr = letters.create_transaction()
    tr.get(b"d").wait()
    tr[b"d"] = b"1"
    assert read_conflict_ranges(tr) == [(b"d", b"d\x00")]


def test_a_value_overwritten_by_others_does_not_matter_to_who_wrote_it_first(letters: Any) -> None:
    def reads(tr: Any) -> None:
        tr[b"d"] = b"mine"
        assert value(tr, b"d") == b"mine"

    assert not conflicts(letters, reads, lambda tr: tr.set(b"d", b"theirs"))


def test_snapshot_reads_can_ignore_own_writes(letters: Any) -> None:
    tr = letters.create_transaction()
    tr.options.set_snapshot_ryw_disable()
    tr[b"d"] = b"mine"
    tr.clear(b"f")
    tr.add(b"h", b"\x01")
    assert value(tr.snapshot, b"d") == b"\x05"
    assert pairs(tr.snapshot.get_range(b"c", b"z")) == [(b"d", b"\x05"), (b"f", b"\x05"), (b"h", b"\x05")]
    assert value(tr, b"d") == b"mine"
    tr.options.set_snapshot_ryw_enable()
    assert value(tr.snapshot, b"d") == b"mine"


def test_snapshot_ryw_disable_and_enable_count(letters: Any) -> None:
    tr = letters.create_transaction()
    tr[b"d"] = b"mine"
    tr.options.set_snapshot_ryw_disable()
    tr.options.set_snapshot_ryw_disable()
    tr.options.set_snapshot_ryw_enable()
    assert value(tr.snapshot, b"d") == b"\x05"
    tr.options.set_snapshot_ryw_enable()
    assert value(tr.snapshot, b"d") == b"mine"


def test_the_database_can_disable_snapshot_ryw(letters: Any) -> None:
    letters.options.set_snapshot_ryw_disable()
    tr = letters.create_transaction()
    tr[b"d"] = b"mine"
    assert value(tr.snapshot, b"d") == b"\x05"
    assert value(tr, b"d") == b"mine"
    letters.options.set_snapshot_ryw_enable()
    tr = letters.create_transaction()
    tr[b"d"] = b"mine"
    assert value(tr.snapshot, b"d") == b"mine"


def test_reads_ignore_own_writes_when_ryw_is_disabled(letters: Any) -> None:
    tr = letters.create_transaction()
    tr.options.set_read_your_writes_disable()
    tr[b"d"] = b"mine"
    tr.clear_range(b"f", b"z")
    tr[b"i"] = b"new"
    assert value(tr, b"d") == b"\x05"
    assert keys(tr[:]) == [b"b", b"d", b"f", b"h"]
    assert tr.get_key(fdb.KeySelector.first_greater_than(b"h")) == b"\xff"
    tr.commit().wait()
    assert pairs(letters[:]) == [(b"b", b"\x05"), (b"d", b"mine"), (b"i", b"new")]


def test_mutations_without_ryw_apply_in_their_order(letters: Any) -> None:
    tr = letters.create_transaction()
    tr.options.set_read_your_writes_disable()
    tr[b"d"] = b"\x01"
    tr.add(b"d", b"\x01")
    tr.clear_range(b"a", b"z")
    tr.add(b"d", b"\x07")
    tr[b"e"] = b"x"
    tr.clear(b"e")
    tr.commit().wait()
    assert pairs(letters[:]) == [(b"d", b"\x07")]


def test_reads_without_ryw_conflict_even_with_own_keys(letters: Any) -> None:
    def reads(tr: Any) -> None:
        tr.options.set_read_your_writes_disable()
        tr[b"d"] = b"mine"
        assert value(tr, b"d") == b"\x05"

    reader = letters.create_transaction()
    reads(reader)
    letters[b"d"] = b"theirs"
    with fdb_error(1020):
        reader.commit().wait()


def test_ryw_is_disabled_before_anything_else_or_not_at_all(letters: Any) -> None:
    tr = letters.create_transaction()
    tr[b"d"] = b"1"
    tr.options.set_read_your_writes_disable()
    with fdb_error(INVALID_OPERATION):
        tr.commit().wait()


def test_repeated_reads_are_answered_alike(letters: Any) -> None:
    tr = letters.create_transaction()
    for _ in range(3):
        assert value(tr, b"b") == b"\x05"
        assert len(keys(tr[:])) == 4
    tr[b"b"] = b"1"
    for _ in range(3):
        assert value(tr, b"b") == b"1"


def test_writes_during_an_iteration_do_not_disturb_it(letters: Any) -> None:
    tr = letters.create_transaction()
    seen = []
    for kv in tr.get_range(b"", b"\xff"):
        seen.append(kv.key)
        del tr[kv.key]
    assert seen == [b"b", b"d", b"f", b"h"]
    tr.commit().wait()
    assert keys(letters[:]) == []
