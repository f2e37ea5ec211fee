"""Each row of the table of transitions, by what the caller sees and the rows it leaves."""

from __future__ import annotations

from collections import Counter

import pytest
from datamodel_lab.lab import Lab

import fdb_datamodel as dm
from fdb_datamodel import (
    Backoff,
    Capacity,
    ClaimLostError,
    Failure,
    FutureDeletedError,
    FutureResult,
    FutureSpec,
    FutureState,
    FutureStateError,
    Locality,
    Outcome,
    OversizeError,
    Requirements,
    UnknownFutureError,
    WorkerFencedError,
)
from fdb_datamodel.rows.ids import show_id
from fdb_datamodel.rows.table import KEYS
from fdb_datamodel.transitions import advance as advance_module
from fdb_schema import fdb_error_code


def test_submit_claim_realize_and_mail(lab: Lab) -> None:
    worker = lab.worker()
    (one,) = lab.submit(lab.spec(args=b"arguments"))
    assert lab.state(one) == "unclaimed"
    (claim,) = lab.claim(worker)
    assert (claim.id, claim.code, claim.args, claim.attempt, claim.epoch) == (one, b"code", b"arguments", 1, 0)
    assert claim.session == lab.session
    assert len(claim.token) == 10
    assert lab.state(one) == "claimed"
    lab(dm.realize_future, claim, b"result")
    assert lab.state(one) == "realized"
    (entry,) = lab.mail()
    assert (entry.id, entry.kind) == (one, "realized")
    assert entry.result is not None and entry.result.inline == b"result"
    assert lab(dm.read_results, [one])[0].inline == b"result"


def test_seed_keys_are_written_as_documented(lab: Lab) -> None:
    worker = lab.worker()
    (one,) = lab.submit(lab.spec(args=b"x", max_retries=1, allow_reconstruction=False))
    present = {row[:1] + row[2:] for row in lab.rows() if row[0] == "futures"}
    assert present == {("futures", name) for name in ("code", "args", "max_retries", "allow_reconstruction")}
    (needs,) = lab.submit(lab.spec(requirements=Requirements(1, 2048, 2)))
    indices = {row for row in lab.rows() if row[0].startswith("resource_requirements")}
    assert indices == {
        ("resource_requirements_cpu", 0, 0, 0, 0, one),
        ("resource_requirements_cpu", 1000, 2048, 2000, 0, needs),
        ("resource_requirements_ram", 2048, 1000, 2000, 0, needs),
        ("resource_requirements_gpu", 2000, 1000, 2048, 0, needs),
    }, "in that of cpu always, in the others what needs some"
    lab(dm.delete_future, needs)
    (other,) = lab.submit(lab.spec())
    claim, large = *lab.claim(worker, 1), *lab.claim(worker, 1)
    rows = lab.rows()
    assert not any(row[0].startswith("resource_requirements") for row in rows)
    assert ("workers", "127.0.0.1", 1, "claim_future", one) in rows
    assert ("futures", one, "claim") in rows and ("futures", one, "num_attempts") not in rows, "the claim counts"
    lab(dm.realize_future, claim, b"r")
    rows = lab.rows()
    assert ("workers", "127.0.0.1", 1, "claim_future", one) not in rows
    assert ("futures", one, "claim") in rows and ("futures", one, "latest_result") in rows
    assert not any(row[0] == "results" for row in rows), "an inline result is all there is of it"
    lab(dm.realize_future, large, dm.FutureResult(None, 1 << 20, "object", worker))
    ((_, owner, stamp),) = (row for row in lab.rows() if row[0] == "results")
    assert (owner, stamp.tr_version) == (other, large.token)


def _listed(lab: Lab) -> dict[bytes, int]:
    """The futures under which rows of workers list claims: how many rows each."""
    rows = [row for row in lab.rows() if row[0] == "workers" and row[3] == "claim_future"]
    return Counter(row[4] for row in rows)


def test_what_is_claimed_together_is_listed_together(lab: Lab) -> None:
    """And each of them goes as one that was claimed by itself does."""
    worker, other = lab.worker(total=Requirements(8)), lab.worker(2)
    ids = lab.submit(*[lab.spec(max_retries=5) for _ in range(70)])
    claims = lab.claim(worker)
    assert _listed(lab) == {ids[0]: 1, ids[64]: 1}, "64 in a row at most"
    assert lab.validate() == []
    assert sorted(lab(dm.list_workers), key=lambda status: status.id.port)[0].claims == 70
    again = lab(dm.claims_of, worker, known=set(ids[2:]))
    assert [(claim.id, claim.token, claim.claimed_with) for claim in again] == [
        (one, claims[0].token, ids[0]) for one in ids[:2]
    ]
    lab(dm.realize_future, again[0], b"r")
    lab(dm.realize_future, again[0], b"r")  # again: nothing
    lab(dm.fail_future, claims[1], Failure("error", "no"))
    lab(dm.relinquish_claim, claims[2])
    lab(dm.cancel_future, ids[3])
    lab(dm.delete_future, ids[4])
    with pytest.raises(ClaimLostError):
        lab(dm.realize_future, claims[3], b"late")
    assert lab.validate() == []
    outcomes = [Outcome.realized(claims[3], b"late"), *[Outcome.realized(claim, b"r") for claim in claims[5:68]]]
    outcomes += [Outcome.failed(claims[68], Failure("error", "no"))]
    turned = lab(dm.finish_turn, worker, outcomes, Capacity(), 1)
    assert (turned.stale, turned.retried) == ((ids[3],), (ids[68],))
    assert [claim.id for claim in turned] == [ids[1]], "in the order of their ids"
    assert _listed(lab) == {ids[1]: 1, ids[64]: 1}
    more = lab.claim(other)
    assert [claim.id for claim in more] == [ids[2], ids[68]]
    assert _listed(lab) == {ids[1]: 1, ids[2]: 1, ids[64]: 1}
    lab.kill(worker)
    lab.reap()
    assert _listed(lab) == {ids[2]: 1}
    assert lab.validate() == []
    assert [lab.state(one) for one in (ids[1], ids[69])] == ["unclaimed"] * 2
    lab.kill(other)
    lab.reap()
    assert _listed(lab) == {}


def test_one_that_is_claimed_again_leaves_those_listed_that_were_claimed_with_it(lab: Lab) -> None:
    worker = lab.worker()
    ids = lab.submit(*[lab.spec() for _ in range(3)])
    first = lab.claim(worker)
    turned = lab(dm.finish_turn, worker, [Outcome.relinquished(first[0])], Capacity(), 1)
    assert [claim.id for claim in turned] == ids[:1]
    assert _listed(lab) == {ids[0]: 2}
    assert [claim.id for claim in lab(dm.claims_of, worker)] == ids
    with pytest.raises(ClaimLostError):
        lab(dm.realize_future, first[0], b"late")
    lab(dm.realize_futures, [(claim, b"r") for claim in [*first[1:], *turned]])
    assert _listed(lab) == {}


def test_two_that_take_out_of_one_row_at_once_lose_neither(lab: Lab) -> None:
    worker = lab.worker()
    ids = lab.submit(*[lab.spec() for _ in range(3)])
    claims = lab.claim(worker)
    one, other = (lab.db.create_transaction() for _ in range(2))
    dm.cancel_future(one, lab.space, ids[0])
    dm.realize_future(other, lab.space, claims[1], b"r")
    one.commit().wait()
    with pytest.raises(Exception) as caught:
        other.commit().wait()
    assert fdb_error_code(caught.value) == 1020
    assert [claim.id for claim in lab(dm.claims_of, worker)] == ids[1:]
    lab(dm.realize_future, claims[1], b"r")


@pytest.mark.parametrize("name", ["f", "ä" * 256, "f" * 257, "f" * 40_000])
def test_a_name_is_a_row_of_its_own_only_if_it_is_long(lab: Lab, name: str) -> None:
    worker = lab.worker()
    spec = FutureSpec(b"c" * 90_000, session=lab.session, name=name)
    lab.submit(spec)
    put = FutureSpec(session=lab.session, name=name)
    lab(dm.put_realized_future, put, None, b"put")
    names = {row[2] for row in lab.rows() if row[:2] == ("futures", spec.id)}
    assert names == ({"code"} if len(name) <= 256 else {"code", "options"})
    assert (lab.info(spec.id).name, lab.info(put.id).name) == (name, name)
    (claim,) = lab.claim(worker)
    (again,) = lab(dm.claims_of, worker)
    assert claim.name == again.name == name
    assert {counted.name for counted in lab(dm.census_page)[0]} == {name}
    pushed = FutureSpec(session=lab.session, name=name)
    assert [one.name for one in lab(dm.submit_claimed, [pushed], worker)] == [name]
    assert lab.info(pushed.id).name == name


def test_submit_again_changes_nothing(lab: Lab) -> None:
    worker = lab.worker()
    spec = lab.spec()
    lab.submit(spec)
    (claim,) = lab.claim(worker)
    assert lab.submit(spec, spec) == [spec.id, spec.id]
    assert lab.state(spec.id) == "claimed"
    lab(dm.realize_future, claim, b"r")
    lab.submit(spec)
    assert lab.state(spec.id) == "realized"


def test_composable_with_a_users_own_writes(lab: Lab) -> None:
    from idempotent_txn import run

    def body(tr: object) -> object:
        future_id = dm.submit_future(tr, lab.space, lab.spec())  # type: ignore[arg-type]
        tr[b"users data"] = b"there"  # type: ignore[index]
        assert dm.get_future_state(tr, lab.space, future_id) is FutureState.unclaimed  # type: ignore[arg-type]
        return future_id

    future_id = run(lab.db, body)
    assert lab.state(future_id.bytes) == "unclaimed"
    assert bytes(lab.db[b"users data"]) == b"there"


def test_dependents_wait_on_edges_and_get_their_inputs(lab: Lab) -> None:
    worker = lab.worker()
    a, b = lab.spec(), lab.spec()
    c = lab.spec(dependencies=(a.id, b.id, a.id))
    lab.submit(a, b, c)
    assert lab.state(c.id) == "waiting"
    assert set(lab.info(c.id).waiting_on) == {a.id, b.id}
    first, second = lab.claim(worker)
    assert lab(dm.finish_turn, worker, [Outcome.realized(first, b"1")], dm.Capacity(), 0) == []
    assert lab.state(c.id) == "waiting"
    (claim,) = lab(dm.finish_turn, worker, [Outcome.realized(second, b"2")], dm.Capacity(), 5)
    assert claim.id == c.id
    assert {dep: result.inline for dep, result in claim.inputs.items()} == {a.id: b"1", b.id: b"2"}
    d = lab.spec(dependencies=(a.id,))
    lab.submit(d)
    assert lab.state(d.id) == "unclaimed", "its dependency was realized before"


def test_of_two_ends_that_clear_the_last_edges_one_sees_the_other(lab: Lab) -> None:
    worker = lab.worker()
    ups = lab.spec(), lab.spec()
    down = lab.spec(dependencies=tuple(up.id for up in ups))
    lab.submit(*ups, down)
    first, second = lab.claim(worker)
    tr = lab.db.create_transaction()
    dm.realize_future(tr, lab.space, first, b"r")
    lab(dm.realize_future, second, b"r")
    with pytest.raises(Exception) as refused:
        tr.commit().wait()
    assert fdb_error_code(refused.value) == 1020
    lab(dm.realize_future, first, b"r")
    assert [claim.id for claim in lab.claim(worker)] == [down.id]


def test_what_has_ended_says_of_no_listeners(lab: Lab) -> None:
    worker = lab.worker()
    up = lab.spec()
    lab.submit(up, lab.spec(dependencies=(up.id,)))
    assert ("futures", up.id, "listeners") in lab.rows()
    (claim,) = lab.claim(worker, 1)
    lab(dm.realize_future, claim, b"r")
    assert ("futures", up.id, "listeners") not in lab.rows()


def test_more_dependents_than_one_transaction_settles(lab: Lab) -> None:
    worker = lab.worker()
    up = lab.spec()
    lab.submit(up)
    downs = [lab.spec(dependencies=(up.id,)) for _ in range(700)]
    lab.submit(*downs[:350])
    lab.submit(*downs[350:])
    (claim,) = lab.claim(worker)
    turn = lab(dm.finish_turn, worker, [Outcome.realized(claim, b"r")], dm.Capacity(), 0)
    assert turn.unsettled
    assert lab.validate() == []
    assert sum(state is FutureState.unclaimed for state in lab(dm.get_future_states, [d.id for d in downs])) == 256
    while lab(dm.advance, 0).more:
        pass
    assert all(state is FutureState.unclaimed for state in lab(dm.get_future_states, [d.id for d in downs]))


def test_a_failure_reaches_every_generation_with_its_chain(lab: Lab) -> None:
    worker = lab.worker()
    a = lab.spec(max_retries=0)
    b = lab.spec(dependencies=(a.id,))
    c = lab.spec(dependencies=(b.id,))
    lab.submit(a, b, c)
    (claim,) = lab.claim(worker)
    assert lab(dm.fail_future, claim, Failure("error", "boom", b"pickle", "trace")) is FutureState.failed
    assert [lab.state(one.id) for one in (a, b, c)] == ["failed"] * 3
    failure = lab.info(c.id).failure
    assert failure is not None
    assert (failure.reason, failure.chain, failure.payload, failure.traceback) == (
        "upstream",
        (b.id, a.id),
        b"pickle",
        "trace",
    )
    assert "boom" in failure.message and show_id(a.id) in failure.message
    assert {entry.id for entry in lab.mail()} == {a.id, b.id, c.id}
    d = lab.spec(dependencies=(c.id,))
    e = lab.spec(dependencies=(d.id,))
    lab.submit(d, e)
    assert [lab.state(one.id) for one in (d, e)] == ["failed"] * 2
    assert lab.info(e.id).failure.chain == (d.id, c.id, b.id, a.id)  # type: ignore[union-attr]


def test_a_long_chain_fails_in_pages_and_every_failure_stays_small(lab: Lab) -> None:
    worker = lab.worker()
    chain = [lab.spec(max_retries=0)]
    for _ in range(100):
        chain.append(lab.spec(dependencies=(chain[-1].id,)))
    fan = [lab.spec(dependencies=(chain[0].id,)) for _ in range(30)]
    lab.submit(*chain, *fan)
    (claim,) = lab.claim(worker)
    failure = Failure("error", "m" * 5_000, b"p" * 40_000, "t" * 50_000)
    turn = lab(dm.finish_turn, worker, [Outcome.failed(claim, failure)], dm.Capacity(), 0)
    assert turn.unsettled, "copies of a large payload don't fit one transaction"
    assert lab.validate() == []
    while lab(dm.advance, 0).more:
        pass
    assert all(lab.state(spec.id) == "failed" for spec in chain + fan)
    last = lab.info(chain[-1].id).failure
    assert last is not None
    assert last.chain[0] == chain[-2].id and last.chain[-1] == chain[0].id and len(last.chain) == 64
    assert last.message.startswith(
        f"future {show_id(chain[-1].id)} depends on {show_id(chain[0].id)}, through {show_id(chain[-2].id)}"
    )
    assert last.payload == failure.payload and len(last.traceback) < 20_010 and len(last.message) < 2_100
    huge = lab.spec(max_retries=0)
    lab.submit(huge)
    (claim,) = lab.claim(worker)
    lab(dm.fail_future, claim, Failure("error", "too large", b"p" * 200_000))
    assert lab.info(huge.id).failure.payload == b"", "an exception that can't be stored is told by its text"  # type: ignore[union-attr]


def test_dependencies_have_a_limit(lab: Lab) -> None:
    with pytest.raises(OversizeError, match="combine them by futures in between"):
        lab.submit(lab.spec(dependencies=tuple(dm.new_future_ids(4_001))))


def test_dependencies_must_exist(lab: Lab) -> None:
    with pytest.raises(UnknownFutureError, match="submit what it depends on first"):
        lab.submit(lab.spec(dependencies=(bytes(16),)))
    (gone,) = lab.submit(lab.spec())
    lab(dm.delete_future, gone)
    with pytest.raises(FutureDeletedError):
        lab.submit(lab.spec(dependencies=(gone,)))


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_max_retries_bounds_the_starts(lab: Lab, retries: int) -> None:
    worker = lab.worker()
    (one,) = lab.submit(lab.spec(max_retries=retries))
    for start in range(1, retries + 2):
        (claim,) = lab.claim(worker)
        assert claim.attempt == start
        state = lab(dm.fail_future, claim, ValueError("bad"))
        assert state is (FutureState.failed if start == retries + 1 else FutureState.unclaimed)
        assert lab.info(one).last_failure.message == "ValueError: bad"  # type: ignore[union-attr]
    assert lab.claim(worker) == []
    assert [entry.kind for entry in lab.mail()] == ["failed"], "mailed once, not at each retry"


def test_a_permanent_failure_is_in_no_index_and_has_a_state(lab: Lab) -> None:
    worker = lab.worker()
    (one,) = lab.submit(lab.spec())
    (claim,) = lab.claim(worker)
    assert lab(dm.fail_future, claim, "it can't work", True) is FutureState.failed
    assert lab.state(one) == "failed"
    assert lab.info(one).failure.message == "it can't work"  # type: ignore[union-attr]


@pytest.mark.parametrize("reason", ["unpickle", "result-pickle", "oversize"])
def test_what_no_retry_can_mend_fails_at_once(lab: Lab, reason: str) -> None:
    worker = lab.worker()
    (one,) = lab.submit(lab.spec())
    assert lab(dm.fail_future, lab.claim(worker)[0], Failure(reason, "no")) is FutureState.failed
    assert lab.info(one).attempts == 1


def test_a_past_failure_does_not_spoil_a_later_success(lab: Lab) -> None:
    worker = lab.worker()
    (one,) = lab.submit(lab.spec())
    lab(dm.fail_future, lab.claim(worker)[0], "first")
    lab(dm.realize_future, lab.claim(worker)[0], b"second")
    assert lab.state(one) == "realized"
    assert [entry.kind for entry in lab.mail()] == ["realized"]
    assert lab.info(one).last_failure is not None


def test_backoff_waits_on_the_cluster_clock(lab: Lab) -> None:
    worker = lab.worker()
    now = lab.clock(100)
    (one,) = lab.submit(lab.spec(backoff=Backoff(2.0, 3.0, 5.0)))
    assert lab(dm.fail_future, lab.claim(worker)[0], "x") is FutureState.waiting
    assert lab.claim(worker) == []
    with pytest.raises(FutureStateError, match="waiting for its back-off"):
        lab(dm.claim_future, one, worker)
    progress = lab(dm.advance, now + 1_999_999)
    assert progress == (0, False, now + 2_000_000)
    assert lab(dm.advance, now + 2_000_000).moved == 1
    assert lab(dm.fail_future, lab.claim(worker)[0], "x") is FutureState.waiting
    assert lab(dm.advance, now + 4_000_000).next_due_us == now + 5_000_000, "2 s * 3 is over the maximum of 5 s"


def test_a_timer_that_is_stale_moves_nothing(lab: Lab) -> None:
    now = lab.clock(5)
    worker = lab.worker()
    waited, assigned = lab.spec(backoff=Backoff(2.0)), lab.spec(locality=Locality(worker, wait=2.0))
    lab.submit(waited)
    (claim,) = lab.claim(worker)
    assert lab(dm.fail_future, claim, "no") is FutureState.waiting
    lab(dm.cancel_future, waited.id)
    assert lab(dm.resubmit_future, waited.id, 0)
    lab.submit(assigned)
    claims = lab.claim(worker)
    assert {one.id for one in claims} == {waited.id, assigned.id}
    lab(dm.advance, now + 10_000_000)
    assert lab.validate() == []
    assert lab.claim(worker) == []
    for one in claims:
        lab(dm.realize_future, one, b"r")


def test_relinquished_attempts_are_not_charged(lab: Lab) -> None:
    worker = lab.worker()
    (one,) = lab.submit(lab.spec(max_retries=0))
    for _ in range(3):
        (claim,) = lab.claim(worker)
        assert lab(dm.relinquish_claim, claim, "drained") is FutureState.unclaimed
    info = lab.info(one)
    assert (info.attempts, info.charged) == (3, 0)
    assert lab(dm.fail_future, lab.claim(worker)[0], "x") is FutureState.failed


def test_transitions_of_a_claim_may_be_repeated(lab: Lab) -> None:
    worker = lab.worker()
    one, two, three = lab.submit(lab.spec(), lab.spec(), lab.spec())
    a, b, c = lab.claim(worker)
    for _ in range(2):
        lab(dm.realize_future, a, b"r")
        assert lab(dm.fail_future, b, "x") is FutureState.unclaimed
        assert lab(dm.relinquish_claim, c) is FutureState.unclaimed
    assert (lab.info(two).attempts, lab.info(two).charged) == (1, 1)
    assert len(lab.mail()) == 1
    assert [lab.state(i) for i in (one, two, three)] == ["realized", "unclaimed", "unclaimed"]


def test_a_stale_claim_decides_nothing(lab: Lab) -> None:
    worker = lab.worker()
    (one,) = lab.submit(lab.spec())
    (old,) = lab.claim(worker)
    lab(dm.relinquish_claim, old)
    (new,) = lab.claim(worker)
    assert new.token > old.token
    for act in (
        lambda: lab(dm.realize_future, old, b"r"),
        lambda: lab(dm.fail_future, old, "x"),
        lambda: lab(dm.relinquish_claim, old),
    ):
        with pytest.raises(ClaimLostError, match=show_id(one)):
            act()
    turn = lab(dm.finish_turn, worker, [Outcome.realized(old, b"r")], dm.Capacity(), 0)
    assert turn.stale == (one,)
    assert lab.state(one) == "claimed"


def test_at_most_one_start_whatever_happens(lab: Lab) -> None:
    once = {"max_retries": 0, "max_worker_losses": 0, "max_oom": 0, "allow_reconstruction": False}
    for how in ("error", "oom", "worker-lost", "drained after it started", "lost result"):
        worker = lab.worker()
        (one,) = lab.submit(lab.spec(**once))
        (claim,) = lab.claim(worker)
        if how == "worker-lost":
            lab.kill(worker)
            lab.reap()
            worker = lab.worker()
        elif how.startswith("drained"):
            lab(dm.finish_turn, worker, [Outcome.relinquished(claim, started=True)], dm.Capacity(), 0)
        elif how == "lost result":
            lab(dm.realize_future, claim, FutureResult(None, 10, "object"))
            lab(dm.drop_copy, one, worker)
            assert lab(dm.recover_result, one, 0) is None
            assert lab.info(one).failure.reason == "object-lost"  # type: ignore[union-attr]
        else:
            lab(dm.fail_future, claim, Failure(how, ""))
        assert lab.state(one) == "failed", how
        assert lab.claim(worker) == []
        assert lab.info(one).attempts == 1
        lab(dm.unregister_worker, worker)
        lab.reap()


def test_out_of_memory_has_its_own_budget_and_may_ask_for_more_room(lab: Lab) -> None:
    worker = lab.worker()
    (one,) = lab.submit(lab.spec(max_retries=0, max_oom=1, requirements=dm.Requirements(ram=100)))
    room = dm.Capacity(dm.Requirements(ram=1000))
    (claim,) = lab.claim(worker, 1, room)
    retry = Outcome.failed(claim, Failure("oom", "killed"), requirements=dm.Requirements(ram=300))
    lab(dm.finish_turn, worker, [retry], dm.Capacity(), 0)
    assert lab.state(one) == "unclaimed"
    assert lab.claim(worker, 1, dm.Capacity(dm.Requirements(ram=200))) == []
    (claim,) = lab.claim(worker, 1, room)
    assert claim.shape == (0, 300, 0)
    assert (lab.info(one).out_of_memory, lab.info(one).charged) == (1, 1)
    assert lab(dm.fail_future, claim, Failure("oom", "killed")) is FutureState.failed


def test_cancel_in_every_state(lab: Lab) -> None:
    worker = lab.worker()
    running = lab.spec()
    lab.submit(running)
    (claim,) = lab.claim(worker)
    waiting, pooled = lab.spec(dependencies=(running.id,)), lab.spec()
    lab.submit(waiting, pooled)
    for one in (pooled, waiting, running):
        assert lab(dm.cancel_future, one.id) is FutureState.failed
        assert lab.info(one.id).failure.reason == "cancelled"  # type: ignore[union-attr]
        assert lab(dm.cancel_future, one.id) is FutureState.failed
    assert [(e.id, e.kind) for e in lab.mail(worker.incarnation)] == [(running.id, "cancel")]
    with pytest.raises(ClaimLostError):
        lab(dm.realize_future, claim, b"too late")
    done = lab.spec()
    lab.submit(done)
    lab(dm.realize_future, lab.claim(worker)[0], b"r")
    assert lab(dm.cancel_future, done.id) is FutureState.realized


def test_timeouts_fire_on_the_cluster_clock(lab: Lab) -> None:
    worker = lab.worker()
    now = lab.clock(10)
    queued = lab.spec(queue_timeout=1.0)
    total = lab.spec(total_timeout=2.0)
    lab.submit(queued, total)
    assert lab(dm.advance, now + 1_500_000).moved == 1
    assert "queue_timeout=1.0" in lab.info(queued.id).failure.message  # type: ignore[union-attr]
    lab.claim(worker)
    lab(dm.advance, now + 2_000_000)
    assert lab.info(total.id).failure.reason == "timeout"  # type: ignore[union-attr]
    assert [entry.kind for entry in lab.mail(worker.incarnation)] == ["cancel"]
    started = lab.spec(queue_timeout=1.0)
    lab.submit(started)
    lab.claim(worker)
    lab(dm.advance, now + 10_000_000)
    assert lab.state(started.id) == "claimed"


def test_workers_are_looked_at_once_for_all_futures_whose_place_is_in_doubt(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.worker(total=dm.Requirements(cpu=4))
    lab.clock(0)
    ids = lab.submit(*(lab.spec(requirements=dm.Requirements(gpu=8), unschedulable_timeout=1.0) for _ in range(5)))
    lab.clock(2)
    looks = []
    whole = advance_module.list_workers
    monkeypatch.setattr(
        advance_module, "list_workers", lambda *args, **named: looks.append(named) or whole(*args, **named)
    )
    assert lab(dm.advance, 2_000_000).moved == len(ids)
    assert looks == [{"count": False}]


def test_unschedulable_says_so_and_fails_only_if_asked(lab: Lab) -> None:
    now = lab.clock(10)
    big = dm.Requirements(gpu=8)
    patient, hasty = lab.spec(requirements=big), lab.spec(requirements=big, unschedulable_timeout=1.0)
    lab.submit(patient, hasty)
    assert "no live worker" in lab.info(patient.id).reason
    lab.worker(total=dm.Requirements(cpu=2))
    assert "unschedulable: needs cpu=0 ram=0 gpu=8" in lab.info(patient.id).reason
    lab(dm.advance, now + 1_000_000)
    assert lab.info(hasty.id).failure.reason == "unschedulable"  # type: ignore[union-attr]
    assert lab.state(patient.id) == "unclaimed"
    fits = lab.spec(requirements=dm.Requirements(cpu=2), unschedulable_timeout=1.0)
    lab.submit(fits)
    lab(dm.advance, now + 60_000_000)
    assert lab.state(fits.id) == "unclaimed"


def test_push_claims_at_submit(lab: Lab) -> None:
    worker = lab.worker()
    spec = lab.spec(args=b"a", name="pushed", run_timeout=3.0)
    (claim,) = lab(dm.submit_claimed, [spec], worker)
    assert (claim.id, claim.attempt, claim.name, claim.run_timeout) == (spec.id, 1, "pushed", 3.0)
    assert not any(row[0].startswith("resource") for row in lab.rows())
    assert lab(dm.submit_claimed, [spec], worker)[0].token == claim.token, "again: the same claim"
    (found,) = lab(dm.claims_of, worker)
    assert found == claim
    lab(dm.realize_future, claim, b"r")
    assert lab.state(spec.id) == "realized"
    lab.kill(worker)
    with pytest.raises(WorkerFencedError):
        lab(dm.submit_claimed, [lab.spec()], worker)
    with pytest.raises(FutureStateError):
        lab(dm.submit_claimed, [lab.spec(dependencies=(spec.id,))], lab.worker(2))


def test_claim_by_id_says_why_it_can_not(lab: Lab) -> None:
    worker = lab.worker()
    (one,) = lab.submit(lab.spec())
    down = lab.spec(dependencies=(one,))
    lab.submit(down)
    with pytest.raises(FutureStateError, match="waiting for other futures"):
        lab(dm.claim_future, down.id, worker)
    claim = lab(dm.claim_future, one, worker)
    with pytest.raises(FutureStateError, match="is claimed"):
        lab(dm.claim_future, one, worker)
    lab(dm.realize_future, claim, b"")
    with pytest.raises(FutureStateError, match="is realized"):
        lab(dm.claim_future, one, worker)
    with pytest.raises(UnknownFutureError):
        lab(dm.claim_future, bytes(16), worker)


def test_large_code_and_arguments(lab: Lab) -> None:
    worker = lab.worker()
    code = lab(dm.put_code, b"c" * 200_000)
    assert lab(dm.put_code, b"c" * 200_000) == code
    specs = [FutureSpec(code, b"a" * 100_000, session=lab.session) for _ in range(3)]
    lab.submit(*specs)
    claims = lab.claim(worker)
    assert all(lab(dm.get_code, claim.code) == b"c" * 200_000 for claim in claims)
    assert all(lab(dm.get_code, claim.args) == b"a" * 100_000 for claim in claims)
    manifests = [row for row in lab.rows() if row[0] == "blobs" and row[-1] == "manifest"]
    assert len(manifests) == 2, "the same content is stored once"
    for spec in specs:
        lab(dm.delete_future, spec.id)
    assert len([row for row in lab.rows() if row[0] == "blobs" and row[-1] == "manifest"]) == 1, (
        "arguments go, code stays"
    )
    with pytest.raises(OversizeError, match="too many for one transaction"):
        lab.submit(lab.spec(args=b"a" * 1_000_000))


def test_inline_results_have_a_limit(lab: Lab) -> None:
    worker = lab.worker()
    lab.submit(lab.spec())
    (claim,) = lab.claim(worker)
    with pytest.raises(OversizeError, match=r"90,001 bytes, 90,000 may be inline"):
        lab(dm.realize_future, claim, b"r" * 90_001)
    lab(dm.realize_future, claim, b"r" * 90_000)


def test_mail_is_one_row_per_session_and_commit(lab: Lab) -> None:
    worker = lab.worker()
    lab.submit(*[lab.spec() for _ in range(50)])
    claims = lab.claim(worker)
    lab(dm.realize_futures, [(claim, b"r") for claim in claims])
    assert sum(row[0] == "mailboxes" for row in lab.rows()) == 1
    entries, cursor = lab(dm.read_mailbox, lab.session)
    assert len(entries) == 50
    lab.submit(*[lab.spec() for _ in range(5)])
    lab(dm.realize_futures, [(claim, b"r" * 40_000) for claim in lab.claim(worker)])
    more, after = lab(dm.read_mailbox, lab.session, cursor)
    assert len(more) == 5, "too large for one row, told in several"
    lab(dm.clear_mailbox, lab.session, cursor)
    assert len(lab.mail()) == 5
    lab(dm.clear_mailbox, lab.session, after)
    assert lab(dm.read_mailbox, lab.session, after) == ([], after)
    lab(dm.close_session, lab.session)
    assert not any(row[0] == "mailboxes" for row in lab.rows())


def test_subscribers_are_mailed_and_told_of_what_ended_before(lab: Lab) -> None:
    worker = lab.worker()
    other = b"o" * 16
    done, open_, gone = lab.submit(lab.spec(), lab.spec(), lab.spec())
    claims = lab.claim(worker)
    lab(dm.realize_future, claims[0], b"r")
    lab(dm.delete_future, gone)
    entries = lab(dm.subscribe, other, [done, open_, gone])
    assert [(entry.id, entry.kind) for entry in entries] == [(done, "realized"), (gone, "failed")]
    assert entries[1].failure.reason == "deleted"
    lab(dm.subscribe, other, [open_])
    lab(dm.realize_future, claims[1], b"s")
    (entry,) = lab.mail(other)
    assert (entry.id, entry.result.inline) == (open_, b"s")  # type: ignore[union-attr]
    with pytest.raises(UnknownFutureError):
        lab(dm.subscribe, other, [bytes(16)])


def test_bells_ring_when_there_is_something_to_hear(lab: Lab) -> None:
    worker = lab.worker()
    pool, session = dm.pool_bell(lab.space), dm.session_bell(lab.space, lab.session)

    def ring() -> tuple[object, object]:
        return lab.db[pool], lab.db[session]

    before = ring()
    lab.submit(lab.spec())
    submitted = ring()
    assert submitted[0] != before[0] and submitted[1] == before[1]
    (claim,) = lab.claim(worker)
    assert ring() == submitted
    lab(dm.realize_future, claim, b"r")
    assert ring()[0] == submitted[0] and ring()[1] != submitted[1]


def test_every_row_is_in_the_reference(lab: Lab) -> None:
    worker = lab.worker()
    lab.clock(1)
    lab.submit(lab.spec(name="n", priority=1, total_timeout=1.0), lab.spec(), lab.spec(backoff=Backoff(1.0)))
    claims = lab.claim(worker)
    up = lab.spec(locality=dm.Locality(worker))
    lab.submit(up, lab.spec(dependencies=(up.id,)))
    lab(dm.subscribe, b"s" * 16, [up.id])
    lab(dm.realize_future, claims[0], b"r")
    lab(dm.fail_future, claims[2], Failure("oom", "x"))
    lab.kill(lab.worker(2))
    documented = {(doc.subspace, _constants(doc.key)) for doc in KEYS}
    for row in lab.rows():
        if row[0] in ("clock", "blobs", "format"):
            continue
        names = tuple(part for part in row[1:] if isinstance(part, str) and part not in ("127.0.0.1", *_KINDS))
        assert (row[0], names) in documented, row


_KINDS = ("backoff", "locality", "queue", "total", "unschedulable")


def _constants(key: str) -> tuple[str, ...]:
    return tuple(part.strip(" ()'") for part in key.split(",") if "'" in part)


def test_a_deleted_future_is_not_brought_back_by_a_submit_of_its_key(lab: Lab) -> None:
    future_id = dm.id_for_key("cluster", "key")
    worker = lab.worker()
    lab.submit(lab.spec(id=future_id))
    lab(dm.delete_future, future_id)
    assert lab.submit(lab.spec(id=future_id), lab.spec(id=future_id, name="special")) == [future_id, future_id]
    assert lab(dm.submit_claimed, [lab.spec(id=future_id)], worker) == []
    lab(dm.put_realized_future, lab.spec(id=future_id), None, b"object")
    assert lab.claim(worker) == []
    with pytest.raises(FutureDeletedError):
        lab.state(future_id)


def test_what_is_submitted_late_and_was_collected_meanwhile_is_not_made_again(lab: Lab) -> None:
    """By a client that was stopped in the midst of its submit, or whose actor recorded a call before it did."""
    made = dm.new_future_id()
    old = (int.from_bytes(made[:6], "big") - 60_000).to_bytes(6, "big") + made[6:]
    lab.submit(lab.spec(id=old))
    lab(dm.delete_future, old)
    assert lab.submit(lab.spec(id=old)) == [old]
    with pytest.raises(FutureDeletedError):
        lab.state(old)
    assert dm.validate(lab.db, lab.space) == []
