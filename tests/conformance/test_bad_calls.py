"""A bad call is reported by the next read or the commit, not where it was made, and until the transaction is reset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.conformance.expect import (
    INVALID_OPERATION,
    INVERTED_RANGE,
    KEY_TOO_LARGE,
    OUTSIDE_LEGAL_RANGE,
    VALUE_TOO_LARGE,
    commit_code,
    fdb_error,
    value,
)

BAD: dict[str, tuple[Callable[[Any], object], int]] = {
    "a system key": (lambda tr: tr.set(b"\xff", b""), OUTSIDE_LEGAL_RANGE),
    "a long key": (lambda tr: tr.set(b"k" * 10_001, b""), KEY_TOO_LARGE),
    "a long value": (lambda tr: tr.set(b"k", b"v" * 100_001), VALUE_TOO_LARGE),
    "an inverted clear": (lambda tr: tr.clear_range(b"b", b"a"), INVERTED_RANGE),
    "an unknown operation": (lambda tr: tr._atomic_operation(99, b"k", b"v"), 2018),
    "a stamp without room": (lambda tr: tr.set_versionstamped_key(b"k", b"v"), INVALID_OPERATION),
    "a system conflict range": (lambda tr: tr.add_write_conflict_key(b"\xff/x"), OUTSIDE_LEGAL_RANGE),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_call_is_reported_later(any_db: Any, case: str) -> None:
    call, code = BAD[case]
    any_db[b"a"] = b"v"
    tr = any_db.create_transaction()
    call(tr)
    tr[b"x"] = b"not written"
    with fdb_error(code):
        tr.get(b"a").wait()
    with fdb_error(code):
        list(tr.get_range(b"a", b"b"))
    with fdb_error(code):
        tr.commit().wait()
    assert any_db[b"x"] is None
    tr.reset()
    assert value(tr, b"a") == b"v"
    tr[b"x"] = b"written"
    assert commit_code(tr) == 0


@pytest.mark.parametrize("case", BAD)
def test_a_bad_call_is_not_retried(any_db: Any, case: str) -> None:
    call, code = BAD[case]
    tr = any_db.create_transaction()
    call(tr)
    error = None
    try:
        tr.commit().wait()
    except Exception as raised:
        error = raised
    assert error is not None
    with fdb_error(code):
        tr.on_error(error).wait()
    with fdb_error(code):
        tr.get_read_version().wait()


def test_a_bad_read_spoils_nothing(any_db: Any) -> None:
    tr = any_db.create_transaction()
    with fdb_error(OUTSIDE_LEGAL_RANGE):
        tr.get(b"\xff").wait()
    with fdb_error(OUTSIDE_LEGAL_RANGE):
        list(tr.get_range(b"\xff\x01", b"\xff\x02"))
    tr[b"k"] = b"v"
    assert commit_code(tr) == 0


def test_no_operation_is_possible_after_the_commit_until_a_reset(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr[b"k"] = b"v"
    tr.commit().wait()
    with fdb_error(2017):
        tr.get(b"k").wait()
    with fdb_error(2017):
        tr.commit().wait()
    tr.reset()
    assert value(tr, b"k") == b"v"


def test_a_write_after_the_commit_is_reported(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr[b"k"] = b"v"
    tr.commit().wait()
    tr[b"k"] = b"late"
    with fdb_error(2017):
        tr.commit().wait()
    assert any_db[b"k"] == b"v"


def test_the_committed_version_is_still_known_after_the_commit(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr[b"k"] = b"v"
    assert tr.get_committed_version() == -1
    read_version = tr.get_read_version().wait()
    tr.commit().wait()
    assert tr.get_committed_version() > read_version
    assert tr.get_read_version().wait() == read_version
