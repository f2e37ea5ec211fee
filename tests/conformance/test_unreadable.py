"""What a transaction cannot read back: keys whose stamp isn't known before the commit."""

from __future__ import annotations

import struct
from typing import Any

import fdb
import pytest
from tests.conformance.expect import UNREADABLE, commit_code, fdb_error, keys, pairs, read_conflict_ranges, value

STAMP = b"\xff" * 10
END = b"log/" + b"\xff" * 10 + b"\x00"


def at(offset: int) -> bytes:
    return struct.pack("<i", offset)


@pytest.fixture
def letters(any_db: Any) -> Any:
    """A database with keys on both sides of `log/…`."""
    for key in (b"a", b"k", b"p", b"z"):
        any_db[key] = b"v"
    return any_db


@pytest.fixture
def stamped_value(letters: Any) -> Any:
    """A transaction that has written a stamped value at `k`."""
    tr = letters.create_transaction()
    tr.set_versionstamped_value(b"k", STAMP + at(0))
    return tr


@pytest.fixture
def stamped_key(letters: Any) -> Any:
    """A transaction that has written a stamped key under `log/`."""
    tr = letters.create_transaction()
    tr.set_versionstamped_key(b"log/" + STAMP + at(4), b"v")
    return tr


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_stamped_value_cannot_be_read_back(stamped_value: Any, snapshot: bool) -> None:
    view = stamped_value.snapshot if snapshot else stamped_value
    with fdb_error(UNREADABLE):
        view.get(b"k").wait()
    with fdb_error(UNREADABLE):
        list(view.get_range(b"a", b"z"))
    with fdb_error(UNREADABLE):
        list(view.get_range(b"a", b"z", reverse=True))
    with fdb_error(UNREADABLE):
        view.get_key(fdb.KeySelector.first_greater_than(b"a")).wait()
    with fdb_error(UNREADABLE):
        view.get_key(fdb.KeySelector.last_less_than(b"p")).wait()
    assert value(view, b"a") == b"v"
    assert value(view, b"p") == b"v"


def test_reads_that_stop_before_it_are_fine(stamped_value: Any) -> None:
    tr = stamped_value
    assert keys(tr.get_range(b"a", b"k")) == [b"a"]
    assert keys(tr.get_range(b"k\x00", b"zz")) == [b"p", b"z"]
    assert keys(tr.get_range(b"a", b"zz", limit=1)) == [b"a"]
    assert keys(tr.get_range(b"a", b"zz", limit=2, reverse=True)) == [b"z", b"p"]
    assert tr.get_key(fdb.KeySelector.first_greater_than(b"k")) == b"p"
    assert tr.get_key(fdb.KeySelector.last_less_than(b"k")) == b"a"


@pytest.mark.parametrize("reads", ["get", "get_key", "get_range", "snapshot"])
def test_the_commit_fails_as_a_read_of_it_did(stamped_value: Any, letters: Any, reads: str) -> None:
    with fdb_error(UNREADABLE):
        if reads == "get":
            stamped_value.get(b"k").wait()
        elif reads == "get_key":
            stamped_value.get_key(fdb.KeySelector.first_greater_than(b"a")).wait()
        elif reads == "get_range":
            list(stamped_value.get_range(b"a", b"z"))
        else:
            stamped_value.snapshot.get(b"k").wait()
    assert value(stamped_value, b"a") == b"v"
    stamped_value[b"b"] = b"v"
    assert commit_code(stamped_value) == UNREADABLE
    assert letters[b"b"] is None
    with fdb_error(UNREADABLE):
        stamped_value.on_error(UNREADABLE).wait()
    stamped_value.reset()
    stamped_value[b"b"] = b"v"
    assert commit_code(stamped_value) == 0


def test_a_commit_that_only_read_fails_as_its_read_did(stamped_value: Any) -> None:
    with fdb_error(UNREADABLE):
        stamped_value.get(b"k").wait()
    assert commit_code(stamped_value) == UNREADABLE


def test_a_failed_watch_does_not_fail_the_commit(stamped_value: Any, letters: Any) -> None:
    watch = stamped_value.watch(b"k")
    with fdb_error(UNREADABLE):
        watch.wait()
    stamped_value.commit().wait()
    assert len(letters[b"k"]) == 10


def test_a_stamped_key_hides_the_range_it_may_fall_in(stamped_key: Any) -> None:
    tr = stamped_key
    with fdb_error(UNREADABLE):
        tr.get(b"log/" + b"\x80" * 10).wait()
    with fdb_error(UNREADABLE):
        list(tr.get_range(b"log/", b"log0"))
    with fdb_error(UNREADABLE):
        list(tr.get_range(b"a", b"zz"))
    with fdb_error(UNREADABLE):
        tr.get_key(fdb.KeySelector.first_greater_than(b"k")).wait()
    assert keys(tr.get_range(b"a", b"log/")) == [b"a", b"k"]
    assert keys(tr.get_range(END, b"zz")) == [b"p", b"z"]
    assert value(tr, b"log/") is None
    assert value(tr, END) is None


def test_with_a_read_version_the_past_of_the_range_stays_readable(letters: Any) -> None:
    first = letters.create_transaction()
    first.set_versionstamped_key(b"log/" + STAMP + at(4), b"1")
    first.commit().wait()
    letters[b"k"] = b"later"  # 7.3 takes a stamp to be possibly that of the read version
    tr = letters.create_transaction()
    version = tr.get_read_version().wait()
    tr.set_versionstamped_key(b"log/" + STAMP + at(4), b"2")
    border = b"log/" + struct.pack(">QH", version, 0)
    assert [v for _, v in pairs(tr.get_range(b"log/", border))] == [b"1"]
    with fdb_error(UNREADABLE):
        tr.get(border).wait()
    with fdb_error(UNREADABLE):
        list(tr.get_range(b"log/", b"log0"))


def test_a_set_over_a_stamped_value_stays_unreadable(stamped_value: Any) -> None:
    stamped_value[b"k"] = b"plain"
    with fdb_error(UNREADABLE):
        stamped_value.get(b"k").wait()


def test_a_set_over_a_stamped_value_is_what_is_committed(stamped_value: Any, letters: Any) -> None:
    stamped_value[b"k"] = b"plain"
    stamped_value.commit().wait()
    assert letters[b"k"] == b"plain"


def test_an_atomic_operation_over_a_stamped_value_stays_unreadable(stamped_value: Any) -> None:
    stamped_value.append_if_fits(b"k", b"tail")
    with fdb_error(UNREADABLE):
        stamped_value.get(b"k").wait()


def test_an_atomic_operation_over_a_stamped_value_is_applied_to_it(stamped_value: Any, letters: Any) -> None:
    stamped_value.append_if_fits(b"k", b"tail")
    stamped_value.commit().wait()
    assert len(letters[b"k"]) == 14
    assert bytes(letters[b"k"]).endswith(b"tail")


def test_a_clear_makes_a_key_readable_again(stamped_value: Any, letters: Any) -> None:
    stamped_value.clear(b"k")
    assert value(stamped_value, b"k") is None
    assert keys(stamped_value[b"a":b"zz"]) == [b"a", b"p", b"z"]
    stamped_value[b"k"] = b"again"
    assert value(stamped_value, b"k") == b"again"
    stamped_value.commit().wait()
    assert letters[b"k"] == b"again"


def test_a_clear_makes_a_range_readable_but_the_stamped_key_is_written(stamped_key: Any, letters: Any) -> None:
    stamped_key.clear_range(b"log/", b"log0")
    assert keys(stamped_key[b"a":b"zz"]) == [b"a", b"k", b"p", b"z"]


def test_a_stamped_value_over_a_set_hides_it(letters: Any) -> None:
    tr = letters.create_transaction()
    tr[b"k"] = b"plain"
    assert value(tr, b"k") == b"plain"
    tr.set_versionstamped_value(b"k", STAMP + at(0))
    with fdb_error(UNREADABLE):
        tr.get(b"k").wait()


def test_writes_in_the_hidden_range_cannot_be_read_back(stamped_key: Any) -> None:
    inside = b"log/" + b"\xee" * 10
    stamped_key[inside] = b"inside"
    with fdb_error(UNREADABLE):
        stamped_key.get(inside).wait()


def test_writes_in_the_hidden_range_are_committed(stamped_key: Any, letters: Any) -> None:
    inside = b"log/" + b"\xee" * 10
    stamped_key[inside] = b"inside"
    stamped_key.commit().wait()
    assert letters[inside] == b"inside"
    assert len(keys(letters[b"log/":b"log0"])) == 2


def test_earlier_writes_in_the_range_are_committed_too(letters: Any) -> None:
    tr = letters.create_transaction()
    inside = b"log/" + b"\xee" * 10
    tr[inside] = b"inside"
    tr.set_versionstamped_key(b"log/" + STAMP + at(4), b"v")
    tr.commit().wait()
    assert letters[inside] == b"inside"
    assert len(keys(letters[b"log/":b"log0"])) == 2


def test_an_atomic_operation_in_the_hidden_range_stays_unreadable(stamped_key: Any) -> None:
    inside = b"log/" + b"\xee" * 10
    stamped_key.add(inside, b"\x01")
    stamped_key.clear_range(b"a", b"b")
    with fdb_error(UNREADABLE):
        stamped_key.get(inside).wait()


def test_an_atomic_operation_in_the_hidden_range_is_committed(stamped_key: Any, letters: Any) -> None:
    inside = b"log/" + b"\xee" * 10
    stamped_key.add(inside, b"\x01")
    stamped_key.clear_range(b"a", b"b")
    stamped_key.commit().wait()
    assert letters[inside] == b"\x01"


def test_a_stamped_key_makes_what_was_cleared_under_it_conflict_again(letters: Any) -> None:
    tr = letters.create_transaction()
    tr.clear_range(b"a", b"zz")
    tr.add_read_conflict_range(b"log/", b"log0")
    assert read_conflict_ranges(tr) == []
    tr.set_versionstamped_key(b"log/" + STAMP + at(4), b"v")
    tr.add_read_conflict_range(b"log/", b"log0")
    lowest = b"log/" + b"\x00" * 10
    anchor = lowest + at(4)  # where the client keeps the write: that key doesn't depend on what is stored
    assert read_conflict_ranges(tr) == [(lowest, anchor), (anchor + b"\x00", END)]


def test_unreadable_keys_can_be_read_by_option(stamped_value: Any) -> None:
    stamped_value.options.set_bypass_unreadable()
    assert value(stamped_value, b"a") == b"v"
    assert value(stamped_value, b"k") is not None


def test_the_option_to_read_unreadable_keys_is_for_single_keys(stamped_value: Any) -> None:
    stamped_value.options.set_bypass_unreadable()
    with fdb_error(UNREADABLE):
        keys(stamped_value[b"a":b"zz"])
    with fdb_error(UNREADABLE):
        stamped_value.get_key(fdb.KeySelector.first_greater_than(b"a")).wait()


def test_snapshot_reads_without_ryw_see_the_stored_value(letters: Any) -> None:
    tr = letters.create_transaction()
    tr.options.set_snapshot_ryw_disable()
    tr.set_versionstamped_value(b"k", STAMP + at(0))
    assert value(tr.snapshot, b"k") == b"v"
    with fdb_error(UNREADABLE):
        tr.get(b"k").wait()


def test_reads_with_ryw_disabled_see_the_stored_value(letters: Any) -> None:
    tr = letters.create_transaction()
    tr.options.set_read_your_writes_disable()
    tr.set_versionstamped_value(b"k", STAMP + at(0))
    tr.set_versionstamped_key(b"log/" + STAMP + at(4), b"v")
    assert value(tr, b"k") == b"v"
    assert keys(tr[b"a":b"zz"]) == [b"a", b"k", b"p", b"z"]
    tr.commit().wait()
    assert len(letters[b"k"]) == 10
    assert len(keys(letters[b"log/":b"log0"])) == 1
