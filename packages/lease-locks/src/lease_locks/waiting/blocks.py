"""`async with`: a lease for as long as a block of a task lasts, and, where it is wished, no block for longer than its lease."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from lease_locks.grants.errors import LeaseLost
from lease_locks.lease import Lease
from lease_locks.waiting.loops import in_thread


class _Block:
    """One task within its block."""

    def __init__(self, task: asyncio.Task[Any] | None, lease: Lease) -> None:
        self.task = task
        self.lease = lease
        self.over = False
        self.cancelled = False  # by the loss of its lease
        self._before = 0 if task is None else task.cancelling()

    def cancel_on_loss(self) -> None:
        loop = asyncio.get_running_loop()

        def lost(_: Lease) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed: nothing runs in it any more
                loop.call_soon_threadsafe(self._cancel)

        self.lease.on_lost(lost)

    def _cancel(self) -> None:
        if not self.over and self.task is not None:
            self.cancelled = True
            self.task.cancel(f"lease {self.lease.name!r} is lost")

    def was_lost(self, error: BaseException | None) -> bool:
        """At its end: whether it was the loss that cancelled it, and nobody else."""
        if not self.cancelled or self.task is None:
            return False
        others = self.task.uncancel() > self._before
        return isinstance(error, asyncio.CancelledError) and not others


class AsyncLock:
    """`async with`: an acquisition by whoever enters it, several tasks at once included."""

    def __init__(self, acquire: Callable[[], Awaitable[Lease]], cancel_on_loss: bool = False) -> None:
        """`cancel_on_loss`: a block whose lease is lost is cancelled where it awaits, and ends with `LeaseLost`."""
        self._acquire = acquire
        self._cancel_on_loss = cancel_on_loss
        self._entered: list[_Block] = []

    async def __aenter__(self) -> Lease:
        block = _Block(asyncio.current_task(), await self._acquire())
        self._entered.append(block)
        if self._cancel_on_loss:
            block.cancel_on_loss()
        return block.lease

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        task = asyncio.current_task()
        own = [block for block in self._entered if block.task is task]  # none where another one leaves than entered
        block = (own or self._entered)[-1]
        block.over = True
        self._entered.remove(block)
        lost = block.was_lost(error)
        await in_thread(block.lease.__exit__, kind, error, trace)
        if lost:
            # Released by now: what it was lost by is still known.
            reason = block.lease.lost_reason or "stolen"
            raise LeaseLost(
                f"lease {block.lease.name!r} (token {block.lease.token.hex}) was lost ({reason}): its block was cancelled",
                reason,
            ) from error
