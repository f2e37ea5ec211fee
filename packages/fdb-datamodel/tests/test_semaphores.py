"""Semaphores: never more permits than there are, free again when their holder is gone. Events: set, and how often."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from conftest import seed_params
from datamodel_lab.lab import Lab

import fdb_datamodel as dm
from fdb_datamodel.coordination import events, queues, semaphores
from fdb_datamodel.coordination.lines import PUTTERS, join_line, look_around, put_in_order
from fdb_datamodel.coordination.listing import list_shared
from fdb_datamodel.errors import ClaimLostError
from fdb_schema import fdb_error_code
from idempotent_txn import run_committed

ME, OTHER, THIRD = (bytes([n]) * 16 for n in (1, 2, 3))
LINE = semaphores.semaphore_line("s")


@pytest.fixture
def semaphore(lab: Lab) -> Lab:
    assert lab(semaphores.make_semaphore, "s", 2) == 2
    for session in (ME, OTHER, THIRD):
        lab(dm.beat_session, session, 1)
    return lab


def take(lab: Lab, permit: bytes, session: bytes = ME, **how: Any) -> bool:
    had: bool = lab(semaphores.take_permit, "s", permit * 16, session, **how)
    return had


def test_there_are_as_many_permits_as_it_was_made_with(semaphore: Lab) -> None:
    lab = semaphore
    assert lab(semaphores.make_semaphore, "s", 5) == 2, "the one that there is stays as it is"
    assert [take(lab, b"1"), take(lab, b"2", OTHER), take(lab, b"3")] == [True, True, False]
    lab(semaphores.give_permit, "s", b"1" * 16, ME)
    assert lab(semaphores.semaphore_status, "s") == ("s", 2, 1)
    for wrong in ((b"1" * 16, ME), (b"2" * 16, ME)):
        with pytest.raises(ClaimLostError, match="no longer this process's"):
            lab(semaphores.give_permit, "s", *wrong)
    assert take(lab, b"3")
    lab(semaphores.delete_semaphore, "s")
    with pytest.raises(dm.UnknownNameError, match="has no semaphore 's'"):
        take(lab, b"4")


def test_two_that_ask_for_the_last_one_conflict(memory_lab: Lab) -> None:
    lab = memory_lab
    lab(semaphores.make_semaphore, "s", 1)
    both = [lab.db.create_transaction() for _ in range(2)]
    for tr, permit in zip(both, (b"1", b"2"), strict=True):
        assert semaphores.take_permit(tr, lab.space, "s", permit * 16, ME)
    both[0].commit().wait()
    with pytest.raises(Exception) as error:
        both[1].commit().wait()
    assert fdb_error_code(error.value) == 1020


def test_permits_of_the_dead_are_free_and_wake_the_first(semaphore: Lab) -> None:
    lab = semaphore
    assert take(lab, b"1") and take(lab, b"2", OTHER)
    commit = run_committed(lab.db, join_line, lab.space, LINE, THIRD).commit
    assert commit is not None
    place = commit.versionstamp
    assert not take(lab, b"3", THIRD, place=place)
    sight = lab(look_around, LINE, place)
    assert [session for session, _ in sight.sessions] == [ME, OTHER]
    lab(dm.close_session, ME)
    lab(put_in_order, LINE, [ME, OTHER])
    sight.watch.wait()
    assert take(lab, b"3", THIRD, place=place)
    lab(dm.close_session, OTHER)
    assert dm.collect(lab.db, lab.space).places == 1
    assert lab(semaphores.semaphore_status, "s").free == 1
    assert lab.validate() == []


@pytest.mark.parametrize("seed", seed_params(10))
def test_any_order_of_calls_agrees_with_a_count(memory_lab: Lab, seed: int) -> None:
    lab, rng = memory_lab, random.Random(seed)
    value = rng.randint(1, 3)
    lab(semaphores.make_semaphore, "s", value)
    held: dict[bytes, list[bytes]] = {ME: [], OTHER: [], THIRD: []}
    for step in range(100):
        session = rng.choice(list(held))
        lab(dm.beat_session, session, step)
        kind = rng.choice(("take", "take", "give", "die"))
        free = value - sum(map(len, held.values()))
        if kind == "take":
            permit = rng.randbytes(16)
            assert lab(semaphores.take_permit, "s", permit, session) is (free > 0)
            held[session] += [permit] * (free > 0)
        elif kind == "give" and held[session]:
            lab(semaphores.give_permit, "s", held[session].pop(rng.randrange(len(held[session]))), session)
        elif kind == "die":
            lab(dm.close_session, session)
            lab(put_in_order, LINE, [session])
            held[session] = []
        assert lab(semaphores.semaphore_status, "s").free == value - sum(map(len, held.values()))
    assert lab.validate() == []


def test_they_are_listed_in_pages_with_who_waits(semaphore: Lab) -> None:
    lab = semaphore
    for name in ("a", "b", "c"):
        lab(queues.make_queue, name, 7 if name == "b" else None)
    lab(queues.put_items, "b", [queues.Item(b"x"), queues.Item(b"y")])
    lab(queues.get_items, "b", 1, ME, grant=ME)
    lab(join_line, queues.queue_line("b", PUTTERS), ME)
    take(lab, b"1")
    lab(join_line, LINE, OTHER)
    page, after = lab(list_shared, "queue", "", 2)
    assert page == [("a", "queue", 0, None, 0, 0, 0), ("b", "queue", 1, 7, 1, 0, 1)]
    page, after = lab(list_shared, "queue", after, 2)
    assert (page, after) == ([("c", "queue", 0, None, 0, 0, 0)], None)
    assert lab(list_shared, "semaphore") == ([("s", "semaphore", 1, 2, 1, 1, 0)], None)


def test_an_event_counts_how_often_it_was_set_and_wakes_who_watches(lab: Lab) -> None:
    write: Callable[[bool], bool] = lambda is_set: lab(events.write_event, "e", is_set)  # noqa: E731
    assert lab(events.read_event, "e") == (False, 0)
    assert not write(False)
    state, watch = lab(events.watch_event, "e")
    assert state == (False, 0)
    assert write(True) and not write(True)
    watch.wait()
    assert write(False)
    assert lab(events.read_event, "e") == (False, 1), "who saw 0 before knows that it was set"
    assert write(True)
    assert lab(events.read_event, "e") == (True, 2)
    assert lab(events.delete_event, "e") and not lab(events.delete_event, "e")
    assert lab(events.read_event, "e") == (False, 0)
