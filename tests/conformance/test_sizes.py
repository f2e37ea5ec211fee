"""What a transaction counts: every operation for its approximate size, and what is left of them for its limit."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from tests.conformance.expect import commit_code, fdb_error

TOO_LARGE = 2101
STAMP = b"\x00" * 10
CONFLICT = 24
MUTATION = 44


def size(tr: Any) -> int:
    return int(tr.get_approximate_size().wait())


def counted(key: bytes, value: bytes) -> int:
    """A set, or an atomic operation, with its write conflict."""
    return 3 * len(key) + len(value) + MUTATION + CONFLICT + 1


def test_every_write_counts_also_one_that_another_replaces(any_db: Any) -> None:
    tr = any_db.create_transaction()
    for number in range(1, 4):
        tr[b"key"] = b"value"
        assert size(tr) == number * counted(b"key", b"value")
    tr.clear_range(b"a", b"z")
    assert size(tr) == 3 * counted(b"key", b"value") + 2 * 2 + MUTATION + CONFLICT
    before = size(tr)
    tr.clear(b"key")
    assert size(tr) - before == 2 * (2 * 3 + 1) + 2 * CONFLICT


def test_atomic_operations_on_one_key_count_each(any_db: Any) -> None:
    tr = any_db.create_transaction()
    for number in range(1, 5):
        tr.add(b"n", b"\x01" * 8)
        assert size(tr) == number * counted(b"n", b"\x01" * 8)


def test_stamped_keys_count_without_a_write_conflict(any_db: Any) -> None:
    tr = any_db.create_transaction()
    key = b"log/" + STAMP + struct.pack("<i", 4)
    for number in range(1, 4):
        tr.set_versionstamped_key(key, b"v")
        assert size(tr) == number * (len(key) + 1 + MUTATION)


def test_reads_count_each_time_and_snapshot_reads_never(any_db: Any) -> None:
    tr = any_db.create_transaction()
    for number in range(1, 4):
        tr[b"key"].wait()
        assert size(tr) == number * (2 * 3 + 1 + CONFLICT)
        tr.snapshot[b"key"].wait()
        assert size(tr) == number * (2 * 3 + 1 + CONFLICT)


def test_reads_of_what_was_written_do_not_count(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr[b"key"] = b"v"
    written = size(tr)
    tr[b"key"].wait()
    assert size(tr) == written


def test_a_range_counts_once_for_each_part_that_is_read(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr[b"c"] = b""
    written = size(tr)
    tr.get_range(b"a", b"e", limit=9, streaming_mode=0).to_list()
    assert size(tr) - written == 2 * (2 + CONFLICT)


def test_a_write_without_a_conflict_counts_less(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr.options.set_next_write_no_write_conflict_range()
    tr[b"key"] = b"value"
    assert size(tr) == 3 + 5 + MUTATION


def test_the_size_begins_anew_with_the_transaction_and_is_told_after_its_end(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr[b"key"] = b"value"
    tr.on_error(1020).wait()
    assert size(tr) == 0
    tr[b"key"] = b"value"
    tr.cancel()
    assert size(tr) == counted(b"key", b"value")
    tr.reset()
    assert size(tr) == 0


def test_the_size_is_told_during_and_after_the_commit(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr[b"key"] = b"value"
    tr.commit().wait()
    assert size(tr) == counted(b"key", b"value")


def test_an_error_that_is_kept_for_later_comes_out_of_the_size(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr[b"\xff/system"] = b""
    with fdb_error(2004):
        size(tr)


def stamped_keys(tr: Any, large: bool) -> None:
    for _ in range(110 if large else 90):
        tr.set_versionstamped_key(STAMP + struct.pack("<i", 0), b"v" * 100_000)


def stamped_values(tr: Any, large: bool) -> None:
    for number in range(110 if large else 90):
        tr.set_versionstamped_value(b"%03d" % number, STAMP + b"v" * 99_900 + struct.pack("<i", 0))


def atomics_of_many_kinds(tr: Any, large: bool) -> None:
    for number in range(110 if large else 90):
        (tr.bit_or if number % 2 else tr.bit_xor)(b"k", b"v" * 100_000)


def clears(tr: Any, large: bool) -> None:
    for number in range(320 if large else 200):
        tr.clear(b"%03d" % number + b"k" * 9_900)


def ranges_cleared(tr: Any, large: bool) -> None:
    for number in range(300 if large else 200):
        tr.clear_range(b"%03d" % number + b"a" * 9_900, b"%03d" % number + b"b" * 9_900)


def read_conflicts(tr: Any, large: bool) -> None:
    tr[b"k"] = b""
    for number in range(520 if large else 400):
        tr.add_read_conflict_range(b"%03d" % number + b"a" * 9_900, b"%03d" % number + b"b" * 9_900)


def write_conflicts(tr: Any, large: bool) -> None:
    for number in range(520 if large else 400):
        tr.add_write_conflict_range(b"%03d" % number + b"a" * 9_900, b"%03d" % number + b"b" * 9_900)


MADE_OF = [stamped_keys, stamped_values, atomics_of_many_kinds, clears, ranges_cleared, read_conflicts, write_conflicts]


@pytest.mark.parametrize("made_of", MADE_OF)
def test_ten_million_bytes_are_too_large_whatever_they_are_made_of(any_db: Any, made_of: Any) -> None:
    tr = any_db.create_transaction()
    made_of(tr, True)
    assert commit_code(tr) == TOO_LARGE
    tr = any_db.create_transaction()
    made_of(tr, False)
    assert commit_code(tr) == 0


def test_additions_on_one_key_are_one_operation_of_the_commit(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr.options.set_size_limit(200)
    for _ in range(100):
        tr.add(b"n", b"\x01\x00\x00\x00")
    assert size(tr) == 100 * counted(b"n", b"\x01\x00\x00\x00")
    tr.commit().wait()
    assert any_db[b"n"] == struct.pack("<I", 100)
