"""Commits that change nothing, begun and looked at without waiting: whether a database takes any."""

from __future__ import annotations

import threading
from typing import Any, Final

from fdb_schema import ClusterSpace, fdb_error_code

_MOMENT: Final = 0.05
"""Seconds in which a commit is mostly made: who began it then knows at once."""


class TrialCommits:
    """For one thread at a time."""

    def __init__(self, db: Any, space: ClusterSpace) -> None:
        self._db = db
        self._key = space.clock_key + b"\0"  # which is never there
        self._under_way: tuple[Any, Any, threading.Event] | None = (
            None  # the transaction, its commit, whether it has ended
        )

    def begin(self) -> bool:
        """Begin one, unless one is under way; whether one was begun. Returns soon, whatever the database does."""
        if self._under_way is not None and not self._under_way[2].is_set():
            return False
        ended = threading.Event()
        tr = self._db.create_transaction()
        tr.compare_and_clear(self._key, b"\0")
        commit = tr.commit()
        self._under_way = tr, commit, ended
        commit.on_ready(lambda _: ended.set())
        ended.wait(_MOMENT)
        return True

    def made(self) -> bool:
        """Whether the one that was begun last is made. Where that isn't known, another one is to be begun."""
        if self._under_way is None or not self._under_way[2].is_set():
            return False
        try:
            self._under_way[1].wait()
        except Exception as error:
            if fdb_error_code(error) is None:
                raise
            return False
        return True
