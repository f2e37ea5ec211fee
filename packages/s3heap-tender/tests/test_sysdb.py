"""What the sysdb's operations do to a task, on every engine, at a virtual clock."""

from __future__ import annotations

import uuid
from itertools import pairwise
from typing import Any

import pytest

import idempotent_txn
from fdb_schema import OversizeError
from s3heap_tender import (
    Backoff,
    ClaimLostError,
    ClaimRefusedError,
    HeapItem,
    TaskExistsError,
    TaskNotFoundError,
    TransitionError,
    UnknownItemError,
)


def refused(bench: Any, item: Any) -> str:
    with pytest.raises(ClaimRefusedError) as refusal:
        bench.sysdb.claim(item)
    return refusal.value.reason


def test_a_new_task_is_due_at_once_and_pushed_by_the_tender(bench: Any) -> None:
    task = bench.sysdb.create_task("orders", "index", cadence=60.0, payload=b"p")
    assert (task.state, task.gen, task.live_gen, task.epoch) == ("scheduled", 1, 1, 0)
    assert task.due == bench.clock.value / 1e6
    assert bench.heap.peek() == []
    assert bench.tend().pushed == 1
    assert bench.heap.peek() == [task.item]
    assert bench.tend().pushed == 0


def test_creating_again_with_the_same_settings_returns_the_task_there_is(bench: Any) -> None:
    first = bench.sysdb.create_task("orders", "index", cadence=5, payload=b"p")
    assert bench.sysdb.create_task("orders", "index", cadence=5, payload=b"p").id == first.id
    with pytest.raises(TaskExistsError, match="other settings"):
        bench.sysdb.create_task("orders", "index", cadence=6, payload=b"p")
    with pytest.raises(TaskExistsError, match="other settings"):
        bench.sysdb.create_task("orders", "index", cadence=5, payload=b"q")
    assert bench.sysdb.create_task("others", "index", cadence=6).id != first.id
    assert [t.id for t in bench.sysdb.tasks("orders")] == [first.id]
    assert bench.sysdb.find("orders", "index").id == first.id


def test_a_partition_is_a_uuid_or_a_name(bench: Any) -> None:
    partition = uuid.uuid4()
    assert bench.sysdb.create_task(partition, "a").partition == partition
    assert bench.sysdb.create_task("x", "a").partition == bench.sysdb.create_task("x", "b").partition
    with pytest.raises(TypeError, match="UUID or a name"):
        bench.sysdb.create_task(7, "a")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_records": 2}, "max_wait"),
        ({"min_records": 0}, "min_records"),
        ({"cadence": -1}, "cadence"),
        ({"cadence": float("nan")}, "cadence"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"overlap": "allow_all"}, "skip, buffer_one"),
        ({"catch_up": "never"}, "once, all"),
        ({"jitter": -1}, "jitter"),
        ({"backoff": Backoff(factor=0.5)}, "backoff"),
        ({"max_attempts": 1.5}, "max_attempts"),
        ({"max_attempts": 1 << 70}, "can't be stored"),
        ({"min_records": 1 << 70, "max_wait": 1.0}, "can't be stored"),
    ],
)
def test_a_setting_out_of_range_is_named(quick: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        quick.sysdb.create_task("p", "t", **settings)
    assert list(quick.sysdb.tasks()) == []


def test_a_partition_of_a_name_without_end_is_refused(quick: Any) -> None:
    with pytest.raises(OversizeError, match="partition's name"):
        quick.sysdb.create_task("p" * 60_000, "t")


def test_a_payload_over_the_limit_is_refused(quick: Any) -> None:
    with pytest.raises(OversizeError, match="64001 bytes"):
        quick.sysdb.create_task("p", "t", payload=b"x" * 64_001)


def test_a_run_with_nothing_more_to_read_lets_the_task_wait(bench: Any) -> None:
    task = bench.sysdb.create_task("p", "t", cadence=60)
    claim = bench.sysdb.claim(task)
    assert (claim.gen, claim.epoch, claim.attempt, claim.upto_offset) == (1, 1, 0, 0)
    assert bench.sysdb.get(task.id).state == "running"
    bench.sysdb.finish(claim)
    after = bench.sysdb.get(task.id)
    assert (after.state, after.gen, after.live_gen) == ("waiting", 1, 2)
    assert bench.sysdb.are_done([task.item]) == [True]


def test_a_write_during_a_run_causes_the_next_one(bench: Any) -> None:
    task = bench.sysdb.create_task("p", "t", cadence=60)
    claim = bench.sysdb.claim(task)
    bench.write("p", 3)
    bench.sysdb.finish(claim)
    after = bench.sysdb.get(task.id)
    assert (after.state, after.gen, after.completion_offset) == ("scheduled", 2, 0)
    assert after.due == claim.started + 60


def test_a_run_that_read_to_the_end_needs_no_other(bench: Any) -> None:
    task = bench.sysdb.create_task("p", "t", cadence=60)
    claim = bench.sysdb.claim(task)
    bench.write("p", 3)
    bench.sysdb.finish(claim, 3)
    assert (bench.sysdb.get(task.id).state, bench.sysdb.get(task.id).completion_offset) == ("waiting", 3)


def test_a_run_that_claims_to_have_read_what_is_not_written_hides_no_write(bench: Any) -> None:
    task = bench.sysdb.create_task("p", "t", cadence=0)
    bench.write("p", 2)
    bench.sysdb.finish(bench.sysdb.claim(task), 10**12)
    assert (bench.sysdb.get(task.id).state, bench.sysdb.get(task.id).completion_offset) == ("waiting", 2)
    bench.write("p")
    assert bench.tend().swept == 1
    assert bench.sysdb.claim(bench.sysdb.get(task.id)).upto_offset == 3


def test_a_dead_letter_leaves_a_pause_in_force(bench: Any) -> None:
    task = bench.sysdb.create_task("p", "t", cadence=0, max_attempts=1)
    claim = bench.sysdb.claim(task)
    bench.sysdb.pause(task.id)
    bench.sysdb.fail(claim, "broken")
    assert (bench.sysdb.get(task.id).dead, bench.sysdb.get(task.id).paused) == (True, True)
    bench.sysdb.resume(task.id)
    assert bench.sysdb.get(task.id).dead  # a resume is no redrive
    bench.sysdb.pause(task.id)
    bench.sysdb.redrive(task.id, 1)
    assert refused(bench, bench.sysdb.get(task.id)) == "paused"
    bench.sysdb.resume(task.id)
    bench.clock.sleep(1)
    assert bench.sysdb.claim(bench.sysdb.get(task.id)).attempt == 2


def test_a_write_schedules_a_waiting_task_no_sooner_than_its_cadence(bench: Any) -> None:
    task = bench.sysdb.create_task("p", "t", cadence=60)
    claim = bench.sysdb.claim(task)
    bench.sysdb.finish(claim)
    bench.clock.sleep(10)
    bench.write("p")
    assert bench.tend().swept == 1
    after = bench.sysdb.get(task.id)
    assert (after.state, after.gen, after.due) == ("scheduled", 2, claim.started + 60)
    assert refused(bench, after) == "not_due"
    bench.clock.sleep(50)
    assert refused(bench, after) == "not_due"  # two ticks of the clock are kept beyond the cadence
    bench.clock.sleep(0.5)
    assert bench.sysdb.claim(after).upto_offset == 1
    assert bench.tend().swept == 0


def test_mark_dirty_tells_of_a_write_by_the_end_of_the_log(bench: Any) -> None:
    task = bench.sysdb.create_task("p", "t", cadence=0)
    bench.sysdb.finish(bench.sysdb.claim(task))
    bench.sysdb.mark_dirty("p", 7)
    bench.sysdb.mark_dirty("p", 5)
    assert bench.sysdb.log_end("p") == 7
    assert bench.tend().swept == 1
    claim = bench.sysdb.claim(bench.sysdb.get(task.id))
    assert claim.upto_offset == 7
    bench.sysdb.finish(claim)
    bench.sysdb.mark_dirty("p", 7)
    assert bench.tend().swept == 0
    with pytest.raises(ValueError, match="log's end"):
        bench.sysdb.mark_dirty("p", 0)
    with pytest.raises(ValueError, match="1 or more records"):
        bench.write("p", 0)


def test_a_write_that_could_send_the_counter_of_records_round_is_refused(bench: Any) -> None:
    with pytest.raises(ValueError, match="at most"):
        bench.sysdb.mark_dirty("p", 2**64 - 1)
    with pytest.raises(ValueError, match="at most"):
        bench.write("p", 2**63)
    bench.sysdb.mark_dirty("p", 2**62)
    bench.write("p", 2**48)
    assert bench.sysdb.log_end("p") == 2**62 + 2**48


def test_a_claim_is_one_persons_until_its_session_is_dead(bench: Any) -> None:
    task = bench.sysdb.create_task("p", "t", cadence=0)
    claim = bench.sysdb.claim(task)
    other = bench.new_sysdb()
    with pytest.raises(ClaimRefusedError) as refusal:
        other.claim(task)
    assert (refusal.value.reason, refusal.value.session) == ("running", bench.sysdb.sessions.session)
    bench.sysdb.sessions.close()
    retaken = other.claim(task)
    assert (retaken.gen, retaken.epoch, retaken.attempt) == (1, 2, 0)
    with pytest.raises(ClaimLostError, match="epoch 1 no longer holds"):
        bench.sysdb.finish(claim)
    with pytest.raises(ClaimLostError):
        bench.sysdb.fail(claim, "late")
    other.finish(retaken)
    with pytest.raises(ClaimLostError):
        other.finish(retaken)
    assert bench.sysdb.stats()["finishes"] == 1


def test_a_failed_run_is_due_again_after_its_back_off_and_cadence(bench: Any) -> None:
    task = bench.sysdb.create_task("p", "t", cadence=4, backoff=Backoff(initial=1, factor=10, jitter=0))
    bench.sysdb.fail(bench.sysdb.claim(task), ValueError("no"))
    after = bench.sysdb.get(task.id)
    assert (after.state, after.gen, after.attempt, after.last_error) == ("scheduled", 1, 1, "ValueError: no")
    assert after.due == task.due + 4  # the cadence is longer than the back-off
    assert refused(bench, task) == "superseded"
    assert bench.sysdb.are_done([task.item, after.item]) == [True, False]
    bench.clock.sleep(5)
    claim = bench.sysdb.claim(after)
    assert claim.attempt == 1
    bench.sysdb.fail(claim, "again")
    assert bench.sysdb.get(task.id).due == claim.started + 10


def test_a_generation_that_keeps_failing_is_a_dead_letter_until_redriven(bench: Any) -> None:
    task = bench.sysdb.create_task("p", "t", cadence=0, max_attempts=2, backoff=0.0)
    for _ in range(2):
        bench.sysdb.fail(bench.sysdb.claim(bench.sysdb.get(task.id)), "broken")
    dead = bench.sysdb.get(task.id)
    assert (dead.dead, dead.gen, dead.attempt) == (True, 1, 2)
    assert refused(bench, dead) == "dead"
    [letter] = bench.sysdb.dead_letters()
    assert (letter.task, letter.gen, letter.error, letter.failures) == (task.id, 1, "broken", 2)
    with pytest.raises(TransitionError, match="generation 2 is no dead letter"):
        bench.sysdb.redrive(task.id, 2)
    bench.sysdb.redrive(task.id, 1)
    assert bench.sysdb.dead_letters() == []
    claim = bench.sysdb.claim(bench.sysdb.get(task.id))
    assert (claim.gen, claim.attempt) == (1, 3)
    bench.sysdb.finish(claim)
    assert bench.sysdb.get(task.id).attempt == 0
    with pytest.raises(TransitionError):
        bench.sysdb.redrive(task.id, 1)


def test_deleting_ends_a_task_for_ever(bench: Any) -> None:
    task = bench.sysdb.create_task("p", "t", cadence=0)
    claim = bench.sysdb.claim(task)
    assert bench.sysdb.delete(task.id) is True
    assert bench.sysdb.delete(task.id) is False
    with pytest.raises(ClaimLostError, match="deleted"):
        bench.sysdb.finish(claim)
    assert refused(bench, task) == "deleted"
    assert bench.sysdb.are_done([task.item]) == [True]
    with pytest.raises(TaskNotFoundError, match="was deleted"):
        bench.sysdb.get(task.id)
    with pytest.raises(TaskNotFoundError, match="there is no task"):
        bench.sysdb.delete(uuid.uuid4())
    with pytest.raises(TaskExistsError, match="never used again"):
        bench.sysdb.create_task("p", "t", id=task.id)
    assert bench.sysdb.create_task("p", "t").id != task.id


def test_are_done_raises_on_doubt(bench: Any) -> None:
    task = bench.sysdb.create_task("p", "t")
    foreign = HeapItem(uuid.uuid4(), uuid.uuid4(), 1, 0)
    from_the_future = HeapItem(task.partition, task.id, 9, 0)
    assert bench.sysdb.are_done([]) == []
    for doubtful in (foreign, from_the_future):
        with pytest.raises(UnknownItemError, match="nothing is known"):
            bench.sysdb.are_done([task.item, doubtful])


def test_writes_while_paused_accumulate_into_one_run(bench: Any) -> None:
    task = bench.sysdb.create_task("p", "t", cadence=0)
    bench.sysdb.finish(bench.sysdb.claim(task))
    bench.sysdb.pause(task.id)
    for _ in range(3):
        bench.write("p")
        assert bench.tend().swept == 0
    assert bench.sysdb.resume(task.id).state == "scheduled"
    claim = bench.sysdb.claim(bench.sysdb.get(task.id))
    assert claim.upto_offset == 3
    bench.sysdb.finish(claim)
    assert bench.sysdb.get(task.id).state == "waiting"


@pytest.mark.parametrize("catch_up", ["once", "all"])
def test_a_pause_of_what_was_scheduled_already_causes_one_run(bench: Any, catch_up: str) -> None:
    task = bench.sysdb.create_task("p", "t", cadence=1, catch_up=catch_up)
    bench.settle(lambda *_: None, seconds=3)
    bench.write("p")
    bench.tend()
    assert bench.sysdb.pause(task.id).state == "scheduled"
    bench.clock.sleep(100)
    bench.write("p")
    bench.sysdb.resume(task.id)
    assert bench.settle(lambda *_: None, seconds=10) == 1
    assert bench.violations() == []


def test_a_paused_task_finishes_its_run_and_starts_no_other(bench: Any) -> None:
    task = bench.sysdb.create_task("p", "t", cadence=0)
    claim = bench.sysdb.claim(task)
    bench.sysdb.pause(task.id)
    bench.write("p")
    bench.sysdb.finish(claim)
    assert bench.sysdb.get(task.id).state == "waiting"
    assert bench.sysdb.resume(task.id).gen == 2


def test_resuming_what_is_on_the_heap_already_tells_the_schedulers(bench: Any) -> None:
    """No push follows that would."""
    task = bench.sysdb.create_task("p", "t", cadence=0)
    bench.tend()
    bench.sysdb.pause(task.id)
    key = bench.sysdb.layout.keys.pushed(bench.sysdb.layout.shard_of(task.id))
    before = idempotent_txn.run(bench.db, lambda tr: tr.get(key).value)
    bench.sysdb.resume(task.id)
    assert idempotent_txn.run(bench.db, lambda tr: tr.get(key).value) != before


def test_a_paused_task_is_not_claimed_nor_retaken(bench: Any) -> None:
    task = bench.sysdb.create_task("p", "t", cadence=0)
    bench.sysdb.pause(task.id)
    assert refused(bench, task) == "paused"
    bench.sysdb.resume(task.id)
    bench.sysdb.claim(task)
    bench.sysdb.pause(task.id)
    bench.sysdb.sessions.close()
    with pytest.raises(ClaimRefusedError) as refusal:
        bench.new_sysdb().claim(task)
    assert refusal.value.reason == "paused"


def test_run_now_moves_a_run_up_to_what_the_cadence_allows(bench: Any) -> None:
    task = bench.sysdb.create_task("p", "t", cadence=60, min_records=10, max_wait=600)
    claim = bench.sysdb.claim(task)
    bench.sysdb.finish(claim)
    bench.write("p")
    bench.tend()
    waiting = bench.sysdb.get(task.id)
    assert waiting.due == claim.started + 600
    soon = bench.sysdb.run_now(task.id)
    assert (soon.gen, soon.due) == (2, claim.started + 60)
    assert bench.sysdb.are_done([waiting.item, soon.item]) == [True, False]
    bench.tend()
    assert bench.heap.peek() == [soon.item]


def test_min_records_waits_for_more_but_no_longer_than_max_wait(bench: Any) -> None:
    task = bench.sysdb.create_task("p", "t", cadence=0, min_records=10, max_wait=600)
    bench.sysdb.finish(bench.sysdb.claim(task))
    now = bench.clock.value / 1e6
    bench.write("p", 4)
    bench.tend()
    assert bench.sysdb.get(task.id).due == now + 600
    bench.clock.sleep(5)
    bench.write("p", 5)
    assert bench.tend().swept == 0
    bench.write("p", 1)
    assert bench.tend().swept == 1
    moved = bench.sysdb.get(task.id)
    assert (moved.gen, moved.due) == (2, now + 5)


@pytest.mark.parametrize(
    ("overlap", "runs", "survives"),
    [("skip", 1, True), ("buffer_one", 2, True), ("buffer_all", 4, True), ("cancel_other", 2, False)],
)
def test_overlap_says_what_run_now_does_to_a_running_task(quick: Any, overlap: str, runs: int, survives: bool) -> None:
    task = quick.sysdb.create_task("p", "t", cadence=0, overlap=overlap)
    quick.tend()
    claim = quick.sysdb.claim(task)
    for _ in range(3):
        quick.sysdb.run_now(task.id)
    if survives:
        quick.sysdb.finish(claim)
    else:
        with pytest.raises(ClaimLostError):
            quick.sysdb.finish(claim)
    assert 1 + quick.settle(lambda task, gen, epoch: None, seconds=20) == runs
    assert quick.violations() == []


def test_backfill_gives_runs_a_cadence_apart(quick: Any) -> None:
    task = quick.sysdb.create_task("p", "t", cadence=10)
    quick.sysdb.finish(quick.sysdb.claim(task))
    assert quick.sysdb.backfill(task.id, 3).pending_runs == 2
    starts: list[float] = []
    assert quick.settle(lambda task, gen, epoch: starts.append(quick.clock.value / 1e6), seconds=100) == 3
    assert all(later - earlier >= 10 for earlier, later in pairwise(starts))
    with pytest.raises(TransitionError, match="limit is 1000"):
        quick.sysdb.backfill(task.id, 1001)
    with pytest.raises(ValueError, match="1 or more"):
        quick.sysdb.backfill(task.id, 0)


@pytest.mark.parametrize(("catch_up", "runs"), [("once", 1), ("all", 4)])
def test_catch_up_says_how_many_runs_follow_an_outage(quick: Any, catch_up: str, runs: int) -> None:
    task = quick.sysdb.create_task("p", "t", cadence=10, catch_up=catch_up)
    quick.tend()
    quick.sysdb.finish(quick.sysdb.claim(task))
    quick.clock.sleep(20)
    quick.write("p")
    quick.tend()
    quick.clock.sleep(35)
    assert quick.settle(lambda task, gen, epoch: None, seconds=200) == runs
    assert quick.violations() == []


@pytest.mark.parametrize("cadence", [0.1, 0.3, 0.5, 1.0])
def test_runs_that_catch_up_are_no_reason_for_others(quick: Any, cadence: float) -> None:
    """A start comes two ticks of the clock and a look of the scheduler after its due time: that is no outage."""
    quick.sysdb.create_task("p", "t", cadence=cadence, catch_up="all")
    quick.settle(lambda *_: None, seconds=2)
    quick.write("p")
    quick.tend()
    quick.clock.sleep(5 * cadence + 1)
    assert quick.settle(lambda *_: None, seconds=120, step=0.2) <= 1 + 5 + 1 / cadence
    assert quick.sysdb.find("p", "t").state == "waiting"
    assert quick.violations() == []


def test_jitter_spreads_runs_the_same_way_each_time(quick: Any) -> None:
    dues = []
    for number in range(20):
        task = quick.sysdb.create_task("p", f"t{number}", cadence=0, jitter=100)
        quick.sysdb.finish(quick.sysdb.claim(task))
    quick.write("p")
    quick.tend()
    now = quick.clock.value / 1e6
    dues = [task.due - now for task in quick.sysdb.tasks("p")]
    assert all(0 <= due <= 100.001 for due in dues)
    assert len(set(dues)) == 20


def test_a_partition_of_many_tasks_is_swept_in_pages(quick: Any) -> None:
    from s3heap_tender.claims import tending

    for number in range(2 * tending.SWEEP_TASKS + 7):
        quick.sysdb.finish(quick.sysdb.claim(quick.sysdb.create_task("p", f"t{number}", cadence=0)))
    quick.write("p")
    assert quick.tend().swept == 2 * tending.SWEEP_TASKS + 7
    assert quick.tend().swept == 0
    assert {task.state for task in quick.sysdb.tasks()} == {"scheduled"}


def test_many_partitions_of_several_tasks_are_swept_in_transactions_of_a_bounded_size(quick: Any) -> None:
    from s3heap_tender.claims import tending

    steps: list[int] = []
    commit = quick.sysdb.commit

    def counted(name: str, body: Any, *args: Any) -> Any:
        def wrapped(tr: Any, at: Any, *more: Any) -> Any:
            value, done = body(tr, at, *more)
            steps.append(len(done))
            return value, done

        return commit(name, wrapped, *args)

    for number in range(60):
        for name in range(5):
            quick.sysdb.finish(quick.sysdb.claim(quick.sysdb.create_task(f"p{number}", f"t{name}", cadence=0)))
        quick.write(f"p{number}")
    quick.sysdb.commit = counted
    assert quick.tend().swept == 300
    assert max(steps) <= tending.SWEEP_TASKS
    assert quick.tend().swept == 0
