"""Lanes: constant storage, stable clients, forks, clients long silent."""

from __future__ import annotations

import gc
import multiprocessing
import threading
import weakref
from collections.abc import Callable
from types import CodeType
from typing import Any

import pytest
from support.interrupting import Interruption, arrivals, raised

from fdb_schema import open_database
from idempotent_txn import (
    Cleaner,
    ClientFenced,
    CommitUnknownResultFatal,
    IdempotencyIdError,
    StrategyError,
    run,
    use_client_id,
)
from idempotent_txn.ids.keyspace import CLIENTS, LANES, PREFIX
from idempotent_txn.lanes import Lane, Lanes
from idempotent_txn.session import session_of


def put(tr: Any, key: bytes) -> None:
    tr._planned = True
    tr[key] = b"x"


def rows(db: Any, prefix: bytes) -> int:
    return len(list(db.get_range_startswith(prefix)))


def test_storage_is_constant_whatever_the_number_of_transactions(memory_db: Any) -> None:
    for n in range(500):
        run(memory_db, put, b"k%d" % (n % 7), strategy="lanes")
    assert rows(memory_db, LANES) == 1
    assert rows(memory_db, CLIENTS) == 1
    assert rows(memory_db, PREFIX) == 2


def test_there_are_as_many_lanes_as_commits_were_in_flight_at_once(memory_db: Any) -> None:
    def work(n: int) -> None:
        for _ in range(40):
            run(memory_db, put, b"k%d" % n, strategy="lanes")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    # A few more than threads: a lane is not reused by a transaction that can't see its last commit.
    assert 1 <= rows(memory_db, LANES) <= 24


def test_a_lane_is_not_reused_by_a_transaction_that_cannot_see_its_last_commit(memory_db: Any) -> None:
    run(memory_db, put, b"first", strategy="lanes")
    attempts = 0

    def body(tr: Any) -> None:
        nonlocal attempts
        attempts += 1
        tr.get_read_version().wait()
        if attempts == 1:
            run(memory_db, put, b"second", strategy="lanes")
        put(tr, b"outer")

    run(memory_db, body, strategy="lanes")
    assert attempts == 1
    assert rows(memory_db, LANES) == 2


@pytest.mark.parametrize("client_id", [b"", b"x" * 201])
def test_a_stable_client_id_has_1_to_200_bytes(memory_db: Any, client_id: bytes) -> None:
    with pytest.raises(IdempotencyIdError, match="1 to 200 bytes"):
        use_client_id(memory_db, client_id)
    with pytest.raises(IdempotencyIdError, match="1 to 200 bytes"):
        Lanes(memory_db, client_id)


def test_a_stable_client_id_comes_first(memory_db: Any) -> None:
    run(memory_db, put, b"a", strategy="lanes")
    with pytest.raises(StrategyError, match="before the first transaction"):
        use_client_id(memory_db, b"host-0")


def test_with_a_stable_client_id_transactions_go_by_lanes(memory_db: Any) -> None:
    use_client_id(memory_db, b"host-0")
    assert session_of(memory_db).strategy(None, explicit=False).name == "lanes"
    run(memory_db, put, b"a")
    assert rows(memory_db, LANES) == 1


def test_a_restart_fences_what_its_previous_incarnation_left_in_flight(injected: Any, any_db: Any) -> None:
    use_client_id(injected, b"host-0")
    run(injected, put, b"before", strategy="lanes")
    strategy = session_of(injected).strategy("lanes", explicit=False)
    injected.injector.next(("late", 1021))
    tr = injected.create_transaction()
    token = strategy.begin(tr, None, None)
    put(tr, b"in flight")
    strategy.prepare(tr, token, False)
    with pytest.raises(Exception):
        tr.commit().wait()
    # The process is gone now; its commit is still on its way when the next one of its name starts.
    use_client_id(any_db, b"host-0")
    injected.injector.land_late_commits()
    assert injected.injector.landed == [1020]


def test_an_incarnation_that_was_replaced_may_not_commit_any_more(injected: Any, any_db: Any) -> None:
    successor = injected  # a handle of its own, as another process has
    use_client_id(any_db, b"host-0")
    run(any_db, put, b"a")
    use_client_id(successor, b"host-0")
    with pytest.raises(ClientFenced, match="host-0"):
        run(any_db, put, b"b")
    run(successor, put, b"c")
    with pytest.raises(ClientFenced):
        run(any_db, put, b"d")
    assert [row.key for row in any_db.get_range(b"a", b"e")] == [b"a", b"c"]


def test_clients_whose_names_are_prefixes_of_each_other_share_nothing(injected: Any, any_db: Any) -> None:
    other = injected
    use_client_id(any_db, b"host-1")
    use_client_id(other, b"host-11")
    run(any_db, put, b"a")
    run(other, put, b"b")
    run(any_db, put, b"c")
    assert rows(any_db, CLIENTS) == 2


def _child(url: str, db: Any, connection: Any) -> None:
    try:
        for n in range(50):
            run(db, put, b"child/%d" % n, strategy="lanes")
        connection.send("done")
    except BaseException as error:
        connection.send(repr(error))


@pytest.mark.embedded_only("the official client doesn't survive a fork")
def test_a_forked_child_takes_lanes_of_its_own(shared_url: str, shared_db: Any) -> None:
    run(shared_db, put, b"parent", strategy="lanes")
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(shared_url, shared_db, theirs))
    child.start()
    try:
        for n in range(50):
            run(shared_db, put, b"parent/%d" % n, strategy="lanes")
        assert mine.poll(60)
        assert mine.recv() == "done"
    finally:
        child.join(60)
        child.kill()
    assert rows(shared_db, b"child/") == 50
    assert rows(shared_db, CLIENTS) == 2


def test_lanes_of_clients_long_silent_go(memory_db: Any) -> None:
    run(memory_db, put, b"a", strategy="lanes")
    assert Cleaner(memory_db).run_once().clients == 0
    assert rows(memory_db, PREFIX) == 2
    assert Cleaner(memory_db, silent_client_seconds=0).run_once().clients == 1
    assert rows(memory_db, PREFIX) == 0


def test_a_client_that_was_cleared_goes_on(memory_db: Any) -> None:
    run(memory_db, put, b"a", strategy="lanes")
    Cleaner(memory_db, silent_client_seconds=0).run_once()
    lanes = session_of(memory_db).strategy("lanes", explicit=False)
    run(memory_db, put, b"b", strategy="lanes")
    assert isinstance(lanes, Lanes)
    lanes._heartbeat_due = -1.0
    run(memory_db, put, b"c", strategy="lanes")
    assert rows(memory_db, CLIENTS) == 1
    assert rows(memory_db, LANES) >= 1


def test_an_outcome_in_doubt_over_its_clients_clearing_is_fatal(injected: Any) -> None:
    def body(tr: Any) -> None:
        put(tr, b"a")

    run(injected, body, strategy="lanes")
    strategy = session_of(injected).strategy("lanes", explicit=False)
    tr = injected.create_transaction()
    token = strategy.begin(tr, None, None)
    put(tr, b"b")
    strategy.prepare(tr, token, False)
    tr.commit().wait()
    Cleaner(injected, silent_client_seconds=0).run_once()
    with pytest.raises(CommitUnknownResultFatal, match="silent"):
        strategy.resolve(token)


def test_a_body_that_chooses_an_old_read_version_gets_a_lane_of_its_own(memory_db: Any) -> None:
    run(memory_db, put, b"first", strategy="lanes")
    old = int(memory_db.create_transaction().get_read_version().wait())
    holder = memory_db.create_transaction()
    holder.set_read_version(old)
    holder[b"first"].wait()
    run(memory_db, put, b"second", strategy="lanes")

    def body(tr: Any) -> bytes | None:
        tr.set_read_version(old)
        second: bytes | None = tr[b"second"].value
        put(tr, b"third")
        return second

    with pytest.raises(Exception) as caught:
        # It read what changed since: a conflict of its own, not of its lane.
        run(memory_db, body, strategy="lanes", timeout=0.3)
    assert isinstance(caught.value, TimeoutError)

    def blind(tr: Any) -> None:
        tr.set_read_version(old)
        tr[b"first"].wait()
        put(tr, b"third")

    run(memory_db, blind, strategy="lanes", timeout=60)
    assert memory_db[b"third"] == b"x"


def test_settling_twice_frees_a_lane_once_and_answers_the_same() -> None:
    db = open_database("memory:")
    lanes = Lanes(db)
    lanes.start()
    tr = db.create_transaction()
    token = lanes.begin(tr, None, None)
    tr.set(b"key", b"value")
    lanes.prepare(tr, token, False)
    tr.commit().wait()
    assert lanes.resolve(token) is True
    # An interruption came before the answer was used, and the lane serves another attempt by now.
    second = db.create_transaction()
    other = lanes.begin(second, None, None)
    assert other.lane is token.lane
    second.set(b"key", b"other")
    lanes.prepare(second, other, False)
    second.commit().wait()
    assert lanes.resolve(token) is True
    lanes.committed(tr, token)
    lanes.abandoned(token)
    assert lanes._free == [], "the lane is the other attempt's alone"


def of_the_lanes(code: CodeType) -> bool:
    return code.co_filename.endswith("idempotent_txn/lanes.py")


def make_free(lanes: Lanes, count: int) -> None:
    """Lanes of which the first alone has been idle for long."""
    lanes._free.extend([lanes._new_lane() for _ in range(count)])
    for lane in lanes._free[1:]:
        lane.idle_since = float("inf")


def plain(lanes: Lanes, db: Any, before: int) -> None:
    run(db, put, b"plain", strategy="lanes")


def with_an_old_read_version(lanes: Lanes, db: Any, before: int) -> None:
    def body(tr: Any) -> None:
        tr.set_read_version(before)
        put(tr, b"chosen")

    run(db, body, strategy="lanes")


def within_another(lanes: Lanes, db: Any, before: int) -> None:
    def body(tr: Any) -> None:
        run(db, put, b"inner", strategy="lanes")
        put(tr, b"outer")

    run(db, body, strategy="lanes")


@pytest.mark.parametrize("how", [arrivals, raised])
@pytest.mark.parametrize("free", [0, 1, 3])
@pytest.mark.parametrize("work", [plain, with_an_old_read_version, within_another])
def test_an_interruption_anywhere_leaves_each_lane_free_once(
    memory_db: Any, work: Callable[..., None], free: int, how: Any
) -> None:
    number = 0
    while True:
        memory_db.__dict__.pop("_idempotent_txn_session", None)
        lanes = session_of(memory_db).strategy("lanes", explicit=False)
        assert isinstance(lanes, Lanes)
        lanes.start()
        make_free(lanes, free)
        before = int(memory_db.create_transaction().get_read_version().wait())
        interruption: Interruption
        with how(number, of_the_lanes) as interruption:
            try:
                work(lanes, memory_db, before)
            except KeyboardInterrupt:
                assert interruption.came
        if len(lanes._free) != lanes._count:
            gc.collect()  # the exception may be what holds it
        keys = sorted(lane.key for lane in lanes._free)
        assert keys == [lanes._prefix + n.to_bytes(2, "big") for n in range(lanes._count)], interruption.where
        assert lanes._count <= free + 2
        assert not lanes._mutex.locked(), interruption.where
        run(memory_db, put, b"next", strategy="lanes")
        if not interruption.came:
            break
        number += 1
    assert number > 8


def test_a_lane_that_an_interruption_lost_goes_on_with_its_numbers(memory_db: Any) -> None:
    run(memory_db, put, b"a", strategy="lanes")
    run(memory_db, put, b"b", strategy="lanes")
    lanes = session_of(memory_db).strategy("lanes", explicit=False)
    assert isinstance(lanes, Lanes)
    lanes._free.pop()
    (lane,) = lanes._free
    assert (lane.seq, lane.incarnation) == (2, lanes._incarnation)
    run(memory_db, put, b"c", strategy="lanes")
    assert (lane.seq, rows(memory_db, LANES)) == (3, 1)


def test_lanes_that_nobody_uses_any_more_are_forgotten(memory_db: Any) -> None:
    lanes = Lanes(memory_db)
    for _ in range(2):
        lanes.abandoned(lanes.begin(memory_db.create_transaction(), None, None))
    prefix, gone = lanes._prefix, weakref.ref(lanes)
    del lanes
    gc.collect()
    assert gone() is None
    assert not [found for found in gc.get_objects() if isinstance(found, Lane) and found.key.startswith(prefix)]


def test_more_lanes_than_can_be_numbered_are_refused_by_name(memory_db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("idempotent_txn.lanes.LANE_NUMBERS", 3)

    def nested(tr: Any, depth: int) -> None:
        put(tr, b"depth/%d" % depth)
        if depth > 1:
            run(memory_db, nested, depth - 1, strategy="lanes")

    run(memory_db, nested, 3, strategy="lanes")
    with pytest.raises(StrategyError, match=r"3 attempts under way on lanes at once.*'ids'"):
        run(memory_db, nested, 4, strategy="lanes")
    run(memory_db, nested, 3, strategy="lanes")


def test_the_last_lane_that_can_be_numbered_is_used(memory_db: Any) -> None:
    lanes = session_of(memory_db).strategy("lanes", explicit=False)
    assert isinstance(lanes, Lanes)
    lanes._count = 65_535
    run(memory_db, put, b"a", strategy="lanes")
    assert [row.key[-2:] for row in memory_db.get_range_startswith(LANES)] == [b"\xff\xff"]
    lanes._free.clear()
    with pytest.raises(StrategyError, match="65536 attempts"):
        lanes._new_lane()
    assert Cleaner(memory_db, silent_client_seconds=0).run_once().clients == 1
    assert rows(memory_db, PREFIX) == 0
