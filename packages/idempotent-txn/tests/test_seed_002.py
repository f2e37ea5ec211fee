"""What seed 002 (automatic idempotency of FoundationDB transactions) promises to a client, statement by statement.

Statements about ids and row formats are in `test_identity_and_rows.py`.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fdb_schema import fdb_error_code
from idempotent_txn import (
    Cleaner,
    Committed,
    CommitUnknownResultFatal,
    IdempotencyId,
    NotCommitted,
    commit_result,
    expire_idempotency_id,
    id_status,
    run,
    run_committed,
    transactional,
)
from idempotent_txn.ids.keyspace import EXPIRED_VERSION, NATIVE_EXPIRED_VERSION, NATIVE_ROWS, NATIVE_ROWS_END
from idempotent_txn.ids.lookup import NATIVE, fence
from idempotent_txn.ids.rows import decode_row, encode_expired_version

EXPLICIT = ["native", "ids"]
ID = IdempotencyId(b"order-17")


def count(value: bytes | None) -> int:
    return int.from_bytes(value or b"", "little")


def add_one(tr: Any) -> None:
    tr._planned = True
    tr.add(b"n", (1).to_bytes(8, "little"))


def put_row(tr: Any, key: bytes) -> None:
    tr[key] = b"x"


def read_version(db: Any) -> int:
    tr = db.create_transaction()  # held: its reads end with it
    return int(tr.get_read_version().wait())


def native_ids(db: Any) -> list[tuple[bytes, int]]:
    tr = db.create_transaction()
    tr.options.set_read_system_keys()
    rows = list(tr.get_range(NATIVE_ROWS, NATIVE_ROWS_END))
    return [pair for row in rows for pair in decode_row(NATIVE_ROWS, row.key, row.value).ids]


def expire_all(db: Any, version: int) -> None:
    tr = db.create_transaction()
    tr.options.set_access_system_keys()
    for key in (NATIVE_EXPIRED_VERSION, EXPIRED_VERSION):
        tr[key] = encode_expired_version(version)
    tr.commit().wait()


class Snapshots(list[int]):
    """Collects what `on_attempt` is told."""

    def __call__(self, read_snapshot: int) -> None:
        self.append(read_snapshot)


# Goals: a "just works" experience, on by default.


def test_seed_automatic_idempotency_is_on_by_default(injected: Any) -> None:
    @transactional
    def increment(tr: Any) -> None:
        add_one(tr)

    for _ in range(10):
        injected.injector.next(("after", 1021))
        increment(injected)
    assert count(injected[b"n"]) == 10


# API


def test_seed_automatic_idempotency_keeps_an_id_that_the_transaction_has(any_db: Any) -> None:
    """Two transactions with one id exclude each other, whether they also asked for an automatic one or not."""
    first, second = any_db.create_transaction(), any_db.create_transaction()
    for tr in (first, second):
        tr._set_option(504, b"sixteen bytes id", 16)
        tr.get_read_version().wait()
    second.options.set_automatic_idempotency()
    put_row(first, b"a")
    put_row(second, b"b")
    first.commit().wait()
    with pytest.raises(Exception) as caught:
        second.commit().wait()
    assert fdb_error_code(caught.value) == 1020


def test_seed_the_client_manages_the_full_lifecycle_of_an_automatic_id(memory_db: Any) -> None:
    """Hundreds of transactions, and next to nothing is kept; ids given by the caller stay."""
    for n in range(300):
        run(memory_db, put_row, b"row/%d" % n, strategy="ids")
    assert {store.store: store.ids for store in id_status(memory_db)}["ids"] <= 8
    run(memory_db, put_row, b"kept", idempotency_id=ID)
    for n in range(1_000):
        run(memory_db, put_row, b"row/%d" % n, strategy="native")
    # Ten seconds, by version, have passed; the engine's log is trimmed by later commits.
    memory_db.dpointer.engine.jump_version(100_000_000)
    for n in range(1_000):
        run(memory_db, put_row, b"row/%d" % n, strategy="off")
    assert native_ids(memory_db) == [(b"mainspring:short:order-17", native_ids(memory_db)[0][1])]


@pytest.mark.parametrize("strategy", EXPLICIT)
@pytest.mark.parametrize("id", [b"1", b"order-17", b"x" * 15, b"x" * 16, bytes(range(255))])
def test_seed_a_given_id_is_not_expired_automatically(any_db: Any, strategy: Any, id: bytes) -> None:
    snapshots = Snapshots()
    run(any_db, put_row, b"a", strategy=strategy, idempotency_id=IdempotencyId(id), on_attempt=snapshots)
    for n in range(50):
        run(any_db, put_row, b"b%d" % n, strategy=strategy)
    assert isinstance(commit_result(any_db, id, snapshots[-1]), Committed)
    assert isinstance(commit_result(any_db, id, snapshots[-1]), Committed)


@pytest.mark.parametrize("strategy", EXPLICIT)
def test_seed_the_user_expires_a_given_id(any_db: Any, strategy: Any) -> None:
    snapshots = Snapshots()
    other = IdempotencyId(b"order-18")
    for id in (ID, other):
        run(any_db, put_row, bytes(id), strategy=strategy, idempotency_id=id, on_attempt=snapshots)
    assert expire_idempotency_id(any_db, ID) is True
    assert expire_idempotency_id(any_db, ID) is False
    assert commit_result(any_db, ID, snapshots[0]) == NotCommitted()
    assert isinstance(commit_result(any_db, other, snapshots[1]), Committed)


@pytest.mark.parametrize("strategy", EXPLICIT)
def test_seed_commit_result_tells_version_and_versionstamp_from_id_and_read_snapshot(
    any_db: Any, strategy: Any
) -> None:
    snapshots = Snapshots()
    outcome = run_committed(any_db, put_row, b"a", strategy=strategy, idempotency_id=ID, on_attempt=snapshots)
    found = commit_result(any_db, ID, snapshots[-1])
    assert isinstance(found, Committed)
    assert found == outcome.commit
    assert found.versionstamp == found.version.to_bytes(8, "big") + found.batch_index.to_bytes(2, "big")


def test_seed_commit_result_of_an_id_that_never_committed(any_db: Any) -> None:
    snapshot = read_version(any_db)
    assert commit_result(any_db, ID, snapshot) == NotCommitted()


@pytest.mark.parametrize("strategy", EXPLICIT)
def test_seed_read_snapshot_is_that_of_the_last_attempt(injected: Any, strategy: Any) -> None:
    snapshots = Snapshots()
    injected.injector.next(("before", 1020), ("late", 1021), ("after", 1021))
    run(injected, add_one, strategy=strategy, idempotency_id=ID, on_attempt=snapshots)
    assert len(snapshots) == 3
    assert isinstance(commit_result(injected, ID, snapshots[-1]), Committed)


@pytest.mark.parametrize("strategy", EXPLICIT)
def test_seed_the_read_snapshot_narrows_what_is_searched(any_db: Any, strategy: Any) -> None:
    run(any_db, put_row, b"a", strategy=strategy, idempotency_id=ID)
    run(any_db, put_row, b"b", strategy=strategy)
    assert commit_result(any_db, ID, read_version(any_db) + 1) == NotCommitted()


@pytest.mark.parametrize("strategy", ["native", "lanes", "ids"])
def test_seed_commits_do_not_fail_with_commit_unknown_result(injected: Any, strategy: Any) -> None:
    for fate in ("before", "after", "late"):
        injected.injector.next((fate, 1021))
        run(injected, add_one, strategy=strategy)
    injected.injector.land_late_commits()
    assert count(injected[b"n"]) == 3


@pytest.mark.parametrize("strategy", EXPLICIT)
def test_seed_in_flight_so_long_that_its_id_may_be_expired_is_a_distinct_error_that_is_not_retried(
    injected: Any, strategy: Any
) -> None:
    runs = 0

    def body(tr: Any) -> None:
        nonlocal runs
        runs += 1
        add_one(tr)
        # While it is in flight, the ids of its time are expired.
        expire_all(injected, read_version(injected) + 60_000_000)

    injected.injector.next(("before", 1021))
    with pytest.raises(CommitUnknownResultFatal) as caught:
        run(injected, body, strategy=strategy)
    assert caught.value.code == 1022
    assert runs == 1
    assert fdb_error_code(caught.value) is None


@pytest.mark.parametrize("strategy", EXPLICIT)
def test_seed_an_id_that_is_found_is_committed_even_where_others_of_its_time_expired(
    injected: Any, strategy: Any
) -> None:
    def body(tr: Any) -> None:
        add_one(tr)
        expire_all(injected, read_version(injected) + 1_000)

    injected.injector.next(("after", 1021))
    assert run_committed(injected, body, strategy=strategy).attempts == 1


def test_seed_commit_result_of_an_expired_time_is_fatal(any_db: Any) -> None:
    snapshot = read_version(any_db)
    expire_all(any_db, snapshot + 10)
    with pytest.raises(CommitUnknownResultFatal, match="look at the data"):
        commit_result(any_db, ID, snapshot)
    assert commit_result(any_db, ID, snapshot + 11) == NotCommitted()


# Data model


def test_seed_ids_of_a_commit_batch_are_combined_and_found_with_their_batch_index(memory_db: Any) -> None:
    outcomes: dict[int, Any] = {}
    snapshot = read_version(memory_db)
    barrier = threading.Barrier(16)

    def work(n: int) -> None:
        barrier.wait(60)
        outcomes[n] = run_committed(
            memory_db, put_row, b"row/%d" % n, strategy="native", idempotency_id=b"the id of number %04d" % n
        )

    threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    stamps = {outcome.commit.versionstamp for outcome in outcomes.values()}
    assert len(stamps) == 16
    for n, outcome in outcomes.items():
        assert commit_result(memory_db, b"the id of number %04d" % n, snapshot) == outcome.commit
    assert len(native_ids(memory_db)) == 16


# Cleaning up


@pytest.mark.parametrize("strategy", EXPLICIT)
def test_seed_expiring_an_id_reclaims_its_space(memory_db: Any, strategy: Any) -> None:
    for n in range(20):
        run(memory_db, put_row, b"a", strategy=strategy, idempotency_id=b"id-%d" % n)
    assert sum(store.ids for store in id_status(memory_db)) == 20
    for n in range(20):
        assert expire_idempotency_id(memory_db, b"id-%d" % n)
    assert sum(store.ids for store in id_status(memory_db)) == 0


@pytest.mark.parametrize("strategy", EXPLICIT)
def test_seed_nothing_younger_than_the_minimum_age_is_cleaned(memory_db: Any, strategy: Any) -> None:
    snapshots = Snapshots()
    run(memory_db, put_row, b"a", strategy=strategy, idempotency_id=ID, on_attempt=snapshots)
    Cleaner(memory_db).run_once()
    Cleaner(memory_db, IDEMPOTENCY_IDS_MIN_AGE_SECONDS=3_600).run_once()
    assert isinstance(commit_result(memory_db, ID, snapshots[-1]), Committed)
    cleaned = Cleaner(memory_db, IDEMPOTENCY_IDS_MIN_AGE_SECONDS=0).run_once()
    assert cleaned.ids >= 1
    with pytest.raises(CommitUnknownResultFatal):
        commit_result(memory_db, ID, snapshots[-1])


def test_seed_the_minimum_age_is_one_day() -> None:
    import inspect

    default = inspect.signature(Cleaner.__init__).parameters["IDEMPOTENCY_IDS_MIN_AGE_SECONDS"].default
    assert default == 86_400


# Commit protocol


@pytest.mark.parametrize("strategy", EXPLICIT)
def test_seed_the_id_is_in_the_read_and_in_the_write_conflict_range(any_db: Any, strategy: Any) -> None:
    """Two transactions in flight with one id, that share no key, exclude each other."""
    runs: list[str] = []

    def outer(tr: Any) -> None:
        runs.append("outer")
        tr.get_read_version().wait()
        if len(runs) == 1:
            run(any_db, put_row, b"inner", strategy=strategy, idempotency_id=ID)
        put_row(tr, b"outer")

    run(any_db, outer, strategy=strategy, idempotency_id=ID)
    assert runs == ["outer", "outer"]


@pytest.mark.parametrize("strategy", ["native", "lanes", "ids"])
def test_seed_a_commit_is_not_reported_before_it_is_known_to_have_succeeded_or_not(
    injected: Any, strategy: Any
) -> None:
    injected.injector.next(("late", 1031))
    run(injected, add_one, strategy=strategy)
    assert count(injected[b"n"]) == 1
    injected.injector.land_late_commits()
    assert count(injected[b"n"]) == 1


@pytest.mark.parametrize("strategy", ["native", "lanes", "ids"])
def test_seed_a_transaction_that_learns_that_it_committed_succeeds_with_the_original_versionstamp(
    injected: Any, strategy: Any
) -> None:
    def body(tr: Any) -> None:
        tr._planned = True
        tr.set_versionstamped_value(b"stamp", bytes(14))

    injected.injector.next(("after", 1039))
    outcome = run_committed(injected, body, strategy=strategy)
    for n in range(3):
        run(injected, put_row, b"later/%d" % n, strategy=strategy)
    assert outcome.commit is not None
    assert outcome.commit.versionstamp == bytes(injected[b"stamp"])


@pytest.mark.parametrize("strategy", ["native", "lanes", "ids"])
def test_seed_a_transaction_that_learns_that_it_did_not_commit_runs_again(injected: Any, strategy: Any) -> None:
    injected.injector.next(("before", 1021))
    assert run_committed(injected, add_one, strategy=strategy).attempts == 2
    assert count(injected[b"n"]) == 1


# Implementation of commit_result


def test_seed_the_dummy_transaction_ensures_that_nothing_with_the_id_is_in_flight(injected: Any) -> None:
    injected.injector.next(("late", 1021))
    tr = injected.create_transaction()
    tr._set_option(504, b"sixteen bytes id", 16)
    add_one(tr)
    snapshot = int(tr.get_read_version().wait())
    with pytest.raises(Exception) as caught:
        tr.commit().wait()
    assert fdb_error_code(caught.value) == 1021
    # The commit is on its way; whoever asks keeps it from ever landing.
    assert commit_result(injected, b"sixteen bytes id", snapshot) == NotCommitted()
    injected.injector.land_late_commits()
    assert injected.injector.landed == [1020]


def test_seed_without_the_question_the_same_commit_lands(injected: Any) -> None:
    injected.injector.next(("late", 1021))
    tr = injected.create_transaction()
    tr._set_option(504, b"sixteen bytes id", 16)
    add_one(tr)
    snapshot = int(tr.get_read_version().wait())
    with pytest.raises(Exception):
        tr.commit().wait()
    injected.injector.land_late_commits()
    assert injected.injector.landed == [None]
    assert isinstance(commit_result(injected, b"sixteen bytes id", snapshot), Committed)


def test_seed_the_dummy_transaction_writes_nothing(any_db: Any) -> None:
    before = list(any_db.get_range(b"", b"\xff"))
    assert fence(any_db, (NATIVE,), ID) > 0
    assert list(any_db.get_range(b"", b"\xff")) == before


@pytest.mark.parametrize("strategy", EXPLICIT)
def test_seed_another_process_can_ask_for_the_result(shared_url: str, shared_db: Any, strategy: Any) -> None:
    import subprocess
    import sys

    snapshots = Snapshots()
    outcome = run_committed(shared_db, put_row, b"a", strategy=strategy, idempotency_id=ID, on_attempt=snapshots)
    assert outcome.commit is not None
    script = (
        "import sys; from fdb_schema import open_database; from idempotent_txn import *\n"
        "db = open_database(sys.argv[1]); found = commit_result(db, b'order-17', int(sys.argv[2]))\n"
        "print(found.versionstamp.hex()); print(expire_idempotency_id(db, b'order-17'))\n"
        "print(commit_result(db, b'order-17', int(sys.argv[2])))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, shared_url, str(snapshots[-1])], capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    assert done.stdout.split("\n")[:3] == [outcome.commit.versionstamp.hex(), "True", "NotCommitted()"]


def test_seed_long_lived_ids_are_still_found_when_they_have_left_the_log(memory_db: Any) -> None:
    snapshots = Snapshots()
    run(memory_db, put_row, b"a", idempotency_id=ID, on_attempt=snapshots)
    for n in range(2_000):
        run(memory_db, put_row, b"b/%d" % n)
    assert isinstance(commit_result(memory_db, ID, snapshots[-1]), Committed)


@pytest.mark.parametrize("strategy", EXPLICIT)
def test_an_id_is_found_without_its_read_snapshot(any_db: Any, strategy: Any) -> None:
    from idempotent_txn import find_commit

    assert find_commit(any_db, ID) == NotCommitted()
    outcome = run_committed(any_db, put_row, b"a", strategy=strategy, idempotency_id=ID)
    assert find_commit(any_db, ID) == outcome.commit
    expire_idempotency_id(any_db, ID)
    assert find_commit(any_db, ID) == NotCommitted()


# Multi-version client, and what the seed leaves out


@pytest.mark.parametrize("code", [1039, 1031])
@pytest.mark.parametrize("strategy", ["native", "lanes", "ids"])
def test_seed_the_previous_attempt_is_no_longer_in_flight_when_the_commit_becomes_ready(
    injected: Any, strategy: Any, code: int
) -> None:
    """Also after `cluster_version_changed`, and after `transaction_timed_out`, which the seed calls an exception."""
    injected.injector.next(("late", code))
    run(injected, add_one, strategy=strategy)
    assert count(injected[b"n"]) == 1
    injected.injector.land_late_commits()
    assert injected.injector.landed == [1020]
    assert count(injected[b"n"]) == 1


def test_seed_the_self_conflicting_key_space_holds_the_conflict_of_a_native_id(any_db: Any) -> None:
    runs: list[str] = []
    name = b"an id of sixteen bytes or more"

    def body(tr: Any) -> None:
        runs.append("attempt")
        tr.get_read_version().wait()
        if len(runs) == 1:
            other = any_db.create_transaction()
            other.options.set_access_system_keys()
            other.add_write_conflict_key(b"\xff/SC/" + name)
            other.commit().wait()
        put_row(tr, b"row")

    run(any_db, body, strategy="native", idempotency_id=IdempotencyId(name))
    assert runs == ["attempt", "attempt"]
