"""Commits whose outcome the client isn't told: every way they get lost, every strategy, counted as rows."""

from __future__ import annotations

import itertools
import threading
import time
from functools import cache
from typing import Any

import fdb
import pytest

from fdb_schema import fdb_error_code
from idempotent_txn import (
    CommitUnknownResultFatal,
    TransactionTimedOut,
    expire_idempotency_id,
    run,
    run_committed,
    run_repeatable,
)
from idempotent_txn.loop import MOST_CANCELLED_ATTEMPTS
from idempotent_txn.session import session_of

STRATEGIES = ["native", "lanes", "ids"]
UNKNOWN = [1021, 1031, 1039, 1025, 1101, 1100]
_names = itertools.count()


def effects(db: Any) -> int:
    return len(list(db.get_range(b"effect/", b"effect0")))


def add_effect(tr: Any) -> str:
    """One row per time that the body's transaction took place."""
    tr._planned = True
    tr[b"effect/%08d" % next(_names)] = b""
    return "done"


def read_and_add_effect(tr: Any) -> str:
    tr[b"seen"].wait()
    return add_effect(tr)


@pytest.mark.parametrize("body", [add_effect, read_and_add_effect])
@pytest.mark.parametrize("code", UNKNOWN)
@pytest.mark.parametrize("fate", ["before", "after", "late"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_unknown_outcome_takes_effect_exactly_once(
    injected: Any, strategy: Any, fate: Any, code: int, body: Any
) -> None:
    injected.injector.next((fate, code))
    outcome = run_committed(injected, body, strategy=strategy)
    assert outcome.value == "done"
    assert outcome.attempts == (1 if fate == "after" else 2)
    assert effects(injected) == 1
    injected.injector.land_late_commits()
    assert injected.injector.landed == ([1020] if fate == "late" else [])
    assert effects(injected) == 1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_commit_found_again_has_its_original_versionstamp(injected: Any, strategy: Any) -> None:
    injected.injector.next(("after", 1021))

    def body(tr: Any) -> None:
        tr._planned = True
        tr.set_versionstamped_value(b"stamp", bytes(10) + bytes(4))

    outcome = run_committed(injected, body, strategy=strategy)
    assert outcome.commit is not None
    assert outcome.commit.versionstamp == bytes(injected[b"stamp"])
    assert outcome.attempts == 1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_several_attempts_may_get_lost_in_a_row(injected: Any, strategy: Any) -> None:
    injected.injector.next(("late", 1021), ("before", 1039), ("late", 1031), ("late", 1025), ("after", 1021))
    outcome = run_committed(injected, add_effect, strategy=strategy)
    assert outcome.attempts == 5
    injected.injector.land_late_commits()
    assert injected.injector.landed == [1020, 1020, 1020]
    assert effects(injected) == 1


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("fate", ["interrupted", "interrupted-before-future"])
def test_an_interruption_is_delivered_once_the_commit_is_settled(injected: Any, strategy: Any, fate: Any) -> None:
    injected.injector.next((fate, 0))
    with pytest.raises(KeyboardInterrupt) as caught:
        run(injected, add_effect, strategy=strategy)
    assert caught.value.__notes__ == ["The transaction that was interrupted had committed."]
    assert effects(injected) == 1
    assert run(injected, add_effect, strategy=strategy) == "done"
    assert effects(injected) == 2


def test_an_acknowledged_commit_is_found_although_its_id_was_expired_already(injected: Any) -> None:
    """As FoundationDB's client does with automatic ids, before anyone can ask for them."""
    strategy = session_of(injected).strategy("native", explicit=False)
    tr = injected.create_transaction()
    token: Any = strategy.begin(tr, None, None)
    add_effect(tr)
    assert strategy.resolve(token) is False
    tr.commit().wait()
    expire_idempotency_id(injected, token[0])
    assert strategy.resolve(token)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_bodys_own_timeout_that_ends_a_commit_in_flight_doubles_nothing(any_db: Any, strategy: Any) -> None:
    run(any_db, lambda tr: tr.set(b"warm", b"x"), strategy=strategy)
    calls = 80
    for call in range(calls):
        attempts = 0

        def body(tr: Any, call: int = call) -> None:
            nonlocal attempts
            attempts += 1
            tr[b"effect/%d/%d" % (call, attempts)] = b""
            if attempts <= 3:
                tr.options.set_timeout(1 + call % 20)

        run(any_db, body, strategy=strategy)
    assert effects(any_db) == calls


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_commit_that_times_out_after_its_write_is_found_with_its_versionstamp(
    memory_db: Any, monkeypatch: pytest.MonkeyPatch, strategy: Any
) -> None:
    from fdb_embedded.engine.request import Commit

    run(memory_db, lambda tr: tr.set(b"warm", b"x"), strategy=strategy)
    real, timed_out, attempts = Commit.succeed, [], 0

    def held(commit: Any, version: int, index: int) -> None:
        """It is written; its caller is told once the transaction's own timeout has ended the future.

        The engine's own thread, which may make a commit that somebody left, is not held: it is who ends the future.
        """
        if not timed_out and commit.promises is not None and not memory_db.dpointer.engine.is_own_thread():
            pause = threading.Event()
            while not commit.done:
                pause.wait(0.001)
            timed_out.append(commit.error)
        real(commit, version, index)

    def body(tr: Any) -> None:
        nonlocal attempts
        attempts += 1
        tr.set_versionstamped_value(b"stamp", bytes(14))
        tr[b"effect/%d" % attempts] = b""
        tr.options.set_timeout(50)

    monkeypatch.setattr(Commit, "succeed", held)
    outcome = run_committed(memory_db, body, strategy=strategy)
    while not timed_out:
        attempts = 0
        memory_db.clear_range(b"effect/", b"effect0")
        outcome = run_committed(memory_db, body, strategy=strategy)
    assert timed_out == [1031]
    assert (attempts, effects(memory_db)) == (1, 1)
    assert outcome.commit is not None
    assert outcome.commit.versionstamp == memory_db[b"stamp"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_interruption_of_a_commit_that_fails_says_so(injected: Any, strategy: Any) -> None:
    class Interrupted:
        def __init__(self) -> None:
            self.answers: list[BaseException] = [KeyboardInterrupt(), injected.injector.fdb_error(1020)]

        def wait(self) -> None:
            raise self.answers.pop(0)

    def body(tr: Any) -> None:
        add_effect(tr)
        tr.commit = Interrupted

    with pytest.raises(KeyboardInterrupt):
        run(injected, body, strategy=strategy)
    assert effects(injected) == 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_interruptions_of_the_resolution_itself_wait_as_well(
    injected: Any, strategy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = session_of(injected).strategy(strategy, explicit=False)
    resolve = chosen.resolve
    interrupted = 0

    def interrupted_twice(token: Any) -> Any:
        nonlocal interrupted
        interrupted += 1
        if interrupted <= 2:
            raise KeyboardInterrupt(str(interrupted))
        return resolve(token)

    monkeypatch.setattr(chosen, "resolve", interrupted_twice)
    injected.injector.next(("after", 1021))
    with pytest.raises(KeyboardInterrupt, match="1"):
        run(injected, add_effect, strategy=strategy)
    assert effects(injected) == 1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_commit_cancelled_before_it_is_sent_runs_again(injected: Any, strategy: Any) -> None:
    injected.injector.next(("cancelled", 0))
    assert run(injected, add_effect, strategy=strategy) == "done"
    assert effects(injected) == 1


def test_a_body_that_always_cancels_is_given_up(injected: Any) -> None:
    injected.injector.next(*[("cancelled", 0)] * (MOST_CANCELLED_ATTEMPTS + 5))
    with pytest.raises(Exception) as caught:
        run(injected, add_effect)
    assert fdb_error_code(caught.value) == 1025
    assert effects(injected) == 0
    assert injected.injector.commits >= MOST_CANCELLED_ATTEMPTS


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_error_nobody_knows_is_raised_only_once_nothing_can_commit(injected: Any, strategy: Any) -> None:
    injected.injector.next(("late", 4100))
    with pytest.raises(Exception) as caught:
        run(injected, add_effect, strategy=strategy)
    assert fdb_error_code(caught.value) == 4100
    injected.injector.land_late_commits()
    assert injected.injector.landed == [1020]
    assert effects(injected) == 0
    injected.injector.next(("after", 4100))
    assert run(injected, add_effect, strategy=strategy) == "done"
    assert effects(injected) == 1


@pytest.mark.parametrize("strategy", [*STRATEGIES, "off"])
def test_the_clients_own_fatal_error_is_ours_and_is_not_retried(injected: Any, strategy: Any) -> None:
    injected.injector.next(("before", 1022))
    with pytest.raises(CommitUnknownResultFatal) as caught:
        run(injected, add_effect, strategy=strategy)
    assert caught.value.code == 1022
    assert injected.injector.plan == []


def test_off_runs_the_body_again_whatever_became_of_the_commit(injected: Any) -> None:
    injected.injector.next(("after", 1021), ("before", 1021))
    assert run_committed(injected, add_effect, strategy="off").attempts == 3
    assert effects(injected) == 2


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_commit_in_flight_at_the_deadline_is_settled_first(injected: Any, strategy: Any) -> None:
    injected.injector.next(("slow", 1031))
    assert run(injected, add_effect, strategy=strategy, timeout=0.5) == "done"
    assert effects(injected) == 1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_after_the_deadline_a_commit_that_got_lost_is_not_tried_again(injected: Any, strategy: Any) -> None:
    injected.injector.next(("slow-before", 1031))
    with pytest.raises(TransactionTimedOut, match="nothing committed"):
        run(injected, add_effect, strategy=strategy, timeout=0.5)
    assert effects(injected) == 0


class CutOff:
    """A database that is out of reach from the first commit on: one whose time isn't limited is never answered, as FoundationDB's client does it."""

    def __init__(self, db: Any) -> None:
        self._db = db

    def create_transaction(self) -> Any:
        tr = self._db.create_transaction()
        tr.__class__ = _cut_off(tr.__class__)
        return tr


class _Limit:
    def __init__(self) -> None:
        self.milliseconds = 0

    def set_timeout(self, milliseconds: int) -> None:
        self.milliseconds = milliseconds

    def wait(self) -> None:
        assert self.milliseconds > 0, "this commit would be waited for as long as the database is out of reach"
        time.sleep(self.milliseconds / 1000)
        raise fdb.FDBError(1031)


@cache
def _cut_off(cls: type) -> type:
    """Transactions whose engine doesn't say of a commit that it was never begun."""

    def options(tr: Any) -> _Limit:
        limit: _Limit = tr.__dict__.setdefault("_limit", _Limit())
        return limit

    def is_never_made(tr: Any) -> bool:
        raise AttributeError("there is none")

    members = {"options": property(options), "is_never_made": property(is_never_made), "commit": options}
    return type(cls.__name__, (cls,), {**members, "__doc__": cls.__doc__})


def test_what_may_be_made_again_waits_for_no_commit_in_flight(any_db: Any) -> None:
    with pytest.raises(TransactionTimedOut, match="whether that committed isn't known, and it may be run again"):
        run_repeatable(CutOff(any_db), add_effect, timeout=0.05)
    assert run_repeatable(any_db, add_effect, timeout=60) == "done"
    assert effects(any_db) == 1


def test_a_commit_that_may_have_been_made_is_told_of_though_later_attempts_were_not(any_db: Any) -> None:
    def once_answered_in_vain(tr: Any) -> None:
        if effects(any_db):
            raise fdb.FDBError(1007)
        add_effect(tr)
        plain = tr.__class__.unguarded_class

        def commit(tr: Any) -> Any:
            plain.commit(tr).wait()
            raise fdb.FDBError(1021)

        tr.__class__ = type("Lost", (tr.__class__,), {"unguarded_class": type("Lost", (plain,), {"commit": commit})})

    with pytest.raises(TransactionTimedOut, match="whether that committed isn't known, and it may be run again"):
        run_repeatable(any_db, once_answered_in_vain, timeout=0.05)
    assert effects(any_db) == 1


@pytest.mark.parametrize("fate", ["before", "after", "late"])
def test_native_ids_by_foundationdbs_two_options(injected: Any, monkeypatch: pytest.MonkeyPatch, fate: Any) -> None:
    """What the official client is given, which has no call for both options."""
    strategy = session_of(injected).strategy("native", explicit=False)
    monkeypatch.setattr(strategy, "_at_once", False)
    injected.injector.next((fate, 1031))
    assert run(injected, add_effect) == "done"
    injected.injector.land_late_commits()
    assert effects(injected) == 1


def test_an_engine_that_refuses_the_option_offers_no_native_ids(injected: Any) -> None:
    from idempotent_txn.ids.native import is_offered

    class Refusing:
        def create_transaction(self) -> Any:
            tr = injected.create_transaction()

            def refuse(*_: Any) -> None:
                raise injected.injector.fdb_error(2007)

            tr._set_option = refuse
            return tr

    assert is_offered(injected)
    assert not is_offered(Refusing())


def test_the_resolution_itself_survives_errors_of_every_kind(injected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own commits and reads get lost, too."""
    from idempotent_txn.attempts import repeat

    real = repeat.sleep_before
    failures = [1021, 1007, 1031, 1020, 1039]
    created = injected.create_transaction

    def failing() -> Any:
        tr = created()
        if failures and injected.injector.plan == []:
            code = failures.pop()

            def fail(*_: Any, **__: Any) -> Any:
                raise injected.injector.fdb_error(code)

            tr.commit = tr.get = tr.read_range = fail
        return tr

    slept: list[int] = []
    monkeypatch.setattr(repeat, "sleep_before", lambda attempt: (slept.append(attempt), real(attempt))[1])
    run(injected, lambda tr: None)
    injected.injector.next(("late", 1021))
    monkeypatch.setattr(injected, "create_transaction", failing)
    assert run(injected, add_effect) == "done"
    injected.injector.land_late_commits()
    assert effects(injected) == 1
    assert failures == [] and len(slept) == 5


def test_a_versionstamp_that_fails_does_not_make_a_failure_of_a_commit(injected: Any) -> None:
    """The commit was acknowledged; only the row of its id is left to the cleaner."""

    class FailedStamp:
        def is_ready(self) -> bool:
            return True

        @property
        def value(self) -> bytes:
            raise injected.injector.fdb_error(1031)

    strategy: Any = session_of(injected).strategy("ids", False)
    prepare = strategy.prepare

    def with_failed_stamp(tr: Any, token: Any, want_stamp: bool) -> None:
        prepare(tr, token, want_stamp)
        token.stamp = FailedStamp()

    strategy.prepare = with_failed_stamp
    run(injected, add_effect, strategy="ids")
    assert effects(injected) == 1
    assert not strategy._due


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("code", [2015, 1500])
def test_an_error_of_the_resolution_is_not_taken_for_the_commits_own(
    injected: Any, strategy: Any, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2015 out of a commit says that it did not commit; out of the resolution it says nothing, and the caller is told just that."""
    run(injected, add_effect, strategy=strategy)
    chosen = session_of(injected).strategy(strategy, explicit=False)
    attempts = 0

    def failing(token: Any) -> Any:
        raise injected.injector.fdb_error(code)

    def body(tr: Any) -> None:
        nonlocal attempts
        attempts += 1
        add_effect(tr)

    monkeypatch.setattr(chosen, "resolve", failing)
    injected.injector.next(("after", 1021))
    with pytest.raises(CommitUnknownResultFatal) as caught:
        run(injected, body, strategy=strategy)
    assert fdb_error_code(caught.value.__cause__) == code
    assert (attempts, effects(injected)) == (1, 2)
