"""The row of `garbage` of a future that may be collected: who let it go, and since when nobody needs it."""

from __future__ import annotations

from typing import NamedTuple

from fdb_datamodel.rows import codec
from fdb_schema import RecordError
from fdb_schema.clock import MICROSECONDS


class Mark(NamedTuple):
    """released: by its submitter, and not found because that is gone. since: µs of the cluster's clock, None while it is needed.

    ttl: seconds that it is kept, where that isn't the collector's grace.
    """

    released: bool = False
    since: int | None = None
    ttl: float | None = None

    def pack(self) -> bytes:
        return codec.pack((self.released, self.since) if self.ttl is None else self[:])

    def in_grace(self, now: int, grace: float) -> bool:
        """Whether its future can't be collected yet, whatever has become of it."""
        kept = grace if self.ttl is None else self.ttl
        return self.since is not None and now - self.since <= kept * MICROSECONDS


def read_mark(value: bytes) -> Mark:
    """One that can't be read says nothing."""
    try:
        released, since, *rest = codec.unpack(value)
        (ttl,) = rest or (None,)
    except (RecordError, TypeError, ValueError):
        return Mark()
    return Mark(released is True, since if type(since) is int else None, ttl if isinstance(ttl, int | float) else None)
