"""Checks of a cluster, from an observation of it: pure functions but for `describe`, which reads why one future waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from uuid import UUID

from fdb_datamodel import FutureInfo, FutureState, Requirements, WorkerId
from fdb_schema.serving.figures import counted
from lease_locks import LeaseInfo
from mainspring.doctor.findings import Finding, Level, ok, problem, warning
from mainspring.doctor.observing import TENDERS, Observation
from mainspring.status import DUTIES, failed_often

LATE_SECONDS: Final = 30.0
DIRTY_SECONDS: Final = 10.0
UNPRUNED_SECONDS: Final = 3_600.0
SHOWN: Final = 5


def check_cluster(seen: Observation, name: str) -> list[Finding]:
    """The cluster that was asked about is one of this database."""
    look = seen.second
    if seen.others and not (look.clock_us or look.workers or look.states or look.sessions or look.heap):
        there = ", ".join(map(repr, seen.others))
        what = f"there is no cluster {name!r} in this database; it has {there}"
        return [problem("cluster", what, "name one of them with --cluster")]
    return []


def check_clock(seen: Observation) -> list[Finding]:
    """The cluster clock goes on while services run."""
    passed = (seen.second.clock_us - seen.first.clock_us) / 1e6
    if passed > 0:
        return [ok("clock", f"the cluster clock went {passed:.1f} s in {seen.seconds:.1f} s")]
    if seen.live_workers():
        what = f"workers live and the cluster clock stood still for {seen.seconds:.0f} s"
        return [problem("clock", what, "look at the workers' logs: their housekeeping is refused or hangs")]
    what = f"the cluster clock stood still for {seen.seconds:.0f} s: no service runs"
    return [warning("clock", what, "start one: `mainspring up`; back-offs, timeouts and cadences wait for it")]


def check_workers(seen: Observation) -> list[Finding]:
    """Every registered worker beats and can be reached."""
    found = []
    for worker in seen.silent_workers():
        address = f"{worker.id.ip}:{worker.id.port}"
        what = (
            f"worker {address} (pid {worker.info.pid} on {worker.info.host}) gave no sign of life for "
            f"{seen.seconds:.0f} s and holds {counted(worker.claims, 'future')}"
        )
        do = "start another worker, or a janitor: either declares it dead and gives its futures to others"
        found.append(problem("workers", what, do))
    for worker in seen.gone_workers():
        what = (
            f"worker {worker.id.ip}:{worker.id.port} (pid {worker.info.pid} on {worker.info.host}) ended, or was declared "
            f"dead, within these {seen.seconds:.0f} s"
        )
        do = "nothing if you stopped it, or it was started again; if its process is there, it hangs or is stopped: kill it"
        found.append(warning("workers", what, do))
    silent = {f"{worker.id.ip}:{worker.id.port}" for worker in seen.silent_workers()}
    for address, why in seen.refused.items():
        if address not in silent:
            what = f"worker {address} beats, and can't be reached from here: {why}"
            do = "start it with an --address that others reach, and open its port: large results are fetched there"
            found.append(problem("workers", what, do))
    if not found and not seen.second.workers:
        return [warning("workers", "no worker runs: what is submitted waits", "start one: `mainspring worker`")]
    return found or [
        ok(
            "workers",
            counted(len(seen.second.workers), "worker beats and can be reached", "workers beat and can be reached"),
        )
    ]


def check_futures(seen: Observation, describe: Callable[[bytes], FutureInfo | None]) -> list[Finding]:
    """What waited at both looks is not waiting in vain. `describe(id)`: what a future is like now; None: it is gone."""
    waited = [one for one in seen.second.unclaimed if one in seen.first.unclaimed]
    if not waited:
        return [_all_futures(seen)]
    if not seen.live_workers():
        what = f"{counted(len(waited), 'future waits', 'futures wait')} and no worker lives"
        return [problem("futures", what, "start one: `mainspring worker`, or `mainspring up`")]
    infos = [info for one in waited if (info := describe(one)) is not None and info.state is FutureState.unclaimed]
    stuck = {info.id: info.reason for info in infos if info.reason.startswith("unschedulable")}
    found = []
    alike: dict[str, list[UUID]] = {}
    for one, reason in stuck.items():
        alike.setdefault(reason, []).append(UUID(bytes=one))
    groups = sorted(alike.items(), key=lambda group: -len(group[1]))
    for reason, ids in groups[:SHOWN]:
        if len(ids) == 1:
            do = f"start a worker that large, or cancel it: `mainspring futures cancel {ids[0]}`"
            found.append(problem("futures", f"future {ids[0]} can't run: {reason}", do))
        else:
            do = f'start a worker that large, or cancel them: `mainspring futures cancel --reason "{reason}"`'
            found.append(problem("futures", f"{len(ids)} futures can't run: {reason}; one is {ids[0]}", do))
    if len(groups) > SHOWN:
        what = f"{counted(sum(len(ids) for _, ids in groups[SHOWN:]), 'more future')} can't run"
        found.append(problem("futures", what, "`mainspring futures ls --state unclaimed` lists them"))
    free = _free_at_both_looks(seen)
    idle = sum(
        any(info.worker in (None, worker) and info.requirements.fits(room) for worker, (_, room) in free.items())
        for info in infos
        if info.id not in stuck
    )
    if idle:
        slots = sum(count for count, _ in free.values())
        what = f"{counted(idle, 'future')} waited {seen.seconds:.0f} s in the pool though {counted(slots, 'slot is', 'slots are')} free"
        found.append(problem("futures", what, "`mainspring futures show ID` says why; look at the workers' logs"))
    return found or [_all_futures(seen)]


def _all_futures(seen: Observation) -> Finding:
    """What there is; failures are no trouble of the cluster, but whoever looks wants to know where they are told."""
    said = ", ".join(f"{number:,} {state}" for state, number in sorted(seen.second.states.items())) or "none"
    do = "`mainspring futures errors` says what failed" if seen.second.states.get("failed") else ""
    return Finding("futures", Level.ok, said, do)


def _free_at_both_looks(seen: Observation) -> dict[WorkerId, tuple[int, Requirements]]:
    """Live worker → its free slots and resources, where it had some at both looks.

    On a busy cluster a slot is free now and then, between two tasks.
    """
    before = {worker.id: worker.heartbeat.free_slots for worker in seen.first.workers if worker.heartbeat is not None}
    return {
        worker.id: (min(worker.heartbeat.free_slots, before[worker.id]), worker.heartbeat.free)
        for worker in seen.live_workers()
        if worker.heartbeat is not None and worker.heartbeat.free_slots and before.get(worker.id)
    }


def check_sessions(seen: Observation) -> list[Finding]:
    """No rows of processes that are gone."""
    dead = seen.second.dead_sessions
    if not dead:
        return [ok("sessions", counted(len(seen.second.sessions), "session lives", "sessions live"))]
    shown = "; ".join(list(dead.values())[:SHOWN])
    of = counted(len(seen.second.sessions), "session")
    what = f"{len(dead):,} of {of} {'is' if len(dead) == 1 else 'are'} dead: {shown}"
    return [warning("sessions", what, "run a janitor, or `mainspring leases doctor --clean`")]


def check_leases(seen: Observation) -> list[Finding]:
    """No lease of the dead is waited for in vain; the others of theirs go to whoever wants them, and need nothing done."""
    found = []
    owners: dict[str, list[LeaseInfo]] = {}
    dead = [lease for lease in seen.second.leases if seen.held_by_the_dead(lease)]
    for lease in dead:
        owners.setdefault(f"{lease.host}:{lease.pid}", []).append(lease)
    for owner, leases in owners.items():
        waited = [lease for lease in leases if lease.waiters]
        if waited:
            waiting = counted(sum(len(lease.waiters) for lease in waited), "waiter")
            what = f"{owner}, which is dead, holds {_names(waited)}; {waiting}"
            name = waited[0].name if len(waited) == 1 else "NAME"
            found.append(problem("leases", what, f"`mainspring leases force-release {name} --reason …`"))
        if free := [lease for lease in leases if not lease.waiters]:
            what = f"{owner}, which is dead, holds {_names(free)}: whoever acquires next takes over"
            found.append(ok("leases", what))
    alive = len(seen.second.leases) - len(dead)
    return [*found, ok("leases", f"{counted(alive, 'lease')}, held by processes that live")]


def _names(leases: list[LeaseInfo]) -> str:
    named = ", ".join(repr(lease.name) for lease in leases[:SHOWN])
    more = f" and {len(leases) - SHOWN} more" if len(leases) > SHOWN else ""
    return f"{counted(len(leases), 'lease')} ({named}{more})"


def check_heap(seen: Observation) -> list[Finding]:
    """What is due starts, what is written is swept, what is done goes."""
    first, second = seen.first.heap, seen.second.heap
    if first is None or second is None:
        return [ok("heap", "no task was ever made")]
    tenders = [
        lease for lease in seen.second.leases if lease.name.startswith(TENDERS) and not seen.held_by_the_dead(lease)
    ]
    found = []
    stays = min(first.outbox_depth, second.outbox_depth), min(first.dirty_partitions, second.dirty_partitions)
    if not tenders and any(stays):
        what = (
            f"no tender runs; {counted(second.outbox_depth, 'run waits', 'runs wait')} to be pushed, "
            f"{counted(second.dirty_partitions, 'partition')} to be swept"
        )
        found.append(problem("heap", what, "start one: `mainspring tender`, or `mainspring up`"))
    elif second.dirty_partitions and second.dirty_lag > DIRTY_SECONDS:
        what = f"writes wait to be swept for {second.dirty_lag:.0f} s"
        found.append(problem("heap", what, "look at the tender's log; start more of them"))
    elif all(stays) and second.outbox_depth > 100:
        what = f"{counted(second.outbox_depth, 'run')} wait to be pushed to the heap"
        found.append(problem("heap", what, "the store does not take writes: look at the tender's log"))
    if second.oldest_due_age > LATE_SECONDS:
        what = f"a task is due for {second.oldest_due_age:.0f} s and does not start"
        found.append(
            problem("heap", what, "start a scheduler, or more of them: `mainspring scheduler`; `mainspring heap next`")
        )
    if seen.second.dead_letters:
        what = f"{counted(seen.second.dead_letters, 'run')} failed for good"
        found.append(
            problem("heap", what, "`mainspring heap dlq` says which and why; `mainspring heap redrive` runs them again")
        )
    if second.cursor_lag > UNPRUNED_SECONDS:
        what = f"the heap was not pruned for {second.cursor_lag:.0f} s"
        found.append(warning("heap", what, "start a tender, or a janitor with --store"))
    return found or [
        ok("heap", f"{counted(second.active, 'task is', 'tasks are')} scheduled or running, nothing is late")
    ]


def check_duties(seen: Observation) -> list[Finding]:
    """A janitor runs, and its duties succeed."""
    held = {
        lease.name[len(DUTIES) :]
        for lease in seen.second.leases
        if lease.name.startswith(DUTIES) and not seen.held_by_the_dead(lease)
    }
    found = []
    for name, report in sorted(seen.duties.items()):
        if report.failures:
            what = f"the janitor's duty {name!r} {failed_often(report.failures)}: {report.error}"
            found.append(problem("janitor", what, "mend what it says; the janitor tries again by itself"))
    if not held:
        what = "no janitor runs: what the dead leave behind stays"
        found.append(warning("janitor", what, "start one: `mainspring janitor`, or `mainspring up`"))
    return found or [ok("janitor", f"duties {', '.join(sorted(held))} are done")]
