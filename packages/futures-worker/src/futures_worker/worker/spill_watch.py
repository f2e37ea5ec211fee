"""Keeps a worker's directories alive where others clean up, and goes on without what they removed."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Final

from futures_worker.objects.store import ObjectStore

log = logging.getLogger("futures_worker")

LOOK_SECONDS: Final = 10.0
"""Between two looks at each file; whether the directory is there is looked at every time."""


class SpillWatch:
    """Used by one thread: the housekeeping's."""

    def __init__(self, store: ObjectStore, give_up: Callable[[], object] = lambda: None) -> None:
        """`give_up` is called where the worker's directory is another user's now: nothing that lies there can be trusted."""
        self._store = store
        self._give_up: Callable[[], object] | None = give_up
        self._next = 0.0

    def tick(self) -> list[str]:
        """Looks; the names of the objects that are lost. Whoever needs one finds it absent: it is computed anew, or said to be lost."""
        directory = self._store.directory
        old = directory.spill
        emptied = self._renew_memory()
        renewed = directory.renew_spill()
        if not (renewed or emptied) and time.monotonic() < self._next:
            return []
        self._next = time.monotonic() + LOOK_SECONDS
        os.utime(directory.spill)
        lost = self._store.drop_removed(memory=emptied)
        if emptied:
            log.error(
                "somebody removed the directory %s, which is in use, and %d objects with it: it is made anew. Where a user's sessions "
                "end, systemd removes what he has in /dev/shm: run workers as a service, or set RemoveIPC=no in logind.conf",
                directory.path,
                len(lost),
            )
        elif renewed:
            log.error(
                "somebody removed the spill directory %s, which is in use: %s takes its place", old, directory.spill
            )
        if lost and not emptied:
            log.error(
                "somebody removed %d spilled objects of this worker from %s: they are lost (%s%s); let what cleans there pass over it, "
                "or give the worker another --spill",
                len(lost),
                old,
                ", ".join(lost[:3]),
                ", ..." if len(lost) > 3 else "",
            )
        return lost

    def _renew_memory(self) -> bool:
        try:
            return self._store.directory.renew()
        except BlockingIOError:  # another worker that starts looks at it now
            return False
        except PermissionError:
            give_up, self._give_up = self._give_up, None
            if give_up is not None:
                log.exception("this worker has lost its directory and ends")
                give_up()
            return False
