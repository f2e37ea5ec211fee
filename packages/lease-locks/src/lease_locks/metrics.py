"""What a cluster's lease rows and duties say, as figures for Prometheus."""

from __future__ import annotations

from fdb_schema.serving.metrics import Metric
from lease_locks.duties import duty_reports
from lease_locks.locks import LeaseManager


def lease_metrics(locks: LeaseManager) -> list[Metric]:
    """Leases, who waits for them, sessions, and each duty's rounds; reads them page by page."""
    cluster = locks.cluster
    held = locks.list()
    rounds = Metric("mainspring_duty_rounds_total", "Rounds of a janitor's duty.", "counter")
    done = Metric("mainspring_duty_done_total", "What a janitor's duty cleared.", "counter")
    failures = Metric("mainspring_duty_failures", "Rounds of a duty that failed since one went well.")
    for name, report in sorted(duty_reports(locks.db, locks.space.cluster).items()):
        rounds.add(report.rounds, duty=name, cluster=cluster)
        done.add(report.done, duty=name, cluster=cluster)
        failures.add(report.failures, duty=name, cluster=cluster)
    return [
        Metric("mainspring_leases", "Leases that are held.").add(len(held), cluster=cluster),
        Metric("mainspring_lease_waiters", "Processes that wait for a lease.").add(
            sum(len(lease.waiters) for lease in held), cluster=cluster
        ),
        Metric("mainspring_lease_sessions", "Sessions of processes that use leases.").add(
            sum(1 for _ in locks.sessions()), cluster=cluster
        ),
        rounds,
        done,
        failures,
    ]
