"""A version from before an attempt's commit, which bounds its commit version from below, at the cost of a clock reading.

The attempt's own read version is exact; but asking a write-only transaction for it costs more than all else that a
strategy does. A read version that was had at most a moment before the attempt serves as well: every later commit has
a greater version. So the attempt is asked only where that moment is over, and its answer serves those that follow.
"""

from __future__ import annotations

import time
from typing import Any, Final

from fdb_schema import read_version
from idempotent_txn.attempts.repeat import until_read

FLOOR_SECONDS: Final = 0.25


class VersionFloor:
    """The last read version of a database that this process asked for. Shared by threads."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self.latest = 0
        """What `version` answers without asking, until `due`."""
        self.due = 0.0
        """Of `time.monotonic`."""

    def version(self, deadline: float | None) -> int:
        """A version that is at most a quarter of a second old, plus what the answer took."""
        now = time.monotonic()
        if now >= self.due:
            self.latest = until_read(self._db, read_version, deadline)
            self.due = now + FLOOR_SECONDS
        return self.latest

    def of(self, tr: Any) -> int:
        """The version of an attempt that has read, or is to: exact, and mostly known to it already."""
        self.latest = int(read_version(tr))
        self.due = time.monotonic() + FLOOR_SECONDS
        return self.latest
