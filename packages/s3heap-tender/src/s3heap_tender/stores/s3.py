"""S3 and what speaks its protocol, through aioboto3: one event loop in a thread serves callers of all threads.

The SDK retries little: a conditional write that landed and whose answer was lost must be read again, not sent again.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from s3heap_tender.errors import (
    NO_SDK,
    ConflictError,
    OutcomeUnknownError,
    OversizedObjectError,
    StoreUnavailableError,
    StoreUrlError,
)
from s3heap_tender.stores.bucket import DEFAULT_REGION, BucketStore, advice
from s3heap_tender.stores.port import NOT_MODIFIED, Listed, NotModified, StoredObject, check_size

T = TypeVar("T")
_CONFLICTS: Final = frozenset({409, 412})
_UNSENT: Final = frozenset(
    {"NoCredentialsError", "PartialCredentialsError", "ParamValidationError", "ProfileNotFound", "NoRegionError"}
)
_UNCONNECTED: Final = frozenset({"EndpointConnectionError", "ConnectTimeoutError"})
_BUSY: Final = frozenset({408, 409, 425, 429})
_BUSY_CODES: Final = frozenset({"RequestTimeout", "SlowDown", "TooManyRequests"})
_PAGE: Final = 1000


class S3Store(BucketStore):
    """Objects under `prefix/` of a bucket, by the SDK; arguments as of `BucketStore`."""

    def _connect(
        self,
        endpoint_url: str | None,
        access_key: str | None,
        secret_key: str | None,
        region: str | None,
        connections: int,
    ) -> None:
        try:
            import aioboto3
            from aiobotocore.config import AioConfig
        except ImportError as error:
            raise StoreUrlError(f"{self.url}: {NO_SDK}") from error

        self.prefix = f"{self.prefix}/" if self.prefix else ""  # the SDK takes whole keys
        config = AioConfig(
            connect_timeout=self._patience(),
            read_timeout=self._timeout,
            retries={"max_attempts": 0},
            max_pool_connections=connections,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        session = aioboto3.Session(aws_access_key_id=access_key, aws_secret_access_key=secret_key, region_name=region)
        region = session.region_name or DEFAULT_REGION  # of the environment or the profile, where none was given
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="s3heap-store", daemon=True)
        self._thread.start()
        try:
            self._context = session.client("s3", region_name=region, endpoint_url=endpoint_url, config=config)
            self._client: Any = self._wait(self._context.__aenter__())
        except BaseException as error:
            self._end_loop()
            if isinstance(error, ValueError):
                raise StoreUrlError(f"{self.url}: endpoint_url={endpoint_url!r} can't be used: {error}") from error
            raise

    def get(self, key: str, *, if_none_match: str | None = None) -> StoredObject | NotModified | None:
        condition = {} if if_none_match is None else {"IfNoneMatch": if_none_match}

        async def request() -> StoredObject:
            answer = await self._client.get_object(Bucket=self.bucket, Key=self.prefix + key, **condition)
            async with answer["Body"] as stream:
                check_size(self.url, key, int(answer["ContentLength"]))
                return StoredObject(await stream.read(), str(answer["ETag"]))

        try:
            return self._wait(request())
        except (OversizedObjectError, StoreUrlError):
            raise
        except Exception as error:
            status = _status(error)
            if status == 304:
                return NOT_MODIFIED
            if status == 404 and _code(error) in ("NoSuchKey", "404", "NotFound"):
                return None
            raise self._translated("read", key, error, writes=False) from error

    def put(self, key: str, body: bytes, *, if_match: str | None) -> str:
        condition = {"IfNoneMatch": "*"} if if_match is None else {"IfMatch": if_match}

        async def request() -> str:
            answer = await self._client.put_object(Bucket=self.bucket, Key=self.prefix + key, Body=body, **condition)
            return str(answer["ETag"])

        try:
            return self._wait(request())
        except StoreUrlError:
            raise
        except Exception as error:
            raise self._translated("written", key, error, writes=True) from error

    def delete(self, key: str, *, if_match: str) -> None:
        async def request() -> None:
            await self._client.delete_object(Bucket=self.bucket, Key=self.prefix + key, IfMatch=if_match)

        try:
            self._wait(request())
        except StoreUrlError:
            raise
        except Exception as error:
            raise self._translated("deleted", key, error, writes=True) from error

    def list(self, prefix: str, *, before: str | None = None, since: str | None = None) -> Iterator[Listed]:
        since = since or ""
        after = since[:-1]  # a listing begins after a key: after one that comes before `since`
        skip = len(self.prefix)
        start = {"StartAfter": self.prefix + after} if after else {}
        while True:

            async def request(start: dict[str, str] = start) -> dict[str, Any]:
                answer: dict[str, Any] = await self._client.list_objects_v2(
                    Bucket=self.bucket, Prefix=self.prefix + prefix, MaxKeys=_PAGE, **start
                )
                return answer

            try:
                answer = self._wait(request())
            except StoreUrlError:
                raise
            except Exception as error:
                raise self._translated("listed", prefix + "*", error, writes=False) from error
            rows = answer.get("Contents", [])
            for row in rows:
                key = row["Key"][skip:]
                if before is not None and key >= before:
                    return
                if key < since:
                    continue
                yield Listed(key, str(row["ETag"]), int(row["Size"]))
            if not answer.get("IsTruncated"):
                return
            if rows:
                start = {"StartAfter": rows[-1]["Key"]}
            elif answer.get("NextContinuationToken"):  # a page may be empty, as one of nothing but deleted versions
                start = {"ContinuationToken": answer["NextContinuationToken"]}
            else:
                raise StoreUnavailableError(f"{self.url}: {prefix}* can't be listed: the listing ends before its end")

    def close(self) -> None:
        """Close connections and end the loop's thread."""
        if self._loop.is_closed() or os.getpid() != self._process:
            return
        try:
            self._wait(self._context.__aexit__(None, None, None))
        finally:
            self._end_loop()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            self._check_process()
        except StoreUrlError:
            work.close()
            raise
        # The SDK's own limits come first, but for who asks before it sends its body and hears nothing.
        limit = self._timeout + self._patience()
        future: Future[T] = asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, limit), self._loop)
        return future.result()

    def _patience(self) -> float:
        """Seconds for a connection."""
        return min(5.0, self._timeout)

    def _translated(self, what: str, key: str, error: Exception, *, writes: bool) -> Exception:
        status = _status(error)
        where = f"{self.url}: object {key} can't be {what}"
        if writes and (status in _CONFLICTS or (status == 404 and _code(error) == "NoSuchKey")):
            return ConflictError(f"{where}: its condition does not hold ({status} {_code(error)})")
        if status == 404:
            return StoreUrlError(f"{where}: {_code(error)}; the bucket {self.bucket!r} must exist")
        if status is not None and status < 500 and status not in _BUSY and _code(error) not in _BUSY_CODES:
            return StoreUrlError(f"{where}: the store answered {status} {_code(error)}; {advice(_code(error))}")
        if type(error).__name__ in _UNSENT:
            return StoreUrlError(f"{where}: {error}; set credentials, region and URL as for any AWS tool")
        if writes and type(error).__name__ not in _UNCONNECTED:
            # A time-out, a broken connection or a server error: the write may have landed or may land still.
            return OutcomeUnknownError(f"{where}: {type(error).__name__} {error}; it may have taken effect")
        return StoreUnavailableError(f"{where}: {type(error).__name__} {error}")


def _status(error: Exception) -> int | None:
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        return None
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status if isinstance(status, int) else None


def _code(error: Exception) -> str:
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else type(error).__name__
