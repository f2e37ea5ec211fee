"""What stands for the items of a generator: as the result of its future, and as the argument of futures that depend on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
        (read,) = _readers
        return read(self.id)

    def __len__(self) -> int:
        return self.count


_readers: list[Callable[[bytes], Iterator[Any]]] = []


def read_items_by(read: Callable[[bytes], Iterator[Any]]) -> None:
    """`read(future_id)` gives the items of a future in a worker's process. The client package, which reads them, says how."""
    _readers[:] = [read]
