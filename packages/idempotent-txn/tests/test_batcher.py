"""The batcher: many commits as one, and nothing that a caller could notice."""

from __future__ import annotations

import itertools
import multiprocessing
import threading
from collections.abc import Callable
from typing import Any

import pytest

from fdb_schema import fdb_error_code
from idempotent_txn import Batcher, CommitUnknownResultFatal, run

_names = itertools.count()


def put(tr: Any, key: bytes, value: bytes = b"x") -> bytes:
    tr._planned = True
    tr[key] = value
    return key


def effects(db: Any) -> int:
    return len(list(db.get_range(b"effect/", b"effect0")))


class Gate:
    """Holds the first commit of a database until others are queued behind it."""

    def __init__(self, batcher: Batcher, monkeypatch: pytest.MonkeyPatch) -> None:
        from idempotent_txn.batching import batcher as module

        self.batcher = batcher
        self.groups: list[int] = []
        self.entered = threading.Event()
        self.opened = threading.Event()
        real = module.replay

        def replay(tr: Any, recordings: Any) -> None:
            recordings = list(recordings)
            self.groups.append(len(recordings))
            self.entered.set()
            assert self.opened.wait(60)
            real(tr, recordings)

        monkeypatch.setattr(module, "replay", replay)

    def open_once_queued(self, count: int) -> None:
        assert self.entered.wait(60)
        pause = threading.Event()
        for _ in range(60_000):
            if len(self.batcher._queue) >= count:
                break
            pause.wait(0.001)
        self.opened.set()


def in_threads(count: int, work: Callable[[int], None]) -> list[threading.Thread]:
    threads = [threading.Thread(target=work, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    return threads


def join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("strategy", [None, "native", "lanes", "ids"])
def test_transactions_queued_while_a_commit_is_in_flight_share_the_next_one(
    any_db: Any, monkeypatch: pytest.MonkeyPatch, strategy: Any
) -> None:
    batcher = Batcher(any_db, strategy=strategy)
    gate = Gate(batcher, monkeypatch)
    values: dict[int, bytes] = {}

    def work(n: int) -> None:
        values[n] = batcher.run(put, b"effect/%d" % n, value=b"%d" % n)

    first = in_threads(1, work)
    assert gate.entered.wait(60)
    others = in_threads(20, lambda n: work(n + 1))
    gate.open_once_queued(20)
    join([*first, *others])
    assert gate.groups == [1, 20]
    assert values == {n: b"effect/%d" % n for n in range(21)}
    assert {row.key: row.value for row in any_db.get_range(b"effect/", b"effect0")} == {
        b"effect/%d" % n: b"%d" % n for n in range(21)
    }


def test_all_kinds_of_writes_are_replayed_in_order(any_db: Any) -> None:
    def body(tr: Any) -> str:
        for n in range(10):
            tr[b"r/%d" % n] = b"old"
        tr.set(b"a", b"\1")
        tr.add(b"a", b"\2")
        tr.bit_or(b"b", b"\5")
        tr.max(b"c", b"\7")
        tr.byte_min(b"d", b"m")
        tr.append_if_fits(b"e", b"tail")
        tr.compare_and_clear(b"a", rb"\x09")
        del tr[b"r/0"]
        tr.clear(b"r/1")
        del tr[b"r/2":b"r/4"]
        tr.clear_range(b"r/5", b"r/6")
        tr[b"r/5"] = b"new"
        tr.clear_range_startswith(b"r/8")
        tr.add_write_conflict_key(b"w")
        return "value"

    by_itself, batched = body, lambda tr: body(tr)
    assert run(any_db, by_itself) == "value"
    expected = [(row.key, row.value) for row in any_db.get_range(b"\x16", b"\xff")]
    any_db.clear_range(b"\x16", b"\xff")
    assert Batcher(any_db).run(batched) == "value"
    assert [(row.key, row.value) for row in any_db.get_range(b"\x16", b"\xff")] == expected
    assert len(expected) == 10


def bodies_of_their_own() -> list[Callable[[Any], Any]]:
    """What runs by itself: it reads, or has something of its own to ask of the commit."""
    return [
        lambda tr: (put(tr, b"effect/1"), tr[b"effect/1"].value)[1],
        lambda tr: (put(tr, b"effect/1"), [kv.key for kv in tr.get_range(b"effect/", b"effect0")])[1],
        lambda tr: (put(tr, b"effect/1"), tr.snapshot[b"effect/1"].value)[1],
        lambda tr: (put(tr, b"effect/1"), tr.options.set_priority_batch())[1],
        lambda tr: (put(tr, b"effect/1"), tr.add_read_conflict_key(b"z"))[1],
        lambda tr: (put(tr, b"effect/1"), tr.set_versionstamped_value(b"stamp", bytes(14)))[1],
        lambda tr: (put(tr, b"effect/1"), tr.get_versionstamp(), None)[2],
        lambda tr: (put(tr, b"effect/1"), tr.get_read_version().wait() >= 0)[1],
        lambda tr: (put(tr, b"effect/1"), tr.watch(b"z"), None)[2],
        lambda tr: (put(tr, b"effect/1"), tr.get_approximate_size().wait() > 0)[1],
    ]


@pytest.mark.parametrize("index", range(10))
def test_a_transaction_that_does_more_than_write_runs_by_itself_with_the_same_value(any_db: Any, index: int) -> None:
    body = bodies_of_their_own()[index]
    batcher = Batcher(any_db)
    for _ in range(2):
        assert batcher.run(body) == run(any_db, body)
    assert effects(any_db) == 1


def test_a_body_that_catches_everything_still_runs_by_itself(any_db: Any) -> None:
    def body(tr: Any) -> Any:
        put(tr, b"effect/1")
        try:
            return tr[b"effect/1"].value
        except BaseException:
            return "caught"

    assert Batcher(any_db).run(body) == b"x"


def test_nested_transactional_functions_of_either_kind_join(any_db: Any) -> None:
    from idempotent_txn import transactional

    @transactional
    def inner(tr: Any) -> None:
        put(tr, b"effect/1")

    Batcher(any_db).run(lambda tr: inner(tr))
    assert effects(any_db) == 1


def test_an_exception_of_a_body_is_its_callers_alone(any_db: Any) -> None:
    def body(tr: Any) -> None:
        put(tr, b"effect/1")
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        Batcher(any_db).run(body)
    assert effects(any_db) == 0


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [(b"k" * 10_001, b"x", 2102), (b"k", b"x" * 100_001, 2103), (b"\xff/system", b"x", 2004)],
)
def test_a_write_that_is_refused_hurts_nobody_else(
    any_db: Any, monkeypatch: pytest.MonkeyPatch, key: bytes, value: bytes, code: int
) -> None:
    batcher = Batcher(any_db)
    gate = Gate(batcher, monkeypatch)
    errors: list[Any] = []

    def bad(_: int) -> None:
        try:
            batcher.run(lambda tr: put(tr, key, value))
        except Exception as error:
            errors.append(fdb_error_code(error))

    threads = in_threads(1, lambda n: (batcher.run(put, b"effect/a"), None)[1])
    assert gate.entered.wait(60)
    threads += in_threads(5, lambda n: (batcher.run(put, b"effect/%d" % n), None)[1])
    threads += in_threads(1, bad)
    gate.open_once_queued(5)
    join(threads)
    assert errors == [code]
    assert effects(any_db) == 6


def test_a_group_is_bounded_in_bytes(any_db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    batcher = Batcher(any_db, max_bytes=10_000)
    gate = Gate(batcher, monkeypatch)
    threads = in_threads(1, lambda n: (batcher.run(put, b"effect/a"), None)[1])
    assert gate.entered.wait(60)
    threads += in_threads(10, lambda n: (batcher.run(put, b"effect/%d" % n, b"v" * 3_000), None)[1])
    gate.open_once_queued(10)
    join(threads)
    assert gate.groups == [1, 3, 3, 3, 1]
    assert effects(any_db) == 11
    with pytest.raises(ValueError, match="at least 1"):
        Batcher(any_db, max_bytes=0)


@pytest.mark.parametrize("fate", ["before", "after", "late"])
@pytest.mark.parametrize("strategy", ["native", "lanes", "ids"])
def test_a_lost_group_takes_effect_exactly_once(
    injected: Any, monkeypatch: pytest.MonkeyPatch, strategy: Any, fate: Any
) -> None:
    batcher = Batcher(injected, strategy=strategy)
    gate = Gate(batcher, monkeypatch)
    mine = threading.Lock()

    def work(n: int) -> None:
        with mine:
            name = next(_names)
        batcher.run(put, b"effect/%08d" % name)

    from idempotent_txn.batching import batcher as module

    held = module.replay

    def marking(tr: Any, recordings: Any) -> None:
        held(tr, recordings)
        tr._planned = True

    monkeypatch.setattr(module, "replay", marking)
    injected.injector.next((fate, 1021), (fate, 1031))
    threads = in_threads(1, work)
    assert gate.entered.wait(60)
    threads += in_threads(10, work)
    gate.open_once_queued(10)
    join(threads)
    injected.injector.land_late_commits()
    assert effects(injected) == 11
    assert injected.injector.plan == []


def test_a_group_that_is_refused_as_a_whole_falls_apart_into_its_members(
    any_db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from idempotent_txn.batching import batcher as module

    batcher = Batcher(any_db)
    gate = Gate(batcher, monkeypatch)
    held = module.replay

    def refusing(tr: Any, recordings: Any) -> None:
        recordings = list(recordings)
        held(tr, recordings)
        if len(recordings) > 1:
            raise OSError("no groups today")

    monkeypatch.setattr(module, "replay", refusing)
    threads = in_threads(1, lambda n: (batcher.run(put, b"effect/a"), None)[1])
    assert gate.entered.wait(60)
    threads += in_threads(5, lambda n: (batcher.run(put, b"effect/%d" % n), None)[1])
    gate.open_once_queued(5)
    join(threads)
    assert effects(any_db) == 6


def test_a_fatal_outcome_reaches_every_member(any_db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from idempotent_txn.batching import batcher as module

    batcher = Batcher(any_db)
    gate = Gate(batcher, monkeypatch)
    held = module.replay

    def fatal(tr: Any, recordings: Any) -> None:
        recordings = list(recordings)
        held(tr, recordings)
        if len(recordings) > 1:
            raise CommitUnknownResultFatal("nobody can tell")

    monkeypatch.setattr(module, "replay", fatal)
    errors: list[BaseException] = []

    def work(n: int) -> None:
        try:
            batcher.run(put, b"effect/%d" % n)
        except CommitUnknownResultFatal as error:
            errors.append(error)

    threads = in_threads(1, lambda n: (batcher.run(put, b"effect/a"), None)[1])
    assert gate.entered.wait(60)
    threads += in_threads(5, work)
    gate.open_once_queued(5)
    join(threads)
    assert len(errors) == 5


def test_the_main_thread_commits_for_nobody_else(any_db: Any) -> None:
    """Only there an interruption can strike between a commit and its report."""
    from idempotent_txn.batching.batcher import _Member
    from idempotent_txn.batching.recording import Recording

    batcher = Batcher(any_db)
    batcher._queue.extend(_Member(Recording()) for _ in range(3))
    first, second = batcher._queue[0], batcher._queue[1]
    batcher._take_group(first)
    assert list(first.group) == [first]
    join(in_threads(1, lambda n: batcher._take_group(second)))
    assert len(second.group) == 2 and second.group[0] is second


class InterruptedGate:
    """The gate of a member whose thread is interrupted the first time that it waits, once `moment` has passed."""

    def __init__(self, moment: Callable[[], None]) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()
        self.locked, self.release = self.lock.locked, self.lock.release
        self.moment = moment
        self.times = 0

    def acquire(self) -> None:
        self.times += 1
        if self.times == 1:
            self.moment()
            raise KeyboardInterrupt
        self.lock.acquire()


def test_an_interruption_takes_a_member_out_of_the_queue(any_db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    batcher = Batcher(any_db)
    gate = Gate(batcher, monkeypatch)
    threads = in_threads(1, lambda n: (batcher.run(put, b"effect/a"), None)[1])
    assert gate.entered.wait(60)
    monkeypatch.setattr("idempotent_txn.batching.batcher._closed_gate", lambda: InterruptedGate(lambda: None))
    with pytest.raises(KeyboardInterrupt):
        batcher.run(put, b"effect/b")
    assert not batcher._queue
    gate.opened.set()
    join(threads)
    assert effects(any_db) == 1
    assert batcher._leader is None


def test_an_interruption_of_a_member_in_flight_comes_after_its_commit(
    any_db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    batcher = Batcher(any_db)
    gate = Gate(batcher, monkeypatch)
    threads = in_threads(1, lambda n: (batcher.run(put, b"effect/a"), None)[1])
    assert gate.entered.wait(60)
    threads += in_threads(1, lambda n: (batcher.run(put, b"effect/c"), None)[1])
    pause = threading.Event()
    while not batcher._queue:
        pause.wait(0.001)

    def once_taken() -> None:
        gate.opened.set()
        while batcher._queue:
            pause.wait(0.001)

    monkeypatch.setattr("idempotent_txn.batching.batcher._closed_gate", lambda: InterruptedGate(once_taken))
    with pytest.raises(KeyboardInterrupt) as caught:
        batcher.run(put, b"effect/b")
    assert caught.value.__notes__ == ["The transaction that was interrupted had committed."]
    assert effects(any_db) == 3
    join(threads)
    assert gate.groups == [1, 2]
    assert batcher._leader is None


def test_keys_and_values_may_be_what_the_binding_takes(any_db: Any) -> None:
    from fdb.subspace_impl import Subspace

    class Number:
        def as_foundationdb_value(self) -> bytes:
            return b"17"

    space = Subspace(("effect",))

    def body(tr: Any) -> None:
        tr[space["a"]] = Number()
        tr[space["b"]] = b"x"
        tr.set_many([(b"m/1", b"x"), (b"m/2", b"y")])
        tr.clear_many([b"m/1"])
        del tr[space["b"]]
        del tr[b"q":None]
        tr.add_write_conflict_range(b"w", b"x")

    Batcher(any_db).run(body)
    assert [(row.key, row.value) for row in any_db.get_range(b"", b"\x15")] == [(space.pack(("a",)), b"17")]
    assert [row.key for row in any_db.get_range(b"\x16", b"\xff")] == [b"m/2"]


def test_mistakes_of_a_body_are_told_by_the_engine(any_db: Any) -> None:
    batcher = Batcher(any_db)
    with pytest.raises(TypeError, match="Key must be of type bytes"):
        batcher.run(lambda tr: tr.set("text", b"x"))
    with pytest.raises(TypeError, match="Value must be of type bytes"):
        batcher.run(lambda tr: tr.set(b"a", "text"))
    for body in (lambda tr: tr.clear_range(b"b", b"a"), lambda tr: tr.clear_range(b"a", b"\xff\xff")):
        codes = []
        for attempt in (batcher.run, lambda fn: run(any_db, fn)):
            with pytest.raises(Exception) as caught:
                attempt(body)
            codes.append(fdb_error_code(caught.value))
        assert codes[0] == codes[1] is not None


def test_a_transaction_larger_than_a_member_may_be_commits_alone(any_db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from idempotent_txn.batching import batcher as module

    def refused(tr: Any, recordings: Any) -> None:
        raise AssertionError("it was not to be in a group")

    monkeypatch.setattr(module, "replay", refused)
    Batcher(any_db).run(lambda tr: [tr.set(b"effect/%d" % n, b"v" * 30_000) for n in range(4)])
    assert effects(any_db) == 4


def _in_child(batcher: Batcher, gate: Gate, connection: Any) -> None:
    gate.opened.set()
    connection.send(batcher.run(put, b"effect/child"))


@pytest.mark.embedded_only("the official client doesn't survive a fork")
def test_a_forked_child_waits_for_no_thread_of_its_parent(shared_db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    batcher = Batcher(shared_db)
    gate = Gate(batcher, monkeypatch)
    threads = in_threads(2, lambda n: batcher.run(put, b"effect/%d" % n) and None)
    assert gate.entered.wait(60)
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_in_child, args=(batcher, gate, theirs))
    child.start()
    try:
        assert mine.poll(60)
        assert mine.recv() == b"effect/child"
        assert effects(shared_db) == 1
    finally:
        gate.opened.set()
        child.kill()
        child.join()
        for thread in threads:
            thread.join()
    assert effects(shared_db) == 3
