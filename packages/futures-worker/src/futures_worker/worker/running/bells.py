"""Watches of the few keys that tell a worker to look again; a ring is a callback that wakes the main loop.

A watch is armed in a transaction that only reads. The value found then is compared with the one that the last look saw,
so that what happened between that look and the arming is never missed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from fdb_schema import get_many
from idempotent_txn import run


class Bells:
    """Bells by key. `wake` is called from any thread when one rings."""

    def __init__(self, db: Any, wake: Callable[[], None]) -> None:
        self._db = db
        self._wake = wake
        self._watches: dict[bytes, Any] = {}
        self._seen: dict[bytes, bytes | None] = {}
        self._rung: set[bytes] = set()
        self._lock = threading.Lock()

    def saw(self, key: bytes, value: bytes | None) -> None:
        """A look that covers everything up to this value of the bell has been taken."""
        self._seen[key] = value

    def armed(self, key: bytes) -> bool:
        """Whether a change of the bell will wake."""
        return key in self._watches

    def take_rung(self) -> set[bytes]:
        """Bells that rang since the last call; they are no longer armed."""
        with self._lock:
            if not self._rung:
                return set()
            rung, self._rung = self._rung, set()
        for key in rung:
            self._watches.pop(key, None)
        return rung

    def arm(self, *keys: bytes) -> set[bytes]:
        """Arms bells that aren't armed; returns those that changed since they were last looked at."""
        missing = [key for key in keys if key not in self._watches]
        if not missing:
            return set()

        def body(tr: Any) -> tuple[list[bytes | None], list[Any]]:
            return get_many(tr, missing), [tr.watch(key) for key in missing]

        values, watches = run(self._db, body, strategy="off")
        changed = set()
        for key, value, watch in zip(missing, values, watches, strict=True):
            self._watches[key] = watch
            watch.on_ready(lambda _future, key=key, watch=watch: self._ring(key, watch))
            if self._seen.get(key, value) != value:
                changed.add(key)
            self._seen[key] = value
        return changed

    def _ring(self, key: bytes, watch: Any) -> None:
        with self._lock:
            if self._watches.get(key) is not watch:
                return
            self._rung.add(key)
        self._wake()

    def close(self) -> None:
        """Lets go of all watches."""
        watches, self._watches = self._watches, {}
        for watch in watches.values():
            watch.cancel()
