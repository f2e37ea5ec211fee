"""What a seed does to a cluster, decided before anything runs, so that a run can be told and repeated."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum


class Blow(StrEnum):
    """What is done to a process."""

    kill_worker = "kill-worker"  # kill -9, then another one at the same address
    lose_worker = "lose-worker"  # kill -9; its address stays empty until the end of the blows
    kill_all = (
        "kill-all"  # kill -9 of every worker, its template and its children at once, then others at their addresses
    )
    kill_template = "kill-template"  # the process that forks a worker's children
    stop_template = "stop-template"
    kill_child = "kill-child"  # kill -9 of a process that runs tasks
    stop_child = "stop-child"  # SIGSTOP, SIGCONT after a while
    stop_worker = "stop-worker"  # SIGSTOP past its TTL or not, SIGCONT
    drain_worker = "drain-worker"  # SIGTERM, then another one at the same address
    kill_client = "kill-client"
    stop_client = "stop-client"


WEIGHTS = {
    Blow.kill_worker: 5,
    Blow.lose_worker: 2,
    Blow.kill_all: 1,
    Blow.kill_template: 1,
    Blow.stop_template: 1,
    Blow.kill_child: 5,
    Blow.stop_child: 1,
    Blow.stop_worker: 3,
    Blow.drain_worker: 2,
    Blow.kill_client: 2,
    Blow.stop_client: 1,
}

RATES = {
    "not_committed": 0.05,
    "too_old": 0.05,
    "unknown_before": 0.05,
    "unknown_after": 0.05,
    "unknown_late": 0.05,
    "timed_out_late": 0.05,
    "delay": 0.05,
    "future_version": 0.02,
    "process_behind": 0.02,
    "version_jump": 0.003,
}
"""The faults that a process's commits and reads meet, and the most often."""


SESSION_TTL = 12.0
"""Seconds without a sign of life after which a client is declared dead: two of its beats are missing."""


@dataclass(frozen=True, slots=True)
class Strike:
    """One blow: `after` seconds since the one before, at the `target`th process of its kind, lasting `seconds`."""

    after: float
    blow: Blow
    target: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a seed decides."""

    seed: int
    slots: tuple[int, ...]  # of each worker
    clients: tuple[int, ...]  # the seed of each
    faults: tuple[str, ...]  # MAINSPRING_FAULTS of each process: the workers', then the clients'
    store: str  # --object-store
    strikes: tuple[Strike, ...]
    collecting: bool  # whether futures are collected at once, not an hour, after they ended and nobody holds them
    session_ttl: float
    ttl: float = 2.0

    def describe(self) -> str:
        """For people, one line per strike."""
        head = f"seed {self.seed}: workers with {self.slots} slots, {len(self.clients)} clients, store {self.store}"
        head += f", sessions {self.session_ttl:.0f} s{', collecting' if self.collecting else ''}"
        lines = [f"  +{s.after:.2f} s {s.blow} #{s.target} ({s.seconds:.1f} s)" for s in self.strikes]
        return "\n".join([head, *lines])


def plan(seed: int) -> Plan:
    """The plan of a seed."""
    rng = random.Random(f"chaos {seed}")
    workers = rng.choice([1, 2, 2, 3])
    clients = rng.choice([1, 1, 2])
    faulty = rng.random() < 0.7
    rates = {name: round(rng.uniform(0, most), 4) for name, most in RATES.items()} if faulty else {}
    faults = tuple(
        ",".join(f"{k}={v}" for k, v in {"seed": seed * 100 + n, **rates}.items()) if faulty else ""
        for n in range(workers + clients)
    )
    strikes = []
    for _ in range(rng.randrange(2, 8)):
        blow = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        strikes.append(Strike(rng.expovariate(2.5), blow, rng.randrange(100), rng.choice([0.2, 1.0, 3.5])))
    collecting = rng.random() < 0.2
    if not collecting and rng.random() < 0.08:
        strikes.append(Strike(rng.expovariate(2.5), Blow.stop_client, rng.randrange(100), SESSION_TTL + 3.0))
    return Plan(
        seed,
        tuple(rng.choice([1, 2]) for _ in range(workers)),
        tuple(rng.randrange(2**31) for _ in range(clients)),
        faults,
        rng.choice(["64MiB", "1MiB", "100kB"]),
        tuple(strikes),
        collecting,
        3 * SESSION_TTL if collecting else SESSION_TTL,
    )
