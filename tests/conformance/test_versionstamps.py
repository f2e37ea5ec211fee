"""Versionstamped keys and values, `get_versionstamp`, their offsets, errors and order."""

from __future__ import annotations

import struct
from typing import Any

import fdb
import fdb.tuple
import pytest
from tests.conformance.expect import INVALID_OPERATION, commit_code, fdb_error, keys, pairs, write_conflict_ranges

STAMP = b"\xff" * 10


def at(offset: int) -> bytes:
    return struct.pack("<i", offset)


def test_a_versionstamped_key_holds_the_commit_version(any_db: Any) -> None:
    tr = any_db.create_transaction()
    stamp = tr.get_versionstamp()
    tr.set_versionstamped_key(b"log/" + STAMP + b"/tail" + at(4), b"v")
    tr.commit().wait()
    got = bytes(stamp.wait())
    assert int.from_bytes(got[:8], "big") == tr.get_committed_version()
    assert pairs(any_db[:]) == [(b"log/" + got + b"/tail", b"v")]


def test_a_versionstamped_value_holds_the_commit_version(any_db: Any) -> None:
    tr = any_db.create_transaction()
    stamp = tr.get_versionstamp()
    tr.set_versionstamped_value(b"k", b"ab" + STAMP + b"cd" + at(2))
    tr.set_versionstamped_value(b"whole", STAMP + at(0))
    tr.commit().wait()
    got = bytes(stamp.wait())
    assert any_db[b"k"] == b"ab" + got + b"cd"
    assert any_db[b"whole"] == got


def test_stamps_grow_from_commit_to_commit(any_db: Any) -> None:
    stamps = []
    for _ in range(50):
        tr = any_db.create_transaction()
        stamps.append(tr.get_versionstamp())
        tr.set_versionstamped_key(b"log/" + STAMP + at(4), b"%d" % len(stamps))
        tr.commit().wait()
    got = [bytes(s.wait()) for s in stamps]
    assert got == sorted(set(got))
    assert [v for _, v in pairs(any_db[b"log/":b"log0"])] == [b"%d" % i for i in range(1, 51)]


def test_a_stamp_is_above_the_read_version_and_below_the_next(any_db: Any) -> None:
    tr = any_db.create_transaction()
    before = tr.get_read_version().wait()
    stamp = tr.get_versionstamp()
    tr[b"k"] = b""
    tr.commit().wait()
    version = int.from_bytes(bytes(stamp.wait())[:8], "big")
    assert before < version
    assert any_db.create_transaction().get_read_version().wait() >= version


def test_the_tuple_layer_places_stamps(any_db: Any) -> None:
    tr = any_db.create_transaction()
    stamp = tr.get_versionstamp()
    for user in range(3):
        key = fdb.tuple.pack_with_versionstamp(("log", fdb.tuple.Versionstamp(user_version=user), 7))
        tr.set_versionstamped_key(key, b"%d" % user)
    tr.set_versionstamped_value(b"ref", fdb.tuple.pack_with_versionstamp((1, fdb.tuple.Versionstamp())))
    tr.commit().wait()
    got = bytes(stamp.wait())
    found = [(fdb.tuple.unpack(k), v) for k, v in pairs(any_db.get_range_startswith(fdb.tuple.pack(("log",))))]
    assert found == [(("log", fdb.tuple.Versionstamp(got, user), 7), b"%d" % user) for user in range(3)]
    assert fdb.tuple.unpack(bytes(any_db[b"ref"])) == (1, fdb.tuple.Versionstamp(got, 0))


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"abc",
        b"k" + at(0),
        b"k" * 9 + at(0),
        b"k" + STAMP + at(2),
        b"k" + STAMP + at(-1),
        pytest.param(b"k" + STAMP + at(2**31 - 1), marks=pytest.mark.embedded_only("the client 7.3.79 crashes on it")),
        b"prefix" + STAMP + at(7),
    ],
)
def test_a_key_without_room_for_its_stamp_is_refused(any_db: Any, key: bytes) -> None:
    tr = any_db.create_transaction()
    tr.set_versionstamped_key(key, b"v")
    with fdb_error(INVALID_OPERATION):
        tr.commit().wait()


@pytest.mark.parametrize("param", [b"", b"abc", at(0), b"x" * 9 + at(0), STAMP + at(1), STAMP + at(-1), STAMP + at(99)])
def test_a_value_without_room_for_its_stamp_is_refused(any_db: Any, param: bytes) -> None:
    tr = any_db.create_transaction()
    tr.set_versionstamped_value(b"k", param)
    with fdb_error(INVALID_OPERATION):
        tr.commit().wait()


def test_a_read_only_transaction_has_no_versionstamp(any_db: Any) -> None:
    tr = any_db.create_transaction()
    stamp = tr.get_versionstamp()
    tr[b"k"].wait()
    tr.commit().wait()
    with fdb_error(2021):
        stamp.wait()


def test_a_refused_transaction_has_no_versionstamp(any_db: Any) -> None:
    tr = any_db.create_transaction()
    stamp = tr.get_versionstamp()
    tr[b"k"].wait()
    tr[b"x"] = b""
    any_db[b"k"] = b""
    assert commit_code(tr) == 1020
    with fdb_error(2020):
        stamp.wait()


def test_a_cancelled_transaction_has_no_versionstamp(any_db: Any) -> None:
    tr = any_db.create_transaction()
    stamp = tr.get_versionstamp()
    tr.cancel()
    with fdb_error(1025):
        stamp.wait()


def test_the_stamp_is_asked_for_before_the_commit(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr[b"k"] = b""
    tr.commit().wait()
    with fdb_error(2017):
        tr.get_versionstamp().wait()


def test_the_stamp_of_a_pending_transaction_is_not_ready(any_db: Any) -> None:
    tr = any_db.create_transaction()
    stamp = tr.get_versionstamp()
    tr[b"k"] = b""
    assert not stamp.is_ready()
    tr.commit().wait()
    stamp.wait()
    assert stamp.is_ready()


def test_a_stamped_key_conflicts_with_who_read_its_future_range(any_db: Any) -> None:
    def read_log(tr: Any) -> None:
        list(tr.get_range(b"log/", b"log0"))

    reader = any_db.create_transaction()
    read_log(reader)
    reader[b"other"] = b""
    writer = any_db.create_transaction()
    writer.set_versionstamped_key(b"log/" + STAMP + at(4), b"v")
    writer.commit().wait()
    assert commit_code(reader) == 1020
    assert len(keys(any_db[b"log/":b"log0"])) == 1


def test_stamped_keys_of_concurrent_transactions_do_not_conflict(any_db: Any) -> None:
    open_transactions = [any_db.create_transaction() for _ in range(5)]
    for i, tr in enumerate(open_transactions):
        tr.get_read_version().wait()
        tr.set_versionstamped_key(b"log/" + STAMP + at(4), b"%d" % i)
    for tr in open_transactions:
        assert commit_code(tr) == 0
    assert [v for _, v in pairs(any_db[b"log/":b"log0"])] == [b"%d" % i for i in range(5)]


def test_the_write_conflict_of_a_stamped_key_spans_what_it_may_become(any_db: Any) -> None:
    tr = any_db.create_transaction()
    version = tr.get_read_version().wait()
    tr.set_versionstamped_key(b"log/" + STAMP + b"x" + at(4), b"v")
    lowest = b"log/" + struct.pack(">QH", version, 0) + b"x"
    assert write_conflict_ranges(tr) == [(lowest, b"log/" + b"\xff" * 10 + b"x\x00")]


def test_a_stamp_in_a_stamped_value_conflicts_as_its_key(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr.set_versionstamped_value(b"k", STAMP + at(0))
    assert write_conflict_ranges(tr) == [(b"k", b"k\x00")]


def test_several_stamped_keys_in_one_transaction_share_the_stamp(any_db: Any) -> None:
    tr = any_db.create_transaction()
    stamp = tr.get_versionstamp()
    for name in (b"a", b"b", b"c"):
        tr.set_versionstamped_key(name + STAMP + at(1), name)
        tr.set_versionstamped_value(b"last-" + name, STAMP + at(0))
    tr.commit().wait()
    got = bytes(stamp.wait())
    assert keys(any_db[:]) == [
        b"a" + got,
        b"b" + got,
        b"c" + got,
        b"last-a",
        b"last-b",
        b"last-c",
    ]
    assert any_db[b"last-b"] == got


def _stamped(tr: Any, tail: bytes, value: bytes) -> None:
    tr.set_versionstamped_key(b"log/" + STAMP + tail + at(4), value)


def _left(any_db: Any) -> list[tuple[bytes, bytes]]:
    return [(key[14:], value) for key, value in pairs(any_db[b"log/":b"log0"])]


def test_of_stamped_keys_that_become_the_same_the_one_that_was_hidden_counts_as_earlier(any_db: Any) -> None:
    """What a stamped key hides goes to the commit before all the rest, whenever the rest was written."""
    tr = any_db.create_transaction()
    _stamped(tr, b"/b", b"first")
    tr.get_read_version().wait()  # stamped keys lie above it from now on, and hide nothing below
    _stamped(tr, b"/b", b"second")
    _stamped(tr, b"/a", b"hides the second")
    tr.commit().wait()
    assert _left(any_db) == [(b"/a", b"hides the second"), (b"/b", b"first")]


def test_a_range_that_is_cleared_takes_a_stamped_key_by_its_place_until_another_hides_it(any_db: Any) -> None:
    lowest, highest = b"log/" + b"\x00" * 10, b"log/" + STAMP
    for hidden, begin, end, left in (
        (False, b"log/", lowest + b"/z", []),  # its place alone
        (False, lowest + b"/z", highest, [b"/a"]),  # what it becomes alone
        (True, b"log/", lowest + b"/z", [b"/a"]),
        (True, lowest + b"/z", highest, []),
        (True, b"log/", b"log0", []),
    ):
        del any_db[:]
        tr = any_db.create_transaction()
        _stamped(tr, b"/a", b"")
        if hidden:
            _stamped(tr, b"/0", b"")
            tr.clear(lowest + b"/0" + at(4))  # the place of this one, which is gone with it
        tr.clear_range(begin, end)
        tr.commit().wait()
        assert [tail for tail, _ in _left(any_db)] == left, (hidden, begin, end)


def test_without_reading_its_own_writes_a_transaction_stamps_and_clears_in_the_order_of_the_calls(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr.options.set_read_your_writes_disable()
    _stamped(tr, b"/a", b"")
    tr.clear_range(b"log/", b"log0")
    _stamped(tr, b"/b", b"1")
    _stamped(tr, b"/b", b"2")
    tr.commit().wait()
    assert _left(any_db) == [(b"/b", b"2")]


def test_the_end_of_the_keys_is_known_without_a_read_version_also_where_reads_are_unreadable(any_db: Any) -> None:
    tr = any_db.create_transaction()
    assert tr.get_key(fdb.KeySelector.first_greater_or_equal(b"\xff")).wait() == b"\xff"
    tr.set_versionstamped_key(b"k" + STAMP + at(1), b"")
    with fdb_error(1036):
        list(tr.get_range(b"k" + b"\x00" * 10, b"k\x01"))
    tr.set_read_version(0)
    with fdb_error(2011):  # and not 2010, by which one had been asked for
        tr.get_read_version().wait()
