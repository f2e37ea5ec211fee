"""What a call answers in each state of a transaction: read-only, timed out, committed, begun again."""

from __future__ import annotations

import struct
import time
from typing import Any

import fdb
import pytest
from tests.conformance.expect import CONFLICTING_KEYS, commit_code, fdb_error, value

STAMP = b"\x00" * 10
MUTATION, CONFLICT = 44, 24


def number(value: int) -> bytes:
    return struct.pack("<q", value)


def set_option(tr: Any, option: int, value: bytes | None = None) -> None:
    tr._set_option(option, value, len(value or b""))


def timed_out(db: Any) -> Any:
    tr = db.create_transaction()
    set_option(tr, 500, number(1))
    time.sleep(0.02)
    return tr


def fits(tr: Any, size: int) -> bool:
    set_option(tr, 503, number(size))
    return commit_code(tr) == 0


# --- sizes ---


@pytest.mark.parametrize("limit", [-1, 0])
def test_what_was_stacked_on_a_stamped_value_is_committed_with_it_and_counts(any_db: Any, limit: int) -> None:
    stamped = STAMP + b"\x00" * 4
    tr = any_db.create_transaction()
    tr.set_versionstamped_value(b"key", stamped)
    tr[b"key"] = b"v" * 100
    size = 2 * (3 + MUTATION) + len(stamped) + 100 + (3 + 4 + CONFLICT)
    assert fits(tr, size + limit) == (limit == 0)


@pytest.mark.parametrize("limit", [-1, 0])
def test_a_cleared_range_that_begins_with_a_key_set_is_one_range(any_db: Any, limit: int) -> None:
    tr = any_db.create_transaction()
    tr.clear_range(b"a", b"c")
    tr[b"a"] = b"value"
    size = (1 + 5 + MUTATION) + (2 + 1 + MUTATION) + (2 + CONFLICT)
    assert fits(tr, size + limit) == (limit == 0)


@pytest.mark.parametrize("limit", [-1, 0])
def test_what_a_stamped_key_may_fall_on_is_committed_as_it_was_and_counts(any_db: Any, limit: int) -> None:
    key = b"log/" + STAMP + struct.pack("<i", 4)
    tr = any_db.create_transaction()
    tr[b"log/" + b"\xee" * 10] = b"value"
    tr.set_versionstamped_key(key, b"")
    tr[b"log/" + b"\xee" * 10] = b"value"
    each = (14 + 5 + MUTATION) + (14 + 15 + CONFLICT)
    assert fits(tr, 2 * each + len(key) + MUTATION + limit) == (limit == 0)


# --- options ---


@pytest.mark.parametrize("option", [40, 710, 711])
def test_options_that_the_documentation_hides_are_known(any_db: Any, option: int) -> None:
    tr = any_db.create_transaction()
    set_option(tr, option)
    assert commit_code(tr) == 0


@pytest.mark.parametrize(("option", "parameter", "code"), [
    (51, b"x", 2006), (402, None, 2006), (402, b"", 2006), (402, b"n" * 101, 2006), (710, b"x", 2006), (1101, b"x", 2006),
])  # fmt: skip
def test_a_bad_value_is_told_by_the_next_read(any_db: Any, option: int, parameter: bytes | None, code: int) -> None:
    tr = any_db.create_transaction()
    value(tr, b"key")
    set_option(tr, option, parameter)
    with fdb_error(code):
        value(tr, b"key")


def test_a_transaction_for_reading_in_spite_of_a_lock_commits_no_write(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr.options.set_read_lock_aware()
    assert commit_code(tr) == 0
    tr = any_db.create_transaction()
    tr.options.set_read_lock_aware()
    tr[b"key"] = b"value"
    assert commit_code(tr) == 2023
    tr = any_db.create_transaction()
    tr.options.set_lock_aware()
    tr.options.set_read_lock_aware()
    tr[b"key"] = b"value"
    assert commit_code(tr) == 0


@pytest.mark.parametrize("write", [False, True])
def test_raw_access_is_no_access_to_system_keys(any_db: Any, write: bool) -> None:
    tr = any_db.create_transaction()
    set_option(tr, 303)
    if write:
        tr[b"\xff/mainspring"] = b""
    with fdb_error(2004):
        value(tr, b"\xff/mainspring")


def test_read_your_writes_stay_once_anything_was_read(any_db: Any) -> None:
    for read in (
        lambda tr: tr.get_key(fdb.KeySelector(b"", False, 0)),
        lambda tr: fdb.locality.get_addresses_for_key(tr, b"k"),
    ):
        tr = any_db.create_transaction()
        read(tr).wait()
        tr.options.set_read_your_writes_disable()
        with fdb_error(2000):
            value(tr, b"key")


# --- read versions ---


def reads_what_came_later(db: Any, call: Any) -> bool:
    tr = db.create_transaction()
    call(tr)
    db[b"later"] = b"value"
    return value(tr, b"later") == b"value"


def test_sizes_and_split_points_are_told_without_a_read_version(any_db: Any) -> None:
    assert reads_what_came_later(any_db, lambda tr: tr.get_estimated_range_size_bytes(b"a", b"z").wait())
    del any_db[b"later"]
    assert reads_what_came_later(any_db, lambda tr: tr.get_range_split_points(b"a", b"z", 1000).wait())
    del any_db[b"later"]
    assert not reads_what_came_later(any_db, lambda tr: fdb.locality.get_addresses_for_key(tr, b"a").wait())


def test_a_size_is_that_of_the_database_and_not_of_what_this_transaction_wrote(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr[b"key"] = b"value"
    assert tr.get_estimated_range_size_bytes(b"a", b"z").wait() == 0


def test_a_range_that_ends_with_own_rows_asks_for_no_read_version(any_db: Any) -> None:
    def own(reverse: bool) -> Any:
        def read(tr: Any) -> None:
            tr[b"a"] = tr[b"y"] = b"own"
            rows = tr.get_range(
                b"a", b"y\x00", limit=1, reverse=reverse, streaming_mode=fdb.StreamingMode.exact
            ).to_list()
            assert [row.value for row in rows] == [b"own"]

        return read

    assert reads_what_came_later(any_db, own(reverse=False))
    del any_db[b"later"]
    assert reads_what_came_later(any_db, own(reverse=True))


def test_a_range_behind_the_last_key_asks_for_no_read_version(any_db: Any) -> None:
    last = fdb.KeySelector.first_greater_or_equal(b"\xff"), fdb.KeySelector.first_greater_than(b"\xff")
    for reverse in (False, True):
        assert reads_what_came_later(any_db, lambda tr, reverse=reverse: tr.get_range(*last, reverse=reverse).to_list())
        del any_db[b"later"]


def test_inverted_ranges_are_refused_before_anything_else(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr.cancel()
    with fdb_error(2005):
        tr.get_estimated_range_size_bytes(b"b", b"a").wait()
    with fdb_error(2005):
        tr.get_range_split_points(b"b", b"a", 1000).wait()


# --- versions and stamps ---


def test_the_committed_version_is_told_until_another_commit_ends(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr[b"key"] = b"value"
    tr.commit().wait()
    version = tr.get_committed_version()
    tr.reset()
    assert tr.get_committed_version() == version
    value(tr, b"key")
    any_db[b"key"] = b"other"
    tr[b"key"] = b"value"
    assert commit_code(tr) == 1020
    assert tr.get_committed_version() == version
    tr.on_error(1020).wait()
    assert tr.get_committed_version() == version
    assert commit_code(tr) == 0
    assert tr.get_committed_version() == -1


def test_a_versionstamp_is_given_up_with_what_it_was_asked_for(any_db: Any) -> None:
    for end, code in (
        (lambda tr: tr.reset(), 1100),
        (lambda tr: tr.on_error(1020).wait(), 1100),
        (lambda tr: tr.cancel(), 1025),
    ):
        tr = any_db.create_transaction()
        stamp = tr.get_versionstamp()
        end(tr)
        with fdb_error(code):
            stamp.wait()


# --- the end ---


def test_a_time_that_is_over_comes_before_what_follows(any_db: Any) -> None:
    tr = timed_out(any_db)
    tr.cancel()
    with fdb_error(1031):
        value(tr, b"key")
    tr = timed_out(any_db)
    with fdb_error(1031):
        tr.get_range(
            b"\xff\xff/transaction/read_conflict_range/", b"\xff\xff/transaction/read_conflict_range/\xff"
        ).to_list()


def test_a_transaction_times_out_after_its_commit_too(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr.commit().wait()
    set_option(tr, 500, number(1))
    time.sleep(0.02)
    with fdb_error(2017):
        value(tr, b"key")
    with fdb_error(1031):
        tr.get_read_version().wait()
    with fdb_error(1031):
        tr.on_error(1020).wait()


def test_a_versionstamp_asked_for_after_the_commit_ends_the_transaction(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr.commit().wait()
    with fdb_error(2017):
        tr.get_versionstamp().wait()
    with fdb_error(2017):
        tr.on_error(1020).wait()


@pytest.mark.parametrize("code", [1079, 1235, 1242])
def test_codes_that_other_releases_retry(any_db: Any, code: int) -> None:
    tr = any_db.create_transaction()
    if code == 1079:
        tr.on_error(code).wait()
        return
    with fdb_error(code):
        tr.on_error(code).wait()
    assert not fdb.predicates.is_retryable(fdb.FDBError(code))


def test_read_conflicts_added_before_read_your_writes_are_disabled_are_forgotten(any_db: Any) -> None:
    for disabled in (False, True):
        tr = any_db.create_transaction()
        tr.get_read_version().wait()
        tr.add_read_conflict_range(b"a", b"z")
        if disabled:
            tr.options.set_read_your_writes_disable()
        any_db[b"key"] = b"value"
        tr[b"other"] = b"value"
        assert commit_code(tr) == (0 if disabled else 1020)


def test_a_conflict_on_keys_that_cannot_be_is_told_as_short_as_it_can_be(any_db: Any) -> None:
    tr = any_db.create_transaction()
    set_option(tr, 712)
    tr.get_key(fdb.KeySelector(b"k" * 10_009, True, 1)).wait()
    any_db[b"l"] = b"value"
    tr[b"m"] = b"value"
    assert commit_code(tr) == 1020
    rows = tr.get_range(CONFLICTING_KEYS, CONFLICTING_KEYS + b"\xff").to_list()
    assert rows[0].key == CONFLICTING_KEYS + b"k" * 10_009


def test_no_special_key_is_longer_than_a_key_of_the_system(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr.set_versionstamped_key(b"k" + STAMP + struct.pack("<i", 1), b"")
    with fdb_error(1036):
        tr.get_range(b"k", b"l").to_list()
    place = b"\xff\xff/transaction/read_conflict_range/"
    assert value(tr, place + b"k" * (30_001 - len(place))) is None
    with fdb_error(1036):
        value(tr, place + b"k" * (30_000 - len(place)))
