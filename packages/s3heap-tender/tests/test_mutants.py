"""The product with one rule of it broken: the simulation's histories show it, so the checker would have told us.

The model's mutants break the protocol on paper; these break the code that runs.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fdb_schema import open_database
from s3heap_tender import core, failpoints, history, outbox, transitions
from s3heap_tender.errors import ClaimLostError
from s3heap_tender.heap_io import HeapIO
from s3heap_tender.stores.memory import MemoryStore
from s3heap_tender.writer import ShardWriter

MOST_SEEDS = 300
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
    patch.setattr(
        core, "finished", lambda task, row, upto, tail, now: finished(task, row, upto, min(tail, upto), now)
    )


def takes_the_current_generation_for_done(patch: Patch) -> None:
    patch.setattr(core, "is_done", lambda row, item: item.gen <= row.gen)


def compares_no_due_times(patch: Patch) -> None:
    refuse = core.refuse_claim

    def lax(task: Any, row: Any, item: Any, now: int) -> None:
        refuse(task, row, item if row is None else replace(item, due_ms=row.due // 1000), now)

    patch.setattr(core, "refuse_claim", lax)
    patch.setattr(core, "earliest_start", lambda row: 0)


def leaves_no_intent(patch: Patch) -> None:
    patch.setattr(transitions, "put_intent", lambda tr, at, task, row: None)


def clears_whatever_intent_is_there(patch: Patch) -> None:
    def clear(tr: Any, at: Any, shard: int, pushed: Any) -> int:
        for intent, _ in pushed:
            tr.clear(at.keys.intent(shard, intent.item.task))
        return 0

    patch.setattr(outbox, "clear_intents", clear)


def writes_whatever_the_condition(patch: Patch) -> None:
    patch.setattr(MemoryStore, "_check", lambda self, key, if_match: self._objects.setdefault(key, b""))


def repeats_a_write_without_reading_again(patch: Patch) -> None:
    def settle(self: Any, key: str, body: bytes, if_match: str | None) -> str:
        try:
            return self.store.put(key, body, if_match=if_match)
        except Exception:
            return "whatever"

    patch.setattr(HeapIO, "_settle_put", settle)


def pushes_only_what_is_not_there(patch: Patch) -> None:
    commit = ShardWriter._commit_chunk

    def lazy(self: Any, bucket: int, records: list[bytes]) -> None:
        fresh = [record for record in records if record not in self._content(bucket, 0).records]
        if fresh:
            commit(self, bucket, fresh)

    patch.setattr(ShardWriter, "_commit_chunk", lazy)


def sweeps_without_a_new_generation(patch: Patch) -> None:
    def written(task: Any, row: Any, tail: int, now: int) -> Any:
        return row

    patch.setattr(core, "written", written)


def forgets_the_epoch(patch: Patch) -> None:
    claimed = core.claimed
    patch.setattr(core, "claimed", lambda row, *rest: replace(claimed(row, *rest), epoch=row.epoch))


MUTANTS = [
    starts_too_soon,
    settles_a_lost_claim,
    finishes_without_a_look_at_the_log,
    takes_the_current_generation_for_done,
    compares_no_due_times,
    leaves_no_intent,
    clears_whatever_intent_is_there,
    writes_whatever_the_condition,
    repeats_a_write_without_reading_again,
    pushes_only_what_is_not_there,
    sweeps_without_a_new_generation,
    forgets_the_epoch,
]


def play(seed: int) -> list[history.Violation]:
    world_module, virtual = sys.modules["s3heap_tender_tests_world"], sys.modules["s3heap_tender_tests_virtual"]
    world: Any = world_module.World(open_database(f"memory:mutant-{uuid.uuid4().hex}"), virtual.VirtualClock, seed)
    try:
        world.run(40, nest=0.15, store_faults=(0.0, 0.3)[seed % 2], failures=0.3)
    except Exception:
        pass  # what the world itself notices is for another test: here the checker is to see it
    except AssertionError:
        pass
    finally:
        failpoints.disarm()
    return history.check(world.lines)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_checker_finds_what_breaks_in_a_history(mutant: Callable[[Patch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutant(patch)
        for seed in range(MOST_SEEDS):
            if found := play(seed):
                print(f"seed {seed}: {found[0]}")
                return
    raise AssertionError(f"{mutant.__name__}: {MOST_SEEDS} histories show nothing")
