"""The directory layer: paths, moves, partitions, layers, and its allocator under concurrency."""

from __future__ import annotations

import threading
from typing import Any

import fdb
import pytest
from tests.conformance.expect import WAIT, keys


@pytest.fixture
def root(any_db: Any) -> Any:
    """A fresh directory layer of the database."""
    del any_db  # the binding has its API version, and with it the directory layer, once a database is open
    return fdb.DirectoryLayer()


def test_directories_are_created_opened_and_listed(any_db: Any, root: Any) -> None:
    users = root.create_or_open(any_db, ("app", "users"))
    assert users.get_path() == ("app", "users")
    assert root.open(any_db, ("app", "users")).key() == users.key()
    assert root.list(any_db) == ["app"]
    assert root.list(any_db, "app") == ["users"]
    assert root.exists(any_db, ("app", "users"))
    assert not root.exists(any_db, ("app", "none"))
    any_db[users.pack((1,))] = b"v"
    assert [users.unpack(k) for k in keys(any_db[users.range()])] == [(1,)]


def test_creating_twice_and_opening_nothing_are_errors(any_db: Any, root: Any) -> None:
    root.create(any_db, "a")
    with pytest.raises(ValueError, match="already exists"):
        root.create(any_db, "a")
    with pytest.raises(ValueError, match="does not exist"):
        root.open(any_db, "b")
    with pytest.raises(ValueError, match="does not exist"):
        root.list(any_db, "b")
    assert root.remove_if_exists(any_db, "b") is False
    with pytest.raises(ValueError, match="does not exist"):
        root.remove(any_db, "b")


def test_a_directory_has_the_layer_it_was_created_with(any_db: Any, root: Any) -> None:
    root.create(any_db, "queue", layer=b"queue")
    assert root.open(any_db, "queue", layer=b"queue").get_layer() == b"queue"
    with pytest.raises(ValueError, match="layer"):
        root.open(any_db, "queue", layer=b"table")


def test_a_move_keeps_the_contents(any_db: Any, root: Any) -> None:
    old = root.create(any_db, ("a", "b"))
    any_db[old.pack(("x",))] = b"v"
    root.create(any_db, "c")
    new = root.move(any_db, ("a", "b"), ("c", "d"))
    assert new.key() == old.key()
    assert any_db[new.pack(("x",))] == b"v"
    assert root.list(any_db, "a") == []
    assert root.list(any_db, "c") == ["d"]
    with pytest.raises(ValueError, match=r"subdirectory|itself"):
        root.move(any_db, "c", ("c", "d", "e"))
    with pytest.raises(ValueError, match="exist"):
        root.move(any_db, ("c", "d"), ("none", "d"))


def test_removing_a_directory_removes_all_in_it(any_db: Any, root: Any) -> None:
    top = root.create(any_db, "top")
    deep = root.create(any_db, ("top", "mid", "deep"))
    any_db[top.pack((1,))] = b"v"
    any_db[deep.pack((1,))] = b"v"
    root.remove(any_db, "top")
    assert root.list(any_db) == []
    assert any_db[top.pack((1,))] is None
    assert any_db[deep.pack((1,))] is None


def test_partitions_hold_their_own_directories(any_db: Any, root: Any) -> None:
    part = root.create(any_db, "part", layer=b"partition")
    inside = part.create_or_open(any_db, ("x", "y"))
    assert inside.get_path() == ("part", "x", "y")
    assert part.list(any_db) == ["x"]
    root.create(any_db, "outside")
    with pytest.raises(ValueError, match="partition"):
        root.move(any_db, "outside", ("part", "outside"))
    with pytest.raises(Exception, match="partition"):
        part.pack((1,))
    root.remove(any_db, "part")
    assert root.list(any_db) == ["outside"]


def test_prefixes_are_short_and_never_shared(any_db: Any, root: Any) -> None:
    prefixes = [root.create(any_db, f"d{i}").key() for i in range(60)]
    assert len(set(prefixes)) == 60
    assert max(map(len, prefixes)) <= 3
    for one in prefixes:
        assert not any(other != one and other.startswith(one) for other in prefixes)


def test_a_manual_prefix_must_be_free(any_db: Any) -> None:
    root = fdb.DirectoryLayer(allow_manual_prefixes=True)
    root.create(any_db, "a", prefix=b"\x10abc")
    with pytest.raises(ValueError, match="prefix"):
        root.create(any_db, "b", prefix=b"\x10abcd")
    with pytest.raises(ValueError, match="prefix"):
        root.create(any_db, "c", prefix=b"\x10")


def test_concurrent_allocations_are_distinct(any_db: Any, root: Any) -> None:
    made: list[bytes] = []
    errors: list[BaseException] = []

    def allocate(number: int) -> None:
        try:
            for i in range(8):
                made.append(root.create_or_open(any_db, f"{number}/{i}").key())
        except BaseException as error:
            errors.append(error)

    root.create_or_open(any_db, "first")
    threads = [threading.Thread(target=allocate, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert not errors
    assert len(made) == len(set(made)) == 48
    for one in made:
        assert not any(other != one and other.startswith(one) for other in made)


def test_one_name_is_created_once_by_many(any_db: Any, root: Any) -> None:
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(root.create_or_open(any_db, ("same", "path")).key()))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert len(found) == 6
    assert len(set(found)) == 1


def test_directories_take_part_in_transactions(any_db: Any, root: Any) -> None:
    tr = any_db.create_transaction()
    space = root.create(tr, "pending")
    tr[space.pack((1,))] = b"v"
    assert root.exists(tr, "pending")
    assert not root.exists(any_db, "pending")
    tr.commit().wait()
    assert root.exists(any_db, "pending")
    assert any_db[space.pack((1,))] == b"v"
