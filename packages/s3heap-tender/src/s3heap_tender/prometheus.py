"""How far behind the heap is, and what one tender or scheduler did, as figures for Prometheus."""

from __future__ import annotations

from collections import Counter
from typing import Final

from fdb_schema.serving.metrics import Metric
from s3heap_tender.claims.sysdb_base import SysDbBase
from s3heap_tender.heap import Heap
from s3heap_tender.inspection import metrics
from s3heap_tender.scheduler import Scheduler
from s3heap_tender.tender import Tender

_GAUGES: Final = {
    "oldest_due_age": ("oldest_due_age_seconds", "Age of the oldest task that may start and doesn't."),
    "dirty_lag": ("dirty_lag_seconds", "Age of the oldest write that no tender has swept."),
    "dirty_partitions": ("dirty_partitions", "Partitions that were written and not swept."),
    "outbox_depth": ("outbox_depth", "Runs to be pushed to the heap."),
    "cursor_lag": ("cursor_lag_seconds", "How long no prune went by."),
    "active": ("tasks_active", "Tasks that are scheduled or run."),
    "running": ("tasks_running", "Tasks that run."),
    "orphaned": ("runs_orphaned", "Runs whose scheduler is gone."),
}
_COUNTERS: Final = {
    "starts": "Starts of runs.",
    "retakes": "Runs taken over from dead schedulers.",
    "finishes": "Runs that finished.",
    "failures": "Runs that failed.",
    "dead_letters": "Runs that failed for good.",
    "missed_deadlines": "Starts later than a cadence after they were due.",
}


def heap_metrics(sysdb: SysDbBase, heap: Heap | None = None) -> list[Metric]:
    """`s3heap_tender.metrics`, named and described; with `heap` the requests of this process too."""
    found = metrics(sysdb, heap)
    label = {"cluster": sysdb.cluster}
    listed = [
        Metric(f"mainspring_heap_{name}", text).add(getattr(found, field), **label)
        for field, (name, text) in _GAUGES.items()
    ]
    listed += [
        Metric(f"mainspring_heap_{field}_total", text, "counter").add(getattr(found, field), **label)
        for field, text in _COUNTERS.items()
    ]
    return listed if heap is None else [*listed, _requests(heap)]


def tender_metrics(tender: Tender) -> list[Metric]:
    """What this process's tender did since it began; reads no database. Safe to call from another thread."""
    label = {"cluster": tender.sysdb.cluster}
    totals = Counter(tender.totals)
    work = Metric("mainspring_tender_tasks_total", "Tasks, by what the tender did with them.", "counter")
    for what in ("swept", "pushed", "late", "reconciled", "forgotten", "pruned"):
        work.add(totals[what], work=what, **label)
    return [
        Metric("mainspring_tender_turns_total", "Passes over the shards.", "counter").add(tender.turns, **label),
        Metric("mainspring_tender_errors_total", "Steps that failed and were left for a later pass.", "counter").add(
            totals["errors"], **label
        ),
        work,
        _requests(tender.heap),
    ]


def scheduler_metrics(scheduler: Scheduler) -> list[Metric]:
    """What this process's scheduler did since it began; reads no database. Safe to call from another thread."""
    label = {"cluster": scheduler.sysdb.cluster}
    runs = Metric("mainspring_scheduler_runs_total", "Runs: started, and how they ended.", "counter")
    for what in ("started", "finished", "failed", "lost"):
        runs.add(getattr(scheduler.totals, what), outcome=what, **label)
    return [
        runs,
        Metric("mainspring_scheduler_runs", "Runs under way.").add(scheduler.running, **label),
        Metric("mainspring_scheduler_concurrency", "Most runs at once.").add(scheduler.concurrency, **label),
        _requests(scheduler.heap),
    ]


def _requests(heap: Heap) -> Metric:
    requests = Metric("mainspring_heap_requests_total", "Requests of this process to the store, by kind.", "counter")
    for kind, count in sorted(dict(heap.io.requests).items()):
        requests.add(count, kind=kind, cluster=heap.sysdb.cluster)
    return requests
