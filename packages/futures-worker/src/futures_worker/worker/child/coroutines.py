"""Coroutine functions as tasks and methods of actors: each call has an event loop of its own, for as long as it runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Generator, Iterator
from types import AsyncGeneratorType, CoroutineType
from typing import Any

from futures_worker.errors import SoftTimeLimitExceeded
from futures_worker.worker.child.interrupts import Gate, gate


def finished(value: Any) -> Any:
    """What a coroutine comes to, an iterator over what an asynchronous generator yields, or the value itself."""
    kind = type(value)
    if kind is CoroutineType:
        try:
            with asyncio.Runner() as runner:
                return _run(runner, value)
        finally:
            value.close()  # where it was interrupted before it began
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
                    item = _run(runner, following())
                except StopAsyncIteration:
                    return
                yield item
        finally:
            runner.run(generator.aclose())


def _run(runner: asyncio.Runner, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine comes to. What interrupts the task meanwhile cancels the coroutine, at an await."""
    own = gate()
    if own is None or threading.current_thread() is not threading.main_thread():
        return runner.run(coroutine)
    try:
        return runner.run(_followed(coroutine, own))
    except _OverSoftLimit as error:
        raise SoftTimeLimitExceeded(*error.args).with_traceback(error.__traceback__) from None


async def _followed(coroutine: Coroutine[Any, Any, Any], own: Gate) -> Any:
    own.follow(asyncio.current_task())
    try:
        return await (_Told(coroutine, own) if own.limited else coroutine)
    finally:
        own.follow(None)


class _OverSoftLimit(SoftTimeLimitExceeded, asyncio.CancelledError):
    """Thrown into a coroutine: what handles cancellations, as groups of tasks do, takes it for one."""


class _Told(Awaitable[Any]):
    """A coroutine into which the passing of the soft limit is thrown as what it is."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], own: Gate) -> None:
        self._coroutine = coroutine
        self._gate = own

    def __await__(self) -> Generator[Any, Any, Any]:
        return self

    def __iter__(self) -> _Told:
        return self

    def __next__(self) -> Any:
        return self._coroutine.send(None)

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, error: Any, value: Any = None, frames: Any = None) -> Any:
        cancelled = isinstance(error, asyncio.CancelledError) or error is asyncio.CancelledError
        over = self._gate.take_over() if cancelled else None
        if over is not None:
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
            return self._coroutine.throw(_OverSoftLimit(*over.args))
        return self._coroutine.throw(error if value is None else value)

    def close(self) -> None:
        self._coroutine.close()
