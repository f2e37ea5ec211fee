"""What a body does with the transaction that it is given: exactly-once holds, or the body is refused by name."""

from __future__ import annotations

import asyncio
import struct
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from fdb_schema import fdb_error_code
from idempotent_txn import Batcher, BodyError, TransactionTimedOut, run, transactional

STRATEGIES = ["native", "lanes", "ids"]
COUNTER = b"counter"


def add_one(tr: Any) -> None:
    tr.add(COUNTER, struct.pack("<q", 1))


def counted(db: Any) -> int:
    value = db[COUNTER]
    return 0 if value is None else int(struct.unpack("<q", bytes(value))[0])


def reset(tr: Any) -> None:
    tr.reset()


def own_retry(tr: Any) -> None:
    tr.on_error(1020).wait()


@pytest.mark.parametrize("strategy", [None, *STRATEGIES])
@pytest.mark.parametrize("restart", [reset, own_retry])
def test_a_body_that_starts_its_transaction_afresh_has_its_effects_once(
    any_db: Any, injected: Any, marked: Callable[[Any], None], strategy: Any, restart: Callable[[Any], None]
) -> None:
    calls = 0

    def body(tr: Any) -> str:
        nonlocal calls
        calls += 1
        marked(tr)
        add_one(tr)
        restart(tr)
        add_one(tr)
        return "done"

    injected.injector.next(("after", 1031))
    assert run(injected, body, strategy=strategy) == "done"
    assert injected.injector.plan == []
    assert counted(any_db) == 1
    assert calls == 1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_attempt_after_a_reset_that_lands_late_is_kept_out(
    any_db: Any, injected: Any, marked: Callable[[Any], None], strategy: Any
) -> None:
    def body(tr: Any) -> None:
        tr.reset()
        marked(tr)
        add_one(tr)

    injected.injector.next(("late", 1031))
    run(injected, body, strategy=strategy)
    injected.injector.land_late_commits()
    assert injected.injector.landed == [1020]
    assert counted(any_db) == 1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_hundred_calls_with_a_reset_have_two_hundred_effects_under_faults(strategy: Any) -> None:
    import fdb_embedded

    name = f"memory:bodies-{strategy}"
    binding = fdb_embedded.load()
    plain = binding.open(name)
    faulty = fdb_embedded.open(
        name,
        faults=fdb_embedded.Faults(7, unknown_before=0.1, unknown_after=0.1, unknown_late=0.1, timed_out_late=0.05),
    )

    def body(tr: Any) -> None:
        tr.get(COUNTER).wait()
        tr.reset()
        add_one(tr)

    for _ in range(200):
        run(faulty, body, strategy=strategy)
    assert counted(plain) == 200


def test_a_deadline_still_holds_after_a_reset(any_db: Any) -> None:
    def body(tr: Any) -> None:
        tr.reset()
        threading.Event().wait(0.06)
        tr.get(b"k").wait()

    with pytest.raises(TransactionTimedOut, match="1031"):  # the read failed, not the check after the body
        run(any_db, body, timeout=0.05)


@pytest.mark.parametrize("strategy", [*STRATEGIES, "off"])
def test_a_body_that_commits_by_itself_is_refused_before_anything_commits(any_db: Any, strategy: Any) -> None:
    def body(tr: Any) -> None:
        while True:
            try:
                add_one(tr)
                tr.commit().wait()
                return
            except Exception as error:
                if fdb_error_code(error) is None:
                    raise
                tr.on_error(error).wait()

    with pytest.raises(BodyError, match=r"body.*commit"):
        run(any_db, body, strategy=strategy)
    assert counted(any_db) == 0


def test_a_pause_that_nobody_waited_for_is_refused(any_db: Any) -> None:
    def body(tr: Any) -> None:
        tr.on_error(1020)
        add_one(tr)

    with pytest.raises(BodyError, match="on_error"):
        run(any_db, body)
    assert counted(any_db) == 0


def test_a_body_may_not_replace_the_id_that_its_commit_is_found_by(any_db: Any) -> None:
    def body(tr: Any) -> None:
        tr._set_option(504, b"an id of the body's own", 23)
        add_one(tr)

    with pytest.raises(BodyError, match="idempotency_id"):
        run(any_db, body, strategy="native")
    with pytest.raises(BodyError, match="idempotency_id"):
        run(any_db, lambda tr: tr._set_option(505, None, 0), idempotency_id=b"an id of the caller's")
    assert counted(any_db) == 0


async def asynchronous(tr: Any) -> None:
    add_one(tr)


async def asynchronous_generator(tr: Any) -> Any:
    add_one(tr)
    yield


def through_a_lambda(tr: Any) -> Any:
    return asynchronous(tr)


class Callee:
    async def __call__(self, tr: Any) -> None:
        add_one(tr)


@pytest.mark.parametrize("body", [asynchronous, asynchronous_generator, through_a_lambda, Callee()])
@pytest.mark.parametrize("how", ["run", "timeout", "batcher", "transactional"])
def test_an_asynchronous_body_is_refused_and_leaves_no_coroutine_behind(any_db: Any, body: Any, how: str) -> None:
    call: Callable[[], object] = {
        "run": lambda: run(any_db, body),
        "timeout": lambda: run(any_db, body, timeout=5.0),
        "batcher": lambda: Batcher(any_db).run(body),
        "transactional": lambda: transactional(lambda tr: body(tr))(any_db),
    }[how]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(BodyError, match="is asynchronous"):
            call()
    assert counted(any_db) == 0


def test_a_body_that_hands_its_work_to_a_task_is_refused(any_db: Any) -> None:
    async def main() -> None:
        def body(tr: Any) -> Any:
            return asyncio.ensure_future(asynchronous(tr))

        with pytest.raises(BodyError, match="is asynchronous"):
            run(any_db, body)

    asyncio.run(main())
    assert counted(any_db) == 0


def test_a_body_may_return_what_the_database_will_answer(any_db: Any) -> None:
    any_db[b"k"] = b"v"
    assert run(any_db, lambda tr: tr.get(b"k")) == b"v"


def test_functions_over_a_transaction_compose_as_before(any_db: Any) -> None:
    inner = transactional(add_one)
    run(any_db, lambda tr: (inner(tr), inner(tr)))
    assert counted(any_db) == 2
