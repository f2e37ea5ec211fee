"""Work that clients push to a worker they saw idle, by events and by transactions."""

from __future__ import annotations

from typing import Any

from fdb_datamodel import (
    Capacity,
    Claim,
    Claims,
    ClusterSpace,
    FutureSpec,
    FutureState,
    Outcome,
    Requirements,
    WorkerId,
    claims_of,
    finish_turn,
    get_future_state,
    new_incarnation,
    register_worker,
    session_bell,
    submit_claimed,
    submit_future,
    validate,
)
from futures_worker.worker import messages
from futures_worker.worker.deciding.core import WorkerCore
from futures_worker.worker.deciding.instructions import (
    ChildSaid,
    ChildStarted,
    Event,
    InputsReady,
    Instruction,
    PrepareInputs,
    Pushed,
    RunTurn,
    SendTasks,
    SpawnChild,
    TurnEnded,
    WorkSignalled,
)
from idempotent_txn import run

ME = WorkerId("127.0.0.1", 7000, b"i" * 16)


def claim(number: int) -> Claim:
    return Claim(number.to_bytes(16, "big"), ME, bytes(10), code=b"f")


def carry_out(core: WorkerCore, *events: Event, now: float = 100.0) -> list[Instruction]:
    """Children fork and inputs are ready at once."""
    seen: list[Instruction] = []
    pending = list(events)
    while True:
        instructions = core.step(pending, now, now)
        pending = []
        for instruction in instructions:
            if isinstance(instruction, SpawnChild):
                pending.append(ChildStarted(instruction.child))
            elif isinstance(instruction, PrepareInputs):
                for task in instruction.tasks:
                    task.digest = task.claim.code
                pending.append(InputsReady(instruction.tasks))
            else:
                seen.append(instruction)
        if not pending:
            return seen


def idle_worker() -> WorkerCore:
    core = WorkerCore(ME, 1, Requirements(1, "1GiB", 0))
    (turn,) = carry_out(core, WorkSignalled())
    assert isinstance(turn, RunTurn)
    assert carry_out(core, TurnEnded(Claims(), turn)) == []
    return core


def test_an_idle_worker_runs_what_it_is_pushed_without_looking_at_the_pool() -> None:
    core = idle_worker()
    core.watched = True
    (send,) = carry_out(core, Pushed((claim(1),)))
    assert isinstance(send, SendTasks)
    assert core.in_hand() == {claim(1).id}
    (turn,) = carry_out(core, ChildSaid(0, [[messages.RESULT, 0, 10, b"v"]]))
    assert isinstance(turn, RunTurn)
    assert [outcome.event for outcome in turn.outcomes] == ["realize_future"]
    assert not turn.capacity.look  # a bell would have told


def test_a_ring_makes_the_next_turn_look() -> None:
    core = idle_worker()
    core.watched = True
    carry_out(core, Pushed((claim(1),)))
    instructions = carry_out(core, WorkSignalled(), ChildSaid(0, [[messages.RESULT, 0, 10, b"v"]]))
    assert [i.capacity.look for i in instructions if isinstance(i, RunTurn)] == [True]


def test_a_worker_that_is_busy_gives_pushed_work_to_the_pool() -> None:
    core = idle_worker()
    carry_out(core, Pushed((claim(1),)))
    (turn,) = carry_out(core, Pushed((claim(1), claim(2))))
    assert isinstance(turn, RunTurn)
    assert [(outcome.event, outcome.claim.id) for outcome in turn.outcomes] == [("relinquish_claim", claim(2).id)]
    assert core.in_hand() == {claim(1).id}


def test_pushed_work_is_found_by_its_worker_and_nobody_else(any_db: Any) -> None:
    space = ClusterSpace("push")
    me = run(any_db, register_worker, space, WorkerId("127.0.0.1", 1, new_incarnation()))
    other = run(any_db, register_worker, space, WorkerId("127.0.0.1", 2, new_incarnation()))
    spec = FutureSpec(code=b"f")
    before = run(any_db, lambda tr: tr.get(session_bell(space, me.incarnation)).value)
    run(any_db, submit_claimed, space, [spec], me)
    assert run(any_db, lambda tr: tr.get(session_bell(space, me.incarnation)).value) != before
    (found,) = run(any_db, claims_of, space, me)
    assert found.id == spec.id
    assert run(any_db, claims_of, space, me, known={spec.id}) == []
    assert run(any_db, claims_of, space, other) == []
    assert run(any_db, finish_turn, space, other, [], Capacity(), 10) == []
    run(any_db, finish_turn, space, me, [Outcome.realized(found, b"v")], Capacity(look=False), 10)
    assert run(any_db, get_future_state, space, spec.id) == FutureState.realized
    assert validate(any_db, "push") == []


def test_a_turn_that_doesnt_look_claims_only_what_it_unblocks(any_db: Any) -> None:
    space = ClusterSpace("push")
    me = run(any_db, register_worker, space, WorkerId("127.0.0.1", 1, new_incarnation()))
    first, pooled = FutureSpec(code=b"f"), FutureSpec(code=b"f")
    run(any_db, submit_claimed, space, [first], me)
    dependent = FutureSpec(code=b"f", dependencies=(first.id,))
    run(any_db, submit_future, space, dependent)
    run(any_db, submit_future, space, pooled)
    (found,) = run(any_db, claims_of, space, me)
    (following,) = run(any_db, finish_turn, space, me, [Outcome.realized(found, b"v")], Capacity(look=False), 10)
    assert following.id == dependent.id
    (last,) = run(any_db, finish_turn, space, me, [], Capacity(), 10)
    assert last.id == pooled.id
    assert validate(any_db, "push") == []
