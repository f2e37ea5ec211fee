"""Incarnations, heartbeats, fences, reaping and assignments: who may do what after somebody was declared dead."""

from __future__ import annotations

import pytest
from datamodel_lab.lab import Lab

import fdb_datamodel as dm
from fdb_datamodel import (
    AddressInUseError,
    Failure,
    FutureResult,
    FutureState,
    FutureStateError,
    Heartbeat,
    Locality,
    Outcome,
    WorkerFencedError,
    WorkerId,
    WorkerSighting,
)
from fdb_datamodel.rows.elements import encode_id
from fdb_datamodel.rows.space import layout_of
from fdb_schema import NewerFormatError, pack
from idempotent_txn import run


def test_an_address_has_one_live_incarnation(lab: Lab) -> None:
    first = lab.worker()
    assert lab(dm.register_worker, first) == first, "again: nothing"
    second = WorkerId("127.0.0.1", 1, dm.new_incarnation())
    with pytest.raises(AddressInUseError, match="choose another port"):
        lab(dm.register_worker, second)
    lab(dm.heartbeat, first, Heartbeat(7))
    with pytest.raises(AddressInUseError):
        lab(dm.register_worker, second, None, WorkerSighting(first, 6))
    lab(dm.register_worker, second, None, WorkerSighting(first, 7))
    assert lab(dm.find_worker, "127.0.0.1", 1).id == second
    assert not lab(dm.is_live, first)
    with pytest.raises(WorkerFencedError, match="declared dead"):
        lab(dm.heartbeat, first, Heartbeat(8))
    with pytest.raises(ValueError, match="16 bytes"):
        lab(dm.register_worker, WorkerId("127.0.0.1", 2, b"short"))


def test_a_heartbeat_since_the_sighting_saves_the_worker(lab: Lab) -> None:
    worker = lab.worker()
    (sighting,) = lab(dm.sightings)
    lab(dm.heartbeat, worker, Heartbeat(1))
    assert lab(dm.declare_dead, sighting) is False
    assert lab(dm.is_live, worker)
    assert lab(dm.declare_dead, lab(dm.sightings)[0]) is True
    assert lab(dm.declare_dead, WorkerSighting(worker, 1)) is True, "again: it is fenced"


def test_the_dead_decide_nothing(lab: Lab) -> None:
    worker = lab.worker()
    (one,) = lab.submit(lab.spec())
    (claim,) = lab.claim(worker)
    lab.kill(worker)
    for act in (
        lambda: lab.claim(worker),
        lambda: lab(dm.realize_future, claim, b"r"),
        lambda: lab(dm.fail_future, claim, "x"),
        lambda: lab(dm.relinquish_claim, claim),
        lambda: lab(dm.claim_future, one, worker),
        lambda: lab(dm.finish_turn, worker, [Outcome.realized(claim, b"r")], dm.Capacity(), 1),
        lambda: lab(dm.put_realized_future, lab.spec(), worker, b"x"),
    ):
        with pytest.raises(WorkerFencedError):
            act()
    with pytest.raises(WorkerFencedError, match="start as a new incarnation"):
        lab(dm.register_worker, worker)
    assert lab.state(one) == "claimed", "until somebody reaps"
    lab.reap()
    assert lab.state(one) == "unclaimed"


def test_anyone_reaps_and_losses_have_a_budget(lab: Lab) -> None:
    (one,) = lab.submit(lab.spec(max_worker_losses=2, max_retries=0))
    for losses in (1, 2, 3):
        worker = lab.worker(losses)
        lab.claim(worker)
        lab.kill(worker)
        lab.reap()
        info = lab.info(one)
        assert (info.losses, info.charged, info.attempts) == (losses, 0, losses)
    assert info.state is FutureState.failed
    assert info.failure is not None and info.failure.reason == "worker-lost"
    assert not any(row[0] == "dead_workers" for row in lab.rows())


def test_a_reaper_works_in_pages_and_touches_only_the_dead_incarnation(lab: Lab) -> None:
    old = lab.worker()
    lab.submit(*[lab.spec() for _ in range(10)])
    lab.claim(old, 7)
    new = WorkerId("127.0.0.1", 1, dm.new_incarnation())
    lab(dm.register_worker, new, None, lab(dm.sightings)[0])
    kept = lab.claim(new)
    assert len(kept) == 3
    rounds = 1
    while lab(dm.reap, 2):
        rounds += 1
        assert lab.validate() == []
    assert rounds >= 4
    assert {claim.id for claim in lab(dm.claims_of, new)} == {claim.id for claim in kept}
    assert len(lab.claim(new)) == 7


def test_a_reaper_leaves_alone_what_is_another_ones_by_now(lab: Lab) -> None:
    old, other = lab.worker(1), lab.worker(2)
    (one,) = lab.submit(lab.spec())
    (claim,) = lab.claim(old)
    row = layout_of(lab.space).claim_rows(old.ip, old.port) + encode_id(one)
    stale = run(lab.db, lambda tr: tr.get(row).value)
    lab(dm.relinquish_claim, claim)
    (claim,) = lab.claim(other)
    lab.set_row(row, stale)
    lab.kill(old)
    new = lab.worker(1)
    assigned = lab.spec(locality=Locality(new, pinned=True))
    lab.submit(assigned)
    lab.reap()
    assert lab.validate() == []
    assert [claim.id for claim in lab.claim(new)] == [assigned.id]
    lab(dm.realize_future, claim, b"r")
    lab.kill(new)
    with pytest.raises(WorkerFencedError, match="declared dead"):
        lab(dm.register_worker, new)


def test_a_drained_worker_gives_back_without_a_charge(lab: Lab) -> None:
    worker = lab.worker()
    (one,) = lab.submit(lab.spec(max_worker_losses=0))
    lab.claim(worker)
    lab(dm.unregister_worker, worker)
    lab.reap()
    info = lab.info(one)
    assert (info.state, info.losses, info.charged) == (FutureState.unclaimed, 0, 0)
    assert lab(dm.list_workers) == []


def test_list_workers_shows_load(lab: Lab) -> None:
    lab.worker(2, slots=4, total=dm.Requirements(cpu=4, ram="8GiB"))
    worker = lab.worker(1)
    lab(dm.heartbeat, worker, Heartbeat(3, free=dm.Requirements(ram=10), object_store_free=77))
    lab.submit(lab.spec(), lab.spec(locality=Locality(worker)))
    lab(dm.claim_futures, worker, dm.Capacity(), 1)
    first, second = lab(dm.list_workers)
    assert (first.id, first.claims, first.assignments) == (worker, 1, 0)
    assert first.heartbeat.free.ram == 10 and first.heartbeat.object_store_free == 77
    assert second.info.total.shape == (4000, 8 << 30, 0)


def test_a_worker_serves_its_assignments_before_the_pool(lab: Lab) -> None:
    one, two = lab.worker(1), lab.worker(2)
    pooled, assigned = lab.spec(), lab.spec(locality=Locality(two, b"r" * 16))
    lab.submit(pooled)
    lab.submit(assigned)
    rows = lab.rows()
    assert ("worker_assignments", "127.0.0.1", 2, "assignment", assigned.id) in rows
    assert not any(row[0].startswith("resource") and row[-1] == assigned.id for row in rows)
    with pytest.raises(FutureStateError, match="reassign"):
        lab(dm.claim_future, assigned.id, one)
    (claim,) = lab.claim(two, 1)
    assert (claim.id, claim.assigned, claim.reason) == (assigned.id, True, b"r" * 16)
    assert [claim.id for claim in lab.claim(one)] == [pooled.id]


def test_what_was_assigned_to_a_predecessor_is_not_claimed_before_it_is_reaped(lab: Lab) -> None:
    first = lab.worker()
    pinned, soft = lab.submit(
        lab.spec(locality=Locality(first, pinned=True)), lab.spec(locality=Locality(first, pinned=False))
    )
    lab.kill(first)
    second = lab.worker()
    assert (second.ip, second.port) == (first.ip, first.port)
    assert list(lab.claim(second)) == []
    lab.reap()
    assert lab.info(pinned).failure is not None
    assert [claim.id for claim in lab.claim(second)] == [soft]


def test_soft_locality_falls_back_after_a_wait_or_a_death(lab: Lab) -> None:
    now = lab.clock(5)
    near, other = lab.worker(1), lab.worker(2)
    slow, orphan = lab.spec(locality=Locality(near, wait=2.0)), lab.spec(locality=Locality(near, wait=50.0))
    lab.submit(slow, orphan)
    assert lab.claim(other) == []
    lab(dm.advance, now + 2_000_000)
    assert [claim.id for claim in lab.claim(other)] == [slow.id]
    lab.kill(near)
    lab.reap()
    assert [claim.id for claim in lab.claim(other)] == [orphan.id]
    late = lab.spec(locality=Locality(near))
    lab.submit(late)
    assert [claim.id for claim in lab.claim(other)] == [late.id], "assigned to the dead: to the pool at once"


def test_pinned_futures_end_with_their_worker(lab: Lab) -> None:
    worker = lab.worker()
    waiting, running = (lab.spec(locality=Locality(worker, pinned=True)) for _ in range(2))
    lab.submit(running)
    lab.claim(worker)
    lab.submit(waiting)
    lab(dm.advance, 10**12)
    assert lab.state(waiting.id) == "unclaimed", "pinned: no wait ends it"
    lab.kill(worker)
    lab.reap()
    late = lab.spec(locality=Locality(worker, pinned=True))
    lab.submit(late)
    for spec in (waiting, running, late):
        failure = lab.info(spec.id).failure
        assert failure is not None and failure.reason == "worker-lost" and "could only run on worker" in failure.message


def test_assign_and_reassign(lab: Lab) -> None:
    one, two = lab.worker(1), lab.worker(2)
    (spec,) = lab.submit(lab.spec())
    assert lab(dm.assign_future, spec, Locality(one, pinned=True))
    assert lab.claim(two) == []
    assert lab(dm.reassign_future, spec, Locality(two))
    assert lab.claim(one) == []
    assert lab(dm.reassign_future, spec, None)
    (claim,) = lab.claim(one)
    assert lab(dm.reassign_future, spec, Locality(two)) is False
    lab(dm.relinquish_claim, claim)
    lab.kill(two)
    assert lab(dm.assign_future, spec, Locality(two)) is False


def test_copies_clone_transfer_and_outlive_their_first_holder(lab: Lab) -> None:
    a, b, c = (lab.worker(port) for port in (1, 2, 3))
    (one,) = lab.submit(lab.spec())
    (claim,) = lab.claim(a)
    lab(dm.realize_future, claim, FutureResult(None, 1000, "at-a"))
    token = lab(dm.read_results, [one])[0].token
    assert token == claim.token
    assert lab(dm.clone_result, one, FutureResult(None, 1000, "at-b", b, token))
    assert lab(dm.clone_result, one, FutureResult(None, 1000, "at-b", b, token)), "again"
    assert {copy.name for copy in lab(dm.live_copies, one)} == {"at-a", "at-b"}
    assert lab(dm.transfer_result, one, a, FutureResult(None, 1000, "at-c", c, token))
    assert {copy.name for copy in lab(dm.live_copies, one)} == {"at-b", "at-c"}
    assert lab(dm.read_results, [one])[0].name == "at-c"
    assert [(entry.kind, entry.result.name) for entry in lab.mail(a.incarnation)] == [("free", "at-a")]
    assert not lab(dm.clone_result, one, FutureResult(None, 1, "x", a, b"0" * 10)), "not the result that was copied"
    lab.kill(c)
    assert [copy.name for copy in lab(dm.live_copies, one)] == ["at-b"]
    assert lab(dm.recover_result, one, 0).name == "at-b"
    assert sum(row[0] == "results" for row in lab.rows()) == 1, "the row of the dead was deleted by who found it"
    lab.kill(b)
    assert lab(dm.recover_result, one, 0) is None
    assert lab.state(one) == "unclaimed"
    assert lab.info(one).epoch == 1


def test_inline_results_survive_their_worker(lab: Lab) -> None:
    worker = lab.worker()
    (one,) = lab.submit(lab.spec())
    lab(dm.realize_future, lab.claim(worker)[0], b"small")
    lab.kill(worker)
    lab.reap()
    assert lab(dm.recover_result, one, 0).inline == b"small"
    assert lab.state(one) == "realized"


def test_an_inline_result_stays_inline_whatever_is_copied(lab: Lab) -> None:
    a, b = lab.worker(1), lab.worker(2)
    (one,) = lab.submit(lab.spec())
    lab(dm.realize_future, lab.claim(a)[0], b"small")
    token = lab(dm.read_results, [one])[0].token
    assert lab(dm.clone_result, one, FutureResult(None, 5, "at-b", b, token))
    lab(dm.transfer_result, one, a, FutureResult(None, 5, "at-b", b, token))
    assert lab(dm.recover_result, one, 0).inline == b"small"


def _realized_elsewhere(lab: Lab, **options: object) -> tuple[bytes, WorkerId]:
    """A future whose large result is on a worker of its own."""
    holder = lab.worker(9)
    (one,) = lab.submit(lab.spec(**options))
    lab(dm.realize_future, lab.claim(holder)[0], FutureResult(None, 10**6, "object"))
    return one, holder


def test_a_lost_dependency_is_reconstructed_and_charges_nobody(lab: Lab) -> None:
    up, holder = _realized_elsewhere(lab)
    worker = lab.worker()
    down = lab.spec(dependencies=(up,), max_retries=0)
    lab.submit(down)
    (claim,) = lab.claim(worker)
    lab.kill(holder)
    (again,) = lab(dm.finish_turn, worker, [Outcome.missed_inputs(claim, [up])], dm.Capacity(), 5)
    assert (again.id, again.epoch, again.attempt) == (up, 1, 2)
    assert lab.state(down.id) == "waiting"
    assert lab.info(down.id).charged == 0
    (claim,) = lab(dm.finish_turn, worker, [Outcome.realized(again, b"small now")], dm.Capacity(), 5)
    assert claim.id == down.id and claim.inputs[up].inline == b"small now"


def test_a_whole_chain_of_lost_results_is_rebuilt_by_one_worker(lab: Lab) -> None:
    holder = lab.worker(9)
    chain = [lab.spec()]
    for _ in range(4):
        chain.append(lab.spec(dependencies=(chain[-1].id,)))
    lab.submit(*chain)
    for _ in chain[:-1]:
        (claim,) = lab.claim(holder, 1)
        lab(dm.realize_future, claim, FutureResult(None, 10**6, "object"))
    lab.kill(holder)
    worker = lab.worker()
    runs = 0
    while lab.state(chain[-1].id) != "realized":
        (claim,) = lab.claim(worker, 1)
        runs += 1
        lost = [up for up, result in claim.inputs.items() if result.worker == holder]
        outcome = Outcome.missed_inputs(claim, lost) if lost else Outcome.realized(claim, FutureResult(None, 9, "new"))
        lab(dm.finish_turn, worker, [outcome], dm.Capacity(), 0)
        assert runs < 50
    assert [lab.info(one.id).epoch for one in chain] == [1, 1, 1, 1, 0]


def test_two_workers_that_lost_each_others_inputs(lab: Lab) -> None:
    left, right = lab.worker(1), lab.worker(2)
    a, b = lab.spec(), lab.spec()
    lab.submit(a)
    lab(dm.realize_future, lab.claim(left)[0], FutureResult(None, 9, "a"))
    lab.submit(b)
    lab(dm.realize_future, lab.claim(right)[0], FutureResult(None, 9, "b"))
    c, d = lab.spec(dependencies=(b.id,)), lab.spec(dependencies=(a.id,))
    lab.submit(c, d)
    for_c, for_d = lab(dm.claim_future, c.id, left), lab(dm.claim_future, d.id, right)
    absent = {a.id: left, b.id: right}
    lab(dm.finish_turn, left, [Outcome.missed_inputs(for_c, [b.id], [(b.id, absent[b.id])])], dm.Capacity(), 0)
    lab(dm.finish_turn, right, [Outcome.missed_inputs(for_d, [a.id], [(a.id, absent[a.id])])], dm.Capacity(), 0)
    assert {lab.state(one.id) for one in (c, d)} == {"waiting"}
    for worker in (left, right) * 2:
        for claim in lab.claim(worker, 1):
            lab(dm.realize_future, claim, b"small")
    assert {lab.state(one.id) for one in (a, b, c, d)} == {"realized"}


def test_an_input_that_can_not_be_reached_is_tried_again_after_a_moment(lab: Lab) -> None:
    now = lab.clock(3)
    up, _ = _realized_elsewhere(lab)
    worker = lab.worker()
    down = lab.spec(dependencies=(up,))
    lab.submit(down)
    (claim,) = lab.claim(worker)
    assert lab(dm.finish_turn, worker, [Outcome.missed_inputs(claim, [up])], dm.Capacity(), 5) == []
    assert (lab.state(down.id), lab.state(up)) == ("waiting", "realized")
    lab(dm.advance, now + 250_000)
    assert len(lab.claim(worker)) == 1


def test_one_start_whatever_happens_needs_reconstruction_to_be_refused_too(lab: Lab) -> None:
    once = {"max_retries": 0, "max_worker_losses": 0, "max_oom": 0}
    for allowed in (True, False):
        ended, holder = _realized_elsewhere(lab, allow_reconstruction=allowed, **once)
        lab.kill(holder)
        if allowed:
            lab(dm.recover_result, ended, 0)
            (again,) = lab.claim(lab.worker(8))
            assert (again.id, again.attempt) == (ended, 2), "its large result went with the worker that held it"
            lab(dm.realize_future, again, b"small")
        else:
            lab(dm.recover_result, ended, 0)
            failure = lab.info(ended).failure
            assert failure is not None and failure.reason == "object-lost"


def test_what_may_not_be_reconstructed_fails_naming_the_loss(lab: Lab) -> None:
    up, holder = _realized_elsewhere(lab, allow_reconstruction=False)
    worker = lab.worker()
    down = lab.spec(dependencies=(up,))
    lab.submit(down)
    (claim,) = lab.claim(worker)
    lab.kill(holder)
    lab(dm.finish_turn, worker, [Outcome.missed_inputs(claim, [up])], dm.Capacity(), 5)
    lost = lab.info(up).failure
    assert lost is not None and lost.reason == "object-lost" and str(holder) in lost.message
    failure = lab.info(down.id).failure
    assert failure is not None and (failure.reason, failure.chain) == ("upstream", (up,))


def test_reconstructions_have_a_cap(lab: Lab) -> None:
    worker = lab.worker()
    (one,) = lab.submit(lab.spec(max_reconstructions=2))
    for epoch in range(3):
        (claim,) = lab.claim(worker)
        assert claim.epoch == epoch
        lab(dm.realize_future, claim, FutureResult(None, 9, "object"))
        lab(dm.drop_copy, one, worker)
        assert lab(dm.recover_result, one, epoch) is None
    assert "max_reconstructions" in lab.info(one).failure.message  # type: ignore[union-attr]


def test_resubmit_is_for_the_epoch_that_was_seen(lab: Lab) -> None:
    worker = lab.worker()
    (one,) = lab.submit(lab.spec(max_retries=1))
    assert lab(dm.resubmit_future, one, 0) is False, "it has not ended"
    lab(dm.fail_future, lab.claim(worker)[0], "x")
    lab(dm.realize_future, lab.claim(worker)[0], b"r")
    assert lab(dm.resubmit_future, one, 1) is False
    assert lab(dm.resubmit_future, one, 0) is True
    assert lab(dm.resubmit_future, one, 0) is False, "of two that saw the loss one succeeds"
    info = lab.info(one)
    assert (info.state, info.epoch, info.attempts, info.charged) == (FutureState.unclaimed, 1, 2, 0)
    for _ in range(2):
        lab(dm.fail_future, lab.claim(worker)[0], "y")
    assert lab.state(one) == "failed", "a fresh budget, and no more"
    assert lab(dm.resubmit_future, one, 1) is True, "a failed one is retried by hand"
    lab(dm.realize_future, lab.claim(worker)[0], b"r")
    assert lab.state(one) == "realized"


def test_put_clone_and_loss_of_an_object(lab: Lab) -> None:
    worker = lab.worker()
    put = lab.spec(name="mine")
    lab(dm.put_realized_future, put, worker, FutureResult(None, 10**6, "object"))
    lab(dm.put_realized_future, put, worker, FutureResult(None, 10**6, "object"))
    assert lab.state(put.id) == "realized"
    assert lab.info(put.id).name == "mine"
    client = lab.spec()
    lab(dm.put_realized_future, client, None, b"inline")
    down = lab.spec(dependencies=(put.id, client.id))
    lab.submit(down)
    (claim,) = lab.claim(worker)
    assert claim.inputs[client.id].inline == b"inline"
    lab.kill(worker)
    assert lab(dm.recover_result, put.id, 0) is None
    assert lab.info(put.id).failure.reason == "object-lost"  # type: ignore[union-attr]
    lab.reap()
    with pytest.raises(ValueError, match="neither inline nor held"):
        lab(dm.put_realized_future, lab.spec(), None, FutureResult(None, 10, "x"))


def test_delete_leaves_a_tombstone_and_nothing_else(lab: Lab) -> None:
    worker = lab.worker()
    up = lab.spec()
    down = lab.spec(dependencies=(up.id,))
    lab.submit(up, down)
    (claim,) = lab.claim(worker)
    lab(dm.realize_future, claim, FutureResult(None, 10, "object"))
    (copy,) = lab(dm.delete_future, up.id)
    assert copy.name == "object"
    assert [(entry.kind, entry.result.name) for entry in lab.mail(worker.incarnation)] == [("free", "object")]
    assert [row[2] for row in lab.rows() if row[0] == "futures" and row[1] == up.id] == ["deleted"]
    assert lab(dm.delete_future, up.id) == []
    with pytest.raises(dm.FutureDeletedError):
        lab.state(up.id)
    with pytest.raises(dm.UnknownFutureError):
        lab(dm.delete_future, bytes(16))
    assert lab.claim(worker) == [], "its input is gone"
    failure = lab.info(down.id).failure
    assert failure is not None and failure.reason == "upstream" and "was deleted" in failure.message


def test_delete_of_a_running_future_cancels_it(lab: Lab) -> None:
    worker = lab.worker()
    up = lab.spec()
    down = lab.spec(dependencies=(up.id,))
    lab.submit(up, down)
    lab.claim(worker)
    lab(dm.delete_future, up.id)
    assert [entry.kind for entry in lab.mail(worker.incarnation)] == ["cancel"]
    assert lab.info(down.id).failure.reason == "upstream"  # type: ignore[union-attr]


def test_failure_reasons_are_told_apart(lab: Lab) -> None:
    worker = lab.worker()
    (one,) = lab.submit(lab.spec())
    lab(dm.fail_future, lab.claim(worker)[0], Failure("crash", "exit code -11", traceback="native"))
    info = lab.info(one)
    assert "crash: exit code -11" in info.reason
    assert info.last_failure is not None and info.last_failure.attempt == 1


def test_a_newer_format_is_refused(broken_lab: Lab) -> None:
    broken_lab(dm.open_cluster)
    broken_lab.worker()
    broken_lab.set_row(broken_lab.space.format.pack(("futures",)), pack(99))
    for act in (lambda: broken_lab(dm.open_cluster), lambda: broken_lab.worker(2)):
        with pytest.raises(NewerFormatError, match="upgrade"):
            act()


def test_what_a_dead_worker_left_at_its_address_takes_no_place_among_the_first_ones(lab: Lab) -> None:
    """Else nobody is seen where many left something, and each worker believes to be the first."""
    dead, *living = [lab.worker(port) for port in (1, 2, 3)]
    lab.submit(lab.spec())
    lab.claim(dead)
    lab.kill(dead)
    assert [status.id for status in lab(dm.list_workers, first=2)] == living
    lab.reap()
