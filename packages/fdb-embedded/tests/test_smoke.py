"""The engine end to end in a few statements; the other files look closely."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fdb_embedded


@pytest.fixture(params=["memory", "directory"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    database = fdb_embedded.open(":memory:" if request.param == "memory" else tmp_path / "db")
    yield database
    fdb_embedded.close(database)


def test_what_is_set_is_read_and_ranges_are_ordered(db: Any) -> None:
    db[b"b"] = b"2"
    db[b"a"] = b"1"
    db[b""] = b"empty"
    db[b"k" * 5000] = b"long"
    assert [(row.key, row.value) for row in db.get_range(b"", b"\xff")] == [
        (b"", b"empty"),
        (b"a", b"1"),
        (b"b", b"2"),
        (b"k" * 5000, b"long"),
    ]


def test_two_writers_of_what_both_read_conflict(db: Any) -> None:
    fdb = fdb_embedded.load()
    first, second = db.create_transaction(), db.create_transaction()
    assert first[b"a"] == second[b"a"]
    first[b"a"] = b"1"
    second[b"a"] = b"2"
    first.commit().wait()
    with pytest.raises(fdb.FDBError) as error:
        second.commit().wait()
    assert error.value.code == 1020


def test_directory_layer(db: Any) -> None:
    fdb = fdb_embedded.load()
    made = fdb.directory.create_or_open(db, ("a", "b"))
    assert fdb.directory.open(db, ("a", "b")).key() == made.key()
