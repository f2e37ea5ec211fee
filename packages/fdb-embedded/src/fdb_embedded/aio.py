"""An asyncio adapter: `await aio(tr.get(key))`. The binding's own `event_model="asyncio"` is broken on current Python."""

from __future__ import annotations

import asyncio
from typing import Any


async def aio(awaited: Any) -> Any:
    """Await a future of the official binding, over this engine or a real cluster; ranges too.

    A value or key is given as `bytes` or None, a range as its list of key-values, any other future as what its `wait`
    returns. Raises what `wait` raises (`FDBError`). Cancelling the task cancels a watch; a commit goes on, as its outcome
    must not be left open.
    """
    if hasattr(awaited, "to_list"):
        return await asyncio.get_running_loop().run_in_executor(None, awaited.to_list)
    if not awaited.is_ready():
        await _ready(awaited)
    return _result(awaited)


async def _ready(awaited: Any) -> None:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def finish() -> None:
        if not done.done():
            done.set_result(None)

    def on_ready(_: Any) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(finish)

    awaited.on_ready(on_ready)
    try:
        await done
    except asyncio.CancelledError:
        if not _is_commit(awaited):
            awaited.cancel()
        raise


def _is_commit(awaited: Any) -> bool:
    """Whether cancelling would leave a commit's outcome open; the engine's watches alone can be waited for directly."""
    engine_future = getattr(awaited, "fpointer", None)
    return getattr(engine_future, "direct", None) is None


def _result(awaited: Any) -> Any:
    if hasattr(awaited, "as_foundationdb_value"):
        return awaited.value
    return awaited.wait()
