"""What the janitor service composes: each package's own way of clearing what nobody needs, as duties under leases."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from fdb_datamodel import Collector, open_cluster
from fdb_datamodel.collector import GRACE_SECONDS
from fdb_schema import DEFAULT_CLUSTER, ClusterSpace, open_database
from fdb_schema.cli import ClusterOption, DbOption, MetricsAddressOption, MetricsPortOption
from fdb_schema.serving.ending import end_though_silent
from fdb_schema.serving.metrics import Metric, metrics_served
from futures_worker.liveness import TTL_SECONDS, Caretaker
from futures_worker.metrics import cluster_metrics
from idempotent_txn import Cleaner, run
from idempotent_txn.cleaner import IDEMPOTENCY_IDS_MIN_AGE_SECONDS
from lease_locks import AbandonedLeases, Duties, Duty, LeaseManager, OldHistories, OldMemos
from lease_locks.clearing import ABANDONED_SECONDS
from lease_locks.metrics import lease_metrics
from s3heap_tender import RUNS_PIPELINE, Heap, SysDb, prune_untended
from s3heap_tender.cli.common import EndpointOption, open_heap_on, stop_on_signals
from s3heap_tender.prometheus import heap_metrics

COLLECT_SECONDS = 1.0
RUNS_SECONDS = 7 * 86_400.0
RUNS_EVERY = 3_600.0
MEMO_SECONDS = 60.0
"""Between two looks at all that is memoized."""
LOOKS_PER_TTL = 6
"""An observer of workers that looks less often than every half a ttl would start anew each time."""


def clean(
    store: Annotated[
        str | None,
        typer.Option(
            envvar="MAINSPRING_HEAP",
            metavar="URL",
            help="The heap, s3://BUCKET/PREFIX or file:DIRECTORY; without it no heap is pruned.",
            show_default=False,
        ),
    ] = None,
    endpoint_url: EndpointOption = None,
    ids_min_age: Annotated[
        float, typer.Option(min=0, help="Idempotency ids are kept so many seconds.")
    ] = IDEMPOTENCY_IDS_MIN_AGE_SECONDS,
    leases_after: Annotated[
        float, typer.Option(min=0, help="Seconds after which a dead holder's lease that nobody took is ended.")
    ] = ABANDONED_SECONDS,
    memos_after: Annotated[
        float | None,
        typer.Option(
            min=0, help="Seconds after which a memoized result is forgotten; never if not given.", show_default=False
        ),
    ] = None,
    memo_bytes: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="The oldest memoized results go beyond so many bytes in all; no limit if not given.",
            show_default=False,
        ),
    ] = None,
    runs_after: Annotated[
        float, typer.Option(min=0, help="Seconds after which what a scheduler memoized of a run is forgotten.")
    ] = RUNS_SECONDS,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds that a future is kept after it ended and nobody holds it.")
    ] = GRACE_SECONDS,
    metrics_address: MetricsAddressOption = "127.0.0.1",
    metrics_port: MetricsPortOption = None,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two rounds of each duty.")] = 10.0,
    once: Annotated[bool, typer.Option("--once", help="One round of each duty, without leases, and exit.")] = False,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
) -> None:
    """Run a janitor until SIGTERM: dead workers and sessions, garbage, abandoned leases, old ids, done items of the heap.

    Any number may run: each duty is done by one of them at a time.
    """
    stop = stop_on_signals()
    with ExitStack() as stack:
        database = open_database(db)
        end_though_silent(stop, database)
        locks = stack.enter_context(LeaseManager(database, cluster))
        kept = Kept(ids_min_age, leases_after, memos_after, memo_bytes, runs_after, grace)
        duties = duties_of(database, cluster, locks, kept, every, once=once)
        figures: list[Callable[[], list[Metric]]] = [
            lambda: cluster_metrics(database, ClusterSpace(cluster)),
            lambda: lease_metrics(locks),
        ]
        if store is not None:
            sysdb = stack.enter_context(SysDb(database, cluster))
            options = {"endpoint_url": endpoint_url} if store.startswith("s3:") else {}
            heaps: list[Heap] = []

            def heap() -> int:
                if not heaps:  # a store that is away keeps none of the other duties
                    heaps.append(open_heap_on(stack, sysdb, store, options))
                return prune_untended(heaps[0], locks)

            duties.append(Duty("heap", every, heap))
            figures.append(lambda: heap_metrics(sysdb, *heaps))
        if once:
            for duty in duties:
                typer.echo(f"{duty.name}: {duty.work()}")
            return
        stack.enter_context(
            metrics_served(lambda: [metric for each in figures for metric in each()], metrics_address, metrics_port)
        )
        Duties(locks, duties).run(stop)


@dataclass(frozen=True)
class Kept:
    """For how many seconds what is no longer needed is kept; see the options of `clean`."""

    ids: float
    leases: float
    memos: float | None  # None: for ever
    memo_bytes: int | None  # None: any number
    runs: float
    futures: float


def duties_of(database: Any, cluster: str, locks: LeaseManager, kept: Kept, every: float, *, once: bool) -> list[Duty]:
    """What is done for every cluster, each `every` seconds or so; `once`: the only round, which looks at everything.

    Raises NewerFormatError where a newer release wrote the cluster: what the dead held there would be taken for nothing.
    """
    space = ClusterSpace(cluster)
    run(database, open_cluster, space, strategy="off")
    caretaker = Caretaker(database, space, all_workers=True)
    cleaner = Cleaner(database, kept.ids)
    abandoned, histories = AbandonedLeases(locks, kept.leases), OldHistories(locks)
    collector = Collector(database, space, grace=kept.futures)

    def garbage() -> int:
        found = collector.whole_pass() if once else collector.tick()
        return sum(getattr(found, field.name) for field in dataclasses.fields(found))

    def ids() -> int:
        cleaned = cleaner.run_once()
        return cleaned.rows + cleaned.clients

    duties = [
        Duty("workers", min(every, TTL_SECONDS / LOOKS_PER_TTL), lambda: len(caretaker.look(time.monotonic()))),
        Duty("sessions", every, locks.clear_dead_sessions),
        Duty("garbage", min(every, COLLECT_SECONDS), garbage),
        Duty("leases", every, lambda: abandoned.clear() + histories.clear()),
        Duty("ids", every, ids),
        Duty("runs", max(every, RUNS_EVERY), OldMemos(locks, kept.runs, pipeline=RUNS_PIPELINE).clear),
    ]
    if kept.memos is not None or kept.memo_bytes is not None:
        duties.append(Duty("memos", max(every, MEMO_SECONDS), OldMemos(locks, kept.memos, kept.memo_bytes).clear))
    return duties
