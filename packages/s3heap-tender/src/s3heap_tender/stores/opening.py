"""Opening a store by URL, and the probe that refuses one whose conditions do not hold."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from typing import Any, Final

from s3heap_tender.errors import ConflictError, StoreUnavailableError, StoreUrlError, UnconditionalStoreError
from s3heap_tender.rows.naming import PROBE_PREFIX
from s3heap_tender.stores.file import FileStore
from s3heap_tender.stores.memory import MemoryStore
from s3heap_tender.stores.port import Listed, NotModified, ObjectStore, StoredObject, list_from

CLIENTS: Final = ("aioboto3", "obstore")
CLIENT_VARIABLE: Final = "MAINSPRING_S3_CLIENT"
_FORMS: Final = "s3://BUCKET/PREFIX, file:DIRECTORY or memory:NAME"


class HeapStore:
    """The object store of a heap, opened by URL: `s3://bucket/prefix`, `file:./heap`, or `memory:` for tests.

    `probe=True` proves at open that conditional writes and deletes are honoured, with one small object that it removes.
    Options of an S3 store: endpoint_url (or the environment's `AWS_ENDPOINT_URL`), access_key, secret_key, region,
    timeout, connections, and client: "aioboto3" or, where it is installed, the faster "obstore" (or the environment's
    `MAINSPRING_S3_CLIENT`). Of a file store: fsync.

    Raises:
        StoreUrlError: the URL names no store, or one that can't be used.
        UnconditionalStoreError: the store ignores conditions.
        StoreUnavailableError: the store doesn't answer.
    """

    def __init__(
        self,
        url: str,
        *,
        endpoint_url: str | None = None,
        probe: bool = True,
        store: ObjectStore | None = None,
        **options: Any,
    ) -> None:
        self.inner: ObjectStore = store if store is not None else _open(url, endpoint_url, options)
        self.url = self.inner.url
        if probe:
            try:
                probe_conditions(self.inner)
            except BaseException:
                self.inner.close()
                raise

    def get(self, key: str, *, if_none_match: str | None = None) -> StoredObject | NotModified | None:
        """See `ObjectStore.get`."""
        return self.inner.get(key, if_none_match=if_none_match)

    def put(self, key: str, body: bytes, *, if_match: str | None) -> str:
        """See `ObjectStore.put`."""
        return self.inner.put(key, body, if_match=if_match)

    def delete(self, key: str, *, if_match: str) -> None:
        """See `ObjectStore.delete`."""
        self.inner.delete(key, if_match=if_match)

    def list(self, prefix: str, *, before: str | None = None, since: str | None = None) -> Iterator[Listed]:
        """See `ObjectStore.list`."""
        return list_from(self.inner, prefix, before=before, since=since)

    def close(self) -> None:
        """Let go of connections and threads."""
        self.inner.close()

    def __enter__(self) -> HeapStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"HeapStore({self.url!r})"


def _open(url: str, endpoint_url: str | None, options: dict[str, Any]) -> ObjectStore:
    scheme, colon, rest = url.partition(":")
    if not colon:
        raise StoreUrlError(f"store URL {url!r} has no scheme: use {_FORMS}")
    if scheme == "s3":
        bucket, _, prefix = rest.removeprefix("//").partition("/")
        if "//" in prefix:
            raise StoreUrlError(f"store URL {url!r}: a prefix can't hold '//'")
        client = _client(options.pop("client", None) or os.environ.get(CLIENT_VARIABLE) or CLIENTS[0])
        opened: ObjectStore = client(
            bucket, prefix, endpoint_url=endpoint_url or os.environ.get("AWS_ENDPOINT_URL"), **options
        )
        return opened
    if endpoint_url is not None:
        raise StoreUrlError(f"endpoint_url is for s3: URLs, not for {url!r}")
    if scheme == "file":
        if not rest:
            raise StoreUrlError(f"store URL {url!r} names no directory: use file:DIRECTORY")
        return FileStore(rest.removeprefix("//"), **options)
    if scheme == "memory":
        return MemoryStore(rest, **options)
    raise StoreUrlError(f"store URL {url!r} has the unknown scheme {scheme!r}: use {_FORMS}")


def _client(name: str) -> Any:
    if name == "aioboto3":
        from s3heap_tender.stores.s3 import S3Store

        return S3Store
    if name == "obstore":
        from s3heap_tender.stores.rust import ObstoreStore

        return ObstoreStore
    raise StoreUrlError(f"there is no S3 client {name!r}: use {' or '.join(CLIENTS)}")


def probe_conditions(store: ObjectStore) -> None:
    """Prove that each condition refuses what it should. Raises `UnconditionalStoreError`, naming the one that didn't."""
    key = f"{PROBE_PREFIX}{secrets.token_hex(8)}"
    first = store.put(key, b"first " + key.encode(), if_match=None)
    try:
        _refuses(store, key, None, "If-None-Match on PUT")
        second = store.put(key, b"second " + key.encode(), if_match=first)
        if second == first:
            raise UnconditionalStoreError(
                f"{store.url} gives two contents of one object the same ETag; it can't be used"
            )
        _refuses(store, key, first, "If-Match on PUT")
        try:
            store.delete(key, if_match=first)
        except ConflictError:
            pass
        else:
            raise _ignored(store, "If-Match on DELETE")
        found = store.get(key)
        if not isinstance(found, StoredObject) or found.body != b"second " + key.encode():
            raise UnconditionalStoreError(f"{store.url} does not read back what was written; it can't be used")
    finally:
        with contextlib.suppress(ConflictError, StoreUnavailableError):
            left = store.get(key)
            if isinstance(left, StoredObject):
                store.delete(key, if_match=left.etag)


def _refuses(store: ObjectStore, key: str, if_match: str | None, condition: str) -> None:
    try:
        store.put(key, b"must not land", if_match=if_match)
    except ConflictError:
        return
    raise _ignored(store, condition)


def _ignored(store: ObjectStore, condition: str) -> UnconditionalStoreError:
    return UnconditionalStoreError(
        f"{store.url} ignores {condition}: two writers would overwrite each other's items. "
        f"Use a store with conditional writes and deletes (AWS S3, SeaweedFS 4, or file:)"
    )
