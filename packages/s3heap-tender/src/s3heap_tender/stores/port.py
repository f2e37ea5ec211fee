"""The port between the heap and an object store: five calls, all of whose writes are conditional."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from s3heap_tender.errors import OversizedObjectError

MOST_BYTES: Final = 16 << 20
"""Bytes of an object, far more than any of the heap's has. What is larger somebody else put there, and is not read."""


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


def check_size(url: str, key: str, size: int) -> None:
    """Raises `OversizedObjectError` for the size of an object that is to be read."""
    if size > MOST_BYTES:
        raise OversizedObjectError(
            f"{url}: object {key} has {size:,} bytes, and none of the heap's has over {MOST_BYTES:,}: it is not read",
            key=key,
        )


class ObjectStore(Protocol):
    """Keys are flat names without "/". Safe to call from several threads.

    Errors: `ConflictError` (412, 409, 404 on a condition), `StoreUnavailableError` (nothing changed),
    `OutcomeUnknownError` (a write that may have landed), `OversizedObjectError` (of `get`: see `check_size`).
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

    def list(self, prefix: str, *, before: str | None = None, since: str | None = None) -> Iterator[Listed]:
        """Objects whose keys start with `prefix`, in the order of their keys: from `since` on, up to and without `before`.

        What lies before `since` costs no request.
        """
        ...

    def close(self) -> None:
        """Let go of connections and threads."""
        ...


def list_from(store: ObjectStore, prefix: str, *, before: str | None, since: str | None) -> Iterator[Listed]:
    """The store's `list`, also of one written before the port had `since`: then what lies before it is left out here."""
    if since is None:
        return store.list(prefix, before=before)
    parameters = inspect.signature(store.list).parameters
    if "since" in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return store.list(prefix, before=before, since=since)
    return (there for there in store.list(prefix, before=before) if there.key >= since)
