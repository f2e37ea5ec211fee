"""The worker's core by events: what it decides, without a process, a socket or a clock."""

from __future__ import annotations

import random
from typing import Any

import pytest
from conftest import seed_params
from core_driver import ME, SECOND, Driver, answer_ring, claim, claims, failure, outcomes, sent

from fdb_datamodel import Claim, Claims, FutureResult, MailEntry, Requirements
from futures_worker import payload
from futures_worker.errors import OversizeError, ResultPickleError, TaskUnpickleError
from futures_worker.objects.object_names import result_name
from futures_worker.worker import messages
from futures_worker.worker.deciding import dispatching, planning
from futures_worker.worker.deciding.claimed import EMPTY_RINGS, MOST_RING_DELAY
from futures_worker.worker.deciding.core import WorkerCore
from futures_worker.worker.deciding.instructions import (
    ChildEnded,
    ChildSaid,
    DrainAsked,
    DropObject,
    Fenced,
    Finish,
    ForgetTask,
    InputsBroken,
    InputsLost,
    InputsReady,
    Instruction,
    KillChild,
    MailArrived,
    MemoryShort,
    PeersSeen,
    PrepareInputs,
    Pushed,
    RetireChild,
    RunTurn,
    SendTasks,
    SpawnChild,
    TakeBack,
    TasksReturned,
    TurnEnded,
    TurnRefused,
    WorkSignalled,
)
from futures_worker.worker.deciding.reports import RESPAWN_PAUSE
from futures_worker.worker.deciding.tasks import CHILD_TRANSITIONS, ChildState, Task


def test_it_forks_a_child_per_slot_and_asks_for_work_at_once() -> None:
    core = WorkerCore(ME, 3, Requirements(3))
    assert core.step([WorkSignalled()], 0.0, 0.0) == [SpawnChild(0), SpawnChild(1), SpawnChild(2), *core.out[3:]]
    (turn,) = [i for i in core.out if isinstance(i, RunTurn)]
    assert (turn.outcomes, turn.limit, turn.capacity.free) == ([], 3, Requirements(3))


def test_a_claim_is_run_and_reported_in_the_turn_that_claims_next() -> None:
    d = Driver()
    assert sent(d.start(claim(1))) == [1]
    (turn,) = d.only(RunTurn, d.result(0, 0, value=b"result"))
    assert turn.limit == 2, "the last claim was filled, and the task was short"
    (outcome,) = turn.outcomes
    assert (outcome.claim.id, outcome.event, outcome.result) == (claim(1).id, "realize_future", b"result")
    assert sent(d.say(TurnEnded(claims(claim(2)), turn))) == [2]
    assert d.core.counters.realized == 1


def test_the_next_turn_is_known_before_where_one_short_task_is_all_there_is() -> None:
    d = Driver(slots=2)
    assert d.core.lone() is None
    d.start(claim(1))
    assert d.core.lone() is None, "nobody knows how long it takes"
    (turn,) = d.only(RunTurn, d.result(d.child_of(1), d.seq_of(1)))
    assert d.core.lone() is None, "it ended"
    d.say(TurnEnded(claims(claim(2)), turn))
    lone = d.core.lone()
    assert lone is not None and lone.id == claim(2).id
    d.claim(claim(3))
    assert d.core.lone() is None, "there are two"
    d.result(d.child_of(3), d.seq_of(3), microseconds=SECOND)
    d.result(d.child_of(2), d.seq_of(2), microseconds=SECOND)
    d.claim(claim(4))
    assert d.core.lone() is None, "it takes long"


def test_with_nothing_to_claim_it_waits_for_a_bell() -> None:
    d = Driver()
    assert d.start() == []
    assert d.say(after=10) == []
    assert d.core.deadline() is None
    assert d.core.wants_work
    assert len(d.only(RunTurn, d.say(WorkSignalled()))) == 1


def test_a_pool_that_holds_more_is_asked_again() -> None:
    d = Driver(slots=2)
    instructions = d.start(claim(1), more=True)
    assert [turn.limit for turn in d.only(RunTurn, instructions)] == [1]


def test_stored_results_are_reported_with_their_holder() -> None:
    d = Driver()
    d.start(claim(1, epoch=2, attempt=3))
    name = result_name(claim(1).id, 2, 3)
    (outcome,) = outcomes(d.say(ChildSaid(0, [[messages.STORED, 0, 10, 5000, name]])))
    assert outcome.result == FutureResult(size=5000, name=name, worker=ME)


def test_a_stored_result_whose_claim_was_lost_is_removed() -> None:
    d = Driver()
    d.start(claim(1))
    name = result_name(claim(1).id, 0, 1)
    (turn,) = d.only(RunTurn, d.say(ChildSaid(0, [[messages.STORED, 0, 10, 5000, name]])))
    assert DropObject(name) in d.say(TurnEnded(claims(stale=(claim(1).id,)), turn))


@pytest.mark.parametrize(
    ("kind", "error", "reason", "permanently"),
    [
        (messages.FAIL_RAISED, ValueError("x"), "error", False),
        (messages.FAIL_PERMANENT, ValueError("x"), "error", True),
        (messages.FAIL_MEMORY, MemoryError("x"), "oom", False),
        (messages.FAIL_PERMANENT, TaskUnpickleError("x"), "unpickle", True),
        (messages.FAIL_PERMANENT, ResultPickleError("x"), "result-pickle", True),
        (messages.FAIL_PERMANENT, OversizeError("x"), "oversize", True),
    ],
)
def test_failures_carry_their_reason(kind: int, error: BaseException, reason: str, permanently: bool) -> None:
    d = Driver()
    d.start(claim(1))
    packed = failure(error)
    (outcome,) = outcomes(d.say(ChildSaid(0, [[messages.FAILED, 0, 10, kind, packed]])))
    assert outcome.failure is not None
    assert (outcome.event, outcome.failure.reason, outcome.permanently) == ("fail_future", reason, permanently)
    carried = payload.Failure.from_bytes(packed)
    assert outcome.failure.payload == carried.untraced().to_bytes()
    assert outcome.failure.traceback == carried.traceback, "as text, which any reader can show"


def test_a_childs_death_is_charged_to_the_task_it_ran_and_to_no_other() -> None:
    d = Driver()
    d.start(claim(1, code=b"quick"))
    d.result(0, 0, 10)
    d.claim(*[claim(i, code=b"quick") for i in range(2, 4)], more=True)
    assert d.core.children[0].queue
    first, *rest = [t.claim.id for t in d.core.children[0].queue]
    instructions = d.say(ChildEnded(0, "signal SIGSEGV (pid 7)"))
    (outcome,) = outcomes(instructions)
    assert (outcome.claim.id, outcome.event) == (first, "fail_future")
    assert outcome.failure is not None
    assert (outcome.failure.reason, outcome.permanently) == ("crash", False)
    assert "signal SIGSEGV" in outcome.failure.message
    assert [i.to_bytes(16, "big") for i in sent(instructions)] == rest
    assert d.core.counters.children_lost == 1


def test_a_task_that_a_dead_child_never_read_is_charged_nothing() -> None:
    d = Driver()
    d.start(claim(1))
    assert outcomes(d.say(ChildEnded(0, "exit code 1", unread=(0,)))) == []
    assert sent(d.say(after=RESPAWN_PAUSE)) == [1]


def test_a_child_killed_for_its_memory_counts_apart() -> None:
    d = Driver()
    d.start(claim(1))
    (outcome,) = outcomes(d.say(ChildEnded(0, "signal SIGKILL (pid 7)", out_of_memory=True)))
    assert outcome.failure is not None
    assert outcome.failure.reason == "oom"


def test_the_task_that_takes_the_memory_is_ended_before_the_kernel_ends_something_else() -> None:
    d = Driver(slots=2)
    d.start(claim(1))
    child = d.child_of(1)
    assert d.only(KillChild, d.say(MemoryShort(child, "97 % used"))) == [KillChild(child)]
    (outcome,) = outcomes(d.say(ChildEnded(child, "signal SIGKILL (pid 7)")))
    assert outcome.failure is not None
    assert outcome.failure.reason == "oom"
    assert "97 % used" in outcome.failure.message
    idle = next(c.number for c in d.core.children.values() if not c.queue)
    assert d.only(KillChild, d.say(MemoryShort(idle, "97 % used"))) == []


def test_a_child_that_dies_before_it_ran_anything_is_replaced_after_a_pause() -> None:
    d = Driver()
    d.start()
    d.say(ChildEnded(0, "exit code 1"))
    assert d.core.children == {}
    assert d.core.deadline() == d.now + RESPAWN_PAUSE
    d.say(after=RESPAWN_PAUSE)
    assert list(d.core.children) == [1]


def test_a_timeout_kills_the_child_and_fails_the_task() -> None:
    d = Driver()
    d.start(claim(1, run_timeout=5.0))
    assert d.core.deadline() == d.now + 5.0
    assert d.say(after=4.9) == []
    assert d.say(after=0.2) == [KillChild(0)]
    assert d.say(after=0.1) == []
    (outcome,) = outcomes(d.say(ChildEnded(0, "signal SIGKILL (pid 7)")))
    assert outcome.failure is not None
    assert outcome.failure.reason == "timeout"
    assert "5.0 s" in outcome.failure.message


def test_a_result_that_came_before_the_kill_counts() -> None:
    d = Driver()
    d.start(claim(1, run_timeout=5.0))
    d.say(after=6.0)
    (outcome,) = outcomes(d.result(0, 0))
    assert outcome.event == "realize_future"
    assert outcomes(d.say(ChildEnded(0, "signal SIGKILL (pid 7)"))) == []


def test_batches_grow_while_work_is_short_and_plentiful() -> None:
    d = Driver(slots=2)
    (turn,) = d.only(RunTurn, d.say(WorkSignalled()))
    limits, number = [], 0
    for _ in range(40):
        limits.append(turn.limit)
        batch = [claim(number + i) for i in range(turn.limit)]
        number += turn.limit
        d.say(TurnEnded(claims(*batch, more=True), turn))
        turn = None
        while turn is None:
            for child in list(d.core.children.values()):
                if child.queue and turn is None:
                    said = [[messages.RESULT, t.seq, 10, b""] for t in child.queue]
                    turns = d.only(RunTurn, d.say(ChildSaid(child.number, said), after=planning.LINGER))
                    turn = turns[0] if turns else None
            if turn is not None and turn.limit == 0:
                d.say(TurnEnded(claims(), turn))
                turn = None
        if limits[-1] == planning.MOST_PER_TURN:
            break
    assert limits[0] == 2
    assert limits[-1] == planning.MOST_PER_TURN
    assert len(d.core.tasks) <= planning.MOST_IN_HAND


@pytest.mark.parametrize(
    ("known", "seconds", "limit"),
    [
        (0.001, 0.004, 16),  # what two slots run in two such turns
        (0.001, 0.0, 4),  # twice as many as before
        (None, 0.004, 4),  # of what is unknown
        (0.001, 30.0, 200),  # a database that stood still isn't slow
    ],
)
def test_what_is_claimed_next_lasts_until_a_turn_is_over(known: float | None, seconds: float, limit: int) -> None:
    d = Driver(slots=2)
    if known is not None:
        d.core.pace.observe(b"f", known)
    d.core.pace.observe(b"short", 0.001)
    (turn,) = d.only(RunTurn, d.say(WorkSignalled()))
    d.say(TurnEnded(claims(claim(1), claim(2), more=True), turn, seconds))
    assert d.core.claim_target == limit


@pytest.mark.parametrize(("turn_seconds", "ahead"), [(0.0, 1), (0.028, 4), (30.0, 7)])
def test_a_child_is_sent_what_it_can_run_while_a_turn_is_taken(turn_seconds: float, ahead: int) -> None:
    d = Driver(slots=1)
    d.core.pace.observe(b"f", 0.007)
    d.core.claim_target, d.core.turn_seconds = 100, turn_seconds
    (turn,) = d.only(RunTurn, d.say(WorkSignalled()))
    d.core.turn_seconds = turn_seconds
    event = TurnEnded(claims(*map(claim, range(20))), turn, turn_seconds)
    assert len(sent(d.say(event))) == ahead
    d.say(after=0.012)
    assert not d.core.children[0].rescued, "it takes as long as it may"
    d.say(after=0.003)
    assert d.core.children[0].rescued is (ahead > 1)


def test_turns_are_smaller_while_the_database_is_slow() -> None:
    state = Driver(slots=2).core
    sizes = []
    for seconds in (3.0, 3.0, 0.5, 0.01, 0.01, 0.01, 0.01):
        planning.learn_from_turn(state, state.per_turn, seconds)
        sizes.append(state.per_turn)
    assert sizes == [250, 125, 125, 250, 500, 500, 500]
    planning.learn_from_turn(state, 3, 9.0)
    assert state.per_turn == planning.LEAST_PER_TURN, "a turn of few that is slow says that many would be too slow"


def test_no_more_than_the_slots_is_claimed_while_nobody_knows_how_long_it_takes() -> None:
    d = Driver(slots=2)
    instructions = d.start(claim(1), claim(2), more=True)
    assert sent(instructions) == [1, 2]
    assert d.only(RunTurn, instructions) == []
    assert d.only(RunTurn, d.say(WorkSignalled(), after=3)) == []


def test_long_tasks_are_claimed_one_per_slot() -> None:
    d = Driver(slots=2)
    d.start(claim(1), claim(2), more=True)
    (turn,) = d.only(RunTurn, d.result(0, 0, 3 * SECOND, after=3))
    assert turn.limit == 1


def test_work_that_turns_out_long_goes_back_to_the_pool_while_others_are_idle() -> None:
    d = Driver()
    d.start(claim(1))
    (turn,) = d.only(RunTurn, d.result(0, 0, 10))
    d.core.claim_target = 100
    d.say(TurnEnded(claims(*[claim(i) for i in range(2, 60)]), turn))
    held = len(d.core.tasks)
    assert held == 58
    given = []
    instructions = d.say(after=dispatching.STUCK)
    assert d.only(TakeBack, instructions) == [TakeBack(0)]
    assert sent(d.say(TasksReturned(0, tuple(t.seq for t in list(d.core.children[0].queue)[1:])))) == []
    assert outcomes(d.say(PeersSeen(0, 2))) == [], "a busy peer would gain nothing"
    given += outcomes(d.say(PeersSeen(0, 2, idle_slots=1), after=planning.REVIEW))
    assert 25 <= len(given) <= 30, "a fair share"
    assert outcomes(d.say(after=planning.REVIEW + 0.01)) == [], "once for each time they say so"
    given += outcomes(d.say(PeersSeen(0, 2, idle_slots=1)))
    assert {o.event for o in given} == {"relinquish_claim"}
    assert {o.failure.reason for o in given if o.failure is not None} == {"rebalanced"}


def test_what_an_idle_peer_has_no_room_for_is_kept() -> None:
    d = Driver(total=Requirements(100))
    d.start(claim(1))
    (turn,) = d.only(RunTurn, d.result(0, 0, 10))
    d.core.claim_target = 100
    d.say(TurnEnded(claims(*[claim(i, shape=(1000, 0, 0)) for i in range(2, 60)]), turn))
    d.say(after=dispatching.STUCK)
    d.say(TasksReturned(0, tuple(t.seq for t in list(d.core.children[0].queue)[1:])))
    before = [task.claim.id for task in d.core.ready]
    assert outcomes(d.say(PeersSeen(0, 2, 1, (1000, 0, 0)), after=0.05)) == [], "it may be from before they came"
    assert outcomes(d.say(PeersSeen(0, 2, 1, (500, 0, 0)), after=planning.REVIEW)) == []
    assert [task.claim.id for task in d.core.ready] == before
    assert len(outcomes(d.say(PeersSeen(0, 2, 1, (1000, 0, 0)), after=planning.REVIEW))) > 20


def test_tasks_stuck_behind_a_long_one_go_to_an_idle_child() -> None:
    d = Driver(slots=2)
    d.start(claim(1), claim(2))
    d.result(d.child_of(1), d.seq_of(1), 10)
    d.result(d.child_of(2), d.seq_of(2), 10)
    d.core.claim_target = 10
    d.claim(claim(3), claim(4), claim(5), claim(6))
    stuck = max(d.core.children.values(), key=lambda c: len(c.queue))
    assert len(stuck.queue) >= 2
    for child in d.core.children.values():
        if child is not stuck:
            d.say(ChildSaid(child.number, [[messages.RESULT, t.seq, 10, b""] for t in child.queue]))
    d.say(after=planning.LINGER)
    assert d.core.deadline() == d.now - planning.LINGER + dispatching.STUCK
    assert d.only(TakeBack, d.say(after=dispatching.STUCK)) == [TakeBack(stuck.number)]
    assert d.core.deadline() == d.core.children[stuck.number].head_since + dispatching.SKIPS
    assert d.only(TakeBack, d.say(after=dispatching.STUCK)) == []
    behind = [t.claim.id for t in list(stuck.queue)[1:]]
    moved = sent(d.say(TasksReturned(stuck.number, tuple(t.seq for t in list(stuck.queue)[1:]))))
    assert [i.to_bytes(16, "big") for i in moved] == behind


def test_a_full_socket_is_not_tried_again_before_the_child_has_read() -> None:
    d = Driver()
    d.start(claim(1))
    d.result(0, 0, 10)
    d.core.claim_target = 10
    instructions = d.claim(claim(2), claim(3), claim(4))
    assert sent(instructions) == [2, 3, 4]
    assert sent(d.say(TasksReturned(0, (2, 3), full=True))) == []
    assert sent(d.result(0, 1)) == [3, 4]


def test_children_that_waits_want_again_and_again_are_kept_a_while() -> None:
    """A process that ran a task of a client has opened the database and loaded code: dozens of tasks cost as much."""
    d = Driver(slots=1)
    d.start(claim(1))

    def wait_for_another(number: int, ran_by: int) -> list[Any]:
        instructions = d.say(ChildSaid(0, [[messages.BLOCKED, 0, [], []]]))
        (turn,) = d.only(RunTurn, instructions)
        d.say(TurnEnded(claims(claim(number)), turn))
        assert d.child_of(number) == ran_by
        d.result(ran_by, d.core.tasks[claim(number).id].seq)
        return d.only(RetireChild, d.say(ChildSaid(0, [[messages.RESUMED, 0]])))

    assert wait_for_another(2, 1) == [RetireChild(1)]
    d.say(ChildEnded(1, "retired"))
    assert wait_for_another(3, 2) == []
    assert wait_for_another(4, 2) == []
    assert d.core.deadline() is not None
    assert d.only(RetireChild, d.say(after=dispatching.SPARE_SECONDS + 0.01)) == [RetireChild(2)]
    assert len([c for c in d.core.children.values() if c.state is ChildState.running]) == 1


def test_a_waiting_task_gives_its_slot_and_its_cpu_to_others() -> None:
    d = Driver(slots=1, total=Requirements(1))
    d.start(claim(1, shape=(1000, 0, 0)))
    assert d.core.free == Requirements(0)
    instructions = d.say(ChildSaid(0, [[messages.BLOCKED, 0, [], []]]))
    (turn,) = d.only(RunTurn, instructions)
    assert (turn.limit, turn.capacity.free) == (1, Requirements(1))
    assert sent(d.say(TurnEnded(claims(claim(2, shape=(1000, 0, 0))), turn))) == [2]
    assert d.child_of(2) == 1
    d.result(1, 0)
    assert d.say(ChildSaid(0, [[messages.RESUMED, 0]])) == [RetireChild(1)]
    assert d.core.free == Requirements(0)
    (outcome,) = outcomes(d.result(0, 0))
    assert outcome.claim.id == claim(1).id


def test_a_task_that_ends_while_a_thread_of_it_waits_takes_its_cpu_along_once() -> None:
    d = Driver(slots=1, total=Requirements(1))
    d.start(claim(1, shape=(1000, 0, 0)))
    d.say(ChildSaid(0, [[messages.BLOCKED, 0, [], []]]))
    assert d.core.free == Requirements(1)
    d.result(0, 0)
    assert d.core.used == [0, 0, 0]
    assert d.core.waiting == 0


def test_what_is_queued_behind_a_waiting_task_is_taken_elsewhere() -> None:
    d = Driver()
    d.start(claim(1))
    d.result(0, 0, 10)
    d.core.claim_target = 10
    d.claim(claim(2), claim(3), claim(4))
    instructions = d.say(ChildSaid(0, [[messages.BLOCKED, 1, [2], []]]))
    assert TakeBack(0) in instructions
    assert sent(instructions) == [3]
    assert sent(d.say(TasksReturned(0, (3,)))) == [4]
    assert {d.child_of(3), d.child_of(4)} == {1}


def test_nested_waits_go_as_deep_as_they_like() -> None:
    d = Driver(slots=1, total=Requirements(1))
    d.start(claim(1))
    for depth in range(1, 50):
        (turn,) = d.only(RunTurn, d.say(ChildSaid(d.child_of(depth), [[messages.BLOCKED, 0, [], []]])))
        assert sent(d.say(TurnEnded(claims(claim(depth + 1)), turn))) == [depth + 1]


def test_what_is_waited_for_is_claimed_and_run_first() -> None:
    d = Driver(slots=1, total=Requirements(1))
    d.start(claim(1))
    d.result(0, 0, 10)
    d.core.claim_target = 10
    d.claim(claim(2), claim(3), claim(4))
    awaited = [claim(4).id, claim(9).id]
    instructions = d.say(ChildSaid(0, [[messages.BLOCKED, 1, [2, 3], awaited]]))
    assert sent(instructions) == [4, 3], "in hand: it overtakes what came before it"
    assert d.core.wanted == [claim(9).id], "to be claimed as soon as there is room"


def test_a_task_whose_wait_ended_here_keeps_its_slot_for_a_moment() -> None:
    d = Driver(slots=1)
    d.start(claim(1))
    (turn,) = d.only(RunTurn, d.say(ChildSaid(0, [[messages.BLOCKED, 0, [], [claim(2).id]]])))
    assert turn.capacity.wanted == (claim(2).id,)
    d.say(TurnEnded(claims(claim(2)), turn))
    (turn,) = d.only(RunTurn, d.result(1, 0))
    assert turn.limit == 0, "the slot is kept for the task that goes on"
    (turn,) = d.only(RunTurn, d.say(TurnEnded(claims(), turn), after=1.0))
    assert turn.limit == 1, "it didn't"


def test_when_every_task_waits_what_they_wait_for_is_claimed_whatever_is_free() -> None:
    d = Driver(slots=1, total=Requirements(1, "1GiB"))
    d.start(claim(1, shape=(0, 900 << 20, 0)))
    (turn,) = d.only(RunTurn, d.say(ChildSaid(0, [[messages.BLOCKED, 0, [], [claim(2).id]]])))
    assert not turn.capacity.overcommit, "another worker may have room"
    d.say(TurnEnded(claims(), turn))
    (turn,) = d.only(RunTurn, d.say(WorkSignalled(again=True), after=1.0))
    assert turn.capacity.overcommit
    assert turn.capacity.wanted == (claim(2).id,)


def test_when_no_process_is_left_the_deepest_task_is_told_instead_of_hanging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("futures_worker.worker.deciding.dispatching.MOST_CHILDREN", 3)
    d = Driver(slots=1)
    d.start(claim(1))
    for depth in range(1, 3):
        (turn,) = d.only(RunTurn, d.say(ChildSaid(d.child_of(depth), [[messages.BLOCKED, 0, [], []]])))
        d.say(TurnEnded(claims(claim(depth + 1)), turn))
    instructions = d.say(ChildSaid(2, [[messages.BLOCKED, 0, [], []]]))
    assert KillChild(2) in instructions
    (outcome,) = outcomes(d.say(ChildEnded(2, "signal SIGKILL")))
    assert outcome.failure is not None
    assert (outcome.failure.reason, outcome.permanently) == ("deadlock", True)


def test_lost_inputs_send_the_future_back_to_waiting_at_no_charge() -> None:
    d = Driver()
    d.hold_inputs = True
    instructions = d.start(claim(1, dependencies=(b"d" * 16,)))
    (prepare,) = d.only(PrepareInputs, instructions)
    (outcome,) = outcomes(d.say(InputsLost(prepare.tasks[0], (b"d" * 16,))))
    assert (outcome.event, outcome.lost) == ("miss_inputs", (b"d" * 16,))
    assert d.core.tasks == {}


def test_at_the_end_of_the_grace_inputs_are_not_waited_for() -> None:
    d = Driver()
    d.hold_inputs = True
    (prepare,) = d.only(PrepareInputs, d.start(claim(1, dependencies=(b"d" * 16,))))
    assert outcomes(d.say(DrainAsked(30.0))) == []
    instructions = d.say(DrainAsked(0.0))
    (outcome,) = outcomes(instructions)
    assert (outcome.event, outcome.claim.id) == ("relinquish_claim", claim(1).id)
    (turn,) = d.only(RunTurn, instructions)
    assert d.only(Finish, d.say(TurnEnded(claims(), turn)) + instructions) == [Finish()]
    assert outcomes(d.say(InputsReady(prepare.tasks))) == [], "they came too late"
    assert d.core.preparing == 0


def test_inputs_that_can_not_be_prepared_fail_the_future_for_good() -> None:
    d = Driver()
    d.hold_inputs = True
    (prepare,) = d.only(PrepareInputs, d.start(claim(1)))
    (outcome,) = outcomes(d.say(InputsBroken(prepare.tasks[0], "unpickle", "no code")))
    assert outcome.failure is not None
    assert (outcome.failure.reason, outcome.permanently) == ("unpickle", True)


def test_parcels_are_removed_when_their_task_ends() -> None:
    d = Driver()
    d.hold_inputs = True
    (prepare,) = d.only(PrepareInputs, d.start(claim(1)))
    prepare.tasks[0].parcels = ["/somewhere"]
    d.say(InputsReady(prepare.tasks))
    assert ForgetTask(prepare.tasks[0]) in d.result(0, 0)


def test_a_cancelled_task_is_killed_and_nothing_is_reported() -> None:
    d = Driver()
    d.start(claim(1))
    assert d.say(MailArrived((MailEntry(claim(1).id, "cancel"),))) == [KillChild(0)]
    instructions = d.say(ChildEnded(0, "signal SIGKILL (pid 7)"))
    assert outcomes(instructions) == []
    assert d.core.tasks == {}


def test_the_pool_is_asked_for_what_waits_for_the_room_that_a_cancelled_task_had() -> None:
    d = Driver(slots=2, total=Requirements(2))
    (turn,) = d.only(RunTurn, d.say(WorkSignalled()))
    found = claims(claim(1, shape=(1000, 0, 0)))
    found.blocked = (Requirements(2),)
    d.say(TurnEnded(found, turn))
    d.say(MailArrived((MailEntry(claim(1).id, "cancel"),)))
    number = next(c.number for c in d.core.children.values() if c.queue)
    (turn,) = d.only(RunTurn, d.say(ChildEnded(number, "signal SIGKILL (pid 7)")))
    assert turn.outcomes == []
    assert turn.capacity.free == Requirements(2)


@pytest.mark.parametrize("why", ["cancelled", "timeout", "memory"])
def test_a_kill_that_comes_late_is_not_charged_to_what_the_child_went_on_to(why: str) -> None:
    d = Driver()
    d.core.pace.observe(b"f", 0.0001)
    assert sent(d.start(claim(1, run_timeout=1.0), claim(2))) == [1, 2]
    mail: list[Any] = [MailArrived((MailEntry(claim(1).id, "cancel"),))] if why == "cancelled" else []
    short: list[Any] = [MemoryShort(0, "it holds most")] if why == "memory" else []
    assert KillChild(0) in d.say(*mail, *short, after=1.0 if why == "timeout" else 0.0)
    first = outcomes(d.result(0, 0))
    ended = outcomes(d.say(ChildEnded(0, "signal SIGKILL (pid 7)"), after=planning.LINGER))
    assert [one.claim.id for one in (*first, *ended) if one.event == "realize_future"] == (
        [] if mail else [claim(1).id]
    )
    assert [one.claim.id for one in ended if one.event == "relinquish_claim"] == [claim(2).id]


def test_a_cancelled_task_in_line_is_dropped() -> None:
    d = Driver()
    d.start(claim(1))
    d.core.claim_target = 10
    d.core.pace.observe(b"f", 0.1)
    d.claim(claim(2), claim(3))
    d.say(MailArrived((MailEntry(claim(2).id, "cancel"), MailEntry(b"?" * 16, "cancel"))))
    assert sent(d.result(0, 0)) == [3]


def test_a_drain_finishes_what_runs_and_gives_back_the_rest() -> None:
    d = Driver()
    d.start(claim(1))
    d.core.claim_target = 10
    d.core.pace.observe(b"f", 0.1)
    d.claim(claim(2), claim(3))
    instructions = d.say(DrainAsked(30.0))
    assert [(o.event, o.claim.id) for o in outcomes(instructions)] == [
        ("relinquish_claim", claim(2).id),
        ("relinquish_claim", claim(3).id),
    ]
    assert not d.core.wants_work
    (turn,) = d.only(RunTurn, instructions)
    assert turn.limit == 0
    assert d.say(TurnEnded(claims(), turn), WorkSignalled()) == []
    instructions = d.result(0, 0)
    assert [o.event for o in outcomes(instructions)] == ["realize_future"]
    assert instructions[-1] == Finish()


def test_what_outlasts_the_grace_is_killed_and_given_back() -> None:
    d = Driver()
    d.start(claim(1))
    assert d.say(DrainAsked(30.0)) == []
    assert d.core.deadline() == d.now + 30
    assert d.say(after=30) == [KillChild(0)]
    instructions = d.say(ChildEnded(0, "signal SIGKILL (pid 7)"))
    assert [(o.event, o.failure.reason) for o in outcomes(instructions) if o.failure] == [
        ("relinquish_claim", "drained")
    ]
    assert instructions[-1] == Finish()


def test_a_second_drain_can_only_shorten_the_grace() -> None:
    d = Driver()
    d.start(claim(1))
    d.say(DrainAsked(30.0))
    assert d.say(DrainAsked(0.0)) == [KillChild(0)]


def test_an_idle_worker_drains_at_once() -> None:
    d = Driver()
    d.start()
    assert d.say(DrainAsked(30.0)) == [Finish()]


def test_claims_that_arrive_while_draining_go_back() -> None:
    d = Driver()
    (turn,) = d.only(RunTurn, d.say(WorkSignalled()))
    d.say(DrainAsked(30.0))
    instructions = d.say(TurnEnded(claims(claim(1)), turn))
    assert [o.event for o in outcomes(instructions)] == ["relinquish_claim"]


def test_a_fenced_worker_drops_everything_and_can_start_anew() -> None:
    d = Driver(slots=2)
    d.start(claim(1), claim(2))
    assert sorted(i.child for i in d.only(KillChild, d.say(Fenced()))) == [0, 1]
    instructions = d.say(ChildEnded(0, "signal SIGKILL (pid 7)"), ChildEnded(1, "signal SIGKILL (pid 8)"))
    assert outcomes(instructions) == []
    assert d.core.tasks == {}
    assert d.core.used == [0, 0, 0]
    (turn,) = d.only(RunTurn, d.log[-3:])
    assert turn.limit == 2
    assert sent(d.say(TurnEnded(claims(claim(1)), turn))) == [1]


def test_a_fenced_worker_says_nothing_of_what_had_ended() -> None:
    d = Driver(slots=2)
    d.start(claim(1), claim(2))
    d.result(0, 0)
    assert len(d.core.outcomes) == 1, "it is told in a moment"
    later = d.say(Fenced()) + d.say(WorkSignalled(), after=1.0)
    assert d.only(RunTurn, later)
    assert outcomes(later) == []


def test_a_child_is_believed_about_the_task_that_it_runs_alone() -> None:
    d = quick()
    d.claim(claim(2), claim(3))
    assert d.child_of(2) == d.child_of(3) == 0
    instructions = d.result(0, d.seq_of(3))
    assert d.only(KillChild, instructions) == [KillChild(0)]
    assert outcomes(instructions) == []


def test_a_claim_of_what_was_cancelled_here_ends_its_task_of_before() -> None:
    d = Driver(slots=2)
    d.start(claim(1))
    assert d.say(MailArrived((MailEntry(claim(1).id, "cancel"),)))[0] == KillChild(0)
    assert sent(d.claim(claim(1, epoch=1))) == [1]
    assert outcomes(d.say(ChildEnded(0, "signal SIGKILL (pid 7)"))) == []
    (ended,) = outcomes(d.result(d.child_of(1), d.seq_of(1)))
    assert ended.claim.epoch == 1
    assert d.core.used == [0, 0, 0]


def test_mail_of_an_epoch_before_cancels_nothing() -> None:
    d = Driver()
    d.start(claim(1, epoch=1))
    assert d.say(MailArrived((MailEntry(claim(1).id, "cancel", epoch=0),))) == []
    assert d.say(MailArrived((MailEntry(claim(1).id, "cancel", epoch=1),))) == [KillChild(0)]


def test_what_a_refused_turn_was_to_say_is_said_again() -> None:
    d = Driver()
    d.start(claim(1))
    (turn,) = d.only(RunTurn, d.result(0, 0))
    assert len(turn.outcomes) == 1
    assert outcomes(d.say(TurnRefused(turn)) + d.say(after=1.0)) == turn.outcomes


def test_what_is_pushed_twice_runs_once() -> None:
    d = Driver(slots=2)
    d.start()
    assert sent(d.say(Pushed((claim(1),)))) == [1]
    assert sent(d.say(Pushed((claim(1),)))) == []
    assert len(outcomes(d.result(0, 0))) == 1
    assert d.core.tasks == {}


def test_the_table_of_child_states_is_enforced() -> None:
    d = Driver()
    d.start()
    child = d.core.children[0]
    child.become(ChildState.dying)
    for state in ChildState:
        with pytest.raises(AssertionError, match="can't go from dying"):
            child.become(state)
    assert set(CHILD_TRANSITIONS) == set(ChildState)


@pytest.mark.parametrize("seed", seed_params(200))
def test_whatever_happens_every_claim_ends_exactly_once(seed: int) -> None:
    """Random events in random order: at the end of a drain each claim was reported exactly once, or was cancelled."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    d = Driver(slots=rng.randint(1, 4))
    claimed: list[bytes] = []
    cancelled: set[bytes] = set()
    reported: list[bytes] = []
    number = 0
    open_turns: list[RunTurn] = []

    def absorb(instructions: list[Instruction]) -> None:
        nonlocal number
        for i in instructions:
            if isinstance(i, RunTurn):
                reported.extend(o.claim.id for o in i.outcomes)
                open_turns.append(i)
            elif isinstance(i, TakeBack):
                child = d.core.children[i.child]
                back = tuple(t.seq for t in list(child.queue)[1:] if rng.random() < 0.7)
                absorb(d.say(TasksReturned(i.child, back)))
        while open_turns:
            turn = open_turns.pop(0)
            found = [claim(number + j, code=rng.choice([b"f", b"g"])) for j in range(rng.randint(0, turn.limit))]
            number += len(found)
            for head in found[:]:
                for _ in range(rng.choice([0, 0, 1, 4])):  # claimed ahead, each behind the one before
                    head = claim(number, code=rng.choice([b"f", b"f", b"g"]), dependencies=(head.id,))
                    number += 1
                    found.append(head)
            claimed.extend(c.id for c in found)
            absorb(d.say(TurnEnded(claims(*found, more=rng.random() < 0.5 and number < 300), turn)))

    absorb(d.say(WorkSignalled()))
    for step in range(300):
        children = [c for c in d.core.children.values() if c.queue and c.state is not ChildState.starting]
        if step == 250:
            absorb(d.say(DrainAsked(rng.choice([0.0, 1.0]))))
        if not children:
            absorb(d.say(WorkSignalled(), after=rng.choice([0.0, 0.6])))
            continue
        child = rng.choice(children)
        head = child.queue[0]
        action = rng.random()
        if action < 0.6 or (child.state is ChildState.dying and action < 0.7):
            message = rng.choice(
                [
                    [messages.RESULT, head.seq, rng.choice([5, 500, 2 * SECOND]), b"v"],
                    [messages.STORED, head.seq, 9, 70_000, rng.choice([head.object_name, head.object_name, "false"])],
                    [messages.FAILED, head.seq, 9, messages.FAIL_RAISED, failure(ValueError("x"))],
                ]
            )
            if head.claim.dependencies and (head.orphaned or rng.random() < 0.2):
                message = [messages.SKIPPED, head.seq]
            absorb(d.say(ChildSaid(child.number, [message]), after=rng.choice([0.0, 0.001, 0.2])))
        elif action < 0.75 or child.state is ChildState.dying:
            unread = tuple(t.seq for t in list(child.queue)[rng.randint(0, len(child.queue)) :])
            absorb(d.say(ChildEnded(child.number, "signal SIGKILL", unread), after=rng.choice([0.0, 0.6])))
        elif action < 0.85 and child.state is ChildState.running:
            returned = [t.seq for t in list(child.queue)[1:] if rng.random() < 0.5]
            absorb(d.say(ChildSaid(child.number, [[messages.BLOCKED, head.seq, returned, []]])))
        elif action < 0.92 and child.state is ChildState.blocked:
            absorb(d.say(ChildSaid(child.number, [[messages.RESUMED, head.seq]])))
        elif action < 0.95:
            head = rng.choice([head, *d.core.tasks.values()])
            cancelled.add(head.claim.id)
            absorb(d.say(MailArrived((MailEntry(head.claim.id, "cancel"),))))
        else:
            absorb(d.say(WorkSignalled(), after=rng.choice([0.0, 0.05, 1.5])))
    for _ in range(2000):
        if d.core.finished:
            break
        for child in list(d.core.children.values()):
            if child.state is ChildState.dying:
                absorb(d.say(ChildEnded(child.number, "signal SIGKILL")))
        absorb(d.say(after=1.0))
    assert d.core.finished
    assert d.core.tasks == {}
    assert d.core.used == [0, 0, 0]
    assert len(reported) == len(set(reported)), "a claim was reported twice"
    assert set(claimed) - cancelled <= set(reported) <= set(claimed)


def chain(first: int, count: int, **fields: Any) -> list[Claim]:
    """Claims of which each lacks the result of the one before."""
    heads = [claim(first, **fields)]
    for number in range(first + 1, first + count):
        heads.append(claim(number, dependencies=(heads[-1].id,), **fields))
    return heads


def quick(slots: int = 1) -> Driver:
    """A worker that has seen that its tasks are short."""
    d = Driver(slots=slots)
    d.start(claim(1))
    d.result(0, 0, 10)
    return d


def test_a_chain_claimed_ahead_is_sent_to_one_child_in_order() -> None:
    d = quick(slots=2)
    instructions = d.claim(*chain(2, 4))
    assert sent(instructions) == [2, 3, 4, 5]
    assert len({s.child for s in d.only(SendTasks, instructions)}) == 1
    assert planning.claim_limit(d.core) == 1, "a chain takes one slot"
    child, seqs = d.child_of(2), [d.seq_of(n) for n in range(2, 6)]
    ended = [o for seq in seqs for o in outcomes(d.result(child, seq, after=planning.LINGER))]
    assert [(o.event, o.result) for o in ended] == [("realize_future", b"v")] * 4
    assert d.core.following == 0


def test_when_a_link_fails_those_behind_it_go_back_uncharged() -> None:
    d = quick()
    d.claim(*chain(2, 3))
    failed = [messages.FAILED, d.seq_of(2), 9, messages.FAIL_RAISED, failure(ValueError("x"))]
    skipped = [[messages.SKIPPED, d.seq_of(n)] for n in (3, 4)]
    ended = outcomes(d.say(ChildSaid(0, [failed, *skipped])))
    assert [o.event for o in ended] == ["fail_future", "relinquish_claim", "relinquish_claim"]
    assert not any(o.started for o in ended[1:])
    assert d.core.tasks == {}


@pytest.mark.parametrize("awaits", [[], [claim(1).id]], ids=["readers", "a future"])
def test_what_waits_for_readers_is_followed_by_nothing_in_hand(awaits: list[bytes]) -> None:
    d = quick()
    d.claim(*chain(2, 2))
    blocks = [messages.BLOCKED, d.seq_of(2), [d.seq_of(3)], awaits]
    ended = outcomes(d.say(ChildSaid(0, [blocks])))
    assert [(o.event, o.claim.id) for o in ended] == ([] if awaits else [("relinquish_claim", claim(3).id)])
    assert (claim(3).id in d.core.tasks) == bool(awaits)


def test_a_stored_result_is_brought_to_what_was_claimed_behind_it() -> None:
    d = quick()
    d.claim(*chain(2, 2))
    d.hold_inputs = True
    instructions = d.say(
        ChildSaid(
            0,
            [
                [messages.STORED, d.seq_of(2), 9, 70_000, d.core.tasks[claim(2).id].object_name],
                [messages.SKIPPED, d.seq_of(3)],
            ],
        )
    )
    (prepare,) = d.only(PrepareInputs, instructions)
    (task,) = prepare.tasks
    assert [result.size for result in task.claim.inputs.values()] == [70_000]
    task.dependencies = ["/parcel"]
    assert sent(d.say(InputsReady([task]))) == [3]


def test_a_follower_that_was_taken_back_is_sent_with_the_result_itself() -> None:
    d = quick()
    d.claim(*chain(2, 2))
    assert d.only(TakeBack, d.say(after=dispatching.STUCK)) == [TakeBack(0)]
    assert sent(d.say(TasksReturned(0, (d.seq_of(3),)))) == [], "it waits for the one before"
    assert sent(d.result(0, d.seq_of(2), value=b"two")) == [3]
    assert d.core.tasks[claim(3).id].dependencies == [b"two"]


def test_a_cancelled_link_takes_those_behind_it_out_of_hand() -> None:
    d = quick()
    d.claim(*chain(2, 4))
    d.say(after=dispatching.STUCK)
    d.say(TasksReturned(0, tuple(d.seq_of(n) for n in (3, 4, 5))))
    ended = outcomes(d.say(MailArrived((MailEntry(claim(3).id, "cancel"),))))
    assert [(o.event, o.claim.id) for o in ended] == [("relinquish_claim", claim(n).id) for n in (4, 5)]
    assert set(d.core.tasks) == {claim(2).id}


def test_what_took_the_result_of_one_that_was_decided_elsewhere_goes_back() -> None:
    d = quick()
    d.claim(*chain(2, 4))
    child, seqs = d.child_of(2), [d.seq_of(n) for n in range(2, 6)]
    d.result(child, seqs[0])
    (turn,) = d.only(RunTurn, d.say(after=planning.LINGER))
    d.result(child, seqs[1])
    decided = Claims()
    decided.stale = (claim(2).id,)
    ended = outcomes(d.say(TurnEnded(decided, turn), after=planning.LINGER))
    ended += outcomes([*d.result(child, seqs[2]), *d.result(child, seqs[3]), *d.say(after=planning.LINGER)])
    assert {(o.event, o.claim.id) for o in ended} == {("relinquish_claim", claim(n).id) for n in (3, 4, 5)}


def test_a_claim_whose_upstream_is_not_in_hand_goes_the_way_of_lost_inputs() -> None:
    d = quick()
    d.hold_inputs = True
    (prepare,) = d.only(PrepareInputs, d.claim(claim(9, dependencies=(claim(8).id,))))
    assert prepare.tasks[0].behind is None


def blocked(*shapes: Requirements) -> Claims:
    result = Claims()
    result.blocked = shapes
    return result


def test_room_is_made_for_a_shape_that_was_passed_over_too_long() -> None:
    d = Driver(slots=2, total=Requirements(2))
    big, small = Requirements(2), (1000, 0, 0)
    (turn,) = d.only(RunTurn, d.say(WorkSignalled()))
    found = claims(claim(1, shape=small), claim(2, shape=small))
    found.blocked = (big,)
    d.say(TurnEnded(found, turn))
    number, turns = 3, []
    for _ in range(20):  # the pool always has another small one
        child = next(c for c in d.core.children.values() if c.queue)
        (turn,) = d.only(RunTurn, d.result(child.number, child.queue[0].seq, SECOND // 2, after=0.5))
        turns.append(turn)
        if turn.capacity.hold_for is not None:
            break
        found = claims(claim(number, shape=small))
        found.blocked = (Requirements(1), big)  # the small ones, too, wait for room, but not for long
        number += 1
        d.say(TurnEnded(found, turn))
    assert turn.capacity.hold_for == big
    assert 4 <= len(turns) <= 6, "after about two seconds"
    assert d.only(RunTurn, d.say(TurnEnded(blocked(big), turn))) == []
    child = next(c for c in d.core.children.values() if c.queue)
    (turn,) = d.only(RunTurn, d.result(child.number, child.queue[0].seq, SECOND // 2))
    assert (turn.capacity.hold_for, turn.capacity.free) == (big, big), "all that was free is there now"
    assert sent(d.say(TurnEnded(claims(claim(99, shape=(2000, 0, 0))), turn))) == [99]
    assert d.core.hold_for is None


def test_room_is_not_kept_for_what_another_worker_took_or_for_ever() -> None:
    for later, ended in ((0.0, Claims()), (61.0, blocked(Requirements(2)))):
        d = Driver(slots=2, total=Requirements(2))
        d.start()
        d.core.hold_for, d.core.hold_until = (2000, 0, 0), d.now + 60
        (turn,) = d.only(RunTurn, d.say(WorkSignalled()))
        assert turn.capacity.hold_for == Requirements(2)
        (turn,) = d.only(RunTurn, d.say(TurnEnded(ended, turn), after=later))
        assert turn.capacity.hold_for is None
        assert d.core.hold_for is None


def test_after_running_out_of_memory_a_task_is_tried_again_with_more_room() -> None:
    ended = []
    for total, events in (
        ("8GiB", lambda d: [ChildEnded(0, "signal SIGKILL", out_of_memory=True)]),
        ("8GiB", lambda d: [ChildSaid(0, [[messages.FAILED, 0, 9, messages.FAIL_MEMORY, failure(MemoryError())]])]),
        ("3GiB", lambda d: [ChildEnded(0, "signal SIGKILL", out_of_memory=True)]),
        ("2GiB", lambda d: [ChildEnded(0, "signal SIGKILL", out_of_memory=True)]),
        ("8GiB", lambda d: [ChildEnded(0, "signal SIGSEGV")]),
    ):
        d = Driver(total=Requirements(4, total))
        d.start(claim(1, shape=(0, 2 << 30, 0)))
        (outcome,) = outcomes(d.say(*events(d)))
        ended.append(outcome.requirements and outcome.requirements.shape[1] >> 30)
    assert ended == [4, 4, 3, None, None]


def test_tasks_name_their_future_and_function() -> None:
    task = Task(claim(7, name="main.f"), 0, 0, 0)
    assert task.label == "future 00000000-0000-0000-0000-000000000007 (main.f)"


def test_only_functions_that_are_always_short_share_packets() -> None:
    d = Driver()
    d.core.pace.observe(b"f", 1e-5)
    d.core.claim_target = 10
    (send,) = d.only(SendTasks, d.start(claim(1), claim(2)))
    assert send.per_packet == 1
    for _ in range(dispatching.STEADY):
        d.core.pace.observe(b"f", 1e-5)
    d.result(0, 0)
    d.result(0, 1)
    (send,) = d.only(SendTasks, d.claim(claim(3), claim(4)))
    assert send.per_packet == dispatching.PER_PACKET
    d.core.pace.observe(b"f", 2.0)
    assert d.core.pace.streak(b"f") == 0


def test_an_idle_worker_that_is_always_too_late_lets_others_be_first() -> None:
    d = Driver()
    d.start()
    for _ in range(EMPTY_RINGS):
        answer_ring(d)
    assert d.only(RunTurn, d.say(WorkSignalled())) == []
    assert not d.core.wants_work
    assert d.core.deadline() == d.now + d.core.ring_delay
    answer_ring(d)
    assert d.core.ring_delay <= MOST_RING_DELAY
    answer_ring(d, claim(1))
    d.result(0, 0)
    assert d.core.ring_delay == 0
    assert d.core.wants_work


def test_looking_again_in_vain_teaches_no_delay() -> None:
    d = Driver()
    d.start()
    for _ in range(10):
        (turn,) = d.only(RunTurn, d.say(WorkSignalled(again=True)))
        d.say(TurnEnded(claims(), turn))
    assert d.core.ring_delay == 0


def test_each_worker_prefers_its_own_stripe_of_the_pool() -> None:
    d = Driver()
    d.say(PeersSeen(2, 5))
    assert d.only(RunTurn, d.log)[0].capacity.stripe == (2, 5)


def test_children_that_nobody_listened_to_are_not_taken_for_stuck() -> None:
    d = Driver()
    d.start(claim(1, run_timeout=1.0))
    d.result(0, 0)
    d.core.claim_target = 50
    d.claim(*[claim(i, run_timeout=1.0) for i in range(2, 40)])
    looked, d.now = d.now, d.now + 5  # a long transaction
    assert d.core.step([], d.now, looked) == []
    assert TakeBack(0) not in d.core.step([WorkSignalled(again=True)], d.now + 5, looked)
    assert KillChild(0) in d.core.step([], d.now, d.now)


def test_a_turn_carries_no_more_bytes_than_a_transaction_should() -> None:
    d = Driver(slots=1)
    d.start(claim(0))
    (turn,) = d.only(RunTurn, d.result(0, 0))
    d.core.claim_target = 100
    d.say(TurnEnded(claims(*[claim(i) for i in range(1, 61)]), turn))
    said = [[messages.RESULT, t.seq, 10, bytes(16_000)] for t in d.core.children[0].queue]
    (turn,) = d.only(RunTurn, d.say(ChildSaid(0, said), after=planning.LINGER))
    carried = []
    while turn is not None:
        assert 1 <= len(turn.outcomes) * 16_000 <= planning.TURN_BYTES
        carried += turn.outcomes
        turns = d.only(RunTurn, d.say(TurnEnded(claims(), turn)))
        turn = next((t for t in turns if t.outcomes), None)
    assert len(carried) == 60


def test_a_state_that_contradicts_itself_is_told() -> None:
    d = Driver(slots=2)
    d.start(claim(1), claim(2), claim(3))
    d.core.validate()
    d.core.used[0] += 1
    d.core.children[0].queue.append(d.core.children[1].queue[0])
    with pytest.raises(AssertionError, match=r"child 0 has tasks .* in line; .* is counted as taken"):
        d.core.validate()
