"""A cluster that a release before wrote is read as it is, goes on, and keeps every invariant; that release is refused from then on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from datamodel_lab.lab import Lab

import fdb_datamodel as dm
from fdb_datamodel import Capacity, FutureState, Requirements, WorkerFencedError
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.elements import encode_id
from fdb_datamodel.rows.space import layout_of
from fdb_datamodel.rows.table import FORMAT
from fdb_schema import NewerFormatError, check_format, fdb_error_code, set_many, unpack
from idempotent_txn import run

STORED = Path(__file__).parent / "datamodel_lab" / "format1.json"
ROOM = Capacity(Requirements(8, "8GiB", 1, named={"db": 4, "x": 4}))
OLD_WORKER = dm.WorkerId("127.0.0.1", 1, b"w" * 16)


class Earlier:
    """A cluster with the rows that the last release of format 1 left, while a worker ran: its futures by what they are."""

    def __init__(self) -> None:
        self.lab = Lab()
        self.lab.session = b"s" * 16
        found = json.loads(STORED.read_text())
        self.ids = {name: bytes.fromhex(one) for name, one in found["ids"].items()}
        prefix = self.lab.space.pack(())
        for key, value in found["rows"]:
            self.lab.set_row(prefix + bytes.fromhex(key), bytes.fromhex(value))

    def open(self) -> None:
        self.lab(dm.open_cluster)

    def info(self, name: str) -> dm.FutureInfo:
        return self.lab.info(self.ids[name])

    def said(self) -> dict[str, Any]:
        """What is told of each future."""
        return {
            name: (info.state, info.name, info.attempts, info.charged, info.copies, info.requirements, info.result)
            for name in self.ids
            for info in [self.info(name)]
        }


@pytest.fixture
def earlier() -> Earlier:
    return Earlier()


def test_it_says_of_its_futures_what_it_said(earlier: Earlier) -> None:
    said = earlier.said()
    assert {name: (row[0].value, row[1], row[2]) for name, row in said.items()} == {
        "inline": ("realized", "task", 1),
        "stored": ("realized", "", 1),
        "failed": ("failed", "", 1),
        "again": ("claimed", "", 3),
        "running": ("claimed", "runs", 1),
        "waiting": ("waiting", "", 0),
        "plain": ("unclaimed", "named task", 1),
        "retried": ("unclaimed", "", 1),
        "large": ("unclaimed", "", 0),
        "gpu": ("unclaimed", "", 0),
        "db": ("unclaimed", "", 0),
        "db large": ("unclaimed", "", 0),
        "put": ("realized", "thing", 1),
    }
    assert [(len(said[name][4]), said[name][4][0].name) for name in ("inline", "stored")] == [(1, ""), (1, "object")]
    earlier.open()
    assert earlier.said() == said
    assert {counted.name: counted.attempts for counted in earlier.lab(dm.census_page)[0] if counted.name} == {
        row[1]: row[2] for row in said.values() if row[1]
    }


def test_its_workers_are_fenced_and_it_is_refused_from_then_on(earlier: Earlier) -> None:
    assert earlier.lab(check_format, "futures", 1) == 1
    earlier.open()
    assert unpack(earlier.lab.rows()["format", "futures"]) == FORMAT
    with pytest.raises(NewerFormatError, match=f"has format {FORMAT}, this release reads up to 1: upgrade"):
        earlier.lab(check_format, "futures", 1)
    with pytest.raises(WorkerFencedError):
        earlier.lab.claim(OLD_WORKER)
    assert earlier.lab.validate() == []
    earlier.lab.reap()
    again = earlier.info("again")
    assert (again.state, again.attempts, again.charged) == (FutureState.unclaimed, 3, 2), "given back, and not charged"
    assert earlier.lab.validate() == []
    worker = earlier.lab.worker()
    earlier.open()
    assert [status.id for status in earlier.lab(dm.list_workers)] == [worker], "once is enough"


@pytest.mark.parametrize("port", [1, 2, 300])
def test_a_worker_of_it_that_registers_meanwhile_is_fenced_too(earlier: Earlier, port: int) -> None:
    """At an address between those that are known, behind them, or at one of them in another one's place."""
    earlier.lab.set_row(layout_of(earlier.lab.space).heartbeat("127.0.0.1", 200), codec.pack_heartbeat(dm.Heartbeat()))
    late = dm.WorkerId("127.0.0.1", port, b"l" * 16)
    keys, db = layout_of(earlier.lab.space), earlier.lab.db
    opener, other = db.create_transaction(), db.create_transaction()
    dm.open_cluster(opener, earlier.lab.space)
    assert check_format(other, earlier.lab.space, "futures", 1) == 1
    other[keys.incarnation(late.ip, late.port)] = codec.pack_worker_info(late.incarnation, dm.WorkerInfo())
    other.commit().wait()
    with pytest.raises(Exception) as caught:
        opener.commit().wait()
    assert fdb_error_code(caught.value) == 1020
    earlier.open()
    with pytest.raises(WorkerFencedError):
        earlier.lab.claim(late)
    assert earlier.lab(dm.list_workers) == []


def test_workers_that_beat_keep_nobody_from_opening_it(earlier: Earlier) -> None:
    opener, beat = (earlier.lab.db.create_transaction() for _ in range(2))
    dm.open_cluster(opener, earlier.lab.space)
    dm.heartbeat(beat, earlier.lab.space, OLD_WORKER, dm.Heartbeat(9))
    beat.commit().wait()
    opener.commit().wait()
    assert earlier.lab(dm.list_workers) == []


class CallsCounted:
    """A transaction that counts the reads that are awaited one after another, each a round trip to a cluster."""

    def __init__(self, tr: Any) -> None:
        self.tr = tr
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tr, name)

    def get_many(self, keys: Any, snapshot: bool = False) -> Any:
        self.calls += 1
        return self.tr.get_many(keys, snapshot)

    def read_range(self, *given: Any) -> Any:
        self.calls += 1
        return self.tr.read_range(*given)

    def set_many(self, items: Any) -> None:
        self.tr.set_many(items)

    def add_read_conflict_keys(self, keys: Any) -> None:
        self.tr.add_read_conflict_keys(keys)


def opened_in_calls(earlier: Earlier) -> int:
    tr = CallsCounted(earlier.lab.db.create_transaction())
    dm.open_cluster(tr, earlier.lab.space)  # type: ignore[arg-type]
    tr.tr.commit().wait()
    assert earlier.lab(check_format, "futures", 99) == FORMAT
    return tr.calls


def test_thousands_of_workers_and_lanes_of_it_are_a_few_reads(earlier: Earlier) -> None:
    """A transaction on a cluster has five seconds for all of them together."""
    keys, many = layout_of(earlier.lab.space), 1000
    base = len(earlier.lab(dm.list_workers))
    workers = [dm.WorkerId("10.0.0.1", port, port.to_bytes(16, "big")) for port in range(1, many + 1)]
    rows = []
    for at in workers:
        rows.append((keys.incarnation(at.ip, at.port), codec.pack_worker_info(at.incarnation, dm.WorkerInfo())))
        rows.append((keys.heartbeat(at.ip, at.port), codec.pack_heartbeat(dm.Heartbeat())))
    needless = [
        base
        + keys.lane(((f"host-{number}", 1000),))[len(keys.cpu) :]
        + b"\x14\x15\x01\x14\x14"
        + encode_id(OLD_WORKER.incarnation)
        for base in (keys.ram, keys.gpu)
        for number in range(many)
    ]
    run(earlier.lab.db, set_many, [*rows, *((key, b"") for key in needless)])
    assert len(earlier.lab(dm.list_workers)) == many + base
    assert opened_in_calls(earlier) < many / 10
    assert earlier.lab(dm.list_workers) == []
    assert not set(needless).intersection(earlier.lab.packed())
    dead = {row[1:] for row in earlier.lab.rows() if row[0] == "dead_workers"}
    assert dead.issuperset((at.ip, at.port, at.incarnation) for at in workers)


def test_what_a_worker_of_it_claims_is_stepped_over(earlier: Earlier) -> None:
    """However many rows come before those of the next address; and keys of nobody's between them."""
    keys, lab = layout_of(earlier.lab.space), earlier.lab
    workers = [dm.WorkerId("10.0.0.1", port, port.to_bytes(16, "big")) for port in range(1, 6)]
    rows = [(keys.workers + b"\x02junk\x00" + bytes([number]), b"") for number in range(100)]
    for at in workers:
        rows.append((keys.incarnation(at.ip, at.port), codec.pack_worker_info(at.incarnation, dm.WorkerInfo())))
        claims = keys.claim_rows(at.ip, at.port)
        rows += [
            (claims + encode_id(number.to_bytes(16, "big")), codec.pack_claim_row(at, bytes(10)))
            for number in range(1000)
        ]
    run(lab.db, set_many, rows)
    assert [status.id for status in lab(dm.list_workers, count=False)] == [*workers, OLD_WORKER]
    assert opened_in_calls(earlier) < 20
    assert lab(dm.list_workers) == []


def test_its_futures_run_to_their_end(earlier: Earlier) -> None:
    worker = earlier.lab.worker(2, total=ROOM.free, slots=4)
    earlier.lab.reap()
    assert earlier.lab.validate() == []
    starts: dict[bytes, int] = {}
    while claims := earlier.lab.claim(worker, 3, ROOM):
        assert earlier.lab.validate() == []
        starts.update({claim.id: claim.attempt for claim in claims})
        earlier.lab(dm.realize_futures, [(claim, b"r") for claim in claims])
        assert earlier.lab.validate() == []
    more = {"again": 4, "running": 2, "waiting": 1, "plain": 2, "retried": 2}
    assert starts == {earlier.ids[name]: number for name, number in more.items()} | {
        earlier.ids[name]: 1 for name in ("large", "gpu", "db", "db large")
    }
    assert not any(row[0].startswith("resource_requirements") for row in earlier.lab.rows())
    for future_id in earlier.ids.values():
        earlier.lab(dm.delete_future, future_id)
    left = {row[0] for row in earlier.lab.rows()}
    assert left <= {"futures", "workers", "clock", "format", "mailboxes", "bells"}
    assert earlier.lab.validate() == []
