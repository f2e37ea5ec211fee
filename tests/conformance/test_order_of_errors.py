"""Which error a call gives, or leaves for later, where more than one would do."""

from __future__ import annotations

import struct
from typing import Any

import fdb
import pytest
from tests.conformance.expect import commit_code, fdb_error

STAMP = b"\x00" * 10
READS = b"\xff\xff/transaction/read_conflict_range/"
WRITES = b"\xff\xff/transaction/write_conflict_range/"


@pytest.fixture
def committed(any_db: Any) -> Any:
    tr = any_db.create_transaction()
    tr[b"k"] = b"v"
    tr.commit().wait()
    return tr


def rows(tr: Any, place: bytes) -> list[bytes]:
    return [bytes(row.key)[len(place) :] for row in tr.get_range(place, place + b"\xff\xff")]


def test_an_option_after_the_commit_is_no_use_during_commit(committed: Any) -> None:
    committed.options.set_access_system_keys()
    assert committed.get_approximate_size().wait() > 0


def test_read_your_writes_can_not_be_disabled_once_a_transaction_has_begun(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr[b"k"] = b"v"
    tr.options.set_read_your_writes_disable()
    assert commit_code(tr) == 2000


def test_a_use_after_the_commit_stays_with_the_transaction(committed: Any) -> None:
    with fdb_error(2017):
        committed[b"k"].wait()
    with fdb_error(2017):
        committed.get_read_version().wait()
    with fdb_error(2017):
        committed.on_error(1020).wait()


def test_an_inverted_range_is_found_before_the_commit_is(committed: Any) -> None:
    committed.clear_range(b"b", b"a")
    assert commit_code(committed) == 2005


def test_the_first_error_that_is_kept_is_the_one_that_is_given(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr.set_versionstamped_value(b"k", b"short")
    tr[b"\xff"] = b""
    tr.set_read_version(0)
    assert commit_code(tr) == 2000


def test_a_limit_is_looked_at_after_the_transaction(committed: Any, any_db: Any) -> None:
    with fdb_error(2012):
        any_db.create_transaction().get_range(b"a", b"b", limit=-2).to_list()
    with fdb_error(2017):
        committed.get_range(b"a", b"b", limit=-2).to_list()


def test_a_limit_of_minus_one_is_none(any_db: Any) -> None:
    any_db[b"a"] = any_db[b"b"] = b""
    assert len(any_db.create_transaction().get_range(b"a", b"c", limit=-1).to_list()) == 2


def test_a_version_can_not_be_set_where_one_is_known(committed: Any, any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr[b"k"].wait()
    tr.set_read_version(1)
    assert commit_code(tr) == 2010
    committed.set_read_version(0)
    assert commit_code(committed) == 2010


def test_read_conflicts_are_told_once_all_reads_have_ended_well(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr.set_versionstamped_value(b"k", STAMP + struct.pack("<i", 0))
    tr[b"other"].wait()
    assert rows(tr, READS) == [b"other", b"other\x00"]
    with fdb_error(1036):
        tr[b"k"].wait()
    with fdb_error(1036):
        rows(tr, READS)
    assert rows(tr, WRITES) == [b"k", b"k\x00"]


def test_write_conflicts_and_conflicting_keys_are_told_after_a_cancel(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr[b"k"] = b"v"
    tr.cancel()
    assert rows(tr, WRITES) == [b"k", b"k\x00"]
    with fdb_error(1025):
        rows(tr, READS)


def test_conflicting_keys_outlive_on_error_and_a_reset(any_db: Any) -> None:
    place = b"\xff\xff/transaction/conflicting_keys/"
    tr = any_db.create_transaction()
    tr.options.set_report_conflicting_keys()
    tr[b"k"].wait()
    tr.get_range(b"k\x00", b"l").to_list()
    tr[b"mine"] = b""
    any_db[b"k"] = b"v"
    assert commit_code(tr) == 1020
    assert rows(tr, place) == [b"k", b"l"]
    tr.on_error(1020).wait()
    assert rows(tr, place) == [b"k", b"l"]
    tr.reset()
    assert rows(tr, place) == [b"k", b"l"]


@pytest.mark.parametrize("length", [15, 256])
def test_an_idempotency_id_of_a_wrong_length_is_an_invalid_option(any_db: Any, length: int) -> None:
    tr = any_db.create_transaction()
    tr._set_option(504, b"i" * length, length)
    tr[b"k"] = b"v"
    assert commit_code(tr) == 2007


def test_a_key_may_be_read_and_cleared_that_is_too_long_to_be_set(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr.clear(b"k" * 10_008)
    assert rows(tr, WRITES) == [b"k" * 10_008, b"k" * 10_008 + b"\x00"]
    tr.clear(b"k" * 10_009)  # no such key can be: nothing happens
    assert len(rows(tr, WRITES)) == 2
    tr.set(b"k" * 10_001, b"")
    assert commit_code(tr) == 2102


def test_a_key_that_a_conditional_clear_removed_still_counts_for_a_selector(any_db: Any) -> None:
    for key in (b"a", b"b", b"c", b"d"):
        any_db[key] = b"v"
    tr = any_db.create_transaction()
    tr.compare_and_clear(b"b", b"v")
    assert [bytes(row.key) for row in tr[b"":b"\xff"]] == [b"a", b"c", b"d"]
    assert bytes(tr.get_key(fdb.KeySelector(b"a", False, 3)).wait()) == b"c"
