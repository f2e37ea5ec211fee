"""Objects as files of one directory: a real store, with compare-and-swap between processes and fsync.

A write takes the lock of its key's shard (the kernel frees it when its holder dies), compares the ETag, writes beside
and renames over: an object is seen whole or not at all, by readers that take no lock.

    file = ETag (16 random bytes) + body
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fdb_schema.serving.private_files import PRIVATE_FILE, check_owner, make_private_directory, private_opener
from s3heap_tender.errors import ConflictError, OutcomeUnknownError, StoreUnavailableError, StoreUrlError
from s3heap_tender.stores.port import NOT_MODIFIED, Listed, NotModified, StoredObject, check_size

log = logging.getLogger("s3heap_tender")

_LOCKS: Final = 64
_HIDDEN: Final = "."
_ETAG_BYTES: Final = 16


class FileStore:
    """A directory of objects. `fsync=False` survives the death of processes but not of the machine."""

    def __init__(self, path: str | os.PathLike[str], *, fsync: bool = True) -> None:
        self.root = Path(path).expanduser().resolve()
        self.url = f"file:{self.root}"
        self._fsync = fsync
        try:
            check_owner(make_private_directory(self.root), log.warning)
            make_private_directory(self.root / ".locks")
            self._remove_scratches()
        except OSError as error:
            raise StoreUrlError(f"{self.url} can't be used as a heap's directory: {error}") from error

    def get(self, key: str, *, if_none_match: str | None = None) -> StoredObject | NotModified | None:
        data = self._read(key)
        if data is None:
            return None
        etag = _etag(data)
        return NOT_MODIFIED if etag == if_none_match else StoredObject(data[_ETAG_BYTES:], etag)

    def put(self, key: str, body: bytes, *, if_match: str | None) -> str:
        with self._locked(key):
            self._check(key, if_match)
            etag = secrets.token_bytes(_ETAG_BYTES)
            scratch = self.root / f"{_HIDDEN}{key}.{secrets.token_hex(8)}"
            try:
                with open(scratch, "xb", opener=private_opener) as handle:
                    handle.write(etag + body)
                    handle.flush()
                    if self._fsync:
                        os.fsync(handle.fileno())
                os.replace(scratch, self.root / key)
            except OSError as error:
                with contextlib.suppress(OSError):
                    scratch.unlink()
                raise StoreUnavailableError(f"{self.url}: object {key} can't be written: {error}") from error
            self._flush_directory(key)
        return etag.hex()

    def delete(self, key: str, *, if_match: str) -> None:
        with self._locked(key):
            self._check(key, if_match)
            try:
                (self.root / key).unlink()
            except OSError as error:
                raise StoreUnavailableError(f"{self.url}: object {key} can't be deleted: {error}") from error
            self._flush_directory(key)

    def list(self, prefix: str, *, before: str | None = None, since: str | None = None) -> Iterator[Listed]:
        try:
            with os.scandir(self.root) as entries:
                names = sorted(
                    entry.name for entry in entries if entry.is_file() and not entry.name.startswith(_HIDDEN)
                )
        except OSError as error:
            raise StoreUnavailableError(f"{self.url} can't be listed: {error}") from error
        for name in names:
            if name.startswith(prefix) and (before is None or name < before) and (since is None or name >= since):
                try:
                    data = self._read(name, _ETAG_BYTES)
                except StoreUnavailableError:
                    data = b""  # its reader is told why it can't be read; every other object is listed
                if data is not None:
                    yield Listed(name, _etag(data), self._size(name))

    def close(self) -> None:
        pass

    def _read(self, key: str, size: int = -1) -> bytes | None:
        try:
            with open(self.root / key, "rb", opener=_opener) as handle:
                if size < 0:
                    check_size(self.url, key, os.fstat(handle.fileno()).st_size - _ETAG_BYTES)
                return handle.read(size)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreUnavailableError(f"{self.url}: object {key} can't be read: {error}") from error

    def _size(self, key: str) -> int:
        try:
            return max(0, (self.root / key).stat().st_size - _ETAG_BYTES)
        except FileNotFoundError:
            return 0

    def _check(self, key: str, if_match: str | None) -> None:
        data = self._read(key, _ETAG_BYTES)
        found = None if data is None else _etag(data)
        if found != if_match:
            raise ConflictError(f"{self.url}: object {key} has ETag {found}, the condition says {if_match}")

    def _flush_directory(self, key: str) -> None:
        if not self._fsync:
            return
        try:
            handle = os.open(self.root, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            raise OutcomeUnknownError(
                f"{self.url}: object {key} was changed, and may be again what it was if this machine fails: {error}"
            ) from error

    def _remove_scratches(self) -> None:
        """Remove what writers that died have left: under the lock of its key a scratch file is nobody's."""
        for name in os.listdir(self.root):
            key = name[1:].rpartition(".")[0]
            if name.startswith(_HIDDEN) and name.count(".") > 1 and key and (self.root / name).is_file():
                with self._locked(key), contextlib.suppress(FileNotFoundError):
                    (self.root / name).unlink()

    @contextlib.contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        slot = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=2).digest(), "big") % _LOCKS
        try:
            handle = os.open(self.root / ".locks" / str(slot), os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
        except OSError as error:
            raise StoreUnavailableError(f"{self.url}: no lock can be taken: {error}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)  # a child that was forked meanwhile has the descriptor, too
            os.close(handle)


def _opener(path: str, flags: int) -> int:
    """A pipe in the place of an object keeps nobody waiting."""
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no file")
    return descriptor


def _etag(data: bytes) -> str:
    return data[:_ETAG_BYTES].hex()
