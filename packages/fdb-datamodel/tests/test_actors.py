"""Actors: a future that stays claimed, and calls that its process records itself."""

from __future__ import annotations

from typing import Any

import pytest
from datamodel_lab.lab import Lab

import fdb_datamodel as dm
from fdb_datamodel import FutureSpec, actors
from fdb_datamodel.actors import ActorHost, CallOutcome
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.space import ARGS, OPTIONS, encode_id, layout_of


def start(lab: Lab, port: int = 1, max_restarts: int = 0, name: str = "") -> tuple[dm.WorkerId, ActorHost]:
    worker = lab.worker(port)
    budget = {"max_retries": max_restarts, "max_worker_losses": max_restarts, "max_oom": max_restarts}
    spec = lab.spec(allow_reconstruction=False, **budget)
    actor = lab(actors.create_actor, spec, name)
    (claim,) = lab.claim(worker)
    host = lab(actors.begin_host, actor, claim.attempt)
    lab(actors.place_host, host, "127.0.0.1", 7000)
    return worker, host


def outcome(lab: Lab, value: bytes = b"x", call: bytes = b"") -> CallOutcome:
    return CallOutcome(call or dm.new_future_id(), lab.session, "Counter.incr", dm.FutureResult(value))


def record(lab: Lab, host: ActorHost, *dependencies: bytes) -> bytes:
    spec = FutureSpec(
        b"",
        b"args",
        session=lab.session,
        dependencies=(host.id, *dependencies),
        allow_reconstruction=False,
        call_options=actors.call_options(host.start, "incr"),
        name="Counter.incr",
    )
    return lab.submit(spec)[0]


def test_a_call_appears_realized(memory_lab: Lab) -> None:
    lab = memory_lab
    _, host = start(lab)
    one, two = outcome(lab, b"1"), outcome(lab)._replace(result=None, failure=dm.Failure("error", "ValueError: no"))
    answers = lab(actors.finish_calls, host, [one, two])
    first = actors.read_answer(one.id, *answers[0])
    assert first.result is not None and first.result.inline == b"1"
    second = actors.read_answer(two.id, *answers[1])
    assert second.failure is not None and second.failure.message == "ValueError: no"
    assert second.failure.wall_us == lab.info(two.id).wall_us > 0, "when it ended, as of every failure"
    assert (lab.state(one.id), lab.state(two.id)) == ("realized", "failed")
    assert lab(actors.ended_calls, [one.id, two.id, dm.new_future_id()]) == [first, second, None]
    assert lab.info(one.id).name == "Counter.incr"
    assert lab.mail() == [], "the process that ran it answers"
    assert lab(actors.finish_calls, host, [one, two]) == answers, "safe to repeat"
    with pytest.raises(dm.FutureStateError, match="no code"):
        lab(dm.resubmit_future, two.id, 0)
    assert lab.validate() == []


def test_a_lost_result_of_a_call_is_not_computed_again(memory_lab: Lab) -> None:
    lab = memory_lab
    worker, host = start(lab)
    call = outcome(lab)._replace(result=dm.FutureResult(None, 50_000, "object", worker))
    lab(actors.finish_calls, host, [call])
    lab.kill(worker)
    lab.reap()
    assert lab(dm.recover_result, call.id, 0) is None
    assert lab.info(call.id).failure is not None
    assert lab.info(call.id).failure.reason == "object-lost"
    assert lab.validate() == []


def test_names_are_got_or_created(memory_lab: Lab) -> None:
    lab = memory_lab
    _, host = start(lab, name="hits")
    assert lab(actors.create_actor, lab.spec(), "hits") == host.id
    assert lab(actors.named_actor, "hits") == host.id
    assert lab(actors.named_actor, "misses") is None
    lab(dm.cancel_future, host.id)
    assert lab(actors.named_actor, "hits") is None
    fresh = lab.spec(allow_reconstruction=False)
    assert lab(actors.create_actor, fresh, "hits") == fresh.id != host.id
    assert lab.validate() == []
    lab(dm.delete_future, host.id)
    assert lab(actors.named_actor, "hits") == fresh.id, "the name is another one's by now"
    lab(dm.delete_future, fresh.id)
    assert not [key for key in lab.rows() if "actors" in key]


def test_a_recorded_call_waits_for_the_actor_and_fails_with_it(memory_lab: Lab) -> None:
    lab = memory_lab
    worker, host = start(lab)
    call = record(lab, host)
    after = lab.spec(dependencies=(call,))
    lab.submit(after)
    assert lab.state(call) == "waiting"
    assert [c[:4] for c in lab(actors.recorded_calls, host)[0]] == [(call, lab.session, "incr", b"args")]
    lab.kill(worker)
    lab.reap()
    assert lab.state(host.id) == lab.state(call) == lab.state(after.id) == "failed"
    ended = lab.info(call).failure
    assert ended is not None and ended.reason == "actor-died", "as a call that was never recorded"
    assert "died while it ran" in ended.message and "may have run" in ended.message
    down = lab.info(after.id).failure
    assert down is not None and (down.reason, down.chain) == ("upstream", (call,))
    late = lab.info(record(lab, host._replace(start=host.start + 1))).failure
    assert late is not None and late.reason == "actor-died"
    assert "may have run" not in late.message, "it was recorded when the actor was no more"
    assert lab.validate() == []


def test_a_recorded_call_that_ended_settles_who_waits_for_it(memory_lab: Lab) -> None:
    lab = memory_lab
    worker, host = start(lab)
    call = record(lab, host)
    after = lab.spec(dependencies=(call,))
    lab.submit(after)
    other = b"s" * 16
    assert lab(dm.subscribe, other, [call]) == []
    lab(actors.finish_calls, host, [outcome(lab, b"1", call)])
    assert (lab.state(call), lab.state(after.id)) == ("realized", "unclaimed")
    assert [(m.id, m.kind) for m in lab.mail(other)] == [(call, "realized")]
    assert lab(actors.recorded_calls, host) == ([], b"")
    assert lab.validate() == []
    (claim,) = lab.claim(worker)
    assert claim.inputs[call].inline == b"1"


def test_a_cancelled_call_keeps_its_end(memory_lab: Lab) -> None:
    lab = memory_lab
    _, host = start(lab)
    call = record(lab, host)
    lab(dm.cancel_future, call)
    ((kind, value),) = lab(actors.finish_calls, host, [outcome(lab, b"1", call)])
    failure = actors.read_answer(call, kind, value).failure
    assert failure is not None and failure.reason == "cancelled"
    assert lab.validate() == []


def test_a_restart_fails_what_was_sent_before_and_fences_the_earlier_start(memory_lab: Lab) -> None:
    lab = memory_lab
    worker, host = start(lab, max_restarts=1)
    sent = record(lab, host)
    lab.kill(worker)
    lab.reap()
    assert lab(actors.find_actor, host.id)[1:] == ("", 0, 2, None)
    second = lab.worker(2)
    (claim,) = lab.claim(second)
    again = lab(actors.begin_host, host.id, claim.attempt)
    assert again.start == 2
    late = record(lab, again)
    assert [c.id for c in lab(actors.recorded_calls, again)[0]] == [late]
    assert "may have run" in lab.info(sent).reason
    with pytest.raises(dm.ClaimLostError):
        lab(actors.finish_calls, host, [outcome(lab)])
    with pytest.raises(dm.ClaimLostError):
        lab(actors.begin_host, host.id, 1)
    lab(actors.fail_calls, [late, sent, dm.new_future_id()], host.id, "nobody sent it")
    assert lab.state(late) == "failed"
    lab(actors.place_host, again, "127.0.0.1", 7001)
    assert lab(actors.find_actor, host.id) == (2, "127.0.0.1", 7001, 2, None)
    assert lab.validate() == []


def test_many_recorded_calls_are_read_by_pages(memory_lab: Lab) -> None:
    lab = memory_lab
    _, host = start(lab)
    calls = [record(lab, host) for _ in range(actors.CALLS_PER_PAGE + 5)]
    page, cursor = lab(actors.recorded_calls, host)
    rest, end = lab(actors.recorded_calls, host, cursor)
    assert [c.id for c in page + rest] == calls
    assert end == b""


def test_restarts_are_counted_together_whatever_ended_the_starts_before(memory_lab: Lab) -> None:
    lab = memory_lab
    budget = {"max_retries": 3, "max_worker_losses": 3, "max_oom": 3, "max_restarts": 3}
    (actor,) = lab.submit(lab.spec(allow_reconstruction=False, **budget))
    worker = lab.worker()

    def end(reason: str, how: Any) -> str:
        (claim,) = lab.claim(worker)
        return str(lab(how, claim, dm.Failure(reason, reason)))

    def drained(tr: Any, space: Any, claim: dm.Claim, failure: dm.Failure, started: bool = True) -> dm.FutureState:
        outcome = dm.Outcome.relinquished(claim, "drained", started=started)
        dm.finish_turn(tr, space, worker, [outcome], dm.Capacity(), 0)
        return dm.get_future_state(tr, space, claim.id)

    def unstarted(tr: Any, space: Any, claim: dm.Claim, failure: dm.Failure) -> dm.FutureState:
        return drained(tr, space, claim, failure, started=False)

    assert end("crash", dm.fail_future) == "unclaimed"
    assert end("oom", dm.fail_future) == "unclaimed"
    assert end("idle", unstarted) == "unclaimed", "it never began"
    assert end("drained", drained) == "unclaimed"
    assert end("crash", dm.fail_future) == "failed", "three restarts are three"
    assert lab.info(actor).attempts == 5
    assert lab.validate() == []


def test_a_call_that_was_deleted_before_it_ended_stays_deleted(memory_lab: Lab) -> None:
    lab = memory_lab
    _, host = start(lab)
    call = record(lab, host)
    lab(dm.delete_future, call)
    ((kind, value),) = lab(actors.finish_calls, host, [outcome(lab, b"late", call)])
    answer = actors.read_answer(call, kind, value)
    assert answer.failure is not None
    assert answer.failure.reason == "deleted"
    with pytest.raises(dm.FutureDeletedError):
        lab.info(call)
    assert lab.validate() == []


def test_a_call_that_was_deleted_is_not_recorded_any_more(memory_lab: Lab) -> None:
    """Its client was taken for dead, and goes on: what its host had recorded is gone, and stays so."""
    lab = memory_lab
    _, host = start(lab)
    call = outcome(lab)
    lab(actors.finish_calls, host, [call])
    lab(dm.delete_future, call.id)
    options = actors.call_options(0, "incr")
    spec = FutureSpec(b"", b"", call.id, lab.session, (host.id,), allow_reconstruction=False, call_options=options)
    lab.submit(spec)
    assert lab.validate() == []
    with pytest.raises(dm.FutureDeletedError):
        lab.info(call.id)


def test_a_recorded_call_with_a_damaged_row_fails_and_the_others_are_made(broken_lab: Lab) -> None:
    lab = broken_lab
    _, host = start(lab)
    calls = [record(lab, host) for _ in range(4)]
    keys = layout_of(lab.space)
    bad_options = codec.pack_options({"call_options": b"\xc1", "name": "Counter.incr"})
    lab.set_row(keys.future(encode_id(calls[1]), OPTIONS), bad_options)
    lab.set_row(keys.future(encode_id(calls[2]), ARGS), b"\xc1")
    found, cursor = dm.run_apart(lab.db, lab.space, actors.recorded_calls, lab.space, host)
    assert ([call.id for call in found], cursor) == ([calls[0], calls[3]], b"")
    assert [lab.state(call) for call in calls[1:3]] == ["failed", "failed"]


def test_actors_are_listed_the_newest_first_page_by_page(memory_lab: Lab) -> None:
    lab = memory_lab
    _, host = start(lab, name="the tally")
    record(lab, host)
    others = [lab(actors.create_actor, lab.spec(allow_reconstruction=False), "") for _ in range(4)]
    lab.submit(lab.spec(name="actor of nothing"))
    first, after = lab(dm.list_actors, None, 3)
    rest, end = lab(dm.list_actors, after, 3)
    assert [one.id for one in (*first, *rest)] == sorted((host.id, *others), reverse=True)
    assert (len(first), end) == (3, None)
    placed = next(one for one in (*first, *rest) if one.id == host.id)
    assert (placed.name, placed.place.port, placed.waiting) == ("the tally", 7000, 1)
    unplaced = next(one for one in (*first, *rest) if one.id == others[0])
    assert (unplaced.name, unplaced.place.ip, unplaced.info.state) == ("", "", dm.FutureState.unclaimed)
    lab(dm.cancel_future, others[0])
    lab(dm.delete_future, others[0])
    assert others[0] not in [one.id for one in lab(dm.list_actors, None, 10)[0]]
    assert lab.validate() == []
