"""What stands for the items of a generator: as the result of its future, and as the argument of futures that depend on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

MOST_AHEAD: Final = 100
"""Items that a generator may be ahead of who reads them."""


@dataclass(frozen=True, slots=True)
class StreamedItems:
    """The items that a future's generator yielded, read from the cluster while they are iterated over."""

    id: bytes
    count: int

    def __iter__(self) -> Iterator[Any]:
        from futures_worker.client.ambient import worker_client

        return iter(worker_client().get_future(self.id).stream())

    def __len__(self) -> int:
        return self.count
