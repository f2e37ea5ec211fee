"""Queues: items in order, each got once; lines in which nobody is passed over; what the dead had comes back."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import pytest
from conftest import seed_params
from datamodel_lab.lab import Lab

import fdb_datamodel as dm
from fdb_datamodel.coordination import queues
from fdb_datamodel.coordination.lines import (
    PUTTERS,
    Line,
    Sight,
    join_line,
    leave_line,
    look_around,
    put_in_order,
    see_holders,
)
from fdb_datamodel.coordination.queues import Item
from fdb_datamodel.errors import ClaimLostError
from fdb_schema import OversizeError
from idempotent_txn import run_committed

ME, OTHER, THIRD = (bytes([n]) * 16 for n in (1, 2, 3))
GRANT = b"g" * 16
LINE = queues.queue_line("q")


def put(lab: Lab, *values: bytes, **how: Any) -> int:
    count: int = lab(queues.put_items, "q", [Item(value) for value in values], **how)
    return count


def get(lab: Lab, count: int = 1, session: bytes = ME, **how: Any) -> list[bytes]:
    return [item.data for item in lab(queues.get_items, "q", count, session, **how)]


def join(lab: Lab, session: bytes, line: Line = LINE) -> bytes:
    commit = run_committed(lab.db, join_line, lab.space, line, session).commit
    assert commit is not None
    return commit.versionstamp


def look(lab: Lab, place: bytes, line: Line = LINE) -> Sight:
    sight: Sight = lab(look_around, line, place)
    if sight.watch is not None:
        sight.watch.cancel()
    return sight


@pytest.fixture
def queue(lab: Lab) -> Lab:
    lab(queues.make_queue, "q", None)
    for session in (ME, OTHER, THIRD):
        lab(dm.beat_session, session, 1)
    return lab


def test_items_come_in_the_order_they_were_put(queue: Lab) -> None:
    assert put(queue, b"a", b"b") == 2
    put(queue, b"c")
    assert get(queue, 2) == [b"a", b"b"]
    assert queue(queues.queue_status, "q") == ("q", None, 1, 0)
    assert get(queue, 9) == [b"c"]
    assert get(queue) == []
    assert queue.validate() == []


def test_nothing_goes_into_a_queue_that_is_full_or_gone(queue: Lab) -> None:
    assert queue(queues.make_queue, "q", 5) is None, "the one that there is stays as it is"
    queue(queues.delete_queue, "q")
    for use in (lambda: put(queue, b"a"), lambda: get(queue), lambda: join(queue, ME)):
        with pytest.raises(dm.UnknownNameError, match="has no queue 'q'"):
            use()
    assert queue(queues.make_queue, "q", 2) == 2
    assert put(queue, b"a", b"b", b"c") == 2
    assert put(queue, b"c") == 0
    assert get(queue) == [b"a"]
    assert put(queue, b"c", b"d") == 1
    assert get(queue) == [b"b"]
    with pytest.raises(OversizeError, match=r"60,001 bytes .* client\.put"):
        put(queue, bytes(60_001), pass_by=True)
    assert queue.validate() == []


def test_many_items_are_put_and_got_in_transactions_that_fit(queue: Lab) -> None:
    large = [bytes([n]) * 50_000 for n in range(12)]
    count = put(queue, *large)
    assert 0 < count < 12
    assert put(queue, *large[count:]) == 12 - count
    first = get(queue, 12)
    assert first + get(queue, 12) == large


def test_a_line_serves_in_order_and_each_watches_one_row(queue: Lab) -> None:
    first, second, third = join(queue, ME), join(queue, OTHER), join(queue, THIRD)
    assert [look(queue, place).first for place in (first, second, third)] == [True, False, False]
    put(queue, b"a")
    assert get(queue, session=OTHER, place=second) == [], "it isn't its turn"
    assert get(queue, session=THIRD) == [], "nor is it that of who comes"
    assert get(queue, place=first) == [b"a"]
    assert not look(queue, first).standing
    queue(leave_line, LINE, second)
    assert look(queue, third).first
    put(queue, b"b")
    assert get(queue, session=ME, pass_by=True) == [b"b"], "who doesn't wait asks nobody"
    assert queue.validate() == []


def test_who_comes_takes_what_is_more_than_those_who_wait_can(queue: Lab) -> None:
    """Else a line that formed under contention stands as long as all who are in it come again, each waking the next for each item."""
    place = join(queue, ME)
    put(queue, b"a")
    assert get(queue, session=THIRD) == [], "that is for who waits"
    put(queue, b"b")
    assert get(queue, session=THIRD) == [b"a"]
    assert get(queue, session=THIRD) == []
    assert get(queue, place=place) == [b"b"]
    assert queue.validate() == []


def test_a_put_wakes_the_first_and_who_leaves_wakes_the_next(queue: Lab) -> None:
    places = [join(queue, session) for session in (ME, OTHER, THIRD)]
    watches = [queue(look_around, LINE, place).watch for place in places]
    put(queue, b"a")
    watches[0].wait()
    assert not watches[1].is_ready() and not watches[2].is_ready()
    assert get(queue, place=places[0]) == [b"a"]
    watches[1].wait()
    assert not watches[2].is_ready()
    watches[2].cancel()


def test_who_waits_for_room_has_a_line_of_its_own(queue: Lab) -> None:
    queue(queues.delete_queue, "q")
    queue(queues.make_queue, "q", 1)
    line = queues.queue_line("q", PUTTERS)
    put(queue, b"a")
    place = join(queue, ME, line)
    sight = look(queue, place, line)
    assert sight.first and not sight.there
    assert get(queue) == [b"a"]
    assert look(queue, place, line).there
    assert put(queue, b"c") == 0, "others wait before"
    assert put(queue, b"b", place=place) == 1
    assert not look(queue, place, line).standing
    assert get(queue) == [b"b"]


def test_what_was_taken_is_done_with_once_or_back_in_its_place(queue: Lab) -> None:
    put(queue, b"a", b"b")
    (item,) = queue(queues.get_items, "q", 1, ME, grant=GRANT)
    assert queue(queues.queue_status, "q") == ("q", None, 1, 1)
    with pytest.raises(ClaimLostError):
        queue(queues.end_taken, "q", item, OTHER, GRANT, done=True)
    queue(queues.end_taken, "q", item, ME, GRANT, done=False)
    assert queue.validate() == []
    (item,) = queue(queues.get_items, "q", 1, ME, grant=GRANT)
    assert item.data == b"a"
    queue(queues.end_taken, "q", item, ME, GRANT, done=True)
    with pytest.raises(ClaimLostError, match="no longer this process's"):
        queue(queues.end_taken, "q", item, ME, GRANT, done=True)
    assert get(queue, 9) == [b"b"]
    assert queue.validate() == []


def test_what_the_dead_had_comes_back_and_they_wait_no_more(queue: Lab) -> None:
    put(queue, b"a", b"b")
    queue(queues.get_items, "q", 1, ME, grant=GRANT)
    queue(queues.get_items, "q", 1, OTHER, grant=GRANT)
    dead, living = join(queue, ME), join(queue, THIRD)
    queue(put_in_order, LINE, [ME, OTHER])
    assert get(queue, pass_by=True) == [], "they live"
    queue(dm.close_session, ME)
    assert dict(queue(see_holders, LINE))[ME] is None
    assert look(queue, living).sessions == [(ME, None)], "it is behind one that is gone"
    queue(put_in_order, LINE, [ME, OTHER])
    assert not look(queue, dead).standing and look(queue, living).first
    assert get(queue, session=THIRD, place=living) == [b"a"]
    assert queue(queues.queue_status, "q").taken == 1
    assert queue.validate() == []


def test_the_collector_sees_to_those_whom_nobody_waits_behind(queue: Lab) -> None:
    put(queue, b"a")
    queue(queues.get_items, "q", 1, ME, grant=GRANT)
    join(queue, OTHER)
    queue(queues.make_queue, "another", None)
    assert dm.collect(queue.db, queue.space).places == 0
    queue(dm.close_session, ME)
    queue(dm.close_session, OTHER)
    assert dm.collect(queue.db, queue.space).places == 2
    assert get(queue, session=THIRD) == [b"a"]


def test_a_future_inside_lives_as_long_as_the_item_and_then_by_who_got_it(queue: Lab) -> None:
    lab = queue
    lab.clock(1)
    lab(dm.beat_session, lab.session, 1)
    spec = lab.spec()
    lab(dm.put_realized_future, spec, None, b"r")
    lab(queues.put_items, "q", [Item(b"x"), Item(b"y", (spec.id,))])
    lab(dm.release_futures, lab.session, [spec.id])
    lab(dm.close_session, lab.session)

    def collected() -> int:
        done = 0
        for _ in range(3):
            lab.clock(collected.now)  # type: ignore[attr-defined]
            collected.now += 10_000  # type: ignore[attr-defined]
            done += dm.collect(lab.db, lab.space).futures
        return done

    collected.now = 10_000  # type: ignore[attr-defined]
    assert collected() == 0
    lab(queues.get_items, "q", 1, ME)
    (item,) = lab(queues.get_items, "q", 1, ME, grant=GRANT)
    assert lab.validate() == []
    assert collected() == 0, "it is taken"
    lab(queues.end_taken, "q", item, ME, GRANT, done=True)
    assert collected() == 0, "who got it holds it"
    lab(dm.release_futures, ME, [spec.id])
    assert collected() == 1


def test_a_deleted_queue_holds_nothing(queue: Lab) -> None:
    lab = queue
    lab.clock(1)
    spec = lab.spec()
    lab(dm.put_realized_future, spec, None, b"r")
    lab(queues.put_items, "q", [Item(b"y", (spec.id,))])
    lab(queues.delete_queue, "q")
    dm.collect(lab.db, lab.space)
    assert not [row for row in lab.rows() if row[0] in ("queues", "references")]


def test_puts_conflict_with_nobody_and_gets_over_the_same_item(memory_lab: Lab) -> None:
    lab = memory_lab
    lab(queues.make_queue, "q", None)
    put(lab, b"0")
    puts = [lab.db.create_transaction() for _ in range(3)]
    gets = [lab.db.create_transaction() for _ in range(2)]
    for tr in gets:
        assert len(queues.get_items(tr, lab.space, "q", 1, ME)) == 1
    for n, tr in enumerate(puts):
        queues.put_items(tr, lab.space, "q", [Item(b"%d" % n)])
    for tr in (*puts, gets[0]):
        tr.commit().wait()
    with pytest.raises(Exception, match=r"(?i)not committed"):
        gets[1].commit().wait()


@pytest.mark.parametrize("seed", seed_params(30))
def test_any_order_of_calls_agrees_with_a_list(memory_lab: Lab, seed: int) -> None:
    """Puts, gets, takes that end or whose taker dies, under a bound; after each step the queue is what the list is."""
    lab, rng = memory_lab, random.Random(seed)
    bound = rng.choice((None, 3))
    lab(queues.make_queue, "q", bound)
    items: deque[tuple[int, bytes]] = deque()
    taken: dict[bytes, list[tuple[int, Item, bytes]]] = {}
    order: dict[bytes, int] = {}
    made = 0
    for step in range(120):
        session = rng.choice((ME, OTHER, THIRD))
        lab(dm.beat_session, session, step)
        kind = rng.choice(("put", "put", "get", "take", "end", "back", "die"))
        if kind == "put":
            values = [b"%d" % (made + n) for n in range(rng.randint(1, 3))]
            count = put(lab, *values)
            assert count == (len(values) if bound is None else max(0, min(len(values), bound - len(items))))
            for value in values[:count]:
                order[value] = made
                items.append((made, value))
                made += 1
        elif kind == "get":
            count = rng.randint(1, 3)
            assert get(lab, count, session) == [items.popleft()[1] for _ in range(min(count, len(items)))]
        elif kind == "take":
            grant = rng.randbytes(16)
            found = lab(queues.get_items, "q", 1, session, grant=grant)
            assert [item.data for item in found] == [value for _, value in list(items)[:1]]
            taken.setdefault(session, []).extend((items.popleft()[0], item, grant) for item in found)
        elif kind == "die":
            lab(dm.close_session, session)
            lab(put_in_order, LINE, [session])
            items = deque(sorted([*items, *((number, item.data) for number, item, _ in taken.pop(session, []))]))
        elif taken.get(session):
            number, item, grant = taken[session].pop(rng.randrange(len(taken[session])))
            lab(queues.end_taken, "q", item, session, grant, done=kind == "end")
            if kind == "back":
                items = deque(sorted([*items, (number, item.data)]))
        assert lab(queues.queue_status, "q")[2:] == (len(items), sum(map(len, taken.values())))
    assert lab.validate() == []
    assert get(lab, 1000, pass_by=True) == [value for _, value in items]
