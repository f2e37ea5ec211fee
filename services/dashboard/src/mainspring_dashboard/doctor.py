"""What `mainspring doctor` says of the cluster's services, asked again and again in a thread of its own."""

from __future__ import annotations

import logging
import threading
from dataclasses import asdict
from typing import Any, Final

from fdb_schema import MainspringError, fdb_error_code
from mainspring.doctor.examining import examine_briefly
from mainspring.doctor.findings import Level

WATCH_SECONDS: Final = 6.0
"""Between an examination's two looks: a worker beats several times meanwhile."""
EVERY_SECONDS: Final = 30.0
CLOSE_SECONDS: Final = 2.0

log = logging.getLogger("mainspring.dashboard")


class Doctor:
    """Examines a cluster from `start` to `stop`. `findings` may be read at any time, by any thread."""

    def __init__(self, db: Any, cluster: str, watch: float = WATCH_SECONDS, every: float = EVERY_SECONDS) -> None:
        self._db = db
        self._cluster = cluster
        self._watch = watch
        self._every = every
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.findings: list[dict[str, Any]] = []  # what is not as it should be, problems first
        self.examined = False  # whether that is the answer of an examination: there was none yet, or it failed

    def start(self) -> None:
        """Begin; the first findings are there after one watch."""
        # A daemon: a database that doesn't answer must not hold up the end of the process.
        self._thread = threading.Thread(target=self._run, name="doctor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End, unless it is in the middle of a reading; then soon."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self.examine()
            except Exception as error:
                if not isinstance(error, MainspringError) and fdb_error_code(error) is None:
                    log.exception("the cluster could not be examined")
                self.findings, self.examined = [], False  # that the database doesn't answer is said elsewhere
            self._over.wait(self._every)

    def examine(self) -> None:
        """Examine once; what is found while this is being stopped is dropped, its looks were too close."""
        found = examine_briefly(self._db, self._cluster, self._watch, self._pause)
        if self._over.is_set():
            return
        bad = [asdict(one) for one in found if one.level is not Level.ok]
        self.findings, self.examined = sorted(bad, key=lambda one: one["level"] != Level.problem), True

    def _pause(self, seconds: float) -> None:
        self._over.wait(seconds)
