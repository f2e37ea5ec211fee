"""The engine end to end in a few statements; the other files look closely."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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


@pytest.mark.parametrize(
    "call",
    [
        lambda tr: tr.set_many([(b"k", "text")]),
        lambda tr: tr.set_many([(b"k", bytearray(b"text"))]),
        lambda tr: tr.set_many([(b"k", None)]),
        lambda tr: tr.set_many([("k", b"text")]),
        lambda tr: tr.clear_many(["k"]),
        lambda tr: tr.get_many(["k"]),
        lambda tr: tr.add_read_conflict_keys(["k"]),
    ],
)
def test_bulk_calls_take_bytes_and_nothing_else(db: Any, call: Callable[[Any], object]) -> None:
    """As the single ones: it is the caller's mistake, and no commit's, or of others that would be written with it."""
    with pytest.raises(TypeError, match="must be of type bytes"):
        call(db.create_transaction())


def test_bulk_calls_take_what_stands_for_bytes(db: Any) -> None:
    space = fdb_embedded.load().Subspace(rawPrefix=b"s")
    tr = db.create_transaction()
    tr.set_many([(space, b"v")])
    assert tr.get_many([space]) == [b"v"]
    tr.clear_many([space])
    tr.commit().wait()
    assert db[b"s"] is None
