"""Calls that take very many futures: the futures are joined by others in between, so that no transaction grows with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from futures_worker.client.basis.record import FutureRecord
from futures_worker.client.context import Home
from futures_worker.client.future import Future
from futures_worker.payload import Joined

MOST_INPUTS: Final = 1000
"""Futures that one future waits for directly."""


def join(
    inputs: Sequence[bytes], home: Home, submit: Callable[[tuple[Future[Any], ...], int], Future[Any]]
) -> tuple[Future[Any], ...]:
    """Futures of the joined results of `inputs`, in order; `submit(futures, number)` submits one call of `joined`."""
    pages = [inputs[start : start + MOST_INPUTS] for start in range(0, len(inputs), MOST_INPUTS)]
    return tuple(
        submit(tuple(Future(home, FutureRecord(one, stored=True, subscribed=False)) for one in page), number)
        for number, page in enumerate(pages)
    )


def joined(*values: Any) -> Joined:
    """What a future in between returns."""
    return Joined(values)
