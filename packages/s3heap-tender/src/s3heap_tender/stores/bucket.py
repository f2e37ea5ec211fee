"""What the clients of S3 have in common: where the objects are, and the options of a connection."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import Final

from s3heap_tender.errors import StoreUrlError

DEFAULT_REGION: Final = "us-east-1"


def _region_of_environment() -> str | None:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")


class BucketStore(ABC):
    """Objects under `prefix/` of a bucket.

    Args:
        bucket, prefix: where; the bucket must exist.
        endpoint_url: of a server other than AWS's.
        access_key, secret_key, region: where the environment's own configuration is not to be used.
        timeout: seconds a request may take.
        connections: requests in flight at once.

    Raises `StoreUrlError` where there is no bucket's name, or the client can't be made.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str,
        *,
        endpoint_url: str | None = None,
        access_key: str | None = None,
        secret_key: str | None = None,
        region: str | None = None,
        timeout: float = 10.0,
        connections: int = 64,
    ) -> None:
        if not bucket:
            raise StoreUrlError("an s3: URL needs a bucket: s3://bucket/prefix")
        self.bucket = bucket
        self.prefix = prefix.strip("/")
        self.url = f"s3://{bucket}/{self.prefix}"
        self._timeout = timeout
        self._process = os.getpid()
        self._connect(endpoint_url, access_key, secret_key, region or _region_of_environment(), connections)

    def _check_process(self) -> None:
        """Raises `StoreUrlError` in a forked child: the client's threads are the parent's, and no request would ever end."""
        if os.getpid() != self._process:
            raise StoreUrlError(
                f"{self.url} was opened by process {self._process}, and this one is forked from it: open a HeapStore here "
                "(of the client aioboto3; obstore wants a process that was started anew, as by multiprocessing's spawn)"
            )

    @abstractmethod
    def _connect(
        self,
        endpoint_url: str | None,
        access_key: str | None,
        secret_key: str | None,
        region: str | None,
        connections: int,
    ) -> None:
        """Make the client."""


def advice(said: str) -> str:
    """What to do about a request that the store refuses, by what it said."""
    return "set this machine's clock" if "TimeTooSkewed" in said else "check credentials and the URL"
