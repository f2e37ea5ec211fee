"""A key that no release wrote ends no scan, is taken for nothing, and hides nothing behind it; validate names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from datamodel_lab.lab import Lab
from fdb import tuple as fdb_tuple

import fdb_datamodel as dm
from fdb_datamodel import Capacity, FutureResult, FutureState, Requirements, streams
from fdb_datamodel.coordination import events, queues, semaphores
from fdb_datamodel.errors import StrayKeyError
from fdb_datamodel.lifecycle.pool import scan_pool
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.elements import decode_id, decode_int, encode_id, split_id
from fdb_datamodel.rows.forms import is_known
from fdb_datamodel.rows.ids import show_id
from fdb_datamodel.rows.pages import read_futures
from fdb_datamodel.rows.space import EDGE, FUTURE, QUEUE, SESSION, layout_of
from fdb_datamodel.rows.table import SUBSPACES
from fdb_datamodel.views.reading import ids_beginning
from fdb_schema import put_blob
from idempotent_txn import run

_ID = encode_id(b"\x01\x90" + bytes(6) + b"\x80" + bytes(7))
_SHAPE = b"\x14\x14\x14\x14"

TAILS = [
    b"",
    b"\x00",
    b"\x01",
    b"\x01\x01\x00",
    b"\x02x\x00",
    b"\x05\x05\x05",
    b"\x0c\x01",
    b"\x13\xfe" + _SHAPE[1:] + _ID,
    b"\x14\x14\x13\xfe\x14" + _ID,
    b"\x15",
    b"\x16\x00\x01" + _SHAPE[1:] + _ID,
    b"\x15\x05" * 3 + b"\x14",
    b"\x15\x05" * 4 + _ID + b"\x00",
    b"\x1d" + bytes([9]) + b"\x01" * 9 + _SHAPE[1:] + _ID,
    _SHAPE,
    _SHAPE + b"\x01short\x00",
    _SHAPE + encode_id(bytes(15) + b"\x01\x01"),
    _SHAPE + _ID[:-1],
    _SHAPE + _ID + b"\x00",
    _SHAPE + _ID.replace(b"\x00\xff", b"\x00"),
    b"\x33" + b"\x00" * 11,
    b"\x33" + b"\xff" * 12 + _ID,
    _ID[:-1],
    _ID + b"\x00",
    _ID + b"\x02junk\x00",
    _ID + b"\xfe",
    b"\xfe",
    b"\xfe\xfe\xfe\xfe",
]

PLACES: dict[str, tuple[str, Callable[[Cluster], bytes]]] = {}


class Cluster:
    """Futures in most places, and all that walks over them."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.at = layout_of(lab.space)
        lab.clock(1)
        self.worker, self.dead = lab.worker(1), lab.worker(2)
        lab(dm.beat_session, lab.session, 1)
        held, up, *_ = specs = [
            lab.spec(),
            lab.spec(total_timeout=1000.0),
            lab.spec(),
            lab.spec(locality=dm.Locality(self.worker)),
        ]
        down = lab.spec(dependencies=(up.id,))
        lab.submit(held)
        lab(dm.claim_future, held.id, self.dead)
        lab.submit(*specs[1:], down)
        lab.kill(self.dead)
        self.held, self.up, self.stream, self.near, self.down = (spec.id for spec in (*specs, down))
        self.all = [self.held, self.up, self.stream, self.near, self.down]
        self.other = b"o" * 16
        lab(dm.beat_session, self.other, 1)
        lab(dm.subscribe, self.other, [self.up])
        lab(dm.hold_futures, [self.up], outer=self.down)
        lab(dm.write_output, self.up, dm.TaskOutput(1, b"hello", 5))
        lab(queues.make_queue, "q", None)
        lab(queues.put_items, "q", [queues.Item(b"1"), queues.Item(b"2"), queues.Item(b"3")])
        assert lab(queues.get_items, "q", 1, self.other, grant=b"g" * 16)[0].data == b"1"
        lab(semaphores.make_semaphore, "s", 1)
        assert lab(semaphores.take_permit, "s", b"p" * 16, self.other)
        lab(events.write_event, "e", True)
        assert lab.validate() == []
        self.planted: dict[str, bytes] = {}

    def plant(self, subspace: str, prefix: bytes, tails: list[bytes] = TAILS) -> None:
        """Strays of all shapes under a prefix, and beside each id that follows it."""
        ids = [encode_id(one) + b"\x00" for one in self.all]
        between = [encode_id(one[:-1] + bytes(((one[-1] + 1) & 0xFF,)))[:-1] for one in self.all]
        for tail in (*tails, *ids, *between):
            key = prefix + tail
            if key.startswith(self.at.bases[subspace]) and not is_known(self.at, subspace, key):
                self.lab.set_row(key, b"")
                self.planted[f"row {key!r} of {subspace}"] = key

    def look(self) -> None:
        """What shows people the cluster."""
        lab = self.lab
        for limit in (1, 100):
            for newest_first in (False, True):
                shown: list[bytes] = []
                after: bytes | None = None
                while True:
                    page, after = lab(dm.list_futures, after, limit, newest_first=newest_first)
                    shown += [info.id for info in page]
                    if after is None:
                        break
                assert sorted(shown) == sorted(self.all)
        counted, after = lab(dm.census_page, None, 64)
        while after is not None:
            more, after = lab(dm.census_page, after, 64)
            counted += more
        assert sorted(one.id for one in counted) == sorted(self.all)
        assert [status.id for status in lab(dm.list_workers)] == [self.worker]
        assert {seen.id for seen in lab(dm.session_sightings)} == {lab.session, self.other}
        assert lab(dm.list_downstreams, self.up) == [self.down]
        assert lab(ids_beginning, self.up.hex()) == [self.up]
        assert set(lab(ids_beginning, "0", 10)) - {decode_id(_ID)} == set(self.all)
        assert lab.info(self.down).waiting_on == (self.up,) or lab.state(self.down) != FutureState.waiting
        assert [one.data for one in lab(dm.read_output, self.up)] == [b"hello"]

    def sweep(self, seconds: float = 2) -> None:
        now = self.lab.clock(seconds)
        for _ in range(50):
            if not self.lab(dm.advance, now).more:
                break
        else:
            raise AssertionError("advance has no end")
        for _ in range(50):
            if not self.lab(dm.reap):
                return
        raise AssertionError("reap has no end")

    def claim(self) -> dict[bytes, dm.Claim]:
        claims = self.lab(dm.finish_turn, self.worker, [], Capacity(Requirements(cpu=2, ram=1 << 30)), 10)
        return {claim.id: claim for claim in claims}

    def work(self) -> None:
        """Everything is claimed, run and finished, and everybody is told."""
        lab = self.lab
        assert [item.data for item in lab(queues.get_items, "q", 9, lab.session)] == [b"2", b"3"]
        claims = self.claim()
        assert set(claims) == {self.held, self.up, self.stream, self.near}
        assert {claim.id for claim in lab(dm.claims_of, self.worker)} == set(claims)
        assert lab(dm.begin_wait, claims[self.held], [self.up]) == ()
        assert lab(dm.begin_wait, claims[self.up], [self.held]), "the cycle is found"
        lab(dm.end_wait, claims[self.held])
        writer = lab(streams.begin_stream, self.stream, claims[self.stream].attempt, self.worker.incarnation)
        assert not lab(streams.read_items, self.stream, 0, 10, self.other).items
        lab(streams.add_items, writer, [(n, FutureResult(b"%d" % n)) for n in range(300)])
        assert "stream" in {entry.kind for entry in lab.mail(self.other)}
        page = lab(streams.read_items, self.stream, 0, 300, self.other)
        assert [item.inline for item in page.items] == [b"%d" % n for n in range(300)]
        assert lab(streams.lost_items, self.stream, 0, 300) == []
        for one in (self.held, self.stream, self.near):
            lab(dm.realize_future, claims[one], b"r")
        cursor, told = b"", set()
        for last in (False, True):
            entries, cursor = lab(dm.read_mailbox, lab.session, cursor)
            told |= {entry.id for entry in entries if entry.kind == "realized"}
            if not last:
                lab(dm.realize_future, claims[self.up], b"r")
        self.sweep()
        (claim,) = self.claim().values()
        assert claim.id == self.down
        lab(dm.realize_future, claim, b"r")
        told |= {entry.id for entry in lab(dm.read_mailbox, lab.session, cursor)[0]}
        assert told == set(self.all)
        assert any(entry.id == self.up and entry.kind == "realized" for entry in lab.mail(self.other))
        assert self.claim() == {}
        self.sweep(3)
        assert {lab.state(one) for one in self.all} == {FutureState.realized}

    def collect(self) -> int:
        """The sessions end; passes of a collector until everything it may delete is deleted."""
        self.lab(dm.close_session, self.lab.session)
        self.lab(dm.close_session, self.other)
        collector = dm.Collector(self.lab.db, self.lab.space, grace=1.0, tombstones=1000.0)
        deleted = 0
        for step in range(8):
            self.lab.clock(100 + 10 * step)
            deleted += collector.whole_pass().futures
        assert [item.data for item in self.lab(queues.get_items, "q", 9, self.other)] == [b"1"], "it came back"
        assert self.lab(semaphores.semaphore_status, "s").free == 1
        assert self.lab(events.read_event, "e").is_set
        return deleted

    def check_told(self) -> None:
        """All that is broken is what was planted and is still there."""
        there = {subject for subject, key in self.planted.items() if self.lab.db[key] is not None}
        found = self.lab.validate()
        assert {one.invariant for one in found} <= {"known-keys"}
        nobody = f"future {show_id(decode_id(_ID))}"  # of which there are rows, where strays begin with an id
        assert {one.subject for one in found} - {nobody} == there


for _subspace in SUBSPACES:
    PLACES[_subspace] = (_subspace, lambda c, name=_subspace: c.at.bases[name])
PLACES |= {
    "a shape": ("resource_requirements_cpu", lambda c: c.at.shape_prefix((0, 0, 0))),
    "a priority": ("resource_requirements_cpu", lambda c: c.at.shape_prefix((0, 0, 0)) + b"\x14"),
    "a shape that doesn't fit": ("resource_requirements_cpu", lambda c: c.at.shape_prefix((9000, 0, 0)) + b"\x14"),
    "a worker": ("workers", lambda c: c.at.workers + c.at.worker("127.0.0.1", 1)),
    "claims": ("workers", lambda c: c.at.claim_rows("127.0.0.1", 1)),
    "claims made together": ("workers", lambda c: c.at.claim_rows("127.0.0.1", 1) + encode_id(c.up) + b"\x33"),
    "claims of a dead worker": ("workers", lambda c: c.at.claim_rows("127.0.0.1", 2)),
    "assignments": ("worker_assignments", lambda c: c.at.assignment_rows("127.0.0.1", 1)),
    "assignments of a dead worker": ("worker_assignments", lambda c: c.at.assignment_rows("127.0.0.1", 2)),
    "a future": ("futures", lambda c: c.at.futures + encode_id(c.up)),
    "what a future waits for": ("dependencies", lambda c: c.at.dependencies + encode_id(c.down)),
    "what one waits for that doesn't": ("dependencies", lambda c: c.at.dependencies + encode_id(c.up)),
    "listeners of a future": ("listeners", lambda c: c.at.listeners + encode_id(c.up)),
    "edges of a future": ("listeners", lambda c: c.at.listeners + encode_id(c.up) + EDGE),
    "subscribers of a future": ("listeners", lambda c: c.at.listeners + encode_id(c.up) + SESSION),
    "waits of a future": ("waits", lambda c: c.at.waits + encode_id(c.held)),
    "holders of a future": ("references", lambda c: c.at.references + encode_id(c.up)),
    "sessions that hold a future": ("references", lambda c: c.at.references + encode_id(c.up) + SESSION),
    "results that hold a future": ("references", lambda c: c.at.references + encode_id(c.up) + FUTURE),
    "the lineage of a future": ("lineage", lambda c: c.at.lineage + encode_id(c.up)),
    "copies of a result": ("results", lambda c: c.at.results + encode_id(c.up)),
    "copies of a result by stamp": ("results", lambda c: c.at.results + encode_id(c.up) + b"\x33"),
    "children": ("children", lambda c: c.at.children + encode_id(c.up)),
    "a stream": ("streams", lambda c: c.at.streams + encode_id(c.stream)),
    "items": ("streams", lambda c: c.at.stream(encode_id(c.stream), "item")),
    "numbers of items": ("streams", lambda c: c.at.stream_item(encode_id(c.stream), 1)),
    "readers": ("streams", lambda c: c.at.stream(encode_id(c.stream), "reader")),
    "an actor": ("actors", lambda c: c.at.actors + encode_id(c.up)),
    "output": ("logs", lambda c: c.at.logs + encode_id(c.up)),
    "a queue": ("queues", lambda c: c.at.shared("queues", "q")),
    "items of a queue": ("queues", lambda c: c.at.shared("queues", "q", "item")),
    "items by stamp": ("queues", lambda c: c.at.shared("queues", "q", "item") + b"\x33"),
    "a line": ("queues", lambda c: c.at.shared("queues", "q", "getters")),
    "what is held of a queue": ("queues", lambda c: c.at.shared("queues", "q", "held")),
    "queues that hold a future": ("references", lambda c: c.at.references + encode_id(c.up) + QUEUE),
    "a semaphore": ("semaphores", lambda c: c.at.shared("semaphores", "s")),
    "permits": ("semaphores", lambda c: c.at.shared("semaphores", "s", "held")),
    "a line for permits": ("semaphores", lambda c: c.at.shared("semaphores", "s", "getters")),
    "an event": ("events", lambda c: c.at.event("e")),
    "mail": ("mailboxes", lambda c: c.at.mailbox(c.lab.session)),
    "mail by stamp": ("mailboxes", lambda c: c.at.mailbox(c.lab.session) + b"\x33"),
    "bells": ("bells", lambda c: c.at.session_bells),
    "a due time": ("timers", lambda c: c.at.timers + b"\x15\x05"),
    "timers of a future": ("timers", lambda c: c.at.timers + b"\x15\x05" + encode_id(c.up)),
}
_HOLD = {
    "references": 5,
    "lineage": 5,
    "holders of a future": 1,
    "sessions that hold a future": 1,
    "results that hold a future": 1,
    "queues that hold a future": 1,
    "the lineage of a future": 1,
}


@pytest.mark.parametrize("place", PLACES)
def test_everything_goes_on_past_strays_of_every_shape(broken_lab: Lab, place: str) -> None:
    cluster = Cluster(broken_lab)
    subspace, prefix = PLACES[place]
    cluster.plant(subspace, prefix(cluster))
    assert cluster.planted
    cluster.check_told()
    cluster.look()
    cluster.sweep()
    cluster.work()
    cluster.look()
    assert cluster.collect() == len(cluster.all) - _HOLD.get(place, 0), "one that something unknown may hold is kept"
    cluster.check_told()


@pytest.mark.parametrize("tail", TAILS)
def test_one_stray_in_the_pool_is_stepped_over_alone(broken_lab: Lab, tail: bytes) -> None:
    cluster = Cluster(broken_lab)
    cluster.plant("resource_requirements_cpu", cluster.at.cpu, [tail])
    cluster.sweep()
    cluster.work()
    cluster.check_told()


def scan(lab: Lab, limit: int, **options: Any) -> Any:
    capacity = Capacity(Requirements(cpu=8, ram=1 << 30), **options)
    return run(lab.db, lambda tr: scan_pool(Changes(tr, lab.space), capacity, capacity.free.shape, limit))


@pytest.mark.parametrize("wary", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 100])
def test_more_strays_than_a_page_hide_nothing(broken_lab: Lab, limit: int, wary: bool) -> None:
    lab = broken_lab
    keys = layout_of(lab.space)

    def plant(tr: Any) -> None:
        for n in range(2500):
            tr.set(keys.cpu + b"\x00%05d" % n, b"")
            tr.set(keys.shape_prefix((0, 0, 0)) + b"\x14\x01%05d" % n, b"")
            tr.set(keys.futures + b"\x00%05d" % n, b"")

    run(lab.db, plant)
    small, large = lab.spec(), lab.spec(requirements=Requirements(cpu=1))
    lab.submit(small, large)
    found = scan(lab, limit, wary=wary)
    assert [entry.chosen.id for entry in found.entries] == [small.id, large.id][:limit]
    shown, _ = lab(dm.list_futures, None, 1)
    assert [info.id for info in shown] == [small.id]
    page = run(lab.db, lambda tr: read_futures(Changes(tr, lab.space), keys.futures, keys.futures + b"\xff", 100))
    assert [f.id for f in page.futures] == [small.id, large.id][: len(page.futures)]
    assert len(page.strays) == 2500


def test_a_shape_of_strays_only_is_nothing_to_wait_for(broken_lab: Lab) -> None:
    lab = broken_lab
    prefix = layout_of(lab.space).shape_prefix((16_000, 0, 0)) + b"\x14"
    for tail in (b"", b"\x01junk\x00", _ID + b"\x00"):
        lab.set_row(prefix + tail, b"")
    found = scan(lab, 10, survey=True, total=Requirements(cpu=32, ram=1 << 30))
    assert (found.entries, found.blocked, found.passed) == ([], (), False)
    wanted = lab.spec(requirements=Requirements(cpu=16))
    lab.submit(wanted)
    found = scan(lab, 10, survey=True, total=Requirements(cpu=32, ram=1 << 30))
    assert found.blocked == (Requirements(cpu=16),)


@pytest.mark.parametrize("entries", [2, 260])
def test_a_shape_that_only_some_fit_is_looked_through_past_strays(broken_lab: Lab, entries: int) -> None:
    lab = broken_lab
    ram = (1 << 30) + 100
    fits = lab.spec(requirements=Requirements(ram=ram - 50))
    specs = [fits, *(lab.spec(requirements=Requirements(ram=ram + 1000)) for _ in range(entries))]
    lab.submit(*specs)
    prefix = layout_of(lab.space).shape_prefix(Requirements(ram=ram).shape)
    for n in range(300):
        lab.set_row(prefix + b"\x00%03d" % n, b"")
        lab.set_row(prefix + b"\xfe%03d" % n, b"")
    capacity = Capacity(Requirements(cpu=8, ram=ram), total=Requirements(cpu=8, ram=ram * 2))
    found = run(lab.db, lambda tr: scan_pool(Changes(tr, lab.space), capacity, capacity.free.shape, 10))
    assert [entry.chosen.id for entry in found.entries] == [fits.id]
    assert found.passed


def test_an_entry_without_a_future_or_of_a_claimed_one_starts_nothing(broken_lab: Lab) -> None:
    lab = broken_lab
    worker, other = lab.worker(1), lab.worker(2)
    first, last = lab.spec(name="first"), lab.spec()
    lab.submit(first)
    (claim,) = lab.claim(worker)
    lab.submit(last)
    prefix = layout_of(lab.space).shape_prefix((0, 0, 0)) + b"\x14"
    lab.set_row(prefix + _ID, b"")
    lab.set_row(prefix + encode_id(first.id), b"")
    assert {one.subject for one in lab.validate()} == {f"future {show_id(one)}" for one in (decode_id(_ID), first.id)}
    assert [one.id for one in lab.claim(other)] == [last.id]
    assert lab.validate() == [], "taken out, they are gone"
    lab(dm.realize_future, claim, b"r")


def test_a_blob_and_a_pin_that_nobody_wrote_keep_no_other_from_being_judged(broken_lab: Lab) -> None:
    lab = broken_lab
    lab.clock(1)
    blobs = lab.space.blobs
    digest = put_blob(run, lab.db, lab.space, b"c" * 200_000, session=b"session:" + b"g" * 16)
    for key in (blobs.key() + b"\xfe", blobs.key(), blobs.pack(("x", "pin", b"x")), blobs.pack((5,)), blobs["é"].key()):
        lab.set_row(key, b"")
    collector = dm.Collector(lab.db, lab.space)
    assert collector.whole_pass().pins == 1
    digest = put_blob(run, lab.db, lab.space, b"d" * 200_000, session=b"session:" + b"g" * 16)
    lab.set_row(blobs[digest]["pin"].pack(("text",)), b"")
    lab.set_row(blobs[digest]["pin"].key() + b"\x01", b"")
    assert collector.whole_pass().pins == 1
    assert any(key.startswith(blobs[digest].key()) for key in map(lab.space.pack, _readable(lab))), "it may be needed"


def _readable(lab: Lab) -> list[tuple[Any, ...]]:
    span = lab.space.blobs.range(())
    found = []
    for key, _ in lab.db[span.start : span.stop]:
        try:
            found.append(lab.space.unpack(key))
        except (ValueError, IndexError):
            continue
    return found


def test_what_is_decoded_is_what_was_encoded_and_nothing_else() -> None:
    for number in (0, 1, 255, 256, 1 << 63, -1, -255, -256, -(1 << 63)):
        packed = fdb_tuple.pack((number,))
        assert decode_int(b"k" + packed, 1) == (number, 1 + len(packed))
        for cut in range(1, len(packed)):
            with pytest.raises(StrayKeyError):
                decode_int(packed[:cut], 0)
    for one in (bytes(16), b"\xff" * 16, bytes(range(16)), b"\x00\xff" * 8):
        assert decode_id(encode_id(one)) == one
        assert split_id(b"key" + encode_id(one) + b"rest", 3) == (encode_id(one), b"rest")
        for wrong in (encode_id(one)[:-1], encode_id(one) + b"\x00", encode_id(one)[1:], encode_id(one[1:]), b""):
            with pytest.raises(StrayKeyError, match="nothing of this data model wrote it"):
                decode_id(wrong)
    for wrong in (b"", b"\x16\x00\x01", b"\x13\xff", b"\x0b" + bytes(9), b"\x1d\x01\x01", b"\x02x\x00"):
        with pytest.raises(StrayKeyError):
            decode_int(wrong, 0)
