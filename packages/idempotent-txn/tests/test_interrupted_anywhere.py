"""`run`, interrupted at each place of it and of the engine: the effect is there once or not at all, and nothing is lost.

Each place of this package's own code is met in every run of the tests where nothing else goes wrong, and with some of
the fates of a commit, drawn anew each time; of the engine's, some. All of both where `MAINSPRING_SEEDS` is set.
"""

from __future__ import annotations

import gc
import os
import random
import threading
import uuid
from types import CodeType
from typing import Any

import pytest
from conftest import seed_params
from support.interrupting import Interruption, arrivals

from idempotent_txn import Batcher, run, run_committed
from idempotent_txn.ids.keyspace import ROWS
from idempotent_txn.lanes import Lanes
from idempotent_txn.session import session_of

PATIENCE = 60
ALL = "MAINSPRING_SEEDS" in os.environ
PLACES_OF_THE_ENGINE = 25


def put(tr: Any, name: bytes) -> bytes:
    tr._planned = True
    tr[b"effect/" + name + b"/" + uuid.uuid4().bytes] = b""
    return name


def read_and_put(tr: Any, name: bytes) -> bytes:
    tr._planned = True
    count = int.from_bytes(tr[b"count"].value or b"", "little")
    tr[b"count"] = (count + 1).to_bytes(8, "little")
    return put(tr, name)


def plainly(db: Any, strategy: Any, name: bytes) -> bytes:
    return run(db, put, name, strategy=strategy)


def reading(db: Any, strategy: Any, name: bytes) -> bytes:
    return run(db, read_and_put, name, strategy=strategy)


def with_its_stamp(db: Any, strategy: Any, name: bytes) -> bytes:
    outcome = run_committed(db, put, name, strategy=strategy)
    assert outcome.commit is not None
    return outcome.value


def by_name(db: Any, strategy: Any, name: bytes) -> bytes:
    return run(db, put, name, strategy=strategy, idempotency_id=uuid.uuid4().bytes, on_attempt=lambda _: None)


def with_a_deadline(db: Any, strategy: Any, name: bytes) -> bytes:
    return run(db, read_and_put, name, strategy=strategy, timeout=60)


def in_a_batch(db: Any, strategy: Any, name: bytes) -> bytes:
    return Batcher(db, strategy=strategy).run(put, name)


CALLS = [plainly, reading, with_its_stamp, by_name, with_a_deadline]
COMBINATIONS = [
    (None, plainly),  # the others go the same way as by `native`
    *(("native", call) for call in CALLS),
    *(("lanes", call) for call in CALLS if call is not by_name),  # an id of one's own goes by `ids`
    *(("ids", call) for call in CALLS),
    *(("off", call) for call in (plainly, reading)),
]
FATES: list[list[tuple[Any, int]]] = [
    [],
    [("before", 1020)],
    [("before", 1021)],
    [("after", 1021)],
    [("after", 1031)],
    [("cancelled", 0)],
    [("late", 1021), ("before", 1020)],
]


def of_this_package(code: CodeType) -> bool:
    return "/idempotent_txn/" in code.co_filename


def of_the_engine(code: CodeType) -> bool:
    return "/fdb_embedded/" in code.co_filename or "/fdb_schema/" in code.co_filename


class Alarm(Exception):
    """What a handler of SIGALRM raises by the usual recipe: no `BaseException`, so that others may take it for an error."""


def interrupt(
    db: Any, strategy: Any, call: Any, fates: list[Any], number: int, chosen: Any, raises: Any = KeyboardInterrupt
) -> Interruption:
    """One call, interrupted at one place, and everything that must hold afterwards."""
    name = uuid.uuid4().hex.encode()
    db.injector.plan.clear()
    db.injector.next(*fates)
    delivered = None
    returned = False
    with arrivals(number, chosen, raises) as here:
        try:
            assert call(db, strategy, name) == name
            returned = True
        except raises as error:
            delivered = error
    what = f"{call.__name__} by {strategy} with {fates}, interrupted at {here.where}"
    prefix = b"effect/" + name + b"/"

    def effects() -> int:
        return len(list(db.get_range_startswith(prefix)))

    found = effects()
    if not here.came or here.lost or (raises is Alarm and returned):
        assert delivered is None and found == 1, what
    else:
        assert delivered is not None, what
        assert found <= 1, what
        for note in getattr(delivered, "__notes__", ()):
            assert found == ("did not" not in note), f"{what}: {note}"
    delivered = None
    db.injector.plan.clear()
    db.injector.land_late_commits()
    assert effects() == found, f"a commit came later: {what}"
    threads = [threading.Thread(target=lambda: run(db, put, b"next", strategy=strategy), daemon=True) for _ in range(2)]
    for thread in threads:  # hangs are met here, where they can be told
        thread.start()
        thread.join(PATIENCE)
        assert not thread.is_alive(), f"the next call hangs: {what}"
    run(db, put, b"next", strategy=strategy)
    assert effects() == found, what
    check_nothing_is_lost(db, strategy, call, what)
    return here


def check_nothing_is_lost(db: Any, strategy: Any, call: Any, what: str) -> None:
    if call is by_name:
        return
    if strategy == "lanes":
        lanes = session_of(db).strategy("lanes", explicit=False)
        assert isinstance(lanes, Lanes)
        if len(lanes._free) != lanes._count:
            gc.collect()
        assert len({lane.key for lane in lanes._free}) == len(lanes._free) == lanes._count <= 2, what
        assert not lanes._mutex.locked(), what
    if strategy == "ids":
        assert len(list(db.get_range_startswith(ROWS))) == 1, f"a row is never cleared: {what}"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("seed", seed_params(1, fresh=1, most=1))
@pytest.mark.parametrize(("strategy", "call"), COMBINATIONS)
def test_an_interruption_at_each_place_of_this_package(
    injected_memory: Any, strategy: Any, call: Any, seed: int
) -> None:
    print(f"seed {seed}")
    run(injected_memory, put, b"warm", strategy=strategy)
    drawn = FATES[1:] if ALL else random.Random(f"{seed} {strategy} {call.__name__}").sample(FATES[1:], 2)
    for fates in [FATES[0], *drawn]:
        if fates and strategy == "off" and fates != [("before", 1020)]:
            continue  # it makes no promise there
        number = 0
        while interrupt(injected_memory, strategy, call, fates, number, of_this_package).came:
            number += 1
        assert number > 5


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("seed", seed_params(1, fresh=1, most=1))
@pytest.mark.parametrize("call", [plainly, reading, in_a_batch])
@pytest.mark.parametrize("strategy", [None, "lanes", "ids"])
def test_a_signal_handler_may_raise_any_exception(injected_memory: Any, strategy: Any, call: Any, seed: int) -> None:
    print(f"seed {seed}")
    run(injected_memory, put, b"warm", strategy=strategy)
    drawn = FATES[1:] if ALL else random.Random(f"{seed} {strategy} {call.__name__}").sample(FATES[1:], 1)
    for fates in [FATES[0], *drawn]:
        number = 0
        while interrupt(injected_memory, strategy, call, fates, number, of_this_package, Alarm).came:
            number += 1
        assert number > 5


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("seed", seed_params(2, fresh=1, most=4))
@pytest.mark.parametrize(("strategy", "call"), COMBINATIONS)
def test_an_interruption_at_any_place_of_the_engine(injected_memory: Any, strategy: Any, call: Any, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    run(injected_memory, put, b"warm", strategy=strategy)
    fates = FATES[0] if strategy == "off" else rng.choice(FATES)
    places = interrupt(injected_memory, strategy, call, fates, 1_000_000, of_the_engine).passed
    chosen = range(places)
    if not ALL:
        chosen = sorted(rng.sample(chosen, min(places, PLACES_OF_THE_ENGINE)))
    for number in chosen:
        interrupt(injected_memory, strategy, call, fates, number, of_the_engine)
