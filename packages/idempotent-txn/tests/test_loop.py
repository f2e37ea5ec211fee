"""The retry loop where nothing is lost: values, composition, retries, deadlines."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fdb_schema import fdb_error_code
from idempotent_txn import (
    Committed,
    IdempotencyIdError,
    StrategyError,
    TransactionTimedOut,
    commit_result,
    run,
    run_committed,
    transactional,
)
from idempotent_txn.attempts.backoff import FIRST_PAUSE, LONGEST_PAUSE, pause_before

STRATEGIES: list[Any] = [None, "native", "lanes", "ids", "off"]


def count(value: bytes | None) -> int:
    return int.from_bytes(value or b"", "little")


def increment(tr: Any, key: bytes) -> int:
    n = count(tr[key].value) + 1
    tr[key] = n.to_bytes(8, "little")
    return n


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_run_returns_what_the_body_returned_and_commits_once(any_db: Any, strategy: Any) -> None:
    assert [run(any_db, increment, b"n", strategy=strategy) for _ in range(5)] == [1, 2, 3, 4, 5]
    assert run(any_db, lambda tr, *, key: tr[key].value, key=b"n", strategy=strategy) == (5).to_bytes(8, "little")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_contended_increments_of_many_threads_all_count_once(any_db: Any, strategy: Any) -> None:
    def work() -> None:
        for _ in range(25):
            run(any_db, increment, b"n", strategy=strategy)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert count(any_db[b"n"]) == 150


@pytest.mark.parametrize("strategy", ["native", "lanes", "ids"])
def test_run_committed_tells_the_place_in_the_order_of_commits(any_db: Any, strategy: Any) -> None:
    first = run_committed(any_db, increment, b"n", strategy=strategy)
    second = run_committed(any_db, increment, b"n", strategy=strategy)
    assert (first.value, second.value) == (1, 2)
    assert isinstance(first.commit, Committed) and isinstance(second.commit, Committed)
    assert first.commit.versionstamp < second.commit.versionstamp
    assert second.commit.version == int.from_bytes(second.commit.versionstamp[:8], "big")

    def stamp(tr: Any) -> None:
        tr.set_versionstamped_value(b"stamp", bytes(10) + (0).to_bytes(4, "little"))

    third = run_committed(any_db, stamp, strategy=strategy)
    assert third.commit is not None
    assert bytes(any_db[b"stamp"]) == third.commit.versionstamp


@pytest.mark.parametrize("strategy", ["native", "lanes", "ids"])
def test_a_transaction_that_only_reads_has_no_commit_and_leaves_nothing_behind(any_db: Any, strategy: Any) -> None:
    outcome = run_committed(any_db, lambda tr: tr[b"absent"].value, strategy=strategy)
    assert (outcome.value, outcome.commit, outcome.attempts) == (None, None, 1)
    assert list(any_db.get_range(b"", b"\xff")) == []


def test_transactional_runs_with_a_database_and_composes_with_a_transaction(any_db: Any) -> None:
    @transactional
    def move(tr: Any, source: bytes, target: bytes) -> tuple[int, int]:
        """Docstring."""
        return step(tr, source), step(tr, target)

    @transactional(strategy="lanes", timeout=60)
    def step(tr: Any, key: bytes) -> int:
        return increment(tr, key)

    @transactional(parameter="txn")
    def second_place(key: bytes, txn: Any, *, by: int = 1) -> int:
        return increment(txn, key) * by

    assert move(any_db, b"a", b"b") == (1, 1)
    assert step(any_db, b"a") == 2
    assert step(any_db, key=b"a") == 3
    assert step(tr=any_db, key=b"a") == 4
    assert second_place(b"a", any_db, by=10) == 50
    assert second_place(b"a", txn=any_db) == 6
    assert run(any_db, move, b"a", b"b") == (7, 2)
    assert move.__name__ == "move" and move.__doc__ == "Docstring."


def test_composed_functions_are_one_transaction(any_db: Any) -> None:
    @transactional
    def inner(tr: Any) -> None:
        tr[b"inner"] = b"x"

    @transactional
    def outer(tr: Any) -> None:
        inner(tr)
        raise LookupError("after the inner one")

    with pytest.raises(LookupError):
        outer(any_db)
    assert any_db[b"inner"] is None


def test_what_can_only_run_after_its_transaction_is_refused(any_db: Any) -> None:
    def generator(tr: Any) -> Any:
        yield tr[b"a"]

    async def coroutine(tr: Any) -> None: ...

    with pytest.raises(TypeError, match="generator"):
        transactional(generator)
    with pytest.raises(TypeError, match="coroutine"):
        transactional(coroutine)
    with pytest.raises(TypeError, match="generator"):
        run(any_db, generator)
    with pytest.raises(TypeError, match="no argument 'txn'"):
        transactional(parameter="txn")(increment)


def test_an_exception_of_the_body_comes_out_as_it_is_and_nothing_is_committed(any_db: Any) -> None:
    def body(tr: Any) -> None:
        tr[b"a"] = b"x"
        raise LookupError("mine")

    for strategy in STRATEGIES:
        with pytest.raises(LookupError, match="mine"):
            run(any_db, body, strategy=strategy)
    assert list(any_db.get_range(b"\x16", b"\xff")) == []


def test_errors_that_no_retry_helps_are_raised(any_db: Any) -> None:
    calls = 0

    def body(tr: Any) -> None:
        nonlocal calls
        calls += 1
        tr[b"k" * 10_001] = b"x"

    for strategy in STRATEGIES:
        calls = 0
        with pytest.raises(Exception) as caught:
            run(any_db, body, strategy=strategy)
        assert (fdb_error_code(caught.value), calls) == (2102, 1)


@pytest.mark.parametrize("code", [1007, 1009, 1020, 1037])
@pytest.mark.parametrize("strategy", ["native", "lanes", "ids", "off"])
def test_commits_that_certainly_failed_run_the_body_again(injected: Any, marked: Any, strategy: Any, code: int) -> None:
    injected.injector.next(("before", code), ("before", code))

    def body(tr: Any) -> int:
        marked(tr)
        return increment(tr, b"n")

    outcome = run_committed(injected, body, strategy=strategy)
    assert (outcome.value, outcome.attempts) == (1, 3)
    assert count(injected[b"n"]) == 1


def test_errors_of_reads_in_the_body_run_it_again(injected: Any) -> None:
    errors = [1007, 1009, 1020, 1021, 1037]

    def body(tr: Any) -> int:
        if errors:
            raise injected.injector.fdb_error(errors.pop())
        return increment(tr, b"n")

    assert run(injected, body) == 1
    with pytest.raises(Exception) as caught:
        run(injected, lambda tr: (_ for _ in ()).throw(injected.injector.fdb_error(2004)))
    assert fdb_error_code(caught.value) == 2004


def test_one_absolute_deadline_holds_for_all_attempts_together(injected: Any) -> None:
    attempts = 0

    def body(tr: Any) -> None:
        nonlocal attempts
        attempts += 1
        tr[b"a"] = b"x"
        raise injected.injector.fdb_error(1020)

    started = time.monotonic()
    with pytest.raises(TransactionTimedOut, match="nothing committed") as caught:
        run(injected, body, timeout=0.2)
    assert time.monotonic() - started >= 0.2
    assert attempts > 1
    assert isinstance(caught.value, TimeoutError)
    assert injected[b"a"] is None


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_body_that_outlasts_the_deadline_is_not_committed(any_db: Any, strategy: Any) -> None:
    def body(tr: Any) -> int:
        n = increment(tr, b"n")
        time.sleep(0.05)
        return n

    with pytest.raises(TransactionTimedOut):
        run(any_db, body, timeout=0.01, strategy=strategy)
    assert run(any_db, increment, b"n", timeout=60, strategy=strategy) == 1


@pytest.mark.parametrize("timeout", [3e6, 1e300, 1.7e308, math.inf])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_deadline_beyond_what_the_database_counts_is_just_far_away(
    memory_db: Any, strategy: Any, timeout: float
) -> None:
    # A fresh database: its first transaction asks for a version within the same deadline.
    def body(tr: Any) -> int:
        tr.reset()
        return increment(tr, b"n")

    assert run(memory_db, body, timeout=timeout, strategy=strategy) == 1


@pytest.mark.parametrize("timeout", [0, -1, -1e300, -math.inf])
def test_a_deadline_of_the_past_lets_nothing_commit(memory_db: Any, timeout: float) -> None:
    for strategy in STRATEGIES:
        with pytest.raises(TransactionTimedOut):
            run(memory_db, increment, b"n", timeout=timeout, strategy=strategy)
    assert memory_db[b"n"] is None


def test_a_timeout_that_is_no_number_is_named(memory_db: Any) -> None:
    with pytest.raises(ValueError, match=r"timeout is a number of seconds.*not nan"):
        run(memory_db, increment, b"n", timeout=math.nan)
    assert memory_db[b"n"] is None


def test_on_attempt_is_told_the_read_snapshot_before_each_commit(injected: Any, marked: Any) -> None:
    injected.injector.next(("before", 1020), ("before", 1020))
    seen: list[int] = []

    def body(tr: Any) -> int:
        marked(tr)
        return int(tr.get_read_version().wait())

    def on_attempt(read_snapshot: int) -> None:
        assert injected.injector.commits == len(seen)
        seen.append(read_snapshot)

    def writing(tr: Any) -> int:
        tr[b"a"] = b"x"
        return body(tr)

    last = run(injected, writing, on_attempt=on_attempt, strategy="off")
    assert len(seen) == 3 and seen[-1] == last
    assert seen == sorted(seen)


def test_strategies_that_do_not_fit_are_refused_with_what_to_do(any_db: Any) -> None:
    with pytest.raises(StrategyError, match="use one of native, lanes, ids, off"):
        run(any_db, increment, b"n", strategy="best")  # type: ignore[arg-type]
    with pytest.raises(StrategyError, match="keeps no ids"):
        run(any_db, increment, b"n", strategy="off", idempotency_id=b"order-17")
    with pytest.raises(IdempotencyIdError):
        run(any_db, increment, b"n", idempotency_id=b"")
    assert any_db[b"n"] is None


def test_pauses_begin_at_a_fifth_of_a_millisecond_and_double_to_a_second_with_full_jitter() -> None:
    def longest(attempt: int) -> float:
        return max(pause_before(attempt) for _ in range(500))

    assert FIRST_PAUSE / 2 < longest(2) <= FIRST_PAUSE
    assert FIRST_PAUSE * 4 < longest(5) <= FIRST_PAUSE * 8
    assert LONGEST_PAUSE / 2 < longest(1000) <= LONGEST_PAUSE
    assert min(pause_before(5) for _ in range(500)) < FIRST_PAUSE


def test_a_default_transaction_is_native_where_it_is_offered(any_db: Any) -> None:
    from idempotent_txn.session import session_of

    session = session_of(any_db)
    assert session.offers_native()
    assert session.strategy(None, explicit=False).name == "native"
    assert session.strategy(None, explicit=True).name == "native"
    assert session.strategy("lanes", explicit=True).name == "ids"


def test_a_database_without_native_ids_gets_lanes(any_db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from idempotent_txn.ids import native
    from idempotent_txn.session import session_of

    monkeypatch.setattr(native, "is_offered", lambda db: False)
    session = session_of(any_db)
    assert session.strategy(None, explicit=False).name == "lanes"
    assert session.strategy(None, explicit=True).name == "ids"
    with pytest.raises(StrategyError, match=r"needs FoundationDB 7\.3"):
        session.strategy("native", explicit=False)
    assert run(any_db, increment, b"n") == 1


def bodies_that_write() -> list[Callable[[Any], None]]:
    return [
        lambda tr: tr.set(b"a", b"x"),
        lambda tr: tr.__setitem__(b"a", b"x"),
        lambda tr: tr.clear(b"a"),
        lambda tr: tr.clear_range(b"a", b"b"),
        lambda tr: tr.__delitem__(b"a"),
        lambda tr: tr.add(b"a", b"\1"),
        lambda tr: tr.set_versionstamped_value(b"a", bytes(14)),
        lambda tr: tr.add_write_conflict_key(b"a"),
    ]


@pytest.mark.parametrize("index", range(8))
def test_every_way_to_write_is_noticed(any_db: Any, index: int) -> None:
    from idempotent_txn.attempts.tracking import has_written, track_writes

    tr = any_db.create_transaction()
    track_writes(tr)
    tr.get(b"a").wait()
    tr.snapshot.get(b"a").wait()
    assert not has_written(tr)
    bodies_that_write()[index](tr)
    assert has_written(tr)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_retried_transaction_is_freed_without_the_garbage_collector(any_db: Any, strategy: Any) -> None:
    """Its snapshot would be kept open otherwise, until a collection comes by."""
    import gc
    import weakref

    kept: list[Any] = []

    def conflicting(tr: Any) -> None:
        kept.append(weakref.ref(tr))
        increment(tr, b"n")
        if len(kept) == 1:
            run(any_db, increment, b"n", strategy="off")

    def refused(tr: Any) -> None:
        kept.append(weakref.ref(tr))
        tr[b"k" * 10_001] = b"x"

    run(any_db, increment, b"n", strategy=strategy)
    gc.collect()
    gc.disable()
    try:
        run(any_db, conflicting, strategy=strategy)
        with pytest.raises(Exception) as caught:
            run(any_db, refused, strategy=strategy)
        del caught
        assert [ref() for ref in kept] == [None] * 3
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("given", "named"), [("embedded:./x", "the text 'embedded:./x'"), (Path("x"), "PosixPath"), (run, "function")]
)
def test_what_is_no_open_database_is_named(given: Any, named: str) -> None:
    for call in (run, run_committed):
        with pytest.raises(TypeError, match=rf"a Database is needed, not .*{named}.*open_database\("):
            call(given, lambda tr: None)
    with pytest.raises(TypeError, match=named):
        commit_result(given, b"id", 1)


@pytest.mark.parametrize(("given", "named"), [("17", "str '17'"), (None, "NoneType None"), (1.5, "float 1.5")])
def test_a_read_snapshot_that_is_no_version_is_named(memory_db: Any, given: Any, named: str) -> None:
    with pytest.raises(TypeError, match=rf"read_snapshot must be a version \(int\).*not {named}"):
        commit_result(memory_db, b"id", given)
