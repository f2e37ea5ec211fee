"""Batches of submits: nothing lost, nothing reordered, nobody waits for company."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from futures_worker.client.basis import intake
from futures_worker.client.basis.intake import MAX_BATCH, MAX_BATCH_BYTES, Intake


class Item:
    def __init__(self, number: int, nbytes: int = 100) -> None:
        self.number = number
        self.nbytes = nbytes


class Store:
    """Remembers batches; a commit can be held up."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def commit(self, batch: Sequence[Item]) -> None:
        self.entered.set()
        assert self.gate.wait(60)
        self.batches.append([item.number for item in batch])

    @property
    def items(self) -> list[int]:
        return [number for batch in self.batches for number in batch]

    def wait_for(self, count: int) -> None:
        end = time.monotonic() + 60
        while len(self.items) < count and time.monotonic() < end:
            time.sleep(0.001)
        assert len(self.items) == count


@pytest.fixture
def store() -> Store:
    return Store()


def test_flush_stores_everything_in_order(store: Store) -> None:
    intake = Intake(store.commit)
    for number in range(3):
        intake.add(Item(number))
    intake.flush()
    assert store.items == [0, 1, 2]
    assert len(intake) == 0


def test_what_nobody_waits_for_is_stored_soon(store: Store) -> None:
    intake = Intake(store.commit)
    intake.add(Item(1))
    store.wait_for(1)
    time.sleep(0.2)  # the ticker falls asleep, and is woken
    intake.add(Item(2))
    store.wait_for(2)
    intake.close()


def test_the_submitting_thread_commits_full_batches(store: Store) -> None:
    intake = Intake(store.commit)
    for number in range(10 * MAX_BATCH):
        intake.add(Item(number))
    intake.flush()
    assert store.items == list(range(10 * MAX_BATCH))
    assert max(map(len, store.batches)) <= MAX_BATCH


def test_batches_are_limited_by_bytes(store: Store) -> None:
    intake = Intake(store.commit)
    sizes = [MAX_BATCH_BYTES // 2, MAX_BATCH_BYTES // 2, 1, 3 * MAX_BATCH_BYTES, 1]
    with intake._committing:
        for number, size in enumerate(sizes):
            intake.add(Item(number, size))
    intake.flush()
    assert store.batches == [[0, 1], [2], [3], [4]]


def test_others_join_the_next_batch_while_a_commit_is_in_flight(store: Store) -> None:
    store.gate.clear()
    intake = Intake(store.commit)
    intake.add(Item(0))
    first = threading.Thread(target=intake.flush)
    first.start()
    assert store.entered.wait(60)
    for number in range(1, 20):
        intake.add(Item(number))  # doesn't block
    second = threading.Thread(target=intake.flush)
    second.start()
    store.gate.set()
    first.join(60)
    second.join(60)
    assert store.items == list(range(20))
    assert store.batches[0] == [0]


def test_flush_returns_only_after_a_commit_in_flight(store: Store) -> None:
    store.gate.clear()
    intake = Intake(store.commit)
    intake.add(Item(0))
    first = threading.Thread(target=intake.flush)
    first.start()
    assert store.entered.wait(60)
    seen: list[int] = []
    second = threading.Thread(target=lambda: (intake.flush(), seen.extend(store.items)))
    second.start()
    store.gate.set()
    second.join(60)
    first.join(60)
    assert seen == [0]


def test_an_interrupt_loses_nothing() -> None:
    stored: list[int] = []
    interrupts = [KeyboardInterrupt(), None]

    def commit(batch: Sequence[Item]) -> None:
        trouble = interrupts.pop(0)
        if trouble is not None:
            raise trouble
        stored.extend(item.number for item in batch)

    intake = Intake(commit)
    with intake._committing:
        for number in range(5):
            intake.add(Item(number))
    with pytest.raises(KeyboardInterrupt):
        intake.flush()
    intake.flush()
    assert stored == [0, 1, 2, 3, 4]


def test_many_threads(store: Store) -> None:
    intake = Intake(store.commit)

    def submit(base: int) -> None:
        for number in range(base, base + 2000):
            intake.add(Item(number))
        intake.flush()

    threads = [threading.Thread(target=submit, args=(base,)) for base in range(0, 8000, 2000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(store.items) == list(range(8000))
    for base in range(0, 8000, 2000):
        own = [n for n in store.items if base <= n < base + 2000]
        assert own == sorted(own)


def test_a_closed_intake_has_no_thread_left(store: Store) -> None:
    intake = Intake(store.commit)
    intake.add(Item(0))
    intake.close()
    ticker: Any = intake._ticker
    ticker.join(60)
    assert not ticker.is_alive()
    assert store.items == [0]


def test_an_interrupt_while_a_batch_is_made_up_loses_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "futures_worker.client.basis.intake.MAX_AGE", 1e9
    )  # only `flush` commits, however slow the machine is

    class Interrupting(Item):
        @property
        def nbytes(self) -> int:
            if armed:
                armed.clear()
                raise KeyboardInterrupt
            return 100

        @nbytes.setter
        def nbytes(self, value: int) -> None:
            pass

    armed: list[int] = []
    intake = Intake(store.commit)
    intake._closed = True  # no ticker: the test flushes
    for number in range(5):
        intake.add(Item(number) if number != 3 else Interrupting(number))
    armed.append(1)
    with pytest.raises(KeyboardInterrupt):
        intake.flush()
    assert store.items == []
    intake.flush()
    assert store.items == [0, 1, 2, 3, 4]


def test_batches_grow_with_what_a_commit_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(intake.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(intake.Intake, "_wake_ticker", lambda self: None)
    sizes: list[int] = []
    taken = [0.0]

    def commit(batch: Any) -> None:
        sizes.append(len(batch))
        clock[0] += taken[0]

    gathering: Any = intake.Intake(commit)
    for cost, expected in ((0.0001, 6), (0.010, 100), (9.0, 250)):
        sizes.clear()
        taken[0] = cost
        for _ in range(2_000):
            clock[0] += 0.0001
            gathering.add(Item(0))
        assert abs(sizes[-1] - expected) <= 2
        gathering.flush()
