"""From which version on a commit is looked for, and that nobody waits for it."""

from __future__ import annotations

from typing import Any

import pytest
from support.counting import Counted

import fdb_schema
from idempotent_txn import run
from idempotent_txn.ids.floor import VersionFloor
from idempotent_txn.session import session_of


@pytest.fixture
def stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if each transaction came after some idle seconds."""
    monkeypatch.setattr("idempotent_txn.ids.floor.FLOOR_SECONDS", -1.0)


@pytest.mark.parametrize("timeout", [None, 10.0])
def test_after_a_pause_too_a_run_is_one_transaction(any_db: Any, stale: None, timeout: float | None) -> None:
    db = Counted(any_db)
    run(db, lambda tr: tr.set(b"k", b"0"), timeout=timeout)
    db.count = 0
    assert run(db, lambda tr: tr.get(b"k").value, timeout=timeout) == b"0"
    run(db, lambda tr: tr.set(b"k", b"1"), timeout=timeout)
    assert db.count == 2


def test_what_an_attempt_says_of_itself_is_no_later_than_its_commit(
    any_db: Any, stale: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    floors: list[int] = []
    of = VersionFloor.of
    monkeypatch.setattr(VersionFloor, "of", lambda self, tr: floors.append(of(self, tr)) or floors[-1])
    for n in range(5):
        tr_of: list[Any] = []
        run(any_db, lambda tr, n=n, made=tr_of: (made.append(tr), tr.set(b"k%d" % n, b"1"))[0])  # type: ignore[misc]
        assert floors[-1] < tr_of[0].get_committed_version()
    assert len(floors) == 5


def test_a_version_that_a_body_chose_bounds_no_commit(
    any_db: Any, stale: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = fdb_schema.read_version
    # As FoundationDB's client answers, which asks nobody whether there is such a version.
    monkeypatch.setattr("idempotent_txn.ids.floor.read_version", lambda tr: tr.__dict__.get("chosen") or ask(tr))
    floor = session_of(any_db).strategy("native", False)._floor

    def chooses(tr: Any) -> None:
        now = any_db.create_transaction().get_read_version().wait()
        tr.set_read_version(now)
        tr.chosen = now + 10**12
        tr.set(b"k", b"1")

    run(any_db, chooses, strategy="native")
    assert floor.latest <= ask(any_db.create_transaction()), "no thread would find its commit by a later one"


def test_who_cancels_his_own_transaction_is_told_as_ever(any_db: Any, stale: None) -> None:
    calls: list[int] = []

    def cancels_once(tr: Any) -> int:
        calls.append(1)
        tr.set(b"k", b"%d" % len(calls))
        if len(calls) == 1:
            tr.cancel()
        return len(calls)

    assert run(any_db, cancels_once) == 2
    assert bytes(any_db[b"k"]) == b"2"
