"""Acquisitions on an event loop. Waiting takes no thread; transactions run in a small pool."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from idempotent_txn import TransactionTimedOut, run, run_committed
from lease_locks.grants.transitions import Claim
from lease_locks.lease import Lease
from lease_locks.session.session import Session
from lease_locks.session.upkeep import IDEMPOTENT, LEAST_SECONDS
from lease_locks.waiting.acquiring import GRACE, PROCESS_LOOK_SECONDS, Pause, Step, Transact, acquiring, unanswered
from lease_locks.waiting.claims import claim_of, limit, reentered
from lease_locks.waiting.pausing import REFUSED_LOOK_SECONDS, any_gone, start_watches, watch_rang

log = logging.getLogger("lease_locks")

_POOL_THREADS = 4
_LONGEST_TRY: Final = 5.0
"""Seconds of one try of an acquisition's transaction, which is made again: a cancellation is delivered between two."""
PATIENCE: Final = 15.0
"""Seconds for which who is cancelled waits for the outcome of any other call; longer than a try, a release or its like takes."""


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_POOL_THREADS, thread_name_prefix="lease-async")


os.register_at_fork(after_in_child=_pool.cache_clear)  # its threads are the parent's: a child would wait for ever


def started(call: Callable[..., Any], *args: Any, **options: Any) -> asyncio.Future[Any]:
    """A short blocking call in the pool."""
    return asyncio.get_running_loop().run_in_executor(_pool(), functools.partial(call, *args, **options))


async def whatever_comes(future: asyncio.Future[Any], seconds: float | None = None) -> Any:
    """The outcome of a call in the pool, which is known soon: also where this task is cancelled, again and again.

    Raises `TimeoutError` where it isn't after so many seconds.
    """
    until = None if seconds is None else time.monotonic() + seconds
    while not future.done():
        left = None if until is None else until - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError("the database did not answer in time: what was asked of it may yet be done")
        try:
            await asyncio.wait([future], timeout=left)
        except asyncio.CancelledError:
            continue  # its caller was cancelled before, and says so when the outcome is known
    return future.result()


async def in_thread(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Run a short blocking call in the pool. A cancellation is delivered after it has ended: its outcome is known then; or
    after `PATIENCE` seconds."""
    future = started(call, *args, **options)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        try:
            await whatever_comes(future, PATIENCE)
        except Exception as error:
            log.debug("a cancelled call failed: %s", error)  # the cancellation goes first
        raise


async def in_tries(call: Callable[[float], Any], seconds: float | None) -> Any:
    """`call(limit)` in the pool, again and again for so many seconds where the database doesn't answer: each finds what one before
    it did."""
    until = None if seconds is None else time.monotonic() + seconds
    while True:
        left = float("inf") if until is None else max(LEAST_SECONDS, until - time.monotonic())
        try:
            return await in_thread(call, min(left, _LONGEST_TRY))
        except TransactionTimedOut:
            if left <= _LONGEST_TRY:
                raise


def _advance(steps: Generator[Step, Any, Any], answer: Any, failure: BaseException | None) -> tuple[bool, Any]:
    """(False, the next step) or (True, what the steps returned). Steps may clean up by a transaction: not on the loop."""
    try:
        return False, steps.send(answer) if failure is None else steps.throw(failure)
    except StopIteration as end:
        return True, end.value


async def acquire(
    session: Session,
    name: str,
    timeout: float | None = None,  # noqa: ASYNC109 - the twin of the sync signature
    *,
    reentrant: bool = False,
    **options: Any,
) -> Lease:
    """A lease on `name`; see `LeaseManager.acquire`. `reentrant` is by task. A cancelled wait leaves nothing behind."""
    owner = asyncio.current_task()
    claim: Claim = claim_of(session, **options)
    again = reentered(session, name, owner, claim.mode) if reentrant else None
    if again is not None:
        return again
    timeout = limit(timeout)
    began = session.clocks.monotonic()
    try:
        await in_tries(session.start, None if timeout is None else timeout + GRACE)
    except TransactionTimedOut as error:
        raise unanswered(name, timeout or 0.0, error) from error
    lease = await drive(session, acquiring(session, session.space.lock(name), claim, timeout, began=began))
    lease.part.owner = owner
    return lease


def _transacted(db: Any, body: Callable[[Any], Any], timeout: float) -> Any:
    return run_committed(db, body, strategy=IDEMPOTENT, timeout=timeout)


async def drive(session: Session, steps: Generator[Step, Any, Lease]) -> Lease:
    """Run steps on this event loop."""
    loop, running = asyncio.get_running_loop(), session.upkeep.steps
    running[steps] = loop.is_closed
    try:
        lease = await _driven(session.db, steps)
    except GeneratorExit:  # nobody goes on with this: the session ends the steps, which may take a transaction
        running[steps] = lambda: True
        session.ledger.poke()
        raise
    except BaseException:
        running.pop(steps, None)
        raise
    running.pop(steps, None)
    return lease


async def _driven(db: Any, steps: Generator[Step, Any, Lease]) -> Lease:
    answer: Any = None
    failure: BaseException | None = None
    while True:
        future = started(_advance, steps, answer, failure)
        cancelled = None
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError as error:
            cancelled = error
        except GeneratorExit:
            raise
        except BaseException:
            pass  # raised again below
        try:
            over, step = await whatever_comes(future)
        except BaseException:
            if cancelled is not None:
                raise cancelled from None
            raise
        answer, failure = None, cancelled
        if over and cancelled is not None:
            with contextlib.suppress(Exception):  # lost meanwhile, or owed to the database from now on
                await whatever_comes(started(step.release))
            raise cancelled  # it came when the lease was granted already
        if over:
            lease: Lease = step
            return lease
        if failure is not None:
            continue
        try:
            if isinstance(step, Transact):
                answer = await in_tries(functools.partial(_transacted, db, step.body), step.timeout)
            else:
                await _pause(db, step)
        except GeneratorExit:
            raise
        except BaseException as error:
            failure = error


async def _pause(db: Any, step: Pause) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + step.seconds
    rung, changed = asyncio.Event(), asyncio.Event()
    seconds = max(LEAST_SECONDS, step.seconds)
    try:
        watches = await in_thread(run, db, start_watches, step.watch, strategy=IDEMPOTENT, timeout=seconds)
    except TransactionTimedOut:
        return  # the pause is over; what to do about the database is up to the next look
    if watches is None:
        return

    def ring(watch: Any) -> None:
        try:
            if watch_rang(watch):
                loop.call_soon_threadsafe(changed.set)
            loop.call_soon_threadsafe(rung.set)
        except RuntimeError:
            pass  # the loop was closed while the watch was out: nobody waits any more

    try:
        for watch in watches:
            watch.on_ready(ring)
        while (left := until - loop.time()) > 0:
            try:
                await asyncio.wait_for(rung.wait(), min(left, PROCESS_LOOK_SECONDS) if step.processes else left)
                if not changed.is_set():
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(changed.wait(), min(left, REFUSED_LOOK_SECONDS))
                return
            except TimeoutError:
                if step.processes and any_gone(step):
                    return
    finally:
        for watch in watches:
            watch.cancel()
