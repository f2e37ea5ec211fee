"""Seeded fault runs on the embedded engine: exactly as many effects as calls, counted as rows.

A fifth and more of all commits are lost before or after they are made, or land late, when their caller has long gone
on; others conflict, are too old, are delayed, cancelled, timed out or interrupted; a cleaner runs all the while.
The full size is `MAINSPRING_SEEDS=10000`.
"""

from __future__ import annotations

import itertools
import random
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import seed_params

import fdb_embedded
from fdb_embedded import Faults
from idempotent_txn import Batcher, Cleaner, TransactionTimedOut, run, run_committed

STRATEGIES = ["native", "lanes", "ids"]
CALLS = 12
_numbers = itertools.count()


class World:
    """One database in this process: a handle that meets faults, and one that doesn't."""

    def __init__(self, seed: int, faulty: bool = True) -> None:
        name = f"memory:faults-{uuid.uuid4().hex}"
        self.db = fdb_embedded.open(
            name,
            faults=Faults(seed=seed)
            if not faulty
            else Faults(
                seed=seed,
                not_committed=0.05,
                too_old=0.03,
                unknown_before=0.07,
                unknown_after=0.08,
                unknown_late=0.08,
                timed_out_late=0.08,
                future_version=0.02,
                process_behind=0.01,
                delay=0.02,
                version_jump=0.002,
            ),
        )
        self.clean = fdb_embedded.open(name)
        self.expected: Counter[int] = Counter()

    def close(self) -> None:
        for handle in (self.db, self.clean):
            fdb_embedded.close(handle)

    def land_late_commits(self) -> None:
        self.db.dpointer.faulty.land_all()

    def effects(self) -> Counter[int]:
        return Counter(int(row.key.split(b"/")[1]) for row in self.clean.get_range(b"effect/", b"effect0"))

    def check(self) -> None:
        self.land_late_commits()
        assert self.effects() == self.expected
        total = sum(self.expected.values())
        assert int.from_bytes(self.clean[b"added"] or b"", "little") == total
        assert int.from_bytes(self.clean[b"counted"] or b"", "little") == total


@pytest.fixture
def world() -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def make(seed: int, faulty: bool = True) -> World:
        worlds.append(World(seed, faulty))
        return worlds[-1]

    yield make
    for made in worlds:
        made.close()


def blind(tr: Any, call: int) -> int:
    """An effect that reads nothing: a row of its own for each time it takes place."""
    tr[b"effect/%d/" % call + uuid.uuid4().bytes] = b""
    tr.add(b"added", (1).to_bytes(8, "little"))
    tr.add(b"counted", (1).to_bytes(8, "little"))
    return call


def read_modify_write(tr: Any, call: int) -> int:
    counted = int.from_bytes(tr[b"counted"].value or b"", "little")
    tr[b"counted"] = (counted + 1).to_bytes(8, "little")
    tr[b"effect/%d/" % call + uuid.uuid4().bytes] = b""
    tr.add(b"added", (1).to_bytes(8, "little"))
    return call


def one_call(world: World, strategy: Any, rng: random.Random, batcher: Batcher) -> None:
    call = next(_numbers)
    body = rng.choice((blind, read_modify_write))
    kind = rng.choice(("plain", "plain", "plain", "batched", "stamped", "named", "deadline", "cancelled"))
    if kind == "batched":
        assert batcher.run(body, call) == call
    elif kind == "stamped":
        outcome = run_committed(world.db, body, call, strategy=strategy)
        assert outcome.value == call and outcome.commit is not None
    elif kind == "named":
        assert run(world.db, body, call, strategy=strategy, idempotency_id=b"call %d" % call) == call
    elif kind == "deadline":
        try:
            assert run(world.db, body, call, strategy=strategy, timeout=rng.random() * 0.01) == call
        except TransactionTimedOut:
            return
    elif kind == "cancelled":
        cancels = [rng.random() < 0.5, False]

        def cancelling(tr: Any) -> int:
            body(tr, call)
            if cancels.pop(0) if cancels else False:
                thread = threading.Thread(target=tr.cancel)
                thread.start()
                cancellers.append(thread)
            return call

        cancellers: list[threading.Thread] = []
        assert run(world.db, cancelling, strategy=strategy) == call
        for thread in cancellers:
            thread.join(60)
    else:
        assert run(world.db, body, call, strategy=strategy) == call
    world.expected[call] += 1


@pytest.mark.parametrize("seed", seed_params(200))
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_exactly_as_many_effects_as_calls_in_every_seed(world: Callable[..., World], strategy: Any, seed: int) -> None:
    print(f"seed {seed}")
    here = world(seed)
    batcher = Batcher(here.db, strategy=strategy)
    cleaner = Cleaner(here.clean, IDEMPOTENCY_IDS_MIN_AGE_SECONDS=3_600)
    threads = 1 + seed % 3
    failures: list[BaseException] = []

    def work(number: int) -> None:
        rng = random.Random(f"{seed} {number}")
        try:
            for _ in range(CALLS // threads):
                one_call(here, strategy, rng, batcher)
                if rng.random() < 0.2:
                    cleaner.run_once()
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(1, threads)]
    for worker in workers:
        worker.start()
    work(0)
    for worker in workers:
        worker.join(120)
        assert not worker.is_alive()
    if failures:
        raise failures[0]
    here.check()


class Interruption(BaseException):
    """What a signal handler raises into the main thread, anywhere."""


# A signal handler that raises inside a destructor is reported there, and nowhere else.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("seed", seed_params(30))
@pytest.mark.parametrize("faulty", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_interruption_at_any_moment_leaves_no_doubt_in_any_seed(
    world: Callable[..., World], strategy: Any, faulty: bool, seed: int
) -> None:
    """After it came out of `run`, the effect is there once or not at all, as its note says, and nothing comes later."""
    print(f"seed {seed}")
    here = world(seed, faulty)
    rng = random.Random(seed)
    db = here.db if faulty else here.clean
    run(db, lambda tr: tr.set(b"warm", b"x"))
    noted: dict[int, bool] = {}
    seen: Counter[int] = Counter()

    def interrupt(*_: Any) -> None:
        raise Interruption

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(15):
            call = next(_numbers)
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.00005 + rng.random() * 0.002)
                    run(db, rng.choice((blind, read_modify_write)), call, strategy=strategy)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except Interruption as error:
                for note in getattr(error, "__notes__", ()):
                    noted[call] = "did not" not in note
            else:
                noted[call] = True
            seen = here.effects()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    here.land_late_commits()
    effects = here.effects()
    assert effects == seen
    assert all(count == 1 for count in effects.values())
    assert {call: bool(effects[call]) for call in noted} == noted


def test_a_late_commit_of_a_blind_write_never_lands_after_its_call_returned(world: Callable[..., World]) -> None:
    for seed in range(40):
        here = world(seed)
        for strategy in STRATEGIES:
            call = next(_numbers)
            run(here.db, blind, call, strategy=strategy)
            here.expected[call] += 1
            deadline = time.monotonic() + 60
            while here.db.dpointer.faulty._late and time.monotonic() < deadline:
                here.land_late_commits()
            assert here.effects() == here.expected
