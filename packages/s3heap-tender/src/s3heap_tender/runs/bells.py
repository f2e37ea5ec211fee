"""Watches of the few keys that tell an idle service to look again.

A watch is armed in a transaction that only reads. The value found then is compared with the one found before, so that what
happened in between is never missed; whoever waits looks again in a while all the same.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from typing import Any, Final

from fdb_schema import get_many
from idempotent_txn import run

MOST_WATCHES: Final = 64


class Bells:
    """The bells of one service. One thread arms and waits; they ring from any."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self._watches: dict[bytes, Any] = {}
        self._seen: dict[bytes, bytes | None] = {}
        self._rang = threading.Event()

    def arm(self, keys: Iterable[bytes]) -> bool:
        """Watch these keys and no others; whether one changed since it was last watched, or is watched for the first time:
        then it is to be looked at again. No transaction where all are watched already.
        """
        wanted = list(keys)[:MOST_WATCHES]
        for key in self._watches.keys() - set(wanted):
            self._watches.pop(key).cancel()
            self._seen.pop(key, None)
        self._rang.clear()  # before the look at what rang: what rings from here on ends the next wait
        missing = [key for key in wanted if key not in self._watches or self._watches[key].is_ready()]
        if not missing:
            return False

        def body(tr: Any) -> tuple[list[bytes | None], list[Any]]:
            return get_many(tr, missing), [tr.watch(key) for key in missing]

        values, watches = run(self._db, body, strategy="off")
        changed = False
        for key, value, watch in zip(missing, values, watches, strict=True):
            changed |= key not in self._seen or self._seen[key] != value
            self._seen[key] = value
            self._watches[key] = watch
            watch.on_ready(lambda _watch: self._rang.set())
        return changed

    def wait(self, seconds: float) -> bool:
        """Wait for a bell, or for `wake`; False where none rang in that time."""
        return self._rang.wait(seconds)

    def wake(self) -> None:
        """End a wait from another thread."""
        self._rang.set()

    def close(self) -> None:
        """Let go of all watches."""
        watches, self._watches = self._watches, {}
        for watch in watches.values():
            with contextlib.suppress(Exception):
                watch.cancel()
