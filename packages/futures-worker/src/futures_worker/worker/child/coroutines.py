"""Coroutine functions as tasks and methods of actors: each call has an event loop of its own, for as long as it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from types import AsyncGeneratorType, CoroutineType
from typing import Any


def finished(value: Any) -> Any:
    """What a coroutine comes to, an iterator over what an asynchronous generator yields, or the value itself."""
    kind = type(value)
    if kind is CoroutineType:
        return asyncio.run(value)
    if kind is AsyncGeneratorType:
        return _items(value)
    return value


def _items(generator: AsyncGenerator[Any, None]) -> Iterator[Any]:
    async def following() -> Any:
        return await anext(generator)

    with asyncio.Runner() as runner:
        try:
            while True:
                try:
                    item = runner.run(following())
                except StopAsyncIteration:
                    return
                yield item
        finally:
            runner.run(generator.aclose())
