"""What adapters do with futures that nobody asks for again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

from futures_worker.client import Future
from futures_worker.errors import MainspringError


def leave_nothing(delete_all: Callable[[Iterable[Future[Any]]], None], futures: list[Future[Any]]) -> None:
    """Delete futures, of which some may be unknown to the cluster, as what they need was. What can't be deleted goes a while after."""
    try:
        delete_all(futures)
    except MainspringError:
        for future in futures:
            with contextlib.suppress(MainspringError):
                delete_all([future])
