"""What must hold after a chaos run: of every future, of the capacity, of the rows, and of what is left on the host."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos import tasks
from chaos.client import lengths
from chaos.kinds import own_rows
from fdb_datamodel import Collector, FutureInfo, FutureState, list_workers, validate
from fdb_datamodel.rows.ids import show_id
from fdb_schema import ClusterClock, read_range
from fdb_schema.keyspace import prefix_end
from futures_worker import Client, FutureDeletedError
from futures_worker.objects.work_directory import memory_root
from idempotent_txn import run

if TYPE_CHECKING:
    from chaos.harness import ChaosRun

_ANY_DEATH = frozenset({"worker-lost", "crash", "oom"})
_ACTOR = frozenset({"cancelled", "error", "drained"}) | _ANY_DEATH
ALLOWED: dict[str, frozenset[str]] = {
    "sure": frozenset(),
    "length": frozenset(),
    "items": frozenset(),
    "stream": frozenset(),
    "keyed": frozenset(),
    "part": frozenset(),
    "put": frozenset(),  # a small one, of a dataset
    "stored": frozenset({"object-lost"}),
    "of-put": frozenset({"upstream", "object-lost"}),
    "of-deleted": frozenset({"upstream"}),
    "deleted": frozenset(),
    "error": frozenset({"error"}) | _ANY_DEATH,
    "of-error": frozenset({"upstream"}),
    "broken": frozenset({"error"}) | _ANY_DEATH,
    "once": frozenset({"object-lost"}) | _ANY_DEATH,
    "exec": _ANY_DEATH,
    "timeout": frozenset({"timeout"}) | _ANY_DEATH,
    "late": frozenset({"timeout"}) | _ANY_DEATH,
    "cancel": frozenset({"cancelled"}),
    "cycle": frozenset({"deadlock", "error"}) | _ANY_DEATH,
    "unschedulable": frozenset({"unschedulable"}),
    "unpickle": frozenset({"unpickle"}) | _ANY_DEATH,
    "result-pickle": frozenset({"result-pickle"}) | _ANY_DEATH,
    "oom": _ANY_DEATH,
    "actor Tally": _ACTOR,
    "actor Shared": _ACTOR,
    "Tally.add": frozenset({"actor-died"}),
    "Tally.large": frozenset({"actor-died", "object-lost"}),
    "Shared.add": frozenset({"actor-died"}),
    "visit": frozenset({"error", "cancelled"}) | _ANY_DEATH,
    "of-call": frozenset({"upstream", "cancelled"}),
}
"""Reasons for which a future of each kind may fail."""
MUST_FAIL = frozenset(
    {"error", "of-error", "broken", "timeout", "unschedulable", "unpickle", "result-pickle", "oom", "cycle"}
    | {"actor Tally", "actor Shared"}
)
ANY_VALUE = frozenset(
    {"Tally.add", "Tally.large", "Shared.add", "visit", "of-call", "of-deleted", "exec", "part", "put"}
)
"""What depends on how long an actor had lived, or was compared by the client."""
OWN_ROWS = frozenset({"clock", "bells", "collector", "formats", "format", "identity", "secret", "timers"})
"""Subspaces of a cluster that stay when nothing is left of its futures."""


def check_futures(it: ChaosRun) -> None:
    """Every future Realized with the value that its name says, or Failed for a reason that its kind allows."""
    report, wrong = it.report, it.report.wrong
    with Client(it.url, it.cluster) as client:
        for info in it.futures():
            kind, _, expected = info.name.partition("=")
            label = f"{info.name} {show_id(info.id)}"
            if kind not in ALLOWED:
                wrong.append(f"future {show_id(info.id)} has name {info.name!r}")
                continue
            if info.state is FutureState.realized and kind not in MUST_FAIL:
                info = _check_value(it, client, info, kind, expected)
            report.futures += 1
            report.starts += info.attempts
            report.states[info.state] += 1
            if info.state is FutureState.failed:
                reason = info.failure.reason if info.failure is not None else "none"
                report.reasons[reason] += 1
                if reason not in ALLOWED[kind]:
                    wrong.append(f"{label} failed: {info.reason}")
                if info.failure is not None and not info.failure.message:
                    wrong.append(f"{label} failed and doesn't say why")
            elif kind in MUST_FAIL:
                wrong.append(f"{label} is realized")
    if it.marks.exists():
        for mark, count in Counter(it.marks.read_text().split()).items():
            if count > 1:
                wrong.append(f"once={mark} was started {count} times")
    if not it.plan.collecting:
        known = {info.id for info in it.futures()}
        prefix = own_rows(it.cluster)
        rows = run(it.db, lambda tr: read_range(tr, prefix, prefix_end(prefix)), strategy="off")
        missing = [key for key, _ in rows if key[len(prefix) :] not in known]
        wrong += [
            f"a row was committed without the future {show_id(key[len(prefix) :])} of its body" for key in missing
        ]


def _check_value(it: ChaosRun, client: Client, info: FutureInfo, kind: str, expected: str) -> FutureInfo:
    """Its value by a client that knows its id only; what is known of it afterwards."""
    future = client.get_future(info.id)
    try:
        value: Any = future.result(it.settle_seconds)
    except Exception as exc:
        now = next((f for f in it.futures() if f.id == info.id), None)
        if now is None and it.plan.collecting and isinstance(exc, FutureDeletedError):
            return info
        if now is None or now.state is not FutureState.failed:
            text = f"{info.name} {show_id(info.id)} can't be got: {type(exc).__name__}: {exc}"
            it.report.wrong.append(text)
        return now or info
    if kind == "stream":
        found: Any = len(value) if lengths(value) == tasks.mixed_lengths(len(value)) else lengths(value)
    elif kind == "deleted":
        return info
    else:
        found = len(value) if isinstance(value, (bytes, memoryview)) else value
    if str(found) != expected and kind not in ANY_VALUE:
        it.report.wrong.append(f"{info.name} {show_id(info.id)} has the value {found!r:.500}")
    return info


def check_capacity(it: ChaosRun) -> None:
    """Every worker's heartbeat says that all it has is free."""

    def busy() -> list[str]:
        lines = []
        statuses = run(it.db, list_workers, it.space, strategy="off")
        for status in statuses:
            beat = status.heartbeat
            if (
                status.claims or status.assignments or beat is None
                or beat.free_slots != beat.slots or beat.free.shape != beat.total.shape
            ):  # fmt: skip
                lines.append(f"{status.id}: {status.claims} claims, {status.assignments} assignments, {beat}")
        it.check_workers()
        registered = {status.info.pid for status in statuses}
        lines += [f"worker {n} isn't registered" for n, w in enumerate(it.workers) if w.popen.pid not in registered]
        return lines

    it.await_that(lambda: not busy(), lambda: "capacity isn't free again:\n" + "\n".join(busy()))


def end_workers(it: ChaosRun) -> None:
    """All end by SIGTERM, in time and well."""
    for worker in it.workers:
        worker.signal(signal.SIGTERM)
    for number, worker in enumerate(it.workers):
        try:
            code = worker.popen.wait(it.settle_seconds)
        except subprocess.TimeoutExpired:
            it.give_up(f"worker {number} doesn't end after SIGTERM:\n{worker.tail()}")
        if code != 0:
            it.report.wrong.append(f"worker {number} ended with {code}:\n{worker.tail()}")


def check_rows(it: ChaosRun) -> None:
    """The invariants hold."""
    it.report.wrong += [str(violation) for violation in validate(it.db, it.cluster)]


def check_garbage(it: ChaosRun) -> None:
    """With every client gone and no grace, nothing is left of the futures, not even a tombstone."""
    db, space = it.db, it.space
    clock = ClusterClock(space)
    collector = Collector(db, space, grace=0.0, session_ttl=1.0, tombstones=0.0)

    def left() -> dict[str, int]:
        span = space.range(())
        rows = run(db, lambda tr: read_range(tr, span.start, span.stop), strategy="off")
        found = Counter(str(space.unpack(key)[0]) for key, _ in rows)
        return {name: count for name, count in found.items() if name not in OWN_ROWS}

    def collected() -> bool:
        run(db, clock.advance, strategy="off")
        clock.committed()
        collector.look_at_sessions()
        collector.whole_pass()
        return not left()

    it.await_that(collected, lambda: f"rows that nobody collects: {left()}")
    check_rows(it)


def check_leftovers(it: ChaosRun) -> None:
    """No process, file or segment of the run is left."""

    def left() -> list[str]:
        lines = [f"process {pid}: {line}" for pid, line in it.of_run()]
        lines += [f"file {path}" for path in it.folder.glob("spill-*/*")]
        found = set(memory_root().glob(f"futures-worker-{os.getuid()}-*")) - it.shm_before
        return lines + [f"file {path}" for path in found if _owner_in(path) in it.of_workers]

    it.await_that(lambda: not left(), lambda: "left behind:\n" + "\n".join(left()))


def _owner_in(path: Path) -> int:
    """The process that the name of a worker's directory, or of its lock, names: others' clusters aren't judged."""
    number = path.name.split("-")[3]
    return int(number) if number.isdigit() else -1
