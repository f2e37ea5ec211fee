"""What a pause looks at: watches on rows, and the processes of this host."""

from __future__ import annotations

import logging
from typing import Any, Final

from lease_locks.grants.transitions import PRESENT
from lease_locks.session.host import process_gone
from lease_locks.waiting.acquiring import Pause

log = logging.getLogger("lease_locks")
REFUSED_LOOK_SECONDS: Final = 0.5
"""How long a wait whose watches were refused sleeps before it looks again: by then it is a poll."""


def start_watches(tr: Any, rows: tuple[tuple[bytes, bytes | None], ...]) -> list[Any] | None:
    """Watches on rows, in a transaction that only reads; None where one has changed already since it was read."""
    for key, expected in rows:
        found = tr.get(key).value
        if (found is None) if expected == PRESENT else (found != expected):
            return None
    return [tr.watch(key) for key, _ in rows]


def watch_rang(watch: Any) -> bool:
    """Whether a watch that is ready saw a change; False where it failed: 1032, the client has too many of them."""
    try:
        watch.wait()
    except Exception as error:
        log.debug("a watch failed, its row is read again later: %s", error)
        return False
    return True


def any_gone(step: Pause) -> bool:
    """Whether all processes of one of the step's subjects have ended."""
    return any(all(v.record is not None and process_gone(v.record) for v in s.vitals) for s in step.processes)
