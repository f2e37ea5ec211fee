"""A service that is told to end does so though its database gives no answer: what it waits for could take for ever."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from fdb_schema.errors import EXIT_UNREACHABLE

SILENT_SECONDS: Final = 10.0
"""For so long a database may be silent while a service ends in good order."""
_PROBE_MS: Final = 2_000
_LOOK_SECONDS: Final = 0.5

log = logging.getLogger("fdb_schema")


def end_though_silent(
    stop: threading.Event, database: Any, after: Callable[[], float] = lambda: SILENT_SECONDS
) -> threading.Event:
    """Once `stop` is set, and the database has given no answer for `after()` seconds, this process ends with exit code 4.

    As after a SIGKILL nothing is lost, and others find out. Returns an event that ends this guard.
    """
    over = threading.Event()
    threading.Thread(target=_guard, args=(stop, over, database, after), name="ending", daemon=True).start()
    return over


def _guard(stop: threading.Event, over: threading.Event, database: Any, after: Callable[[], float]) -> None:
    stop.wait()
    heard = time.monotonic()
    while not over.is_set():
        if _answers(database):
            heard = time.monotonic()
        elif (silent := time.monotonic() - heard) >= after() and not over.is_set():
            log.error(
                "the database has given no answer for %.0f s: this process ends without telling it, others will find it gone",
                silent,
            )
            logging.shutdown()
            sys.stdout.flush()
            os._exit(EXIT_UNREACHABLE)
        over.wait(_LOOK_SECONDS)


def _answers(database: Any) -> bool:
    try:
        probe = database.create_transaction()
        probe.options.set_timeout(_PROBE_MS)
        probe.get_read_version().wait()
    except Exception:
        return False
    return True
