"""Sizes: of keys, values and transactions; approximate sizes; the exact error of each excess."""

from __future__ import annotations

from typing import Any

import fdb
import pytest
from tests.conformance.expect import (
    INVALID_OPERATION,
    KEY_TOO_LARGE,
    OUTSIDE_LEGAL_RANGE,
    TRANSACTION_TOO_LARGE,
    VALUE_TOO_LARGE,
    commit_code,
    fdb_error,
    keys,
    value,
)

KEY_LIMIT = 10_000
VALUE_LIMIT = 100_000


def test_the_longest_key_and_value_are_stored(any_db: Any) -> None:
    key, data = b"k" * KEY_LIMIT, b"v" * VALUE_LIMIT
    any_db[key] = data
    assert any_db[key] == data
    assert keys(any_db[:]) == [key]


def test_one_byte_more_is_refused_at_the_commit(any_db: Any) -> None:
    for key, data, code in [
        (b"k" * (KEY_LIMIT + 1), b"", KEY_TOO_LARGE),
        (b"k", b"v" * (VALUE_LIMIT + 1), VALUE_TOO_LARGE),
    ]:
        tr = any_db.create_transaction()
        tr[key] = data
        with fdb_error(code):
            tr.commit().wait()
    assert keys(any_db[:]) == []


def test_keys_longer_than_any_are_absent(any_db: Any) -> None:
    tr = any_db.create_transaction()
    assert value(tr, b"k" * (KEY_LIMIT + 1)) is None
    assert value(tr, b"k" * 50_000) is None


def test_keys_longer_than_any_are_cleared_without_effect(any_db: Any) -> None:
    any_db[b"k"] = b"v"
    tr = any_db.create_transaction()
    tr.clear(b"k" * 20_000)
    tr.clear_range(b"k" * 20_000, b"k" * 30_000)
    tr.add_write_conflict_range(b"k" * 20_000, b"k" * 30_000)
    tr.add_read_conflict_range(b"k" * 20_000, b"k" * 30_000)
    assert commit_code(tr) == 0
    assert keys(any_db[:]) == [b"k"]


def test_ranges_with_overlong_ends_mean_what_they_say(any_db: Any) -> None:
    for key in (b"a", b"k" * KEY_LIMIT, b"m"):
        any_db[key] = b"v"
    tr = any_db.create_transaction()
    assert keys(tr[b"k" * 12_000 : b"z"]) == [b"m"]
    assert keys(tr[b"a" : b"k" * 12_000]) == [b"a", b"k" * KEY_LIMIT]
    tr.clear_range(b"a\x00", b"k" * 12_000)
    assert keys(tr[:]) == [b"a", b"m"]
    tr.commit().wait()
    assert keys(any_db[:]) == [b"a", b"m"]


def test_a_transaction_over_ten_million_bytes_is_refused(any_db: Any) -> None:
    tr = any_db.create_transaction()
    for i in range(99):
        tr[b"k%03d" % i] = b"v" * VALUE_LIMIT
    assert commit_code(tr) == 0
    tr = any_db.create_transaction()
    for i in range(100):
        tr[b"k%03d" % i] = b"v" * VALUE_LIMIT
    with fdb_error(TRANSACTION_TOO_LARGE):
        tr.commit().wait()


def test_conflict_ranges_count_in_the_size(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr.options.set_size_limit(1000)
    for i in range(10):
        tr.add_read_conflict_key(b"some key %03d" % (2 * i))
    tr[b"k"] = b""
    assert commit_code(tr) == 0
    tr = any_db.create_transaction()
    tr.options.set_size_limit(1000)
    for i in range(60):
        tr.add_read_conflict_key(b"some key %03d" % (2 * i))
    tr[b"k"] = b""
    with fdb_error(TRANSACTION_TOO_LARGE):
        tr.commit().wait()


def test_reads_alone_are_not_limited(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr.options.set_size_limit(32)
    for i in range(100):
        tr.get(b"some key %d" % i).wait()
    assert commit_code(tr) == 0


def test_the_size_limit_of_one_transaction(any_db: Any) -> None:
    data = b"a" * 1024
    tr = any_db.create_transaction()
    tr.options.set_size_limit(1000)
    tr[b"k"] = data
    with fdb_error(TRANSACTION_TOO_LARGE):
        tr.commit().wait()
    tr = any_db.create_transaction()
    tr.options.set_size_limit(2000)
    tr[b"k"] = data
    assert commit_code(tr) == 0


def test_the_size_limit_of_a_database_and_its_exceptions(any_db: Any) -> None:
    data = b"a" * 1024
    any_db.options.set_transaction_size_limit(1000)
    with fdb_error(TRANSACTION_TOO_LARGE):
        any_db[b"k"] = data
    tr = any_db.create_transaction()
    tr.options.set_size_limit(5000)
    tr[b"k"] = data
    assert commit_code(tr) == 0
    tr = any_db.create_transaction()
    tr[b"k"] = b"small"
    tr.on_error(fdb.FDBError(1007)).wait()
    tr[b"k"] = data
    with fdb_error(TRANSACTION_TOO_LARGE):
        tr.commit().wait()
    any_db.options.set_transaction_size_limit(10_000_000)
    any_db[b"k"] = data


@pytest.mark.parametrize("limit", [0, 31, 10_000_001])
def test_size_limits_have_limits(any_db: Any, limit: int) -> None:
    tr = any_db.create_transaction()
    tr.options.set_size_limit(limit)
    tr[b"k"] = b"v"
    with fdb_error(2006):
        tr.commit().wait()


def test_the_approximate_size_grows_with_every_operation(any_db: Any) -> None:
    tr = any_db.create_transaction()

    def size() -> int:
        return int(tr.get_approximate_size().wait())

    sizes = [size()]
    for operation in (
        lambda: tr.set(b"key1", b"value1"),
        lambda: tr.set(b"key2", b"value2"),
        lambda: tr.clear(b"key3"),
        lambda: tr.clear_range(b"key4", b"key5"),
        lambda: tr.add(b"key6", b"\x01"),
        lambda: tr.add_read_conflict_key(b"key3+"),
        lambda: tr.add_write_conflict_key(b"key4"),
        lambda: tr.get(b"key7").wait(),
        lambda: list(tr.get_range(b"key8", b"key9")),
        lambda: tr.set_versionstamped_value(b"key10", b"\x00" * 14),
    ):
        operation()
        sizes.append(size())
    assert sizes == sorted(set(sizes)), sizes
    before = size()
    tr.snapshot.get(b"key11").wait()
    assert size() == before
    tr.reset()
    assert size() == sizes[0] == 0


def test_the_approximate_size_counts_keys_twice_with_their_conflicts(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr[b"k" * 100] = b"v" * 1000
    with_conflict = int(tr.get_approximate_size().wait())
    quiet = any_db.create_transaction()
    quiet.options.set_next_write_no_write_conflict_range()
    quiet[b"k" * 100] = b"v" * 1000
    without = int(quiet.get_approximate_size().wait())
    assert with_conflict - without >= 201
    assert without >= 1100


def test_writes_outside_the_user_keys_are_refused_at_the_commit(any_db: Any) -> None:
    for write in (
        lambda tr: tr.set(b"\xff", b""),
        lambda tr: tr.set(b"\xff/x", b""),
        lambda tr: tr.clear(b"\xff"),
        lambda tr: tr.clear_range(b"a", b"\xff\x00"),
        lambda tr: tr.add(b"\xff/n", b"\x01"),
        lambda tr: tr.set_versionstamped_value(b"\xff/n", b"\x00" * 14),
    ):
        tr = any_db.create_transaction()
        write(tr)
        with fdb_error(OUTSIDE_LEGAL_RANGE):
            tr.commit().wait()


def test_clearing_to_the_end_of_the_user_keys_is_legal(any_db: Any) -> None:
    any_db[b"\xfe"] = b"v"
    any_db.clear_range(b"", b"\xff")
    assert keys(any_db[:]) == []


def test_system_keys_are_written_with_access(any_db: Any) -> None:
    @fdb.transactional
    def put(tr: Any) -> None:
        tr.options.set_access_system_keys()
        tr[b"\xff\x02/mainspring-test"] = b"v"

    @fdb.transactional
    def take(tr: Any) -> bytes | None:
        tr.options.set_read_system_keys()
        return value(tr, b"\xff\x02/mainspring-test")

    @fdb.transactional
    def drop(tr: Any) -> None:
        tr.options.set_access_system_keys()
        del tr[b"\xff\x02/mainspring-test"]

    put(any_db)
    assert take(any_db) == b"v"
    assert keys(any_db[:]) == []
    drop(any_db)
    assert take(any_db) is None


def test_reading_system_keys_is_not_writing_them(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr.options.set_read_system_keys()
    tr[b"\xff\x02/mainspring-test"] = b"v"
    with fdb_error(OUTSIDE_LEGAL_RANGE):
        tr.commit().wait()


def test_system_keys_may_be_longer(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr.options.set_access_system_keys()
    key = b"\xff\x02/" + b"k" * 29_000
    tr[key] = b"v"
    assert commit_code(tr) == 0
    tr = any_db.create_transaction()
    tr.options.set_access_system_keys()
    assert value(tr, key) == b"v"
    del tr[key]
    tr.commit().wait()
    tr = any_db.create_transaction()
    tr.options.set_access_system_keys()
    tr[b"\xff\x02/" + b"k" * 30_000] = b"v"
    with fdb_error(KEY_TOO_LARGE):
        tr.commit().wait()


def test_ryw_cannot_be_disabled_after_a_read(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr[b"a"].wait()
    tr.options.set_read_your_writes_disable()
    with fdb_error(INVALID_OPERATION):
        tr[b"a"].wait()
