"""The strategy `ids`: a row per commit in user space, in FoundationDB's own format, for what `native` can't serve.

Each attempt writes its id's row, keyed by the versionstamp of the commit that writes it, and conflicts with other
attempts of the same id. Rows of automatic ids are cleared by the process's next transactions, a few with each, so that
the storage stays constant without a transaction of its own; rows of explicit ids stay until they are expired.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from itertools import islice
from typing import Any, Final

from fdb_schema import add_read_conflict_keys, fdb_error_code
from idempotent_txn.attempts.outcome import Committed
from idempotent_txn.attempts.strategy import StrategyName
from idempotent_txn.attempts.tracking import has_written, track_writes
from idempotent_txn.ids.floor import VersionFloor
from idempotent_txn.ids.identity import random_id
from idempotent_txn.ids.keyspace import CONFLICTS, ROWS
from idempotent_txn.ids.lookup import USER_SPACE, fence, look_up
from idempotent_txn.ids.rows import row_value

CLEARED_PER_COMMIT: Final = 4
MOST_DUE: Final = 100_000
_STAMPED_ROW: Final = ROWS + bytes(10) + struct.pack("<I", len(ROWS))


class _Attempt:
    """The token of an attempt: its id, a version from before it began, and the rows that it clears."""

    __slots__ = ("automatic", "clears", "floor", "id", "stamp", "written")

    def __init__(self, id: bytes, automatic: bool, floor: int) -> None:
        self.id = id
        self.automatic = automatic
        self.floor = floor
        self.written = False
        self.stamp: Any = None
        self.clears: list[bytes] = []


class StoredIds:
    """Ids in rows of user space, in one database. Shared by threads."""

    name: StrategyName = "ids"

    def __init__(self, db: Any) -> None:
        self._db = db
        self._floor: Final = VersionFloor(db)
        self._due: deque[bytes] = deque(maxlen=MOST_DUE)

    def begin(self, tr: Any, run_id: bytes | None, deadline: float | None) -> _Attempt:
        track_writes(tr)
        return _Attempt(random_id() if run_id is None else run_id, run_id is None, self._floor.version(deadline))

    def begin_again(self, tr: Any, token: _Attempt) -> None:
        return None  # all that the commit needs is added after the body

    def prepare(self, tr: Any, token: _Attempt, want_stamp: bool) -> None:
        if not has_written(tr):
            return
        token.written = True
        conflict = CONFLICTS + token.id
        add_read_conflict_keys(tr, (conflict,))
        tr.add_write_conflict_key(conflict)
        tr.set_versionstamped_key(_STAMPED_ROW, row_value(((token.id, 0),), int(time.time())))
        if token.automatic:
            token.stamp = tr.get_versionstamp()
        clears = token.clears
        try:
            # In one C call: an interruption between two would lose a row that is in neither list.
            clears.extend(islice(iter(self._due.popleft, None), CLEARED_PER_COMMIT - len(clears)))
        except IndexError:
            pass
        for key in clears:
            tr.clear(key)

    def committed(self, tr: Any, token: _Attempt) -> None:
        # After an interruption it may never come, and some clients let it fail; then the row is left to the cleaner.
        if token.stamp is not None and token.stamp.is_ready():
            try:
                stamp = bytes(token.stamp.value)
            except Exception as error:
                if fdb_error_code(error) is None:
                    raise
            else:
                self._due.append(ROWS + stamp)
                token.stamp = None

    def abandoned(self, token: _Attempt) -> None:
        self._due.extend(token.clears)

    def resolve(self, token: _Attempt) -> Committed | bool:
        if not token.written:
            return False
        last = fence(self._db, (USER_SPACE,), token.id)
        found = look_up(self._db, USER_SPACE, token.id, token.floor, last)
        if found is None:
            self._due.extend(token.clears)
            return False
        if token.automatic:
            self._due.append(ROWS + found.versionstamp)
        return found
