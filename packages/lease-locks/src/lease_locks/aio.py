"""`AsyncLeaseManager`: the twin of `LeaseManager` for event loops."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import functools
import threading
from typing import Any

from lease_locks.errors import AcquireTimeout
from lease_locks.grants.info import LeaseEvent, LeaseInfo
from lease_locks.grants.tokens import FencingToken
from lease_locks.lease import Lease
from lease_locks.locks import LeaseManager
from lease_locks.waiting import loops
from lease_locks.waiting.blocks import AsyncLock
from lease_locks.waiting.loops import PATIENCE, in_thread, in_tries, started, whatever_comes


class AsyncLeaseManager:
    """`LeaseManager` for asyncio. Leases are the same objects; `lease.check()`, `guard` and `remaining` never block."""

    def __init__(self, db: Any = None, *args: Any, **options: Any) -> None:
        self.sync = db if isinstance(db, LeaseManager) else LeaseManager(db, *args, **options)

    async def __aenter__(self) -> AsyncLeaseManager:
        await in_tries(self.sync.session.start, None)
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.close()

    async def close(self) -> None:
        """Release every lease and end the session."""
        await in_thread(self.sync.close)

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
        return await loops.acquire(
            self.sync.session, name, timeout, reentrant=reentrant,
            ttl=ttl, mode=mode, slots=slots, fair=fair, max_hold=max_hold, meta=meta,
        )  # fmt: skip

    def lock(
        self, name: str, timeout: float | None = None, *, cancel_on_loss: bool = False, **options: Any
    ) -> AsyncLock:
        """`async with locks.lock("name", timeout=30) as lease:`

        `cancel_on_loss`: a block whose lease is lost is cancelled where it awaits, and ends with `LeaseLost`.
        """
        return AsyncLock(functools.partial(self.acquire, name, timeout, **options), cancel_on_loss)

    async def release(self, lease: Lease) -> bool:
        """`lease.release()` without blocking the loop."""
        return bool(await in_thread(lease.release))

    async def maintain(self, lease: Lease) -> None:
        """`lease.maintain()` without blocking the loop."""
        await in_thread(lease.maintain)

    async def join(self, name: str, writer_id: str, role: str = "remote") -> Lease:
        """As `LeaseManager.join`. A cancelled one leaves nothing behind."""
        cancelled = threading.Event()

        def leave(joined: Lease) -> None:
            self.sync.session.unjoin(joined.part.lock, joined.token, joined.part.key)

        def join() -> tuple[Lease, bool]:
            joined, late = self.sync.join(name, writer_id, role), cancelled.is_set()
            if late:
                leave(joined)  # its caller may not have waited for it
            return joined, late

        future = started(join)
        try:
            lease: Lease
            lease, _ = await asyncio.shield(future)
        except asyncio.CancelledError:
            cancelled.set()
            with contextlib.suppress(Exception):  # refused, or not answered: the cancellation goes first
                joined, left = await whatever_comes(future, PATIENCE)
                if not left:
                    leave(joined)
            raise
        return lease

    async def read(self, name: str) -> LeaseInfo | None:
        """As `LeaseManager.read`."""
        found: LeaseInfo | None = await in_thread(self.sync.read, name)
        return found

    async def list(self, prefix: str = "") -> builtins.list[LeaseInfo]:
        """As `LeaseManager.list`."""
        found: builtins.list[LeaseInfo] = await in_thread(self.sync.list, prefix)
        return found

    async def history(self, name: str) -> builtins.list[LeaseEvent]:
        """As `LeaseManager.history`."""
        found: builtins.list[LeaseEvent] = await in_thread(self.sync.history, name)
        return found

    async def force_release(self, name: str, *, reason: str) -> builtins.list[FencingToken]:
        """As `LeaseManager.force_release`."""
        ended: builtins.list[FencingToken] = await in_thread(self.sync.force_release, name, reason=reason)
        return ended
