"""How the function of a task is called: what it returns, what a coroutine of it comes to, what it yields."""

from __future__ import annotations

from collections.abc import Callable
from types import GeneratorType
from typing import Any

from futures_worker.failure import PROGRAM
from futures_worker.worker.child.coroutines import finished

_Call = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


def caller_of(options: bytes) -> _Call:
    """How a task with these options is called."""
    return _run_program if options == PROGRAM else _call


def _call(function: Callable[..., Any], positional: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """What the task's code returns; what it yields, once all of it is stored."""
    value = finished(function(*positional, **keywords))
    if type(value) is GeneratorType:
        from futures_worker.worker.child.streaming import stream_out

        return stream_out(value)
    return value


def _run_program(function: Callable[..., Any], positional: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """What a program returns, or what it is away for."""
    from futures_worker.programs.running import run_program

    return run_program(function, positional, keywords)
