"""A watch: the future that ends when the value of a key differs from the one that was read."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Protocol

from .futures import Future

DEFAULT_LIMIT = 10_000


class Keeper(Protocol):
    """Who looks after the watches of a database."""

    @property
    def awaited(self) -> set[Watch]:
        """Those that somebody is to be called back by."""

    def wake(self) -> None:
        """Wake the threads that wait: one of their watches has ended, not by a change of its key."""


class Kept(Protocol):
    """The engine of a database."""

    @property
    def watches(self) -> Keeper: ...


class Holder(Protocol):
    """The database handle of a watch."""

    @property
    def engine(self) -> Kept: ...
    @property
    def watches(self) -> set[weakref.ref[Watch]]:
        """Those that count against the limit."""

    @property
    def max_watches(self) -> int: ...


class Watch(Future):
    """A watch. It counts against the limit of its database handle from `reserve` until it has ended, or is dropped."""

    __slots__ = ("counted", "database", "expected", "key")

    def __init__(self, database: Holder, key: bytes, expected: bytes | None) -> None:
        super().__init__()
        self.database = database
        # C functions alone, so that an interrupt of the collector can't lose count
        self.counted = weakref.ref(self, database.watches.discard)
        hash(self.counted)  # asked for now, it is known when the watch is gone
        self.key = key
        self.expected = expected  # the value that it waits to see differ

    def set(self, value: Any = None, error: int = 0) -> bool:
        """As `Future.set`."""
        self.database.watches.discard(self.counted)
        self.database.engine.watches.awaited.discard(self)
        return super().set(value, error)

    def cancel(self) -> None:
        """As `Future.cancel`. A thread that waits for it by itself is woken."""
        super().cancel()
        if self.direct is not None:
            self.database.engine.watches.wake()

    def add_callback(self, callback: Callable[[], None]) -> None:
        """As `Future.add_callback`. The watch stays until it has ended, though nobody holds it."""
        awaited = self.database.engine.watches.awaited
        awaited.add(self)
        super().add_callback(callback)
        if self.done:
            awaited.discard(self)

    def remove_callback(self, callback: Callable[[], None]) -> None:
        """As `Future.remove_callback`."""
        super().remove_callback(callback)
        if not self.callbacks:
            self.database.engine.watches.awaited.discard(self)
