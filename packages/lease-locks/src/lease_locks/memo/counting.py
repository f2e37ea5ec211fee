"""What a process's calls came to, counted exactly: executed, hit, awaited, failed; and for how long it waited for what it had computed.

Counts are added up here and written by atomic additions, every second and at exit, in transactions of which it is
always found out whether they committed; a process that is killed loses at most its last second of hits.
"""

from __future__ import annotations

import atexit
import logging
import secrets
import sys
import threading
import time
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from fdb_schema import read_version
from fdb_schema.forks import goes_on_in_children
from idempotent_txn import run
from lease_locks.grants.records import storable
from lease_locks.memo.rows import MemoRows
from lease_locks.memo.stored.addresses import Memo
from lease_locks.memo.stored.records import RunRecord

if TYPE_CHECKING:
    from lease_locks.locks import LeaseManager

log = logging.getLogger("lease_locks")
FLUSH_SECONDS: Final = 1.0
MICROSECONDS: Final = "us"
"""The kind of count that is a time: from the invocation's beginning to its outcome, of those that this process had computed."""
_PAGE: Final = 500
_TIMEOUT_SECONDS: Final = 10.0  # counts are not worth more waiting for a database that doesn't answer


class Counting:
    """The counts of one runner of this process."""

    def __init__(self, locks: LeaseManager, rows: MemoRows) -> None:
        self.run_id = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
        self._locks = locks
        self._rows = rows
        self._counts: Counter[tuple[Memo, str]] = Counter()
        self._mutex = threading.Lock()
        self._flushing = threading.Lock()
        self._started_us = locks.session.clocks.wall_us()
        self._thread: threading.Thread | None = None
        atexit.register(_at_exit, weakref.ref(self))
        goes_on_in_children(self)
        locks.before_close(self)

    def after_fork(self) -> None:
        """See `fdb_schema.forks`: what was counted is its parent's to write, a thread of which may have held a lock."""
        self._counts, self._thread = Counter(), None
        self._mutex, self._flushing = threading.Lock(), threading.Lock()

    def add(self, memo: Memo, kind: str, by: int = 1, *, flush: bool = False) -> None:
        """Count one call, or by how much."""
        with self._mutex:
            self._counts[memo, kind] += by
            if self._thread is None and not flush:
                self._thread = threading.Thread(target=_flush_later, args=(weakref.ref(self),), daemon=True)
                self._thread.start()
        if flush:
            self.close()

    def flush(self) -> None:
        """Write what was counted since the last time."""
        with self._flushing:
            while True:
                with self._mutex:
                    page = dict(list(self._counts.items())[:_PAGE])
                if not page:
                    return
                run(self._locks.db, self._write, page, timeout=_TIMEOUT_SECONDS)
                with self._mutex:
                    self._counts.subtract(page)
                    self._counts = +self._counts

    def _write(self, tr: Any, page: dict[tuple[Memo, str], int]) -> None:
        command = storable(" ".join(sys.argv[:1])[-200:])
        session = self._locks.session
        record = RunRecord(self._started_us, session.by, command, read_version(tr), session.clocks.wall_us())
        tr.set(self._rows.run_key(self.run_id), record.encode())
        for (memo, kind), count in page.items():
            self._rows.count(tr, self.run_id, memo, kind, count)

    def close(self) -> None:
        """`flush`, where a database that doesn't answer is no reason to fail: the counts are kept for the next time."""
        try:
            self.flush()
        except Exception as error:
            log.warning("the counts of run %s were not written: %s", self.run_id, error)


def _flush_later(reference: weakref.ref[Counting]) -> None:
    time.sleep(FLUSH_SECONDS)
    counting = reference()
    if counting is not None:
        with counting._mutex:
            counting._thread = None
        counting.close()


def _at_exit(reference: weakref.ref[Counting]) -> None:
    counting = reference()
    if counting is not None and not counting._locks.session.forked:
        counting.close()
