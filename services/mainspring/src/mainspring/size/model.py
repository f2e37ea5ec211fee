"""What a cluster of FoundationDB bears for a load, per role; how many processes that is; and what its first limit is. Pure.

Each kind of transaction happens so often as the code makes it happen, and costs what was counted (`costs`). What a process does in
batches it does so often as the database answers: while one transaction is under way the next one's items come together, so that `r`
items a second make `r / (1 + r L)` transactions, where `L` seconds pass between two (a renewal process).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Final, NamedTuple

from fdb_datamodel import PASS_SECONDS, SESSION_BEAT_SECONDS
from fdb_schema.clock import ADVANCE_SECONDS
from fdb_schema.serving.figures import size
from futures_worker.client.basis.session_life import RELEASED_AT_ONCE
from futures_worker.liveness import HEAD, TTL_SECONDS
from futures_worker.payload import INLINE_RESULT_BYTES
from futures_worker.worker.deciding.planning import MOST_PER_TURN
from futures_worker.worker.housekeeping import FOLLOW_SHARE, LOOKS_PER_TTL
from futures_worker.worker.running.rhythm import BEATS_PER_TTL, HEARTBEAT_SECONDS
from lease_locks.session.holding import RENEW_EVERY
from mainspring.size.costs import COSTS, Cost
from s3heap_tender.tender import IDLE_SECONDS

HEADROOM: Final = 0.75
"""Of what a process can do at most: up to that FoundationDB's latencies stay low (its documentation, "Performance")."""


class Engine(NamedTuple):
    """What one process of FoundationDB on one core does a second with keys of 16 and values of up to 100 bytes (its documentation, "Performance")."""

    reads: float
    writes: float


ENGINES: Final = {"ssd": Engine(55_000, 20_000), "memory": Engine(90_000, 35_000)}
ALL_ROLES: Final = 46_000
"""Keys a second that one process writes in all its roles at once, ten in each transaction (its documentation, "Benchmarking"): a bound
from below for each role but storage."""
REDUNDANCY: Final = {"single": 1, "double": 2, "triple": 3}


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of a cluster. Rates are per second; bytes are of each; `seconds` a task runs.

    dependencies: of a future on others, on average. leases: acquired and released; held: at a time, by as many processes.
    heap_runs: writes that each trigger a run. latency: seconds from a transaction's begin to its commit.
    """

    workers: int
    rate: float
    clients: int = 1
    slots: int = 8
    seconds: float = 0.0
    args_bytes: int = 0
    result_bytes: int = 0
    dependencies: float = 0.0
    leases: float = 0.0
    held: int = 0
    lease_ttl: float = 15.0
    heap_runs: float = 0.0
    tenders: int = 0
    latency: float = 0.006
    engine: str = "ssd"
    redundancy: str = "triple"


class Flow(NamedTuple):
    """One kind of transaction: how many items there are a second in all of them, and what that costs a second."""

    kind: str
    items: float
    cost: Cost


class HotKey(NamedTuple):
    """What is written more often than other keys, each of so many `keys`; `watchers` are woken by each write."""

    name: str
    writes: float
    watchers: float
    keys: int = 1


class Role(NamedTuple):
    """Processes of a role at most so busy as `HEADROOM` says; share: of what so many can do."""

    name: str
    does: str
    processes: int
    share: float


@dataclass(frozen=True, slots=True)
class Demand:
    """Per second, in all."""

    flows: list[Flow]
    total: Cost
    watches_fired: float
    conflicts: float
    hot: list[HotKey]
    roles: list[Role]
    busy: float
    limit: str
    notes: list[str] = field(default_factory=list)


def batches(sources: float, items: float, latency: float, most: float = math.inf) -> float:
    """Transactions a second of so many processes, which make as many items a second in all."""
    if not items or not sources:
        return 0.0
    each = items / sources
    return max(sources * each / (1 + each * latency), items / most)


def demand(load: Load) -> Demand:
    """Everything of a load. Raises `ValueError` for what can't be: more work than the workers have slots for, or without end."""
    for name, value in asdict(load).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} is {value}: give a finite number")
    if load.rate and not load.workers:
        raise ValueError(f"{load.rate:,.0f} tasks a second need workers, and there are none: say how many")
    busy = load.rate * load.seconds / (load.workers * load.slots) if load.workers else 0.0
    if busy > 1:
        raise ValueError(
            f"{load.rate:,.0f} tasks of {load.seconds:g} s a second are {load.rate * load.seconds:,.0f} at a time, and {load.workers:,} workers of "
            f"{load.slots} slots run {load.workers * load.slots:,}: more of either, or fewer tasks"
        )
    flows = [_flow(*one, load) for one in _rates(load)]
    total = Cost()
    for flow in flows:
        total = total.plus(flow.cost)
    often = {flow.kind: flow.cost.transactions for flow in flows}
    hot = _hot(load, often, busy)
    fired = sum(key.writes * key.watchers * key.keys for key in hot)
    roles = _roles(load, total)
    return Demand(flows, total, fired, _conflicts(load, often), hot, roles, busy, _limit(load, hot, busy), _notes(load))


def _rates(load: Load) -> list[tuple[str, float, float]]:
    """(kind, transactions a second, items a second)."""
    rate, clients, workers, latency = load.rate, max(1, load.clients), load.workers, load.latency
    turns = batches(workers, rate, latency, MOST_PER_TURN)
    beats = workers / (HEARTBEAT_SECONDS if rate else TTL_SECONDS / BEATS_PER_TTL)
    carried = min(beats, turns)
    rates = [
        ("submit", batches(clients, rate, latency), rate),
        ("arguments", 0.0, rate if load.args_bytes else 0.0),
        ("edge", 0.0, rate * load.dependencies),
        ("turn", turns, rate),
        ("mail", batches(clients, turns, latency), rate),
        ("clear", batches(clients, rate, SESSION_BEAT_SECONDS), 0.0),
        ("release", max(batches(clients, rate, SESSION_BEAT_SECONDS), rate / RELEASED_AT_ONCE), rate),
        ("collect", 0.0, rate),
        ("collect_pass", 1 / PASS_SECONDS if workers else 0.0, 0.0),
        ("worker_beat", beats - carried, 0.0),
        ("carried_beat", 0.0, carried),
        ("client_beat", load.clients / SESSION_BEAT_SECONDS, 0.0),
        ("clock", 1 / ADVANCE_SECONDS if workers else 0.0, 0.0),
        *_looks(workers, bool(rate)),
        ("lease", 0.0, load.leases),
        ("lease_beat", load.held / (load.lease_ttl * RENEW_EVERY), 0.0),
        ("heap_run", 0.0, load.heap_runs),
        ("heap_turn", load.tenders / IDLE_SECONDS, 0.0),
    ]
    return [one for one in rates if one[1] or one[2]]


def _looks(workers: int, working: bool) -> list[tuple[str, float, float]]:
    """Of workers at each other: those of the head at all, the others at the head, and at all the more seldom the more there are."""
    if not workers:
        return []
    often, seldom = LOOKS_PER_TTL / TTL_SECONDS, 1 / (FOLLOW_SHARE * TTL_SECONDS)
    pause = often if working else seldom
    head, others = min(workers, HEAD), max(0, workers - HEAD)
    whole = often + (head - 1) * pause + others * pause * HEAD / workers
    return [("look", often + (workers - 1) * pause, whole * workers + others * pause * HEAD)]


def _flow(kind: str, transactions: float, items: float, load: Load) -> Flow:
    fixed, each = COSTS[kind]
    cost = fixed.times(transactions).plus(each.times(items))
    inline = load.result_bytes if load.result_bytes <= INLINE_RESULT_BYTES else 0
    if kind == "arguments":
        cost = cost.plus(Cost(written_bytes=items * load.args_bytes))
    elif kind == "turn":  # for the future, and for who waits for it; arguments are read by who runs it
        cost = cost.plus(Cost(written_bytes=2 * items * inline, read_bytes=items * load.args_bytes))
    elif kind == "mail":
        cost = cost.plus(Cost(read_bytes=items * (COSTS["turn"].each.written_bytes / 4 + inline)))
    elif kind == "collect":
        cost = cost.plus(Cost(read_bytes=items * (inline + load.args_bytes)))
    return Flow(kind, items, cost)


def _hot(load: Load, often: dict[str, float], busy: float) -> list[HotKey]:
    """Keys that many transactions write, the most written first."""
    turns, clients = often.get("turn", 0.0), max(1, load.clients)
    idle = load.workers * max(0.0, 1 - busy)
    woken = min(idle, turns / max(1e-9, often.get("submit", 0.0))) if turns else idle
    found = [
        HotKey("the pool's bell", often.get("submit", 0.0), woken),
        HotKey("a client's bell", turns / clients, 1.0, clients),
        HotKey("a worker's rows of claims", turns / max(1, load.workers), 0.0, load.workers),
        HotKey("the clock", often.get("clock", 0.0), 0.0),
    ]
    return sorted((key for key in found if key.writes), key=lambda key: -key.writes)


def _conflicts(load: Load, often: dict[str, float]) -> float:
    """Of turns, how many find what they chose taken.

    Each of `n` workers prefers its own part of the pool and reaches into the others' only where its own is empty: two meet
    where less is there than all of them ask for. Taken for that: the turns that begin while one is under way, over the parts.
    """
    turns = often.get("turn", 0.0)
    if not turns or load.workers < 2:
        return 0.0
    beside = turns * load.latency * (load.workers - 1) / load.workers
    return min(1.0, beside / load.workers**2)


def _roles(load: Load, total: Cost) -> list[Role]:
    copies, engine = REDUNDANCY[load.redundancy], ENGINES[load.engine]
    storage = total.written * copies / engine.writes + total.read / engine.reads
    keys = total.written / ALL_ROLES
    parts = [
        ("storage", f"{total.written * copies:,.0f} keys written, {total.read:,.0f} read", storage, copies),
        ("log", f"{total.written * copies:,.0f} keys, {size(total.written_bytes * copies)}", keys * copies, copies),
        (
            "commit proxy",
            f"{total.commits:,.0f} commits, {size(total.written_bytes)}",
            max(keys, total.commits * 10 / ALL_ROLES),
            1,
        ),
        (
            "resolver",
            f"{total.conflicts + total.written:,.0f} ranges",
            (total.conflicts + total.written) / (2 * ALL_ROLES),
            1,
        ),
        ("GRV proxy", f"{total.transactions:,.0f} transactions begun", total.transactions / ALL_ROLES, 1),
    ]
    roles = []
    for name, does, work, least in parts:
        processes = max(least, math.ceil(work / HEADROOM))
        roles.append(Role(name, does, processes, work / processes))
    return roles


def _limit(load: Load, hot: list[HotKey], busy: float) -> str:
    """What gives way first as the load grows, of what more processes of FoundationDB don't help: a key lives on one team of storage."""
    most = ENGINES[load.engine].writes * HEADROOM
    near = [
        (
            key.writes / most,
            f"{key.name}: one key, written {key.writes:,.0f} times a second of {most:,.0f} that a process can",
        )
        for key in hot
    ]
    if load.rate:
        near.append((busy, f"the workers' slots: {busy:.0%} of them are busy"))
        turns = load.rate / load.workers * load.latency / MOST_PER_TURN
        near.append((turns, f"a worker's turns: {load.rate / load.workers:,.0f} tasks a second of each"))
    return max(near, default=(0.0, "none: nothing is asked for"))[1]


def _notes(load: Load) -> list[str]:
    notes = []
    if load.result_bytes > INLINE_RESULT_BYTES:
        notes.append(
            f"results of more than {INLINE_RESULT_BYTES:,} bytes stay with their workers: {size(load.rate * load.result_bytes)} a second go over the network where another host takes them"
        )
    return notes
