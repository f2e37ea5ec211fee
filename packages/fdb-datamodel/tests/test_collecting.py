"""What nobody needs is collected, late and never early; what is collected leaves no row but a tombstone, for a while."""

from __future__ import annotations

import itertools
import os
import random
from typing import Any

import fdb
import pytest
from conftest import seed_params
from datamodel_lab.lab import Lab

import fdb_datamodel as dm
from fdb_datamodel import Claim, Collected, FutureResult, WorkerId
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.elements import encode_id
from fdb_datamodel.rows.space import layout_of
from fdb_datamodel.transitions.sweep import shed_results, sweep_page
from fdb_schema import LEASE_PIN, BlobMissingError, put_blob, unpin_blob
from idempotent_txn import run

GRACE = 100.0


class Cleaner:
    """A collector whose clock, and the cluster's, the test moves."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.now = 0.0
        self.collector = dm.Collector(lab.db, lab.space, grace=GRACE, tombstones=1000.0, clock=lambda: self.now)
        lab.clock(0)

    def beat(self, *sessions: bytes) -> None:
        for session in sessions:
            self.lab(dm.beat_session, session, round(self.now * 10) + 1)

    def later(self, seconds: float, *beating: bytes) -> int:
        """Let time pass in small steps, in which these sessions beat; how many sessions were declared dead."""
        dead = 0
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 5.0)
            self.beat(*beating)
            dead += self.collector.look_at_sessions()
        self.lab.clock(self.now)
        return dead

    def collect(self) -> Collected:
        return self.collector.whole_pass()


@pytest.fixture
def cleaner(lab: Lab) -> Cleaner:
    return Cleaner(lab)


def realize(lab: Lab, worker: WorkerId, result: FutureResult | bytes = b"r") -> list[Claim]:
    claims = lab.claim(worker)
    for claim in claims:
        lab(dm.realize_future, claim, result)
    return claims


def subspaces(lab: Lab) -> set[str]:
    return {row[0] for row in lab.rows()} - {"clock", "collector", "format", "formats"}


def test_a_session_that_lives_holds_what_it_submitted(lab: Lab, cleaner: Cleaner) -> None:
    worker = lab.worker()
    cleaner.beat(lab.session)
    (done,) = lab.submit(lab.spec())
    realize(lab, worker)
    cleaner.later(10 * GRACE, lab.session)
    assert not cleaner.collect() and lab.state(done) == "realized"


def test_ended_futures_of_a_dead_session_go_a_grace_after_it(lab: Lab, cleaner: Cleaner) -> None:
    worker = lab.worker()
    cleaner.beat(lab.session)
    ids = lab.submit(lab.spec(), lab.spec(), lab.spec())
    claims = lab.claim(worker, 2)
    lab(dm.realize_future, claims[0], FutureResult(None, 9, "object"))
    lab(dm.fail_future, claims[1], "x", True)
    assert cleaner.later(40) == 1, "no beat for a TTL"
    assert cleaner.collect().futures == 0, "the grace begins when they are seen without a holder"
    cleaner.later(GRACE - 1)
    assert cleaner.collect().futures == 0
    cleaner.later(2)
    assert cleaner.collect().futures == 2
    assert lab.state(ids[2]) == "unclaimed", "nobody awaits it, and it runs all the same"
    for one in ids[:2]:
        with pytest.raises(dm.FutureDeletedError):
            lab.state(one)
    (freed,) = lab(dm.read_mailbox, worker.incarnation)[0]
    assert freed.kind == "free" and freed.result is not None and freed.result.name == "object"
    realize(lab, worker)
    cleaner.collect()
    cleaner.later(GRACE + 1)
    assert cleaner.collect().futures == 1


def test_what_is_let_go_is_collected_while_its_session_lives(lab: Lab, cleaner: Cleaner) -> None:
    worker = lab.worker()
    cleaner.beat(lab.session)
    kept, dropped = lab.submit(lab.spec(), lab.spec())
    lab(dm.release_futures, lab.session, [dropped])
    cleaner.later(2 * GRACE, lab.session)
    assert cleaner.collect().futures == 0 and lab.state(dropped) == "unclaimed", "unfinished: it isn't garbage"
    realize(lab, worker)
    cleaner.collect()
    cleaner.later(GRACE + 1, lab.session)
    assert cleaner.collect().futures == 1
    assert lab.state(kept) == "realized"


def test_another_session_holds_a_future_until_it_lets_go_or_dies(lab: Lab, cleaner: Cleaner) -> None:
    worker, other, third = lab.worker(), os.urandom(16), os.urandom(16)
    cleaner.beat(lab.session, other, third)
    (one,) = lab.submit(lab.spec())
    realize(lab, worker)
    for session in (other, third):
        assert lab(dm.subscribe, session, [one])[0].kind == "realized"
    lab(dm.release_futures, lab.session, [one])
    cleaner.collect()
    cleaner.later(2 * GRACE, lab.session, other, third)
    assert cleaner.collect().futures == 0
    lab(dm.release_futures, other, [one])
    cleaner.later(2 * GRACE, lab.session)  # the third dies
    assert cleaner.collect().references == 1
    cleaner.later(GRACE - 1, lab.session)
    assert cleaner.collect().futures == 0, "a whole grace after the last reference"
    cleaner.later(2, lab.session)
    assert cleaner.collect().futures == 1


def test_a_submitter_that_takes_its_future_up_again_holds_it(lab: Lab, cleaner: Cleaner) -> None:
    worker = lab.worker()
    cleaner.beat(lab.session)
    (one,) = lab.submit(lab.spec())
    realize(lab, worker)
    lab(dm.release_futures, lab.session, [one])
    lab(dm.subscribe, lab.session, [one])
    cleaner.collect()
    cleaner.later(2 * GRACE, lab.session)
    cleaner.collect()
    assert lab.state(one) == "realized"


def test_a_session_that_was_only_paused_gets_its_futures_back(lab: Lab, cleaner: Cleaner) -> None:
    worker = lab.worker()
    cleaner.beat(lab.session)
    (one,) = lab.submit(lab.spec())
    realize(lab, worker)
    assert cleaner.later(60) == 1
    cleaner.collect()
    assert lab(dm.beat_session, lab.session, 77) is False, "it learns that it was declared dead"
    cleaner.later(2 * GRACE, lab.session)
    cleaner.collect()
    assert lab.state(one) == "realized"


def test_a_beat_does_not_land_behind_its_sessions_death_without_noticing(lab: Lab) -> None:
    lab(dm.beat_session, lab.session, 1)
    (sighting,) = lab(dm.session_sightings)
    tr = lab.db.create_transaction()
    assert dm.beat_session(tr, lab.space, lab.session, 2, begins=False)
    assert lab(dm.declare_session_dead, sighting)
    with pytest.raises(fdb.impl.FDBError) as conflict:
        tr.commit().wait()
    assert conflict.value.code == 1020
    assert not lab(dm.beat_session, lab.session, 2, begins=False), "it learns of its death ..."
    assert not lab(dm.session_lives, lab.session), "... and writes nothing, whatever becomes of its commit"


def test_kept_ones_stay_and_a_ttl_counts_instead_of_the_grace(lab: Lab, cleaner: Cleaner) -> None:
    worker = lab.worker()
    kept, short, long = lab.submit(lab.spec(keep=True), lab.spec(ttl=10), lab.spec(ttl=5 * GRACE))
    realize(lab, worker)
    (put,) = [lab(dm.put_realized_future, lab.spec(keep=True), worker, b"x").bytes]
    cleaner.collect()
    cleaner.later(11)
    assert cleaner.collect().futures == 1
    cleaner.later(4 * GRACE)
    assert cleaner.collect().futures == 0
    cleaner.later(GRACE)
    assert cleaner.collect().futures == 1
    lab(dm.release_futures, lab.session, [kept])
    cleaner.later(GRACE)
    cleaner.collect()
    assert lab.state(kept) == lab.state(put) == "realized"
    for one in (short, long):
        with pytest.raises(dm.FutureDeletedError):
            lab.state(one)


def test_a_result_goes_while_its_record_stays_as_lineage(lab: Lab, cleaner: Cleaner) -> None:
    worker = lab.worker()
    up = lab.spec()
    down = lab.spec(dependencies=(up.id,), keep=True)
    lab.submit(up, down)
    realize(lab, worker, FutureResult(None, 9, "object"))
    cleaner.collect()
    cleaner.later(2 * GRACE)
    assert not cleaner.collect(), "its dependent hasn't ended and will need it"
    realize(lab, worker, FutureResult(None, 9, "other"))
    found = cleaner.collect()
    assert (found.results, found.futures) == (1, 0)
    assert lab.state(up.id) == "realized" and lab(dm.live_copies, up.id) == []
    assert not cleaner.collect(), "once"
    # The dependent's own result is lost: it is computed again, from the lineage.
    lab(dm.drop_copy, down.id, worker)
    assert lab(dm.recover_result, down.id, 0) is None
    (again,) = lab.claim(worker)
    assert again.id == down.id and again.inputs[up.id].name == "object"
    lab(dm.finish_turn, worker, [dm.Outcome.missed_inputs(again, [up.id], [(up.id, worker)])], dm.Capacity(), 0)
    (first,) = lab.claim(worker)
    assert first.id == up.id and first.epoch == 1
    lab(dm.delete_future, down.id)
    lab(dm.realize_future, first, b"x")
    assert cleaner.collect().futures == 1, "nobody names it any more"


def test_what_its_owner_sheds_goes_at_once_and_is_computed_again_for_who_needs_it(lab: Lab) -> None:
    worker = lab.worker()
    up, small, put = lab.spec(), lab.spec(), lab.spec()
    down = lab.spec(dependencies=(up.id,))
    lab.submit(up)
    realize(lab, worker, FutureResult(None, 9, "object"))
    lab.submit(small, down)
    lab(dm.put_realized_future, put, worker, FutureResult(None, 9, "put", worker))
    assert lab(shed_results, [up.id, small.id, put.id, b"x" * 16]) == 1, "no put, nothing unfinished, nothing unknown"
    assert lab.state(up.id) == "realized" and lab(dm.live_copies, up.id) == []
    assert lab(dm.live_copies, put.id) != []
    assert lab(shed_results, [up.id]) == 0, "once"
    claims = {claim.id: claim for claim in lab.claim(worker)}
    missed = dm.Outcome.missed_inputs(claims[down.id], [up.id], [(up.id, worker)])
    lab(dm.finish_turn, worker, [missed], dm.Capacity(), 0)
    (again,) = lab.claim(worker)
    assert again.id == up.id and again.epoch == 1


def test_a_put_stays_as_long_as_somebody_names_it(lab: Lab, cleaner: Cleaner) -> None:
    worker = lab.worker()
    put = lab.spec()
    lab(dm.put_realized_future, put, worker, FutureResult(None, 9, "object", worker))
    down = lab.spec(dependencies=(put.id,))
    lab.submit(down)
    realize(lab, worker)
    cleaner.collect()
    cleaner.later(GRACE + 1)
    found = cleaner.collect()
    assert (found.results, found.futures) == (0, 1), "it can't be computed again, so the dependent goes first"
    assert cleaner.collect().futures == 1
    assert lab(dm.read_mailbox, worker.incarnation)[0][0].kind == "free"


def test_a_future_inside_a_result_lives_as_long_as_that(lab: Lab, cleaner: Cleaner) -> None:
    worker = lab.worker()
    outer, inner = lab.submit(lab.spec(), lab.spec())
    realize(lab, worker)
    lab(dm.hold_futures, [inner], outer=outer)
    lab(dm.hold_futures, [outer], session=lab.session)
    cleaner.beat(lab.session)
    cleaner.collect()
    cleaner.later(2 * GRACE, lab.session)
    assert not cleaner.collect()
    lab(dm.delete_future, outer)
    assert cleaner.collect().references == 1
    lab(dm.release_futures, lab.session, [inner])
    cleaner.collect()
    cleaner.later(GRACE + 1)
    assert cleaner.collect().futures == 1


def test_mail_and_bells_of_a_dead_session_go_also_what_comes_later(lab: Lab, cleaner: Cleaner) -> None:
    worker, other = lab.worker(), os.urandom(16)
    cleaner.beat(lab.session, other)
    ids = lab.submit(lab.spec(), lab.spec())
    lab(dm.subscribe, other, ids)
    (first,) = lab.claim(worker, 1)
    lab(dm.realize_future, first, b"x")
    assert cleaner.later(60, other) == 1
    assert lab.mail() == [] and len(lab.mail(other)) == 1
    realize(lab, worker)
    assert len(lab.mail()) == 1
    assert cleaner.collect().mailboxes == 1
    assert lab.mail() == [] and len(lab.mail(other)) == 2
    assert not any(row[:3] == ("bells", "session", lab.session) for row in lab.rows())
    lab(dm.cancel_future, lab.submit(lab.spec())[0])
    assert cleaner.collect().mailboxes == 1


def test_a_workers_mail_is_its_own(lab: Lab, cleaner: Cleaner) -> None:
    worker = lab.worker()
    (one,) = lab.submit(lab.spec())
    lab.claim(worker)
    lab(dm.cancel_future, one)
    cleaner.collect()
    assert [entry.kind for entry in lab(dm.read_mailbox, worker.incarnation)[0]] == ["cancel"]


def test_uploads_of_a_dead_session_go_and_those_of_a_living_one_stay(lab: Lab, cleaner: Cleaner) -> None:
    other = os.urandom(16)
    cleaner.beat(lab.session, other)
    for session, text in ((lab.session, b"a"), (other, b"b")):
        put_blob(run, lab.db, lab.space, text * 200_000, session=dm.session_referrer(session))
    put_blob(run, lab.db, lab.space, b"c" * 200_000, session=b"somebody else's")
    cleaner.later(60, other)
    found = cleaner.collect()
    assert (found.pins, found.code) == (1, 1)
    assert len({row[1] for row in lab.rows() if row[0] == "blobs"}) == 2


def test_an_upload_pinned_by_a_session_of_leases_goes_once_its_rows_are_gone(lab: Lab, cleaner: Cleaner) -> None:
    session = os.urandom(16)
    row = lab.space["lease"].pack(("s", session))
    lab.db[row] = b"its record"
    put_blob(run, lab.db, lab.space, b"a" * 200_000, session=LEASE_PIN + session)
    assert not cleaner.collect().pins
    del lab.db[row]
    assert (cleaner.collect().pins, cleaner.collect().pins) == (1, 0)
    assert not any(key[0] == "blobs" for key in lab.rows())


def test_code_goes_once_no_future_and_no_session_needs_it(lab: Lab, cleaner: Cleaner) -> None:
    worker = lab.worker()
    cleaner.beat(lab.session)
    digests = [lab(dm.put_code, text, lab.session) for text in (b"one", b"two")]
    spec = dm.FutureSpec(code=digests[0], session=lab.session)
    lab.submit(spec)
    cleaner.collect()
    cleaner.later(10, lab.session)
    assert cleaner.collect().code == 0, "the session may submit more with it"
    cleaner.later(60)
    assert [cleaner.collect().code for _ in range(3)] == [0, 1, 0], "found unused by two passes"
    assert lab(dm.get_code, digests[0]) == b"one"
    lab(dm.put_code, b"two")
    realize(lab, worker)
    cleaner.collect()
    cleaner.later(GRACE + 1)
    assert cleaner.collect().futures == 1
    assert [cleaner.collect().code for _ in range(3)] == [0, 1, 0]
    assert "blobs" not in subspaces(lab)


def test_code_put_between_two_passes_stays(lab: Lab, cleaner: Cleaner) -> None:
    digest = lab(dm.put_code, b"code")
    cleaner.collect()
    cleaner.collect()
    assert "blobs" not in subspaces(lab)
    digest = lab(dm.put_code, b"code")
    cleaner.collect()
    lab(dm.put_code, b"code")
    lab.submit(dm.FutureSpec(code=digest))
    for _ in range(3):
        cleaner.collect()
    assert lab(dm.get_code, digest) == b"code"


def test_the_folder_that_code_runs_in_stays_as_long_as_the_code(lab: Lab, cleaner: Cleaner) -> None:
    cleaner.beat(lab.session)
    pin = dm.session_referrer(lab.session)
    folder = put_blob(run, lab.db, lab.space, b"a folder" * 20_000, session=pin)
    with pytest.raises(BlobMissingError):
        lab(dm.put_code, b"code", lab.session, bytes(32))
    first, second = (lab(dm.put_code, text, lab.session, folder) for text in (b"one", b"two"))
    lab(unpin_blob, folder, pin)
    lab.submit(dm.FutureSpec(code=first, session=lab.session))
    cleaner.later(60)  # the session is gone
    for _ in range(4):
        cleaner.collect()
    blobs = {row[1] for row in lab.rows() if row[0] == "blobs"}
    assert blobs == {bytes(first), folder}, "the future that is left has them"
    assert second not in blobs
    worker = lab.worker()
    realize(lab, worker)
    cleaner.collect()
    cleaner.later(GRACE + 1)
    for _ in range(4):
        cleaner.collect()
    assert "blobs" not in subspaces(lab)


def test_tombstones_are_bounded(lab: Lab, cleaner: Cleaner) -> None:
    ids = lab.submit(*(lab.spec() for _ in range(5)))
    for one in ids:
        lab(dm.delete_future, one)
    cleaner.later(999)
    assert cleaner.collect().tombstones == 0
    with pytest.raises(dm.FutureDeletedError):
        lab.state(ids[0])
    cleaner.later(10)
    assert cleaner.collect().tombstones == 5
    with pytest.raises(dm.UnknownFutureError):
        lab.state(ids[0])
    assert "futures" not in subspaces(lab)


def test_passes_are_paced_and_only_one_collector_makes_them(lab: Lab) -> None:
    now = [0.0]
    two = [
        dm.Collector(lab.db, lab.space, grace=0.0, tombstones=0.0, interval=60.0, clock=lambda: now[0])
        for _ in range(2)
    ]
    lab.clock(1)
    (one,) = lab.submit(lab.spec())
    lab(dm.delete_future, one)
    lab.clock(2)
    assert [bool(collector.tick(5.0)) for collector in two] == [True, False]
    (one,) = lab.submit(lab.spec())
    lab(dm.delete_future, one)
    now[0] = 30.0
    lab.clock(31)
    assert not any(collector.tick(5.0) for collector in two), "not due"
    now[0] = 90.0
    lab.clock(91)
    assert [bool(collector.tick(5.0)) for collector in two[::-1]] == [True, False]


def test_a_pass_that_stood_still_puts_off_the_next_by_what_it_worked(lab: Lab) -> None:
    """Cut off from the database, or stopped: it was taken for work, and nothing was collected for twenty times as long."""
    looks = iter([0.0, 0.0, 0.0])
    collector = dm.Collector(
        lab.db, lab.space, grace=0.0, tombstones=0.0, interval=60.0, clock=lambda: next(looks, 600.0)
    )
    lab.clock(1)
    collector.tick(1e6)
    lab.clock(1 + 600)
    (one,) = lab.submit(lab.spec())
    lab(dm.delete_future, one)
    lab.clock(1 + 600 + 101)
    assert dm.Collector(lab.db, lab.space, grace=0.0, tombstones=0.0, clock=lambda: 0.0).tick(5.0).tombstones == 1


def let_go(lab: Lab, number: int, **options: Any) -> list[bytes]:
    """Futures that ended, whose client has let them go."""
    ids = lab.submit(*(lab.spec(**options) for _ in range(number)))
    worker = lab.worker(9)
    while realize(lab, worker):
        pass
    lab(dm.release_futures, lab.session, ids)
    return ids


def test_what_is_in_its_grace_is_not_looked_at_unless_something_refers_to_it(lab: Lab, cleaner: Cleaner) -> None:
    cleaner.beat(lab.session)
    ids = let_go(lab, 8)
    assert lab(sweep_page, b"", GRACE)[:3] == (0, 0, 8), "since when is written into each mark"
    assert lab(sweep_page, b"", GRACE)[:3] == (0, 0, 0)
    other = os.urandom(16)
    cleaner.beat(other)
    lab(dm.hold_futures, ids[3:4], session=other)
    assert lab(sweep_page, b"", GRACE)[:3] == (0, 0, 1), "its grace begins anew when nobody refers to it"
    cleaner.later(GRACE + 1, lab.session, other)
    assert lab(sweep_page, b"", GRACE)[:3] == (7, 0, 8)
    lab(dm.release_futures, other, ids[3:4])
    assert lab(sweep_page, b"", GRACE)[:3] == (0, 0, 1)
    cleaner.later(GRACE / 2, lab.session, other)
    assert lab(sweep_page, b"", GRACE)[:3] == (0, 0, 0)
    cleaner.later(GRACE, lab.session, other)
    assert lab(sweep_page, b"", GRACE)[:3] == (1, 0, 1)


def test_a_page_of_a_sweep_goes_on_where_it_had_enough_to_judge(lab: Lab, cleaner: Cleaner) -> None:
    cleaner.beat(lab.session)
    let_go(lab, 7)
    after: bytes | None = b""
    pages = []
    while after is not None:
        page = lab(sweep_page, after, GRACE, 3)
        after = page.after
        pages.append(page.judged)
    assert pages == [3, 3, 1]


def test_the_grace_begins_with_its_sessions_last_death_though_it_was_back_for_less_than_a_grace(
    lab: Lab, cleaner: Cleaner
) -> None:
    """Else what a client had, that was paused twice within a grace, was gone with its second pause."""
    worker = lab.worker()
    cleaner.beat(lab.session)
    (one,) = lab.submit(lab.spec())
    realize(lab, worker)
    assert cleaner.later(40) == 1
    cleaner.collect()
    cleaner.later(GRACE / 4, lab.session)
    cleaner.collect()
    assert cleaner.later(GRACE) == 1
    cleaner.collect()
    assert lab.state(one) == "realized"
    cleaner.later(GRACE + 1)
    assert cleaner.collect().futures == 1


@pytest.mark.parametrize("fails", [False, True])
def test_the_grace_of_what_somebody_had_run_again_begins_when_that_has_ended(
    lab: Lab, cleaner: Cleaner, fails: bool
) -> None:
    cleaner.beat(lab.session)
    (one,) = lab.submit(lab.spec())
    worker = lab.worker(9)
    if fails:
        lab(dm.fail_future, lab.claim(worker)[0], "x", True)
    else:
        realize(lab, worker)
    lab(dm.release_futures, lab.session, [one])
    cleaner.collect()
    cleaner.later(GRACE / 2, lab.session)
    assert lab(dm.resubmit_future, one, 0)
    cleaner.later(GRACE / 4, lab.session)
    cleaner.collect()
    realize(lab, worker)
    cleaner.later(GRACE / 2, lab.session)
    cleaner.collect()
    cleaner.later(GRACE - 1, lab.session)
    cleaner.collect()
    assert lab.state(one) == "realized"
    cleaner.later(2, lab.session)
    assert cleaner.collect().futures == 1


def test_what_a_sweep_judges_in_vain_is_work_after_which_it_pauses(
    memory_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks that run yet and that nobody awaits: a worker judged all of them again and again, without a pause."""
    lab, pages = memory_lab, 0
    second, looks = 0, itertools.count()
    lab.clock(1)
    lab(dm.beat_session, lab.session, 1)
    ids = lab.submit(*(lab.spec() for _ in range(500)))
    lab(dm.release_futures, lab.session, ids)

    def counted(*args: Any) -> Any:
        nonlocal pages
        pages += 1
        return sweep_page(*args)

    monkeypatch.setattr("fdb_datamodel.collector.sweep_page", counted)
    # Each look at the clock takes a twentieth of a second.
    collector = dm.Collector(lab.db, lab.space, grace=1.0, interval=2.0, clock=lambda: second + 0.05 * next(looks))
    for second in range(2, 62):
        lab.clock(second)
        looks = itertools.count()
        collector.tick(0.05)
    assert 20 <= pages <= 100, "not more often than once in twenty times of what it takes"


@pytest.mark.parametrize("damaged", ["name of an actor", "holder of a name", "claim", "latest_result", "args"])
def test_a_damaged_row_keeps_nothing_from_being_collected(memory_lab: Lab, damaged: str) -> None:
    lab, cleaner = memory_lab, Cleaner(memory_lab)
    cleaner.beat(lab.session)
    up = lab.spec()
    down = lab.spec(dependencies=(up.id,), allow_reconstruction=False)
    ids = lab.submit(up, down)
    worker = lab.worker(9)
    while realize(lab, worker):
        pass
    lab(dm.release_futures, lab.session, ids)
    keys, e = layout_of(lab.space), encode_id(down.id)
    lab.set_row(keys.name_of_actor(e), codec.pack("name"))
    lab.set_row(keys.actor_name("name"), codec.pack(down.id))
    rows = {"name of an actor": keys.name_of_actor(e), "holder of a name": keys.actor_name("name")}
    lab.set_row(rows.get(damaged) or keys.future(e, b"\x02" + damaged.encode() + b"\x00"), b"\xff\xff")
    for _ in range(5):
        cleaner.collect()
        cleaner.later(GRACE + 1, lab.session)
    for one in ids:
        with pytest.raises(dm.FutureDeletedError):
            lab.state(one)
    lab.set_row(keys.actor_name("name"), None)


@pytest.mark.parametrize("code", [1007, 2101])
def test_a_page_that_is_too_much_for_a_transaction_is_swept_in_less(
    lab: Lab, cleaner: Cleaner, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleaner.beat(lab.session)
    ids = let_go(lab, 40)
    cleaner.collect()
    cleaner.later(GRACE + 1, lab.session)
    limits = []

    def too_much(tr: Any, space: Any, after: bytes, grace: float, limit: int) -> Any:
        limits.append(limit)
        page = sweep_page(tr, space, after, grace, limit)
        if page.deleted > 15:
            raise fdb.FDBError(code)
        return page

    monkeypatch.setattr("fdb_datamodel.collector.sweep_page", too_much)
    assert cleaner.collect().futures == len(ids)
    assert limits[:4] == [50, 25, 12, 50]


@pytest.mark.parametrize("needed", ["held", "depended on"])
def test_what_is_needed_again_while_it_is_swept_is_not_deleted(lab: Lab, cleaner: Cleaner, needed: str) -> None:
    cleaner.beat(lab.session)
    (one,) = let_go(lab, 1)
    lab(sweep_page, b"", GRACE)
    cleaner.later(GRACE + 1, lab.session)
    tr = lab.db.create_transaction()
    assert sweep_page(tr, lab.space, b"", GRACE).deleted == 1
    if needed == "held":
        lab(dm.hold_futures, [one], session=os.urandom(16))
    else:
        lab.submit(lab.spec(dependencies=(one,)))
    with pytest.raises(fdb.FDBError) as conflict:
        tr.commit().wait()
    assert conflict.value.code == 1020
    lab(sweep_page, b"", GRACE)
    assert lab.state(one) == "realized"


def test_a_sweep_keeps_up_though_a_pass_over_all_futures_takes_long(lab: Lab) -> None:
    now = itertools.count(0.0, 0.01)  # each look at the clock takes a while
    lab.clock(1)
    lab(dm.beat_session, lab.session, 1)
    worker = lab.worker()
    kept = lab.submit(*(lab.spec() for _ in range(2000)))
    while realize(lab, worker):
        pass
    ids = let_go(lab, 300)
    collector = dm.Collector(lab.db, lab.space, grace=1.0, interval=2.0, clock=lambda: next(now))
    deleted = 0
    for second in range(2, 22):
        lab.clock(second)
        deleted += collector.tick(0.02).futures
    assert deleted == len(ids)
    assert lab.state(kept[0]) == "realized"


@pytest.mark.parametrize("seed", seed_params(60))
def test_seeded_histories_leave_only_what_somebody_holds(seed: int) -> None:
    """Random submits, ends, references and deaths: whatever is held survives, and in the end nothing is left."""
    rng = random.Random(seed)
    lab = Lab()
    cleaner = Cleaner(lab)
    worker = lab.worker()
    sessions = [os.urandom(16) for _ in range(3)]
    live = set(sessions)
    holds: dict[bytes, set[bytes]] = {}
    names: dict[bytes, tuple[bytes, ...]] = {}
    for session in sessions:
        cleaner.beat(session)
    for _ in range(30):
        choice = rng.random()
        if choice < 0.4 and live:
            session = rng.choice(sorted(live))
            up = tuple(rng.sample(sorted(names), min(len(names), rng.randrange(3))))
            spec = dm.FutureSpec(b"code", session=session, dependencies=up)
            lab.submit(spec)
            names[spec.id] = up
            holds[spec.id] = {session}
        elif choice < 0.6:
            realize(lab, worker, rng.choice([b"r", FutureResult(None, 9, f"o{rng.random()}")]))
        elif choice < 0.7 and names and live:
            one, session = rng.choice(sorted(names)), rng.choice(sorted(live))
            entries = lab(dm.subscribe, session, [one])
            if not (entries and entries[0].failure and entries[0].failure.reason == "deleted"):
                holds[one].add(session)
        elif choice < 0.8 and names:
            one = rng.choice(sorted(names))
            for session in sorted(holds[one] & live):
                lab(dm.release_futures, session, [one])
                holds[one].discard(session)
        elif choice < 0.85 and live:
            gone = rng.choice(sorted(live))
            live.discard(gone)
            lab(dm.close_session, gone)
        else:
            cleaner.later(rng.choice([10, 2 * GRACE]), *sorted(live))
            cleaner.collect()
        needed = {one for one in names if holds[one] & live}
        while True:
            more = {up for one in needed for up in names[one]} - needed
            if not more:
                break
            needed |= more
        rows = {row[1] for row in lab.rows() if row[0] == "futures" and row[2] == "code"}
        assert needed <= rows
        for one in sorted(set(names) - rows):
            del names[one]
        assert lab.validate() == []
    for session in sorted(live):
        lab(dm.close_session, session)
    for _ in range(20):
        realize(lab, worker)
        cleaner.later(2 * GRACE)
        cleaner.collect()
    cleaner.later(2000)
    cleaner.collect()
    lab(dm.unregister_worker, worker)
    lab.reap()
    assert subspaces(lab) <= {"bells"}, lab.rows().keys()


def test_a_pin_that_was_let_go_is_nobodys(memory_lab: Lab) -> None:
    digest = put_blob(run, memory_lab.db, memory_lab.space, b"x", session=dm.session_referrer(memory_lab.session))
    run(memory_lab.db, unpin_blob, memory_lab.space, digest, dm.session_referrer(memory_lab.session))
    assert not Cleaner(memory_lab).collect().pins


def counted_rows(lab: Lab) -> dict[str, int]:
    found: dict[str, Any] = {}
    for row in lab.rows():
        found[row[0]] = found.get(row[0], 0) + 1
    return found


def test_rows_stay_flat_while_futures_come_and_go(memory_lab: Lab) -> None:
    cleaner = Cleaner(memory_lab)
    worker = memory_lab.worker()
    sizes = []
    for _ in range(40):
        session = os.urandom(16)
        cleaner.beat(session)
        first = dm.FutureSpec(b"code", session=session)
        memory_lab.submit(first, dm.FutureSpec(b"code", session=session, dependencies=(first.id,)))
        for _ in range(2):
            realize(memory_lab, worker, FutureResult(None, 9, "o"))
        memory_lab(dm.read_mailbox, worker.incarnation)
        _, cursor = memory_lab(dm.read_mailbox, worker.incarnation)
        memory_lab(dm.clear_mailbox, worker.incarnation, cursor)
        cleaner.later(GRACE)
        cleaner.collect()
        sizes.append(sum(counted_rows(memory_lab).values()))
    assert max(sizes[25:]) <= max(sizes[10:25]) + 5, sizes
