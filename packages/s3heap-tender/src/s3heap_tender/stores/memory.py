"""Objects in this process's memory: for tests and simulations. The same name is the same store."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator

from s3heap_tender.errors import ConflictError
from s3heap_tender.stores.port import NOT_MODIFIED, Listed, NotModified, StoredObject, check_size


class MemoryStore:
    """A dictionary with conditions; ETags are hashes of the content, as S3's are."""

    _shared: dict[str, tuple[dict[str, bytes], threading.Lock]] = {}
    _registry = threading.Lock()

    def __init__(self, name: str = "") -> None:
        self.url = f"memory:{name}"
        with self._registry:
            if name:
                self._objects, self._lock = self._shared.setdefault(name, ({}, threading.Lock()))
            else:
                self._objects, self._lock = {}, threading.Lock()

    def get(self, key: str, *, if_none_match: str | None = None) -> StoredObject | NotModified | None:
        with self._lock:
            body = self._objects.get(key)
        if body is None:
            return None
        check_size(self.url, key, len(body))
        etag = _etag(body)
        return NOT_MODIFIED if etag == if_none_match else StoredObject(body, etag)

    def put(self, key: str, body: bytes, *, if_match: str | None) -> str:
        with self._lock:
            self._check(key, if_match)
            self._objects[key] = body
        return _etag(body)

    def delete(self, key: str, *, if_match: str) -> None:
        with self._lock:
            self._check(key, if_match)
            del self._objects[key]

    def list(self, prefix: str, *, before: str | None = None, since: str | None = None) -> Iterator[Listed]:
        with self._lock:
            found = [
                Listed(key, _etag(body), len(body))
                for key, body in sorted(self._objects.items())
                if key.startswith(prefix) and (before is None or key < before) and (since is None or key >= since)
            ]
        return iter(found)

    def close(self) -> None:
        pass

    def _check(self, key: str, if_match: str | None) -> None:
        body = self._objects.get(key)
        found = None if body is None else _etag(body)
        if found != if_match:
            raise ConflictError(f"{self.url}: object {key} has ETag {found}, the condition says {if_match}")


def _etag(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=16).hexdigest()
