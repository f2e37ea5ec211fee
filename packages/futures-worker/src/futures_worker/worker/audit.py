"""Finds objects that nobody recorded: of attempts that were lost, of clients that died midway, of streams that were deleted."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fdb_datamodel import WorkerId, recorded_objects, session_lives
from fdb_schema import ClusterSpace
from futures_worker.objects.object_names import ObjectName, parse_name
from futures_worker.objects.store import ObjectStore
from idempotent_txn import run

AUDIT_SECONDS = 30.0
"""From one look to the next; what two looks in a row find unrecorded goes."""
_PAGE = 100


class StoreAudit:
    """Compares one worker's store with the database. Used by one thread."""

    def __init__(
        self,
        db: Any,
        space: ClusterSpace,
        store: ObjectStore,
        worker: Callable[[], WorkerId],
        seconds: float = AUDIT_SECONDS,
    ) -> None:
        """`seconds` from one look to the next."""
        self._seconds = seconds
        self._db = db
        self._space = space
        self._store = store
        self._worker = worker
        self._suspects: set[str] = set()
        self._next = time.monotonic() + self._seconds

    def tick(self) -> list[str]:
        """Looks if it is time to; the names of the objects that were removed."""
        if time.monotonic() < self._next:
            return []
        self._next = time.monotonic() + self._seconds
        return self.look()

    def look(self) -> list[str]:
        """Looks now."""
        worker = self._worker()
        known = {name: parsed for name in self._store.names() if (parsed := parse_name(name)) is not None}
        names = list(known)
        unrecorded: set[str] = set()
        for start in range(0, len(names), _PAGE):
            page = {name: known[name] for name in names[start : start + _PAGE]}
            unrecorded |= run(self._db, _unrecorded, self._space, worker, page, strategy="off")
        gone = [name for name in unrecorded & self._suspects if self._store.delete(name)]
        self._suspects = unrecorded.difference(gone)
        return gone


def _unrecorded(tr: Any, space: ClusterSpace, worker: WorkerId, page: dict[str, ObjectName]) -> set[str]:
    recorded = recorded_objects(
        tr, space, worker, [(parsed.future_id, parsed.item if parsed.item >= 0 else None) for parsed in page.values()]
    )
    return {
        name
        for name, parsed in page.items()
        if name not in recorded and not (parsed.session and session_lives(tr, space, parsed.session))
    }
