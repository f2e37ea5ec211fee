"""What a worker counts, and what a cluster's rows say, as metrics."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from fdb_datamodel import WorkerStatus, census_page, list_workers, named_of
from fdb_schema import ClusterSpace
from fdb_schema.serving.metrics import Metric
from idempotent_txn import run

if TYPE_CHECKING:
    from futures_worker.objects.store import ObjectStore
    from futures_worker.worker.deciding.core import WorkerCore


def worker_metrics(core: WorkerCore, store: ObjectStore, cluster: str) -> list[Metric]:
    """Of one worker, from its own state; reads no database. Called from another thread than the core's: figures may be
    of slightly different moments.
    """
    worker = core.worker
    labels = {"cluster": cluster, "worker": f"{worker.ip}:{worker.port}"}
    counters = core.counters
    free, total = core.free, core.total
    in_memory, on_disk = store.used()
    tasks = Metric("mainspring_worker_tasks_total", "Attempts by how they ended here.", "counter")
    for outcome in ("claimed", "realized", "failed", "given_back"):
        tasks.add(getattr(counters, outcome), outcome=outcome, **labels)
    resources = Metric("mainspring_worker_resources", "What the worker offers, and what of it is free.")
    for name, have, left in (
        ("cpu", total.cpu, free.cpu),
        ("ram_bytes", total.shape[1], free.shape[1]),
        ("gpu", total.gpu, free.gpu),
        *((name, have / 1000, dict(named_of(free.shape))[name] / 1000) for name, have in named_of(total.shape)),
    ):
        resources.add(have, resource=name, state="total", **labels)
        resources.add(left, resource=name, state="free", **labels)
    return [
        tasks,
        Metric("mainspring_worker_turns_total", "Transactions that reported or claimed.", "counter").add(
            counters.turns, **labels
        ),
        Metric("mainspring_worker_children_lost_total", "Child processes that died.", "counter").add(
            counters.children_lost, **labels
        ),
        Metric("mainspring_worker_slots", "Tasks at a time.").add(core.slots, **labels),
        Metric("mainspring_worker_slots_used", "Tasks that run now.").add(_count(core), **labels),
        Metric("mainspring_worker_tasks_in_hand", "Tasks claimed and not ended.").add(len(core.tasks), **labels),
        Metric("mainspring_worker_children", "Child processes.").add(len(core.children), **labels),
        resources,
        Metric("mainspring_worker_objects_bytes", "Results held.")
        .add(in_memory, where="memory", **labels)
        .add(on_disk, where="disk", **labels),
        Metric("mainspring_worker_objects", "Number of results held.").add(len(store.names()), **labels),
    ]


def _count(core: WorkerCore) -> int:
    for _ in range(3):
        try:
            return core.running
        except RuntimeError:  # the loop changed what was counted meanwhile
            continue
    return 0


def cluster_metrics(db: Any, space: ClusterSpace, *, futures: bool = True) -> list[Metric]:
    """Of a whole cluster, from its rows: workers, free capacity, and (reading all of them, by pages) futures by state."""
    statuses: list[WorkerStatus] = run(db, list_workers, space, strategy="off")
    label = {"cluster": space.cluster}
    beats = [status.heartbeat for status in statuses if status.heartbeat is not None]
    metrics = [
        Metric("mainspring_workers", "Registered workers.").add(len(statuses), **label),
        Metric("mainspring_slots", "Slots of all workers.").add(sum(s.info.slots for s in statuses), **label),
        Metric("mainspring_slots_free", "Free slots of all workers.").add(sum(b.free_slots for b in beats), **label),
    ]
    if futures:
        states: Counter[str] = Counter()
        after: bytes | None = None
        while True:
            counted, after = run(db, census_page, space, after, strategy="off")
            states.update(one.state.value for one in counted)
            if after is None:
                break
        metric = Metric("mainspring_futures", "Futures by state.")
        for state in ("waiting", "unclaimed", "claimed", "realized", "failed"):
            metric.add(states[state], state=state, **label)
        metrics.append(metric)
    return metrics
