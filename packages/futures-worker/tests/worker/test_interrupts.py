"""Tasks that are interrupted: what was cancelled and has a grace, what has run for its soft limit; at any instruction."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from support.interrupting import arrivals

from fdb_datamodel import MailEntry
from futures_worker import SoftTimeLimitExceeded, TaskCancelled, cancel_requested, payload
from futures_worker.objects.work_directory import WorkDirectory
from futures_worker.worker import messages
from futures_worker.worker.child import interrupts
from futures_worker.worker.child.coroutines import finished
from futures_worker.worker.child.interrupts import INTERRUPT_SIGNAL, Gate, SharedWords, shielded
from futures_worker.worker.deciding.instructions import (
    ChildEnded,
    ChildSaid,
    InterruptTask,
    KillChild,
    MailArrived,
)
from futures_worker.worker.messages import CANCEL, LIMIT
from futures_worker.worker.soft_timeout import soft_timeout_of, split_soft_timeout, with_soft_timeout

from .core_driver import Driver, claim, outcomes, sent
from .test_children import Pool, double


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], tuple[Gate, SharedWords]]]:
    """Gates as a child has one, in this process."""
    before = signal.getsignal(INTERRUPT_SIGNAL)

    def make() -> tuple[Gate, SharedWords]:
        shared = SharedWords()
        made = Gate(shared)
        monkeypatch.setattr(interrupts, "_gate", made)
        return made, shared

    yield make
    signal.signal(INTERRUPT_SIGNAL, before)


OURS = (interrupts.__file__, __file__)


@shielded
def bookkeeping(done: list[str]) -> None:
    done.append("begun")
    done.append("ended")


def careful(done: list[str]) -> str:
    bookkeeping(done)
    try:
        for _ in range(2):
            done.append("step")
    finally:
        done.append("cleaned")
    return "value"


@pytest.mark.parametrize("cause", [CANCEL, LIMIT])
def test_a_task_that_is_interrupted_anywhere_raises_or_returns_and_nothing_of_ours_is_torn(
    gate: Callable[[], tuple[Gate, SharedWords]], cause: int
) -> None:
    kind = TaskCancelled if cause == CANCEL else SoftTimeLimitExceeded
    came: set[str] = set()

    def task(own: Gate, done: list[str]) -> Any:
        own.begin(7, 1e-9)
        try:
            return own.run(careful, done)
        except BaseException as error:
            return error
        finally:
            own.end()

    places = 0
    for number in itertools.count():
        own, shared = gate()
        done: list[str] = []

        def strike(frame: FrameType, own: Gate = own, shared: SharedWords = shared) -> None:
            shared.ask(cause, 7)
            own._hear(0, frame)

        with arrivals(number, lambda code: code.co_filename in OURS, handle=strike) as interruption:
            outcome = task(own, done)
        if not interruption.came:
            break
        places += 1
        assert outcome == "value" or type(outcome) is kind, (outcome, interruption.where)
        assert done[:1] in ([], ["begun"]) and done.count("begun") == done.count("ended"), "it is shielded"
        assert own._state == interrupts._AFTER
        came.add(type(outcome).__name__)
        # The task after it never sees what was meant for this one.
        own.begin(8, None)
        signal.raise_signal(INTERRUPT_SIGNAL)
        assert own.run(careful, []) == "value"
        assert shared.heard()
        shared.close()
    assert places > 10
    assert came == {"str", kind.__name__}


def test_what_was_asked_before_a_task_began_comes_when_it_begins(
    gate: Callable[[], tuple[Gate, SharedWords]],
) -> None:
    own, shared = gate()
    own.begin(3, None)
    own.end()
    shared.ask(CANCEL, 4)
    signal.raise_signal(INTERRUPT_SIGNAL)
    assert not shared.heard()
    own.begin(4, None)
    ran: list[str] = []
    assert cancel_requested()
    with pytest.raises(TaskCancelled):
        own.run(careful, ran)
    assert ran == []
    assert shared.heard() and own.struck
    own.begin(5, None)
    assert not cancel_requested()


def test_a_cancel_comes_after_the_limit_and_no_limit_after_a_cancel(
    gate: Callable[[], tuple[Gate, SharedWords]],
) -> None:
    own, shared = gate()

    def ask(cause: int) -> None:
        shared.ask(cause, 1)
        signal.raise_signal(INTERRUPT_SIGNAL)

    def both() -> str:
        try:
            ask(LIMIT)
        except SoftTimeLimitExceeded:
            ask(CANCEL)
        return "not reached"

    own.begin(1, 1e-9)
    with pytest.raises(TaskCancelled):
        own.run(both)

    def again() -> str:
        try:
            ask(CANCEL)
        except KeyboardInterrupt:
            ask(LIMIT)
            ask(CANCEL)
        return "cleaned"

    own, shared = gate()
    own.begin(1, 1e-9)
    assert own.run(again) == "cleaned"
    assert shared.heard()


def test_a_limit_counts_from_when_the_task_s_code_began(gate: Callable[[], tuple[Gate, SharedWords]]) -> None:
    own, shared = gate()
    own.begin(1, 0.05)

    def task() -> str:
        shared.ask(LIMIT, 1)  # the worker counts from earlier
        signal.raise_signal(INTERRUPT_SIGNAL)
        assert not shared.heard()
        deadline = time.monotonic() + 0.05
        while time.monotonic() < deadline:
            pass
        signal.raise_signal(INTERRUPT_SIGNAL)
        return "not reached"

    with pytest.raises(SoftTimeLimitExceeded):
        own.run(task)


async def waits(shared: SharedWords, cause: int, seen: list[Any]) -> str:
    loop = asyncio.get_running_loop()
    shared.ask(cause, 1)
    loop.call_later(0.01, signal.raise_signal, INTERRUPT_SIGNAL)
    try:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(60))
    except (asyncio.CancelledError, SoftTimeLimitExceeded) as error:
        seen.append(error)
        task = asyncio.current_task()
        assert task is not None
        if isinstance(error, SoftTimeLimitExceeded):
            assert not task.cancelling()
            return "in time"
        raise
    return "not reached"


def test_a_coroutine_is_cancelled_at_its_await(gate: Callable[[], tuple[Gate, SharedWords]]) -> None:
    own, shared = gate()
    own.begin(1, 1e-9)
    seen: list[Any] = []
    assert own.run(lambda: finished(waits(shared, LIMIT, seen))) == "in time"
    assert "soft_timeout of 1e-09 s" in str(seen[0])
    own, shared = gate()
    own.begin(1, 1e-9)
    with pytest.raises(asyncio.CancelledError):
        own.run(lambda: finished(waits(shared, CANCEL, seen)))
    assert not isinstance(seen[1], SoftTimeLimitExceeded)

    async def lets_go() -> None:
        asyncio.get_running_loop().call_later(0.01, signal.raise_signal, INTERRUPT_SIGNAL)
        await asyncio.sleep(60)

    own, shared = gate()
    own.begin(1, 1e-9)
    shared.ask(LIMIT, 1)
    with pytest.raises(SoftTimeLimitExceeded) as caught:
        own.run(lambda: finished(lets_go()))
    assert type(caught.value) is SoftTimeLimitExceeded, "one that pickles"


# --- real children


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    directory = WorkDirectory(tmp_path / "spill", tmp_path)
    made = Pool(directory)
    try:
        yield made
    finally:
        made.processes.close()
        directory.remove()


def hop(number: int) -> int:
    deadline = time.perf_counter() + 0.0005
    while time.perf_counter() < deadline:
        pass
    return number


def stuck(path: str) -> str:
    Path(path).touch()
    until = time.monotonic() + 60
    try:
        while time.monotonic() < until:
            sum(range(1000))
    except KeyboardInterrupt:
        asked: list[bool] = []
        thread = threading.Thread(target=lambda: asked.append(cancel_requested()))
        thread.start()
        thread.join()
        return f"told {asked[0]}"
    return "never"


def test_interrupts_at_any_time_hit_the_task_that_is_meant_or_none(pool: Pool) -> None:
    seed = random.randrange(10_000)
    print("seed", seed)
    rng = random.Random(seed)
    child = pool.processes.spawn(0)
    struck = 0
    for number in range(1, 120):
        tasks = [pool.task(hop, number) for _ in range(rng.choice((1, 1, 3)))]
        pool.send(child, *tasks)
        meant = rng.choice(tasks)[0] - rng.choice((0, 0, 0, 1))
        deadline = time.perf_counter() + rng.random() * 0.001
        while time.perf_counter() < deadline:
            pass
        if rng.random() < 0.8:
            pool.processes.interrupt(child, meant, rng.choice((CANCEL, LIMIT)))
        heard = pool.hear(child, len(tasks))
        assert [said[1] for said in heard] == [task[0] for task in tasks]
        failed = [said for said in heard if said[0] == messages.FAILED]
        for said in failed:
            assert said[1] == meant
            kind = payload.Failure.from_bytes(said[4]).error_type
            assert kind.endswith(("TaskCancelled", "SoftTimeLimitExceeded"))
        after = heard[heard.index(failed[0]) + 1 :] if failed else []
        assert {said[0] for said in after} <= {messages.SKIPPED}, "nothing else runs in a process that was interrupted"
        assert messages.SKIPPED not in {said[0] for said in heard[: len(heard) - len(after)]}
        if failed:
            struck += 1
            assert pool.ended(child).status == 0
            child = pool.processes.spawn(number)
    assert struck


@pytest.mark.parametrize("task", ["busy", "asleep"])
def test_a_task_is_interrupted_wherever_it_is(pool: Pool, task: str) -> None:
    child = pool.processes.spawn(0)
    flag = pool.directory.path / "begun"
    pool.send(child, pool.task(stuck, str(flag)) if task == "busy" else pool.task(time.sleep, 600))
    while task == "busy" and not flag.exists():
        time.sleep(0.005)
    pool.processes.interrupt(child, 1, CANCEL)
    (said,) = pool.hear(child)
    if task == "busy":
        assert payload.load_result(said[3]) == "told True"
    else:
        assert payload.Failure.from_bytes(said[4]).error_type.endswith("TaskCancelled")
    assert pool.ended(child).status == 0
    fresh = pool.processes.spawn(1)
    pool.send(fresh, pool.task(double, 4))
    assert payload.load_result(pool.hear(fresh)[0][3]) == 8


# --- the worker's core


def cancel(number: int, grace: float) -> MailArrived:
    return MailArrived((MailEntry(claim(number).id, "cancel", grace=grace),))


def test_a_cancelled_task_with_a_grace_is_told_and_killed_when_that_is_over() -> None:
    d = Driver()
    d.start(claim(1))
    assert d.say(cancel(1, 5.0)) == [InterruptTask(0, 0, CANCEL)]
    assert d.core.deadline() == d.now + 5.0
    assert d.say(cancel(1, 1.0)) == [], "told once"
    assert d.say(after=4.0) == []
    assert KillChild(0) in d.say(after=1.0)
    assert outcomes(d.say(ChildEnded(0, "signal SIGKILL (pid 7)"))) == []
    assert d.core.tasks == {}


def test_one_that_ends_within_its_grace_ends_nothing_else() -> None:
    d = Driver()
    d.start(claim(1))
    d.say(cancel(1, 5.0))
    assert outcomes(d.result(0, 0)) == [], "what it returns is dropped"
    assert sent(d.claim(claim(2))) == [2]
    assert not d.only(KillChild, d.say(after=100.0))
    assert [one.claim.id for one in outcomes(d.result(0, 1))] == [claim(2).id]


def test_a_future_that_is_to_run_again_has_no_two_tasks() -> None:
    d = Driver(slots=2)
    d.start(claim(1))
    d.say(cancel(1, 500.0))
    again = d.claim(claim(1, attempt=2))
    assert KillChild(0) in again
    assert sent(again) == [1] and d.child_of(1) in (0, 1)
    d.say(ChildEnded(0, "signal SIGKILL (pid 7)"))
    assert [one.claim.attempt for one in outcomes(d.result(d.child_of(1), d.seq_of(1)))] == [2]


def test_a_cancelled_task_that_its_child_began_meanwhile_is_stopped() -> None:
    d = Driver()
    d.core.pace.observe(b"f", 0.0001)
    assert sent(d.start(claim(1), claim(2))) == [1, 2]
    d.say(cancel(2, 5.0))  # it is to be taken back, but the child has read it
    assert InterruptTask(0, 1, CANCEL) in d.result(0, 0)


def test_an_actor_and_a_child_that_is_dying_are_not_told() -> None:
    d = Driver()
    d.start(claim(1, name="actor Hits"))
    assert d.say(cancel(1, 5.0)) == [KillChild(0)]


def test_a_soft_limit_interrupts_once_and_the_hard_one_kills() -> None:
    d = Driver()
    options = with_soft_timeout(b"rest", 2.0)
    d.start(claim(1, call_options=options, run_timeout=10.0))
    assert d.core.deadline() == d.now + 2.0
    assert d.say(after=2.0) == [InterruptTask(0, 0, LIMIT)]
    assert d.say(after=1.0) == []
    assert KillChild(0) in d.say(after=7.0)
    d = Driver()
    d.start(claim(1, call_options=options))
    d.say(cancel(1, 60.0))
    assert d.say(after=30.0) == [], "it is to end anyway"


def test_a_soft_limit_travels_with_the_options() -> None:
    options = with_soft_timeout(b"lg1\x00rest", 1.5)
    assert soft_timeout_of(options) == 1.5
    assert split_soft_timeout(options) == (1.5, b"lg1\x00rest")
    assert split_soft_timeout(b"st1") == (None, b"st1")
    assert soft_timeout_of(b"") is None


def test_what_a_result_says_of_a_cancelled_task_is_dropped_wherever_it_is_kept() -> None:
    d = Driver()
    (task,) = [d.start(claim(1)), d.core.tasks[claim(1).id]][1:]
    d.say(cancel(1, 5.0))
    dropped = d.say(ChildSaid(0, [[messages.STORED, 0, 10, 100_000, task.object_name]]))
    assert [type(one).__name__ for one in dropped if type(one).__name__ == "DropObject"] == ["DropObject"]
