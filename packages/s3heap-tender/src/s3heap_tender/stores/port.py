"""The port between the heap and an object store: five calls, all of whose writes are conditional."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object as it was read."""

    body: bytes
    etag: str


@dataclass(frozen=True, slots=True)
class Listed:
    """An object as a listing shows it."""

    key: str  # without the store's prefix
    etag: str
    size: int


class NotModified:
    """What `get` returns where the object still has the ETag the caller knows."""


NOT_MODIFIED = NotModified()


class ObjectStore(Protocol):
    """Keys are flat names without "/". Safe to call from several threads.

    Errors: `ConflictError` (412, 409, 404 on a condition), `StoreUnavailableError` (nothing changed),
    `OutcomeUnknownError` (a write that may have landed).
    """

    url: str

    def get(self, key: str, *, if_none_match: str | None = None) -> StoredObject | NotModified | None:
        """The object; `NOT_MODIFIED` where it still has the ETag `if_none_match`; None where there is none."""
        ...

    def put(self, key: str, body: bytes, *, if_match: str | None) -> str:
        """Write the object and return its new ETag: in place of the one with ETag `if_match`, or where None a new one."""
        ...

    def delete(self, key: str, *, if_match: str) -> None:
        """Delete the object with ETag `if_match`."""
        ...

    def list(self, prefix: str, *, before: str | None = None) -> Iterator[Listed]:
        """Objects whose keys start with `prefix`, in the order of their keys, up to and without the key `before`."""
        ...

    def close(self) -> None:
        """Let go of connections and threads."""
        ...
