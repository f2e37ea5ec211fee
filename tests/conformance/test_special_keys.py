"""`\\xff/metadataVersion` and the keys above `\\xff\\xff`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.conformance.expect import (
    INVALID_OPERATION,
    OUTSIDE_LEGAL_RANGE,
    READ_CONFLICTS,
    UNREADABLE,
    WRITE_CONFLICTS,
    commit_code,
    fdb_error,
    pairs,
    read_conflict_ranges,
    value,
    write_conflict_ranges,
)

METADATA_VERSION = b"\xff/metadataVersion"
REQUIRED = b"\x00" * 14


def bump(db: Any) -> bytes:
    tr = db.create_transaction()
    stamp = tr.get_versionstamp()
    tr.set_versionstamped_value(METADATA_VERSION, REQUIRED)
    tr.commit().wait()
    return bytes(stamp.wait())


def test_the_metadata_version_is_the_stamp_of_its_last_change(any_db: Any) -> None:
    for _ in range(3):
        stamp = bump(any_db)
        assert value(any_db.create_transaction(), METADATA_VERSION) == stamp
        assert value(any_db.create_transaction().snapshot, METADATA_VERSION) == stamp


def test_the_metadata_version_needs_no_option(any_db: Any) -> None:
    bump(any_db)
    tr = any_db.create_transaction()
    assert len(value(tr, METADATA_VERSION) or b"") == 10
    tr[b"k"] = b"v"
    assert commit_code(tr) == 0


def test_a_change_of_the_metadata_version_conflicts_with_who_read_it(any_db: Any) -> None:
    bump(any_db)
    tr = any_db.create_transaction()
    value(tr, METADATA_VERSION)
    tr[b"k"] = b"v"
    bump(any_db)
    assert commit_code(tr) == 1020


@pytest.mark.parametrize("param", [b"", b"\x00" * 13, b"\x01" + b"\x00" * 13, b"\x00" * 15])
def test_the_metadata_version_is_only_stamped(any_db: Any, param: bytes) -> None:
    tr = any_db.create_transaction()
    tr.set_versionstamped_value(METADATA_VERSION, param)
    with fdb_error(INVALID_OPERATION):
        tr.commit().wait()


def test_the_metadata_version_is_not_set_nor_added_to(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr[METADATA_VERSION] = b"v"
    with fdb_error(INVALID_OPERATION):
        tr.commit().wait()
    tr = any_db.create_transaction()
    tr.add(METADATA_VERSION, b"\x01")
    with fdb_error(INVALID_OPERATION):
        tr.commit().wait()
    tr = any_db.create_transaction()
    tr.clear(METADATA_VERSION)
    with fdb_error(OUTSIDE_LEGAL_RANGE):
        tr.commit().wait()


def test_an_own_change_of_the_metadata_version_is_unreadable(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr.set_versionstamped_value(METADATA_VERSION, REQUIRED)
    with fdb_error(UNREADABLE):
        tr.get(METADATA_VERSION).wait()


def test_the_metadata_version_can_be_watched(any_db: Any) -> None:
    bump(any_db)
    tr = any_db.create_transaction()
    watch = tr.watch(METADATA_VERSION)
    tr.commit().wait()
    assert not watch.is_ready()
    bump(any_db)
    watch.wait()


def test_the_status_is_json(any_db: Any) -> None:
    status = json.loads(value(any_db.create_transaction(), b"\xff\xff/status/json") or b"")
    assert status["client"]["database_status"]["available"] is True


def test_conflict_ranges_show_their_borders(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr.get(b"a").wait()
    list(tr.get_range(b"c", b"e"))
    tr[b"x"] = b""
    tr.clear_range(b"m", b"p")
    assert pairs(tr.get_range(READ_CONFLICTS, READ_CONFLICTS + b"\xff\xff")) == [
        (READ_CONFLICTS + b"a", b"1"),
        (READ_CONFLICTS + b"a\x00", b"0"),
        (READ_CONFLICTS + b"c", b"1"),
        (READ_CONFLICTS + b"e", b"0"),
    ]
    rows = pairs(tr.get_range(WRITE_CONFLICTS, WRITE_CONFLICTS + b"\xff\xff"))
    assert [row for row in rows if row[0] != WRITE_CONFLICTS] == [
        (WRITE_CONFLICTS + b"m", b"1"),
        (WRITE_CONFLICTS + b"p", b"0"),
        (WRITE_CONFLICTS + b"x", b"1"),
        (WRITE_CONFLICTS + b"x\x00", b"0"),
    ]


def test_looking_at_conflict_ranges_adds_none(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr.get(b"a").wait()
    for _ in range(3):
        assert read_conflict_ranges(tr) == [(b"a", b"a\x00")]
        assert write_conflict_ranges(tr) == []


def test_conflict_ranges_are_still_there_after_the_commit(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr.get(b"a").wait()
    tr[b"x"] = b""
    tr.commit().wait()
    assert read_conflict_ranges(tr) == [(b"a", b"a\x00")]
    assert (b"x", b"x\x00") in write_conflict_ranges(tr)
    tr.reset()
    assert read_conflict_ranges(tr) == []


def test_an_unknown_special_key_is_refused(any_db: Any) -> None:
    tr = any_db.create_transaction()
    with fdb_error(2113):
        tr.get(b"\xff\xff/no-such-module/x").wait()


def test_a_range_over_several_modules_is_refused(any_db: Any) -> None:
    tr = any_db.create_transaction()
    with fdb_error(2112):
        list(tr.get_range(READ_CONFLICTS, b"\xff\xff/worker_interfaces/a"))


def test_special_keys_are_not_written(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr[b"\xff\xff/transaction/x"] = b"v"
    with fdb_error(2114):
        tr.commit().wait()
