"""Transactions that read, merged into one commit: what was read is validated per function."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from conftest import seed_params

from fdb_embedded import Faults
from fdb_schema import clear_many, set_many
from idempotent_txn import Batcher, run
from idempotent_txn.batching.merging import CONFLICTING_KEYS, READ_CONFLICTS, Group, overlap, ranges_of
from idempotent_txn.batching.recording import Recording, record_beside


def add_one(tr: Any, key: bytes) -> int:
    """A read-modify-write and a row of its own; returns what it read."""
    before = int.from_bytes(tr[key].value or b"", "little")
    tr[key] = (before + 1).to_bytes(8, "little")
    tr.add(b"effect/" + key, (1).to_bytes(8, "little"))
    return before


def number(db: Any, key: bytes) -> int:
    return int.from_bytes(db[key] or b"", "little")


def put(tr: Any, key: bytes) -> bytes:
    tr[key] = b"x"
    return key


class Held:
    """A batcher with a commit in flight, so that what comes now shares the next one."""

    def __init__(self, db: Any, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        from idempotent_txn.batching import batcher as module

        self.batcher = Batcher(db, **options)
        self.groups: list[int] = []
        """How many members each commit was tried with."""
        self.opened = threading.Event()
        entered = threading.Event()
        real = module.replay

        def replay(tr: Any, recordings: Any) -> None:
            self.groups.append(len(recordings))
            entered.set()
            assert self.opened.wait(60)
            real(tr, recordings)

        monkeypatch.setattr(module, "replay", replay)
        self.threads = [threading.Thread(target=self.batcher.run, args=(put, b"first"))]
        self.threads[0].start()
        assert entered.wait(60)

    def run(self, *calls: tuple[Any, ...]) -> list[Any]:
        """Run `(fn, *args)` calls in threads, queued in this order; their values once all are done."""
        values: list[Any] = [None] * len(calls)

        def work(n: int, call: tuple[Any, ...]) -> None:
            values[n] = self.batcher.run(*call)

        pause = threading.Event()
        for n, call in enumerate(calls):
            thread = threading.Thread(target=work, args=(n, call))
            thread.start()
            self.threads.append(thread)
            for _ in range(60_000):
                if len(self.batcher._queue) > n:
                    break
                pause.wait(0.001)
            assert len(self.batcher._queue) == n + 1, f"call {n} did not join the queue"
        self.opened.set()
        join(self.threads)
        return values


def join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("strategy", [None, "native", "lanes", "ids"])
def test_transactions_that_read_share_a_commit(any_db: Any, monkeypatch: pytest.MonkeyPatch, strategy: Any) -> None:
    any_db[b"n3"] = (7).to_bytes(8, "little")
    held = Held(any_db, monkeypatch, strategy=strategy)
    values = held.run(*((add_one, b"n%d" % n) for n in range(5)), (put, b"blind"))
    assert values == [0, 0, 0, 7, 0, b"blind"]
    assert held.groups == [1, 6]
    assert [number(any_db, b"n%d" % n) for n in range(5)] == [1, 1, 1, 8, 1]


def test_who_reads_what_an_earlier_member_writes_runs_by_itself(any_db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(any_db, monkeypatch)
    values = held.run((add_one, b"n"), (add_one, b"n"), (add_one, b"other"), (add_one, b"n"))
    assert held.groups == [1, 2]
    assert sorted([values[0], values[1], values[3]]) == [0, 1, 2] and values[2] == 0
    assert number(any_db, b"n") == number(any_db, b"effect/n") == 3


def test_a_range_that_an_earlier_member_writes_into_is_read_again(any_db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def count(tr: Any) -> int:
        found = len(list(tr.get_range(b"effect/", b"effect0")))
        tr[b"counted"] = b"%d" % found
        return found

    held = Held(any_db, monkeypatch)
    assert held.run((put, b"effect/1"), (count,)) == [b"effect/1", 1]
    assert (held.groups, any_db[b"counted"]) == ([1, 1], b"1")


def test_an_earlier_members_cleared_range_counts_as_written(any_db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    any_db[b"m"] = (4).to_bytes(8, "little")

    def clear(tr: Any) -> None:
        tr.clear_range(b"a", b"z")

    held = Held(any_db, monkeypatch)
    assert held.run((clear,), (add_one, b"m")) == [None, 0]
    assert number(any_db, b"m") == 1


def test_a_member_whose_reads_somebody_else_changed_is_left_out_and_the_others_commit(
    any_db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(any_db, monkeypatch)
    real = held.batcher._take_group

    def take(leader: Any) -> None:
        real(leader)
        any_db[b"n1"] = (40).to_bytes(8, "little")  # after all of them read

    monkeypatch.setattr(held.batcher, "_take_group", take)
    values = held.run((add_one, b"n0"), (add_one, b"n1"), (add_one, b"n2"), (put, b"blind"))
    assert values == [0, 40, 0, b"blind"]
    assert held.groups == [1, 4, 3]
    assert [number(any_db, b"n%d" % n) for n in range(3)] == [1, 41, 1]
    assert number(any_db, b"effect/n1") == 1


def test_reads_older_than_five_seconds_run_again(any_db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(any_db, monkeypatch)
    real = held.batcher._take_group

    def take(leader: Any) -> None:
        real(leader)
        for member in leader.group:
            if member.recording.reads:
                member.recording.version = 1

    monkeypatch.setattr(held.batcher, "_take_group", take)
    assert held.run((add_one, b"n0"), (add_one, b"n1"), (put, b"blind")) == [0, 0, b"blind"]
    assert held.groups == [1, 3, 1]
    assert [number(any_db, b"n%d" % n) for n in range(2)] == [1, 1]


def test_a_member_sees_its_own_writes(any_db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    any_db[b"a"] = b"stored"

    def body(tr: Any) -> list[Any]:
        seen = [tr[b"a"].value]
        tr[b"a"] = b"new"
        tr.append_if_fits(b"a", b"er")
        set_many(tr, iter([(b"b", b"1"), (b"c", b"2")]))
        clear_many(tr, iter([b"c"]))
        del tr[b"x":b"z"]
        seen += [tr[b"a"].value, tr[b"b"].value, tr[b"c"].value]
        seen.append([(row.key, row.value) for row in tr.get_range(b"a", b"d")])
        return seen

    held = Held(any_db, monkeypatch)
    assert held.run((body,)) == [[b"stored", b"newer", b"1", None, [(b"a", b"newer"), (b"b", b"1")]]]
    assert held.groups == [1, 1]
    assert [(row.key, row.value) for row in any_db.get_range(b"a", b"d")] == [(b"a", b"newer"), (b"b", b"1")]


def test_a_transaction_that_turns_out_only_to_read_commits_nothing(
    any_db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    any_db[b"a"] = b"x"
    held = Held(any_db, monkeypatch)
    assert held.batcher.run(lambda tr: tr[b"a"].value) == b"x"
    held.run((put, b"blind"))
    assert held.groups == [1, 1]


def of_their_own() -> list[Callable[[Any], Any]]:
    """What belongs to a commit of its own, after a read."""
    return [
        lambda tr: (tr[b"a"].value, put(tr, b"effect/1"), tr.options.set_priority_batch())[0],
        lambda tr: (tr[b"a"].value, put(tr, b"effect/1"), tr.set_versionstamped_value(b"s", bytes(14)))[0],
        lambda tr: (tr[b"a"].value, put(tr, b"effect/1"), tr.get_versionstamp())[0],
        lambda tr: (tr[b"a"].value, put(tr, b"effect/1"), tr.watch(b"a"))[0],
        lambda tr: (put(tr, b"effect/1"), tr.options.set_read_system_keys(), tr[b"\xff/no"].value)[2],
        lambda tr: (tr[b"a"].value, put(tr, b"effect/1"), tr._set_option(501, (9).to_bytes(8, "little"), 8))[0],
    ]


@pytest.mark.parametrize("index", range(6))
def test_what_cannot_be_shared_runs_by_itself(any_db: Any, monkeypatch: pytest.MonkeyPatch, index: int) -> None:
    any_db[b"a"] = b"x"
    held = Held(any_db, monkeypatch)
    body = of_their_own()[index]
    expected = run(any_db, body)
    for _ in range(2):
        assert held.batcher.run(body) == expected
    assert body in held.batcher._alone
    held.run((put, b"blind"))
    assert any_db[b"effect/1"] == b"x"


def test_an_exception_after_a_read_is_its_callers_alone(any_db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def body(tr: Any) -> None:
        add_one(tr, b"n")
        raise LookupError("mine")

    held = Held(any_db, monkeypatch)
    with pytest.raises(LookupError, match="mine"):
        held.batcher.run(body)
    held.run((add_one, b"other"))
    assert number(any_db, b"n") == 0


def test_alone_a_transaction_that_reads_is_not_taken_apart(any_db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from idempotent_txn.batching import batcher as module

    def refused(_: Any) -> Any:
        raise AssertionError("nobody else was there")

    monkeypatch.setattr(module, "record_beside", refused)
    assert Batcher(any_db).run(add_one, b"n") == 0
    assert number(any_db, b"n") == 1


@pytest.mark.parametrize("fate", ["before", "after", "late"])
@pytest.mark.parametrize("strategy", ["native", "lanes", "ids"])
def test_a_lost_group_of_readers_takes_effect_exactly_once(
    injected: Any, monkeypatch: pytest.MonkeyPatch, strategy: Any, fate: Any
) -> None:
    from idempotent_txn.batching import batcher as module

    held = Held(injected, monkeypatch, strategy=strategy)
    replay = module.replay

    def marking(tr: Any, recordings: Any) -> None:
        replay(tr, recordings)
        tr._planned = len(recordings) > 1
        if not tr._planned:
            del tr._planned

    monkeypatch.setattr(module, "replay", marking)
    injected.injector.next((fate, 1021), (fate, 1031))
    held.run(*((add_one, b"n%d" % n) for n in range(4)))
    injected.injector.land_late_commits()
    assert [number(injected, b"n%d" % n) for n in range(4)] == [1] * 4
    assert [number(injected, b"effect/n%d" % n) for n in range(4)] == [1] * 4


def test_lanes_do_not_pile_up_under_groups_that_read(any_db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from idempotent_txn.ids.keyspace import LANES

    batcher = Batcher(any_db, strategy="lanes")
    batcher._under_way.add(object())  # as though others were under way: nobody runs alone
    for _ in range(60):
        batcher.run(add_one, b"n")
    assert number(any_db, b"n") == 60
    assert len(list(any_db.get_range_startswith(LANES))) <= 3


@pytest.mark.parametrize("seed", seed_params(40))
def test_money_is_neither_made_nor_lost_in_any_seed(seed: int) -> None:
    """Transfers between a few accounts, by threads that share commits, with faults: each counts once and the sum stays."""
    import fdb_embedded

    print(f"seed {seed}")
    accounts, threads, each = 6, 4, 8
    db = fdb_embedded.open(
        f"memory:merging-{seed}",
        faults=Faults(seed=seed, not_committed=0.05, too_old=0.03, unknown_after=0.08, unknown_late=0.08, delay=0.05),
    )
    clean = fdb_embedded.open(f"memory:merging-{seed}")
    for n in range(accounts):
        clean[b"account/%d" % n] = (100).to_bytes(8, "little")
    batcher = Batcher(db, strategy=random.Random(seed).choice(["native", "lanes", "ids"]))
    done: Counter[int] = Counter()

    def transfer(tr: Any, call: int, origin: int, target: int, amount: int) -> int:
        have = int.from_bytes(tr[b"account/%d" % origin].value, "little")
        amount = min(amount, have)
        tr[b"account/%d" % origin] = (have - amount).to_bytes(8, "little")
        tr.add(b"account/%d" % target, amount.to_bytes(8, "little"))
        tr.add(b"effect/%04d" % call, (1).to_bytes(8, "little"))
        return call

    def audit(tr: Any, call: int) -> int:
        total = sum(int.from_bytes(row.value, "little") for row in tr.get_range(b"account/", b"account0"))
        tr[b"audit/%04d" % call] = b"%d" % total
        tr.add(b"effect/%04d" % call, (1).to_bytes(8, "little"))
        return call

    def work(thread: int) -> None:
        rng = random.Random(f"{seed} {thread}")
        for n in range(each):
            call = thread * each + n
            if rng.random() < 0.2:
                assert batcher.run(audit, call) == call
            else:
                origin, target = rng.sample(range(accounts), 2)
                assert batcher.run(transfer, call, origin, target, rng.randrange(60)) == call
            done[call] += 1

    try:
        workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        join(workers)
        db.dpointer.faulty.land_all()
        assert len(done) == threads * each
        found = {
            int(row.key[7:]): int.from_bytes(row.value, "little") for row in clean.get_range(b"effect/", b"effect0")
        }
        assert found == dict.fromkeys(range(threads * each), 1)
        balances = [int.from_bytes(row.value, "little") for row in clean.get_range(b"account/", b"account0")]
        assert sum(balances) == 100 * accounts
        assert {row.value for row in clean.get_range(b"audit/", b"audit0")} <= {b"600"}
    finally:
        fdb_embedded.close(db)
        fdb_embedded.close(clean)


def test_conflict_ranges_are_read_back_as_ranges(any_db: Any) -> None:
    tr = any_db.create_transaction()
    recording = record_beside(tr)
    assert tr[b"k"].value is None
    assert list(tr.get_range(b"p", b"q")) == []
    assert ranges_of(tr, READ_CONFLICTS) == [(b"k", b"k\0"), (b"p", b"q")]
    assert ranges_of(tr, CONFLICTING_KEYS) == []
    assert (recording.operations, recording.joinable) == ([], True)
    assert overlap([(b"a", b"c")], [(b"b", b"d")]) and not overlap([(b"a", b"b")], [(b"b", b"c")])


def test_a_group_of_writers_is_admitted_as_it_is() -> None:
    class Member:
        def __init__(self) -> None:
            self.recording = Recording()
            self.recording.valued("set", b"k", b"v")

    members = [Member() for _ in range(3)]
    group = Group(members)
    assert (group.members, group.left_out) == (members, [])


WRITES_BY_NAME: list[tuple[str, dict[str, Any]]] = [
    ("set", {"key": b"effect/1", "value": b"x"}),
    ("add", {"key": b"effect/1", "param": b"\1"}),
    ("compare_and_clear", {"key": b"effect/1", "param": b"\1"}),
    ("clear", {"key": b"effect/1"}),
    ("clear_range", {"begin": b"effect/", "end": b"effect0"}),
    ("clear_range_startswith", {"prefix": b"effect/"}),
    ("add_write_conflict_range", {"begin": b"effect/", "end": b"effect0"}),
    ("add_write_conflict_key", {"key": b"effect/1"}),
    ("set_many", {"items": [(b"effect/1", b"x")]}),
    ("clear_many", {"keys": [b"effect/1"]}),
]


@pytest.mark.parametrize("reading", [False, True])
@pytest.mark.parametrize(("method", "arguments"), WRITES_BY_NAME)
def test_writes_take_their_arguments_by_name(
    memory_db: Any, method: str, arguments: dict[str, Any], reading: bool
) -> None:
    def body(tr: Any) -> None:
        tr[b"marker"] = b"x"
        if reading:
            tr[b"read"].wait()
        getattr(tr, method)(**arguments)

    rows = []
    for runner in (run, lambda db, fn: busy_batcher(db).run(fn)):
        memory_db[b"effect/0"] = memory_db[b"effect/1"] = b"\1"
        runner(memory_db, body)
        rows.append([(row.key, row.value) for row in memory_db.get_range(b"effect/", b"effect0")])
    assert rows[0] == rows[1]


def busy_batcher(db: Any) -> Batcher:
    batcher = Batcher(db)
    batcher._under_way.add(object())  # as though others were under way: nobody runs alone
    return batcher


class SlowValue:
    """A value whose second conversion, in the write that follows its record, lets another thread go first."""

    def __init__(self, inside: threading.Event, other: threading.Event) -> None:
        self.inside, self.other, self.times = inside, other, 0

    def as_foundationdb_value(self) -> bytes:
        self.times += 1
        if self.times == 2:
            self.inside.set()
            self.other.wait(0.5)
        return b"slow"


def test_threads_that_share_a_transaction_lose_no_write_and_keep_their_order(memory_db: Any) -> None:
    seen: list[bytes | None] = []

    def body(tr: Any) -> None:
        tr[b"read"].wait()
        inside, done = threading.Event(), threading.Event()

        def other() -> None:
            assert inside.wait(60)
            tr[b"effect/b"] = b"b"
            tr[b"shared"] = b"b"
            done.set()

        thread = threading.Thread(target=other)
        thread.start()
        tr[b"shared"] = SlowValue(inside, done)
        thread.join(60)
        seen.append(tr[b"shared"].value)

    busy_batcher(memory_db).run(body)
    assert memory_db[b"effect/b"] == b"b"
    assert [memory_db[b"shared"]] == seen[-1:]


def test_a_group_that_reads_makes_no_later_commit_keep_its_version(
    memory_db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(memory_db, monkeypatch)
    assert held.run((add_one, b"n0"), (add_one, b"n1")) == [0, 0]
    assert held.groups == [1, 2]
    memory_db[b"later"] = b"x"
    assert not memory_db.dpointer.engine.snapshots.pinned
