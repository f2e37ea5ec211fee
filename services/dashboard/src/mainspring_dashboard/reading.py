"""Everything the page shows, read from the database as plain values that JSON can carry. Nothing is unpickled or written."""

from __future__ import annotations

import shlex
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final
from uuid import UUID

from fdb_datamodel import (
    NO_SESSION,
    FutureDeletedError,
    FutureInfo,
    FutureState,
    TaskOutput,
    UnknownFutureError,
    WorkerStatus,
    describe_future,
    list_downstreams,
    list_futures,
    list_workers,
    named_of,
    read_output,
    recount,
)
from fdb_datamodel.views.reading import with_reason
from fdb_datamodel.views.troubles import STUCK
from fdb_schema import ClusterSpace, open_database, url_of
from idempotent_txn import run
from idempotent_txn.cleaner import id_status
from lease_locks import LeaseEvent, LeaseInfo, LeaseManager
from lease_locks.grants.info import SERVICES
from mainspring_dashboard.lists.describing import DESCRIBED, described
from mainspring_dashboard.programs import read_program
from mainspring_dashboard.survey import Survey

LINEAGE_NODES: Final = 60
LINEAGE_DEPTH: Final = 8
LINEAGE_FOLD: Final = 6
"""So many relatives that are alike are drawn as one."""
LINEAGE_SIBLINGS: Final = 300  # relatives of one future that are looked at
READY_DEPENDENCIES: Final = 300
_SCAN_PAGE: Final = 100
_SCAN_SECONDS: Final = 0.05
_SCANNED_FUTURES: Final = 20_000  # by one search; the next page goes on from there


class Cluster:
    """One cluster of one database, for reading. Methods block; call them from threads.

    Raises what `open_database` raises. `FutureInfo` and the other records are turned into dicts whose ids are text.
    """

    def __init__(self, db: str | None, cluster: str) -> None:
        self.db: Any = open_database(db, create=False)  # it only looks: a mistyped path makes no database
        self.space = ClusterSpace(cluster)
        self.name = cluster
        self.url = url_of(self.db) or db or ""
        self.locks = LeaseManager(self.db, cluster)
        self.survey = Survey(self.db, self.space)

    def close(self) -> None:
        """Let go of the database."""
        self.locks.close()

    # --- futures

    def futures(
        self, state: FutureState | None, text: str, after: UUID | None, limit: int, newest_first: bool = False
    ) -> tuple[list[dict[str, Any]], str | None]:
        """A page of futures, oldest or newest first, and the id after which the next page starts.

        `text` is found in names, reasons, workers and ids. The page may be short, or empty, though more follow: a search
        takes a fraction of a second, and looks through at most 20,000 futures at a time.
        """
        rows: list[dict[str, Any]] = []
        cursor = after.bytes if after is not None else None
        wanted = text.casefold()
        looked, until = 0, time.monotonic() + _SCAN_SECONDS
        workers = run(self.db, list_workers, self.space, strategy="off")
        while len(rows) < limit and looked < _SCANNED_FUTURES:
            size = limit - len(rows) if not wanted and state is None else _SCAN_PAGE
            found, following = run(
                self.db, list_futures, self.space, cursor, size, state, newest_first=newest_first, strategy="off"
            )
            looked += max(size, len(found))
            for info in found:
                row = future_row(with_reason(info, workers))
                if not wanted or any(wanted in str(row[field] or "").casefold() for field in _SEARCHED):
                    rows.append(row)
                    if len(rows) == limit:
                        return rows, row["id"]
            if following is None:
                return rows, None
            cursor = following
            if time.monotonic() > until:
                break
        return rows, str(UUID(bytes=cursor)) if cursor is not None else None

    def described(self, ids: Sequence[bytes]) -> list[dict[str, Any]]:
        """Rows of these futures, in this order; those that were deleted are left out."""
        rows = []
        for at in range(0, len(ids), DESCRIBED):
            found = run(self.db, described, self.space, ids[at : at + DESCRIBED], strategy="off")
            rows += [future_row(info) for info in found]
        return rows

    def future(self, future_id: UUID) -> dict[str, Any] | None:
        """Everything about one future; None where there is none. A deleted one says so."""
        try:
            info = run(self.db, describe_future, self.space, future_id, strategy="off")
        except UnknownFutureError:
            return None
        except FutureDeletedError as deleted:
            return {"id": str(future_id), "state": "deleted", "reason": str(deleted)}
        program = info.details.get("durable")
        outputs = run(self.db, read_output, self.space, future_id, strategy="off")
        ended = run(self.db, recount, self.space, info.dependencies[:READY_DEPENDENCIES], strategy="off")
        ready = max((one.ended_us for one in ended), default=0)
        return (
            future_row(info)
            | _details(info)
            | {"output": [_output(one) for one in outputs], "ready": ready / 1e6 or None, "do": self._advice(info)}
            | ({"program": run(self.db, read_program, self.space, future_id, strategy="off")} if program else {})
        )

    def _advice(self, info: FutureInfo) -> str | None:
        """What a person does about a future that nobody will run as things are, commands in backquotes."""
        if info.state is not FutureState.unclaimed or not info.reason.startswith(STUCK):
            return None
        where = f"--db {shlex.quote(self.url)} --cluster {shlex.quote(self.name)}"
        cancel = f"or cancel it: `futures-worker cancel {UUID(bytes=info.id)} {where}`"
        if info.reason.startswith("unschedulable"):
            return f"start a worker that large, {cancel}"
        return f"start a worker: `futures-worker run {where}`, {cancel}"

    def lineage(self, future_id: UUID) -> dict[str, Any]:
        """The graph around a future: what it was made from, and what waits for it.

        nodes: id, name, state, level (0 itself, negative upstream, positive downstream); of many that are alike one stands for
        all, with their count, and more where there may be others. edges: [upstream, downstream].
        At most 60 nodes; `cut` says whether there would be more.
        """
        return run(self.db, _lineage, self.space, future_id.bytes, strategy="off")

    # --- workers, leases, ids

    def workers(self) -> list[dict[str, Any]]:
        """The live workers, with what they offer, what is free, and what they run."""
        return [_worker(status) for status in run(self.db, list_workers, self.space, strategy="off")]

    def leases(self, prefix: str, after: bytes | None, rows: int) -> tuple[list[dict[str, Any]], bytes | None]:
        """A page of the leases held whose names start with `prefix`, of about `rows` rows, and where the next starts.

        On it users' leases come before services', each by their names.
        """
        found, following = self.locks.page(prefix, after, rows)
        found.sort(key=lambda info: info.name.startswith(SERVICES))
        return [_lease(info) for info in found], following

    def lease(self, name: str) -> dict[str, Any]:
        """One name: who holds it (None: nobody), and its last 64 events, newest first."""
        info = self.locks.read(name)
        events = [_event(event) for event in reversed(self.locks.history(name))]
        return {"name": name, "held": _lease(info) if info is not None else None, "events": events}

    def ids(self) -> list[dict[str, Any]]:
        """What is kept of idempotency ids, per store."""
        return [asdict(store) for store in id_status(self.db)]


_SEARCHED: Final = ("id", "name", "reason", "worker")


def future_row(info: FutureInfo) -> dict[str, Any]:
    """A future in a listing. Times are seconds since 1970, for people."""
    return {
        "id": str(UUID(bytes=info.id)),
        "state": info.state.value,
        "name": info.name,
        "reason": info.reason,
        "attempts": info.attempts,
        "worker": info.address,
        "submitted": info.wall_us / 1e6 or None,
        "started": info.claimed_us / 1e6 or None,
        "ended": info.ended_us / 1e6 or None,
    }


def _details(info: FutureInfo) -> dict[str, Any]:
    failure = info.failure or info.last_failure
    details = {key: value for key, value in info.details.items() if not isinstance(value, bytes)}
    return {
        "session": info.session.hex() if info.session != NO_SESSION else "",
        "dataset": info.details.get("dataset", b"").hex(),
        "charged": info.charged,
        "max_retries": info.max_retries,
        "losses": info.losses,
        "out_of_memory": info.out_of_memory,
        "epoch": info.epoch,
        "priority": info.priority,
        "requirements": {
            "cpu": info.requirements.cpu,
            "ram": info.requirements.ram,
            "gpu": info.requirements.gpu,
            "resources": {name: amount / 1000 for name, amount in named_of(info.requirements.shape)},
        },
        "waiting_on": [str(UUID(bytes=one)) for one in info.waiting_on],
        "result_bytes": None if info.result is None else info.result.size or len(info.result.inline or b""),
        "copies": [f"{copy.worker.ip}:{copy.worker.port}" for copy in info.copies if copy.worker is not None],
        "allow_reconstruction": info.allow_reconstruction,
        "code_bytes": info.code_size,
        "args_bytes": info.args_size,
        "failure": None
        if failure is None
        else {
            "reason": failure.reason,
            "message": failure.message,
            "traceback": failure.traceback,
            "attempt": failure.attempt,
            "at": failure.wall_us / 1e6 or None,
            "chain": [str(UUID(bytes=one)) for one in failure.chain],
            "final": info.failure is not None,
        },
        "options": details,
    }


def _output(output: TaskOutput) -> dict[str, Any]:
    return {
        "attempt": output.attempt,
        "text": output.data.decode(errors="replace"),
        "dropped": output.size - len(output.data),
    }


def _lineage(tr: Any, space: ClusterSpace, root: bytes) -> dict[str, Any]:
    nodes: dict[bytes, dict[str, Any]] = {}
    edges: set[tuple[bytes, bytes]] = set()
    queue = deque([(root, 0)])
    expanded: set[bytes] = set()
    cut = False
    while queue:
        one, level = queue.popleft()
        if one in expanded:
            continue
        if one not in nodes and len(nodes) >= LINEAGE_NODES:
            cut = True
            break
        expanded.add(one)
        up, node = _node(tr, space, one, level)
        nodes.setdefault(one, node)
        downs = list_downstreams(tr, space, one, LINEAGE_SIBLINGS) if level >= 0 else []
        for relatives, step, wanted in ((up, -1, level <= 0), (downs, 1, level >= 0)):
            for other in _fold(tr, space, relatives, nodes, level + step) if wanted else ():
                edges.add((other, one) if step < 0 else (one, other))
                if abs(level) < LINEAGE_DEPTH:
                    queue.append((other, level + step))
    kept = [(up, down) for up, down in sorted(edges) if up in nodes and down in nodes]
    return {
        "nodes": list(nodes.values()),
        "edges": [[str(UUID(bytes=up)), str(UUID(bytes=down))] for up, down in kept],
        "cut": cut or len(kept) < len(edges),
    }


def _fold(
    tr: Any, space: ClusterSpace, relatives: Sequence[bytes], nodes: dict[bytes, dict[str, Any]], level: int
) -> list[bytes]:
    """The relatives to draw: of many that are alike in function and state one stands for all, and is a node at once."""
    if len(relatives) <= LINEAGE_FOLD:
        return list(relatives)
    looked = relatives[:LINEAGE_SIBLINGS]
    alike: dict[tuple[str, str], list[bytes]] = {}
    for counted in recount(tr, space, [one for one in looked if one not in nodes]):
        alike.setdefault((counted.name, counted.state.value), []).append(counted.id)
    drawn = [one for one in looked if one in nodes]
    rest = len(relatives) >= LINEAGE_SIBLINGS
    for (name, state), ids in alike.items():
        if len(ids) < LINEAGE_FOLD:
            drawn += ids
            continue
        node = {"id": str(UUID(bytes=ids[0])), "name": name, "state": state, "level": level}
        nodes[ids[0]] = node | {"count": len(ids), "more": rest}
        drawn.append(ids[0])
    return drawn


def _node(tr: Any, space: ClusterSpace, one: bytes, level: int) -> tuple[tuple[bytes, ...], dict[str, Any]]:
    node = {"id": str(UUID(bytes=one)), "name": "", "state": "unknown", "level": level}
    try:
        info = describe_future(tr, space, one)
    except UnknownFutureError:
        return (), node
    except FutureDeletedError:
        return (), node | {"state": "deleted"}
    return info.dependencies, node | {"name": info.name, "state": info.state.value}


def _worker(status: WorkerStatus) -> dict[str, Any]:
    info, beat = status.info, status.heartbeat
    free = beat.free if beat is not None else None
    return {
        "address": f"{status.id.ip}:{status.id.port}",
        "incarnation": status.id.incarnation.hex(),
        "host": info.host,
        "pid": info.pid,
        "started": info.wall_us / 1e6 or None,
        "beat": beat.wall_us / 1e6 or None if beat is not None else None,
        "beats": beat.counter if beat is not None else 0,
        "slots": info.slots,
        "free_slots": beat.free_slots if beat is not None else None,
        "claims": status.claims,
        "assignments": status.assignments,
        "cpu": info.total.cpu,
        "free_cpu": free.cpu if free is not None else None,
        "ram": info.total.ram,
        "free_ram": free.ram if free is not None else None,
        "gpu": info.total.gpu,
        "free_gpu": free.gpu if free is not None else None,
        "object_store": info.object_store,
        "cpu_used": beat.cpu_used if beat is not None else None,
        "memory_used": beat.memory_used if beat is not None else None,
        "free_object_store": beat.object_store_free if beat is not None else None,
    }


def _lease(info: LeaseInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "service": info.name.startswith(SERVICES),
        "token": info.token.hex,
        "host": info.host,
        "pid": info.pid,
        "mode": info.mode,
        "slots": info.slots,
        "holders": info.holders,
        "ttl": info.ttl,
        "max_hold": info.max_hold,
        "acquired": info.acquired_at.timestamp(),
        "renewed": info.updated_at.timestamp() if info.updated_at is not None else None,
        "maintainers": [{"role": one.role, "host": one.host, "pid": one.pid} for one in info.maintainers],
        "waiters": [
            {"host": one.host, "pid": one.pid, "mode": one.mode, "since": one.since.timestamp()} for one in info.waiters
        ],
        "meta": {str(key): str(value) for key, value in info.meta.items()},
    }


def _event(event: LeaseEvent) -> dict[str, Any]:
    return {
        "at": event.at.timestamp(),
        "kind": event.kind,
        "token": event.token.hex,
        "by": event.by,
        "why": event.why,
    }
