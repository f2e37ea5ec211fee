"""The product with one rule of it broken: the simulation's histories show it, so the checker would have told us.

The model's mutants break the protocol on paper; these break the code that runs.
"""

from __future__ import annotations

import contextlib
import sys
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fdb_schema import open_database
from s3heap_tender import failpoints, history
from s3heap_tender.claims import outbox, transitions
from s3heap_tender.errors import ClaimLostError
from s3heap_tender.objects.heap_io import HeapIO
from s3heap_tender.rows import core

MOST_SEEDS = 60
Patch = pytest.MonkeyPatch


def starts_too_soon(patch: Patch) -> None:
    patch.setattr(core, "cadence_floor", lambda row: 0)
    patch.setattr(core, "earliest_start", lambda row: row.due)


def settles_a_lost_claim(patch: Patch) -> None:
    def check_claim(task: Any, row: Any, gen: int, epoch: int) -> Any:
        if row is None:
            raise ClaimLostError("deleted")
        return row

    patch.setattr(core, "check_claim", check_claim)


def finishes_without_a_look_at_the_log(patch: Patch) -> None:
    finished = core.finished
    patch.setattr(core, "finished", lambda task, row, upto, tail, now: finished(task, row, upto, min(tail, upto), now))


def takes_the_current_generation_for_done(patch: Patch) -> None:
    patch.setattr(core, "is_done", lambda row, item: item.gen <= row.gen)


def leaves_no_intent(patch: Patch) -> None:
    patch.setattr(transitions, "put_intent", lambda tr, at, task, row: None)


def clears_whatever_intent_is_there(patch: Patch) -> None:
    def clear(tr: Any, at: Any, shard: int, pushed: Any) -> int:
        for intent, _ in pushed:
            tr.clear(at.keys.intent(shard, intent.item.task))
        return 0

    patch.setattr(outbox, "clear_intents", clear)


def repeats_a_write_without_reading_again(patch: Patch) -> None:
    def settle(self: Any, key: str, body: bytes, if_match: str | None) -> str:
        try:
            return self.store.put(key, body, if_match=if_match)
        except Exception:
            return "whatever"

    patch.setattr(HeapIO, "_settle_put", settle)


def sweeps_without_a_new_generation(patch: Patch) -> None:
    def written(task: Any, row: Any, tail: int, now: int) -> Any:
        return row

    patch.setattr(core, "written", written)


def forgets_the_epoch(patch: Patch) -> None:
    claimed = core.claimed
    patch.setattr(core, "claimed", lambda row, *rest: replace(claimed(row, *rest), epoch=row.epoch))


def takes_a_retake_for_a_new_look_at_the_log(patch: Patch) -> None:
    claimed = core.claimed

    def seeing_all(row: Any, session: str, tail: int, now: int) -> Any:
        return replace(claimed(row, session, tail, now), claim_tail=tail, claim_again=row.again)

    patch.setattr(core, "claimed", seeing_all)


def drops_a_write_below_the_known_end(patch: Patch) -> None:
    patch.setattr(core, "unread", lambda row, tail: max(0, tail - row.completion))


def stores_no_later_start(patch: Patch) -> None:
    patch.setattr(core, "begun", lambda row, leeway, now: row)


def promises_no_leeway(patch: Patch) -> None:
    begun = core.begun
    patch.setattr(core, "begun", lambda row, leeway, now: begun(row, 0, now))


MUTANTS = [
    starts_too_soon,
    stores_no_later_start,
    promises_no_leeway,
    settles_a_lost_claim,
    finishes_without_a_look_at_the_log,
    takes_the_current_generation_for_done,
    leaves_no_intent,
    clears_whatever_intent_is_there,
    repeats_a_write_without_reading_again,
    sweeps_without_a_new_generation,
    forgets_the_epoch,
    takes_a_retake_for_a_new_look_at_the_log,
    drops_a_write_below_the_known_end,
]


def run_nothing(task: Any, gen: int, epoch: int) -> None:
    return None


def a_claim_is_taken_over(bench: Any) -> None:
    task = bench.sysdb.create_task("p", "t", cadence=0)
    bench.tend()
    claim = bench.sysdb.claim(task)
    bench.sysdb.sessions.close()
    other = bench.new_sysdb()
    other.claim(task)
    with contextlib.suppress(ClaimLostError):
        bench.sysdb.finish(claim)


def a_write_comes_during_a_run(bench: Any) -> None:
    task = bench.sysdb.create_task("p", "t", cadence=0)
    bench.tend()
    claim = bench.sysdb.claim(task)
    bench.sysdb.mark_dirty("p", 1)
    bench.tend()
    bench.sysdb.finish(claim)
    bench.settle(run_nothing, seconds=5)


def a_generation_is_moved_while_it_is_pushed(bench: Any) -> None:
    task = bench.sysdb.create_task("p", "t", cadence=0, min_records=9, max_wait=60)
    bench.settle(run_nothing, seconds=3)
    bench.sysdb.mark_dirty("p", 1)

    def move(name: str) -> None:
        if name == "sysdb.clear.before":
            failpoints.disarm()
            bench.sysdb.run_now(task.id)

    failpoints.observe(move)
    bench.settle(run_nothing, seconds=90)


def a_write_comes_before_a_run_is_taken_over(bench: Any) -> None:
    task = bench.sysdb.create_task("p", "t", cadence=0)
    bench.tend()
    bench.sysdb.claim(task)
    bench.sysdb.sessions.close()
    bench.write("p")
    other = bench.new_sysdb()
    other.finish(other.claim(task))  # of the run that went on, and that had read before the write
    bench.sysdb, bench.heap = other, bench.new_heap(other)
    bench.tender = type(bench.tender)(bench.heap, other)
    bench.settle(run_nothing, seconds=5)


def a_log_is_made_anew(bench: Any) -> None:
    bench.sysdb.create_task("p", "t", cadence=0)
    bench.sysdb.mark_dirty("p", 9)
    bench.settle(run_nothing, seconds=3)
    bench.sysdb.mark_dirty("p", 1)
    bench.settle(run_nothing, seconds=3)


def a_run_begins_late_and_is_cancelled(bench: Any) -> None:
    task = bench.sysdb.create_task("p", "t", cadence=2, overlap="cancel_other")
    slow = ("sysdb.claim.after", "sysdb.begin.after")
    failpoints.observe(lambda name: bench.clock.sleep(1.5) if name in slow else None)
    bench.settle(lambda _task, gen, _epoch: bench.sysdb.run_now(task.id) if gen < 3 else None, seconds=20)


SCENARIOS = [
    a_claim_is_taken_over,
    a_write_comes_during_a_run,
    a_generation_is_moved_while_it_is_pushed,
    a_write_comes_before_a_run_is_taken_over,
    a_log_is_made_anew,
    a_run_begins_late_and_is_cancelled,
]


def play(seed: int) -> list[history.Violation]:
    """A scenario, or a simulation where the seed is beyond them."""
    world_module, virtual = sys.modules["s3heap_tender_tests_world"], sys.modules["s3heap_tender_tests_virtual"]
    db = open_database(f"memory:mutant-{uuid.uuid4().hex}")
    if seed < len(SCENARIOS):
        made = virtual.Bench(db)
        script: Callable[[], Any] = lambda: SCENARIOS[seed](made)  # noqa: E731
    else:
        made = world_module.World(db, virtual.VirtualClock, seed)
        script = lambda: made.run(30, nest=0.1, store_faults=(0.0, 0.3)[seed % 2], failures=0.3)  # noqa: E731
    try:
        script()
    except (Exception, AssertionError):
        pass  # what the world itself notices is for another test: here the checker is to see it
    finally:
        failpoints.disarm()
    return history.check(made.lines, drained=seed != 0)


@pytest.mark.parametrize("seed", range(len(SCENARIOS)), ids=lambda seed: SCENARIOS[seed].__name__)
def test_the_sound_product_passes_each_scenario(seed: int) -> None:
    assert [str(found) for found in play(seed)] == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_checker_finds_what_breaks_in_a_history(mutant: Callable[[Patch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutant(patch)
        for seed in range(MOST_SEEDS):
            if found := play(seed):
                print(f"seed {seed}: {found[0]}")
                return
    raise AssertionError(f"{mutant.__name__}: {MOST_SEEDS} histories show nothing")
