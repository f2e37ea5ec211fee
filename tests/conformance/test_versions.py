"""Read versions, committed versions, and transactions that are too old or too new."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.conformance.expect import TOO_OLD, commit_code, fdb_error, keys, suppress_error, value

FUTURE = 0x7FFF_FFFF_FFFF_FFF0


def committed(db: Any, key: bytes, data: bytes) -> int:
    tr = db.create_transaction()
    tr[key] = data
    tr.commit().wait()
    return int(tr.get_committed_version())


def test_versions_never_go_back(any_db: Any) -> None:
    last = 0
    for i in range(30):
        tr = any_db.create_transaction()
        read = tr.get_read_version().wait()
        assert read >= last
        last = committed(any_db, b"k", b"%d" % i)
        assert last > read


def test_a_read_version_is_at_least_that_of_any_earlier_commit(any_db: Any) -> None:
    for i in range(20):
        version = committed(any_db, b"k", b"%d" % i)
        tr = any_db.create_transaction()
        assert tr.get_read_version().wait() >= version
        assert value(tr, b"k") == b"%d" % i


def test_the_read_version_of_a_transaction_stays(any_db: Any) -> None:
    tr = any_db.create_transaction()
    version = tr.get_read_version().wait()
    any_db[b"k"] = b"v"
    assert tr.get_read_version().wait() == version
    tr.reset()
    assert tr.get_read_version().wait() > version


def test_versions_pass_at_about_a_million_a_second(any_db: Any) -> None:
    begin_time, begin = time.monotonic(), committed(any_db, b"k", b"1")
    time.sleep(0.5)
    end = committed(any_db, b"k", b"2")
    passed = time.monotonic() - begin_time
    assert 0.4e6 < end - begin < passed * 1.2e6 + 1e5


def test_a_version_seen_before_can_be_read_again(any_db: Any) -> None:
    any_db[b"k"] = b"old"
    seen = any_db.create_transaction()
    version = seen.get_read_version().wait()
    any_db[b"k"] = b"new"
    again = any_db.create_transaction()
    again.set_read_version(version)
    assert again.get_read_version().wait() == version
    assert value(again, b"k") == b"old"
    assert keys(again[:]) == [b"k"]


def test_a_committed_version_can_be_read(any_db: Any) -> None:
    version = committed(any_db, b"k", b"old")
    any_db[b"other"] = b"new"
    tr = any_db.create_transaction()
    tr.set_read_version(version)
    assert value(tr, b"k") == b"old"
    assert tr.get_read_version().wait() == version


def test_what_was_overwritten_since_a_committed_version_is_old_or_too_old(any_db: Any) -> None:
    version = committed(any_db, b"k", b"old")
    any_db[b"k"] = b"new"
    tr = any_db.create_transaction()
    tr.set_read_version(version)
    with suppress_error(TOO_OLD):
        assert value(tr, b"k") == b"old"


def test_a_transaction_at_an_old_version_conflicts_with_what_came_since(any_db: Any) -> None:
    any_db[b"k"] = b"old"
    earlier = any_db.create_transaction()
    version = earlier.get_read_version().wait()
    any_db[b"k"] = b"new"
    tr = any_db.create_transaction()
    tr.set_read_version(version)
    assert value(tr, b"k") == b"old"
    tr[b"x"] = b""
    assert commit_code(tr) == 1020


def test_a_version_of_the_future_is_not_readable_yet(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr.set_read_version(FUTURE)
    with fdb_error(1009):
        tr.get(b"k").wait()


def test_waiting_for_a_version_of_the_future_ends_with_the_timeout(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr.options.set_timeout(200)
    tr.set_read_version(FUTURE)
    with fdb_error(1031):
        tr.get(b"k").wait()


def test_a_version_long_past_is_too_old(any_db: Any) -> None:
    any_db[b"k"] = b"v"
    tr = any_db.create_transaction()
    tr.set_read_version(1)
    with fdb_error(TOO_OLD):
        tr.get(b"k").wait()


def test_a_commit_at_a_version_long_past_is_too_old(any_db: Any) -> None:
    any_db[b"k"] = b"v"
    tr = any_db.create_transaction()
    tr.set_read_version(1)
    tr.add_read_conflict_key(b"k")
    tr[b"x"] = b""
    assert commit_code(tr) == TOO_OLD


@pytest.mark.parametrize("version", [0, -1, -(2**63)])
def test_a_version_that_cannot_be_is_refused(any_db: Any, version: int) -> None:
    tr = any_db.create_transaction()
    tr.set_read_version(version)
    with fdb_error(2011):
        tr.get(b"k").wait()


def test_the_read_version_is_set_once(any_db: Any) -> None:
    version = committed(any_db, b"k", b"v")
    tr = any_db.create_transaction()
    tr.get_read_version().wait()
    tr.set_read_version(version)
    with fdb_error(2010):
        tr.get(b"k").wait()


def test_a_read_only_transaction_has_no_committed_version(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr[b"k"].wait()
    tr.commit().wait()
    assert tr.get_committed_version() == -1


def test_an_empty_transaction_commits(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr.commit().wait()
    assert tr.get_committed_version() == -1


@pytest.mark.slow
def test_after_five_seconds_reads_and_commits_are_too_old(any_db: Any) -> None:
    any_db[b"k"] = b"v"
    reader, writer, blind = (any_db.create_transaction() for _ in range(3))
    for tr in (reader, writer):
        assert value(tr, b"k") == b"v"
    writer[b"x"] = b"late"
    blind[b"y"] = b"in time"
    any_db[b"other"] = b"v"
    time.sleep(6.5)
    young, younger = any_db.create_transaction(), any_db.create_transaction()  # after a silence of six seconds
    for tr in (young, younger):
        assert value(tr, b"k") == b"v"
        tr[b"%d" % id(tr)] = b"v"
    assert commit_code(younger) == 0
    assert commit_code(young) == 0
    any_db[b"other"] = b"w"
    with fdb_error(TOO_OLD):
        reader.get(b"another").wait()
    with fdb_error(TOO_OLD):
        list(reader.get_range(b"a", b"z"))
    assert commit_code(writer) == TOO_OLD
    assert commit_code(blind) == 0
    assert any_db[b"x"] is None
    reader.on_error(1007).wait()
    assert value(reader, b"k") == b"v"
