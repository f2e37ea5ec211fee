"""Reading, writing and clearing single keys, through transactions, databases and their dictionary syntax."""

from __future__ import annotations

from typing import Any

import fdb
import pytest
from tests.conformance.expect import OUTSIDE_LEGAL_RANGE, fdb_error, value


def test_an_absent_key_has_no_value(any_db: Any) -> None:
    tr = any_db.create_transaction()
    assert not tr.get(b"absent").present()
    assert tr[b"absent"] == None  # noqa: E711  the binding's Value compares with None
    assert any_db[b"absent"] is None
    assert any_db.get(b"absent") is None


def test_a_committed_value_is_read_by_the_next_transaction(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr[b"k"] = b"v"
    tr.commit().wait()
    later = any_db.create_transaction()
    assert later[b"k"].wait() == b"v"


def test_nothing_is_seen_before_its_commit(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr[b"k"] = b"v"
    assert any_db[b"k"] is None
    del tr
    assert any_db[b"k"] is None


def test_an_empty_value_is_a_value(any_db: Any) -> None:
    any_db[b"k"] = b""
    assert any_db[b"k"] == b""
    assert any_db.create_transaction().get(b"k").present()


def test_the_empty_key_is_a_key(any_db: Any) -> None:
    any_db[b""] = b"v"
    assert any_db[b""] == b"v"
    assert [kv.key for kv in any_db.get_range(b"", b"\xff")] == [b""]
    del any_db[b""]
    assert any_db[b""] is None


@pytest.mark.parametrize(
    "key", [b"\x00", b"a\x00", b"\x00\x00\xff", b"\xfe\xff\xff", b"x" * 509, b"x" * 510, b"x" * 511]
)
def test_any_bytes_make_a_key(any_db: Any, key: bytes) -> None:
    any_db[key] = b"1"
    any_db[key + b"\x00"] = b"2"
    assert any_db[key] == b"1"
    assert any_db[key + b"\x00"] == b"2"
    del any_db[key]
    assert any_db[key] is None
    assert any_db[key + b"\x00"] == b"2"


def test_the_last_of_several_writes_wins(any_db: Any) -> None:
    @fdb.transactional
    def several(tr: Any) -> None:
        tr[b"k"] = b"1"
        del tr[b"k"]
        tr[b"k"] = b"2"
        tr.set(b"k", b"3")

    several(any_db)
    assert any_db[b"k"] == b"3"


def test_clear_and_del_remove_one_key(any_db: Any) -> None:
    for key in (b"a", b"a\x00", b"b"):
        any_db[key] = b"v"
    any_db.clear(b"a")
    assert any_db[b"a"] is None
    assert any_db[b"a\x00"] == b"v"
    del any_db[b"b"]
    assert any_db[b"b"] is None


def test_clear_range_takes_its_begin_and_leaves_its_end(any_db: Any) -> None:
    for key in (b"a", b"b", b"b\x00", b"c", b"d"):
        any_db[key] = b"v"
    any_db.clear_range(b"b", b"d")
    assert [kv.key for kv in any_db.get_range(b"", b"\xff")] == [b"a", b"d"]


def test_slices_read_and_clear_ranges(any_db: Any) -> None:
    @fdb.transactional
    def fill(tr: Any) -> None:
        for i in range(5):
            tr[b"k%d" % i] = b"%d" % i

    fill(any_db)
    assert [kv.value for kv in any_db[b"k1":b"k4"]] == [b"1", b"2", b"3"]
    assert [kv.value for kv in any_db[b"k1":b"k4":-1]] == [b"3", b"2", b"1"]
    del any_db[b"k1":b"k4"]
    assert [kv.value for kv in any_db[b"k":b"l"]] == [b"0", b"4"]


def test_open_slices_reach_the_ends_of_the_user_keys(any_db: Any) -> None:
    any_db[b""] = b"first"
    any_db[b"\xfe\xff"] = b"last"
    assert [kv.value for kv in any_db[:]] == [b"first", b"last"]
    assert [kv.value for kv in any_db[b"a":]] == [b"last"]
    assert [kv.value for kv in any_db[:b"a"]] == [b"first"]


def test_prefixes_read_and_clear(any_db: Any) -> None:
    for key in (b"a", b"ab", b"ab\xff", b"ac"):
        any_db[key] = key
    assert [kv.key for kv in any_db.get_range_startswith(b"ab")] == [b"ab", b"ab\xff"]
    any_db.clear_range_startswith(b"ab")
    assert [kv.key for kv in any_db[:]] == [b"a", b"ac"]


def test_a_transactional_function_commits_and_returns(any_db: Any) -> None:
    @fdb.transactional
    def bump(tr: Any, by: int) -> int:
        tr[b"n"] = b"%d" % (int(value(tr, b"n") or b"0") + by)
        return by

    assert bump(any_db, 3) == 3
    assert bump(any_db, by=4) == 4
    assert any_db[b"n"] == b"7"


def test_transactional_functions_compose_in_one_transaction(any_db: Any) -> None:
    @fdb.transactional
    def put(tr: Any, key: bytes) -> None:
        tr[key] = b"v"

    @fdb.transactional
    def both(tr: Any) -> None:
        put(tr, b"a")
        put(tr, b"b")
        raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        both(any_db)
    assert any_db[b"a"] is None
    assert any_db[b"b"] is None


def test_a_transactional_function_repeats_after_a_conflict(any_db: Any) -> None:
    attempts = []

    @fdb.transactional
    def increment(tr: Any) -> None:
        n = int(value(tr, b"n") or b"0")
        if not attempts:
            any_db[b"n"] = b"10"
        attempts.append(n)
        tr[b"n"] = b"%d" % (n + 1)

    increment(any_db)
    assert attempts == [0, 10]
    assert any_db[b"n"] == b"11"


def test_generators_are_refused_by_transactional(any_db: Any) -> None:
    @fdb.transactional
    def yields(tr: Any) -> Any:
        yield 0

    @fdb.transactional
    def returns_generator(tr: Any) -> Any:
        return (x for x in [tr])

    with pytest.raises(ValueError, match="Generators"):
        yields(any_db)
    with pytest.raises(ValueError, match="Generators"):
        returns_generator(any_db)


def test_objects_with_as_foundationdb_key_and_value_are_accepted(any_db: Any) -> None:
    class Wrapped:
        def as_foundationdb_key(self) -> bytes:
            return b"wrapped-key"

        def as_foundationdb_value(self) -> bytes:
            return b"wrapped-value"

    tr = any_db.create_transaction()
    tr[Wrapped()] = Wrapped()
    tr.commit().wait()
    assert any_db[b"wrapped-key"] == b"wrapped-value"
    assert any_db[Wrapped()] == b"wrapped-value"


def test_text_is_refused_as_a_key_or_a_value(any_db: Any) -> None:
    tr = any_db.create_transaction()
    with pytest.raises(TypeError):
        tr["text"]
    with pytest.raises(TypeError):
        tr.set("text", b"v")
    with pytest.raises(TypeError):
        tr.set(b"k", "text")


def test_a_transaction_belongs_to_one_snapshot(any_db: Any) -> None:
    any_db[b"a"] = b"1"
    any_db[b"b"] = b"1"
    tr = any_db.create_transaction()
    assert tr[b"a"].wait() == b"1"
    any_db[b"a"] = b"2"
    any_db[b"b"] = b"2"
    any_db[b"c"] = b"2"
    assert tr[b"a"].wait() == b"1"
    assert tr[b"b"].wait() == b"1"
    assert not tr[b"c"].present()
    assert [kv.value for kv in tr[:]] == [b"1", b"1"]
    assert tr.get_key(fdb.KeySelector.last_less_than(b"\xff")).wait() == b"b"


def test_commits_are_seen_by_transactions_that_begin_later(any_db: Any) -> None:
    for i in range(20):
        tr = any_db.create_transaction()
        tr[b"k"] = b"%d" % i
        tr.commit().wait()
        later = any_db.create_transaction()  # held: its reads end with it
        assert later[b"k"].wait() == b"%d" % i


def test_a_value_of_every_byte_comes_back(any_db: Any) -> None:
    data = bytes(range(256)) * 300
    any_db[b"k"] = data
    assert any_db[b"k"] == data


def test_long_values_and_many_keys_survive_together(any_db: Any) -> None:
    @fdb.transactional
    def fill(tr: Any) -> None:
        for i in range(500):
            tr[b"%05d" % i] = b"x" * (i * 7 % 1000)

    fill(any_db)
    rows = list(any_db[:])
    assert [kv.key for kv in rows] == [b"%05d" % i for i in range(500)]
    assert [len(kv.value) for kv in rows] == [i * 7 % 1000 for i in range(500)]


def test_long_keys_sort_among_short_ones(any_db: Any) -> None:
    stem = b"p" * 505
    wanted = sorted(
        [stem + bytes([a]) * n for a in (0, 1, 0x7F, 0xFF) for n in (1, 4, 5, 6, 7, 100, 5000)] + [stem, b"p", b"q"]
    )

    @fdb.transactional
    def fill(tr: Any) -> None:
        for key in wanted:
            tr[key] = key[-9:]

    fill(any_db)
    assert [(bytes(kv.key), bytes(kv.value)) for kv in any_db[:]] == [(k, k[-9:]) for k in wanted]
    assert [bytes(kv.key) for kv in any_db[::-1]] == wanted[::-1]
    for begin in wanted[::5]:
        for end in wanted[::6]:
            found = [bytes(kv.key) for kv in any_db[begin:end]] if begin <= end else []
            assert found == [k for k in wanted if begin <= k < end]
    middle, last = wanted[7], wanted[-4]
    any_db.clear_range(middle, last)
    assert [bytes(kv.key) for kv in any_db[:]] == [k for k in wanted if not middle <= k < last]


def test_system_keys_need_an_option(any_db: Any) -> None:
    tr = any_db.create_transaction()
    with fdb_error(OUTSIDE_LEGAL_RANGE):
        tr.get(b"\xff").wait()
    with fdb_error(OUTSIDE_LEGAL_RANGE):
        tr.get(b"\xff/x").wait()
    tr = any_db.create_transaction()
    tr.options.set_read_system_keys()
    assert not tr.get(b"\xff/mainspring-absent").present()


def test_read_helpers_of_the_snapshot_view(any_db: Any) -> None:
    any_db[b"a"] = b"1"
    any_db[b"b"] = b"2"
    tr = any_db.create_transaction()
    view = tr.snapshot
    assert view[b"a"] == b"1"
    assert view.get(b"b").wait() == b"2"
    assert [kv.value for kv in view[b"a":b"c"]] == [b"1", b"2"]
    assert [kv.key for kv in view.get_range_startswith(b"a")] == [b"a"]
    assert view.get_key(fdb.KeySelector.first_greater_than(b"a")) == b"b"
    assert view.get_read_version().wait() == tr.get_read_version().wait()
