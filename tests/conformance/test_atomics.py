"""The atomic operations: every one, on absent, empty, shorter, longer and equal values, alone and stacked."""

from __future__ import annotations

import random
from typing import Any

import fdb
import pytest
from conftest import seed_params
from tests.conformance.atomics import OPERATIONS, VALUE_LIMIT
from tests.conformance.expect import (
    KEY_TOO_LARGE,
    OUTSIDE_LEGAL_RANGE,
    VALUE_TOO_LARGE,
    commit_code,
    fdb_error,
    value,
)

OLD: list[bytes | None] = [None, b"", b"\x00", b"\x01", b"\xff", b"\x01\x02", b"\xff\xff\x00", b"\x80" * 9, b"same"]
PARAMS: list[bytes] = [b"", b"\x00", b"\x01", b"\xff", b"\x02\x01", b"\x00\x00\x00", b"\xff" * 8, b"\x7f" * 11, b"same"]


def put(db: Any, key: bytes, old: bytes | None) -> None:
    if old is None:
        del db[key]
    else:
        db[key] = old


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_on_any_stored_value(any_db: Any, name: str) -> None:
    for i, old in enumerate(OLD):
        for j, param in enumerate(PARAMS):
            key = b"%d/%d" % (i, j)
            put(any_db, key, old)
            getattr(any_db, name)(key, param)
            assert any_db[key] == OPERATIONS[name](old, param), (old, param)


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_transaction_itself_sees_the_same_result(any_db: Any, name: str) -> None:
    @fdb.transactional
    def fill(tr: Any) -> None:
        for i, old in enumerate(OLD):
            if old is not None:
                tr[b"%d" % i] = old

    for param in PARAMS:
        del any_db[:]
        fill(any_db)
        tr = any_db.create_transaction()
        for i, old in enumerate(OLD):
            key = b"%d" % i
            getattr(tr, name)(key, param)
            assert value(tr, key) == OPERATIONS[name](old, param), (old, param)
            tr.set(key + b"known", old or b"")
            getattr(tr, name)(key + b"known", param)
            assert value(tr, key + b"known") == OPERATIONS[name](old or b"", param), (old, param)
        seen = [(bytes(k), bytes(v)) for k, v in tr[:]]
        tr.commit().wait()
        assert [(bytes(k), bytes(v)) for k, v in any_db[:]] == seen


@pytest.mark.parametrize("seed", seed_params(12, fresh=2, most=1000))
def test_stacks_of_operations_give_what_they_give_one_by_one(any_db: Any, seed: int) -> None:
    rng = random.Random(seed)
    names = list(OPERATIONS)
    for round_ in range(20):
        old = rng.choice(OLD)
        stack = [(rng.choice(names), rng.choice(PARAMS)) for _ in range(rng.randint(2, 6))]
        key = b"%d" % round_
        put(any_db, key, old)
        tr = any_db.create_transaction()
        if rng.random() < 0.3:
            tr.get(key).wait()
        expected = old
        for name, param in stack:
            getattr(tr, name)(key, param)
            expected = OPERATIONS[name](expected, param)
        if rng.random() < 0.5:
            assert value(tr, key) == expected, (old, stack)
        tr.commit().wait()
        assert any_db[key] == expected, (old, stack)


def test_append_stops_at_the_value_limit(any_db: Any) -> None:
    any_db[b"k"] = b"x" * (VALUE_LIMIT - 3)
    any_db.append_if_fits(b"k", b"abc")
    assert len(any_db[b"k"]) == VALUE_LIMIT
    any_db.append_if_fits(b"k", b"d")
    assert bytes(any_db[b"k"])[-4:] == b"xabc"
    tr = any_db.create_transaction()
    tr[b"j"] = b"y" * VALUE_LIMIT
    tr.append_if_fits(b"j", b"z")
    assert value(tr, b"j") == b"y" * VALUE_LIMIT


def test_compare_and_clear_leaves_other_values(any_db: Any) -> None:
    any_db[b"k"] = b"v"
    any_db.compare_and_clear(b"k", b"w")
    assert any_db[b"k"] == b"v"
    any_db.compare_and_clear(b"k", b"v")
    assert any_db[b"k"] is None
    any_db.compare_and_clear(b"k", b"")
    assert any_db[b"k"] is None


def test_counters_of_concurrent_transactions_add_up(any_db: Any) -> None:
    open_transactions = [any_db.create_transaction() for _ in range(20)]
    for tr in open_transactions:
        tr.get_read_version().wait()
        tr.add(b"n", (1).to_bytes(8, "little"))
    for tr in open_transactions:
        assert commit_code(tr) == 0
    assert int.from_bytes(bytes(any_db[b"n"]), "little") == 20


@pytest.mark.parametrize("number", [3, 4, 5, 10, 11, 100, 255])
def test_an_unknown_operation_is_refused(any_db: Any, number: int) -> None:
    tr = any_db.create_transaction()
    tr._atomic_operation(number, b"k", b"v")
    with fdb_error(2018):
        tr.commit().wait()


def test_operands_and_keys_have_the_limits_of_sets(any_db: Any) -> None:
    for key, param, code in [
        (b"k" * 10_001, b"v", KEY_TOO_LARGE),
        (b"k", b"v" * 100_001, VALUE_TOO_LARGE),
        (b"\xff", b"v", OUTSIDE_LEGAL_RANGE),
    ]:
        tr = any_db.create_transaction()
        tr.add(key, param)
        with fdb_error(code):
            tr.commit().wait()
