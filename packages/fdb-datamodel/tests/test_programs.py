"""Programs: requests recorded once under a claim, and how a program leaves, comes back, is charged and forgotten."""

from __future__ import annotations

from uuid import UUID

import pytest
from datamodel_lab.lab import Lab

import fdb_datamodel as dm
from fdb_datamodel import Away, Capacity, Claim, Failure, Outcome, WorkerId, programs
from fdb_datamodel.programs import ProgramClaim, Request
from fdb_datamodel.rows.elements import encode_id
from fdb_datamodel.rows.space import layout_of
from fdb_schema import RecordError
from idempotent_txn import run

FOREVER = 10**15


class Program:
    """A program of a lab that a worker runs."""

    def __init__(self, lab: Lab, **options: object) -> None:
        self.lab = lab
        lab.clock(1)
        self.worker = lab.worker()
        self.spec = lab.spec(durable=True, **options)
        lab.submit(self.spec)
        self.id = self.spec.id
        self.take()

    def take(self, worker: WorkerId | None = None) -> Claim:
        self.claim: Claim = self.lab(dm.claim_future, self.id, worker or self.worker)
        self.fence = ProgramClaim(self.id, self.claim.token)
        return self.claim

    def leave(self, kind: str, **away: object) -> str:
        self.lab(dm.finish_turn, self.worker, [Outcome.left(self.claim, Away(kind, **away))], Capacity(), 0)  # type: ignore[arg-type]
        return self.lab.state(self.id)

    def record(self, number: int, request: Request) -> Request:
        return self.lab(programs.record_request, self.fence, number, request)


@pytest.fixture
def program(memory_lab: Lab) -> Program:
    return Program(memory_lab)


def test_a_request_is_recorded_once_and_in_order(program: Program) -> None:
    lab = program.lab
    first = program.record(0, Request("step", "a", b"1"))
    assert program.record(0, Request("step", "b", b"2")) == first, "a commit whose outcome wasn't known"
    program.record(1, Request("submit", "f", ids=(b"c" * 16,)))
    assert lab(programs.read_requests, program.id) == [first, program.record(1, Request("submit", "f"))]
    assert [number for number, _ in lab(programs.last_requests, program.id, 1)] == [1]
    assert lab.validate() == []


def test_a_request_that_can_not_be_read_is_named(program: Program) -> None:
    lab = program.lab
    program.record(0, Request("step", "a", b"1"))
    key = layout_of(lab.space).program_request(encode_id(program.id), 0)
    run(lab.db, lambda tr: tr.set(key, b"\xc1bad"))
    asked = [
        lambda: lab(programs.read_requests, program.id),
        lambda: lab(programs.last_requests, program.id, 1),
        lambda: program.record(0, Request("step", "a", b"1")),
    ]
    for ask in asked:
        with pytest.raises(RecordError, match=rf"request 0 of program {UUID(bytes=program.id)} can't be read"):
            ask()


def test_an_attempt_that_lost_its_claim_records_nothing(program: Program) -> None:
    lab = program.lab
    lab.kill(program.worker)
    lab.reap()
    old = program.fence
    program.take(lab.worker(2))
    for stale in (
        lambda: lab(programs.record_request, old, 0, Request("step", "a")),
        lambda: lab(programs.take_event, old, 0, "paid"),
        lambda: lab(programs.publish, old, 0, "progress", b"1"),
        lambda: lab(programs.write_parts, old, 0, 0, [b"1"]),
        lambda: lab(programs.clear_value, old, 0),
    ):
        with pytest.raises(dm.ClaimLostError):
            stale()
    assert lab(programs.read_requests, program.id) == []


def test_sleep_ends_by_the_cluster_clock(program: Program) -> None:
    lab = program.lab
    due = lab.clock(1) + 5_000_000
    assert program.leave("sleep", due_us=due) == "waiting"
    assert "asleep" in lab.info(program.id).reason
    assert lab.claim(program.worker) == []
    lab(dm.advance, due - 1)
    assert lab.state(program.id) == "waiting"
    lab(dm.advance, due)
    assert [claim.id for claim in lab.claim(program.worker)] == [program.id]
    assert lab.validate() == []
    assert lab.info(program.id).charged == 1, "what runs now, and nothing of before"


@pytest.mark.parametrize("until", ["all", "first", "failure"])
@pytest.mark.parametrize("end", ["result", "failure", "deleted"])
def test_ends_of_futures_bring_it_back(memory_lab: Lab, end: str, until: str) -> None:
    lab = memory_lab
    program = Program(lab)
    children = [lab.spec() for _ in range(3)]
    lab.submit(*children)
    ids = tuple(child.id for child in children)
    assert program.leave("futures", ids=ids, until=until) == "waiting"
    assert set(lab.info(program.id).waiting_on) == set(ids)
    assert lab.validate() == []
    if end == "deleted":
        lab(dm.delete_future, ids[0])
    else:
        claim = lab(dm.claim_future, ids[0], program.worker)
        if end == "result":
            lab(dm.realize_future, claim, b"1")
        else:
            lab(dm.fail_future, claim, Failure("error", "x"), True)
    back = until == "first" or (until == "failure" and end != "result")
    assert lab.state(program.id) == ("unclaimed" if back else "waiting")
    for one in ids[1:]:
        lab(dm.realize_future, lab(dm.claim_future, one, program.worker), b"1")
    assert lab.state(program.id) == "unclaimed"
    assert lab.validate() == []
    program.take()
    assert program.leave("futures", ids=ids) == "unclaimed", "all have ended: it comes back at once"


@pytest.mark.parametrize("damage", [b"\xc1bad", b"\x92\x00\x63"])
def test_what_says_how_it_waits_can_not_be_read_and_holds_up_no_end(memory_lab: Lab, damage: bytes) -> None:
    lab = memory_lab
    program, keys = Program(lab), layout_of(lab.space)
    children = [lab.spec() for _ in range(2)]
    lab.submit(*children)
    ids = tuple(child.id for child in children)
    program.leave("futures", ids=ids)
    run(lab.db, lambda tr: tr.set(keys.wake(encode_id(ids[0]), encode_id(program.id)), damage))
    lab(dm.realize_future, lab(dm.claim_future, ids[0], program.worker), b"1")
    assert lab.state(ids[0]) == "realized"
    assert lab.state(program.id) == "unclaimed", "it looks by itself"
    program.take()
    assert program.leave("futures", ids=ids) == "waiting"
    lab(dm.realize_future, lab(dm.claim_future, ids[1], program.worker), b"1")
    assert lab.state(program.id) == "unclaimed"
    assert lab.validate() == []


def test_the_last_end_and_the_timer_meet(program: Program) -> None:
    lab = program.lab
    child = lab.spec()
    lab.submit(child)
    due = lab.clock(1) + 1_000_000
    program.leave("futures", ids=(child.id,), due_us=due)
    lab(dm.advance, due)
    assert lab.state(program.id) == "unclaimed"
    lab(dm.realize_future, lab(dm.claim_future, child.id, program.worker), b"1")
    assert lab.state(program.id) == "unclaimed"
    assert lab.validate() == []
    assert [claim.id for claim in lab.claim(program.worker)] == [program.id], "once"


def test_events_are_taken_in_order_and_bring_it_back(program: Program) -> None:
    lab = program.lab
    assert lab(programs.take_event, program.fence, 0, "paid") is None
    assert program.leave("event", name="paid") == "waiting"
    assert "'paid'" in lab.info(program.id).reason
    lab(programs.send_event, program.id, "other", b"0")
    assert lab.state(program.id) == "waiting"
    lab(programs.send_event, program.id, "paid", b"1")
    lab(programs.send_event, program.id, "paid", b"2")
    assert lab.state(program.id) == "unclaimed"
    program.take()
    assert lab(programs.take_event, program.fence, 0, "paid").value == b"1"
    assert lab(programs.take_event, program.fence, 0, "paid").value == b"1", "a commit whose outcome wasn't known"
    assert program.leave("event", name="paid") == "unclaimed", "another one is there"
    program.take()
    assert lab(programs.take_event, program.fence, 1, "paid").value == b"2"
    assert lab(programs.take_event, program.fence, 2, "paid") is None
    late = lab(programs.take_event, program.fence, 2, "paid", lab.clock(9))
    assert (late.kind, late.value) == ("event", None), "its time had passed"
    lab(programs.send_event, program.id, "paid", b"3")
    assert lab(programs.take_event, program.fence, 2, "paid").value is None, "as it was recorded"
    assert lab.validate() == []


def test_events_are_for_programs_that_live(program: Program) -> None:
    lab = program.lab
    other = lab.spec()
    lab.submit(other)
    with pytest.raises(dm.FutureStateError, match="durable=True"):
        lab(programs.send_event, other.id, "paid", b"")
    lab(dm.realize_future, program.claim, b"1")
    with pytest.raises(dm.FutureStateError, match="has ended"):
        lab(programs.send_event, program.id, "paid", b"")


@pytest.mark.parametrize("kind", ["sleep", "futures", "event"])
@pytest.mark.parametrize("end", [dm.cancel_future, dm.delete_future])
def test_one_that_is_away_is_ended_wholly(memory_lab: Lab, kind: str, end: object) -> None:
    lab = memory_lab
    program = Program(lab)
    child = lab.spec()
    lab.submit(child)
    lab(programs.publish, program.fence, 0, "progress", b"1")
    lab(programs.send_event, program.id, "other", b"1")
    due = FOREVER if kind == "sleep" else None
    program.leave(
        kind, name="paid" if kind == "event" else "", ids=(child.id,) if kind == "futures" else (), due_us=due
    )
    lab(end, program.id)  # type: ignore[arg-type]
    assert lab.validate() == []
    lab(dm.realize_future, lab(dm.claim_future, child.id, program.worker), b"1")
    assert lab.validate() == []
    assert lab.claim(program.worker) == []
    left = [key for key in lab.rows() if key[0] in ("programs", "timers", "dependencies", "listeners")]
    assert (left == []) is (end is dm.delete_future), "a cancelled one can still be read"


def test_what_is_published_is_replaced(program: Program) -> None:
    lab = program.lab
    for number, value in enumerate((b"1", b"2")):
        lab(programs.publish, program.fence, number, "progress", value)
    lab(programs.publish, program.fence, 0, "progress", b"1")
    lab(programs.publish, program.fence, 2, "stage", b"end")
    assert lab(programs.read_published, program.id) == {"progress": b"2", "stage": b"end"}
    with pytest.raises(dm.OversizeError, match="60,000 are possible"):
        lab(programs.publish, program.fence, 3, "much", bytes(60_001))


def test_attempts_are_forgiven_where_it_came_further(memory_lab: Lab) -> None:
    lab = memory_lab
    program = Program(lab, max_worker_losses=1, max_retries=1)
    for number in range(4):  # each ends a request later than the one before
        program.record(number, Request("step", "s", b""))
        lab.kill(program.worker)
        lab.reap()
        program.worker = lab.worker()
        program.take()
    assert lab.info(program.id).losses <= 1
    for _ in range(2):
        assert lab.state(program.id) == "claimed"
        lab(dm.fail_future, program.claim, Failure("crash", "died"))
        if lab.state(program.id) == "unclaimed":
            program.take()
    assert lab.state(program.id) == "failed", "one and the same place: max_retries holds"
    assert lab.validate() == []


def test_a_failed_one_is_resumed_from_where_it_was(program: Program) -> None:
    lab = program.lab
    program.record(0, Request("step", "good", b"1"))
    lab(programs.write_parts, program.fence, 1, 0, [b"x"])
    program.record(1, Request("step", "bad", error=True, parts=1))
    assert lab(programs.resume_program, program.id) is False, "it hasn't failed"
    lab(dm.fail_future, program.claim, Failure("error", "x"), True)
    assert lab(programs.resume_program, program.id) is True
    assert lab.state(program.id) == "unclaimed"
    assert [one.name for one in lab(programs.read_requests, program.id)] == ["good"], "what failed is asked for again"
    assert lab(programs.read_value, program.id, 1, 0, 10) == []
    assert lab.validate() == []


def test_large_values_are_in_parts(program: Program) -> None:
    lab = program.lab
    lab(programs.write_parts, program.fence, 0, 0, [b"left by an attempt before"])
    lab(programs.clear_value, program.fence, 0)
    for first in (0, 2):
        lab(programs.write_parts, program.fence, 0, first, [b"a" * 10, b"b" * 10])
    program.record(0, Request("step", "large", parts=4))
    assert lab(programs.read_value, program.id, 0, 0, 3) == [b"a" * 10, b"b" * 10, b"a" * 10]
    with pytest.raises(dm.OversizeError):
        program.record(1, Request("step", "large", bytes(60_001)))
    assert lab.validate() == []


def test_programs_are_listed(memory_lab: Lab) -> None:
    lab = memory_lab
    specs = [lab.spec(durable=True) for _ in range(5)]
    lab.submit(*specs, lab.spec())
    ids = [one.id for one in specs]
    page, after = lab(programs.list_programs, None, 2)
    assert page == ids[:2]
    assert lab(programs.list_programs, after, 9) == (ids[2:], None)
    assert lab(programs.list_programs, None, 9, newest_first=True)[0] == ids[::-1]
    keys = layout_of(lab.space)
    strays = [keys.program(b"\x00"), keys.program(b"\x07xx")]  # before and after what a release wrote
    run(lab.db, lambda tr: [tr.set(key, b"") for key in strays])
    page, after = lab(programs.list_programs, None, 2)
    assert (page, lab(programs.list_programs, after, 2)[0]) == (ids[:2], ids[2:4])
    assert lab(programs.list_programs, None, 1, newest_first=True) == (ids[-1:], ids[-1])
    run(lab.db, lambda tr: [tr.clear(key) for key in strays])
    lab(dm.delete_future, ids[0])
    assert lab(programs.list_programs, None, 9)[0] == ids[1:]


def test_a_task_that_is_no_program_cannot_leave(memory_lab: Lab) -> None:
    lab = memory_lab
    worker = lab.worker()
    lab.submit(lab.spec())
    (claim,) = lab.claim(worker)
    lab(dm.finish_turn, worker, [Outcome.left(claim, Away("sleep", due_us=FOREVER))], Capacity(), 0)
    assert lab.state(claim.id) == "failed"
    assert lab.validate() == []


def test_a_cancelled_one_is_told_once_by_what_it_asks_next(program: Program) -> None:
    lab = program.lab
    program.record(0, Request("step", "a", b"1"))
    assert lab(programs.cancel_program, program.id) == "claimed"
    assert lab(programs.cancel_program, program.id) == "claimed", "again: nothing new"
    assert program.record(0, Request("step", "a")).cancels is False, "that was before"
    told = program.record(1, Request("step", "b", b"2"))
    assert told.cancels and told.name == "b", "what was done is recorded, and the next one raises"
    assert program.record(1, Request("step", "b")).cancels, "a commit whose outcome wasn't known"
    assert [one.kind for one in lab(programs.read_requests, program.id)] == ["step", "step", "cancel"]
    assert program.record(3, Request("step", "undo", b"3")).cancels is False
    assert program.leave("sleep", due_us=FOREVER) == "waiting", "it may wait while it undoes"
    assert lab(programs.cancel_program, program.id) == "unclaimed"
    assert lab.validate() == []


def test_one_that_is_away_comes_back_to_be_told(program: Program) -> None:
    lab = program.lab
    program.leave("event", name="never")
    assert lab(programs.cancel_program, program.id, 5.0) == "unclaimed"
    program.take()
    assert program.leave("event", name="never") == "unclaimed", "it isn't to wait before it is told"
    program.take()
    assert lab(programs.deliver_cancel, program.fence, 0) is True
    assert lab(programs.deliver_cancel, program.fence, 0) is True, "a commit whose outcome wasn't known"
    assert lab(programs.deliver_cancel, program.fence, 1) is False
    lab(dm.advance, lab.clock(1) + 5_000_000)
    assert lab.info(program.id).failure.reason == "cancelled"  # type: ignore[union-attr]
    with pytest.raises(dm.FutureStateError, match="submit it anew"):
        lab(programs.resume_program, program.id)
    assert lab.validate() == []


def test_a_cancel_is_of_one_epoch(program: Program) -> None:
    lab = program.lab
    lab(programs.cancel_program, program.id, 5.0)
    lab(dm.cancel_future, program.id)
    assert lab(programs.resume_program, program.id), "it was never told"
    program.take()
    assert program.record(0, Request("step", "a", b"1")).cancels is False
    lab(dm.advance, lab.clock(1) + 5_000_000)
    assert lab.state(program.id) == "claimed", "nor does the grace of before end it"


@pytest.mark.parametrize("kind", ["never begun", "no program", "no grace", "ended"])
def test_what_is_cancelled_at_once(memory_lab: Lab, kind: str) -> None:
    lab = memory_lab
    lab.clock(1)
    spec = lab.spec(durable=kind != "no program")
    lab.submit(spec)
    if kind in ("no grace", "ended"):
        claim = lab(dm.claim_future, spec.id, lab.worker())
        if kind == "ended":
            lab(dm.realize_future, claim, b"1")
    state = lab(programs.cancel_program, spec.id, 0 if kind == "no grace" else 5.0)
    assert state == ("realized" if kind == "ended" else "failed")
    assert lab.validate() == []
