"""Samples, taken while the application runs, and those who wait for the next one."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, Final

from starlette.concurrency import run_in_threadpool

from mainspring_dashboard.answering import is_reading_error
from mainspring_dashboard.sampling.sampler import Sampler

log = logging.getLogger("mainspring.dashboard")

SILENT_SECONDS: Final = 10.0
"""A look that takes longer is told of: a cluster that is away gives neither an answer nor an error."""


class Live:
    """The sampler, ticking while the application runs, and those who wait for its next tick."""

    def __init__(self, sampler: Sampler, interval: float, acting: bool = False) -> None:
        self.sampler = sampler
        self._acting = acting
        self.closing = False
        self._interval = interval
        self._ticked = asyncio.Condition()
        self.ticks = 0
        self.streams = 0  # open ones

    def snapshot(self) -> dict[str, Any]:
        """The newest sample, and whether the page may act."""
        return self.sampler.snapshot() | {"actions": self._acting}

    async def run(self) -> None:
        """Tick until cancelled. A database that doesn't answer is shown, and asked again."""
        while True:
            try:
                await self._tick()
                self.sampler.problem = None
            except Exception as error:
                if not is_reading_error(error):
                    log.exception("a sample could not be taken")
                self.sampler.problem = str(error)
            await self._announce()
            await asyncio.sleep(self._interval)

    async def _tick(self) -> None:
        began = time.monotonic()
        look = asyncio.ensure_future(run_in_threadpool(self.sampler.tick))
        try:
            while not (await asyncio.wait([look], timeout=SILENT_SECONDS))[0]:
                silent = time.monotonic() - began
                self.sampler.problem = (
                    f"the database has given no answer for {silent:.0f} s: check that it runs and can be reached"
                )
                await self._announce()
            look.result()
        finally:
            look.cancel()

    async def close(self) -> None:
        """End every stream."""
        self.closing = True
        await self._announce()

    async def _announce(self) -> None:
        async with self._ticked:
            self.ticks += 1
            self._ticked.notify_all()

    async def next_tick(self, seen: int) -> int:
        """Wait until there was a tick after number `seen`; its number."""
        async with self._ticked:
            await self._ticked.wait_for(lambda: self.ticks > seen or self.closing)
            return self.ticks
