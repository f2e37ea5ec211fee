"""`mainspring status`: what a cluster holds and does, in one look. Reads only; nothing is unpickled."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

import typer

from fdb_datamodel import FutureState, census_page, list_workers
from fdb_schema import DEFAULT_CLUSTER, ClusterSpace, read_clock, url_of
from fdb_schema.cli import ClusterOption, DbOption, JsonOption, hanging, in_terminal, print_json, print_rows, say
from fdb_schema.serving.figures import ago, counted, timestamp_us
from futures_worker.client.basis.diagnosis import clusters
from futures_worker.commands.listing import with_busy
from idempotent_txn import id_status, run
from lease_locks import LeaseManager, duty_reports
from lease_locks.grants.info import SERVICES
from mainspring.advice import placed
from mainspring.existing import open_existing
from s3heap_tender import SysDb, metrics
from s3heap_tender.rows.keys import HeapKeys

COUNTED = 200_000
DUTIES = "duty/"


def status(
    limit: Annotated[int, typer.Option(min=1, help="Count the states of at most so many futures.")] = COUNTED,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    as_json: JsonOption = False,
) -> None:
    """Show what a cluster holds and does: futures, workers, leases, the heap, the janitor's duties."""
    database = open_existing(db)
    found = picture(database, cluster, limit)
    if as_json:
        print_json(found)
        return
    _print(found, partial(placed, db=db, cluster=cluster))


def picture(database: Any, cluster: str, limit: int = COUNTED) -> dict[str, Any]:
    """Everything `status` shows, as plain values."""
    space = ClusterSpace(cluster)
    began = time.monotonic()
    clock_us = run(database, read_clock, space, strategy="off")
    answered = time.monotonic() - began
    states, more = count_futures(database, space, limit)
    locks = LeaseManager(database, cluster)
    leases = locks.list()
    duties = duty_reports(database, space)
    live = {
        sid.hex() for sid, _, _ in locks.sessions() if run(database, locks.session_dead, sid, strategy="off") is None
    }
    done = {lease.name for lease in leases if any(one.session in live for one in lease.maintainers)}
    return {
        "database": url_of(database),
        "cluster": cluster,
        "clusters": clusters(database),
        "answer_ms": round(answered * 1000, 3),
        "clock_seconds": clock_us / 1e6,
        "futures": {**states, "counted_all": not more},
        "workers": [worker_row(worker) for worker in run(database, list_workers, space, strategy="off")],
        "leases": {
            "held": len(leases),
            "of_services": sum(lease.name.startswith(SERVICES) for lease in leases),
            "waiters": sum(len(lease.waiters) for lease in leases),
        },
        "sessions": sum(1 for _ in locks.sessions()),
        "duties": {
            name: {"by": r.by, "rounds": r.rounds, "done": r.done, "failures": r.failures, "error": r.error, "at": timestamp_us(r.at_us),
                   "done_now": f"{DUTIES}{name}" in done}
            for name, r in sorted(duties.items())
        },
        "heap": heap_figures(database, cluster),
        "idempotency_ids": sum(store.ids for store in id_status(database)),
    }  # fmt: skip


def count_futures(database: Any, space: ClusterSpace, limit: int) -> tuple[dict[str, int], bool]:
    """Futures by state, at most about `limit`; and whether there are more."""
    counted: Counter[str] = Counter()
    after: bytes | None = None
    while True:
        page, after = run(database, census_page, space, after, strategy="off")
        counted.update(one.state.value for one in page)
        if after is None or sum(counted.values()) >= limit:
            return {state.value: counted[state.value] for state in FutureState}, after is not None


def worker_row(worker: Any) -> dict[str, Any]:
    """A worker in plain values."""
    beat = worker.heartbeat
    return {
        "address": f"{worker.id.ip}:{worker.id.port}",
        "host": worker.info.host,
        "pid": worker.info.pid,
        "slots": worker.info.slots,
        "free_slots": None if beat is None else beat.free_slots,
        "claims": worker.claims,
        "last_beat": None if beat is None else timestamp_us(beat.wall_us),
    }


def has_heap(database: Any, cluster: str) -> bool:
    """Whether a sysdb was ever opened in this cluster; opening one would make it."""
    key = HeapKeys(ClusterSpace(cluster)).config
    return bool(run(database, lambda tr: tr.snapshot.get(key).present(), strategy="off"))


def heap_figures(database: Any, cluster: str) -> dict[str, Any] | None:
    """How far behind the heap is; None where there is no sysdb."""
    if not has_heap(database, cluster):
        return None
    with SysDb(database, cluster) as sysdb:
        found = metrics(sysdb)
    names = (
        "oldest_due_age", "dirty_lag", "dirty_partitions", "outbox_depth", "active", "running", "starts", "finishes",
        "failures", "dead_letters", "missed_deadlines",
    )  # fmt: skip
    return {name: getattr(found, name) for name in names}


def failed_often(times: int) -> str:
    """What is said of a duty that fails."""
    return "failed" if times == 1 else f"failed {times:,} times in a row"


def _print(found: dict[str, Any], advised: Callable[[str], str]) -> None:
    _say(f"cluster {found['cluster']} in {found['database']}, answered in {found['answer_ms']:.1f} ms")
    futures = dict(found["futures"])
    whole = futures.pop("counted_all")
    _say("futures    " + ", ".join(f"{n:,} {state}" for state, n in futures.items()) + ("" if whole else ", more"))
    for asked, told in (
        (futures["unclaimed"], "`mainspring futures ls --state unclaimed` says why they wait"),
        (futures["failed"], "`mainspring futures errors` says what failed"),
    ):
        if asked:
            _say(f"           {advised(told)}")
    leases = found["leases"]
    own = leases["held"] - leases["of_services"]
    _say(
        f"leases     {counted(own, 'lease')} of users and {leases['of_services']:,} of services held, "
        f"{leases['waiters']:,} waiting; {counted(found['sessions'], 'session')}"
    )
    _print_heap(found["heap"])
    _say(f"ids        {counted(found['idempotency_ids'], 'idempotency id')} kept")
    _print_duties(found["duties"])
    if found["workers"]:
        _print_workers(found["workers"])
        return
    _say(f"workers    none: {advised('start one with `mainspring up` or `mainspring worker`')}")
    others = ", ".join(name for name in found["clusters"] if name != found["cluster"])
    if others:
        _say(f"clusters   this database has others: {others}; name one with --cluster")


def _print_duties(duties: dict[str, Any]) -> None:
    for name, duty in duties.items():
        failed = (
            f", {failed_often(duty['failures']).replace('failed', 'FAILED')}: {duty['error']}"
            if duty["failures"]
            else ""
        )
        by = f"by {duty['by']}" if duty["done_now"] else f"the last by {duty['by']}: nobody does it now"
        _say(f"duty       {name}: {duty['done']:,} done in {counted(duty['rounds'], 'round')}, {by}{failed}")


def _print_workers(workers: list[dict[str, Any]]) -> None:
    brief = in_terminal()
    columns = ["address", "busy", "pid", "last_beat", "host"] if brief else _WORKER_COLUMNS
    rows = [with_busy(row) for row in workers]
    for row in rows if brief else ():
        beat = row["last_beat"]
        passed = None if beat is None else (datetime.now(UTC) - datetime.fromisoformat(beat)).total_seconds()
        row["last_beat"] = "" if passed is None else f"{ago(max(0.0, passed))} ago"
    print_rows(rows, columns, as_json=False, flowing="host")


def _print_heap(heap: dict[str, Any] | None) -> None:
    if heap is None:
        _say("heap       none: no task was ever made")
        return
    _say(
        f"heap       {counted(heap['active'], 'task')} active, {heap['running']:,} running, "
        f"{counted(heap['outbox_depth'], 'run')} to be put on the heap, "
        f"{counted(heap['dirty_partitions'], 'partition')} with writes not looked at; "
        f"{counted(heap['finishes'], 'run')} finished, {heap['dead_letters']:,} given up (dead letters)"
    )


def _say(line: str) -> None:
    say(hanging(line, 11))


_WORKER_COLUMNS = ["address", "slots", "free_slots", "claims", "host", "pid", "last_beat"]
