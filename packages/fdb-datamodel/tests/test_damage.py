"""A damaged row harms the future it belongs to: that one fails, with a reason, and everybody else goes on."""

from __future__ import annotations

import random
from typing import Any

import msgpack
import pytest
from datamodel_lab.lab import Lab

import fdb_datamodel as dm
from fdb_datamodel import Capacity, FutureState, Requirements, quarantine_future, run_apart
from fdb_datamodel.lifecycle.attempts import backoff_seconds
from fdb_datamodel.quarantine import DAMAGED, relist_claims
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.space import (
    ARGS,
    CLAIM,
    CODE,
    EPOCH,
    FAILURE,
    LATEST_RESULT,
    NUM_ATTEMPTS,
    OPTIONS,
    REQUIREMENTS,
    UNCHARGED,
    encode_id,
    layout_of,
)
from fdb_datamodel.transitions.collect import begin_pass, put_off_pass
from fdb_schema import RecordError
from idempotent_txn import run

GARBAGE = [
    b"",
    b"\xc1",
    b"\xff" * 40,
    b"\x91" * 3000,
    b"\xdd\xff\xff\xff\xff",
    msgpack.packb(["a", 1.5, None, {}]),
    b"\x2a",
]


def damage(lab: Lab, future_id: bytes, name: bytes, value: bytes) -> None:
    lab.set_row(layout_of(lab.space).future(encode_id(future_id), name), value)


def turn(lab: Lab, worker: dm.WorkerId) -> list[bytes]:
    """What a worker gets in one turn, as its shell takes it."""
    claims = run_apart(lab.db, lab.space, dm.finish_turn, lab.space, worker, [], Capacity(), 100)
    return [claim.id for claim in claims]


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("name", [CODE, ARGS, NUM_ATTEMPTS, OPTIONS, EPOCH])
def test_one_damaged_future_of_the_pool_fails_and_the_others_run(broken_lab: Lab, name: bytes, garbage: bytes) -> None:
    lab = broken_lab
    worker = lab.worker()
    lab(dm.beat_session, lab.session, 1)
    first, bad, last = (lab.spec(args=b"x", name="task") for _ in range(3))
    lab.submit(first, bad, last)
    down = lab.spec(dependencies=(bad.id,))
    lab.submit(down)
    if name == NUM_ATTEMPTS and garbage == b"\x2a":
        garbage = b"\xa1x"  # a number is one
    damage(lab, bad.id, name, garbage)
    shown, _ = lab(dm.list_futures)
    assert {info.id for info in shown} == {first.id, bad.id, last.id, down.id}
    assert "damaged" in lab.info(bad.id).reason
    assert turn(lab, worker) == [first.id, last.id]
    assert lab.state(bad.id) == FutureState.failed
    info = lab.info(bad.id)
    assert info.failure is not None
    assert info.failure.reason == DAMAGED
    assert lab.info(down.id).failure is not None
    assert turn(lab, worker) == []
    assert any(entry.id == bad.id and entry.kind == "failed" for entry in lab.mail())
    assert lab.validate() == []


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("name", [CLAIM, LATEST_RESULT, FAILURE])
def test_damage_in_what_runs_or_has_ended_is_told_and_set_apart(broken_lab: Lab, name: bytes, garbage: bytes) -> None:
    lab = broken_lab
    worker = lab.worker()
    spec = lab.spec(args=b"x")
    lab.submit(spec, lab.spec())
    claim = lab(dm.claim_future, spec.id, worker)
    if name == LATEST_RESULT:
        lab(dm.realize_future, claim, b"r")
        garbage = garbage if garbage != b"" else b"\x00"
    elif name == FAILURE:
        lab(dm.fail_future, claim, "no", True)
    damage(lab, spec.id, name, garbage)
    shown, _ = lab(dm.list_futures)
    assert len(shown) == 2
    assert lab(quarantine_future, spec.id)
    assert lab.state(spec.id) == FutureState.failed
    info = lab.info(spec.id)
    assert info.failure is not None
    assert info.failure.reason == DAMAGED
    assert not lab(quarantine_future, spec.id), "once is enough"
    assert len(turn(lab, worker)) == 1


@pytest.mark.parametrize("garbage", GARBAGE)
def test_what_a_dead_worker_held_is_given_back_past_damaged_rows(broken_lab: Lab, garbage: bytes) -> None:
    lab = broken_lab
    worker = lab.worker()
    specs = [lab.spec(), lab.spec(), lab.spec(locality=dm.Locality(worker))]
    lab.submit(*specs)
    lab(dm.claim_future, specs[0].id, worker)
    lab(dm.claim_future, specs[1].id, worker)
    keys = layout_of(lab.space)
    lab.set_row(keys.claim_rows(worker.ip, worker.port) + encode_id(specs[0].id), garbage)
    lab.set_row(keys.assignment_rows(worker.ip, worker.port) + encode_id(specs[2].id), garbage)
    lab.kill(worker)
    while run_apart(lab.db, lab.space, dm.reap, lab.space):
        pass
    states = [lab.state(spec.id) for spec in specs]
    assert states == [FutureState.failed, FutureState.unclaimed, FutureState.failed]


@pytest.mark.parametrize("garbage", [*GARBAGE, codec.pack_claims_row(b"short", [bytes(16)])])
def test_a_damaged_row_of_several_claims_is_made_anew(broken_lab: Lab, garbage: bytes) -> None:
    """From the futures that are in it, none of which fails."""
    lab = broken_lab
    worker = lab.worker()
    ids = lab.submit(*[lab.spec() for _ in range(5)])
    claims = lab.claim(worker)
    lab(dm.realize_future, claims[0], b"r")
    (key,) = (key for key in lab.packed() if key.startswith(layout_of(lab.space).claim_rows(worker.ip, worker.port)))
    lab.set_row(key, garbage)
    outcome = dm.Outcome.realized(claims[1], b"r")
    assert not run_apart(lab.db, lab.space, dm.finish_turn, lab.space, worker, [outcome], Capacity(), 0).stale
    assert lab.validate() == []
    assert [claim.id for claim in lab(dm.claims_of, worker)] == ids[2:]
    lab.set_row(key, garbage)
    assert lab(dm.list_workers)[0].claims == 0
    run_apart(lab.db, lab.space, dm.cancel_future, lab.space, ids[2])
    lab.set_row(key, garbage)
    lab.kill(worker)
    while run_apart(lab.db, lab.space, dm.reap, lab.space):
        pass
    assert [lab.state(one) for one in ids] == ["realized", "realized", "failed", "unclaimed", "unclaimed"]
    assert lab.validate() == []


@pytest.mark.parametrize("garbage", [5, b"short", "x", None])
def test_a_claim_that_was_made_with_what_is_no_future_keeps_nobody_from_being_given_back(
    broken_lab: Lab, garbage: object
) -> None:
    lab = broken_lab
    worker = lab.worker()
    ids = lab.submit(*[lab.spec() for _ in range(3)])
    lab.claim(worker)
    claim = lab.rows()["futures", ids[1], "claim"]
    damage(lab, ids[1], CLAIM, claim.removesuffix(codec.pack(ids[0])) + codec.pack(garbage))
    lab.kill(worker)
    while run_apart(lab.db, lab.space, dm.reap, lab.space):
        pass
    assert [lab.state(one) for one in ids] == ["unclaimed", "failed", "unclaimed"]
    assert lab.validate() == []


@pytest.mark.parametrize("together", [False, True])
def test_no_result_counts_of_one_that_failed_for_its_damaged_claim(broken_lab: Lab, together: bool) -> None:
    lab = broken_lab
    worker = lab.worker()
    lab(dm.beat_session, lab.session, 1)
    ids = lab.submit(*[lab.spec() for _ in range(2)])
    claims = lab.claim(worker) if together else [lab(dm.claim_future, one, worker) for one in ids]
    damage(lab, ids[0], CLAIM, b"\xc1")
    assert lab(quarantine_future, ids[0])
    assert lab.validate() == []
    assert [(entry.id, entry.kind) for entry in lab.mail(worker.incarnation)] == [(ids[0], "cancel")]
    outcomes = [dm.Outcome.realized(claim, b"r") for claim in claims]
    assert lab(dm.finish_turn, worker, outcomes, Capacity(), 0).stale == (ids[0],)
    assert [lab.state(one) for one in ids] == ["failed", "realized"]
    assert [entry.kind for entry in lab.mail()] == ["failed", "realized"]
    assert lab.validate() == []


def test_a_damaged_future_in_a_damaged_row_of_several_claims_is_set_apart(broken_lab: Lab) -> None:
    lab = broken_lab
    worker = lab.worker()
    ids = lab.submit(*[lab.spec() for _ in range(3)])
    claims = lab.claim(worker)
    (key,) = (key for key in lab.packed() if key.startswith(layout_of(lab.space).claim_rows(worker.ip, worker.port)))
    lab.set_row(key, b"\xc1")
    damage(lab, ids[0], UNCHARGED, b"\xc1")
    outcomes = [dm.Outcome.failed(claims[0], dm.Failure("error", "no")), dm.Outcome.realized(claims[1], b"r")]
    turned = run_apart(lab.db, lab.space, dm.finish_turn, lab.space, worker, outcomes[:1], Capacity(), 0)
    assert turned.stale == (ids[0],)
    assert not run_apart(lab.db, lab.space, dm.finish_turn, lab.space, worker, outcomes[1:], Capacity(), 0).stale
    assert [lab.state(one) for one in ids] == ["failed", "realized", "claimed"]
    assert lab.validate() == []


def test_only_rows_of_several_claims_are_made_anew(broken_lab: Lab) -> None:
    lab = broken_lab
    worker = lab.worker()
    ids = lab.submit(lab.spec(), lab.spec())
    lab.claim(worker)
    keys = layout_of(lab.space)
    (key,) = (key for key in lab.packed() if key.startswith(keys.claim_rows(worker.ip, worker.port)))
    before = lab.rows()
    for other in (
        keys.future(encode_id(ids[0]), CODE),
        keys.claim_rows("h", 1) + encode_id(ids[0]),
        keys.workers + b"\xff",
        b"x",
    ):
        assert not relist_claims(lab.db, lab.space, other)
    assert relist_claims(lab.db, lab.space, key), "and is left alone where it can be read"
    gone = key[:-12] + bytes(12)
    assert relist_claims(lab.db, lab.space, gone)
    assert lab.rows() == before


@pytest.mark.parametrize("garbage", [*GARBAGE, None])
def test_what_a_worker_held_whose_row_is_damaged_is_given_back_when_it_begins_anew(
    broken_lab: Lab, garbage: bytes | None
) -> None:
    lab = broken_lab
    worker = lab.worker(1)
    held, assigned = lab.spec(), lab.spec(locality=dm.Locality(worker, None, False))
    lab.submit(held, assigned)
    lab(dm.claim_future, held.id, worker)
    lab.set_row(layout_of(lab.space).incarnation("127.0.0.1", 1), garbage)
    with pytest.raises(dm.WorkerFencedError):
        turn(lab, worker)
    before = lab(dm.find_worker, "127.0.0.1", 1)
    seen = None if before is None else dm.WorkerSighting(before.id, 0)
    again = lab(dm.register_worker, dm.WorkerId("127.0.0.1", 1, dm.new_incarnation()), None, seen)
    while run_apart(lab.db, lab.space, dm.reap, lab.space):
        pass
    assert sorted(turn(lab, again)) == sorted([held.id, assigned.id])


@pytest.mark.parametrize("garbage", [*GARBAGE, None])
def test_what_a_worker_held_whose_row_is_damaged_is_given_back_though_it_never_comes_back(
    broken_lab: Lab, garbage: bytes | None
) -> None:
    lab = broken_lab
    worker, other = lab.worker(1), lab.worker(2)
    held, kept, assigned = lab.spec(), lab.spec(), lab.spec(locality=dm.Locality(worker, None, False))
    lab.submit(held, kept, assigned)
    lab(dm.claim_future, held.id, worker)
    lab(dm.claim_future, kept.id, other)
    lab.set_row(layout_of(lab.space).incarnation("127.0.0.1", 1), garbage)
    collector = dm.Collector(lab.db, lab.space)
    assert [collector.whole_pass().workers, collector.whole_pass().workers] == [1, 0]
    assert lab.state(kept.id) == FutureState.claimed, "that worker lives"
    assert sorted(turn(lab, other)) == sorted([held.id, assigned.id])
    with pytest.raises(dm.WorkerFencedError):
        turn(lab, worker)


@pytest.mark.parametrize("garbage", [*GARBAGE, bytes(64)])
def test_damaged_rows_of_workers_and_sessions_keep_nobody_from_working(broken_lab: Lab, garbage: bytes) -> None:
    lab = broken_lab
    worker, other = lab.worker(1), lab.worker(2)
    keys = layout_of(lab.space)
    prefix = keys.workers + keys.worker("127.0.0.1", 2)
    for key in [key for key in _keys(lab) if key.startswith(prefix)]:
        lab.set_row(key, garbage)
    lab(dm.beat_session, lab.session, 1)
    lab.set_row(keys.session(lab.session), garbage)
    assert {status.id.port for status in lab(dm.list_workers)} == {1, 2}
    assert {sighting.id.port for sighting in lab(dm.sightings)} == {1, 2}
    lab(dm.session_sightings)
    (one,) = lab.submit(lab.spec())
    assert "in the pool" in lab.info(one).reason
    assert turn(lab, worker) == [one]
    assert other.port == 2


def test_a_future_whose_code_is_gone_hides_none_of_the_others(broken_lab: Lab) -> None:
    lab = broken_lab
    one, other = lab.submit(lab.spec(args=b"x"), lab.spec())
    lab(dm.claim_future, one, lab.worker())
    lab.set_row(layout_of(lab.space).future(encode_id(one), CODE), None)
    shown, _ = lab(dm.list_futures)
    assert {info.id for info in shown} == {one, other}
    assert "code is gone" in lab.info(one).reason


@pytest.mark.parametrize("garbage", GARBAGE)
def test_damaged_output_hides_none_of_the_others(broken_lab: Lab, garbage: bytes) -> None:
    lab = broken_lab
    (one,) = lab.submit(lab.spec())
    for attempt in (1, 2):
        lab(dm.write_output, one, dm.TaskOutput(attempt, b"hello", 5))
    lab.set_row(layout_of(lab.space).log(encode_id(one), 1), garbage)
    assert lab(dm.read_output, one) == [dm.TaskOutput(2, b"hello", 5)]


def test_damaged_mail_is_passed_over(broken_lab: Lab) -> None:
    lab = broken_lab
    worker = lab.worker()
    one, two = lab.submit(lab.spec(), lab.spec())
    lab(dm.realize_future, lab(dm.claim_future, one, worker), b"r")
    prefix = layout_of(lab.space).mailbox(lab.session)
    (row,) = (key for key in _keys(lab) if key.startswith(prefix))
    lab(dm.realize_future, lab(dm.claim_future, two, worker), b"r")
    for garbage in GARBAGE:
        lab.set_row(row, garbage)
        assert [entry.id for entry in lab.mail()] == [two]


def test_a_damaged_entry_of_the_pool_counts_as_its_key_says(broken_lab: Lab) -> None:
    lab = broken_lab
    worker = lab.worker()
    spec = lab.spec(requirements=Requirements(cpu=1, ram=1_000_003))
    lab.submit(spec)
    prefix = layout_of(lab.space).cpu
    (row,) = (key for key in _keys(lab) if key.startswith(prefix))
    lab.set_row(row, b"\xc1")
    capacity = Capacity(Requirements(cpu=4, ram=8_000_000))
    claims = run_apart(lab.db, lab.space, dm.finish_turn, lab.space, worker, [], capacity, 10)
    assert [claim.id for claim in claims] == [spec.id]


def test_every_mutation_of_every_row_is_read_or_is_a_record_error() -> None:
    """What each decoder makes of bytes that were flipped, cut, lengthened or swapped."""
    from fdb_datamodel.rows import codec

    worker = dm.WorkerId("10.0.0.1", 4000, b"i" * 16)
    result = dm.FutureResult(None, 5, "name", worker, b"t" * 10, 7)
    spec = dm.FutureSpec(b"c", name="n", run_timeout=5.0, call_options=b"o", backoff=dm.Backoff(1, 2, 3))
    decoders: list[tuple[Any, bytes]] = [
        (codec.unpack_code, codec.pack_code(b"s" * 16, b"code", 5)),
        (codec.unpack_args, codec.pack_args(b"args", (b"d" * 16,)) or b""),
        (codec.unpack_claim, codec.pack_claim(worker, b"t" * 10, 5, 1)),
        (codec.unpack_claim_row, codec.pack_claim_row(worker, b"t" * 10)),
        (codec.unpack_claims_row, codec.pack_claims_row(b"i" * 16, [b"f" * 16, b"g" * 16])),
        (codec.unpack_latest_result, codec.pack_latest_result(result, b"t" * 10, 5)),
        (codec.unpack_result_row, codec.pack_result_row(result, b"t" * 10, 5)),
        (codec.unpack_failure, codec.pack_failure(dm.Failure("error", "m", b"p", "t", (b"c" * 16,)))),
        (codec.unpack_requirements, codec.pack_requirements((1, 2, 3), 4, dm.Locality(worker)) or b""),
        (codec.unpack_assignment, codec.pack_assignment(dm.Locality(worker), (1, 2, 3))),
        (codec.unpack_options, codec.pack_options(codec.options_of(spec)) or b""),
        (codec.unpack_worker_info, codec.pack_worker_info(b"i" * 16, dm.WorkerInfo(boot_id="b", host="h"))),
        (codec.unpack_heartbeat, codec.pack_heartbeat(dm.Heartbeat(1))),
        (codec.unpack_shape, codec.pack((1, 2, 3))),
        (codec.unpack_int, codec.pack(5)),
        (codec.unpack_mail, codec.pack([(b"i" * 16, "realized", b"v", 1)])),
        (codec.unpack_session, codec.pack((1, 2, "h", 3))),
        (codec.process_of_session, codec.pack_session(1, 2, "h", 3, False, "boot/space", 4)),
        (codec.unpack_bound, codec.pack((None, 5))),
        (codec.unpack_place, codec.pack((b"s" * 16, 5))),
        (codec.unpack_event, codec.pack((True, 5, 6))),
        (codec.unpack_grant, codec.pack((b"s" * 16, b"g" * 16, 5))),
        (codec.unpack_item, codec.pack((b"data", (b"i" * 16,), 5))),
    ]
    rng = random.Random(7)
    for decode, good in decoders:
        decode(good)
        for _ in range(3000):
            bad = bytearray(good)
            for _ in range(rng.randint(1, 4)):
                kind = rng.randrange(4)
                if kind == 0 and bad:
                    bad[rng.randrange(len(bad))] = rng.randrange(256)
                elif kind == 1:
                    del bad[rng.randrange(len(bad) + 1) :]
                elif kind == 2:
                    bad[rng.randrange(len(bad) + 1) : 0] = rng.randbytes(rng.randint(1, 5))
                elif bad:
                    bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
            try:
                decode(bytes(bad))
            except RecordError:
                pass


def _keys(lab: Lab) -> list[bytes]:
    return [lab.space.pack(parts) for parts in lab.rows()]


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("name", [CODE, ARGS, OPTIONS])
@pytest.mark.parametrize("upstream", [ARGS, None])
def test_damage_in_what_waits_for_a_future_that_fails_is_set_apart_too(
    broken_lab: Lab, upstream: bytes | None, name: bytes, garbage: bytes
) -> None:
    lab = broken_lab
    worker = lab.worker()
    lab(dm.beat_session, lab.session, 1)
    up, healthy = lab.spec(args=b"x"), lab.spec(args=b"x")
    lab.submit(up, healthy)
    down = lab.spec(args=b"y", dependencies=(up.id,))
    lab.submit(down)
    last = lab.spec(args=b"y", dependencies=(down.id,))
    lab.submit(last)
    damage(lab, down.id, name, garbage)
    if upstream is not None:
        damage(lab, up.id, upstream, garbage)
        assert turn(lab, worker) == [healthy.id]
    else:
        run_apart(lab.db, lab.space, quarantine_future, lab.space, up.id, "it failed")
    assert {lab.state(one.id) for one in (up, down, last)} == {FutureState.failed}


@pytest.mark.parametrize("garbage", GARBAGE[:-1])
def test_the_collector_goes_on_where_the_time_of_its_next_pass_is_damaged(lab: Lab, garbage: bytes) -> None:
    lab.set_row(layout_of(lab.space).next_pass, garbage)
    assert lab(begin_pass, 60.0), "it begins a pass, which says when the next one is due"
    assert not lab(begin_pass, 60.0)
    lab.set_row(layout_of(lab.space).next_pass, garbage)
    lab(put_off_pass, 60.0)
    assert not lab(begin_pass, 60.0)


@pytest.mark.parametrize("garbage", GARBAGE[:3])
@pytest.mark.parametrize("name", [CODE, ARGS, OPTIONS, FAILURE])
def test_what_is_damaged_can_be_deleted_once_it_is_set_apart(broken_lab: Lab, name: bytes, garbage: bytes) -> None:
    lab = broken_lab
    spec, other = lab.spec(args=b"x"), lab.spec()
    lab.submit(spec, other)
    damage(lab, spec.id, name, garbage)
    run_apart(lab.db, lab.space, dm.delete_future, lab.space, spec.id)
    with pytest.raises(dm.FutureDeletedError):
        lab.state(spec.id)
    assert lab.state(other.id) == FutureState.unclaimed


@pytest.mark.parametrize("name", [LATEST_RESULT, FAILURE])
def test_a_damaged_end_that_others_wait_for_keeps_no_timer_from_firing(broken_lab: Lab, name: bytes) -> None:
    lab = broken_lab
    worker = lab.worker()
    spec, timed = lab.spec(), lab.spec(total_timeout=1.0)
    lab.clock(1)
    lab.submit(spec, timed)
    claim = lab(dm.claim_future, spec.id, worker)
    if name == LATEST_RESULT:
        lab(dm.realize_future, claim, b"r")
    else:
        lab(dm.fail_future, claim, "no", True)
    keys = layout_of(lab.space)
    row = keys.future(encode_id(spec.id), name)
    whole = run(lab.db, lambda tr: tr.get(row).value)
    lab.set_row(row, whole[:-1])
    lab.set_row(keys.unsettled + encode_id(spec.id), b"")
    lab.set_row(lab.space["timers"].pack((5, "no id", "total")), b"")
    lab.set_row(lab.space["timers"].key() + b"\x00", b"")
    for _ in range(5):
        progress = run_apart(lab.db, lab.space, dm.advance, lab.space, 60_000_000)
    assert not progress.more
    assert lab.state(timed.id) == FutureState.failed
    info = lab.info(spec.id)
    assert info.failure is not None
    assert info.failure.reason == DAMAGED


@pytest.mark.parametrize("due", [b"x", "x", None, (1,), 1e300])
def test_a_stray_key_among_the_timers_is_dropped_and_keeps_none_from_firing(lab: Lab, due: Any) -> None:
    key = lab.space.pack(("timers", due, bytes(16), "queue"))
    late = lab.spec(queue_timeout=1.0)
    lab.clock(1)
    lab.submit(late)
    lab.set_row(key, b"")
    progress = run_apart(lab.db, lab.space, dm.advance, lab.space, 60_000_000)
    assert (progress.moved, progress.more) == (1, False)
    assert lab.state(late.id) == FutureState.failed
    assert lab.db[key] is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (OPTIONS, {"run_timeout": float("inf")}),
        (OPTIONS, {"unschedulable_timeout": float("nan")}),
        (OPTIONS, {"ttl": 1e300}),
        (OPTIONS, {"backoff": (1.0, None, 60.0)}),
        (OPTIONS, {"backoff": (1.0, 2.0, float("inf"))}),
        (REQUIREMENTS, (-1, 0, 0)),
        (REQUIREMENTS, (0, 1 << 63, 0)),
        (REQUIREMENTS, (0, 0, 0, 0, ("h", 1, bytes(16), None, False, float("inf")))),
        (REQUIREMENTS, (0, 0, 0, 0, ("h", 1, bytes(16), None, False, None))),
    ],
)
def test_numbers_that_nothing_can_be_reckoned_with_are_damage(name: bytes, value: Any) -> None:
    read = codec.unpack_options if name == OPTIONS else codec.unpack_requirements
    with pytest.raises(RecordError):
        read(codec.pack(value))


def test_a_pause_that_grows_over_every_number_is_the_longest_one(lab: Lab) -> None:
    task = lab.spec(max_retries=100, backoff=dm.Backoff(1.0, 1e10, 5.0))
    lab.submit(task)
    f = Changes(lab.db.create_transaction(), lab.space).load(task.id)
    f.rows[NUM_ATTEMPTS] = codec.pack(90)
    assert backoff_seconds(f) == 5.0


@pytest.mark.parametrize("stray", [(), (b"x",), ("h",), (None, 1), ("h", "port", "incarnation"), (5, 5, 5)])
def test_a_stray_key_among_the_workers_hides_none_of_them(broken_lab: Lab, stray: tuple[Any, ...]) -> None:
    lab = broken_lab
    workers = [lab.worker(port) for port in (1, 2)]
    lab.set_row(lab.space.pack(("workers", *stray)), b"junk")
    lab.set_row(lab.space.pack(("workers",)) + b"\x02\xff", b"junk")
    assert [status.id for status in lab(dm.list_workers)] == workers
