"""One look through the newest futures and those that failed last: what went wrong with them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from fdb_datamodel import list_futures, list_workers
from fdb_datamodel.views.reading import with_reason
from fdb_datamodel.views.troubles import TroubleKind, Troubles
from fdb_schema import ClusterSpace
from idempotent_txn import run
from mainspring_dashboard.lists.describing import DESCRIBED, described
from mainspring_dashboard.lists.renewed import Renewed

NEWEST: Final = 3_000
"""Futures that are looked through."""
BUDGET_SECONDS: Final = 2.0
"""After which a look reads on no further: between the futures may be millions of ids that were deleted."""
PAGE: Final = 500
GROUPS: Final = 12


class Survey:
    """The answers of one look, kept for some seconds: any number of pages may ask. Methods block."""

    def __init__(self, db: Any, space: ClusterSpace) -> None:
        self._db = db
        self._space = space
        self._failed: Sequence[bytes] = ()
        self._renewed = Renewed("survey", self._read)

    def attention(self, failed: Sequence[bytes] = ()) -> dict[str, Any]:
        """Groups of failures, and of futures that nobody will run as things are. `failed`: ids that are looked at too.

        looked: how many futures were looked through, the newest; all: whether those are all there are.
        """
        self._failed = failed
        return self._renewed()

    def _read(self) -> dict[str, Any]:
        workers = run(self._db, list_workers, self._space, strategy="off")
        troubles, seen = Troubles(), set[bytes]()
        cursor: bytes | None = None
        until = time.monotonic() + BUDGET_SECONDS
        while len(seen) < NEWEST:
            infos, cursor = run(
                self._db, list_futures, self._space, cursor, PAGE, None, newest_first=True, strategy="off"
            )
            for info in infos:
                seen.add(info.id)
                troubles.add(with_reason(info, workers))
            if cursor is None or time.monotonic() >= until:
                break
        looked, others = len(seen), [one for one in reversed(self._failed) if one not in seen]
        for at in range(0, len(others) if cursor is not None else 0, DESCRIBED):
            for info in run(self._db, described, self._space, others[at : at + DESCRIBED], strategy="off"):
                troubles.add(with_reason(info, workers))
            if time.monotonic() >= until:
                break
        return {**_attention(troubles), "looked": looked, "all": cursor is None}


def _attention(troubles: Troubles) -> dict[str, Any]:
    """Who waits in vain does so now and comes first, then what failed; the newest first."""
    listed = sorted(troubles.groups.values(), key=lambda one: (one.kind is not TroubleKind.stuck, -one.last_us))
    groups = [
        {
            "kind": group.kind.value,
            "name": group.name,
            "what": group.what,
            "count": group.count,
            "id": str(UUID(bytes=group.id)),
            "message": group.message[:500],
            "last": group.last_us / 1e6 if group.last_us > 0 else None,
        }
        for group in listed[:GROUPS]
    ]
    return {"groups": groups, "more": max(0, len(troubles.groups) - GROUPS), "followers": troubles.followers}
