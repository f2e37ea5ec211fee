"""Names of the heap's objects: flat, fixed width, so that a listing of a shard is in the order of time.

    meta                               → the heap's format, bucket length, shards and sysdb (msgpack)
    SSSS-YYYYMMDDTHHMMSSZ-PPP          → shard, start of the bucket, number of the overflow object
    quarantine-…                       → an object that couldn't be read, moved aside
    probe-…                            → written and removed whenever the store is opened

The time in a name is the cluster clock's, which starts near 1970.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

META_KEY: Final = "meta"
QUARANTINE_PREFIX: Final = "quarantine-"
PROBE_PREFIX: Final = "probe-"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_KEY: Final = re.compile(r"(\d{4})-(\d{8}T\d{6}Z)-(\d{3})")
MAX_PARTS: Final = 1000
LAST_BUCKET: Final = 253_000_000_000  # s; names hold four digits of a year


@dataclass(frozen=True, slots=True, order=True)
class ObjectName:
    """Which part of which bucket of which shard an object is."""

    shard: int
    bucket: int  # start, in seconds of the cluster clock
    part: int = 0

    @property
    def key(self) -> str:
        """The object's key."""
        return f"{bucket_prefix(self.shard, self.bucket)}{self.part:03d}"

    @classmethod
    def parse(cls, key: str) -> ObjectName | None:
        """The name a key says; None for a key that is no heap object's."""
        found = _KEY.fullmatch(key)
        if found is None:
            return None
        try:
            start = datetime.strptime(found[2], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        except ValueError:
            return None
        return cls(int(found[1]), int((start - _EPOCH).total_seconds()), int(found[3]))


def shard_prefix(shard: int) -> str:
    """What the keys of a shard start with."""
    return f"{shard:04d}-"


def bucket_prefix(shard: int, bucket: int) -> str:
    """What the keys of a bucket's parts start with."""
    return f"{shard:04d}-{_EPOCH + timedelta(seconds=bucket):%Y%m%dT%H%M%SZ}-"
