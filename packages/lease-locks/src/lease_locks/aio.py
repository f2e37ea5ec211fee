"""The async twin: the same steps on an event loop. Waiting takes no thread; transactions run in a small pool."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import functools
import logging
import os
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from idempotent_txn import TransactionTimedOut, run, run_committed
from lease_locks.acquiring import PROCESS_LOOK_SECONDS, Pause, Step, Transact, acquiring
from lease_locks.errors import AcquireTimeout
from lease_locks.info import LeaseEvent, LeaseInfo
from lease_locks.lease import Lease
from lease_locks.locks import (
    LEAST_SECONDS,
    REFUSED_LOOK_SECONDS,
    LeaseManager,
    any_gone,
    limit,
    start_watches,
    watch_rang,
)
from lease_locks.session import IDEMPOTENT
from lease_locks.tokens import FencingToken

log = logging.getLogger("lease_locks")

_POOL_THREADS = 4


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_POOL_THREADS, thread_name_prefix="lease-async")


os.register_at_fork(after_in_child=_pool.cache_clear)  # its threads are the parent's: a child would wait for ever


def _started(call: Callable[..., Any], *args: Any, **options: Any) -> asyncio.Future[Any]:
    """A short blocking call in the pool."""
    return asyncio.get_running_loop().run_in_executor(_pool(), functools.partial(call, *args, **options))


async def _whatever_comes(future: asyncio.Future[Any]) -> Any:
    """The outcome of a call in the pool, which is known soon: also where this task is cancelled, again and again."""
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            continue  # its caller was cancelled before, and says so when the outcome is known
    return future.result()


async def _in_thread(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Run a short blocking call in the pool. A cancellation is delivered after it has ended: its outcome is known then."""
    future = _started(call, *args, **options)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        try:
            await _whatever_comes(future)
        except Exception as error:
            log.debug("a cancelled call failed: %s", error)  # the cancellation goes first
        raise


def _advance(steps: Generator[Step, Any, Any], answer: Any, failure: BaseException | None) -> tuple[bool, Any]:
    """(False, the next step) or (True, what the steps returned). Steps may clean up by a transaction: not on the loop."""
    try:
        return False, steps.send(answer) if failure is None else steps.throw(failure)
    except StopIteration as end:
        return True, end.value


class AsyncLock:
    """`async with`: an acquisition by whoever enters it, several tasks at once included."""

    def __init__(self, manager: AsyncLeaseManager, name: str, timeout: float | None, options: dict[str, Any]) -> None:
        self._manager = manager
        self._name = name
        self._timeout = timeout
        self._options = options
        self._entered: list[tuple[Any, Lease]] = []  # by which task

    async def __aenter__(self) -> Lease:
        lease = await self._manager.acquire(self._name, self._timeout, **self._options)
        self._entered.append((asyncio.current_task(), lease))
        return lease

    async def __aexit__(self, *error: Any) -> None:
        task = asyncio.current_task()
        own = [entry for entry in self._entered if entry[0] is task]  # none where another one leaves than entered
        entry = (own or self._entered)[-1]
        self._entered.remove(entry)
        await _in_thread(entry[1].__exit__, *error)


class AsyncLeaseManager:
    """`LeaseManager` for asyncio. Leases are the same objects; `lease.check()`, `guard` and `remaining` never block."""

    def __init__(self, db: Any = None, *args: Any, **options: Any) -> None:
        self.sync = db if isinstance(db, LeaseManager) else LeaseManager(db, *args, **options)

    async def __aenter__(self) -> AsyncLeaseManager:
        await _in_thread(self.sync.__enter__)
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.close()

    async def close(self) -> None:
        """Release every lease and end the session."""
        await _in_thread(self.sync.close)

    async def try_acquire(self, name: str, **options: Any) -> Lease | None:
        """As `LeaseManager.try_acquire`."""
        try:
            return await self.acquire(name, timeout=0, **options)
        except AcquireTimeout:
            return None

    async def acquire(
        self,
        name: str,
        timeout: float | None = None,  # noqa: ASYNC109 - the twin of the sync signature
        ttl: float | None = None,
        mode: str = "exclusive",
        slots: int = 1,
        fair: bool = True,
        max_hold: float | None = None,
        reentrant: bool = False,
        meta: dict[str, Any] | None = None,
    ) -> Lease:
        """As `LeaseManager.acquire`; `reentrant` is by task. A cancelled wait leaves nothing behind."""
        owner = asyncio.current_task()
        again = self.sync._reenter(name, owner, mode) if reentrant else None
        if again is not None:
            return again
        claim = self.sync._claim(ttl, mode, slots, fair, max_hold, meta)
        timeout = limit(timeout)
        session = self.sync._session
        began = session.clocks.monotonic()
        await _in_thread(self.sync._start_within, name, timeout)
        lease: Lease = await self._drive(acquiring(session, self.sync.space.lock(name), claim, timeout, began=began))
        lease._owner = owner
        return lease

    def lock(self, name: str, timeout: float | None = None, **options: Any) -> AsyncLock:
        """`async with locks.lock("name", timeout=30) as lease:`"""
        return AsyncLock(self, name, timeout, options)

    async def release(self, lease: Lease) -> bool:
        """`lease.release()` without blocking the loop."""
        return bool(await _in_thread(lease.release))

    async def maintain(self, lease: Lease) -> None:
        """`lease.maintain()` without blocking the loop."""
        await _in_thread(lease.maintain)

    async def join(self, name: str, writer_id: str, role: str = "remote") -> Lease:
        """As `LeaseManager.join`. A cancelled one leaves nothing behind."""
        future = _started(self.sync.join, name, writer_id, role)
        try:
            lease: Lease = await asyncio.shield(future)
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):  # refused: the cancellation goes first
                joined = await _whatever_comes(future)
                self.sync._session.unjoin(joined._lock, joined.token, joined._key)
            raise
        return lease

    async def read(self, name: str) -> LeaseInfo | None:
        """As `LeaseManager.read`."""
        found: LeaseInfo | None = await _in_thread(self.sync.read, name)
        return found

    async def list(self, prefix: str = "") -> builtins.list[LeaseInfo]:
        """As `LeaseManager.list`."""
        found: builtins.list[LeaseInfo] = await _in_thread(self.sync.list, prefix)
        return found

    async def history(self, name: str) -> builtins.list[LeaseEvent]:
        """As `LeaseManager.history`."""
        found: builtins.list[LeaseEvent] = await _in_thread(self.sync.history, name)
        return found

    async def force_release(self, name: str, *, reason: str) -> builtins.list[FencingToken]:
        """As `LeaseManager.force_release`."""
        ended: builtins.list[FencingToken] = await _in_thread(self.sync.force_release, name, reason=reason)
        return ended

    async def _drive(self, steps: Generator[Step, Any, Lease]) -> Lease:
        loop, session = asyncio.get_running_loop(), self.sync._session
        session.steps[steps] = loop.is_closed
        try:
            lease = await self._driven(steps)
        except GeneratorExit:  # nobody goes on with this: the session ends the steps, which may take a transaction
            session.steps[steps] = lambda: True
            session.poke()
            raise
        except BaseException:
            session.steps.pop(steps, None)
            raise
        session.steps.pop(steps, None)
        return lease

    async def _driven(self, steps: Generator[Step, Any, Lease]) -> Lease:
        answer: Any = None
        failure: BaseException | None = None
        while True:
            future = _started(_advance, steps, answer, failure)
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
                over, step = await _whatever_comes(future)
            except BaseException:
                if cancelled is not None:
                    raise cancelled from None
                raise
            answer, failure = None, cancelled
            if over and cancelled is not None:
                with contextlib.suppress(Exception):  # lost meanwhile, or owed to the database from now on
                    await _whatever_comes(_started(step.release))
                raise cancelled  # it came when the lease was granted already
            if over:
                lease: Lease = step
                return lease
            if failure is not None:
                continue
            try:
                if isinstance(step, Transact):
                    answer = await _in_thread(
                        run_committed, self.sync.db, step.body, strategy=IDEMPOTENT, timeout=step.timeout
                    )
                else:
                    await self._pause(step)
            except GeneratorExit:
                raise
            except BaseException as error:
                failure = error

    async def _pause(self, step: Pause) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + step.seconds
        rung, changed = asyncio.Event(), asyncio.Event()
        seconds = max(LEAST_SECONDS, step.seconds)
        try:
            watches = await _in_thread(
                run, self.sync.db, start_watches, step.watch, strategy=IDEMPOTENT, timeout=seconds
            )
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
