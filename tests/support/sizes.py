"""Each kind of transaction of `mainspring.size.costs`, made over an engine in memory with few and with many items, and counted."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from typing import Any

import fdb_datamodel as dm
from fdb_schema import ClusterClock, ClusterSpace, open_database
from futures_worker.liveness import see_workers
from futures_worker.worker.deciding.instructions import RunTurn
from futures_worker.worker.housekeeping import Housekeeping
from futures_worker.worker.running.ledger import Ledger
from idempotent_txn import run
from lease_locks import LeaseManager
from mainspring.size.costs import Cost, Kind
from s3heap_tender import Heap, HeapStore, Scheduler, SysDb, Tender
from s3heap_tender.claims.sessions import LocalSessions
from support.counting import Tally, counted

FEW, MANY = 10, 60
PASSES = 4


class Site:
    """A cluster with one worker and one client."""

    def __init__(self) -> None:
        self.db = open_database(f"memory:size-{uuid.uuid4().hex}")
        self.space = ClusterSpace("default")
        self.session = os.urandom(16)
        self.worker = self(dm.register_worker, dm.WorkerId("10.0.0.1", 7000, dm.new_incarnation()), dm.WorkerInfo())
        self(dm.beat_session, self.session, 1, "host", 1)

    def __call__(self, fn: Callable[..., Any], *args: Any, **named: Any) -> Any:
        return run(self.db, fn, self.space, *args, strategy="off", **named)

    def specs(self, number: int, **named: Any) -> list[dm.FutureSpec]:
        return [dm.FutureSpec(b"c" * 32, session=self.session, name="task", **named) for _ in range(number)]

    def submit(self, number: int, **named: Any) -> list[bytes]:
        return self(dm.submit_futures, self.specs(number, **named))

    def claim(self, number: int) -> list[dm.Claim]:
        return self(dm.claim_futures, self.worker, dm.Capacity(), number)

    def end(self, claims: list[dm.Claim], limit: int = 0) -> list[dm.Claim]:
        outcomes = [dm.Outcome.realized(claim, b"") for claim in claims]
        return self(dm.finish_turn, self.worker, outcomes, dm.Capacity(), limit)

    def read_mail(self) -> bytes:
        def body(tr: Any, space: Any) -> bytes:
            tr.watch(dm.session_bell(space, self.session))
            return dm.read_mailbox(tr, space, self.session)[1]

        return self(body)

    def forget(self, ids: list[bytes]) -> None:
        self(dm.release_futures, self.session, ids)


def submit(number: int) -> Tally:
    site = Site()
    with counted(site.db) as tally:
        site.submit(number)
    return tally


def arguments(number: int) -> Tally:
    site = Site()
    with counted(site.db) as tally:
        site.submit(number, args=b"a")
    with counted(site.db) as other:
        site.submit(number)
    return tally.without(other)


def turn(number: int) -> Tally:
    site = Site()
    site.submit(2 * number)
    claims = site.claim(number)
    with counted(site.db) as tally:
        assert len(site.end(claims, number)) == number
    return tally


def mail(number: int) -> Tally:
    site = Site()
    site.submit(number)
    site.end(site.claim(number))
    with counted(site.db) as tally:
        site.read_mail()
    return tally


def clear(number: int) -> Tally:
    site = Site()
    site.submit(number)
    site.end(site.claim(number))
    cursor = site.read_mail()
    with counted(site.db) as tally:
        site(dm.clear_mailbox, site.session, cursor)
    return tally


def release(number: int) -> Tally:
    site = Site()
    ids = site.submit(number)
    site.end(site.claim(number))
    with counted(site.db) as tally:
        site.forget(ids)
    return tally


def edge(number: int) -> Tally:
    """To submit what takes one result, and to end what it takes."""
    site, plain = Site(), Site()
    ids = site.submit(number)
    claims, others = site.claim(number), plain.claim(len(plain.submit(number)))
    with counted(site.db) as tally:
        site(dm.submit_futures, [spec for one in ids for spec in site.specs(1, dependencies=(one,))])
        site.end(claims)
    with counted(plain.db) as other:
        plain.submit(number)
        plain.end(others)
    return tally.without(other)


def collect(number: int) -> Tally:
    """All passes over what was let go, until the last tombstone is gone."""
    site = Site()
    ids = site.submit(number)
    site.end(site.claim(number))
    site(dm.clear_mailbox, site.session, site.read_mail())
    site.forget(ids)
    clock = ClusterClock(site.space)
    with counted(site.db) as tally:
        for _ in range(PASSES):
            run(site.db, clock.advance, strategy="off")
            clock.committed()
            dm.Collector(site.db, site.space, grace=0.0, tombstones=0.0).whole_pass()
    left = [row for row in site(lambda tr, space: list(tr.get_range(b"", b"\xff"))) if ids[0] in row.key]
    assert left == [], left
    return tally


def worker_beat(_: int) -> Tally:
    site = Site()
    with counted(site.db) as tally:
        Ledger(site.db, site.space, site.worker, lambda: None).beat(lambda counter: dm.Heartbeat(counter))
    return tally


def carried_beat(number: int) -> Tally:
    """What a sign of life adds to each turn that carries one."""

    def turns(beat: Any) -> Tally:
        site = Site()
        ledger = Ledger(site.db, site.space, site.worker, lambda: None)
        site.submit(number)
        with counted(site.db) as tally:
            for _ in range(number):
                assert ledger.take_turn(RunTurn([], dm.Capacity(), 1), beat)
        return tally

    return turns(dm.Heartbeat).without(turns(None))


def client_beat(_: int) -> Tally:
    site = Site()
    with counted(site.db) as tally:
        site(dm.beat_session, site.session, 2, "host", 1)
    return tally


def clock(_: int) -> Tally:
    site = Site()
    housekeeping = Housekeeping(site.db, site.space, me=lambda: site.worker, busy=lambda: False)
    housekeeping._first = True
    housekeeping.tick()
    with counted(site.db) as tally:
        housekeeping.tick()
    return tally


def look(number: int) -> Tally:
    """At all workers."""
    site = Site()
    for port in range(number):
        worker = site(dm.register_worker, dm.WorkerId("10.0.0.2", port + 1, dm.new_incarnation()), dm.WorkerInfo())
        site(dm.heartbeat, worker, dm.Heartbeat(1))
    with counted(site.db) as tally:
        site(see_workers)
    return tally


def lease(number: int) -> Tally:
    """To acquire, and to release it."""
    db = open_database(f"memory:size-{uuid.uuid4().hex}")
    with LeaseManager(db, "default", ttl=600.0) as locks:
        locks.acquire("before").release()
        with counted(db) as tally:
            for one in range(number):
                locks.acquire(f"lease-{one:04}").release()
    return tally


def lease_beat(number: int) -> Tally:
    """One sign of life for all leases of a process."""
    db = open_database(f"memory:size-{uuid.uuid4().hex}")
    with LeaseManager(db, "default", ttl=600.0) as locks:
        for one in range(number):
            locks.acquire(f"lease-{one:04}")
        locks.session.upkeep.renew(verify=False, timeout=10.0)
        with counted(db) as tally:
            locks.session.upkeep.renew(verify=False, timeout=10.0)
    return tally


def heap_turn(_: int) -> Tally:
    """Of a tender, where nothing was written."""
    site = Site()
    with SysDb(site.db, "default", shards=16, sessions=LocalSessions()) as sysdb:
        heap = Heap(HeapStore("memory:"), sysdb, threads=0, linger=0)
        tender = Tender(heap, sysdb)
        sysdb.create_task("p", "t", cadence=0)
        for _ in range(3):
            tender.turn(prune=False, reconcile=False)
        with counted(site.db) as tally:
            tender.turn(prune=False, reconcile=False)
    return tally


def collect_pass(_: int) -> Tally:
    """Over what there is nothing to collect of."""
    site = Site()
    collector = dm.Collector(site.db, site.space)
    collector.whole_pass()
    with counted(site.db) as tally:
        collector.whole_pass()
    return tally


def heap_run(number: int) -> Tally:
    """A write to each of so many partitions, and the run of a task that it triggers, by one tender and one scheduler."""
    site = Site()
    started: list[Any] = []
    with SysDb(site.db, "default", shards=1, sessions=LocalSessions()) as sysdb:
        heap = Heap(HeapStore("memory:"), sysdb, threads=0, linger=0)
        tender = Tender(heap, sysdb)
        scheduler = Scheduler(heap, sysdb, lambda task, gen, epoch: started.append(task), concurrency=0)
        for one in range(number):
            sysdb.create_task(f"p{one}", f"t{one}", cadence=0)
        with counted(site.db) as tally:
            for one in range(number):
                run(site.db, lambda tr, one=one: sysdb.record_write(tr, f"p{one}"))
            while len(started) < number:
                tender.turn(prune=False, reconcile=False)
                scheduler.turn()
    return tally


def least(made: Callable[[int], Tally], number: int) -> Cost:
    """What no beat of a thread came between of."""
    return min(made(number).cost() for _ in range(3))


def fixed(made: Callable[[int], Tally]) -> Kind:
    """What doesn't depend on a number."""
    return Kind(least(made, 1))


def line(made: Callable[[int], Tally]) -> Kind:
    """What depends on it: a straight line through two points."""
    few, many = least(made, FEW), least(made, MANY)
    each = Cost(*((b - a) / (MANY - FEW) for a, b in zip(few, many, strict=True)))
    return Kind(Cost(*(a - FEW * one for a, one in zip(few, each, strict=True))), each)


def slope(made: Callable[[int], Tally]) -> Kind:
    """What each adds, where the rest belongs to another kind."""
    return Kind(Cost(), line(made).each)


KINDS: dict[str, tuple[Callable[[Callable[[int], Tally]], Kind], Callable[[int], Tally]]] = {
    "submit": (line, submit),
    "arguments": (slope, arguments),
    "turn": (line, turn),
    "mail": (fixed, mail),
    "clear": (fixed, clear),
    "release": (line, release),
    "edge": (slope, edge),
    "collect": (slope, collect),
    "collect_pass": (fixed, collect_pass),
    "worker_beat": (fixed, worker_beat),
    "carried_beat": (slope, carried_beat),
    "client_beat": (fixed, client_beat),
    "clock": (fixed, clock),
    "look": (line, look),
    "lease": (slope, lease),
    "lease_beat": (fixed, lease_beat),
    "heap_run": (slope, heap_run),
    "heap_turn": (fixed, heap_turn),
}


def table() -> str:
    """`COSTS`, as the module has it."""

    def shown(cost: Cost) -> str:
        fields = (f"{name}={value:g}" for name, one in zip(Cost._fields, cost, strict=True) if (value := nearly(one)))
        return f"Cost({', '.join(fields)})"

    rows = []
    for name, (way, made) in KINDS.items():
        found = way(made)
        rows.append(
            f'    "{name}": Kind({shown(found.fixed)}' + (f", {shown(found.each)}" if any(found.each) else "") + "),"
        )
    return "\n".join(["COSTS: Final[dict[str, Kind]] = {", *rows, "}"])


def nearly(value: float) -> float:
    """To a tenth, or to two digits of what is large: ids and times take now a byte more, now one less."""
    return 0.0 if abs(value) < 0.06 else round(value, 1) if abs(value) < 50 else round(value, -1)


if __name__ == "__main__":
    print(table())
