"""How a thread of one client waits: it reads or follows until what it waits for is there, and is told why it takes so long."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from fdb_datamodel import ClusterSpace
from futures_worker.client.basis.diagnosis import warn_of_wait
from futures_worker.client.basis.nested import Awaited, NestedWait
from futures_worker.client.basis.record import FutureRecord
from futures_worker.client.outcome import describe
from futures_worker.client.session.queries import FutureQueries
from futures_worker.client.session.reader import rest_between_looks

WARN_SECONDS: Final = 10.0  # of waiting for one future after which its reason is told


class WaitingSession(Protocol):
    """What is asked of the session."""

    db: Any
    space: ClusterSpace
    queries: FutureQueries

    def wait_once(self, done: Callable[[], bool], pause: float, since: float, *, pump: bool = False) -> None:
        """See `Session`."""


def check_timeout(timeout: object) -> None:
    """Raises TypeError for what is no number of seconds, ValueError for one that ends no wait."""
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, (int, float))):
        raise TypeError(f"timeout is a number of seconds, or None for no limit, found {timeout!r:.80}")
    if timeout != timeout:
        raise ValueError("timeout is a number of seconds, or None for no limit, found nan")


def deadline_in(timeout: float | None) -> float | None:
    """The absolute end of a wait, by this process's monotonic clock. Raises as `check_timeout`."""
    check_timeout(timeout)
    return None if timeout is None else time.monotonic() + timeout


def wait_until(
    session: WaitingSession,
    done: Callable[[], bool],
    deadline: float | None,
    waited_for: Callable[[], FutureRecord | None],
    awaited: Awaited,
    *,
    pump: bool = False,
    look: Callable[[], None] | None = None,
) -> bool:
    """Block until `done()`, which may change whenever mail was delivered; False if the deadline passed first.

    `waited_for` names a future that explains the wait if it gets long. `pump`: the caller is the thread that reads for
    others. `look` is called about once a second, and may change what `done` says. Inside a task its slot is free for others
    meanwhile, and a wait for what waits for this task raises DeadlockError. Raises the database's error if it doesn't answer.
    """
    if done():
        return True
    with NestedWait(session.db, session.space, awaited) as nested:
        started = time.monotonic()
        warn_at = started + WARN_SECONDS
        look_at = started + rest_between_looks(0.0)
        while True:  # no condition (`turn`)
            if done():
                return True
            now = time.monotonic()
            rest = rest_between_looks(now - started)
            if look is not None and now >= look_at:
                look_at = now + rest
                look()
                if done():
                    return True
            if deadline is not None and now >= deadline:
                return False
            if now >= warn_at:
                slow = waited_for()
                why = None if slow is None else session.queries.why_it_waits(slow)
                warn_at = now + WARN_SECONDS if why is None else float("inf")
                if slow is not None and why is not None:
                    warn_of_wait(describe(slow.id, slow.name), now - started, why)
            pause = nested.look(rest * random.uniform(0.8, 1.2), now)
            if deadline is not None:
                pause = min(pause, deadline - now)
            session.wait_once(done, pause, started, pump=pump)
