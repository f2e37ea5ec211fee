"""Acquisitions in the calling thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from typing import Any

from idempotent_txn import TransactionTimedOut, run, run_committed
from lease_locks.grants.space import LockKeys
from lease_locks.grants.transitions import Claim
from lease_locks.lease import Lease
from lease_locks.session.session import Session
from lease_locks.session.upkeep import IDEMPOTENT, LEAST_SECONDS
from lease_locks.waiting.acquiring import PROCESS_LOOK_SECONDS, Pause, Step, Transact, acquiring, start_within
from lease_locks.waiting.claims import limit, reentered
from lease_locks.waiting.pausing import REFUSED_LOOK_SECONDS, any_gone, start_watches, watch_rang


def acquire(session: Session, name: str, claim: Claim, timeout: float | None, *, reentrant: bool = False) -> Lease:
    """A lease on `name`; see `LeaseManager.acquire`."""
    owner = threading.current_thread()  # not its number, which the next thread may get
    again = reentered(session, name, owner, claim.mode) if reentrant else None
    if again is not None:
        return again
    timeout = limit(timeout)
    began = session.clocks.monotonic()
    start_within(session, name, timeout)
    lock = session.space.lock(name)
    lease: Lease = claimed(session, lock, claim, acquiring(session, lock, claim, timeout, began=began), owner)
    return lease


def claimed(session: Session, lock: LockKeys, claim: Claim, steps: Generator[Step, Any, Any], own: Any = None) -> Any:
    """Run the steps of an acquisition; an interrupt after its grant leaves no lease that nobody knows of.

    `own`: the thread that may acquire the lease again.
    """
    try:
        found = drive(session.db, steps)
        if own is not None:
            found.part.owner = own
        return found
    except BaseException as error:
        if not isinstance(error, Exception):
            session.withdraw(lock, claim)
        raise


def drive(db: Any, steps: Generator[Step, Any, Any]) -> Any:
    """Run steps in the calling thread."""
    try:
        step = next(steps)
        while True:
            answer: Any = None
            try:
                if isinstance(step, Transact):
                    answer = run_committed(db, step.body, strategy=IDEMPOTENT, timeout=step.timeout)
                else:
                    pause(db, step)
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        return end.value
    finally:
        steps.close()


def pause(db: Any, step: Pause) -> None:
    """Block until what the step waits for."""
    until = time.monotonic() + step.seconds
    rung, changed = threading.Event(), threading.Event()
    try:
        watches = run(db, start_watches, step.watch, strategy=IDEMPOTENT, timeout=max(LEAST_SECONDS, step.seconds))
    except TransactionTimedOut:
        return  # the pause is over; what to do about the database is up to the next look
    if watches is None:
        return

    def ring(watch: Any) -> None:
        if watch_rang(watch):
            changed.set()
        rung.set()

    try:
        for watch in watches:
            watch.on_ready(ring)
        while (left := until - time.monotonic()) > 0:
            if rung.wait(min(left, PROCESS_LOOK_SECONDS) if step.processes else left):
                if not changed.is_set():
                    changed.wait(min(left, REFUSED_LOOK_SECONDS))
                return
            if step.processes and any_gone(step):
                return
    finally:
        for watch in watches:
            watch.cancel()
