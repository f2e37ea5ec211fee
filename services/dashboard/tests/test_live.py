"""Samples while the application runs: a cluster that gives no answer is told of, and so is its return."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest

from mainspring_dashboard.sampling import live as live_module
from mainspring_dashboard.sampling.live import Live

WAIT = 60.0


class Silent:
    """A sampler whose first look takes until `answer`."""

    def __init__(self) -> None:
        self.problem: str | None = None
        self.answer = threading.Event()

    def tick(self) -> None:
        assert self.answer.wait(WAIT)


def test_a_database_that_gives_no_answer_is_told_of_until_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "SILENT_SECONDS", 0.01)
    sampler: Any = Silent()

    async def main() -> None:
        live = Live(sampler, 0.001)
        running = asyncio.ensure_future(live.run())
        seen = await asyncio.wait_for(live.next_tick(0), WAIT)
        assert sampler.problem is not None
        assert "has given no answer" in sampler.problem
        sampler.answer.set()
        while sampler.problem is not None:
            seen = await asyncio.wait_for(live.next_tick(seen), WAIT)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    asyncio.run(main())
