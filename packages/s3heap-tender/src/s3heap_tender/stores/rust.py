"""S3 through obstore, a client written in Rust: faster than the SDK, behind the same port.

obstore has no condition on DELETE, so it signs that request's URL and the condition is sent with it.
"""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from http.client import HTTPException
from typing import Any, ClassVar, Final

from s3heap_tender.errors import (
    ConflictError,
    OutcomeUnknownError,
    OversizedObjectError,
    StoreUnavailableError,
    StoreUrlError,
)
from s3heap_tender.stores.bucket import DEFAULT_REGION, BucketStore, advice
from s3heap_tender.stores.port import NOT_MODIFIED, Listed, NotModified, StoredObject, check_size

_CHUNK: Final = 1000


class ObstoreStore(BucketStore):
    """Objects under `prefix/` of a bucket; arguments as of `BucketStore`.

    Raises `StoreUrlError` where obstore isn't installed, no credentials are found, or the process was forked from one that
    used obstore: its threads are that one's.
    """

    _first: ClassVar[dict[str, int]] = {}

    def _connect(
        self,
        endpoint_url: str | None,
        access_key: str | None,
        secret_key: str | None,
        region: str | None,
        connections: int,
    ) -> None:
        try:
            import obstore
            from obstore import exceptions
            from obstore.store import S3Store as Client
        except ImportError as error:
            raise StoreUrlError("the client obstore isn't installed: pip install 's3heap-tender[obstore]'") from error
        if os.getpid() != ObstoreStore._first.setdefault("pid", os.getpid()):
            self._process = ObstoreStore._first["pid"]
            self._check_process()
        self._obstore: Any = obstore
        self._errors: Any = exceptions
        options: dict[str, Any] = {"region": region or DEFAULT_REGION}
        if endpoint_url is not None:
            options["endpoint"] = endpoint_url
        if access_key is not None:
            options.update(access_key_id=access_key, secret_access_key=secret_key)
        else:
            options["credential_provider"] = _environment_credentials(self.url)
        try:
            self._client: Any = Client(
                self.bucket,
                prefix=self.prefix or None,
                client_options={
                    "timeout": timedelta(seconds=self._timeout),
                    "connect_timeout": timedelta(seconds=min(5.0, self._timeout)),
                    "pool_max_idle_per_host": str(connections),
                    "allow_http": True,
                },
                # A conditional write that landed and whose answer was lost must be read again, not sent again.
                retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=self._timeout)},
                **options,
            )
        except exceptions.BaseError as error:
            raise StoreUrlError(f"{self.url}: endpoint_url={endpoint_url!r} can't be used: {error}") from error

    def get(self, key: str, *, if_none_match: str | None = None) -> StoredObject | NotModified | None:
        self._check_process()
        options = None if if_none_match is None else {"if_none_match": if_none_match}
        try:
            answer = self._obstore.get(self._client, key, options=options)
            check_size(self.url, key, int(answer.meta["size"]))
            return StoredObject(bytes(answer.bytes()), str(answer.meta["e_tag"]))
        except OversizedObjectError:
            raise
        except self._errors.NotModifiedError:
            return NOT_MODIFIED
        except (self._errors.NotFoundError, FileNotFoundError) as error:
            if "NoSuchBucket" in str(error):
                raise self._translated("read", key, error, writes=False) from error
            return None
        except Exception as error:
            raise self._translated("read", key, error, writes=False) from error

    def put(self, key: str, body: bytes, *, if_match: str | None) -> str:
        self._check_process()
        mode: Any = "create" if if_match is None else {"e_tag": if_match}
        try:
            return str(self._obstore.put(self._client, key, body, mode=mode, use_multipart=False)["e_tag"])
        except Exception as error:
            raise self._translated("written", key, error, writes=True) from error

    def delete(self, key: str, *, if_match: str) -> None:
        self._check_process()
        where = f"{self.url}: object {key} can't be deleted"
        try:
            url = self._obstore.sign(self._client, "DELETE", key, timedelta(seconds=60 + self._timeout))
        except Exception as error:
            raise self._translated("deleted", key, error, writes=False) from error
        request = urllib.request.Request(url, method="DELETE", headers={"If-Match": if_match})
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as answer:
                answer.read()
        except urllib.error.HTTPError as error:
            with error:
                status, said = error.code, error.read(500).decode(errors="replace")
            if status in (409, 412) or (status == 404 and "NoSuchBucket" not in said):
                raise ConflictError(f"{where}: its condition does not hold ({status})") from error
            if status < 500 and status not in (408, 425, 429):
                raise StoreUrlError(f"{where}: the store answered {status} {said[:200]}; {advice(said)}") from error
            raise OutcomeUnknownError(f"{where}: {status}; it may have taken effect") from error
        except (OSError, HTTPException) as error:
            raise OutcomeUnknownError(f"{where}: {error}; it may have taken effect") from error

    def list(self, prefix: str, *, before: str | None = None, since: str | None = None) -> Iterator[Listed]:
        self._check_process()
        # obstore's own prefixes are whole folders; keys are flat, so a listing begins at the prefix and ends after it.
        try:
            since = since or ""
            for rows in self._obstore.list(self._client, offset=max(prefix, since[:-1]) or None, chunk_size=_CHUNK):
                for row in rows:
                    key = str(row["path"])
                    if not key.startswith(prefix) or (before is not None and key >= before):
                        return
                    if key < since:
                        continue
                    yield Listed(key, str(row["e_tag"]), int(row["size"]))
        except Exception as error:
            raise self._translated("listed", prefix + "*", error, writes=False) from error

    def close(self) -> None:
        pass

    def _translated(self, what: str, key: str, error: Exception, *, writes: bool) -> Exception:
        errors = self._errors
        said = " ".join(str(error).split())[:300]
        where = f"{self.url}: object {key} can't be {what}"
        if "NoSuchBucket" in said:
            return StoreUrlError(f"{where}: the bucket {self.bucket!r} must exist")
        conflicts = (errors.AlreadyExistsError, errors.PreconditionError, errors.NotFoundError, FileNotFoundError)
        if writes and isinstance(error, conflicts):
            return ConflictError(f"{where}: its condition does not hold ({type(error).__name__})")
        if isinstance(error, (errors.PermissionDeniedError, errors.UnauthenticatedError)):
            return StoreUrlError(f"{where}: {said}; {advice(said)}")
        if writes:
            return OutcomeUnknownError(f"{where}: {said}; it may have taken effect")
        return StoreUnavailableError(f"{where}: {said}")


def _environment_credentials(url: str) -> Any:
    """Credentials as the AWS SDK finds them: environment, profiles, roles."""
    import boto3
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        return Boto3CredentialProvider(boto3.Session())
    except ValueError as error:
        raise StoreUrlError(f"{url}: {error}; set credentials, region and URL as for any AWS tool") from error
