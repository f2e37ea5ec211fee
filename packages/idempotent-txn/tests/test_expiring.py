"""Expiring and finding explicit ids where the client knows little: no commit version, an unknown commit, two stores."""

from __future__ import annotations

from typing import Any

import pytest

from idempotent_txn import (
    Cleaner,
    Committed,
    IdempotencyId,
    NotCommitted,
    commit_result,
    expire_idempotency_id,
    find_commit,
    results,
    run,
)
from idempotent_txn.attempts.repeat import until_committed
from idempotent_txn.ids.lookup import NATIVE
from idempotent_txn.ids.rows import encode_expired_version
from idempotent_txn.session import session_of


def put(tr: Any) -> None:
    tr[b"key"] = b"value"


def test_an_id_whose_commit_version_the_client_did_not_tell_is_found_and_expired(memory_db: Any) -> None:
    id = IdempotencyId(b"order-17")
    run(memory_db, put, idempotency_id=id)
    session_of(memory_db).recall(id)
    session_of(memory_db).remember(id, -1)  # what some clients answer for a commit that they found again
    assert expire_idempotency_id(memory_db, id)
    assert not expire_idempotency_id(memory_db, id)


def test_an_id_expired_by_an_unknown_commit_was_there(injected: Any, monkeypatch: Any) -> None:
    id = IdempotencyId(b"order-17")
    run(injected, put, idempotency_id=id, strategy="ids")
    injected.injector._planned = lambda tr: "_removes" in tr.__dict__
    create = injected.create_transaction

    def removing() -> Any:
        tr = create()
        tr._removes = True
        return tr

    monkeypatch.setattr(injected, "create_transaction", removing)
    injected.injector.next(("after", 1021))
    assert expire_idempotency_id(injected, id)
    assert injected.injector.plan == []


def test_a_cleaner_that_comes_between_makes_find_commit_no_error(
    memory_db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = IdempotencyId(b"order-17")
    run(memory_db, put, idempotency_id=id, strategy="ids")
    look_up = results.look_up

    def after_cleaning(*args: Any) -> Any:
        Cleaner(memory_db, 0).run_once()
        return look_up(*args)

    monkeypatch.setattr(results, "look_up", after_cleaning)
    assert isinstance(find_commit(memory_db, id), NotCommitted)
    monkeypatch.undo()
    run(memory_db, put, idempotency_id=id, strategy="ids")
    assert isinstance(find_commit(memory_db, id), Committed)


def test_what_one_store_may_have_forgotten_is_found_in_the_other(memory_db: Any) -> None:
    id = IdempotencyId(b"order-17")
    snapshots: list[int] = []
    run(memory_db, put, idempotency_id=id, strategy="ids", on_attempt=snapshots.append)

    def expire(tr: Any) -> None:
        NATIVE.allow_writes(tr)
        tr.set(NATIVE.expired_version, encode_expired_version(snapshots[-1] + 1_000))

    until_committed(memory_db, expire)
    assert isinstance(commit_result(memory_db, id, snapshots[-1]), Committed)
