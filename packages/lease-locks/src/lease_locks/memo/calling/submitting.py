"""Calls that are made in the background."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class MemoFuture(Future[Any]):
    """What `submit` returns. `memo_uri`: the address of the invocation."""

    def __init__(self, memo_uri: str, cancel: Callable[[], bool]) -> None:
        super().__init__()
        self.memo_uri = memo_uri
        self._cancel_invocation = cancel

    def cancel(self) -> bool:
        """Cancel the invocation, also one that is being computed: as `runner.cancel`."""
        return super().cancel() or (not self.done() and self._cancel_invocation())
