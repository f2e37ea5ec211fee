"""The bulk calls do what the single ones would, on a transaction that has them and on one that hasn't."""

from __future__ import annotations

from typing import Any

import pytest

from fdb_schema import add_read_conflict_keys, clear_many, get_many, is_fdb_error, open_database, read_range, set_many


class WithoutBulk:
    """A transaction with only the official binding's methods."""

    def __init__(self, tr: Any) -> None:
        self._tr = tr

    def __getattr__(self, name: str) -> Any:
        if name in {"set_many", "clear_many", "get_many", "read_range", "add_read_conflict_keys"}:
            raise AttributeError(name)
        return getattr(self._tr, name)


@pytest.fixture(params=["bulk", "single"])
def begin(request: pytest.FixtureRequest, any_url: str) -> Any:
    db = open_database(any_url)

    def start() -> Any:
        tr = db.create_transaction()
        return tr if request.param == "bulk" else WithoutBulk(tr)

    return start


P = b"bulk/"


def test_rows_are_set_read_and_cleared(begin: Any) -> None:
    tr = begin()
    tr.clear_range(P, P + b"\xff")
    set_many(tr, ((P + b"%d" % n, b"v%d" % n) for n in range(5)))
    assert get_many(tr, [P + b"3", P + b"9", P + b"0"]) == [b"v3", None, b"v0"]
    clear_many(tr, [P + b"3"])
    assert read_range(tr, P, P + b"\xff", limit=2, reverse=True) == [(P + b"4", b"v4"), (P + b"2", b"v2")]
    tr.commit().wait()
    tr = begin()
    assert [k for k, _ in read_range(tr, P, P + b"\xff")] == [P + b"%d" % n for n in (0, 1, 2, 4)]
    assert read_range(tr, P, P + b"1", snapshot=True) == [(P + b"0", b"v0")]


@pytest.mark.parametrize("read", ["get_many", "read_range", "add_read_conflict_keys"])
def test_serializable_reads_conflict(begin: Any, read: str) -> None:
    tr = begin()
    if read == "get_many":
        get_many(tr, [P + b"a"])
    elif read == "read_range":
        read_range(tr, P, P + b"b")
    else:
        tr.get_read_version().wait()
        add_read_conflict_keys(tr, [P + b"a"])
    other = begin()
    other.set(P + b"a", b"new")
    other.commit().wait()
    tr.set(P + b"mine", b"")
    with pytest.raises(Exception) as caught:
        tr.commit().wait()
    assert is_fdb_error(caught.value, 1020)


def test_snapshot_reads_do_not_conflict(begin: Any) -> None:
    tr = begin()
    get_many(tr, [P + b"a"], snapshot=True)
    read_range(tr, P, P + b"b", snapshot=True)
    other = begin()
    other.set(P + b"a", b"newer")
    other.commit().wait()
    tr.set(P + b"mine", b"")
    tr.commit().wait()
    assert begin().get(P + b"mine").present()
