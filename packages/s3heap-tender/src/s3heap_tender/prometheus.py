"""How far behind the heap is, as figures for Prometheus."""

from __future__ import annotations

from typing import Final

from fdb_schema.metrics import Metric
from s3heap_tender.heap import Heap
from s3heap_tender.inspection import metrics
from s3heap_tender.sysdb_base import SysDbBase

_GAUGES: Final = {
    "oldest_due_age": ("oldest_due_age_seconds", "Age of the oldest task that may start and doesn't."),
    "dirty_lag": ("dirty_lag_seconds", "Age of the oldest write that no tender has swept."),
    "dirty_partitions": ("dirty_partitions", "Partitions that were written and not swept."),
    "outbox_depth": ("outbox_depth", "Runs to be pushed to the heap."),
    "cursor_lag": ("cursor_lag_seconds", "How long no prune went by."),
    "active": ("tasks_active", "Tasks that are scheduled or run."),
    "running": ("tasks_running", "Tasks that run."),
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
    requests = Metric("mainspring_heap_requests_total", "Requests to the store, by kind.", "counter")
    for kind, count in sorted(found.requests.items()):
        requests.add(count, kind=kind, **label)
    return [*listed, requests] if found.requests else listed
